"""The recorder's guardian and workers, killed and stopped in every order: nothing that powerd has may be missing."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from powerd_client import Meter, open_run
from powerd_client.host import local_powerd
from powerd_client.journals.journal import journal_path
from powerd_client.record import recording, worker
from powerd_client.runs.recover import recover
from powerd_core import wire
from powerd_core.protocol import StreamReceiver
from support.fake_daemon import PERIOD_NS, make_block, make_description, make_stream
from support.steady import steady_daemon, wait_for

AGAIN = "and is started again; powerd holds the readings meanwhile"


@pytest.fixture
def daemon():
    with steady_daemon() as made:
        yield made


def go_on(daemon, blocks=10):
    """Let some readings be taken."""
    until = len(daemon.ring) + blocks
    wait_for(lambda: len(daemon.ring) >= until)


def workers(guardian):
    """The guardian's children."""
    try:
        return [int(pid) for pid in Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()]
    except OSError:
        return []


def new_worker(meter, old):
    """The process that took the place of ``old``, once it has gone on."""

    def found():
        meter._recording.listen()
        pid = meter._recording.pid
        return pid if pid != old and pid in workers(meter._recording.guardian_pid) else None

    return wait_for(found)


def kill(pid, number=signal.SIGKILL):
    os.kill(pid, number)
    if number == signal.SIGKILL:
        wait_for(lambda: is_dead(pid))


def is_dead(pid):
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except OSError:  # collected, perhaps this very moment
        return True


def check_whole(out, daemon):
    """The run file holds exactly what the daemon took between the run's beginning and its end."""
    taken = [t for frame in daemon.ring for t in block_times(frame)]
    with open_run(out) as file:
        for line in file["lines"].values():
            found = line["t_board_ns"][:]
            found = found - found[0] % PERIOD_NS + taken[0] % PERIOD_NS  # lines are read 10 us after each other
            begin = taken.index(found[0])
            assert found.tolist() == taken[begin : begin + len(found)]
            t_host = line["t_ns"][:]
            assert t_host[0] <= file.attrs["t_start_ns"]
            assert t_host[-1] >= file.attrs["t_stop_ns"] - 20 * PERIOD_NS or not file.attrs["complete"]
        # Only a file that was built without its recorder may lack its end.
        assert np.all(file["gaps/begin_ns"][:] >= t_host[-1])
        assert len(file["gaps/lost"]) <= file.attrs["rebuilt"]
        return dict(file.attrs), [
            t for m in file["messages"].asstr() if not (t := json.loads(m)["text"]).startswith("wall clock: ")
        ]


def block_times(frame):
    block = wire.decode(frame)
    return np.frombuffer(block.payload, "<i8", block.count).tolist()


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_missing(daemon, tmp_path, capfd):
    out = tmp_path / "run.h5"
    meter = Meter(daemon.url, out)
    go_on(daemon)
    with meter.phase("before"):
        old = meter._recording.pid
        kill(old)
    new_worker(meter, old)
    with meter.phase("after"):
        go_on(daemon)
    meter.close()
    assert capfd.readouterr().err == f"powerd: the recorder died (SIGKILL) {AGAIN}\n"
    attributes, texts = check_whole(out, daemon)
    assert (attributes["complete"], attributes["rebuilt"]) == (1, 0)
    assert texts == ["the recorder died (SIGKILL) and was started again"]
    with open_run(out) as file:
        assert [json.loads(k)["name"] for k in file["phases/kinds"].asstr()] == ["before", "after"]
        assert file["phases/cut"][:].tolist() == [0, 0]


@pytest.mark.parametrize("taken", ["all", "half"])
def test_a_worker_that_was_killed_with_the_last_command_in_its_hands(daemon, tmp_path, taken):
    out = tmp_path / "run.h5"
    meter = Meter(daemon.url, out)
    recording = meter._recording
    go_on(daemon)
    kill(recording.pid, signal.SIGSTOP)
    closing = threading.Thread(target=meter.close)
    closing.start()
    # As a worker does that reads the command and dies before it could obey.
    pipe = os.open(f"/proc/{recording.guardian_pid}/fd/0", os.O_RDONLY)
    assert os.read(pipe, 65536 if taken == "all" else 10).startswith(b'{"stop_ns"')
    os.close(pipe)
    kill(recording.pid)
    closing.join(60)
    assert not closing.is_alive()
    attributes, _ = check_whole(out, daemon)
    assert attributes["complete"] == 1


def kill_both(meter):
    """The guardian and its worker."""
    recording = meter._recording
    guardian = recording.guardian_pid
    os.kill(guardian, signal.SIGKILL)
    kill(recording.pid)
    return guardian


def test_a_recorder_that_is_killed_with_its_guardian_while_the_run_is_closed(daemon, tmp_path):
    out = tmp_path / "run.h5"
    meter = Meter(daemon.url, out)
    go_on(daemon)
    guardian, worker = meter._recording.guardian_pid, meter._recording.pid
    kill(worker, signal.SIGSTOP)
    closing = threading.Thread(target=meter.close)
    closing.start()
    wait_for(lambda: meter._recording is None)
    for pid in (guardian, worker):
        os.kill(pid, signal.SIGKILL)
    closing.join(60)
    assert not closing.is_alive()
    attributes, _ = check_whole(out, daemon)
    assert (attributes["complete"], attributes["rebuilt"]) == (1, 0)


