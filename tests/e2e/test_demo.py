"""`make demo` on a small scale: the main job, end to end."""

import subprocess
import sys
from pathlib import Path

import pytest

from powerd_analytics import read_run

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.timeout(300)
def test_the_demo_leaves_a_run_a_table_a_picture_and_a_page(tmp_path):
    command = [sys.executable, DEMO, "--directory", "demo", "--batch", "8", "--seconds", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = tmp_path / "demo"
    assert all((made / name).stat().st_size > 1000 for name in ("run.h5", "table.csv", "power.png", "report.html"))
    run = read_run(made / "run.h5")
    assert {"data", "forward", "backward", "update"} <= {kind.name for kind in run.phases.classes}
    assert max(len(line) for line in done.stdout.splitlines() if "│" not in line) <= 80
