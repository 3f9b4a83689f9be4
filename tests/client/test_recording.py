"""Meter and recorder process against a fake powerd on real sockets; what interrupts and kills leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zmq

from powerd_client import Meter, open_run
from powerd_client import meter as meters
from powerd_client.journals import journal
from powerd_client.journals.journal import journal_path
from powerd_client.record.recording import record_command
from powerd_client.record.worker import Boards
from powerd_client.runs.recover import rebuild, recover
from powerd_client.runs.runfile import read_objects
from powerd_core.errors import ConfigError, PeerError, PeerTimeout, RunFileError
from support import small_run
from support.fake_daemon import make_stream
from support.steady import steady_daemon


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
        assert names == ["training", *["iteration", "forward", "backward"] * 3, "update"]
        assert file["phases/cut"][:].sum() == 0
        assert file["phases/parent"][:].tolist() == [-1, 0, 1, 1, 0, 4, 4, 0, 7, 7, 7]
        assert file.attrs["complete"] == 1
        assert messages(file) == []
        begin, end = file["phases/begin_ns"][0], file["phases/end_ns"][0]
        (clock,) = file["clocks"].values()
        least_ns, most_ns = clock["map"][:, 1].min(), clock["map"][:, 2].max()
        assert least_ns <= 7e9 <= most_ns
        for line in file["lines"].values():
            t = line["t_ns"][:]
            assert t[0] < begin
            assert t[-1] > end
            assert np.all(np.diff(t) > 0)
            assert np.all(line["power_mw"][:] == 1500)
            assert least_ns <= (t - line["t_board_ns"][:]).mean() <= most_ns
        assert len(file["gaps/lost"]) == 0
    assert not journal_path(out).exists()
    assert capfd.readouterr().err == ""


def test_what_is_in_the_way_is_not_touched(daemon, tmp_path):
    out = tmp_path / "run.h5"
    out.write_text("precious")
    with pytest.raises(RunFileError):
        Meter(daemon.url, out)
    assert out.read_text() == "precious"
    with pytest.raises(RunFileError):
        Meter(daemon.url, tmp_path)
    with pytest.raises(RunFileError):
        Meter(daemon.url, tmp_path / "no" / "run.h5")
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
    meter = Meter(daemon.url, out, overwrite=True)
    assert out.read_text() == "precious"
    meter.close()
    with open_run(out):
        pass


@pytest.mark.slow
def test_a_recorder_that_is_killed_before_it_begins_is_said_to_be(daemon, tmp_path, monkeypatch):
    start = subprocess.Popen

    def killed(*arguments, **options):
        process = start(*arguments, **options)
        process.kill()
        return process

    monkeypatch.setattr(subprocess, "Popen", killed)
    with pytest.raises(PeerError, match=r"process \d+\) died \(SIGKILL\) before it began: nothing is recorded"):
        Meter(daemon.url, tmp_path / "run.h5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [PeerTimeout("the local powerd did not answer"), PeerError("it died")])
def test_a_training_never_dies_of_its_own_powerd(tmp_path, monkeypatch, error):
    def fails(*args, **more):
        raise error

    told = []
    monkeypatch.setattr(meters, "take_part", fails)
    monkeypatch.setattr(meters, "tell", told.append)
    meter = Meter(out=tmp_path / "run.h5")
    with meter.phase("forward", batch_size=4):
        pass
    meter.result(loss=0.5)
    meter.close()
    assert told == [f"this training is not recorded: {error}"]
    with pytest.raises(type(error)):
        Meter("tcp://board:7360", tmp_path / "run.h5")  # that one somebody named


def test_nobody_at_the_address(tmp_path):
    out = tmp_path / "run.h5"
    with pytest.warns(UserWarning, match="not recorded"):
        meter = Meter("tcp://127.0.0.1:9", out, required=False)
    with meter.phase("forward"):
        pass
    meter.close()
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    ("script", "status", "text"),
    [
        ('touch "$POWERD_RUN/marks-foreign.bin"', 1, r"not all of its journal is in it"),
        ("mkdir run.h5", 1, r"run\.h5"),
    ],
    ids=["journal stays", "no run file"],
)
def test_a_command_that_went_well_is_no_success_where_its_recording_is_none(
    daemon, tmp_path, monkeypatch, capfd, script, status, text
):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run.h5"
    assert record_command(["sh", "-c", script], url=daemon.url, out=out, overwrite=False, quiet=True) == status
    assert (tmp_path / "run.h5.journal").is_dir()
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(text, line)


def test_a_recording_without_a_name_takes_the_next_number(daemon, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.h5").write_text("precious")
    (tmp_path / "run-2.h5.journal").mkdir()  # of a run that is not finished
    assert record_command(["true"], url=daemon.url, out=None, overwrite=False, quiet=True) == 0
    open_run("run-3.h5").close()
    assert (tmp_path / "run.h5").read_text() == "precious"


def test_a_meter_without_a_name_does_so_too(daemon, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.h5").touch()
    with Meter(daemon.url) as meter:
        pass
    assert meter.out == Path("run-2.h5")
    assert meter.out.is_file()
    with Meter(daemon.url, overwrite=True) as meter:
        pass
    assert meter.out == Path("run.h5")
    assert not (tmp_path / "run-3.h5").exists()


@pytest.mark.parametrize("url", ["http://board", "tcp://board:0", "fe80::1", ["board", ""]])
def test_what_is_no_address_is_refused_before_anything_begins(tmp_path, url):
    for begin in (Meter, lambda url, out: record_command(["true"], url=url, out=out, overwrite=False, quiet=True)):
        with pytest.raises(ConfigError, match="no address of a powerd"):
            begin(url, tmp_path / "run.h5")
    assert not [*tmp_path.iterdir()]


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


class Impatient:
    """A timer at whose end the user presses Ctrl-C."""

    failure = None

    def close(self):
        raise KeyboardInterrupt


def test_an_interrupt_anywhere_in_close_does_not_cost_the_run_its_end(daemon, tmp_path):
    meter = Meter(daemon.url, tmp_path / "run.h5")
    with meter.phase("step"):
        pass
    meter._timer = Impatient()
    with pytest.raises(KeyboardInterrupt):
        meter.close()
    with open_run(tmp_path / "run.h5") as file:
        assert file.attrs["complete"] == 1
        assert len(file["phases/kind"]) == 1


def throw(error):
    def step(*_, **__):
        raise error

    return step


@pytest.mark.parametrize(
    ("part", "error"),
    [("devices", zmq.ZMQError(22)), ("pipe", OSError(5, "Input/output error")), ("build", RuntimeError("h5py's"))],
)
def test_close_raises_nothing_whatever_a_library_throws(daemon, tmp_path, capfd, monkeypatch, part, error):
    out = tmp_path / "run.h5"
    meter = Meter(daemon.url, out)
    recording = meter._recording
    guardian = recording._process
    if part == "devices":
        monkeypatch.setattr("powerd_client.meter.devices_here", throw(error))
    elif part == "pipe":
        monkeypatch.setattr(recording, "listen", throw(error))
    else:
        monkeypatch.setattr(recording, "_start_again", lambda: False)
        monkeypatch.setattr("powerd_client.runs.build.write_file", throw(error))
        os.killpg(guardian.pid, signal.SIGKILL)
    meter.close()
    told = capfd.readouterr().err
    assert told.count("\n") == 1
    assert str(error) in told
    guardian.wait(60)
    if part != "build":
        with open_run(out) as file:
            assert [str(error) in text for text in messages(file)] == ([True] if part == "devices" else [])


OVERWRITING = """
import sys
from powerd_client import Meter
from powerd_core.errors import RunFileError
for line in sys.stdin:
    try:
        Meter(sys.argv[1], sys.argv[2], overwrite=True).close()
        print("recorded", flush=True)
    except RunFileError as error:
        print(error, flush=True)
