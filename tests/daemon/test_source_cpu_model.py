"""Power modelled from CPU time."""

import os
import subprocess
import sys
import time

import pytest
from conformance import EPOCH, Opened, SourceConformance

from powerd_core.errors import SensorError
from powerd_core.model import Flag
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.cpu_model import HOST_TICK_NS, CpuModelOptions, CpuModelSource, HostCpu, ProcessCpu
from powerd_daemon.sources.sim.bus import VirtualClock


def burn(cpu_ns: int) -> None:
    end = time.process_time_ns() + cpu_ns
    while time.process_time_ns() < end:
        pass


def opened(**options: object) -> Opened:
    clock = VirtualClock()
    source = CpuModelSource(CpuModelOptions(**options), Start("cpu", EPOCH, 0, clock))
    return Opened(source, clock, *source.open())


class TestConformanceOfAProcess(SourceConformance):
    def make(self, start: Start) -> CpuModelSource:
        return CpuModelSource(CpuModelOptions(pid=os.getpid()), start)

    def fail(self, source):
        source._reader._process._clock_id = (~(1 << 30) << 3) | 2  # of a process that cannot be


class TestConformanceOfTheHost(SourceConformance):
    def make(self, start: Start) -> CpuModelSource:
        return CpuModelSource(CpuModelOptions(), start)

    def fail(self, source):
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), source._reader._file)


@pytest.fixture
def without_children(monkeypatch):
    """Other tests of this process may have left some, as multiprocessing's resource tracker."""
    monkeypatch.setattr("powerd_daemon.sources.cpu_model._descendants", lambda *_: set())


@pytest.mark.usefixtures("without_children")
def test_the_counter_is_the_process_cpu_time():
    o = opened(pid=os.getpid())
    before = time.process_time_ns()
    made = o.run(1)
    burn(5_000_000)
    made += o.run(1)
    first, last = o.readings(made, "cpu0.model")["cpu_ns"]
    assert 5_000_000 <= last - first <= time.process_time_ns() - before


def test_a_process_that_ends_is_missing_from_then_on():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    o = opened(pid=child.pid)
    made = o.run(2)
    child.communicate(b"\n")
    made += o.run(3)
    r = o.readings(made, "cpu0.model")
    assert r["flags"] == [0, 0, Flag.MISSING, Flag.MISSING, Flag.MISSING]


BURNING = """
import os, sys, time
def burn():
    end = time.process_time_ns() + 30_000_000
    while time.process_time_ns() < end:
        pass
burn()
if os.fork() == 0:
    burn()
    print(time.process_time_ns(), flush=True)
    sys.stdin.readline()
    os._exit(0)
print(time.process_time_ns(), flush=True)
os.wait()
sys.stdin.readline()
"""


def test_children_of_a_process_count_and_stay_counted_when_they_have_ended():
    cpu = ProcessCpu(os.getpid())
    assert cpu.sees_children
    before, own = cpu(), time.process_time_ns()
    with subprocess.Popen([sys.executable, "-c", BURNING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        spent = sum(int(child.stdout.readline()) for _ in range(2))
        with_children = cpu() - before - (time.process_time_ns() - own)
        child.communicate(b"\n\n")
    after = cpu() - before - (time.process_time_ns() - own)
    slack_ns = 5_000_000  # what this process runs between two of its own clocks
    assert spent >= 60_000_000
    assert with_children >= spent - slack_ns
    assert after >= with_children - slack_ns


def test_what_powerd_itself_runs_in_is_no_child_of_the_training():
    """As in a recording that names no board: training, guardian, powerd, sampler."""
    program = "import os, sys; from powerd_daemon.sources.cpu_model import _ancestors, _descendants as d; "
    program += "print(os.getpid() in d(int(sys.argv[1]), ()), d(int(sys.argv[1]), _ancestors()) & _ancestors())"
    guardian = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}, sys.argv[1]])"
    command = [sys.executable, "-c", guardian, str(os.getpid())]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "True set()"


@pytest.mark.usefixtures("without_children")
def test_a_number_that_was_given_to_another_process_is_noticed(monkeypatch):
    cpu = ProcessCpu(os.getpid())
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock_id: values.pop(0))
    values = [500, 400]
    assert cpu() == 500
    with pytest.raises(SensorError):
        cpu()


def test_the_host_counts_busy_time_without_idle_waiting_and_stolen(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  1 2 4 1000 2000 8 16 4000 0 0\ncpu0 1 2 4 1000 2000 8 16 4000 0 0\n")
    cpu = HostCpu(stat)
    assert cpu() == 31 * HOST_TICK_NS
    cpu.close()