def test_a_recorder_that_cannot_be_started_again_is_told_and_stands_in_the_run(daemon, tmp_path, capfd, monkeypatch):
    out = tmp_path / "run.h5"
    meter = Meter(daemon.url, out)
    recording = meter._recording
    go_on(daemon)

    def no_process(death=None):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(recording, "_start", no_process)
    kill_both(meter)
    wait_for(lambda: recording._process is None)
    with meter.phase("after"):
        pass
    meter.close()
    text = (
        "the recorder died (SIGKILL) with its guardian and cannot be started again: "
        "Resource temporarily unavailable; nothing more is recorded"
    )
    assert f"powerd: {text}\n" in capfd.readouterr().err
    attributes, texts = check_whole(out, daemon)
    assert attributes["rebuilt"] == 1
    assert text in texts
    with open_run(out) as file:
        assert file["phases/cut"][:].tolist() == [0]


def test_the_close_gives_up_at_last_and_leaves_the_journal(daemon, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(recording, "_WAITS_S", 0.1)
    monkeypatch.setattr(recording, "_GIVE_UP_S", 0.5)
    out = tmp_path / "run.h5"
    meter = Meter(daemon.url, out)
    process, pid = meter._recording._process, meter._recording.pid
    kill(pid, signal.SIGSTOP)
    meter.close()
    assert f"joules journal recover {out}" in capfd.readouterr().err
    assert not out.exists()
    kill(pid, signal.SIGCONT)  # the recorder has its commands, and does what is left to do
    process.wait(60)
    attributes, _ = check_whole(out, daemon)
    assert attributes["complete"] == 1


FORKING_TRAINER = """
import os, sys, time
from powerd_client import Meter
meter = Meter(sys.argv[1], sys.argv[2])
meter.begin("forward")
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""


def test_a_killed_trainer_is_noticed_though_its_children_hold_the_pipe(daemon, tmp_path):
    out = tmp_path / "run.h5"
    command = [sys.executable, "-c", FORKING_TRAINER, daemon.url, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as trainer:
        child = int(trainer.stdout.readline())
        try:
            trainer.kill()
            trainer.wait()
            wait_for(lambda: out.exists() and not journal_path(out).exists())
        finally:
            os.kill(child, signal.SIGKILL)
    attributes, texts = check_whole(out, daemon)
    assert attributes["complete"] == 0
    assert texts == ["the training process ended without closing the run"]


LONELY_TRAINER = """
import sys
import tempfile
from powerd_client import Meter
meter = Meter(sys.argv[1], sys.argv[2])
recording = meter._recording
recording._is_ending = True  # as if this process could start no recorder
for place in ("before", "after"):
    with meter.phase(place):
        pass
    print(recording.guardian_pid, recording.pid, flush=True)
    sys.stdin.readline()
"""


def test_what_nobody_received_is_fetched_afterwards_from_the_board(daemon, tmp_path):
    out = tmp_path / "run.h5"
    command = [sys.executable, "-c", LONELY_TRAINER, daemon.url, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as trainer:
        guardian, pid = map(int, trainer.stdout.readline().split())
        go_on(daemon)
        os.kill(guardian, signal.SIGKILL)
        kill(pid)
        go_on(daemon)
        trainer.stdin.write("\n")
        trainer.stdin.flush()
        trainer.stdout.readline()
        trainer.kill()
    go_on(daemon)

    def last_ns(report):
        with open_run(report.out) as file:
            return min(line["t_ns"][-1] for line in file["lines"].values()), file["phases/end_ns"][-1]

    without, end_ns = last_ns(recover(out, tmp_path / "without.h5"))
    assert without < end_ns
    fetched, end_ns = last_ns(recover(out, tmp_path / "fetched.h5", url=daemon.url))
    assert end_ns < fetched < end_ns + 50 * PERIOD_NS
    check_whole(tmp_path / "fetched.h5", daemon)
    open_run(out).close()
    check_whole(out, daemon)


def test_directories_of_dead_local_daemons_are_removed_by_the_next_start(monkeypatch, request):
    folder = Path(tempfile.mkdtemp())  # a short name, below which the path of a socket has room
    request.addfinalizer(lambda: shutil.rmtree(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    (folder / "powerd-of-others").mkdir()
    dead, its_lock = local_powerd._private_directory()
    (dead / "powerd").touch()
    living, lock = local_powerd._private_directory()
    assert dead.exists()
    os.close(its_lock)  # as the kernel does when its last process dies
    newest, last = local_powerd._private_directory()
    assert {p.name for p in folder.iterdir()} == {"powerd-of-others", living.name, newest.name}
    os.close(lock)
    os.close(last)


@pytest.mark.parametrize(("epoch", "begin_ns", "is_kept"), [(5, 900, True), (5, 5100, False), (4, 5100, True)])
def test_readings_behind_the_end_of_a_run_are_none_of_its_own(epoch, begin_ns, is_kept):
    """Or a run whose disk was full would count them among those that it lost."""
    stream = replace(make_stream(), period_ns=1000)
    event = make_block(stream, epoch, 0, begin_ns, [7])
    link = SimpleNamespace(
        description=make_description(stream, 5), least_offset_ns=1000.0, streams={0: StreamReceiver(stream, 5)}
    )
    assert worker._is_behind(event, link, 4000) != is_kept
    assert not worker._is_behind(event, link, None)


def test_the_end_of_a_run_is_reached_where_the_clocks_leave_no_doubt():
    """Over a bad network the estimate is off by milliseconds, and the run's last readings would be missing."""
    stream = replace(make_stream(), period_ns=1000)
    receiver = StreamReceiver(stream, 5)
    receiver.t_last_board_ns = 3000
    link = SimpleNamespace(offset_ns=2500.0, least_offset_ns=500.0, streams={0: receiver})
    assert worker._reached_ns(link, 4000) == 3500
