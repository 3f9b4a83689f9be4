"""A capped training from nothing: a simulated GPU, its driver's face, the helper, a recording a cap, a table."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from analytics.support.command import joules

EXAMPLE = Path(__file__).parents[2] / "examples/sim_training.py"


@pytest.mark.timeout(170)
def test_three_caps_and_a_table(tmp_path, capsys):
    """Each run is under its cap, the caps are honoured, and the cheapest is neither the least nor the greatest. Runs
    last some seconds: of shorter ones the driver's counters may not tell why the clock fell."""
    record = [sys.executable, "-m", "powerd_analytics", "record", "--quiet", "--power-cap", "100,160,max"]
    train = [sys.executable, str(EXAMPLE), "--network", "vgg19", "--iterations", "12"]
    done = subprocess.run(
        [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--control", "--", *record, "-o", "caps.h5", "--", *train],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    runs = [tmp_path / f"caps-{cap}.h5" for cap in ("100W", "160W", "max")]
    code, printed, errors = joules(capsys, "tables", *runs, "--format", "json")
    assert code == 0, errors
    totals = [r for r in json.loads(printed) if r["kind"] == "total"]
    by_cap = {r["power_cap_w"]: r for r in totals}
    assert sorted(by_cap) == [100.0, 160.0, 260.0]
    assert {r["provenance"] for r in totals} == {"simulated"}
    assert {r["power_cap_basis"] for r in totals} == {"enforced"}
    assert [by_cap[cap]["verdict"] for cap in (100.0, 160.0, 260.0)] == [
        "honoured, binding",
        "honoured, binding",
        "honoured, slack",
    ]
    times = [by_cap[cap]["time_s"] for cap in (100.0, 160.0, 260.0)]
    assert times == sorted(times, reverse=True)
    edps = {cap: r["edp_js"] for cap, r in by_cap.items()}
    assert min(edps, key=edps.get) == 160.0
    assert all(r["power_w"] < cap for cap, r in by_cap.items())


def test_without_a_helper_the_command_is_not_run_and_one_line_says_what_to_start(tmp_path):
    record = [sys.executable, "-m", "powerd_analytics", "record", "--power-cap", "200", "--", "touch", "ran"]
    environment = {"POWERD_CONTROL": str(tmp_path / "nobody")}
    done = subprocess.run(
        record, capture_output=True, text=True, check=False, cwd=tmp_path, env={**_here(), **environment}
    )
    assert done.returncode == 2
    assert "start `powerd-control` (or `powerd sim-gpu --control` for a simulated GPU)" in done.stderr
    assert sorted(tmp_path.iterdir()) == []


def _here():
    import os

    return dict(os.environ)
