"""Campaigns with real processes: runs that are recorded, a runner that is killed, caps held on a simulated GPU."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analytics.support.command import joules

ROOT = Path(__file__).parents[2]
DEADLINE_S = 100.0
JOULES = [sys.executable, "-P", "-m", "powerd_analytics"]

TRAINING = """
import sys, time
from powerd_client import Meter
with Meter() as meter:
    for _ in range(int(sys.argv[1])):
        with meter.phase("iteration", batch_size=4):
            sum(range(20_000)); time.sleep(0.02)
    meter.result(loss=1.0 / int(sys.argv[2]), top1=0.5)
"""
FILE = """
[campaign]
name = "small"
command = ["{python}", "{script}", "{{n}}", "{{seed}}"]
[factors]
n = [10, 20]
[order]
reference = {{n = 10}}
[repeats]
min = 1
"""


def verified(folder: Path) -> int:
    journal = folder / "campaign.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return sum(json.loads(line)["event"] == "verified" for line in lines if line.endswith("}"))


def printed(capsys, *command):
    code, text, errors = joules(capsys, *command, "--format", "json")
    assert code == 0, errors
    return json.loads(text)


def test_a_campaign_is_recorded_and_goes_on_after_its_runner_was_killed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    file = tmp_path / "small.toml"
    file.write_text(FILE.format(python=sys.executable, script=tmp_path / "train.py"))
    folder, deadline_s = tmp_path / "small", time.monotonic() + DEADLINE_S
    runner = subprocess.Popen([*JOULES, "campaign", "run", file], stderr=subprocess.DEVNULL, cwd=tmp_path)
    while not (verified(folder) and any("started" in line for line in _last(folder))):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    runner.kill()
    runner.wait()
    before = verified(folder)
    assert before < 2  # it was in the middle
    while (told := joules(capsys, "campaign", "resume", file))[0] == 2 and "just ending" in told[2]:
        assert time.monotonic() < deadline_s  # the run that it left ends by itself
        time.sleep(0.1)
    assert told[0] == 0, told[2]
    assert verified(folder) == 2
    assert len(list((folder / "runs").glob("*.h5"))) == 2
    rows = printed(capsys, "campaign", "table", file, "--table", "accuracy")
    assert [(row["n"], row["runs"], row["top1"]) for row in rows] == [(10, 1, 0.5), (20, 1, 0.5)]
    records = printed(capsys, "tables", folder / "runs", "--table", "records")
    totals = [row for row in records if row["kind"] == "total"]
    assert {row["campaign"] for row in totals} == {"small"}
    assert {row["attribute_n"] for row in totals} == {10, 20}
    assert len({row["program"] for row in totals}) == 1  # the levels are no part of it


def _last(folder: Path) -> list[str]:
    return (folder / "campaign.jsonl").read_text().splitlines()[-1:]


def test_ctrl_c_ends_the_run_that_is_going_on_and_says_how_to_go_on(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    file = tmp_path / "small.toml"
    file.write_text(FILE.format(python=sys.executable, script=tmp_path / "train.py").replace("[10, 20]", "[10, 5000]"))
    runner = subprocess.Popen(
        [*JOULES, "campaign", "run", file], stderr=subprocess.PIPE, cwd=tmp_path, text=True, start_new_session=True
    )
    deadline_s = time.monotonic() + DEADLINE_S
    while not list((tmp_path / "small" / "runs").glob("*.journal")):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    os.killpg(runner.pid, signal.SIGINT)
    _, told = runner.communicate(timeout=DEADLINE_S)
    assert runner.returncode == 130
    assert "resume" in told
    assert "Traceback" not in told


def test_caps_of_a_campaign_are_held_on_a_simulated_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "caps.toml"
    file.write_text(f"""
[campaign]
name = "caps"
command = ["{sys.executable}", "{ROOT}/examples/sim_training.py", "--network", "vgg19", "--iterations", "6"]
[factors]
power_cap_w = [140, "default"]
[order]
reference = {{power_cap_w = "default"}}
[repeats]
min = 1
""")
    sim = [sys.executable, "-P", "-m", "powerd_daemon", "sim-gpu", "--control", "--"]
    subprocess.run([*sim, *JOULES, "campaign", "run", file], check=True, cwd=tmp_path, timeout=DEADLINE_S)
    capped, default = printed(capsys, "campaign", "table", file, "--table", "cells")
    assert (capped["power_cap_w"], default["power_cap_w"]) == (140, 260)
    assert capped["energy_j"] < 0.85 * default["energy_j"]
    assert capped["time_s"] > 1.1 * default["time_s"]
    assert capped["verdict"] == default["verdict"] is None or capped["verdict"] == "honoured, binding"


BURN = """
import sys
from powerd_daemon.sources.sim.gpu_socket import SimGpu
gpu = SimGpu.here()
print("on it", flush=True)
while True:
    gpu.run(0.0, 0.05, 0.02, 100.0)
