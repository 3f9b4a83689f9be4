"""The fault matrix with real processes, see `faults.rows`; ``-m soak`` runs what ``make test`` leaves out.

Each cell is made a second time with an act that does nothing, and must fail for want of evidence. In ``make test`` all
cells share three trainings for that, one of each source, as nothing that happens to one would disturb another; ``-m
soak`` neuters each cell at its own length.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from faults.acts import ACTS, neutered
from faults.cell import BRIEF_S, evidence, run_cell
from faults.rows import CELLS, KINDS, MOMENTS, VICTIMS, cells, to_csv
from faults.stage import QUICK, Stage, hold, staged
from faults.witness import WITNESSES

LANES = 3
"""Cells at once: most of what they do is wait."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "results" / "faults.csv"
ALL = [
    pytest.param(cell, moment, None, id=f"{cell.name}-{moment}", marks=[] if moment in cell.quick else pytest.mark.soak)
    for cell, moment in cells()
]
NEUTERED = [pytest.param(cell, moment, neutered, id=f"{cell.name}-{moment}") for cell, moment in cells()]


@pytest.fixture(scope="module")
def outcomes(request):
    """The outcome of each chosen cell, as a future: they run side by side, whatever test asks first."""
    chosen = {}
    with ThreadPoolExecutor(LANES) as pool:
        for item in request.session.items:
            found = getattr(item, "callspec", None)
            if item.path == request.path and found is not None and "act" in found.params:
                cell, moment, act = (found.params[name] for name in ("cell", "moment", "act"))
                chosen[cell.name, moment, act] = pool.submit(run_cell, cell, moment, act=act)
        yield chosen
        for future in chosen.values():
            future.cancel()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("cell", "moment", "act"), ALL)
def test_cell(cell, moment, act, outcomes):
    outcome = outcomes[cell.name, moment, act].result()
    assert outcome.problems == []
    assert outcome.account.lost == outcome.account.declared


def evidence_without_faults(source):
    """What each cell of one source says of its evidence after a run, in which nothing was done."""
    stage = Stage(QUICK, source=source, network=True, small_disk=True, spool=True)
    with staged(stage), contextlib.ExitStack() as looking:
        stage.train()
        chosen = [cell for cell in CELLS if cell.makes_sense and cell.stage.get("source", "numbered") == source]
        found = {cell.name: looking.enter_context(evidence(cell, stage)) for cell in chosen}
        hold(BRIEF_S)
        for witness in found.values():
            witness.look()
        assert stage.finish_training() == 0
        for witness in found.values():
            witness.look()
        return {name: witness.problems(QUICK.length_s) for name, witness in found.items()}


@pytest.fixture(scope="module")
def without_faults():
    with ThreadPoolExecutor(LANES) as pool:
        every = list(pool.map(evidence_without_faults, ("numbered", "node", "sim")))
    return {name: problems for of_source in every for name, problems in of_source.items()}


@pytest.mark.parametrize("name", [cell.name for cell in CELLS if cell.makes_sense])
def test_an_act_that_does_nothing_leaves_no_evidence(name, without_faults):
    (problem,) = without_faults[name]
    assert problem.startswith("no evidence of the fault")


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("cell", "moment", "act"), NEUTERED)
def test_a_neutered_cell_fails(cell, moment, act, outcomes):
    problems = outcomes[cell.name, moment, act].result().problems
    assert any(problem.startswith("no evidence of the fault") for problem in problems)


def test_every_pair_is_in_the_table_once():
    pairs = [(cell.victim, cell.kind) for cell in CELLS if cell.fits]
    assert sorted(pairs) == sorted((victim, kind) for victim in VICTIMS for kind in KINDS)


def test_what_makes_no_sense_says_why_and_the_rest_can_be_made():
    for cell in CELLS:
        assert cell.made
        assert cell.makes_sense == ((cell.victim, cell.kind) in ACTS), cell.name
        assert set(cell.quick) <= set(MOMENTS)


def test_each_act_has_its_witness():
    assert set(WITNESSES) == set(ACTS)


def test_each_victim_and_each_kind_is_in_make_test():
    quick = [cell for cell, _ in cells("quick")]
    assert {cell.victim for cell in quick} >= set(VICTIMS)
    assert {cell.kind for cell in quick} >= set(KINDS)


def test_the_table_is_in_the_documentation():
    assert to_csv() == DOCUMENT.read_text(encoding="utf-8")
