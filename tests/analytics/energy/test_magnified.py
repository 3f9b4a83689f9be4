"""Repeated phases in run files whose power is known exactly, read by a sensor that sees no phase alone."""

import numpy as np
import pytest
from command import joules
from make_run import MS, LineSpec, PhaseSpec, S, auxiliary, make_run

from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.in_force import ENFORCED_CAP
from powerd_analytics.runs.run import read_run
from powerd_client.energies.phase import HEAD_START, MAGNIFIED, MAGNIFY

LENGTH = {"forward": int(8.3 * MS), "backward": int(17.9 * MS), "update": int(1.1 * MS)}
WATTS = {"forward": 610.0, "backward": 480.0, "update": 300.0}
PAUSE_NS, PAUSE_W, IDLE_W = int(0.9 * MS), 150.0, 90.0
STRETCHES = ("backward", "update", "forward", "update", "forward", "backward")
WINDOW_NS = 50 * MS
CLOCK_MHZ = 1980
ITERATIONS = 60


def magnified_run(path, magnified_in="", alone_w=WATTS, clock_alone=CLOCK_MHZ, waits=0.0, is_ahead=False, more=()):
    """Iterations with repetitions behind half of them, told by windows of 50 ms.

    ``magnified_in``: the phase that is open over the repetitions, ``epoch`` or ``iteration``, or none. ``waits``: for
    the host between repetitions of ``forward``, as a share of it; with ``is_ahead`` only of the first 0.1 s, as every
    eight of the others have backward passes before them. ``more`` lines can be told.
    """
    phases, edges, watts, clocks = [], [0], [IDLE_W], [(0, CLOCK_MHZ)]
    t = 300 * MS

    def add(name, length, level, parent):
        nonlocal t
        phases.append(PhaseSpec(name, t, t + length, {}, parent))
        edges.append(t)
        watts.append(level)
        t += length

    def pause(length, level):
        nonlocal t
        edges.append(t)
        watts.append(level)
        t += length

    epoch = -1
    if magnified_in == "epoch":
        epoch = 0
        phases.append(PhaseSpec("epoch", t, t))
    for n in range(ITERATIONS):
        one = len(phases)
        phases.append(PhaseSpec("iteration", t, t, {"batch_size": 32}, epoch))
        for name, length in LENGTH.items():
            add(name, length, WATTS[name], one)
        pause(PAUSE_NS, PAUSE_W)
        phases[one].end_ns = t
        if n == ITERATIONS // 2:
            magnify = len(phases)
            phases.append(PhaseSpec(MAGNIFY, t, t, {}, one if magnified_in == "iteration" else epoch))
            clocks.append((t, clock_alone))
            for name in STRETCHES:
                for i in range(int(0.4 * S / LENGTH[name])):
                    is_late = waits and name == "forward" and (i < 12 or not is_ahead)
                    if is_ahead and name == "forward" and i >= 12 and i % 8 == 4:
                        add(HEAD_START, 8 * LENGTH["backward"], alone_w["backward"], magnify)
                    add(MAGNIFIED + name, LENGTH[name], alone_w[name], magnify)
                    if is_late:
                        pause(int(waits * LENGTH[name]), IDLE_W)
                pause(40 * MS, IDLE_W)
            phases[magnify].end_ns = t
            clocks.append((t, CLOCK_MHZ))
            if magnified_in == "iteration":
                phases[one].end_ns = t
    if epoch == 0:
        phases[0].end_ns = t
    edges.append(t)
    watts.append(IDLE_W)
    stop = t + 300 * MS
    at, level = np.array([*edges, stop]), np.array(watts)
    joules_upto = np.concatenate([[0.0], np.cumsum(np.diff(at) * level)])

    def windows(moments):
        ends = [np.interp((moments + side).clip(0, stop), at, joules_upto) for side in (-WINDOW_NS / 2, WINDOW_NS / 2)]
        lengths = np.diff([(moments + side).clip(0, stop) for side in (-WINDOW_NS / 2, WINDOW_NS / 2)], axis=0)[0]
        return (ends[1] - ends[0]) / lengths

    clock_t = np.arange(0, stop, 100 * MS)
    mhz = np.array([m for _, m in clocks])[np.searchsorted([c for c, _ in clocks], clock_t, "right") - 1]
    lines = [
        LineSpec("gpu0.power", windows, period_ns=20 * MS, accuracy={"window_ns": WINDOW_NS, "u_gain": 0.02}),
        LineSpec(
            "gpu0.sm_clock",
            t_ns=clock_t,
            codes={"code": mhz.astype(np.int64)},
            conversion={"kind": "quantity", "column": "code", "quantity": "clock_hz", "per_code": 1e6},
        ),
    ]
    make_run(path, [*lines, *more], phases, {"gpu0": ["gpu0.power"]}, end_ns=stop)
    return read_run(path)


def rows_of(run):
    return {row.phase: row for row in phase_table(run, "gpu0").phases}


