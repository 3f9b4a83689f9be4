"""A run over a bad network, a full disk and dying daemons, with a real powerd: complete, or it says what is missing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import zmq

from powerd_client import Meter, open_run
from powerd_client.hostclock import now_ns
from powerd_client.journal import journal_path
from powerd_client.link import BoardLink
from powerd_client.recording import Recording
from powerd_client.verify import verify_file
from powerd_core.model import Block, columns

SIM = '[server]\nlisten = "{url}"\n{server}\n[[source]]\nkind = "sim"\nname = "rails"\nrate_hz = 500.0\n'
SOURCE = {"kind": "sim", "name": "rails", "rate_hz": 500.0}


def wait_for(condition, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


class Powerd:
    def __init__(self, directory, url, server=""):
        config = directory / "powerd.toml"
        config.write_text(SIM.format(url=url, server=server))
        self.url = url
        self._command = [sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", str(config), "--quiet"]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self._command, start_new_session=True)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def taken_ns(self):
        """Board times [n, lines] of all readings that the daemon holds, from its oldest on: the truth."""
        context = zmq.Context()
        link = BoardLink(context, self.url, client="truth")
        found = []
        try:
            link.describe(10)
            link.streams[0].next = 0
            now = now_ns()  # the daemon is on this machine, and so on this clock
            deadline = time.monotonic() + 20
            while not found or found[-1].max() < now:
                assert time.monotonic() < deadline
                link.ask()
                link.data.poll(10)
                for event, _ in link.receive():
                    assert isinstance(event, Block)
                    views = columns(event, link.description.streams[0])
                    t, dt = np.frombuffer(views["t_ns"], "<i8"), np.frombuffer(views["dt_ns"], "<i4")
                    found.append(t[:, None] + dt.reshape(event.count, -1))
        finally:
            link.close()
            context.destroy(linger=0)
        return np.concatenate(found)

    def close(self):
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture
def powerd(tmp_path):
    made = Powerd(tmp_path, f"ipc://{tmp_path}/powerd")
    yield made
    made.close()


def check_whole(out, taken):
    """What the file holds of each line is a part of what was taken, without a hole, and spans the run."""
    with open_run(out) as file:
        assert len(file["lines"]) == taken.shape[1]
        for line in file["lines"].values():
            found = line["t_board_ns"][:]
            (number,) = np.flatnonzero((taken == found[0]).any(axis=0))
            begin = np.searchsorted(taken[:, number], found[0])
            assert np.array_equal(found, taken[begin : begin + len(found), number])
            assert line["t_ns"][0] <= file.attrs["t_start_ns"]
            assert line["t_ns"][-1] >= file.attrs["t_stop_ns"] - 50_000_000
        assert len(file["gaps/lost"]) == 0
        return json.loads(file.attrs["reception"]), [
            t for m in file["messages"].asstr() if not (t := json.loads(m)["text"]).startswith("wall clock: ")
        ]


def sizes(directory):
    return sum(path.stat().st_size for path in directory.glob("journal.bin"))


@pytest.fixture
def small_disk(tmp_path):
    made = tmp_path / "disk"
    made.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(made)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield made
    subprocess.run(["umount", "-l", str(made)], check=True)


def fill(directory):
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return filler


FULL = "powerd: the journal cannot be written (No space left on device): readings wait in memory and in powerd\n"


def test_a_full_disk_is_told_once_and_at_once_and_with_room_again_nothing_is_missing(powerd, small_disk, capfd):
    out = small_disk / "run.h5"
    meter = Meter(powerd.url, out)
    with meter.phase("before"):
        filler = fill(small_disk)
    said = []
    wait_for(lambda: said.append(capfd.readouterr().err) or "".join(said))
    with meter.phase("meanwhile"):
        time.sleep(0.3)
    filler.unlink()
    size = sizes(journal_path(out))
    wait_for(lambda: sizes(journal_path(out)) > size)
    meter.close()
    said.append(capfd.readouterr().err)
    assert "".join(said) == FULL
    _, texts = check_whole(out, powerd.taken_ns())
    assert texts == [FULL.removeprefix("powerd: ").strip(), "the journal can be written again"]
    with open_run(out) as file:
        assert file["phases/cut"][:].tolist() == [0, 0]


def test_a_disk_that_stays_full_keeps_what_there_was_and_says_what_is_missing(powerd, small_disk, capfd):
    out = small_disk / "run.h5"
    meter = Meter(powerd.url, out)
    time.sleep(0.3)
    filler = fill(small_disk)
    with meter.phase("on the full disk"):
        time.sleep(0.5)
    meter.close()
    told = capfd.readouterr().err
    assert told.startswith(FULL)
    assert "scans could not be kept (No space left on device): the run file says which" in told
    filler.unlink()  # the run file itself may have found no room either: then it is built by the next line
    with open_run(out) as file:
        causes = file["gaps/cause"].asstr()[:].tolist()
        row = causes.index("the journal could not be written: No space left on device")
        lost = file["gaps/lost"][row]
        assert [json.loads(k)["name"] for k in file["phases/kinds"].asstr()] == ["on the full disk"]
        assert file["gaps/end_ns"][row] >= file.attrs["t_stop_ns"] - 50_000_000
        line = file["lines/gpu0.pcie_12v"]["t_board_ns"][:]
    taken = powerd.taken_ns()
    before = np.flatnonzero((taken == line[-1]).any(axis=1))[0]
    assert int(re.search(r"powerd: (\d+) scans could not be kept", told)[1]) == lost
    assert 200 < lost < len(taken) - before


def local_powerd(meter):
    """Process id of the powerd that the recorder has started for itself."""
    guardian = meter.guardian_pid

    def found():
        children = Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()
        return [int(p) for p in children if b"powerd_daemon" in Path(f"/proc/{p}/cmdline").read_bytes()]

    return wait_for(found)[0]


def epochs_in(out):
    with open_run(out) as file:
        line = next(iter(file["lines"].values()))
        causes = set(file["gaps/cause"].asstr()[:])
        return len(file["clocks"]), len(line["t_ns"]), causes


def test_a_local_powerd_that_dies_is_started_again(tmp_path, capfd):
    out = tmp_path / "run.h5"
    recording = Recording(out, [], source=SOURCE)
    os.kill(local_powerd(recording), signal.SIGKILL)
    wait_for(lambda: journal_has(out, b'"state":"settled"'))
    time.sleep(0.5)
    recording.finish(now_ns())
    told = capfd.readouterr().err
    assert told.count("\n") == 1
    assert "the local powerd died (SIGKILL)" in told
    assert "it is started again" in told
    clocks, readings, causes = epochs_in(out)
    assert clocks == 2
    assert readings > 200
    assert "powerd ended; its ring is lost" in causes


def journal_has(out, text):
    return text in (journal_path(out) / "journal.bin").read_bytes()


def test_without_the_guardian_the_worker_takes_over_the_local_powerd(tmp_path):
    out = tmp_path / "run.h5"
    recording = Recording(out, [], source=SOURCE)
    old = local_powerd(recording)
    os.kill(recording.guardian_pid, signal.SIGKILL)
    wait_for(lambda: journal_has(out, b'"state":"settled"'))
    time.sleep(0.5)
    recording.finish(now_ns())
    clocks, readings, _ = epochs_in(out)
    assert clocks == 2
    assert readings > 200
    assert not Path(f"/proc/{old}").exists()


def test_a_local_powerd_outlives_the_worker(tmp_path, capfd):
    out = tmp_path / "run.h5"
    recording = Recording(out, [], source=SOURCE)
    powerd = local_powerd(recording)
    os.kill(recording.pid, signal.SIGKILL)
    old = recording.pid
    wait_for(lambda: recording.listen() is not None and recording.pid != old)
    assert local_powerd(recording) == powerd
    time.sleep(0.3)
    recording.finish(now_ns())
    assert epochs_in(out)[0] == 1
    assert epochs_in(out)[2] == set()
    wait_for(lambda: not Path(f"/proc/{powerd}").exists())


def test_a_local_powerd_that_died_with_the_recorder_is_started_again_with_it(tmp_path):
    out = tmp_path / "run.h5"
    recording = Recording(out, [], source=SOURCE)
    os.killpg(recording.guardian_pid, signal.SIGKILL)
    wait_for(lambda: (journal_path(out) / "journal.bin").read_bytes().count(b'"state":"live"') == 2)
    time.sleep(0.5)
    recording.finish(now_ns())
    clocks, readings, causes = epochs_in(out)
    assert clocks == 2
    assert readings > 200
    assert causes
    assert [f for f in verify_file(out) if f.state == "wrong"] == []
