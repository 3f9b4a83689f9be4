"""What devices were set to, and the tables of runs in which that changed."""

import io
from dataclasses import replace
from functools import partial

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from make_run import MS, LineSpec, PhaseSpec, S, auxiliary, make_run
from rich.console import Console

from powerd_analytics import phase_table, read_run
from powerd_analytics.energy.devices import load_parts, whole_of
from powerd_analytics.energy.states import MOST_STATES, States
from powerd_analytics.frame.figures import frame_of, rows_of
from powerd_analytics.run_tables.closing_lines import result_lines
from powerd_analytics.run_tables.iterations import iteration_rows
from powerd_analytics.run_tables.table import labels_of, table_of
from powerd_analytics.run_tables.terminal_table import print_tree
from powerd_analytics.run_tables.uncertainty_table import budget_rows
from powerd_analytics.runs.in_force import ENFORCED_CAP
from powerd_analytics.runs.settings import settings_of
from powerd_analytics.views.layouts import field_tables
from powerd_core.settings import SETTING, UNITS, KnobSetting

CAPS = ((0, 300.0), (20_400, 200.0), (41_700, 250.0))
"""From so many milliseconds on."""
SHARE = {"forward": 1 / 3, "backward": 2 / 3}
ABOVE_W = {"forward": 0.8, "backward": 0.95}
"""Power as a share of the cap."""
PAUSE_NS = 7 * MS


def cap_at(caps, t):
    return np.array([w for _, w in caps])[np.searchsorted([ms * MS for ms, _ in caps], t, "right") - 1]


def trained(caps=CAPS, begin_s=3, end_s=58, outer=True, stated=None, length_ms=134):
    """Phases of a training whose iterations take the longer the lower the cap is, and its power at every moment."""
    attributes = {"model": "m", "batch_size": 64} | (stated or {})
    phases = [PhaseSpec("training", (begin_s - 1) * S, (end_s + 1) * S, attributes)] if outer else []
    around = 0 if outer else -1
    edges, shares, t = [0], [0.3], begin_s * S
    while t < end_s * S:
        length = int(length_ms * MS * 300 / float(cap_at(caps, t)))
        iteration = len(phases)
        phases.append(PhaseSpec("iteration", t, t + length, {} if outer else attributes, around))
        for name, share in SHARE.items():
            end = t + int(length * share)
            phases.append(PhaseSpec(name, t, end, {}, iteration))
            edges.append(t)
            shares.append(ABOVE_W[name])
            t = end
        phases[iteration].end_ns = t
        edges.append(t)
        shares.append(0.3)
        t += PAUSE_NS

    def power(at):
        noise = np.random.default_rng(3).normal(0, 1.0, len(at))
        return cap_at(caps, at) * np.array(shares)[np.searchsorted(edges, at, "right") - 1] + noise

    return phases, power


def capped(path, caps=CAPS, *, limits=True, device="gpu0", more=(), period_ms=11, **of_training):
    phases, power = trained(caps, **of_training)
    lines = [LineSpec(f"{device}.a", power, device, period_ns=period_ms * MS)]
    lines += [auxiliary("gpu0.power_limit", "power_limit_w", partial(cap_at, caps), device="gpu0")] if limits else []
    return read_run(make_run(path, [*lines, *more], phases, end_ns=62 * S))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return capped(tmp_path_factory.mktemp("settings") / "r.h5")


@pytest.fixture(scope="module")
def table(run):
    return phase_table(run)


def cap_of(row):
    return row.group.get(ENFORCED_CAP)


def ended(run):
    """Iterations of the run by the cap that was enforced from their begin to their end."""
    p = run.phases
    iterations = p.of([i for i, c in enumerate(p.classes) if c.name == "iteration"])
    return p.begin_ns[iterations], p.end_ns[iterations]


# -- a cap that changes twice ------------------------------------------------------------------------------------------


def test_joules_are_those_of_each_cap(run, table):
    begin, end = ended(run)
    for (from_ms, watts), until_s in zip(CAPS, (20, 41, 99), strict=True):
        from_s = np.ceil(from_ms / 1000)  # the limit is read once a second
        rows = {r.phase: r for r in table.phases if cap_of(r) == watts}
        length_s = 0.134 * 300 / watts
        for name, share in SHARE.items():
            exact_j = watts * ABOVE_W[name] * share * length_s
            assert rows[name].j_per_batch == pytest.approx(exact_j, rel=0.01)
            assert abs(rows[name].j_per_batch - exact_j) < rows[name].u95_j
        inside = (begin >= from_s * S) & (end <= until_s * S)
        assert rows["iteration"].iterations == inside.sum() > 90
        (total,) = (r for r in table.totals if cap_of(r) == watts)
        assert total.iterations == rows["iteration"].iterations
        assert total.time_s >= end[inside][-1] * 1e-9 - begin[inside][0] * 1e-9


