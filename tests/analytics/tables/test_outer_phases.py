"""Which phases have a row: all but the one around the batches, whose figures are its group's totals."""

from pathlib import Path

import pytest
from make_run import MS, LineSpec, PhaseSpec, constant, make_run

from powerd_analytics import phase_table, read_run
from powerd_analytics.cli.tags import totals


def iterations(count: int, parent: int = -1) -> list[PhaseSpec]:
    found = []
    for t in range(0, count * 80 * MS, 80 * MS):
        found.append(PhaseSpec("forward", t, t + 40 * MS, {}, parent))
        found.append(PhaseSpec("backward", t + 40 * MS, t + 80 * MS, {}, parent))
    return found


def evaluation(first: int) -> list[PhaseSpec]:
    layers = [PhaseSpec("layer", t * MS, (t + 40) * MS, {}, first) for t in range(820, 980, 40)]
    return [PhaseSpec("evaluation", 820 * MS, 980 * MS), *layers]


def rows_of(path: Path, phases: list[PhaseSpec]) -> dict[str, float | None]:
    run = read_run(make_run(path / "run.h5", [LineSpec("gpu0.a", constant)], phases))
    return {row.path: row.j_per_batch for row in phase_table(run).phases}


def test_an_evaluation_with_layers_beside_the_iterations_has_its_row(tmp_path: Path) -> None:
    phases = iterations(10)
    rows = rows_of(tmp_path, [*phases, *evaluation(len(phases))])
    assert set(rows) == {"forward", "backward", "evaluation", "evaluation/layer"}
    assert rows["evaluation"] == pytest.approx(16.0, rel=0.01)


def test_a_phase_around_everything_is_its_groups_total(tmp_path: Path) -> None:
    around = PhaseSpec("training", 0, 800 * MS)
    assert set(rows_of(tmp_path, [around, *iterations(10, 0)])) == {"training/forward", "training/backward"}


def test_a_baseline_beside_it_changes_nothing(tmp_path: Path) -> None:
    phases = [PhaseSpec("training", 0, 800 * MS), *iterations(10, 0), PhaseSpec("baseline", 850 * MS, 990 * MS)]
    assert set(rows_of(tmp_path, phases)) == {"training/forward", "training/backward", "baseline"}


def test_names_in_tags_move_no_cursor(tmp_path: Path) -> None:
    phase = PhaseSpec("for\x1b[2Jward", 0, 800 * MS, {"model": "a\nb"})
    run = read_run(make_run(tmp_path / "run.h5", [LineSpec("gpu0.a", constant)], [phase]))
    names = list(totals(run))
    assert all(name.isprintable() for name in names)
    assert any("for\\x1b[2Jward" in name and "a\\nb" in name for name in names)


def test_phases_beside_an_evaluation_with_layers_are_no_rest(tmp_path: Path) -> None:
    phases = iterations(10)
    phases += evaluation(len(phases))
    run = read_run(make_run(tmp_path / "run.h5", [LineSpec("gpu0.a", constant)], phases))
    (total,) = phase_table(run).totals
    assert total.energy_j == pytest.approx(96.0, rel=0.01)
    assert total.rest_j == pytest.approx(0.0, abs=0.5)
    assert total.residual_j == pytest.approx(0.0, abs=0.5)


def test_what_runs_beside_the_phases_is_in_no_rest(tmp_path: Path) -> None:
    phases = [PhaseSpec("iteration", 0, 800 * MS), PhaseSpec("forward", 0, 300 * MS, {}, 0)]
    phases += [PhaseSpec("communication", 100 * MS, 500 * MS, {"overlaps": True})]
    run = read_run(make_run(tmp_path / "run.h5", [LineSpec("gpu0.a", constant)], phases))
    totals_ = {tuple(row.group): row for row in phase_table(run).totals}
    assert totals_[()].rest_j == pytest.approx(50.0, rel=0.02)
