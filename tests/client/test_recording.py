"""Meter and recorder process against a fake powerd on real sockets."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from powerd_client import Meter, open_run
from powerd_client.journal import journal_path
from powerd_client.record import record_command
from powerd_client.wholefile import remove_partials
from powerd_core.errors import ConfigError, PeerError, RunFileError
from support.fake_daemon import PERIOD_NS
from support.steady import steady_daemon, wait_for


@pytest.fixture
def daemon():
    with steady_daemon() as made:
        yield made


def messages(file):
    """All that a run says, but the anchors of the wall clock, which every run has."""
    texts = [json.loads(m)["text"] for m in file["messages"].asstr()]
    return [text for text in texts if not text.startswith("wall clock: ")]


def test_a_run_with_phases(daemon, tmp_path, capfd):
    out = tmp_path / "run.h5"
    with Meter(daemon.url, out) as meter, meter.phase("training", batch_size=8):
        for _ in range(3):
            with meter.phase("forward"):
                time.sleep(0.02)
            meter.begin("backward")
            meter.end("backward")

        @meter.phase("update")
        def update(x):
            """Doc."""
            return x + 1

        assert update(1) == 2
        assert update.__doc__ == "Doc."
    with open_run(out) as file:
        kinds = [json.loads(k)["name"] for k in file["phases/kinds"].asstr()]
        names = [kinds[k] for k in file["phases/kind"][:]]
        assert names == ["training", *["forward", "backward"] * 3, "update"]
        assert file["phases/cut"][:].sum() == 0
        assert file["phases/parent"][:].tolist() == [-1] + [0] * 7
        assert file.attrs["complete"] == 1
        assert messages(file) == []
        begin, end = file["phases/begin_ns"][0], file["phases/end_ns"][0]
        for line in file["lines"].values():
            t = line["t_ns"][:]
            assert t[0] < begin
            assert t[-1] > end
            assert np.all(np.diff(t) > 0)
            assert np.all(line["power_mw"][:] == 1500)
            assert abs((t - line["t_board_ns"][:]).mean() - 7e9) < 1e6
        assert len(file["gaps/lost"]) == 0
    assert not journal_path(out).exists()
    assert capfd.readouterr().err == ""


def test_lost_frames_are_fetched_again(daemon, tmp_path):
    out = tmp_path / "run.h5"
    meter = Meter(daemon.url, out)
    daemon.drop |= set(range(len(daemon.ring) + 2, len(daemon.ring) + 40, 3))
    time.sleep(1)
    meter.close()
    with open_run(out) as file:
        assert len(file["gaps/lost"]) == 0
        assert np.all(np.diff(file["lines/gpu0.rail_0/t_board_ns"][:]) == PERIOD_NS)


TRAINER = """
import sys, time
from powerd_client import Meter
meter = Meter(sys.argv[1], sys.argv[2])
with meter.phase("forward"):
    time.sleep(0.2)
meter.begin("backward")
print("ready", flush=True)
time.sleep(60)
"""


def test_a_killed_trainer_leaves_a_run_file(daemon, tmp_path):
    out = tmp_path / "run.h5"
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, daemon.url, str(out)], stdout=subprocess.PIPE)
    assert trainer.stdout.readline() == b"ready\n"
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    wait_for(lambda: out.exists() and not journal_path(out).exists())
    with open_run(out) as file:
        assert file.attrs["complete"] == 0
        assert file["phases/cut"][:].tolist() == [0, 1]
        assert "the training process ended without closing the run" in messages(file)


def test_a_run_that_was_not_closed_is_closed_at_exit(daemon, tmp_path):
    out = tmp_path / "run.h5"
    script = TRAINER.replace("time.sleep(60)", "")
    done = subprocess.run(
        [sys.executable, "-c", script, daemon.url, str(out)], capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    with open_run(out) as file:
        assert file.attrs["complete"] == 1
        assert file["phases/cut"][:].tolist() == [0, 1]


def test_ctrl_c_in_the_training_still_gives_a_run(daemon, tmp_path):
    out = tmp_path / "run.h5"
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, daemon.url, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert trainer.stdout.readline() == b"ready\n"
    os.killpg(trainer.pid, signal.SIGINT)
    _, stderr = trainer.communicate(timeout=20)
    assert b"KeyboardInterrupt" in stderr
    with open_run(out) as file:
        assert file.attrs["complete"] == 1


def test_what_is_in_the_way_is_not_touched(daemon, tmp_path):
    out = tmp_path / "run.h5"
    out.write_text("precious")
    with pytest.raises(RunFileError, match="exists: choose another name"):
        Meter(daemon.url, out)
    assert out.read_text() == "precious"
    with pytest.raises(RunFileError, match="is a directory"):
        Meter(daemon.url, tmp_path)
    with pytest.raises(RunFileError, match="cannot record into.*make its directory .* first"):
        Meter(daemon.url, tmp_path / "no" / "run.h5")
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
    meter = Meter(daemon.url, out, overwrite=True)
    assert out.read_text() == "precious"
    meter.close()
    with open_run(out):
        pass


def test_nobody_at_the_address(tmp_path):
    out = tmp_path / "run.h5"
    with pytest.raises(PeerError, match="no powerd answers at tcp://127.0.0.1:9"):
        Meter("tcp://127.0.0.1:9", out)
    with pytest.warns(UserWarning, match="not recorded: no powerd answers"):
        meter = Meter("tcp://127.0.0.1:9", out, required=False)
    with meter.phase("forward"):
        pass
    meter.close()
    with pytest.raises(PeerError, match="no address of a powerd"):
        Meter("nonsense", out)
    assert list(tmp_path.iterdir()) == []


def test_another_version_at_the_address(daemon, tmp_path):
    daemon.version = 3
    with pytest.raises(PeerError, match="version 3 of the wire format, this one version 1"):
        Meter(daemon.url, tmp_path / "run.h5")


def test_a_synchronize_that_fails_does_not_reach_the_training(daemon, tmp_path, capfd):
    calls = []

    def synchronize():
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("device lost")

    out = tmp_path / "run.h5"
    with Meter(daemon.url, out, synchronize=synchronize) as meter:
        for _ in range(3):
            with meter.phase("forward"):
                pass
    assert "synchronize() failed: device lost (4 marks)" in capfd.readouterr().err
    with open_run(out) as file:
        assert json.loads(file["phases/kinds"].asstr()[0])["timing"] == "host-synchronised"
        assert len(file["phases/kind"]) == 1
        assert any("device lost" in m for m in messages(file))


SCRIPT = """
import sys
from powerd_client import Meter
with Meter(out="elsewhere.h5") as meter, meter.phase("forward"):
    pass
