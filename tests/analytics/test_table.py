import dataclasses
from pathlib import Path

import h5py
import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, S, Training, constant, make_run, training

from powerd_analytics import phase_energies, phase_table, read_run
from powerd_analytics.energy.devices import load_parts
from powerd_analytics.frame.figures import frame_of
from powerd_analytics.output.export import to_markdown
from powerd_analytics.run_tables.table import check_table
from powerd_analytics.runs import signals
from powerd_analytics.views.layouts import run_tables
from powerd_client.runs.runfile import seal
from powerd_core.errors import AnalysisError
from powerd_core.model import Flag

ACCURACY = {"u_gain": 0.01, "u_offset_w": 0.0, "step_w": 0.001, "window_ns": 0}


def run_of(tmp_path, tr: Training, lines=None, **kw):
    lines = lines or [LineSpec("gpu0.a", tr.power(0.75), accuracy=ACCURACY),
                      LineSpec("gpu0.b", tr.power(0.25), offset_ns=700_000, accuracy=ACCURACY)]  # fmt: skip
    kw.setdefault("end_ns", tr.end_ns)
    return read_run(make_run(tmp_path / "r.h5", lines, tr.phases, **kw))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    tr = training()
    run = run_of(tmp_path_factory.mktemp("run"), tr)
    return tr, run, phase_table(run)


def test_lines_add_up_to_the_joules_of_each_phase(whole):
    _tr, _, table = whole
    for batch, grow in ((64, 1.0), (128, 1.8), (256, 2.6)):
        rows = {r.phase: r for r in table.phases if r.group["batch_size"] == batch}
        assert rows["forward"].j_per_batch == pytest.approx(180 * 0.0213 * grow, rel=0.003)
        assert rows["backward"].j_per_batch == pytest.approx(260 * 0.0437 * grow, rel=0.003)
        assert rows["forward"].s_per_batch == pytest.approx(0.0213 * grow, rel=1e-6)
        assert rows["forward"].power_w == pytest.approx(180, rel=0.003)
        assert rows["forward"].samples_per_s == pytest.approx(batch / (0.0213 * grow), rel=1e-6)
        assert rows["iteration"].iterations == 40
        assert rows["iteration"].j_per_batch == pytest.approx(
            180 * 0.0213 * grow + 260 * 0.0437 * grow + 110 * 0.0029, rel=0.003
        )
        assert "training" not in rows
    assert {r.provenance for r in table.phases} == {"simulated"}


def test_systematic_parts_do_not_shrink_and_are_independent_between_lines(whole):
    row = next(r for r in whole[2].phases if r.phase == "forward")
    expected = 0.01 * row.j_per_batch * np.hypot(0.75, 0.25)
    assert row.u_systematic_j == pytest.approx(expected, rel=0.05)
    assert 1.64 <= row.u95_j / np.hypot(row.u_systematic_j, row.u_statistical_j) <= 1.97


def test_totals_and_figures_of_merit(whole):
    tr, _, table = whole
    total, outer = table.totals[0], tr.phases[0]
    exact = tr.joules(outer.begin_ns, outer.end_ns)
    assert total.group == {"model": "AlexNet", "batch_size": 64}
    assert total.energy_j == pytest.approx(exact, rel=0.002)
    assert total.edp_js == pytest.approx(total.energy_j * total.time_s)
    assert total.samples_per_s == pytest.approx(40 * 64 / total.time_s)
    joules = 180 * 0.0213 + 260 * 0.0437
    assert total.gflops_per_w_paper == pytest.approx(2 * 726.4e6 * 64 / joules / 1e9, rel=0.003)
    assert total.gflops_basis == "forward+backward"


