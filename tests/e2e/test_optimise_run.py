"""`joules optimise run` with real processes: a training that learns, a simulated GPU with its helper, and kills."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "bench_recurrences.py"


@pytest.mark.timeout(400)
def test_recurrences_find_better_settings_though_they_are_killed(tmp_path):
    out = tmp_path / "found.json"
    few = ["--recurrences", "3", "--kill-joules", "1", "--kill-training", "2", "--seeds", "10", "--json", str(out)]
    done = subprocess.run([sys.executable, BENCH, *few], capture_output=True, text=True, check=False)
    assert out.exists(), done.stderr  # it has also seen every lease end, and no training outlive its `joules`
    found = json.loads(out.read_text())
    joules, training = found["kills"]
    assert "recurrence 1: joules killed, status -9" in joules
    assert "recurrence 2: training killed, status 2" in training
    assert "taught nothing: it exited with 137" in training
    assert found["endings"]["lost"] == 2
    assert found["endings"]["reached"] == 3
    assert found["decided_again"] == found["decisions"] > 10
    # What it has chosen by then costs less than half of what the default settings cost beyond the oracle.
    assert found["over_oracle"][-1] < found["default_over_oracle"] / 2
    assert {cap for _, cap in found["settings"]} != {260.0}
    assert "profiling 260, 200, 160, 130, 100 W" in done.stderr + done.stdout


EPOCHS = """
import time
from powerd_client import Meter
with Meter() as meter:
    for epoch in range(1, 4):
        time.sleep(0.2)
        meter.result(epoch=epoch, top1=0.31 * epoch)
"""


@pytest.mark.timeout(170)
def test_epochs_that_are_too_short_for_a_window_of_a_limit_are_told(tmp_path):
    (tmp_path / "train.py").write_text(EPOCHS)
    sim = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--control", "--"]
    own = ["--batch-sizes", "16,8", "--power-caps", "150,260", "--target", "0.9", "--metric", "top1", "--tries", "1"]
    command = [*sim, sys.executable, "-m", "powerd_analytics", "optimise", "run", *own, "--", sys.executable]
    done = subprocess.run(
        [*command, "train.py", "{batch_size}"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "no window of a limit was long enough: each takes 2 s of whole epochs, and 3 epochs came" in done.stderr
