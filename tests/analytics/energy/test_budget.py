"""Parts of the uncertainty by name, in a run file whose sensors' limits are known, and how `joules` shows them."""

import re
from dataclasses import replace

import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, S, make_run
from make_run import constant as steady

from powerd_analytics.energy.budget import KINDS
from powerd_analytics.energy.devices import load_parts, part_phase_budget, part_phase_energies
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.run_tables.uncertainty_table import budget_rows
from powerd_analytics.runs.run import read_run
from powerd_core.model import ShuntConversion

ACCURACY = {"u_gain": 0.01, "u_offset_w": 0.5, "step_w": 0.2, "window_ns": MS}


def stepped(t):
    """100 W, and 220 W in every phase of 50 ms of 100; within it, it climbs by 20 W."""
    into = (t - 100 * MS) % (100 * MS)
    return np.where((into < 50 * MS) & (t >= 100 * MS) & (t < 900 * MS), 220.0 + 20.0 * into / (50 * MS), 100.0)


def phases(n=8):
    return [PhaseSpec("forward", (100 + 100 * i) * MS, (150 + 100 * i) * MS) for i in range(n)]


def run_of(path, lines, **kw):
    return read_run(make_run(path / "r.h5", lines, phases(), {"gpu0": [s.name for s in lines]}, end_ns=S, **kw))


def test_gain_offset_and_quantisation_are_what_the_accuracy_says(tmp_path):
    run = run_of(tmp_path, [LineSpec("a", steady, accuracy=ACCURACY)])
    (row,) = budget_rows(run, phase="forward")
    parts = {p.part: p for p in row.parts}
    assert row.energy_j == pytest.approx(5.0)
    assert parts["gain"].u_j == pytest.approx(0.05)
    assert parts["offset"].u_j == pytest.approx(0.025)
    assert parts["quantisation"].u_j == pytest.approx(0.01 / np.sqrt(12))
    assert parts["gain"].distribution == "rectangular"
    assert parts["gain"].shared_by_phases
    assert not parts["gain"].shared_by_lines
    assert sum(p.share for p in row.parts) == pytest.approx(1)
    assert [p.share for p in row.parts] == sorted((p.share for p in row.parts), reverse=True)
    assert row.words.startswith("mostly gain")


def test_parts_are_those_of_the_table(tmp_path):
    run = run_of(tmp_path, [LineSpec("a", stepped, accuracy=ACCURACY)], bound_ns=20_000.0)
    rows, table = budget_rows(run), phase_table(run)
    for row, told in zip(rows, [*table.phases, *table.totals, *table.runs], strict=True):
        assert row.u95_j == told.u95_j
        assert 1.64 * row.u_j <= row.u95_j <= 2.4 * row.u_j
        if row.table != "run":
            assert row.u_j == pytest.approx(np.hypot(told.u_statistical_j, told.u_systematic_j))


def test_a_shunt_that_is_most_of_the_gain_is_a_limit_and_a_calibrated_one_is_not(tmp_path):
    """The 1 % of an INA228's shunt leave little to its chip: nothing is 1.96 standard uncertainties off."""
    run = run_of(tmp_path, [LineSpec("a", steady, accuracy=ACCURACY | {"u_gain": 0.006, "u_offset_w": 0.0})])
    (part,) = load_parts(run)
    (signal,) = part.signals
    detail = {"sensors": [{"name": signal.line.name.rpartition(".")[2], "shunt_tolerance": 0.01}]}

    def factor_of(u_gain, detail):
        line = replace(
            signal.line,
            name=f"gpu0.{signal.line.name.rpartition('.')[2]}",
            conversion=ShuntConversion(0.01, 1e-5, 1.0),
            accuracy=replace(signal.line.accuracy, u_gain=u_gain),
            detail=detail,
        )
        columns = part_phase_energies(run, replace(part, signals=(replace(signal, line=line),)))
        return columns.u95_j[0] / columns.u_systematic_j[0]

    assert factor_of(0.006, detail) == pytest.approx(1.70, abs=0.06)
    assert factor_of(0.001, detail) == pytest.approx(1.96, abs=0.03)
    assert factor_of(0.006, {}) == pytest.approx(1.96, abs=0.03)


def test_averaging_shrinks_what_differs_and_nothing_that_is_shared(tmp_path):
    run = run_of(tmp_path, [LineSpec("a", stepped, accuracy=ACCURACY)], bound_ns=20_000.0)
    few = replace(run, phases=_first(run, 2))
    one, all_of_them = (
        {p.part: p.u_j for p in budget_rows(r, phase="forward")[0].parts} for r in (few, run)
    )  # fmt: skip
    for name in ("gain", "offset"):
        assert all_of_them[name] == pytest.approx(one[name], rel=0.05)
    (part,) = load_parts(run)
    budget, _ = part_phase_budget(run, part)
    for name, u in budget.parts.items():
        if KINDS[name].of_repeats:
            assert u == pytest.approx(u[0], rel=0.02)