def test_phases_and_rest_agree_with_the_whole(whole):
    tr, _run, table = whole
    for total in table.totals:
        assert total.rest_j == pytest.approx(0.0, abs=1e-6)
    row = table.runs[0]
    assert row.energy_j == pytest.approx(tr.joules(0, tr.end_ns), rel=0.002)
    assert row.phases_j == pytest.approx(sum(t.energy_j for t in table.totals), rel=1e-4)
    assert row.rest_j == pytest.approx(60 * (0.2 + 3 * 0.15), rel=0.03)
    assert row.phases_j + row.rest_j == pytest.approx(row.energy_j, rel=1e-12)


def test_different_provenance_is_never_added(tmp_path):
    tr = training((64,), 20)
    lines = [LineSpec("a", tr.power(0.5)), LineSpec("b", tr.power(0.5), provenance="modelled")]
    run = run_of(tmp_path, tr, lines)
    rows = [r for r in phase_table(run).phases if r.phase == "forward"]
    assert sorted(r.provenance for r in rows) == ["modelled", "simulated"]
    assert all(r.j_per_batch == pytest.approx(90 * 0.0213, rel=0.01) for r in rows)
    with pytest.raises(AnalysisError, match="never added"):
        phase_energies(run, "gpu0")
    assert phase_energies(run, "gpu0", "modelled").resolvable.any()


def test_a_slow_sensor_tells_phases_of_its_own_length_apart(tmp_path):
    tr = training((64, 128), 40, 22, 51, 1)
    slow = LineSpec("gpu0.nvml", tr.power(), period_ns=20 * MS)
    table = phase_table(run_of(tmp_path, tr, [slow]))
    rows = {r.phase: r for r in table.phases if r.group["batch_size"] == 64}
    for name, watts, ms in (("forward", 180, 22), ("backward", 260, 51)):
        assert rows[name].j_per_batch == pytest.approx(watts * ms * 1e-3, abs=rows[name].u95_j)
    outer = tr.phases[0]
    exact = tr.joules(outer.begin_ns, outer.end_ns)
    assert rows["iteration"].j_per_batch == pytest.approx(exact / 40, rel=0.02)
    assert table.totals[0].energy_j == pytest.approx(exact, rel=0.02)
    assert {t.gflops_basis for t in table.totals} == {"forward+backward"}


def test_missing_readings_are_reported_and_widen_the_interval(tmp_path):
    tr = training((64,), 20, 200, 200)
    hole = (tr.phases[2].begin_ns + 60 * MS, tr.phases[2].begin_ns + 120 * MS)
    t = np.arange(0, tr.end_ns, 2 * MS, dtype=np.int64)
    flags = np.where((t > hole[0]) & (t < hole[1]), 8, 0).astype(np.uint16)
    codes = {"power_mw": np.where(flags, 0, tr.power()(t) * 1000).astype(np.int64)}
    broken = run_of(tmp_path, tr, [LineSpec("a", t_ns=t, codes=codes, flags=flags,
                                           detail={"max_power_limit_mw": 300_000})])  # fmt: skip
    row = next(r for r in phase_table(broken).phases if r.phase == "forward")
    assert row.missing_s == pytest.approx(0.06, abs=0.004)
    assert "without readings" in row.note
    assert row.off_by_j == pytest.approx(0.06 * 300 / 20, rel=0.1)
    assert row.j_per_batch == pytest.approx(36, rel=0.01)
    assert row.u95_j < row.off_by_j


@pytest.mark.parametrize(("detail", "bound_j"), [({"max_power_limit_mw": 700_000}, 3600 * 700), ({}, np.nan)])
def test_a_hole_of_an_hour_is_bounded_by_what_the_line_could_draw_or_not_at_all(tmp_path, detail, bound_j):
    """50 W before the hole and behind it say nothing of the hour between, in which a training may have run."""
    t = np.concatenate([np.arange(0, 10 * S, 10 * MS), np.arange(3610 * S, 3620 * S, 10 * MS)])
    line = LineSpec("gpu0.a", constant, t_ns=t, period_ns=10 * MS, detail=detail)
    run = run_of(tmp_path, training((64,), 2), [line], end_ns=3620 * S)
    (row,) = phase_table(run).runs
    assert row.missing_s == pytest.approx(3600, rel=1e-3)
    assert row.off_by_j == pytest.approx(bound_j, rel=1e-3, nan_ok=True)
    assert "off by up to 0 J" not in row.note
    assert ("no bound is known" if np.isnan(bound_j) else "the guaranteed bound is 2.52e+06 J") in row.note


