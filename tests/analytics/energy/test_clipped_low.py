"""A shunt at negative full scale: the power was even less, so that no sign says "at least"."""

from pathlib import Path

import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, S, make_run

from powerd_analytics import phase_table, read_run
from powerd_analytics.energy.devices import load_parts
from powerd_analytics.energy.reasons import clipped
from powerd_analytics.records.flat import records_of
from powerd_analytics.tables.render import to_markdown
from powerd_analytics.tables.shares import budget_rows
from powerd_analytics.tables.table import table_of
from powerd_core.model import Flag

SHUNT = {"kind": "shunt", "shunt_ohm": 0.01, "shunt_lsb_v": 1e-5, "bus_lsb_v": 0.004}
PHASES = (PhaseSpec("before", S, 2 * S), PhaseSpec("within", 3 * S, 6 * S, {"batch_size": 4}))
FULL = 32000


def made(path: Path, code: int, also: int | None = None, gain: float = 1.0) -> Path:
    """12 V and 5 A; at full scale with ``code`` from 4 to 4.5 s, and with ``also`` from 5 to 5.1 s."""
    t = np.arange(0, 10 * S + 1, 2 * MS, dtype=np.int64)
    shunt = np.full(len(t), 5000, np.int64)
    flags = np.zeros(len(t), np.uint16)
    for value, begin, end in ((code, 4.0, 4.5), (also, 5.0, 5.1)):
        if value is not None:
            where = (t > begin * S) & (t < end * S)
            shunt[where], flags[where] = value, int(Flag.SATURATED)
    line = LineSpec("gpu0.a", conversion={**SHUNT, "gain": gain}, t_ns=t, flags=flags,
                    codes={"shunt": shunt, "bus": np.full(len(t), 3000)})  # fmt: skip
    return make_run(path / "run.h5", [line], PHASES, end_ns=10 * S)


def test_negative_full_scale_gives_no_bound_and_no_interval(tmp_path: Path) -> None:
    run = read_run(made(tmp_path, -FULL))
    table = phase_table(run)
    before, within = table.phases
    assert before.u95_j is not None
    said = "gpu0.a clipped at negative full scale: energy and power are no lower bounds, and have no interval"
    for row in (within, table.totals[1], table.runs[0]):
        assert said in row.note
        assert (row.is_lower_bound, row.u95_j) == (False, None)
    for row in (within, table.totals[1]):
        assert (row.u_statistical_j, row.u_systematic_j) == (None, None)
    assert within.j_per_batch == pytest.approx(180)
    assert "≥" not in to_markdown(table)
    known = [r["phase"] for r in records_of(run, table) if r["u95_j"] is not None and r["kind"] == "phase"]
    assert known == ["before"]
    unknown = [b for b in budget_rows(run) if said in b.words]
    assert [(b.parts, b.u_j) for b in unknown] == [((), None)] * 3


@pytest.mark.parametrize(
    ("code", "also", "gain", "is_bound"),
    [(FULL, None, 1.0, True), (-FULL, None, -1.0, True), (FULL, None, -1.0, False), (FULL, -FULL, 1.0, False)],
)
def test_the_side_is_that_of_the_power(
    tmp_path: Path, code: int, also: int | None, gain: float, is_bound: bool
) -> None:
    _, row = phase_table(read_run(made(tmp_path, code, also, gain))).phases
    assert row.is_lower_bound is is_bound
    if also is not None:
        assert "gpu0.a stood at full scale and gpu0.a clipped at negative full scale: energy" in row.note


def test_readings_that_stay_in_the_file_tell_the_same(tmp_path: Path) -> None:
    run = read_run(made(tmp_path, -FULL, FULL))
    (whole,) = load_parts(run)
    (sliced,) = load_parts(run, in_memory=0, slice_size=700)
    a, b = whole.signals[0], sliced.signals[0]
    assert (len(a.clipped_ns), len(a.clipped_low_ns)) == (49, 249)
    assert np.array_equal(a.clipped_ns, b.clipped_ns)
    assert np.array_equal(a.clipped_low_ns, b.clipped_low_ns)
    edges = np.array([0]), np.array([10 * S])
    assert clipped(whole, *edges) == clipped(sliced, *edges)
    assert [r.note for r in table_of(run, [sliced]).phases] == [r.note for r in table_of(run, [whole]).phases]