def test_what_a_slow_adapter_leaves_open_is_shared_by_all_readings(tmp_path):
    """A phase of 120 W more at both ends loses there, at most, what its readings are late or early."""
    run = run_of(tmp_path, [LineSpec("a", stepped, accuracy=ACCURACY)])
    (part,) = load_parts(run)
    (signal,) = part.signals

    def place_j(shared_ns):
        accuracy = replace(signal.line.accuracy, centre_ns=MS + shared_ns, shared_centre_ns=shared_ns)
        line = replace(signal.line, conversion=ShuntConversion(0.01, 1e-5, 1.0), accuracy=accuracy)
        late = replace(signal, line=line, centre_ns=float(accuracy.centre_ns))
        return part_phase_budget(run, replace(part, signals=(late,)))[0].parts.get("place", [0.0])[0]

    assert place_j(0) == 0
    assert 0.05 < place_j(5 * MS) <= 0.005 / np.sqrt(3) * 140


def test_lines_share_the_clock_and_what_is_missing_but_not_the_gain(tmp_path):
    lines = [LineSpec(n, lambda t: stepped(t) / 4, accuracy=ACCURACY) for n in "abcd"]
    four = run_of(tmp_path, lines, bound_ns=20_000.0)
    (tmp_path / "one").mkdir()
    one = run_of(tmp_path / "one", lines[:1], bound_ns=20_000.0)
    of_four, of_one = ({p.part: p.u_j for p in budget_rows(r, phase="forward")[0].parts} for r in (four, one))
    assert of_four["clock"] == pytest.approx(4 * of_one["clock"], rel=1e-6)
    assert of_four["gain"] == pytest.approx(2 * of_one["gain"], rel=1e-6)


def test_a_bound_of_the_device_clock_is_a_part_of_its_own(tmp_path):
    run = run_of(tmp_path, [LineSpec("a", stepped, accuracy=ACCURACY)], bound_ns=20_000.0)
    bound = np.full(len(run.phases), 40_000)
    timed = replace(run, phases=replace(run.phases, begin_bound_ns=bound, end_bound_ns=bound))
    without, parts = ({p.part: p.u_j for p in budget_rows(r, phase="forward")[0].parts} for r in (run, timed))
    assert "device clock" not in without
    # Marks a moment later begin a moment later too: the phase's first power is that much less, its last much more.
    assert 0 < parts["device clock"] <= 40e-6 / np.sqrt(3) * 140


def _first(run, n):
    names = [name for name in run.phases.__dataclass_fields__ if isinstance(getattr(run.phases, name), np.ndarray)]
    return replace(run.phases, **{name: getattr(run.phases, name)[:n] for name in names})


def behind_low_pass(t):
    """What a reading shows of 300 W for 30 ms and 120 W for 43.7 ms, again and again, behind a low-pass of 13 ms; its
    weight is centred on its timestamp."""
    high, low, tau = 30.0, 43.7, 13.0
    x = (t / MS - 100 + tau) % (high + low)
    fall, rise = np.exp(-low / tau), np.exp(-high / tau)
    first = 180 * fall * (1 - rise) / (1 - fall * rise)  # above 120 W, where the power rises
    top = 180 + (first - 180) * rise
    y = np.where(x < high, 180 + (first - 180) * np.exp(-x / tau), top * np.exp(-(x - high) / tau))
    return 120 + y


def test_the_closed_formula_of_a_low_pass_is_right_and_others_have_none(tmp_path):
    high, period = 30 * MS, 73_700_000
    begins = range(100 * MS, 59 * S, period)
    spans = [("forward", t, t + high) for t in begins] + [("backward", t + high, t + period) for t in begins]
    of_all = [PhaseSpec(*span) for span in sorted(spans, key=lambda s: s[1])]
    for accuracy in ({"filter_ns": 13 * MS}, {"window_ns": 13 * MS}):
        lines = [LineSpec("a", behind_low_pass, period_ns=20 * MS, accuracy={"u_gain": 0.01, **accuracy})]
        run = read_run(make_run(tmp_path / "r.h5", lines, of_all, end_ns=60 * S))
        forward, backward = (r for r in budget_rows(run) if r.table == "phase")
        if "filter_ns" in accuracy:
            words = re.compile(r"closed formula of the low-pass: (\S+) J")
            joules = [float(words.search(row.words)[1]) for row in (forward, backward)]
            assert joules == pytest.approx([300 * 0.03, 120 * 0.0437], rel=0.005)
        else:
            assert "closed formula" not in forward.words + backward.words