def test_phases_during_which_a_cap_changes_are_in_no_mean_and_in_the_total(run, table):
    begin, end = ended(run)
    changing = [r for r in table.phases if cap_of(r) == "changing"]
    straddles = sum(int(((begin < b) & (end > a)).sum()) for a, b in ((20 * S, 21 * S), (41 * S, 42 * S)))
    (row,) = (r for r in changing if r.phase == "iteration")
    assert row.iterations == straddles > 4
    assert "training" not in {r.phase for r in table.phases}
    (total,) = (r for r in table.totals if cap_of(r) == "changing")
    assert total.iterations == straddles
    assert total.samples_per_s is None
    assert total.is_mixed
    assert "the power cap changed 2 times (200 W to 300 W)" in total.note
    assert "the power cap changed 2 times (200 W to 300 W)" in table.runs[0].note
    assert table.totals[-1] is total


def test_what_is_left_of_a_group_is_in_its_rest(table):
    for total in table.totals:
        inner = [r for r in table.phases if cap_of(r) == cap_of(total) and r.phase in SHARE]
        joules = sum(r.j_per_batch * r.iterations for r in inner)
        if cap_of(total) == "changing":
            assert total.rest_j == pytest.approx(total.energy_j - joules)
        else:  # a forward pass of an iteration that straddles a change counts for the mean, but not in the total
            assert total.rest_j == pytest.approx(total.energy_j - joules, abs=1.1 * max(r.j_per_batch for r in inner))
        assert 0 < total.rest_j < 0.2 * total.energy_j


def added_up(run):
    """Rows of the table, and the energy of all of the training by the same model."""
    (part,) = load_parts(run)
    table = table_of(run, [part])
    p = run.phases
    top = p.parent < 0
    return table, whole_of(part, p.begin_ns[top], p.end_ns[top])


# At 5 s an iteration is under way, and its backward pass alone lies between two readings of the limit that say 150 W.
@example([5000, 6001], [150.0, 200.0, 250.0], False)
@settings(max_examples=4, deadline=None)
@given(
    st.lists(st.integers(5_000, 55_000), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from([150.0, 200.0, 250.0]), min_size=3, max_size=3, unique=True),
    st.booleans(),
)
def test_groups_add_up_to_all_of_the_training(tmp_path_factory, moments, watts, outer):
    caps = ((0, 300.0), *zip(sorted(moments), watts, strict=False))
    run = capped(tmp_path_factory.mktemp("sum") / "r.h5", caps, outer=outer, length_ms=900, period_ms=100)
    found, whole = added_up(run)
    assert sum(t.energy_j for t in found.totals) == pytest.approx(whole.energy.energy_j, rel=1e-9)
    assert sum(t.time_s for t in found.totals) == pytest.approx(whole.duration_s, rel=1e-9)
    begin, _ = ended(run)
    assert sum(t.iterations for t in found.totals) == len(begin)
    assert sum(r.iterations for r in found.phases if r.phase == "forward") == len(begin)
    assert len(run.phases.classes) > (4 if outer else 3)


def test_a_sweep_of_many_caps_tells_each_of_them(tmp_path):
    """It has more states than one setting may have: caps beyond that were one state together, and not resolvable."""
    caps = tuple((7_000 * k, 300.0 - 8 * k) for k in range(14))
    phases, power = trained(caps, begin_s=1, end_s=96)
    limit = auxiliary("gpu0.power_limit", "power_limit_w", partial(cap_at, caps), device="gpu0")
    run = read_run(
        make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", power, period_ns=11 * MS), limit], phases, end_ns=98 * S)
    )
    assert len(States.of(run.phases).bin_ends_s) > MOST_STATES
    rows = [r for r in phase_table(run).phases if r.phase in SHARE and cap_of(r) != "changing"]
    assert len(rows) == 2 * len(caps)
    for row in rows:
        exact_j = cap_of(row) * ABOVE_W[row.phase] * SHARE[row.phase] * int(134 * MS * 300 / cap_of(row)) * 1e-9
        assert row.j_per_batch == pytest.approx(exact_j, abs=row.u95_j)
        assert row.u95_j < 0.05 * exact_j


