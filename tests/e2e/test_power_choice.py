"""A cap chosen inside a training: a simulated GPU, its helper, a recording, and a training that tells of iterations."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from powerd_analytics.cli import main
from powerd_analytics.runs.run import read_run
from powerd_client import open_run
from powerd_client.knobs.cap_search import CapSearch, CapWindow

TRAINING = """
import json, sys
from powerd_client import Meter
from powerd_core.gpu_physics import NETWORKS
from powerd_daemon.sources.sim.gpu_socket import SimGpu

network, gpu, full_s = NETWORKS["vgg19"], SimGpu.here(), 0.05
kernels_s = (1 - network.waiting) * full_s
limit_w = lambda: gpu.call("nvmlDeviceGetPowerManagementLimit", [0]) / 1e3
with Meter(out="run.h5", quiet=True) as meter:
    with meter.optimise_power("edp", 0.5, window_s=0.5, settle_s=0.2) as chooser:
        done, is_over = 0, lambda: chooser.decision is not None or chooser._search is None
        while done < 3000 and not (is_over() and done > 20):
            with chooser.iteration():
                gpu.run(network.waiting * full_s, kernels_s * (1 - network.memory), kernels_s * network.memory, 187.0)
            done += 1
        during_w = limit_w()
    print(json.dumps([done, during_w, limit_w()]))
"""


def train(folder, *options, **environment):
    (folder / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "powerd_daemon", "sim-gpu", *options, "--", sys.executable, "train.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def events_of(path: Path) -> list[dict]:
    """Values of the events of the power choice."""
    with open_run(path) as file:
        names, values = file["events/name"].asstr()[:], file["events/values"].asstr()[:]
    return [json.loads(text) for name, text in zip(names, values, strict=True) if name == "power-choice"]


@pytest.mark.timeout(170)
def test_a_training_finds_its_cap_holds_it_and_keeps_all_that_was_decided(tmp_path):
    (_, during_w, after_w), told = train(tmp_path, "--control")
    *windows, last = events_of(tmp_path / "run.h5")
    decision = last["decision"]
    assert 100 <= decision["level"] <= 260  # how good it is, test_cap_search says: a busy machine is noise here
    assert (during_w, after_w) == (decision["level"], 260.0)
    if decision["level"] < 260:
        assert f"a power cap of {decision['level']:g} W saves" in told
        assert decision["saving_j"] > 0
    assert last["cost_j"] > 0
    counted = [window for window in windows if window["counts"]]
    assert all(window["verdict"].startswith("honoured") for window in counted)
    assert all(window["iterations"] >= 5 and window["time_s"] >= 0.5 for window in counted)
    # The log, replayed, gives the same decisions.
    search = CapSearch(100.0, 260.0, "edp", 0.5)
    for window in counted:
        n = window["iterations"]
        assert search.next_cap() == window["power_cap_w"]
        search.observe(
            CapWindow(window["power_cap_w"], window["energy_j"] / n, window["u95_j"] / n, window["time_s"] / n)
        )
    assert search.next_cap() is None
    assert search.decision().level == decision["level"]


@pytest.mark.timeout(170)
def test_windows_that_heat_has_confounded_do_not_count_and_the_training_goes_on(tmp_path):
    (done, during_w, _), told = train(tmp_path, "--control", "--fault", "thermal")
    assert done > 20
    assert during_w == 260.0
    *windows, last = events_of(tmp_path / "run.h5")
    assert {(window["verdict"], window["counts"]) for window in windows} == {("confounded", False)}
    assert last["decision"] is None
    assert "no power cap is chosen" in told


@pytest.mark.timeout(170)
def test_without_a_helper_one_line_says_what_is_missing_and_the_training_goes_on(tmp_path):
    (done, during_w, after_w), told = train(tmp_path, POWERD_CONTROL=str(tmp_path / "nobody"))
    assert (done, during_w, after_w) == (21, 260.0, 260.0)
    lines = [line for line in told.splitlines() if "no power cap is chosen" in line]
    assert len(lines) == 1
    assert "start it as `powerd sim-gpu --control" in lines[0]
    assert events_of(tmp_path / "run.h5")[-1]["decision"] is None


PAGE = Path(__file__).parents[2] / "docs/howto/which.md"


@pytest.mark.timeout(170)
def test_a_newcomer_types_three_commands_and_the_cap_that_saves_most_is_held(tmp_path):
    """From the page: the cap that saves most at 5 % slower."""
    shell, *typed = re.findall("^    (.*)$", PAGE.read_text(), re.MULTILINE)
    (tmp_path / "examples").mkdir()
    shutil.copy(PAGE.parents[2] / "examples/sim_training.py", tmp_path / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        shlex.split(shell), input="\n".join(typed), capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *windows, last = events_of(tmp_path / "run.h5")
    decision = last["decision"]
    assert decision["slowdown"] <= 0.051
    assert decision["level"] < 260
    assert windows[-1]["iterations"] >= 5
    assert f"  power choice: a power cap of {decision['level']:g} W saves " in done.stdout
    caps = [e.values["asked"] for e in read_run(tmp_path / "run.h5").events if e.name == "setting"]
    assert [cap for cap in caps if cap][-1] == decision["level"], "it was held to the end"


def test_a_command_that_watches_nothing_is_told(tmp_path):
    (tmp_path / "train.py").write_text("print('hello')")
    record = [sys.executable, "-m", "powerd_analytics", "record", "--optimise-power", "e", "-o", "run.h5"]
    done = subprocess.run([*record, "--", sys.executable, "train.py"], capture_output=True, text=True, check=False,
                          cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no power cap was chosen: the command watches no training" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--optimise-power", "watts"), "no metric to choose a cap by"),
        (("--optimise-power", "edp", "--max-slowdown", "-1"), "give a share"),
        (("--optimise-power", "edp", "--max-slowdown", "5"), "give a share"),
        (("--max-slowdown", "0.05"), "give --optimise-power"),
        (("--optimise-power", "edp", "--power-cap", "200"), "give one of them"),
    ],
)
def test_what_cannot_be_chosen_is_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["record", *words, "--", "true"])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
