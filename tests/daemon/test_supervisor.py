"""A sampler that hangs in its sensor's driver is killed and started again; one that talks is left alone."""

import io
import os
import subprocess

import pytest
import zmq
from daemon_harness import steady_config

from powerd_core.wire import Message, encode
from powerd_daemon import supervisor
from powerd_daemon.log import Console
from powerd_daemon.ring import Store
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.supervisor import OPEN_TIMEOUT_NS, SILENT_NS, Supervisor

SECOND = 1_000_000_000


class Process:
    """A sampler process as far as its parent sees it, which sends what the test says."""

    def __init__(self, spec):
        self.returncode, self.pid = None, 4711
        self.killed = 0
        self.mortal = True
        self.out = os.dup(spec.out)

    def send(self, subject, body):
        os.write(self.out, encode(Message(subject, body)))

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            assert timeout is not None, "waits for ever on a process that the kernel holds"
            raise subprocess.TimeoutExpired("sampler", timeout)
        return self.returncode

    def kill(self):
        self.killed += 1
        if self.mortal:
            self.returncode = -9

    terminate = kill


class Bench:
    def __init__(self, tmp_path, monkeypatch):
        self.clock, self.said = VirtualClock(), io.StringIO()
        self.processes = []
        self.console = Console(self.said, self.clock).__enter__()
        monkeypatch.setattr(supervisor, "spawn", self._spawn)
        config = steady_config(tmp_path)
        self.poller = zmq.Poller()
        store = Store(7, config.server.ring_bytes)
        self.supervisor = Supervisor(config, store, self.clock)
        self.supervisor.start(self.poller)

    def _spawn(self, spec):
        self.processes.append(Process(spec))
        return self.processes[-1]

    def hear(self, subject, body):
        self.processes[-1].send(subject, body)
        assert self.poller.poll(5000)
        self.supervisor.receive()

    def after(self, seconds):
        while seconds > 0:
            self.clock.t_ns += round(min(seconds, 1.0) * SECOND)
            seconds -= 1.0
            self.supervisor.mind()
        return len(self.processes)

    def close(self):
        self.supervisor.close()
        for process in self.processes:
            os.close(process.out)
        self.console.__exit__()


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.close()


STREAMS = {"streams": [], "devices": []}
SILENT_S, OPEN_S = SILENT_NS / SECOND, OPEN_TIMEOUT_NS / SECOND


def test_a_silent_sampler_is_killed_and_started_again(bench):
    bench.hear("streams", STREAMS)
    assert bench.after(SILENT_S) == 1
    assert bench.processes[0].killed == 0
    bench.after(1)
    assert bench.processes[0].killed == 1
    assert "was silent for 31 s and is killed" in bench.said.getvalue()
    bench.after(0.01)
    assert bench.after(0.2) == 2


def test_one_that_talks_is_left_alone(bench):
    bench.hear("streams", STREAMS)
    for _ in range(5):
        bench.after(SILENT_S - 1)
        bench.hear("statistics", {"polls": 1})
    assert bench.after(1) == 1
    assert bench.processes[0].killed == 0


def test_a_sensor_that_fails_is_one_line_in_the_log(bench):
    """And one when it is read again; a source that is lost is another."""
    bench.hear("streams", STREAMS)
    states = [{}, {"gpu0.a": {"state": "no answer"}}, {"gpu0.a": {"state": "no answer"}}, {"gpu0.a": {"state": "good"}}]
    for lines in states:
        bench.hear("statistics", {"lines": lines, "error": ""})
    for _ in range(2):
        bench.hear("statistics", {"lines": {}, "error": "the meter is gone"})
    rows = bench.said.getvalue().splitlines()
    assert [row for row in rows if "gpu0.a" in row] == [
        "powerd: gpu0.a: no answer",
        "powerd: gpu0.a: good readings again",
    ]
    assert len([row for row in rows if "is lost: the meter is gone; it is tried again" in row]) == 1


def test_a_text_that_is_no_reading_is_said_once(bench):
    bench.hear("streams", STREAMS)
    for sensors in ({"garbled_lines": 0}, {"first_garbled": "error 3"}, {"first_garbled": "error 4"}):
        bench.hear("statistics", {"sensors": sensors})
    assert bench.said.getvalue().count("is no reading") == 1
    assert "got 'error 3', which is no reading" in bench.said.getvalue()


def test_what_was_sent_while_powerd_itself_was_suspended_is_waited_for(bench):
    bench.hear("streams", STREAMS)
    bench.clock.t_ns += round((SILENT_S + 5) * SECOND)
    bench.after(1)
    assert bench.processes[0].killed == 0


def test_an_open_may_take_longer(bench):
    bench.after(SILENT_S + 5)
    assert bench.processes[0].killed == 0
    bench.after(OPEN_S)
    assert bench.processes[0].killed == 1


@pytest.mark.parametrize("end", ["stop", "close"])
def test_a_process_that_the_kernel_holds_does_not_keep_powerd_from_ending(bench, end):
    bench.hear("streams", STREAMS)
    bench.processes[0].mortal = False
    getattr(bench.supervisor, end)()
    assert "(process 4711) does not end: its driver hangs" in bench.said.getvalue()


def test_a_sampler_that_cannot_be_started_now_is_started_later(bench, monkeypatch):
    bench.hear("streams", STREAMS)
    refusals = [OSError("too many open files")] * 2

    def spawn(spec):
        if refusals:
            raise refusals.pop()
        return bench._spawn(spec)

    monkeypatch.setattr(supervisor, "spawn", spawn)
    bench.processes[0].returncode = 1
    assert bench.after(5) == 2
    assert "cannot be started now" in bench.said.getvalue()