def test_repeated_phases_tell_the_joules_of_phases_that_are_too_short(tmp_path):
    rows = rows_of(magnified_run(tmp_path / "r.h5"))
    assert list(rows) == ["iteration", *LENGTH]
    for name, length in LENGTH.items():
        exact_j = WATTS[name] * length * 1e-9
        assert rows[name].method == "magnified"
        assert rows[name].j_per_batch == pytest.approx(exact_j, rel=0.01)
        assert abs(rows[name].j_per_batch - exact_j) <= rows[name].u95_j < 0.06 * exact_j
        assert "off the iteration" in rows[name].note
        assert rows[name].iterations == ITERATIONS
    assert rows["iteration"].method != "magnified"


def test_repetitions_behind_a_head_start_of_the_host_tell_the_phase_that_waits_without_it(tmp_path):
    rows = rows_of(magnified_run(tmp_path / "r.h5", waits=0.3, is_ahead=True))
    for name, length in LENGTH.items():
        exact_j = WATTS[name] * length * 1e-9
        assert rows[name].method == "magnified"
        assert rows[name].j_per_batch == pytest.approx(exact_j, rel=0.01)
        assert abs(rows[name].j_per_batch - exact_j) <= rows[name].u95_j < 0.06 * exact_j


@pytest.mark.parametrize("magnified_in", ["epoch", "iteration"])
def test_what_is_repeated_is_no_part_of_totals_means_and_samples_per_second(tmp_path, magnified_in):
    exact_s = (sum(LENGTH.values()) + PAUSE_NS) * 1e-9
    exact_j = sum(WATTS[name] * length for name, length in LENGTH.items()) * 1e-9 + PAUSE_W * PAUSE_NS * 1e-9
    table = phase_table(magnified_run(tmp_path / "r.h5", magnified_in), "gpu0")
    rows, total = {row.phase: row for row in table.phases}, table.totals[-1]
    # An iteration that was interrupted is none for means, but its samples count.
    assert rows["iteration"].iterations == ITERATIONS - (magnified_in == "iteration")
    assert rows["iteration"].s_per_batch == pytest.approx(exact_s)
    assert total.iterations == ITERATIONS
    assert total.samples_per_s == pytest.approx(32 / exact_s, rel=1e-6)
    assert total.energy_j == pytest.approx(ITERATIONS * exact_j, rel=0.01)
    parts_j = sum(rows[name].j_per_batch * rows[name].iterations for name in LENGTH)
    assert parts_j + total.rest_j == pytest.approx(total.energy_j)
    whole = table.runs[0]  # the recording has it all the same
    assert total.energy_j + whole.magnified_j + whole.rest_j == pytest.approx(whole.energy_j)


def test_repetitions_that_do_not_add_up_to_the_iteration_are_refused(tmp_path, capsys):
    hotter = {name: 1.06 * level for name, level in WATTS.items()}
    run = magnified_run(tmp_path / "r.h5", alone_w=hotter)
    for name, row in rows_of(run).items():
        if name in LENGTH:
            assert row.method != "magnified"
            assert "not magnified: repeated alone, their sum is +6." in row.note
    _, out, _ = joules(capsys, "tables", run.path, "--device", "gpu0", "--notes")
    assert "not magnified: repeated alone" in out


def test_repetitions_at_another_clock_are_refused(tmp_path):
    rows = rows_of(magnified_run(tmp_path / "r.h5", clock_alone=1.02 * CLOCK_MHZ))
    for name in LENGTH:
        assert rows[name].method != "magnified"
        assert "another clock" in rows[name].note


def test_a_phase_whose_repetitions_wait_for_the_host_is_told_by_what_the_others_leave(tmp_path):
    refused = rows_of(magnified_run(tmp_path / "refused.h5", alone_w={name: 1.06 * w for name, w in WATTS.items()}))
    table = phase_table(magnified_run(tmp_path / "r.h5", waits=0.05), "gpu0")
    rows, total = {row.phase: row for row in table.phases}, table.totals[-1]
    assert [rows[name].method for name in LENGTH] == ["difference", "magnified", "magnified"]
    assert "alone it takes 8.7 ms instead of 8.3 ms" in rows["forward"].note
    assert "repeated phases leave" in rows["forward"].note
    exact_j = WATTS["forward"] * LENGTH["forward"] * 1e-9
    assert abs(rows["forward"].j_per_batch - exact_j) <= rows["forward"].u95_j < 0.9 * refused["forward"].u95_j
    parts_j = sum(rows[name].j_per_batch * rows[name].iterations for name in LENGTH)
    assert parts_j + total.rest_j == pytest.approx(total.energy_j)


def test_repetitions_tell_of_phases_under_their_own_power_cap(tmp_path):
    limit = auxiliary(
        "gpu0.power_limit", "power_limit_w", lambda t: np.where(t < 700 * MS, 300.0, 200.0), period_ns=S // 4
    )
    rows = phase_table(magnified_run(tmp_path / "r.h5", more=[limit]), "gpu0").phases
    short = {r.group[ENFORCED_CAP]: r for r in rows if r.phase == "update"}
    assert short[200].method == "magnified"
    assert short[200].j_per_batch == pytest.approx(WATTS["update"] * LENGTH["update"] * 1e-9, rel=0.01)
    assert not short[300].is_resolvable
