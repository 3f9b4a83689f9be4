"""Lines of too few readings to tell how sure a run's energy is, or that clipped: never ± 0 J, and `verify` goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, S, make_run

from powerd_analytics import phase_table, read_run
from powerd_analytics.tables.render import to_json
from powerd_analytics.tables.shares import budget_rows
from powerd_analytics.tables.sums import verify_sums
from powerd_core.model import Flag


def meter(readings: int, **more: object) -> LineSpec:
    """Means over 100 ms, ten a second, of which the first ones were lost."""
    t = np.arange(50 * MS, 50 * MS + readings * 100 * MS, 100 * MS, dtype=np.int64)
    watts = np.where(np.arange(readings) % 2, 150_000, 40_000)
    accuracy = {"window_ns": 100 * MS, "u_gain": 0.01}
    codes = {"power_mw": watts}
    return LineSpec("wall", device="node", t_ns=t, codes=codes, accuracy=accuracy, period_ns=100 * MS, **more)  # type: ignore[arg-type]


def test_the_row_of_the_run_has_no_uncertainty_that_nobody_knows(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run.h5", [meter(2)]))
    table = phase_table(run)
    (row,) = table.runs
    assert row.energy_j is not None
    assert row.energy_j > 0
    assert row.u95_j is None
    assert "too few readings to tell how sure that is" in row.note
    (shown,) = json.loads(to_json(table))
    assert shown["u95_j"] is None
    (budget,) = budget_rows(run, "node")
    assert (budget.u95_j, budget.parts) == (None, ())


def test_more_readings_are_enough_to_be_unsure(tmp_path: Path) -> None:
    (row,) = phase_table(read_run(make_run(tmp_path / "run.h5", [meter(3)]))).runs
    assert row.u95_j is not None
    assert row.u95_j > 0
    assert "too few" not in row.note


def test_what_a_meter_counted_itself_is_not_said_to_be_exact(tmp_path: Path) -> None:
    counter = LineSpec(
        "wall_wh",
        device="node",
        t_ns=np.array([10 * MS, S - 10 * MS]),
        codes={"joules": np.array([100, 190])},
        period_ns=980 * MS,
        conversion={"kind": "counter", "column": "joules", "j_per_code": 1.0, "background_w": 0.0, "bits": 32},
    )
    feeds = {"node": ["wall"]}
    (row,) = phase_table(read_run(make_run(tmp_path / "run.h5", [meter(9), counter], devices=feeds))).runs
    assert "wall_wh itself counted 90.00 J, too few readings to tell how sure that is" in row.note


@pytest.mark.parametrize("readings", [2, 9])
def test_verify_compares_no_residual_where_there_is_no_uncertainty(readings: int, tmp_path: Path) -> None:
    line = meter(readings)
    line.flags = np.zeros(readings, np.uint16)
    if readings > 2:
        line.flags[4] = int(Flag.SATURATED)
    path = make_run(tmp_path / "run.h5", [line], [PhaseSpec("forward", 100 * MS, 880 * MS)])
    found = {f.check: f for f in verify_sums(path)}
    assert [f.check for f in found.values() if f.state == "wrong"] == []
    if readings > 2:
        assert "which has no ± to be compared with" in found["table"].text
