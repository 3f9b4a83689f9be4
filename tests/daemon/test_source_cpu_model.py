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


class TestConformanceOfTheHost(SourceConformance):
    def make(self, start: Start) -> CpuModelSource:
        return CpuModelSource(CpuModelOptions(), start)


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