def test_records_and_the_terminal_say_the_cap(run, table):
    records = rows_of(frame_of(run, table))
    told = {(r["power_cap_in_run"], r["power_cap_w"], r["power_cap_basis"]) for r in records if r["kind"] != "run"}
    assert told == {(f"{w:g}", w, "enforced") for _, w in CAPS} | {("changing", None, None)}
    (whole,) = (r for r in records if r["kind"] == "run")
    assert whole["power_cap_w"] is None
    for row, record in zip(table.phases, records, strict=False):
        (label,) = labels_of(run, row)
        assert str(run.phases.classes[label].setting.value) == record["power_cap_in_run"]
    text = io.StringIO()
    print_tree(table, Console(file=text, width=80), "r.h5")
    lines = [line.strip() for line in text.getvalue().splitlines()]
    caps = [f"cap {value}" for value in ("300 W", "200 W", "250 W", "changing")]
    assert [line for line in lines if line in caps] == caps


def test_every_iteration_has_a_row_of_its_own(run):
    rows = [row for some in iteration_rows(run) for row in some]
    assert sorted(row["begin_s"] for row in rows) == pytest.approx(ended(run)[0] * 1e-9)
    assert {row["phase_path"] for row in rows} == {"training/iteration"}


def test_the_budget_of_a_total_is_that_of_its_own_time(run, table):
    rows = [r for r in budget_rows(run) if r.table == "total"]
    for row, total in zip(rows, table.totals, strict=True):
        assert (row.energy_j, row.u95_j) == (total.energy_j, total.u95_j)
        assert 2 * row.u_j == pytest.approx(total.u95_j, rel=0.2)


def test_a_phase_around_all_settings_has_all_their_joules(tmp_path):
    phases, power = trained()
    phases += [PhaseSpec("evaluation", 59 * S, 60 * S), PhaseSpec("saving", 60 * S, 61 * S)]
    lines = [
        LineSpec("gpu0.a", power, period_ns=11 * MS),
        auxiliary("gpu0.power_limit", "power_limit_w", partial(cap_at, CAPS), device="gpu0"),
    ]
    path = make_run(tmp_path / "r.h5", lines, phases, end_ns=62 * S)
    t_ns = np.arange(2 * S, 59 * S, MS)
    _, shares, _ = result_lines(path)
    assert " J in training: " in shares
    assert float(shares.split()[1]) == pytest.approx(float(power(t_ns).mean()) * 57, rel=0.005)


def test_clocks_are_observed_under_each_cap_by_itself(tmp_path):
    clock = auxiliary("gpu0.sm_clock", "clock_hz", lambda t: 5e6 * cap_at(CAPS, t), 1e6, device="gpu0")
    run = capped(tmp_path / "r.h5", more=[clock])
    records = [r for r in rows_of(frame_of(run, phase_table(run))) if r["kind"] == "total" and r["power_cap_w"]]
    assert {r["power_cap_w"]: r["clock_observed_hz"] for r in records} == {w: 5e6 * w for _, w in CAPS}
    assert {r["clock_hz"] for r in records} == {None}
    stated = settings_of(run).of("gpu0", 0, S, {"clock_mhz": 1200, "memory_clock_hz": 5e9}).clock_hz
    assert (stated.value, stated.observed, stated.basis) == (1.2e9, 1.5e9, "stated")


# -- a cap that stays --------------------------------------------------------------------------------------------------

STEADY = ((0, 250.0),)


def figures(table):
    """All numbers of the table of a run."""
    return [v for r in (*table.phases, *table.totals, *table.runs) for v in vars_of(r) if isinstance(v, float)]


def vars_of(row):
    return [getattr(row, name) for name in row.__dataclass_fields__]