def test_a_file_whose_times_go_back_is_told_in_one_note(tmp_path):
    tr = training((64,), 20)
    t = np.arange(0, tr.end_ns, 2 * MS, dtype=np.int64)
    t[[50, 51, 110]] = t[49] - MS, t[49] - MS, 10 * S
    flags = np.where(t == 10 * S, int(Flag.MISSING), 0).astype(np.uint16)
    codes = {"power_mw": (tr.power()(t) * 1000).astype(np.int64)}
    run = run_of(tmp_path, tr, [LineSpec("a", t_ns=t, codes=codes, flags=flags)])
    row = phase_table(run).runs[0]
    assert row.note.count("the times of 2 readings go back: the file is wrong") == 1
    assert row.energy_j == pytest.approx(tr.joules(0, tr.end_ns), rel=0.02)
    assert [s.unordered for s in load_parts(run, in_memory=0, slice_size=50)[0].signals] == [2]


def test_a_file_that_is_not_as_it_was_written_is_told_in_the_table(tmp_path):
    tr = training((64,), 20)
    run = run_of(tmp_path, tr)
    with h5py.File(run.path, "r+") as file:
        seal(file)
    assert "is wrong" not in phase_table(read_run(run.path)).runs[0].note
    with h5py.File(run.path, "r+") as file:
        file.attrs["board"] = "another"
    assert "the file is wrong (joules info --check says more)" in phase_table(read_run(run.path)).runs[0].note


def test_phases_cut_off_are_told_and_left_out(tmp_path):
    tr = training((64,), 20)
    for p in (tr.phases[0], tr.phases[-3]):
        p.cut = True
    table = phase_table(run_of(tmp_path, tr, complete=0))
    row = next(r for r in table.phases if r.phase == "forward")
    assert row.iterations == 19
    assert row.note == "1 cut off, left out"
    assert "1 cut off" in table.totals[0].note
    assert "incomplete" in table.runs[0].note


def test_overlapping_phases_of_two_processes_are_counted_once_in_the_total(tmp_path):
    phases = [
        PhaseSpec("work", k * 100 * MS + 5 * p * MS, k * 100 * MS + 60 * MS, process=p)
        for k in range(1, 9)
        for p in (0, 1)
    ]
    run = read_run(make_run(tmp_path / "r.h5", [LineSpec("a", lambda t: 0.0 * t + 50)], phases))
    assert phase_table(run).totals[0].energy_j == pytest.approx(8 * 3.0)


