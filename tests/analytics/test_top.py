"""`joules top`: figures of lines as they arrive, the run's phases, the screen, keys of a terminal and of powerds."""

import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
import zmq
from make_run import LineSpec, PhaseSpec, S, constant, make_run
from rich.console import Console

from powerd_analytics import phase_table, read_run
from powerd_analytics.run_tables import top as module
from powerd_analytics.run_tables.closing_lines import joules_text
from powerd_analytics.run_tables.top import ClosedRun, Screen, document, one_line, top
from powerd_client.energies.live import Listener, RunPhases
from powerd_client.energies.live_energy import Energy
from powerd_client.host.hostclock import now_ns
from powerd_client.journals.marks import MarkWriter
from powerd_core.errors import ConfigError
from powerd_core.model import Flag
from powerd_core.serde import to_document
from powerd_core.wire import Message, encode
from support.fake_daemon import PERIOD_NS, FakeDaemon

EPOCH = 5
DEADLINE_S = 60


@pytest.fixture
def daemon():
    context = zmq.Context()
    made = FakeDaemon(context)
    yield made
    made.close()
    context.destroy(linger=0)


@pytest.fixture
def other():
    """A second powerd, whose devices have the same names."""
    context = zmq.Context()
    made = FakeDaemon(context, epoch=77)
    yield made
    made.close()
    context.destroy(linger=0)


@pytest.fixture
def journal(tmp_path):
    """The directory of a run that is being recorded, as far as its reader looks."""
    path = tmp_path / "run.h5.journal"
    path.mkdir()
    (path / "journal.bin").touch()
    (path / "lock").touch()
    return path


def listen(listener, done):
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline
        listener.step(0.01)


def listening(daemon):
    """A listener that has heard something."""
    daemon.add_block([50_000] * 10)
    listener = Listener([daemon.url])
    listen(listener, lambda: any(line.readings for line in listener.lines()))
    return closing(listener)


def printed(screen, width, height=40):
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(screen)
    return console.file.getvalue()


def describe(journal, daemon, epoch=None, url=None):
    """The beginning of a journal: the run records a powerd."""
    epoch = daemon.epoch if epoch is None else epoch
    messages = (
        Message("description", to_document(replace(daemon.description, epoch=epoch)), epoch),
        *([Message("epoch", {"url": url, "state": "live"}, epoch)] if url else []),
    )
    (journal / "journal.bin").write_bytes(b"".join(map(encode, messages)))


def test_it_listens_as_any_reader_does(daemon):
    with listening(daemon) as listener:
        for number in range(1, 4):
            daemon.add_block([50_000] * 10, daemon.now_ns() + number * 10 * PERIOD_NS)
        listen(
            listener,
            lambda: all(line.readings >= 40 for line in listener.lines()) and listener.powerds[0].clock_bound_s,
        )
        (device,) = listener.devices()
        assert device.power_w == pytest.approx(100)
        assert device.energy_j == pytest.approx(sum(line.energy_j for line in listener.lines()))
        (powerd,) = json.loads(json.dumps(document(listener)))["powerds"]
        assert powerd["lines"][0]["provenance"] == "simulated"
        assert powerd["clock_bound_s"] < 1
        assert re.search(r"gpu0 100\.00? W", one_line(listener))


def test_phases_get_the_joules_of_their_time_since_the_run_began(daemon, journal):
    """The run's first frames are asked for, though powerd sent them before anybody listened here."""
    writer, begin = MarkWriter(journal), daemon.now_ns()
    outer, inner = (writer.kind(name, {}, "host") for name in ("training", "forward"))
    daemon.add_block([7000] * 10, begin - 20 * PERIOD_NS)
    first = daemon.add_block([50_000] * 10, begin - 10 * PERIOD_NS)
    (journal / "journal.bin").write_bytes(encode(first))
    writer.mark(outer)
    writer.mark(inner)
    with closing(Listener([daemon.url])) as listener:
        run = RunPhases(journal.with_name("run.h5"))
        listener.follow(run)

        def given(name):
            return run.energies.get(("gpu0", "simulated"), {}).get(name, 0.0)

        ends = [begin]

        def more():
            """Two lines of 50 W, at any time."""
            ends.append(max(daemon.now_ns(), ends[-1]) + 10 * PERIOD_NS)
            return daemon.add_block([50_000] * 10, ends[-1] - 10 * PERIOD_NS)

        listen(listener, lambda: more() and given("forward") > 1)
        assert listener.is_since_run
        assert given("forward") / run.seconds["forward"] == pytest.approx(100, rel=0.01)
        writer.mark(~inner)
        listen(listener, lambda: more() and given("training") > 0.1)
        (figures,) = listener.devices()
        assert sum(run.energies["gpu0", "simulated"].values()) <= figures.energy_j
        text = printed(Screen(listener, run), 80, 24)
        assert len(text.splitlines()) <= 24
        assert re.search(r"phase on gpu0 .*\n(.*\n)?forward +1 +100\S* ", text)
        minute = [
            Energy("", 6000.0, 60.0, 60.0, device="gpu0", provenance="simulated"),
            Energy("forward", 1.5, 0.02, 0.015, 10, "gpu0", "simulated"),
            Energy("training", None, None, 0.1, 10, "gpu0", "simulated", note="not resolvable: why"),
        ]
        text = printed(Screen(listener, run, SimpleNamespace(latest=minute)), 80, 24)
        assert max(map(len, text.splitlines())) <= 80
        assert re.search(r"gpu0 SIMULATED +\S+ +\S+ +100.0 ± 1.0 ", text)
        assert re.search(r"phase on gpu0 +n +W +J +J each +share", text)
        assert re.search(r"forward +1 +100\S* +\S+ +1.500 ± 0.020 +\d+ % ", text)
        assert re.search(r"training +100\S* +\S+ +n.r. +\d+ % ", text)
        assert "100.0 ± 1.0 W over 60 s" in one_line(listener, run, minute)
        told = json.loads(json.dumps(document(listener, run, minute)))["run"]["last_minute"]
        assert [(e["phase"], e["energy_j"], e["u95_j"]) for e in told][1:] == [
            ("forward", 1.5, 0.02),
            ("training", None, None),
        ]
        phases = {p["phase"]: p for p in document(listener, run)["run"]["phases"]}
        assert phases["forward"]["ended"] == 1
    writer.close()


