"""The lines that end a recording, on run files written by hand."""

import re

import numpy as np
import pytest
from make_campaign import one_run
from make_run import MS, LineSpec, PhaseSpec, S, constant, make_run, training

from powerd_analytics.run_tables.closing_lines import energies, result_lines, totals
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from powerd_core.model import Flag
from powerd_core.text import with_u95


def result(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    lines = result_lines(path)
    assert len(lines) <= 3
    assert max(map(len, lines)) <= 80
    return lines


def test_shares_are_of_the_phases_inside_the_iterations_and_make_the_whole(tmp_path, monkeypatch):
    path = one_run(tmp_path / "run.h5", batches=(64,), iterations=20)
    lines = result(path, monkeypatch)
    assert re.fullmatch(r"run.h5: gpu0 SIMULATED [\d.]+ ± [\d.]+ J \([\d.]+ Wh\), [\d.]+ W over [\d.]+ s", lines[0])
    shares = dict(re.findall(r"(\w+) (\d+) %", lines[1]))
    assert {"forward", "backward"} <= set(shares)
    assert "iteration" not in shares
    assert abs(sum(map(int, shares.values())) - 100) <= 3
    assert lines[2] == "  next: joules tables run.h5"


def test_the_result_says_what_the_table_says(tmp_path, monkeypatch):
    path = one_run(tmp_path / "run.h5", batches=(64,), iterations=20)
    table = phase_table(read_run(path))
    first, shares, _ = result(path, monkeypatch)
    (whole,), (total,) = ([row for row in some if row.device == "gpu0"] for some in (table.runs, table.totals))
    assert with_u95(whole.energy_j, whole.u95_j, "J") in first
    assert shares.startswith(f"  of {total.energy_j:.4g} J in training: ")
    joules = {row.phase: row.j_per_batch * row.iterations for row in table.phases if row.device == "gpu0"}
    for name, share in re.findall(r"(forward|backward) (\d+) %", shares):
        assert share == f"{100 * joules[name] / total.energy_j:.0f}"


def test_of_several_devices_the_measured_one_comes_first_and_the_modelled_one_is_said_to_be(tmp_path, monkeypatch):
    lines = [
        LineSpec("cpu0.model", lambda t: constant(t) * 9, "cpu0", "modelled"),
        LineSpec("gpu0.a", constant, "gpu0", "measured"),
    ]
    path = make_run(tmp_path / "run.h5", lines, end_ns=10 * S)
    first = result(path, monkeypatch)[0]
    assert first.startswith("run.h5: gpu0 measured 1000")
    assert "cpu0 MODELLED" in first or "1 more" in first


def test_what_is_missing_is_in_the_same_result(tmp_path, monkeypatch):
    late = LineSpec("gpu0.a", constant, offset_ns=4 * S)
    path = make_run(tmp_path / "run.h5", [late], [PhaseSpec("run", 0, 10 * S)], end_ns=10 * S, complete=0)
    last = result(path, monkeypatch)[-1]
    assert "4 s without readings" in last
    assert "incomplete" in last


def test_a_sensor_that_failed_stands_before_what_to_do_next(tmp_path, monkeypatch):
    """Its name, what it did, and what to do."""
    t = np.arange(0, 10 * S + 1, 2 * MS, dtype=np.int64)
    flags = np.where(t < 4 * S, int(Flag.SATURATED), 0).astype(np.uint16)
    clipped = LineSpec("gpu0.a", constant, t_ns=t, flags=flags)
    path = make_run(tmp_path / "run.h5", [clipped], [PhaseSpec("run", 0, 10 * S)], end_ns=10 * S)
    lines = [line.strip() for line in result_lines(path)]
    assert len(lines) == 3
    assert lines[-1].startswith("saturated: gpu0.a (use a smaller shunt); next: joules info ")
    assert lines[-1].endswith("(4 s saturated)")


def test_energies_leave_out_what_has_not_arrived(tmp_path):
    phases = [PhaseSpec("step", k * 100 * MS, (k + 1) * 100 * MS) for k in range(12)]
    phases.append(PhaseSpec("step", 1200 * MS, 1300 * MS, cut=True))
    path = make_run(tmp_path / "run.h5", [LineSpec("gpu0.a", constant)], phases, end_ns=1050 * MS)
    (mean,) = energies(path, name="step", row=None, device=None)
    assert (mean.count, mean.is_so_far) == (10, True)
    assert abs(mean.energy_j - 10.0) <= max(mean.u95_j, 1e-6)
    (single,) = energies(path, name="step", row=3, device=None)
    assert (single.count, single.is_so_far) == (1, False)
    (half,) = energies(path, name="step", row=10, device=None)
    assert half.is_so_far
    assert abs(half.energy_j - 5.0) <= max(half.u95_j, 0.3)
    (none,) = energies(path, name="step", row=11, device=None)
    assert not none.is_resolvable
    assert none.is_so_far


def test_names_of_totals_say_device_provenance_group_and_unit(tmp_path):
    tr = training((64, 128), 4)
    lines = [LineSpec("gpu0.a", tr.power()), LineSpec("cpu0.m", tr.power(0.3), "cpu0", "modelled", 20_000_000)]
    path = make_run(tmp_path / "run.h5", lines, tr.phases, end_ns=tr.end_ns)
    figures = totals(path)
    assert all(isinstance(value, float) for value in figures.values())
    whole = {
        name: figures[f"powerd/gpu0.simulated/{name}"] for name in ("energy_j", "energy_u95_j", "time_s", "power_w")
    }
    assert figures["powerd/gpu0.simulated/edp_js"] == pytest.approx(whole["energy_j"] * whole["time_s"])
    assert whole["power_w"] == pytest.approx(whole["energy_j"] / whole["time_s"])
    assert "powerd/cpu0.modelled/energy_j" in figures
    group = "powerd/gpu0.simulated/batch_size=64,model=AlexNet"
    assert figures[f"{group}/energy_j"] < whole["energy_j"]
    assert {f"{group}/forward/j_per_batch", f"{group}/update/s_per_batch"} <= set(figures)
    assert totals(path, "gpu0") == {name: value for name, value in figures.items() if "gpu0" in name}


def test_a_total_that_is_a_lower_bound_says_so_in_its_name(tmp_path):
    t = np.arange(0, S, 2 * MS)
    at_full_scale = np.where(t < S // 2, int(Flag.SATURATED), 0).astype(np.uint16)
    line = LineSpec("gpu0.a", t_ns=t, codes={"power_mw": np.full(len(t), 100_000)}, flags=at_full_scale)
    figures = totals(make_run(tmp_path / "run.h5", [line], [PhaseSpec("step", 100 * MS, 900 * MS)]))
    assert {name.rpartition("/")[2] for name in figures if "step" not in name} == {
        "energy_j_at_least", "time_s", "power_w_at_least", "edp_js_at_least",
    }  # fmt: skip
    assert "powerd/gpu0.simulated/step/j_per_batch_at_least" in figures