sys.exit(3)
"""


def test_a_recorded_command_adds_its_phases_and_keeps_its_status(daemon, tmp_path):
    out = tmp_path / "run.h5"
    command = [sys.executable, "-c", SCRIPT]
    assert record_command(command, url=daemon.url, out=out, overwrite=False, quiet=True) == 3
    with open_run(out) as file:
        assert json.loads(file["phases/kinds"].asstr()[0])["name"] == "forward"
        assert json.loads(file.attrs["command"]) == command
        assert json.loads(file["processes"].asstr()[0])["pid"] != os.getpid()
    assert not (tmp_path / "elsewhere.h5").exists()


def test_a_recorded_command_that_was_killed_has_the_shells_status(daemon, tmp_path):
    command = ["sh", "-c", "kill -9 $$"]
    assert record_command(command, url=daemon.url, out=tmp_path / "run.h5", overwrite=False, quiet=True) == 137


TERMINATED = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
os.kill(os.getppid(), signal.SIGTERM)
signal.pause()
"""


def test_the_end_of_a_job_is_handed_on_to_the_command(daemon, tmp_path):
    """As a batch system or a container ends one."""
    before = signal.getsignal(signal.SIGTERM)
    command, out = [sys.executable, "-c", TERMINATED], tmp_path / "run.h5"
    assert record_command(command, url=daemon.url, out=out, overwrite=False, quiet=True) == 7
    assert signal.getsignal(signal.SIGTERM) == before
    with open_run(out) as file:
        assert file.attrs["complete"] == 1


def test_a_command_that_is_not_there(daemon, tmp_path):
    with pytest.raises(ConfigError, match="cannot run 'no-such-command': No such file"):
        record_command(["no-such-command"], url=daemon.url, out=tmp_path / "run.h5", overwrite=False, quiet=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("turn", [1, 2])
def test_ctrl_c_while_idle_power_is_measured(daemon, tmp_path, monkeypatch, turn):
    """Before the command it ends everything, after it only the measurement."""
    asked = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may have it ignored

    def measure(journal, seconds):
        asked.append(seconds)
        if len(asked) == turn:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("powerd_client.record.mark_baseline", measure)
    out = tmp_path / "run.h5"

    def record():
        command = [sys.executable, "-c", "import sys; sys.exit(5)"]
        return record_command(command, url=daemon.url, out=out, overwrite=False, quiet=True, baseline_s=9.0)

    try:
        if turn == 1:
            with pytest.raises(KeyboardInterrupt):
                record()
            assert list(tmp_path.iterdir()) == []
            return
        assert record() == 5
    finally:
        signal.signal(signal.SIGINT, before)
    with open_run(out) as file:
        assert file.attrs["complete"] == 1


@pytest.mark.parametrize("name", ["x" * 240, "ü" * 120, "x" * 300])
def test_a_name_that_could_not_be_written_in_the_end_is_refused_at_the_beginning(tmp_path, name):
    with pytest.raises(RunFileError, match="is too long: at most 239 bytes"):
        Meter("tcp://127.0.0.1:9", out=tmp_path / name)
    with pytest.raises(RunFileError, match="no run file|File name too long"):
        open_run(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_recorder_that_cannot_be_started_is_our_error(tmp_path, monkeypatch):
    def popen(*_args, **_options):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("powerd_client.recorderprocess.subprocess.Popen", popen)
    with pytest.raises(PeerError, match="the recorder cannot be started: Too many open files"):
        Meter("tcp://127.0.0.1:9", out=tmp_path / "run.h5")
    with pytest.warns(UserWarning, match="is not recorded: the recorder cannot be started"):
        Meter("tcp://127.0.0.1:9", out=tmp_path / "run.h5", required=False)
    assert list(tmp_path.iterdir()) == []


def test_only_the_own_leftovers_are_removed(tmp_path):
    for name in ("*.12.partial", "other.h5.12.partial", "[a].h5.3.partial", "a.h5.3.partial"):
        (tmp_path / name).touch()
    remove_partials(tmp_path / "*")
    remove_partials(tmp_path / "[a].h5")
    assert {p.name for p in tmp_path.iterdir()} == {"other.h5.12.partial", "a.h5.3.partial"}
