"""The fault matrix with real processes, see `faults.rows`; ``-m soak`` runs what ``make test`` leaves out."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from faults.acts import ACTS
from faults.cell import run_cell
from faults.rows import CELLS, KINDS, MOMENTS, VICTIMS, cells, to_markdown

LANES = 3
"""Cells at once: most of what they do is wait."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
ALL = [
    pytest.param(cell, moment, id=f"{cell.name}-{moment}", marks=[] if moment in cell.quick else pytest.mark.soak)
    for cell, moment in cells()
]


@pytest.fixture(scope="module")
def outcomes(request):
    """The outcome of each chosen cell, as a future: they run side by side, whatever test asks first."""
    chosen = {}
    with ThreadPoolExecutor(LANES) as pool:
        for item in request.session.items:
            found = getattr(item, "callspec", None)
            if item.path == request.path and found is not None and "cell" in found.params:
                cell, moment = found.params["cell"], found.params["moment"]
                chosen[cell.name, moment] = pool.submit(run_cell, cell, moment)
        yield chosen
        for future in chosen.values():
            future.cancel()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("cell", "moment"), ALL)
def test_cell(cell, moment, outcomes):
    outcome = outcomes[cell.name, moment].result()
    assert outcome.problems == []
    assert outcome.account.lost == outcome.account.declared


def test_every_pair_is_in_the_table_once():
    pairs = [(cell.victim, cell.kind) for cell in CELLS if cell.fits]
    assert sorted(pairs) == sorted((victim, kind) for victim in VICTIMS for kind in KINDS)


def test_what_makes_no_sense_says_why_and_the_rest_can_be_made():
    for cell in CELLS:
        assert cell.made
        assert cell.makes_sense == ((cell.victim, cell.kind) in ACTS), cell.name
        assert set(cell.quick) <= set(MOMENTS)


def test_each_victim_and_each_kind_is_in_make_test():
    quick = [cell for cell, _ in cells("quick")]
    assert {cell.victim for cell in quick} >= set(VICTIMS)
    assert {cell.kind for cell in quick} >= set(KINDS)


def test_the_table_is_in_the_documentation():
    assert to_markdown() in DOCUMENT.read_text(encoding="utf-8")