@pytest.mark.parametrize(("repeats_in", "is_told"), [(3.0, True), (3.37, False)])
def test_lock_step_of_readings_and_phases_is_told_while_it_happens(daemon, journal, repeats_in, is_told):
    """Phases again and again in so many distances of readings."""
    writer, begin = MarkWriter(journal), now_ns()
    describe(journal, daemon)
    kind, length = writer.kind("forward", {}, "host"), round(repeats_in * PERIOD_NS)
    for i in range(60):
        writer.mark_at(kind, begin + i * length)
        writer.mark_at(~kind, begin + i * length + length // 2)
    with listening(daemon) as listener:
        run = RunPhases(journal.with_name("run.h5"))
        listener.follow(run)
        assert document(listener, run)["run"]["in_step"] == []

        ends = [daemon.now_ns()]

        def more():
            ends.append(max(daemon.now_ns(), ends[-1]) + 10 * PERIOD_NS)
            return daemon.add_block([50_000] * 10, ends[-1] - 10 * PERIOD_NS)

        listen(listener, lambda: more() and run.seconds.get("forward", 0.0) > 29 * length * 1e-9)
        assert document(listener, run)["run"]["in_step"] == (["gpu0.rail_0", "gpu0.rail_1"] if is_told else [])
        text = " ".join(printed(Screen(listener, run), 80).split())
        assert ("gpu0.rail_0, gpu0.rail_1 in lock step with the phases: another batch size" in text) == is_told
    writer.close()


def told(capsys, monkeypatch, daemon, journal, **options):
    """What `joules top URL --once --format json` prints, where the run of ``journal`` is the newest one here."""
    daemon.add_block([50_000] * 10)
    monkeypatch.setattr(module, "runs_here", lambda: [journal.with_name("run.h5")] if journal.exists() else [])
    monkeypatch.setattr(module, "_LINE_S", 0.02)
    top([daemon.url], once=True, as_json=True, **options)
    return json.loads(capsys.readouterr().out)


def test_the_newest_run_of_this_machine_is_shown_where_it_records_the_powerd(daemon, journal, capsys, monkeypatch):
    """By the epoch; by the address where powerd was started anew since; else there is none, and that is said."""
    describe(journal, daemon)
    assert told(capsys, monkeypatch, daemon, journal)["run"]["path"] == str(journal.with_name("run.h5"))
    describe(journal, daemon, daemon.epoch + 1, daemon.url)
    assert told(capsys, monkeypatch, daemon, journal)["run"] is not None
    describe(journal, daemon, daemon.epoch + 1, "tcp://127.0.0.1:1")  # gpu0 of another powerd
    other = told(capsys, monkeypatch, daemon, journal)
    assert other["run"] is None
    assert other["no_run"] == f"no run is recorded from {daemon.url}; 1 from other powerds are not shown"
    with pytest.raises(ConfigError, match=r"run.h5 is not recorded from \S+ but from tcp://127.0.0.1:1$"):
        top([daemon.url], journal.with_name("run.h5"), once=True)
    shutil.rmtree(journal)
    assert told(capsys, monkeypatch, daemon, journal)["no_run"] == "no run is recorded on this machine"


def test_a_run_that_is_over_is_not_shown(daemon, journal, capsys, monkeypatch):
    """It may end between the look at this machine's runs and the line that is printed."""
    describe(journal, daemon)
    monkeypatch.setattr(module.RecordingEnergies, "look", lambda self: shutil.rmtree(journal))
    ended = told(capsys, monkeypatch, daemon, journal)
    assert not journal.exists()
    assert (ended["run"], ended["no_run"]) == (None, "run.h5 has just ended")


def test_a_sensor_that_fails_is_named(daemon, journal):
    """In the head, in its row, and in JSON."""
    with listening(daemon) as listener:
        block = daemon.add_block([50_000] * 10)
        flags_at = 10 * (8 + 4 * 2)  # behind the times of 10 scans of 2 lines
        payload = bytearray(block.payload)
        for scan in range(10):
            payload[flags_at + 4 * scan + 2] = int(Flag.SATURATED)  # of the second line
        daemon.ring[-1] = encode(replace(block, payload=bytes(payload)))
        listen(listener, lambda: listener.lines()[1].faults)
        assert "10 readings flagged (saturated: gpu0.rail_1 (use a smaller shunt))" in one_line(listener)
        assert re.search(r"gpu0.rail_1 .*simulated, saturated", printed(Screen(listener), 100))
        assert document(listener)["powerds"][0]["lines"][1]["faults"] == {"saturated": 10}


def test_of_two_powerds_the_one_that_is_not_recorded_gets_no_figures_of_the_run(daemon, other, journal):
    """Both have a gpu0: the mean of the last minute, and the joules of phases, are those of the run's."""
    writer = MarkWriter(journal)
    writer.mark(writer.kind("forward", {}, "host"))
    describe(journal, daemon)
    with closing(Listener([other.url, daemon.url])) as listener:
        run, ends = RunPhases(journal.with_name("run.h5")), [daemon.now_ns()]
        assert listener.follow(run)

        def more():
            ends.append(max(daemon.now_ns(), ends[-1]) + 10 * PERIOD_NS)
            other.add_block([500_000] * 10, ends[-1] - 10 * PERIOD_NS)
            return daemon.add_block([50_000] * 10, ends[-1] - 10 * PERIOD_NS)

        listen(listener, lambda: more() and run.seconds.get("forward", 0.0) > 0.01)
        assert run.energies["gpu0", "simulated"]["forward"] / run.seconds["forward"] == pytest.approx(100, rel=0.2)
        minute = [Energy("", 6000.0, 60.0, 60.0, device="gpu0", provenance="simulated")]
        assert [d.is_recorded for d in listener.devices()] == [False, True]
        assert one_line(listener, run, minute).count("100.0 ± 1.0 W over 60 s") == 1
    writer.close()


class Terminal:
    """`joules top` on a pseudo-terminal of a given size."""

    def __init__(self, *arguments):
        self.master, self.slave = pty.openpty()
        self.size(100, 30)
        self.before = termios.tcgetattr(self.slave)
        command = [sys.executable, "-P", "-m", "powerd_analytics", "top", *arguments]
        self.process = subprocess.Popen(
            command, stdin=self.slave, stdout=self.slave, stderr=subprocess.PIPE, env={**os.environ, "TERM": "xterm"}
        )

    def size(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, is_enough):
        deadline, got = time.monotonic() + DEADLINE_S, ""
        while not is_enough(got):
            assert time.monotonic() < deadline, got[-2000:]
            if select.select([self.master], [], [], 0.05)[0]:
                got += os.read(self.master, 65536).decode(errors="replace")
        return got

    def await_text(self, pattern):
        """Read on until what came since the last call matches."""
        return self.read(lambda got: re.search(pattern, got))

    def press(self, key):
        os.write(self.master, key.encode())

    def end(self):
        """Exit status and error stream, once it has ended of itself."""
        self.read(lambda got: self.process.poll() is not None)
        _, err = self.process.communicate()
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is not as it was"
        os.close(self.master)
        os.close(self.slave)
        return self.process.returncode, err.decode()


def test_keys_on_a_terminal(daemon, journal):
    writer = MarkWriter(journal)
    writer.mark(writer.kind("forward", {}, "host"))
    describe(journal, daemon)
    daemon.add_block([50_000] * 10)
    terminal = Terminal(daemon.url, "--run", str(journal.with_name("run.h5")))
    terminal.await_text(r"(?s)no scan lost.*forward.*gpu0\.rail_1.*q quits")
    terminal.size(40, 12)
    os.kill(terminal.process.pid, signal.SIGWINCH)
    terminal.await_text(r"gpu0")
    terminal.press("q")
    assert terminal.end() == (0, "")
    writer.close()


def test_a_run_that_ends_meanwhile_gets_the_joules_of_its_table(daemon, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = make_run(tmp_path / "run.h5", [LineSpec("gpu0.a", constant)], [PhaseSpec("step", S, 2 * S)], end_ns=3 * S)
    path.with_name("run.h5.journal").mkdir()
    closed = ClosedRun(path)
    assert closed.rows() == ()
    path.with_name("run.h5.journal").rmdir()
    deadline = time.monotonic() + DEADLINE_S
    while not closed.rows():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with listening(daemon) as listener:
        (row,) = closed.rows()
        assert row == phase_table(read_run(path)).runs[0]
        assert f"the run has ended: {joules_text(row)}" in one_line(listener, closed=closed.rows())


def test_without_a_terminal_it_prints_an_object_a_second_until_its_reader_goes(daemon):
    daemon.add_block([50_000] * 10)
    command = [sys.executable, "-P", "-m", "powerd_analytics", "top", daemon.url, "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert json.loads(process.stdout.readline())["powerds"][0]["board"] == "fake board"
        process.stdout.close()  # as `head` does
        assert process.wait(DEADLINE_S) == 141