def test_the_runs_total_names_what_a_meter_counted_itself(tmp_path):
    """A wall meter that integrates: 100 W held, and a counter that saw 101 J in each second."""
    t = np.arange(0, 10 * S + 1, S // 4, dtype=np.int64)
    counter = {"kind": "counter", "column": "uwh", "j_per_code": 0.0036}
    codes = {"uwh": np.round(101 * t / S / 0.0036).astype(np.int64)}
    lines = [
        LineSpec("wall", lambda t: np.full(len(t), 100.0), "node", period_ns=S // 4, accuracy=ACCURACY),
        LineSpec("wall_energy", None, "node", conversion=counter, codes=codes, t_ns=t, accuracy=ACCURACY),
    ]
    run = read_run(make_run(tmp_path / "r.h5", lines, (), {"node": ["wall"]}, end_ns=10 * S))
    (row,) = phase_table(run).runs
    assert row.energy_j == pytest.approx(1000)
    assert row.note.startswith("for comparison: the counter wall_energy rose by 1010 ± 17 J")
    short = dataclasses.replace(lines[1], t_ns=t[:12], codes={"uwh": codes["uwh"][:12]})
    run = read_run(make_run(tmp_path / "s.h5", [lines[0], short], (), {"node": ["wall"]}, end_ns=10 * S))
    (row,) = phase_table(run).runs
    assert row.note == "wall_energy counted for less than half of the run"


@pytest.mark.parametrize(("begin_s", "end_s"), [(2, 8), (0, 5), (5, 10)])
def test_readings_that_are_missing_do_not_change_the_mean_power(tmp_path, begin_s, end_s):
    """The integral bridges a hole and ends with the last reading: energy and time are of the same stretch."""
    t = np.arange(0, 10 * S + 1, 2 * MS, dtype=np.int64)
    t = t[(t < begin_s * S) | (t > end_s * S)]
    lines = [LineSpec(n, lambda t: np.full(len(t), 50.0), t_ns=t) for n in ("gpu0.a", "gpu0.b")]
    (row,) = phase_table(read_run(make_run(tmp_path / "r.h5", lines, (), end_ns=10 * S))).runs
    assert row.power_w == pytest.approx(100, rel=1e-6)
    assert row.missing_s == pytest.approx(end_s - begin_s, abs=0.01)


PHASES = (PhaseSpec("before", S, 2 * S), PhaseSpec("within", 3 * S, 6 * S))


def _clipped(tmp_path, phases=PHASES):
    """Two lines of 50 W; the first at full scale from 4 to 4.5 s."""
    t = np.arange(0, 10 * S + 1, 2 * MS, dtype=np.int64)
    flags = np.where((t > 4 * S) & (t < 4.5 * S), int(Flag.SATURATED), 0).astype(np.uint16)
    lines = [
        LineSpec("gpu0.a", lambda t: np.full(len(t), 50.0), t_ns=t, flags=flags),
        LineSpec("gpu0.b", lambda t: np.full(len(t), 50.0), t_ns=t),
    ]
    run = read_run(make_run(tmp_path / "r.h5", lines, phases, end_ns=10 * S))
    return run, phase_table(run)


def test_a_line_at_full_scale_is_named_wherever_it_counts(tmp_path):
    """What a clipped reading would have been, no bound from other readings can tell."""
    _, table = _clipped(tmp_path)
    rows = (*table.phases, *table.totals, *table.runs)
    said = "gpu0.a stood at full scale: energy and power are lower bounds, without an interval"
    assert [said in r.note for r in rows] == [False, True, True, True]
    assert [r.is_lower_bound for r in rows] == [False, True, True, True]
    assert [r.u95_j is None for r in rows] == [False, True, True, True]
    assert table.phases[1].j_per_batch == pytest.approx(300)
    assert table.phases[1].note.startswith("498 ms saturated; gpu0.a stood")


@pytest.mark.parametrize(
    ("flag", "words"),
    [(Flag.STALE, "stood still"), (Flag.IO_ERROR, "did not answer"), (Flag.SATURATED, "was saturated")],
)
def test_a_line_without_a_good_reading_says_what_it_did(tmp_path, flag, words):
    """A counter of a virtual machine that never moves is no 0 J; a table of nothing else names the reason."""
    t = np.arange(0, 10 * S + 1, 10 * MS, dtype=np.int64)
    conversion = {"kind": "counter", "column": "energy_uj", "j_per_code": 1e-6, "bits": 64, "background_w": 0.0}
    line = LineSpec(
        "cpu0.package_0", device="cpu0", t_ns=t, flags=np.full(len(t), int(flag), np.uint16), conversion=conversion,
        codes={"energy_uj": np.full(len(t), 123456789, np.uint64)},
    )  # fmt: skip
    run = read_run(make_run(tmp_path / "r.h5", [line], [PhaseSpec("run", S, 9 * S)], end_ns=10 * S))
    table = phase_table(run)
    (whole,) = table.runs
    assert (whole.energy_j, whole.u95_j) == (None, None)
    assert whole.note.startswith(f"not resolvable: cpu0.package_0 {words}")
    (phase,) = table.phases
    assert phase.j_per_batch is None
    with pytest.raises(AnalysisError, match=f"there is no energy, cpu0.package_0 {words}"):
        check_table(run.path, table)


def test_a_counter_that_stops_counts_nothing_from_its_last_step_on(tmp_path):
    """Its source flags it half a second later: until then it read the same number, which was 0 J of that time."""
    t = np.arange(0, 10 * S + 1, 100 * MS, dtype=np.int64)
    flags = np.where(t >= 5.5 * S, int(Flag.STALE), 0).astype(np.uint16)
    conversion = {"kind": "counter", "column": "energy_uj", "j_per_code": 1e-6, "bits": 64, "background_w": 0.0}
    codes = {"energy_uj": np.minimum(t, 5 * S) // 10}  # 100 W
    line = LineSpec("cpu0.a", device="cpu0", t_ns=t, flags=flags, conversion=conversion, codes=codes)
    run = read_run(make_run(tmp_path / "r.h5", [line], [PhaseSpec("run", S, 4 * S)], end_ns=10 * S))
    (whole,) = phase_table(run).runs
    assert whole.missing_s == pytest.approx(5)
    assert whole.energy_j == pytest.approx(1000)
    assert whole.faults == "stood still: cpu0.a"


@pytest.mark.parametrize("in_memory", [True, False])
def test_sensors_that_failed_are_named_with_what_they_did(tmp_path, monkeypatch, in_memory):
    """In slices of a long run too. One reading in a thousand that is lost is nothing to be told."""
    if not in_memory:
        monkeypatch.setattr(signals, "IN_MEMORY", 10)
        monkeypatch.setattr(signals, "SLICE", 1000)
    t = np.arange(0, 10 * S + 1, 2 * MS, dtype=np.int64)

    def spec(name, flag, share):
        flags = np.where(np.arange(len(t)) % 1000 < 1000 * share, int(flag), 0).astype(np.uint16)
        return LineSpec(f"gpu0.{name}", lambda t: np.full(len(t), 50.0), t_ns=t, flags=flags)

    lines = [spec("dead", Flag.IO_ERROR, 0.3), spec("stuck", Flag.STALE, 0.2), spec("fine", Flag.IO_ERROR, 0.001)]
    run = read_run(make_run(tmp_path / "r.h5", lines, PHASES, end_ns=10 * S))
    (whole,) = phase_table(run).runs
    assert whole.faults == "stood still: gpu0.stuck; no answer: gpu0.dead"
    assert whole.faults in whole.note
    assert whole.missing_word == "without readings"


def test_saturated_seconds_are_not_called_missing(tmp_path):
    _, table = _clipped(tmp_path)
    (whole,) = table.runs
    assert (whole.missing_word, whole.faults) == ("saturated", "saturated: gpu0.a (use a smaller shunt)")


def test_figures_per_joule_of_a_clipped_group_are_upper_bounds(tmp_path):
    attributes = {"model": "A", "batch_size": 1, "operations_per_sample": 10**9}
    run, table = _clipped(tmp_path, [PhaseSpec("forward", 3 * S, 6 * S, attributes)])
    assert "≤ 0.003333" in to_markdown(run_tables(frame_of(run, table)))


def test_a_clipped_reading_counts_as_far_as_it_averages(tmp_path):
    """A reading 1 ms behind the phase's end whose window of 4 ms reaches into it."""
    t = np.arange(0, S + 1, 2 * MS, dtype=np.int64)
    flags = np.where(t == 502 * MS, int(Flag.SATURATED), 0).astype(np.uint16)
    for window_ns, is_bound in ((4 * MS, True), (MS, False)):
        accuracy = {**ACCURACY, "window_ns": window_ns}
        line = LineSpec("gpu0.a", lambda t: np.full(len(t), 50.0), t_ns=t, flags=flags, accuracy=accuracy)
        run = read_run(make_run(tmp_path / "r.h5", [line], [PhaseSpec("p", 100 * MS, 501 * MS)], end_ns=S))
        assert phase_table(run).phases[0].is_lower_bound is is_bound


def test_a_run_without_phases_still_has_its_energy(tmp_path):
    run = read_run(make_run(tmp_path / "r.h5", [LineSpec("a", lambda t: 0.0 * t + 50)], end_ns=S))
    table = phase_table(run)
    assert table.phases == ()
    assert table.runs[0].energy_j == pytest.approx(50)
    assert table.runs[0].rest_j is None


def test_attributes_are_inherited_and_the_inner_one_wins(tmp_path):
    phases = [
        PhaseSpec("training", 0, 900 * MS, {"model": "A", "batch_size": 64, "operations_per_sample": 7}),
        PhaseSpec("iteration", 0, 400 * MS, {}, 0),
        PhaseSpec("forward", 0, 100 * MS, {"batch_size": 32}, 1),
    ]
    p = read_run(make_run(tmp_path / "r.h5", [LineSpec("a", lambda t: 0.0 * t)], phases)).phases
    assert p.depth.tolist() == [0, 1, 2]
    assert p.classes[p.label[2]].attributes == {"model": "A", "batch_size": 32, "operations_per_sample": 7}
    assert p.classes[p.label[2]].own == (("batch_size", 32), ("model", "A"))
    assert p.classes[p.label[2]].group == (("batch_size", 64), ("model", "A"))  # its iteration's
    assert p.classes[p.label[2]].path == ("training", "iteration", "forward")


def test_what_runs_beside_the_phases_is_in_no_rest(tmp_path: Path) -> None:
    phases = [PhaseSpec("iteration", 0, 800 * MS), PhaseSpec("forward", 0, 300 * MS, {}, 0)]
    phases += [PhaseSpec("communication", 100 * MS, 500 * MS, {"overlaps": True})]
    run = read_run(make_run(tmp_path / "run.h5", [LineSpec("gpu0.a", constant)], phases))
    totals_ = {tuple(row.group): row for row in phase_table(run).totals}
    assert totals_[()].rest_j == pytest.approx(50.0, rel=0.02)


def test_an_evaluation_beside_the_iterations_is_a_group_of_its_own(tmp_path):
    attributes = {"batch_size": 8}
    phases = [PhaseSpec("iteration", k * 100 * MS, (k + 1) * 100 * MS, attributes) for k in range(10)]
    alone = phase_table(read_run(make_run(tmp_path / "a.h5", [LineSpec("a", constant)], phases, end_ns=2 * S)))
    assert alone.totals[0].samples_per_s == pytest.approx(80)
    phases += [PhaseSpec("evaluation", S + k * 50 * MS, S + (k + 1) * 50 * MS, attributes) for k in range(20)]
    table = phase_table(read_run(make_run(tmp_path / "b.h5", [LineSpec("a", constant)], phases, end_ns=2 * S)))
    training, evaluation = table.totals
    assert (training.group, evaluation.group) == (attributes, attributes | {"passes": "evaluation"})
    assert (training.energy_j, evaluation.energy_j) == (pytest.approx(100), pytest.approx(100))
    assert (training.samples_per_s, training.is_mixed) == (pytest.approx(80), False)
    assert (training.iterations, evaluation.iterations) == (10, 20)


def test_an_evaluation_beside_passes_that_are_no_iterations_leaves_no_figures_of_a_batch(tmp_path):
    attributes = {"batch_size": 8}
    names = ["forward"] * 10 + ["evaluation"] * 10
    phases = [PhaseSpec(name, k * 100 * MS, (k + 1) * 100 * MS, attributes) for k, name in enumerate(names)]
    (total,) = phase_table(
        read_run(make_run(tmp_path / "b.h5", [LineSpec("a", constant)], phases, end_ns=2 * S))
    ).totals
    assert (total.samples_per_s, total.is_mixed) == (None, True)
    assert "evaluation" in total.note
