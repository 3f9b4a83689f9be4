"""What lies before the first and behind the last reading is estimated from what the states take elsewhere."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_run import MS, LineSpec, PhaseSpec, S, make_run

from powerd_analytics import phase_energies, phase_table, read_run
from powerd_analytics.energy.devices import load_parts, part_phase_budget, part_phase_energies
from powerd_analytics.energy.reasons import find_clipping
from powerd_analytics.frame.figures import frame_of, rows_of
from powerd_analytics.output.export import to_markdown
from powerd_analytics.run_tables.table import table_of
from powerd_analytics.run_tables.uncertainty_table import budget_rows
from powerd_analytics.views.layouts import run_tables
from powerd_core.model import Flag

MOST = {"max_power_limit_mw": 300_000}


def steady(first_ms: int, last_ms: int, gain: float = 1.0, u_gain: float = 0.0, **more: object) -> LineSpec:
    """100 W all the time, read every 10 ms from one moment to another; at most 300 W, as its driver states."""
    t = np.arange(first_ms * MS, last_ms * MS + 1, 10 * MS, dtype=np.int64)
    accuracy = {"u_gain": u_gain}
    return LineSpec("gpu0.a", lambda at: np.full(len(at), 100.0 * gain), t_ns=t, accuracy=accuracy, detail=MOST, **more)  # type: ignore[arg-type]


PHASES = [PhaseSpec("early", 0, 400 * MS), PhaseSpec("middle", 400 * MS, 600 * MS), PhaseSpec("late", 600 * MS, S)]


def test_steady_power_beyond_the_readings_is_inside_the_interval(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run.h5", [steady(150, 900)], PHASES))
    found = phase_energies(run, "gpu0")
    np.testing.assert_allclose(found.energy_j, [40, 20, 40], rtol=1e-9)
    # What the line could have drawn, not what it happened to show.
    np.testing.assert_allclose(found.off_by_j, [0.15 * 300, 0, 0.1 * 300], atol=1e-9)
    (row,) = phase_table(run).runs
    assert row.energy_j == pytest.approx(100, rel=1e-9)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 19), st.integers(81, 99), st.floats(-1, 1), st.floats(1e-4, 0.05))
def test_a_gain_that_is_off_too_does_not_take_it_out(first: int, last: int, off: float, u_gain: float) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        line = steady(10 * first, 10 * last, 1 + off * u_gain * np.sqrt(3) * 0.85, u_gain)
        found = phase_energies(read_run(make_run(Path(directory) / "run.h5", [line], PHASES)), "gpu0")
    assert (np.abs(found.energy_j - [40, 20, 40]) <= found.u95_j * (1 + 1e-3) + 1e-4).all()


def test_parts_and_sums_agree(tmp_path: Path) -> None:
    lines = [steady(150, 900, u_gain=0.02), LineSpec("gpu0.b", lambda at: 50 + at / S * 20, offset_ns=90 * MS)]
    run = read_run(make_run(tmp_path / "run.h5", lines, PHASES))
    (part,) = load_parts(run)
    plain, (budget, _) = part_phase_energies(run, part), part_phase_budget(run, part)
    squares = sum(u**2 for u in budget.parts.values())
    np.testing.assert_allclose(np.sqrt(squares), np.hypot(plain.u_random_j, plain.u_systematic_j), rtol=1e-9)
    for of_parts, u in zip(budget.together(), (plain.u_random_j, plain.u_systematic_j), strict=False):
        np.testing.assert_allclose(of_parts, u, rtol=1e-9)


def test_what_a_counter_counted_before_it_was_set_back_is_inside_the_interval(tmp_path: Path) -> None:
    t = np.arange(0, S + 1, 10 * MS, dtype=np.int64)
    counted = np.arange(len(t)) * 1000 + 70_000
    counted[50:] -= 120_000  # set back in front of this reading: 1 J is nowhere
    conversion = {"kind": "counter", "column": "energy_mj", "j_per_code": 1e-3, "background_w": 0.0, "bits": 64}
    line = LineSpec("gpu0.a", t_ns=t, codes={"energy_mj": counted}, conversion=conversion, period_ns=10 * MS,
                    detail=MOST)  # fmt: skip
    run = read_run(make_run(tmp_path / "run.h5", [line], PHASES))
    found = phase_energies(run, "gpu0")
    np.testing.assert_allclose(found.energy_j, [40, 20, 40])
    np.testing.assert_allclose(found.missing_s, [0, 0.01, 0], atol=1e-12)
    assert found.off_by_j[1] == pytest.approx(0.01 * 300)


def test_a_counter_with_one_good_interval_has_joules_and_no_interval(tmp_path: Path) -> None:
    t = np.array([0, 500 * MS, S], dtype=np.int64)
    conversion = {"kind": "counter", "column": "energy_mj", "j_per_code": 1e-3, "background_w": 0.0, "bits": 64}
    codes = {"energy_mj": np.array([70_000, 10_000, 60_000])}  # set back in front of the second reading
    line = LineSpec("gpu0.a", t_ns=t, codes=codes, conversion=conversion, period_ns=500 * MS)
    (row,) = phase_table(read_run(make_run(tmp_path / "run.h5", [line], PHASES))).runs
    assert row.energy_j is not None
    assert row.u95_j is None


@pytest.mark.parametrize("gap_ms", [100, 300])
def test_what_a_counter_counted_while_it_went_round_unseen_is_unknown(gap_ms: int, tmp_path: Path) -> None:
    t = np.arange(0, S + 1, 10 * MS, dtype=np.int64)
    t = t[(t <= 500 * MS) | (t >= (500 + gap_ms) * MS)]
    # 100 W: 16 bits of a quarter of a millijoule go round every 164 ms.
    codes = (60_000 + t // MS * 400) % (1 << 16)
    conversion = {"kind": "counter", "column": "c", "j_per_code": 0.25e-3, "background_w": 0.0, "bits": 16}
    line = LineSpec("gpu0.a", t_ns=t, codes={"c": codes}, conversion=conversion, period_ns=10 * MS)
    run = read_run(make_run(tmp_path / "run.h5", [line], [PhaseSpec("all", 0, S)]))
    found = phase_energies(run, "gpu0")
    is_lost = gap_ms > 164
    np.testing.assert_allclose(found.energy_j, [100], rtol=1e-3)
    # A gap in which it went round once at most loses no joule; of the other all are estimated.
    assert found.missing_s[0] == pytest.approx((gap_ms if is_lost else gap_ms - 10) / 1000)
    (row,) = phase_table(run).runs
    assert row.power_w == pytest.approx(100, rel=1e-3)


# A shunt at negative full scale: the power was even less, so that no sign says "at least".


SHUNT = {"kind": "shunt", "shunt_ohm": 0.01, "shunt_lsb_v": 1e-5, "bus_lsb_v": 0.004}
PHASES_CLIPPED_LOW = (PhaseSpec("before", S, 2 * S), PhaseSpec("within", 3 * S, 6 * S, {"batch_size": 4}))
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
    return make_run(path / "run.h5", [line], PHASES_CLIPPED_LOW, end_ns=10 * S)


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
    assert "≥" not in to_markdown(run_tables(frame_of(run, table)))
    known = [r["phase"] for r in rows_of(frame_of(run, table)) if r["u95_j"] is not None and r["kind"] == "phase"]
    assert known == ["before"]
    unknown = [b for b in budget_rows(run) if said in b.words]
    assert [(b.parts, b.u_j) for b in unknown] == [((), None)] * 3


def test_readings_that_stay_in_the_file_tell_the_same(tmp_path: Path) -> None:
    run = read_run(made(tmp_path, -FULL, FULL))
    (whole,) = load_parts(run)
    (sliced,) = load_parts(run, in_memory=0, slice_size=700)
    a, b = whole.signals[0], sliced.signals[0]
    assert (len(a.clipped_ns), len(a.clipped_low_ns)) == (49, 249)
    assert np.array_equal(a.clipped_ns, b.clipped_ns)
    assert np.array_equal(a.clipped_low_ns, b.clipped_low_ns)
    edges = np.array([0]), np.array([10 * S])
    assert find_clipping(whole, *edges) == find_clipping(sliced, *edges)
    assert [r.note for r in table_of(run, [sliced]).phases] == [r.note for r in table_of(run, [whole]).phases]


# Words for what limits a sensor.
