"""Scripts that make the calls of Zeus' and CodeCarbon's examples, on a simulated GPU with its helper, in processes."""

import csv
import json
import subprocess
import sys

import pytest

from powerd_analytics import read_run
from powerd_analytics.run_tables.table import phase_table

SIM_GPU = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--control", "--", sys.executable]
ZEUS = """
import json
from powerd_client.compat.zeus import GlobalPowerLimitOptimizer, MaxSlowdownConstraint, ZeusMonitor
from powerd_core.gpu_physics import NETWORKS
from powerd_daemon.sources.sim.gpu_socket import SimGpu

network, gpu, full_s = NETWORKS["vgg19"], SimGpu.here(), 0.03
kernels_s = (1 - network.waiting) * full_s
monitor = ZeusMonitor(gpu_indices=[0], log_file="zeus.csv")
plo = GlobalPowerLimitOptimizer(
    monitor, MaxSlowdownConstraint(factor=1.5), warmup_steps=1, profile_steps=5, pl_step=80, profile_path="profile.json"
)
before_j = gpu.truth()["energy_j"]
monitor.begin_window("entire_training")
steps, done = [], 0
while plo.optimal_power_limit is None and done < 2000:
    plo.on_step_begin()
    monitor.begin_window("step")
    gpu.run(network.waiting * full_s, kernels_s * (1 - network.memory), kernels_s * network.memory, network.busy_w)
    steps.append(monitor.end_window("step"))
    plo.on_step_end()
    done += 1
limit_w = gpu.call("nvmlDeviceGetPowerManagementLimit", [0]) / 1e3
whole = monitor.end_window("entire_training")
truth_j = gpu.truth()["energy_j"] - before_j
print(json.dumps({
    "truth_j": truth_j, "whole_j": whole.total_energy, "u95_j": whole.gpu_u95[0], "limit_w": limit_w,
    "steps_j": sum(m.total_energy for m in steps), "between_s": whole.time - sum(m.time for m in steps),
    "tried_w": [m.power_limit for m in plo.measurements], "chosen_w": plo.optimal_power_limit,
}))
"""
CODECARBON = """
import time
from powerd_client.compat.codecarbon import EmissionsTracker

tracker = EmissionsTracker(project_name="study", country_iso_code="FRA")
tracker.start()
for name in ("load", "infer"):
    tracker.start_task(name)
    total = sum(range(10_000_000))
    tracker.stop_task()
emissions = tracker.stop()
print(f"{1000 * emissions} g")
for name, task in tracker._tasks.items():
    print(name, 1000 * task.emissions_data.cpu_energy, f"{task.emissions_data.gpu_power:.0f} W")
"""


def run(folder, script, *command):
    (folder / "script.py").write_text(script)
    done = subprocess.run([*command, "script.py"], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.timeout(170)
def test_a_script_of_zeus_finds_a_limit_and_its_windows_agree_with_the_card_and_the_table(tmp_path):
    told = json.loads(run(tmp_path, ZEUS, *SIM_GPU).stdout)
    assert told["tried_w"] == [260, 180, 100]
    assert told["chosen_w"] == told["limit_w"] < 260
    assert told["whole_j"] == pytest.approx(told["truth_j"], abs=max(2 * told["u95_j"], 0.03 * told["truth_j"]))
    between_j = 260 * told["between_s"]  # at most: a step belongs to one window, what lies between two to none
    assert told["whole_j"] * 0.98 - between_j < told["steps_j"] < told["whole_j"] * 1.02
    measurements = json.loads((tmp_path / "profile.json").read_text())["measurements"]
    assert [row["power_limit"] for row in measurements] == told["tried_w"]
    with (tmp_path / "zeus.csv").open() as file:
        logged = list(csv.DictReader(file))
    assert float(logged[-1]["gpu0_energy"]) == told["whole_j"]
    assert {row["window_name"] for row in logged} == {"step", "entire_training"}
    table = phase_table(read_run(tmp_path / "run.h5"))
    assert sum(total.energy_j for total in table.totals) == pytest.approx(told["whole_j"], rel=0.02)  # a group a cap
    assert "step" in {row.phase for row in table.phases}


@pytest.mark.timeout(170)
def test_a_script_of_codecarbon_on_the_model_of_a_processor_writes_its_files(tmp_path):
    done = run(tmp_path, CODECARBON, sys.executable)
    assert "MODELLED" in done.stderr
    with (tmp_path / "emissions.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["cpu_model"].endswith("MODELLED")
    assert row["gpu_energy"] == row["gpu_count"] == ""
    assert done.stdout.splitlines()[0] == f"{1000 * float(row['emissions'])} g"
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["load", "infer"]
    assert "nan W" in done.stdout
    (tasks,) = tmp_path.glob("emissions_base_*.csv")
    assert len(tasks.read_text().splitlines()) == 3
    (whole,) = (r for r in phase_table(read_run(tmp_path / "run.h5")).phases if r.phase == "study")
    assert whole.j_per_batch == pytest.approx(3.6e6 * float(row["cpu_energy"]), rel=0.05)