"""
BESIDE = """
import subprocess, sys
burn = subprocess.Popen([sys.executable, sys.argv[1]], stdout=subprocess.PIPE)
burn.stdout.readline()
status = subprocess.run(sys.argv[2:]).returncode
burn.kill()
burn.wait()
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_beside", [True, False])
def test_a_second_program_on_the_gpu_is_noticed(tmp_path, monkeypatch, capsys, is_beside):
    """By the table of a run, and by a campaign, which gives the run up. The training and its worker are its own."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("burn", BURN), ("beside", BESIDE)):
        (tmp_path / f"{name}.py").write_text(text)
    training = [sys.executable, f"{ROOT}/examples/sim_training.py", "--iterations", "6"]
    file = tmp_path / "one.toml"
    command = json.dumps([*training, "--batch", "{batch_size}"])
    guard = "[repeats]\nmin = 1\n[guard]\nretries = 0\n"
    file.write_text(f'[campaign]\nname = "one"\ncommand = {command}\n[factors]\nbatch_size = [128]\n{guard}')
    script = tmp_path / "all.sh"
    script.write_text(f"""
{" ".join(JOULES)} record -o {tmp_path}/run.h5 -- {" ".join(training)}
{" ".join(JOULES)} campaign run {file}
true
""")
    sim = [sys.executable, "-P", "-m", "powerd_daemon", "sim-gpu", "--"]
    around = [sys.executable, tmp_path / "beside.py", tmp_path / "burn.py"] if is_beside else []
    subprocess.run([*sim, *around, "sh", script], check=True, cwd=tmp_path, timeout=DEADLINE_S)
    _, text, _ = joules(capsys, "tables", tmp_path / "run.h5")
    assert ("another program was on gpu0 for" in text) == is_beside
    _, text, _ = joules(capsys, "campaign", "status", file)
    assert ("discarded, shared: 1" in text) == is_beside


SWEPT = """
import pathlib, sys, time
from powerd_client import Meter
kind, wanted = sys.argv[1], int(sys.argv[2])
done = pathlib.Path(f"checkpoint-{wanted}")
with Meter() as meter:
    if kind == "halves":  # until it fits
        wanted = min(wanted, 16)
    for _ in range(0 if done.exists() else 8):
        with meter.phase("iteration", batch_size=wanted):
            time.sleep(0.03)
    if kind == "resumes":
        done.touch()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "runs", "told"),
    [("halves", [2, 0], "contradicted: batch_size 64 was asked, and 16 trained"),
     ("resumes", [1, 1], "no-work: it had no iteration, and others had")],
)  # fmt: skip
def test_a_cell_is_what_ran(tmp_path, monkeypatch, capsys, kind, runs, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SWEPT)
    (tmp_path / "swept.toml").write_text(f"""
[campaign]
name = "swept"
command = ["{sys.executable}", "train.py", "{kind}", "{{batch_size}}"]
[factors]
batch_size = [8, 64]
[repeats]
min = 2
[guard]
retries = 0
""")
    code, _, errors = joules(capsys, "campaign", "run", "swept.toml")
    assert code == 1
    assert "--retry" in errors
    assert told in errors
    rows = {row["batch_size"]: row["runs"] for row in printed(capsys, "campaign", "table", "swept.toml")}
    assert [rows.get(batch, 0) for batch in (8, 64)] == runs
    _, text, _ = joules(capsys, "campaign", "table", "swept.toml")
    assert told in " ".join(text.split())


@pytest.mark.slow
def test_a_training_waits_for_its_own_powerd_and_goes_on_without(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("""
import os, sys, time
if "powerd_daemon" in sys.orig_argv:
    time.sleep(float(os.environ["LATE_S"])) if os.environ["LATE_S"] else os._exit(3)
""")
    program = "from powerd_client import Meter\nwith Meter() as m, m.phase('iteration'): pass\nprint('trained')"
    for late_s, told in (("16", "waiting for the recorder"), ("", "this training is not recorded")):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LATE_S": late_s}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True,
            timeout=DEADLINE_S, check=True,
        )  # fmt: skip
        assert (done.stdout, told in done.stderr) == ("trained\n", True), done.stderr
    assert [path.name for path in tmp_path.glob("*.h5")] == ["run.h5"]