"""


def test_of_several_that_overwrite_at_once_one_wins_and_the_others_are_told(daemon, tmp_path):
    out = tmp_path / "run.h5"
    out.write_text("an earlier run")
    command = [sys.executable, "-c", OVERWRITING, daemon.url, str(out)]
    with contextlib.ExitStack() as stack:
        pipe = subprocess.PIPE
        racers = [stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)) for _ in range(3)]
        for _ in range(2):
            for racer in racers:
                racer.stdin.write("go\n")
                racer.stdin.flush()
            outcomes = [racer.stdout.readline().strip() for racer in racers]
            assert "recorded" in outcomes
            told = f"{out} is being recorded by another process: choose another name"
            assert set(outcomes) <= {"recorded", told}
            with open_run(out) as file:
                assert file.attrs["complete"] == 1
            assert sorted(p.name for p in tmp_path.iterdir()) == ["run.h5", "run.h5.journal.gz"]
        for racer in racers:
            racer.stdin.close()


def test_what_the_dead_left_half_made_is_cleared_by_the_next_start(tmp_path):
    run, dead = tmp_path / "run.h5", subprocess.Popen(["true"])
    dead.wait()
    leftovers = [f"run.h5.{dead.pid}.partial", f"run.h5.journal.{dead.pid}.partial"]
    others = [f"run.h5.{os.getppid()}.partial", f"other.h5.{dead.pid}.partial", "run.h5.mine.partial"]
    for name in [leftovers[0], *others]:
        (tmp_path / name).touch()
    (tmp_path / leftovers[1]).mkdir()
    (tmp_path / leftovers[1] / "lock").touch()
    small_run.claim_journal(run)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, "run.h5.journal"])


def test_threads_that_record_at_once_get_a_journal_each(tmp_path):
    together = threading.Barrier(8)

    def claim_next(_):
        together.wait()
        return journal.claim_next(tmp_path / "run.h5")

    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            claimed = list(threads.map(claim_next, range(8)))
            assert len({run for run, _, _ in claimed}) == 8
            assert all(journal.is_lock_of(directory, held) for _, directory, held in claimed)
            for _, directory, held in claimed:
                journal.remove(directory)
                os.close(held)


def test_a_later_run_is_built_where_its_recorder_was_killed_before_it_could_replace_the_earlier_one(tmp_path):
    def run_id():
        with open_run(run) as file:
            return file.attrs["run_id"]

    run = tmp_path / "run.h5"
    earlier = small_run.encode(small_run.Message("run", small_run.RUN | {"run_id": "earlier"}))
    small_run.make_journal(run, [earlier, *small_run.whole()], marks=False)
    rebuild(run)
    assert run_id() == "earlier"
    directory = small_run.claim_journal(run, overwrite=True)
    (directory / "journal.bin").write_bytes(b"".join(small_run.whole()))
    assert run_id() == "ab"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.h5", "run.h5.journal.gz"]


@pytest.mark.parametrize("killed", ["before journal.bin", "before its first frame"])
def test_a_journal_without_contents_is_told_from_an_unfinished_run(tmp_path, killed):
    directory = small_run.claim_journal(tmp_path / "run.h5")
    if killed == "before its first frame":
        (directory / "journal.bin").touch()
    with pytest.raises(RunFileError):
        open_run(tmp_path / "run.h5")
    with pytest.raises(RunFileError):
        small_run.claim_journal(tmp_path / "run.h5")
    assert small_run.claim_journal(tmp_path / "run.h5", overwrite=True).is_dir()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pipe_is_not_replaced_by_a_run(tmp_path, overwrite):
    pipe = tmp_path / "run.h5"
    os.mkfifo(pipe)
    with pytest.raises(RunFileError):
        small_run.claim_journal(pipe, overwrite=overwrite)
    journal.journal_path(tmp_path / "other.h5").mkdir()
    with pytest.raises(RunFileError):
        recover(tmp_path / "other.h5", pipe, overwrite=overwrite)
    assert pipe.is_fifo()


def test_a_recording_ends_where_no_clock_answers(daemon, tmp_path, capfd):
    """As behind a firewall that lets readings through, and clock exchanges not."""
    daemon.description = replace(daemon.description, clock_endpoint="tcp://*:9")
    with Meter(daemon.url, out=tmp_path / "run.h5") as meter, meter.phase("step"):
        pass
    assert (tmp_path / "run.h5").exists()
    assert "answered no clock exchange" in capfd.readouterr().err


def test_a_counter_among_the_attributes_is_told_once_at_the_end(daemon, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("powerd_client.journals.marks.MANY_KINDS", 20)
    with Meter(daemon.url, tmp_path / "run.h5", quiet=True) as meter:
        for i in range(30):
            with meter.phase("p", i=i):
                pass
        assert capfd.readouterr().err == ""
    told = "phase 'p' has 30 values of its attribute 'i'"
    assert capfd.readouterr().err.count(told) == 1
    with open_run(tmp_path / "run.h5") as file:
        assert sum(told in message["text"] for message in read_objects(file["messages"])) == 1
        assert len(file["phases/kind"]) == 30


@pytest.mark.parametrize("in_the_way", [False, True])
def test_a_run_whose_folder_is_not_there_is_one_line(daemon, tmp_path, in_the_way):
    if in_the_way:
        (tmp_path / "runs").write_text("")
    with pytest.raises(RunFileError) as raised:
        Meter(daemon.url, out=tmp_path / "runs" / "a" / "b.h5")
    assert str(raised.value).endswith(f"there is no folder {tmp_path}/runs/a: make it first")
    assert "partial" not in str(raised.value)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_owner_may_read_a_journal_whatever_the_umask(daemon, tmp_path, umask):
    before = os.umask(umask)
    try:
        meter = Meter(daemon.url, out=tmp_path / "run.h5")
        try:
            with meter.phase("step"):
                folder = journal_path(tmp_path / "run.h5")
                modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if not path.is_socket()}
                assert folder.stat().st_mode & 0o777 == 0o700
                assert "reserve" in modes
                assert "journal.bin" in modes
                assert set(modes.values()) == {0o600}, modes
        finally:
            meter.close()
    finally:
        os.umask(before)
    packed = journal.packed_path(tmp_path / "run.h5")
    assert packed.stat().st_mode & 0o777 == 0o600


def test_a_board_that_never_sent_anything_is_not_late_by_its_own_uptime(tmp_path, capfd):
    """Its clock may show hours, and the run lasted a moment."""
    paused = threading.Event()
    paused.set()
    with (
        steady_daemon(paused=paused) as daemon,
        Meter(daemon.url, out=tmp_path / "run.h5") as meter,
        meter.phase("step"),
    ):
        assert not daemon.ring
    said = capfd.readouterr().err
    assert "sent nothing of the run: is it running?" in said
    assert "sent nothing of the last" not in said


def _link_whose_streams_reached(**board_ns):
    """A link with a stream of two lines for each source, and its last reading on the board's clock."""
    streams = {
        number: SimpleNamespace(
            stream=replace(make_stream(number=number), source=name.rstrip("0123456789")), t_last_board_ns=t_ns
        )
        for number, (name, t_ns) in enumerate(board_ns.items())
    }
    return SimpleNamespace(
        url="tcp://b:7360", streams=streams, least_offset_ns=0.0, description=None,
        earlier=SimpleNamespace(give_up=lambda: None), take_notes=list,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("board_ns", "who"),
    [
        (
            {"hwmon": 2 * 10**9, "sim": 10**10},
            "source hwmon of the powerd at tcp://b:7360 sent nothing of the",
        ),
        ({"hwmon1": 2 * 10**9, "hwmon2": 10**10}, "line gpu0.rail_0, line gpu0.rail_1 of the powerd at tcp://b:7360"),
        (
            {"hwmon": 2 * 10**9, "sim": 3 * 10**9},
            "powerd at tcp://b:7360 sent nothing of the last 8 s of the run",
        ),
    ],
)
def test_what_sent_nothing_at_the_end_is_named_where_others_sent(board_ns, who):
    said = []
    boards = Boards(SimpleNamespace(warn=said.append, add=None))
    boards.links = [_link_whose_streams_reached(**board_ns)]
    boards.give_up(1, 10**10)
    boards.links = []
    boards.close()
    (text,) = said
    assert text.startswith(who)
    assert ("is it running" in text) != ("see powerd check --running tcp://b:7360" in text)
