"""The steps of the example workflow, as its runner would run them, with a training that takes a tenth more."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

WORKFLOW = Path(__file__).parents[2] / "examples/ci/energy-gate.yml"
TRAINING = """\
import argparse
from powerd_client import Meter
from powerd_core.gpu_physics import NETWORKS
from powerd_daemon.sources.sim.gpu_socket import SimGpu

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.parse_args()
gpu, network = SimGpu.here(), NETWORKS["resnet50"]
with Meter() as meter:
    for _ in range(12):
        with meter.phase("iteration", batch_size=128):
            gpu.run(0.0, 0.6 * {seconds}, 0.4 * {seconds}, network.busy_w)
"""


def steps():
    """The commands of each ``run:`` of the workflow."""
    text = WORKFLOW.read_text(encoding="utf-8")
    found = re.findall(r"^ +- run: (?:\|\n((?: {10}.*\n)+)|(.+)\n?)", text, re.MULTILINE)
    return [textwrap.dedent(block) or line for block, line in found]


@pytest.mark.slow
def test_a_change_that_takes_a_tenth_more_fails_and_one_that_takes_less_passes(tmp_path):
    for side, seconds in (("main", 0.1), ("change", 0.11)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(TRAINING.format(seconds=seconds), encoding="utf-8")
    record, gate = steps()
    programs = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(*command):
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    recorded = run("powerd", "sim-gpu", "--", "bash", "-e", "-c", record)
    assert recorded.returncode == 0, recorded.stderr
    assert len(list(tmp_path.glob("runs/*/*.h5"))) == 6
    failed = run("bash", "-e", "-c", gate)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "rose by" in failed.stderr
    shutil.move(tmp_path / "runs/main", tmp_path / "runs/before")
    shutil.move(tmp_path / "runs/change", tmp_path / "runs/main")
    shutil.move(tmp_path / "runs/before", tmp_path / "runs/change")
    passed = run("bash", "-e", "-c", gate)
    assert passed.returncode == 0, passed.stdout + passed.stderr