@pytest.mark.parametrize("change", ["jitter", "dip", "flagged"])
def test_a_limit_that_stays_leaves_all_as_it_is(tmp_path, change):
    without = capped(tmp_path / "a.h5", STEADY, limits=False, stated={"power_cap_w": 250})
    flags = np.zeros(63, np.uint16)
    watts = {"jitter": 250 + 0.2 * np.random.default_rng(1).standard_normal(63).clip(-1, 1)}.get(
        change, np.full(63, 250.0)
    )
    if change != "jitter":
        watts[30 : 31 if change == "dip" else 40] = 120.0
    if change == "flagged":
        flags[30:40] = 8
    limit = auxiliary("gpu0.power_limit", "power_limit_w", lambda t: watts[t // S], device="gpu0", flags=flags)
    run = capped(tmp_path / "b.h5", STEADY, limits=False, stated={"power_cap_w": 250}, more=[limit])
    assert run.phases.classes == without.phases.classes
    tables = phase_table(without), phase_table(run)
    assert figures(tables[1]) == pytest.approx(figures(tables[0]), rel=1e-12, nan_ok=True)
    assert [r.note for r in tables[1].totals] == [r.note for r in tables[0].totals]
    caps = [{(r["power_cap_w"], r["power_cap_basis"]) for r in rows_of(frame_of(*pair)) if r["kind"] == "phase"}
            for pair in zip((without, run), tables, strict=True)]  # fmt: skip
    ((watts_told, basis),) = caps[1]
    assert caps[0] == {(250.0, "stated")}
    assert (watts_told, basis) == (pytest.approx(250.0, abs=0.1), "enforced")


def test_a_change_behind_the_training_parts_nothing(tmp_path):
    run = capped(tmp_path / "r.h5", ((0, 250.0), (60_000, 100.0)), end_s=50)
    assert {kind.setting for kind in run.phases.classes} == {None}
    table = phase_table(run)
    assert {r["power_cap_w"] for r in rows_of(frame_of(run, table)) if r["kind"] == "total"} == {250.0}
    assert "once (100 W to 250 W)" in table.runs[0].note


def test_the_enforced_cap_wins_and_a_difference_is_told(tmp_path):
    run = capped(tmp_path / "r.h5", STEADY, stated={"power_cap_w": 200})
    table = phase_table(run)
    note = "phases say a cap of 200 W, the driver enforced 250 W"
    assert all(note in r.note for r in (*table.phases, *table.totals))
    records = [r for r in rows_of(frame_of(run, table)) if r["kind"] != "run"]
    told = {(r["power_cap_w"], r["power_cap_asked_w"], r["power_cap_basis"]) for r in records}
    assert told == {(250.0, 200.0, "enforced")}
    assert all(note in r["note"] for r in records)


def test_labels_that_are_wrong_stay_apart(tmp_path):
    phases, power = trained(STEADY, stated={"power_cap_w": 200})
    more, _ = trained(STEADY, begin_s=70, end_s=90, stated={"power_cap_w": 210})
    phases += [replace(p, parent=p.parent + len(phases) if p.parent >= 0 else -1) for p in more]
    limit = auxiliary("gpu0.power_limit", "power_limit_w", partial(cap_at, STEADY), device="gpu0")
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", power, period_ns=11 * MS), limit], phases, end_ns=95 * S)
    run = read_run(path)
    records = [r for r in rows_of(frame_of(run, phase_table(run))) if r["kind"] == "phase"]
    assert {(r["power_cap_asked_w"], r["power_cap_w"]) for r in records} == {(200.0, 250.0), (210.0, 250.0)}


def test_a_label_that_agrees_is_said_once(tmp_path):
    caps = ((0, 300.0), (30_000, 200.0))
    phases, power = trained(caps, outer=False)
    phases = [replace(p, attributes=p.attributes | {"power_cap_w": int(cap_at(caps, p.begin_ns))}) for p in phases]
    limit = auxiliary("gpu0.power_limit", "power_limit_w", partial(cap_at, caps), device="gpu0")
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", power, period_ns=11 * MS), limit], phases, end_ns=62 * S)
    text = io.StringIO()
    print_tree(phase_table(read_run(path)), Console(file=text, width=80), "r.h5", all_notes=True)
    lines = [line.strip() for line in text.getvalue().splitlines()]
    assert {"cap 300 W", "cap 200 W"} < set(lines)
    assert not any("power_cap_w 200" in line and "changing" not in line for line in lines)


def test_what_was_requested_is_a_third_thing(tmp_path):
    requested = auxiliary("gpu0.power_limit_requested", "power_limit_w", lambda t: 0 * t + 200.0, device="gpu0")
    run = capped(tmp_path / "r.h5", STEADY, more=[requested])
    found = settings_of(run).of("gpu0", 3 * S, 50 * S, {"power_cap_w": 200})
    cap = found.power_cap_w
    assert (cap.asked, cap.requested, cap.enforced, cap.value, cap.basis) == (200.0, 200.0, 250.0, 250.0, "enforced")
    assert found.note == "phases say a cap of 200 W, 200 W were requested, the driver enforced 250 W"
    assert found.product is None


@pytest.mark.parametrize(
    ("stated", "cap", "basis"), [({}, 300.0, "requested"), ({"power_cap_w": 200}, 200.0, "stated")]
)
def test_the_limit_at_the_opening_of_a_source_may_be_old(tmp_path, stated, cap, basis):
    run = capped(tmp_path / "r.h5", limits=False, more=[
        auxiliary("gpu0.sm_clock", "clock_hz", lambda t: 0 * t + 1e9, 1e6, device="gpu0",
                  detail={"power_limit_mw": 300_000, "name": "H9"})])  # fmt: skip
    found = settings_of(run).of("gpu0", 3 * S, 50 * S, stated)
    assert (found.power_cap_w.value, found.power_cap_w.basis, found.product) == (cap, basis, "H9")
    note = "phases say a cap of 200 W, the driver was set to 300 W when its source was opened"
    assert found.note == (note if stated else "")


# -- several devices ---------------------------------------------------------------------------------------------------


def test_a_device_without_a_driver_has_its_label_or_the_cap_of_all_that_have_one(tmp_path):
    run = capped(tmp_path / "r.h5", device="node")
    records = [r for r in rows_of(frame_of(run, phase_table(run))) if r["kind"] == "total" and r["device"] == "node"]
    assert [r["power_cap_w"] for r in records] == [300.0, 200.0, 250.0, None]
    stated = capped(tmp_path / "s.h5", device="node", stated={"power_cap_w": 123})
    records = [
        r for r in rows_of(frame_of(stated, phase_table(stated))) if r["kind"] == "total" and r["device"] == "node"
    ]
    assert {(r["power_cap_w"], r["power_cap_basis"]) for r in records} == {(123.0, "stated")}
    assert len({r["power_cap_in_run"] for r in records}) == 4


UUID = "GPU-11111111-1111-2222-3333-111111111111"


def test_a_board_that_reads_a_gpu_has_the_limit_of_its_driver(tmp_path):
    phases, power = trained(STEADY)
    lines = [
        LineSpec("card.rail", power, "card", period_ns=11 * MS),
        LineSpec("gpu0.nvml", power, "gpu0", period_ns=20 * MS, detail={"uuid": UUID}),
        auxiliary("gpu0.power_limit", "power_limit_w", partial(cap_at, STEADY), device="gpu0"),
    ]  # fmt: skip
    path = make_run(tmp_path / "r.h5", lines, phases, end_ns=62 * S)
    for uuid, expected in ((UUID, "enforced"), ("", "stated")):
        with h5py.File(path, "r+") as file:
            file["devices/card"].attrs["uuid"] = uuid
        cap = settings_of(read_run(path)).of("card", 3 * S, 9 * S, {"power_cap_w": 200}).power_cap_w
        assert (cap.basis, cap.asked) == (expected, 200.0)


def test_phases_are_apart_by_the_caps_of_all_devices(tmp_path):
    other = ((0, 300.0), (30_000, 150.0))
    lines = [
        LineSpec("gpu1.a", lambda t: 0.5 * cap_at(other, t), "gpu1", period_ns=11 * MS),
        auxiliary("gpu1.power_limit", "power_limit_w", partial(cap_at, other), device="gpu1", offset_ns=S // 2),
    ]
    run = capped(tmp_path / "r.h5", ((0, 300.0),), more=lines)
    table = phase_table(run)
    assert [cap_of(r) for r in table.totals if r.device == "gpu1"] == [300, "300 W on gpu0, 150 W on gpu1", "changing"]
    records = [r for r in rows_of(frame_of(run, table)) if r["kind"] == "total"]
    caps = {(r["device"], r["power_cap_in_run"]): r["power_cap_w"] for r in records}
    assert caps == {
        ("gpu0", "300"): 300.0, ("gpu0", "300 W on gpu0, 150 W on gpu1"): 300.0, ("gpu0", "changing"): 300.0,
        ("gpu1", "300"): 300.0, ("gpu1", "300 W on gpu0, 150 W on gpu1"): 150.0, ("gpu1", "changing"): None,
    }  # fmt: skip
    watts = {cap_of(r): r.power_w for r in table.totals if r.device == "gpu1"}
    assert watts[300] == pytest.approx(150, rel=1e-3)
    assert watts["300 W on gpu0, 150 W on gpu1"] == pytest.approx(75, rel=1e-3)
    joules = {d: sum(t.energy_j for t in table.totals if t.device == d) for d in ("gpu0", "gpu1")}
    for row in table.runs:
        assert joules[row.device] == pytest.approx(row.phases_j, rel=1e-9)


# -- knobs that events state -------------------------------------------------------------------------------------------

CLOCKS = ((0, None), (20_400, 1200.0), (41_700, 900.0))
"""SM clock that is enforced, in MHz, from so many milliseconds on; the lock begins at 20.4 s."""


def stated(at_ms, enforced, knob="sm_clock", device="gpu0", **more):
    unit = UNITS.get(knob, "")
    setting = KnobSetting(device, knob, unit, **{"asked": enforced, "requested": enforced, "enforced": enforced} | more)
    return at_ms * MS, SETTING, setting.values(), 0


def locked(path, events, *, lines=(), caps=CAPS, **of_training):
    """A training whose power follows ``caps``, of which nothing but ``events`` and ``lines`` may tell."""
    phases, power = trained(caps, **of_training)
    every = [LineSpec("gpu0.a", power, "gpu0", period_ns=11 * MS), *lines]
    return read_run(make_run(path, every, phases, end_ns=62 * S, events=events, processes=[{"pid": 1}]))


def clocks_of(rows, name="sm_clock_enforced_mhz"):
    return [r.group.get(name) for r in rows]


def test_kinds_of_phases_are_split_where_a_locked_clock_changes(tmp_path):
    run = locked(tmp_path / "r.h5", [stated(ms, mhz) for ms, mhz in CLOCKS[1:]])
    table = phase_table(run)
    assert clocks_of(table.totals) == ["not set", 1200, 900, "changing"]
    begin, end = ended(run)
    for total, (watts, from_ms, until_ms) in zip(
        table.totals, ((300, 0, 20_400), (200, 20_400, 41_700), (250, 41_700, 99_000)), strict=False
    ):
        inside = (begin >= from_ms * MS) & (end <= until_ms * MS)
        assert total.iterations == inside.sum() > 90
        rows = {r.phase: r for r in table.phases if r.group == total.group}
        exact_j = watts * ABOVE_W["backward"] * SHARE["backward"] * 0.134 * 300 / watts
        assert rows["backward"].j_per_batch == pytest.approx(exact_j, rel=0.01)
    (mixed,) = (t for t in table.totals if t.is_mixed)
    assert mixed.iterations == len(begin) - sum(t.iterations for t in table.totals if t is not mixed) in (1, 2)
    assert "the SM clock that was enforced changed 2 times" in table.runs[0].note
    text = io.StringIO()
    print_tree(table, Console(file=text, width=80), "r.h5")
    lines = [line.strip() for line in text.getvalue().splitlines()]
    names = [f"SM clock {value}" for value in ("not set", "1200 MHz", "900 MHz", "changing")]
    assert [line for line in lines if line in names] == names


def test_without_the_events_nothing_is_split(tmp_path):
    table = phase_table(locked(tmp_path / "r.h5", []))
    assert clocks_of(table.totals) == [None]


def test_the_frame_has_what_was_asked_requested_and_enforced_of_clocks(tmp_path):
    events = [
        stated(1000, 1200.0),
        stated(1001, 9500.0, "mem_clock"),
        stated(30_000, 885.0, asked=880.0, requested=900.0),
    ]
    observed = auxiliary("gpu0.sm_clock", "clock_hz", lambda t: 0 * t + 8.5e8, 1e6, device="gpu0")
    run = locked(tmp_path / "r.h5", events, lines=[observed])
    records = [r for r in rows_of(frame_of(run, phase_table(run))) if r["kind"] == "total"]
    names = ("clock_hz", "clock_basis", "clock_asked_hz", "clock_requested_hz")
    assert [tuple(r[n] for n in names) for r in records] == [
        (1.2e9, "enforced", 1.2e9, 1.2e9),
        (8.85e8, "enforced", 8.8e8, 9e8),
        (None, None, None, None),
    ]
    assert {(r["memory_clock_hz"], r["memory_clock_basis"]) for r in records} == {(9.5e9, "enforced")}
    assert "SM clock: 880 MHz were asked, 900 MHz were requested, 885 MHz enforced" in records[1]["note"]
    assert len({r["attribute_sm_clock_enforced_mhz"] for r in records}) == 3
    assert clocks_of(phase_table(run).totals, "mem_clock_enforced_mhz") == [None] * 3  # it stayed while phases ran


def test_a_clock_that_was_unlocked_again_is_only_observed(tmp_path):
    observed = auxiliary("gpu0.sm_clock", "clock_hz", lambda t: 0 * t + 8.5e8, 1e6, device="gpu0")
    run = locked(tmp_path / "r.h5", [stated(1000, 1200.0), stated(30_000, None)], lines=[observed])
    records = [r for r in rows_of(frame_of(run, phase_table(run))) if r["kind"] == "total"]
    assert [(r["clock_hz"], r["clock_basis"]) for r in records[:2]] == [(1.2e9, "enforced"), (None, None)]
    assert {r["clock_observed_hz"] for r in records[:2]} == {8.5e8}


def test_caps_that_events_alone_state_count_as_enforced(tmp_path):
    events = [stated(ms, w, "power_cap") for ms, w in CAPS]
    run = locked(tmp_path / "r.h5", events)
    records = [r for r in rows_of(frame_of(run, phase_table(run))) if r["kind"] == "total"]
    told = [(r["power_cap_w"], r["power_cap_basis"], r["power_cap_requested_w"]) for r in records]
    assert told == [*((w, "enforced", w) for _, w in CAPS), (None, None, None)]


def test_the_drivers_readings_win_over_an_event_and_the_difference_is_told_once(tmp_path):
    limit = auxiliary("gpu0.power_limit", "power_limit_w", partial(cap_at, STEADY), device="gpu0")
    events = [stated(1000, 250.0, "power_cap"), stated(20_000, 200.0, "power_cap")]
    run = locked(tmp_path / "r.h5", events, lines=[limit], caps=STEADY)
    table = phase_table(run)
    assert len(table.totals) == 1
    records = rows_of(frame_of(run, table))
    assert {(r["power_cap_w"], r["power_cap_basis"]) for r in records} == {(250.0, "enforced")}
    said = "an event at 20.000 s says a cap of 200 W, the driver enforced 250 W"
    assert [r["kind"] for r in records if said in r["note"]] == ["run"]


@pytest.mark.parametrize(
    "values",
    [{"lr": 0.1}, {"device": "gpu0", "knob": "sm_clock", "unit": "MHz"},
     {"device": "gpu0", "knob": "sm_clock", "unit": "Hz", "enforced": 1.2e9},
     {"device": "gpu0", "knob": "sm_clock", "unit": "MHz", "enforced": "fast"},
     {"device": "gpu0", "knob": "sm_clock", "unit": "MHz", "enforced": -1.0}],
)  # fmt: skip
def test_an_event_of_that_name_that_states_no_knob_parts_nothing(tmp_path, values):
    run = locked(tmp_path / "r.h5", [(30_000 * MS, SETTING, values, 0)])
    assert {kind.setting for kind in run.phases.classes} == {None}


def test_a_clock_and_a_cap_that_change_apart_set_apart_together(tmp_path):
    limit = auxiliary("gpu0.power_limit", "power_limit_w", partial(cap_at, CAPS), device="gpu0")
    run = locked(tmp_path / "r.h5", [stated(30_000, 1200.0)], lines=[limit])
    totals = phase_table(run).totals
    both = [(cap_of(t), *clocks_of([t])) for t in totals]
    assert both == [(300, "not set"), (200, "not set"), (200, 1200), (250, 1200), ("changing", "changing")]
    (part,) = load_parts(run)
    top = run.phases.parent < 0
    whole = whole_of(part, run.phases.begin_ns[top], run.phases.end_ns[top])
    assert sum(t.energy_j for t in totals) == pytest.approx(whole.energy.energy_j, rel=1e-9)


# -- what the driver tells of it ---------------------------------------------------------------------------------------


def told_by(name, quantity, value, **more):
    """A channel of gpu0's driver with one value, read once a second."""
    return auxiliary(f"gpu0.{name}", quantity, lambda t: 0 * t + value, device="gpu0", **more)


def slowed_clock(offset_ns=0, clock_hz=1.027e9):
    """A clock below its lock under a cap of 120 W. The reason is read ``offset_ns`` behind the clock."""
    return [
        told_by("sm_clock", "clock_hz", clock_hz, per_code=1e6),
        told_by("clock_events", "clock_events_bits", 4, per_code=1, offset_ns=offset_ns),
        told_by("power_limit", "power_limit_w", 120.0),
        auxiliary("gpu0.at_power_cap", "limited_s", lambda t: t * 0.9e-9, device="gpu0"),
    ]


@pytest.mark.parametrize("offset_ns", [0, 2 * MS, -2 * MS, 4_999_000, 9 * MS])
def test_the_measured_clock_stands_beside_a_lock_that_a_cap_does_not_let_it_reach(tmp_path, offset_ns):
    """However the channels of a scan lie."""
    events = [stated(1000, 120.0, "power_cap", state="held"), stated(1001, 1905.0, state="held")]
    run = locked(tmp_path / "r.h5", events, lines=slowed_clock(offset_ns % S), caps=((0, 120.0),), end_s=9)
    table = phase_table(run)
    frame = frame_of(run, table)
    for record in rows_of(frame):
        if record["kind"] == "total":
            assert (record["clock_hz"], record["clock_observed_hz"]) == (1.905e9, pytest.approx(1.027e9))
            assert record["verdict"] == "honoured, binding"
            assert not record["verdict_note"]
    assert "power cap 120 W held and sm clock 1905 MHz held (1027 MHz measured)" in table.runs[0].note
    tables = {t.name: [c.name for c in t.columns] for t in field_tables(frame)}
    for name in ("time", "energy", "totals"):
        assert "clock_observed_hz" in tables[name]


def test_a_clock_at_its_lock_has_no_second_column(tmp_path):
    lines = slowed_clock(clock_hz=1.905e9)
    run = locked(tmp_path / "r.h5", [stated(1001, 1905.0, state="held")], lines=lines, caps=((0, 120.0),), end_s=9)
    table = phase_table(run)
    assert "measured" not in table.runs[0].note
    for made in field_tables(frame_of(run, table)):
        assert made.name == "records" or "clock_observed_hz" not in [c.name for c in made.columns]


@pytest.mark.parametrize(
    ("default_w", "more", "is_told"),
    [
        (260, {}, True),
        (130, {}, False),
        (None, {}, False),
        (260, {"stated": {"power_cap_w": 130}}, False),
        (260, {"events": [stated(1000, 130.0, "power_cap", state="held")]}, False),
    ],
    ids=["another's", "the default", "unknown", "phases say it", "held"],
)
def test_a_cap_that_nobody_asked_for_is_told(tmp_path, default_w, more, is_told):
    detail = {"detail": {"default_power_limit_mw": default_w * 1000}} if default_w else {}
    limit = told_by("power_limit", "power_limit_w", 130.0, **detail)
    of_run = {"events": []} | more
    note = phase_table(locked(tmp_path / "r.h5", lines=[limit], caps=((0, 130.0),), end_s=9, **of_run)).runs[0].note
    assert ("a power cap of 130 W was in force, not the default of 260 W" in note) == is_told


FLIPS = tuple((ms, watts) for k in range(4) for ms, watts in ((20_800 + 4000 * k, 110.0), (22_200 + 4000 * k, 300.0)))


def test_a_limit_that_flips_faster_than_it_is_read_sets_nothing_apart(tmp_path):
    """Two readings in a row say 110 W, four times: what lies between them ran at neither."""
    seen = ((0, 300.0), *FLIPS)
    limit = auxiliary("gpu0.power_limit", "power_limit_w", partial(cap_at, seen), device="gpu0")
    run = locked(tmp_path / "r.h5", [], lines=[limit], caps=((0, 300.0),))
    table = phase_table(run)
    assert [cap_of(t) for t in table.totals] == [300, "changing"]
    assert "the power cap changed 8 times (110 W to 300 W)" in table.totals[-1].note
    begin, end = ended(run)
    flipping = (end > 20 * S) & (begin < 35 * S)
    assert table.totals[-1].iterations == flipping.sum() > 50


def test_a_flip_whose_begin_and_end_events_tell_is_a_setting(tmp_path):
    seen = ((0, 300.0), *FLIPS[:2])
    limit = auxiliary("gpu0.power_limit", "power_limit_w", partial(cap_at, seen), device="gpu0")
    events = [stated(ms, watts, "power_cap") for ms, watts in FLIPS[:2]]
    table = phase_table(locked(tmp_path / "r.h5", events, lines=[limit], caps=seen))
    assert [cap_of(t) for t in table.totals] == [300, 110, "changing"]


@pytest.mark.parametrize(("end_s", "verdict"), [(4.4, "unknown"), (9, "honoured, binding")])
def test_a_run_that_is_too_short_for_the_drivers_counters_says_so(tmp_path, end_s, verdict):
    events = [stated(1000, 120.0, "power_cap", state="held")]
    lines = slowed_clock()[2:]
    run = locked(tmp_path / "r.h5", events, lines=lines, caps=((0, 120.0),), begin_s=3.2, end_s=end_s, outer=False)
    (note,) = {r["verdict_note"] for r in rows_of(frame_of(run, phase_table(run))) if r["kind"] == "total"}
    (told,) = {r["verdict"] for r in rows_of(frame_of(run, phase_table(run))) if r["kind"] == "total"}
    assert told == verdict
    assert ("a run should last some seconds" in (note or "")) == (verdict == "unknown")
