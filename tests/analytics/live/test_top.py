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

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from powerd_analytics.live.feed import LiveBoard, RunPhases, Watch, powerds_here, runs_here
from powerd_analytics.live.top import Screen, document, one_line
from powerd_client.hostclock import now_ns
from powerd_client.marks import MarkWriter
from powerd_core.errors import RunFileError
from powerd_core.model import (
    UNKNOWN_TIME_NS,
    Column,
    CounterConversion,
    Description,
    Device,
    Gap,
    Line,
    Provenance,
    Stream,
)
from powerd_core.wire import encode
from support.fake_daemon import PERIOD_NS, FakeDaemon, make_block, make_description, make_stream

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
def journal(tmp_path):
    """The directory of a run that is being recorded, as far as its reader looks."""
    path = tmp_path / "run.h5.journal"
    path.mkdir()
    (path / "journal.bin").touch()
    (path / "lock").touch()
    return path


def board_of(stream):
    return LiveBoard(make_description(stream, EPOCH))


@given(st.lists(st.lists(st.integers(0, 300_000), min_size=1, max_size=8), min_size=1, max_size=8))
def test_joules_do_not_depend_on_how_readings_are_cut_into_blocks(pieces):
    stream = make_stream()
    board, at = board_of(stream), 10**9
    for number, powers in enumerate(pieces):
        board.take(make_block(stream, EPOCH, number, at, powers))
        at += len(powers) * PERIOD_NS
    watts = np.array([p for piece in pieces for p in piece]) * 1e-3
    expected = float(np.sum((watts[1:] + watts[:-1]) / 2)) * PERIOD_NS * 1e-9
    for line in board.lines.values():
        assert line.energy_j == pytest.approx(expected, abs=1e-9)
        assert line.readings == len(watts)
        assert line.covered_s == pytest.approx((len(watts) - 1) * PERIOD_NS * 1e-9)


def test_a_gap_is_counted_and_not_bridged():
    stream = make_stream()
    board = board_of(stream)
    board.take(make_block(stream, EPOCH, 0, 10**9, [1000] * 11))
    board.take(Gap(0, EPOCH, 1, 10**9, 5 * 10**9, 1, 4000, "sensor lost"))
    board.take(make_block(stream, EPOCH, 2, 5 * 10**9, [1000] * 11))
    board.take(Gap(0, EPOCH, 3, UNKNOWN_TIME_NS, 6 * 10**9, 1, -1, "no longer in powerd's ring"))
    board.take(Gap(0, EPOCH + 1, 3, 0, 0, 1, 7, "of another life"))
    assert board.lines["gpu0.rail_0"].energy_j == pytest.approx(0.02)
    assert (board.gaps, board.unknown_gaps, board.lost_scans) == (2, 1, 4000)


def test_flagged_readings_are_no_values():
    stream = make_stream(lines=1)
    board = board_of(stream)
    block = make_block(stream, EPOCH, 0, 10**9, [1000, 999_999, 1000])
    payload = bytearray(block.payload)
    payload[3 * 8 + 3 * 4 + 2] = 8  # the second reading's flags: the transfer failed
    board.take(type(block)(0, EPOCH, 0, block.t_first_ns, block.t_last_ns, 3, block.layout, bytes(payload)))
    line = board.lines["gpu0.rail_0"]
    assert (line.bad, line.readings) == (1, 3)
    assert line.energy_j == pytest.approx(1.0 * 2 * PERIOD_NS * 1e-9)


def test_a_counter_misses_nothing_in_a_gap_and_wraps():
    line = Line("gpu0.e", "gpu0", CounterConversion("power_mw", 0.5, 0.0, 32), Provenance.MEASURED)
    stream = Stream(0, "fake", (Column("power_mw", "I"),), (line,), PERIOD_NS)
    board = LiveBoard(Description("b", "0", EPOCH, "", "tcp://*:1", (stream,), (Device("gpu0", ("gpu0.e",)),)))
    board.take(make_block(stream, EPOCH, 0, 10**9, [2**32 - 10, 2**32 - 4]))
    board.take(Gap(0, EPOCH, 1, 10**9, 2 * 10**9, 1, 9, "lost"))
    board.take(make_block(stream, EPOCH, 2, 2 * 10**9, [6, 10]))
    assert board.lines["gpu0.e"].energy_j == pytest.approx(20 * 0.5)


def listen(watch, done):
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline
        watch.step(0.01)


def listening(daemon):
    """A watch that has heard something."""
    daemon.add_block([50_000] * 10)
    watch = Watch([daemon.url])
    listen(watch, lambda: any(line.readings for line in watch.lines()))
    return closing(watch)


def printed(screen, width, height=40):
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(screen)
    return console.file.getvalue()


def test_it_listens_as_any_reader_does(daemon):
    with listening(daemon) as watch:
        for number in range(1, 4):
            daemon.add_block([50_000] * 10, daemon.now_ns() + number * 10 * PERIOD_NS)
        listen(watch, lambda: all(line.readings >= 40 for line in watch.lines()) and watch.feeds[0].clock_bound_s)
        (device,) = watch.devices()
        assert device.power_w == pytest.approx(100)
        assert device.energy_j == pytest.approx(sum(line.energy_j for line in watch.lines()))
        (powerd,) = json.loads(json.dumps(document(watch)))["powerds"]
        assert powerd["lines"][0]["provenance"] == "simulated"
        assert powerd["clock_bound_s"] < 1
        assert re.search(r"gpu0 100\.00? W", one_line(watch))


