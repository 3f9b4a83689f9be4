"""CPU time of a process or of the whole host, in nanoseconds since some fixed moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from powerd_core.errors import SensorError

HOST_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""Step of the host's counters."""

PROCESS_LUMP_NS = 4_000_000
"""A process that runs on another CPU is accounted for at scheduler ticks: its clock moves in lumps of some
milliseconds (2 ms median and 13 ms p99 were seen), though its unit is the nanosecond."""


class ProcessCpu:
    """All threads of one process, by its CPU-time clock; its children are not in it.

    Calling it raises `SensorError` once the process is gone.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        # The kernel's encoding of "CPU time of this process": include/linux/posix-timers.h, CPUCLOCK_SCHED.
        self._clock_id = (~pid << 3) | 2
        self._last_ns = 0

    def __call__(self) -> int:
        try:
            cpu_ns = time.clock_gettime_ns(self._clock_id)
        except (OSError, OverflowError) as error:
            raise SensorError(f"process {self.pid} is not there (any more): give the pid of one that runs") from error
        if cpu_ns < self._last_ns:
            raise SensorError(f"process {self.pid} has ended and its number now belongs to another")
        self._last_ns = cpu_ns
        return cpu_ns


class HostCpu:
    """Busy time of all CPUs from /proc/stat: user, nice, system, interrupts; without idle, waiting and stolen time."""

    def __init__(self, path: Path = Path("/proc/stat")) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SensorError(f"{path} cannot be read: {error.strerror}") from error

    def __call__(self) -> int:
        head, *fields = os.pread(self._file, 256, 0).split(b"\n", 1)[0].split()
        if head != b"cpu" or len(fields) < 7:
            raise SensorError(f"{self._path} does not begin with the CPUs' times: is this Linux?")
        user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[:7])
        return (user + nice + system + irq + softirq) * HOST_TICK_NS

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def or_last(read: Callable[[], int]) -> Callable[[], int]:
    """``read``, going on with its last value when it fails: a process that is gone uses no more CPU."""
    last_ns = read()

    def reading() -> int:
        nonlocal last_ns
        with suppress(SensorError):
            last_ns = read()
        return last_ns

    return reading