def test_phases_get_the_joules_of_their_time_since_the_run_began(daemon, journal):
    """The run's first frames are asked for, though powerd sent them before anybody listened here."""
    writer, begin = MarkWriter(journal), daemon.now_ns()
    outer, inner = (writer.kind(name, {}, "host") for name in ("training", "forward"))
    daemon.add_block([7000] * 10, begin - 20 * PERIOD_NS)
    first = daemon.add_block([50_000] * 10, begin - 10 * PERIOD_NS)
    (journal / "journal.bin").write_bytes(encode(first))
    writer.mark(outer)
    writer.mark(inner)
    with closing(Watch([daemon.url])) as watch:
        run = RunPhases(journal.with_name("run.h5"))
        watch.follow(run)

        def given(name):
            return run.energies.get(("gpu0", "simulated"), {}).get(name, 0.0)

        ends = [begin]

        def more():
            """Two lines of 50 W, at any time."""
            ends.append(max(daemon.now_ns(), ends[-1]) + 10 * PERIOD_NS)
            return daemon.add_block([50_000] * 10, ends[-1] - 10 * PERIOD_NS)

        listen(watch, lambda: more() and given("forward") > 1)
        assert watch.is_since_run
        assert given("forward") / run.seconds["forward"] == pytest.approx(100, rel=0.01)
        writer.mark(~inner)
        listen(watch, lambda: more() and given("training") > 0.1)
        (figures,) = watch.devices()
        assert sum(run.energies["gpu0", "simulated"].values()) <= figures.energy_j
        text = printed(Screen(watch, run), 80, 24)
        assert len(text.splitlines()) <= 24
        assert re.search(r"phase on gpu0 .*\n(.*\n)?forward +1 +100\S* ", text)
        phases = {p["phase"]: p for p in document(watch, run)["run"]["phases"]}
        assert phases["forward"]["ended"] == 1
    writer.close()


@pytest.mark.parametrize(("repeats_in", "is_told"), [(3.0, True), (3.37, False)])
def test_lock_step_of_readings_and_phases_is_told_while_it_happens(daemon, journal, repeats_in, is_told):
    """Phases again and again in so many distances of readings."""
    writer, begin = MarkWriter(journal), now_ns()
    kind, length = writer.kind("forward", {}, "host"), round(repeats_in * PERIOD_NS)
    for i in range(60):
        writer.mark_at(kind, begin + i * length)
        writer.mark_at(~kind, begin + i * length + length // 2)
    with listening(daemon) as watch:
        run = RunPhases(journal.with_name("run.h5"))
        watch.follow(run)
        assert document(watch, run)["run"]["in_step"] == []

        ends = [daemon.now_ns()]

        def more():
            ends.append(max(daemon.now_ns(), ends[-1]) + 10 * PERIOD_NS)
            return daemon.add_block([50_000] * 10, ends[-1] - 10 * PERIOD_NS)

        listen(watch, lambda: more() and run.seconds.get("forward", 0.0) > 29 * length * 1e-9)
        assert document(watch, run)["run"]["in_step"] == (["gpu0.rail_0", "gpu0.rail_1"] if is_told else [])
        text = " ".join(printed(Screen(watch, run), 80).split())
        assert ("gpu0.rail_0, gpu0.rail_1 in lock step with the phases: another batch size" in text) == is_told
    writer.close()


def test_the_current_phase_is_read_from_the_marks(journal):
    writer = MarkWriter(journal, segment_records=4)
    outer, inner = (writer.kind(name, {}, "host") for name in ("training", "forward"))
    watched = RunPhases(journal.with_name("run.h5"))
    writer.mark(outer)
    writer.mark(inner)
    assert [p.path for p in watched.current()] == [("training", "forward")]
    for _ in range(6):
        writer.mark(~inner)
        assert [p.path for p in watched.current()] == [("training",)]
        writer.mark(inner)
        assert watched.current()[0].path == ("training", "forward")
    for old in sorted(journal.glob("marks-*.bin"))[:3]:
        old.unlink()  # as the recorder does
    writer.mark(~inner)
    writer.mark(~outer)
    assert [(p.path, p.ended) for p in watched.current()] == [((), 8)]
    assert RunPhases(journal.with_name("run.h5")).current()[0].path == ()
    writer.close()
    shutil.rmtree(journal)
    watched.current()
    assert watched.is_over
    with pytest.raises(RunFileError):
        RunPhases(journal.with_name("run.h5"))


def test_runs_of_this_machine_are_found(journal):
    with (journal / "journal.bin").open("ab"):
        assert journal.with_name("run.h5") in runs_here()
    assert journal.with_name("run.h5") not in runs_here()
    assert all("://" in url for url in powerds_here())


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
    daemon.add_block([50_000] * 10)
    terminal = Terminal(daemon.url, "--run", str(journal.with_name("run.h5")))
    terminal.await_text(r"(?s)nothing lost.*forward.*gpu0\.rail_1.*q quits")
    terminal.size(40, 12)
    os.kill(terminal.process.pid, signal.SIGWINCH)
    terminal.await_text(r"gpu0")
    terminal.press("q")
    assert terminal.end() == (0, "")
    writer.close()


def test_without_a_terminal_it_prints_an_object_a_second_until_its_reader_goes(daemon):
    daemon.add_block([50_000] * 10)
    command = [sys.executable, "-P", "-m", "powerd_analytics", "top", daemon.url, "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert json.loads(process.stdout.readline())["powerds"][0]["board"] == "fake board"
        process.stdout.close()  # as `head` does
        assert process.wait(DEADLINE_S) == 141
