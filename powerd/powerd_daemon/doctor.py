"""`powerd check`: findings about this machine, each with the narrowest remedy.

Nothing here changes anything but `probe_disk`, which writes a file and removes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from powerd_core.errors import SensorError
from powerd_daemon.clock import Clock, SystemClock
from powerd_daemon.config import Config
from powerd_daemon.sources.nvml_api import Nvml


class Verdict(StrEnum):
    """How a finding is meant. Only ``FAIL`` makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``remedy`` is empty where nothing has to be done."""

    area: str
    verdict: Verdict
    what: str
    remedy: str = ""


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that is looked at; tests put another in its place."""

    root: Path = Path("/")
    may: Callable[[Path, int], bool] = _may
    clock: Clock = field(default_factory=SystemClock)
    resolution_ns: Callable[[], float] = lambda: time.clock_getres(time.CLOCK_MONOTONIC_RAW) * 1e9
    nvml: Callable[[], Nvml] = Nvml

    def paths(self, pattern: str) -> list[Path]:
        """What matches below the root, in the order of the numbers in the names."""
        return sorted(self.root.glob(pattern), key=lambda p: (len(p.name), p.name))

    def text(self, path: str) -> str:
        """The contents of a small file; empty where there is none to read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip("\0\n ")
        except OSError:
            return ""

    def model(self) -> str:
        """The board's name in its device tree, such as ``TI AM335x BeagleBone Black``."""
        return self.text("proc/device-tree/model")


Check = Callable[[Machine, Config | None], Iterable[Finding]]


def examine(machine: Machine, config: Config | None, checks: Sequence[Check]) -> list[Finding]:
    """All findings. A check that is itself surprised says so in a finding and costs the others nothing."""
    found: list[Finding] = []
    for check in checks:
        try:
            found += check(machine, config)
        except OSError as error:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            found.append(Finding(name, Verdict.WARN, f"could not be looked at: {error}"))
    return found


def kinds_in(config: Config | None) -> set[str]:
    """The kinds of source that a configuration uses."""
    return {source.kind for source in config.sources} if config else set()


READS = 2000


def check_clock(machine: Machine, _: Config | None) -> Iterator[Finding]:
    """Resolution and cost of the clock of all timestamps, and what it is made from."""
    resolution_ns = machine.resolution_ns()
    begin_ns = machine.clock.now_ns()
    for _i in range(READS):
        machine.clock.now_ns()
    cost_ns = (machine.clock.now_ns() - begin_ns) / (READS + 1)
    what = f"CLOCK_MONOTONIC_RAW: resolution {resolution_ns:g} ns, {cost_ns:.0f} ns a reading"
    source = machine.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source:
        what += f", from {source}"
    if resolution_ns > 1000:
        yield Finding("clock", Verdict.FAIL, what, "the kernel has no fine clock: boot one with high-resolution timers")
    elif cost_ns > 5000 or source in ("hpet", "acpi_pm", "jiffies"):
        known = machine.text("sys/devices/system/clocksource/clocksource0/available_clocksource")
        yield Finding(
            "clock", Verdict.WARN, what, f"choose a faster clock source at boot (clocksource=...; there are: {known})"
        )
    else:
        yield Finding("clock", Verdict.OK, what)


SLEEPS, SLEEP_NS = 200, 1_000_000


def check_scheduler(machine: Machine, _: Config | None) -> Iterator[Finding]:
    """How late this process wakes up for deadlines 1 ms apart."""
    clock = machine.clock
    late_ns = []
    due_ns = clock.now_ns()
    for _i in range(SLEEPS):
        due_ns = max(due_ns + SLEEP_NS, clock.now_ns())
        clock.sleep_until(due_ns)
        late_ns.append(clock.now_ns() - due_ns)
    late_ns.sort()
    median_us, p99_us = late_ns[SLEEPS // 2] / 1000, late_ns[SLEEPS * 99 // 100] / 1000
    what = f"wakes up {median_us:.0f} us late (median), {p99_us:.0f} us (99 %), of 1 ms deadlines"
    if p99_us <= 1000:
        yield Finding("scheduler", Verdict.OK, what)
        return
    governors = {machine.text(str(p.relative_to(machine.root))) for p in machine.paths(_GOVERNORS)}
    remedy = (
        "leave the CPU alone while measuring, or give the source a real-time priority (needs LimitRTPRIO, see deploy/)"
    )
    if governors - {"performance", ""}:
        remedy += "; set the CPU governor to performance: cpupower frequency-set -g performance"
    yield Finding("scheduler", Verdict.WARN, what, remedy)


_GOVERNORS = "sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"

PROBE_BYTES = 8 << 20
SMALL_BYTES = 1 << 30
SLOW_BYTES_A_S = 2e6


def probe_disk(directory: Path) -> Callable[[Machine, Config | None], Iterator[Finding]]:
    """A check of free space and of writing and syncing in the directory where a run or a spool would go."""

    def check_disk(machine: Machine, _: Config | None) -> Iterator[Finding]:
        if not directory.is_dir():
            yield Finding(
                "disk", Verdict.FAIL, f"{directory} is not a directory", "make it, or name another with --directory"
            )
            return
        if not machine.may(directory, os.W_OK | os.X_OK):
            yield Finding(
                "disk",
                Verdict.FAIL,
                f"{directory} is not writable for this user",
                f"chown it to the user that measures, or name another with --directory: ls -ld {directory}",
            )
            return
        space = os.statvfs(directory)
        free_bytes = space.f_bavail * space.f_frsize
        if free_bytes < 4 * PROBE_BYTES:
            yield Finding(
                "disk",
                Verdict.FAIL,
                f"{directory}: {free_bytes / 1e6:.0f} MB free",
                "make room: eight lines at 500 Hz take about 160 MB an hour",
            )
            return
        speed = PROBE_BYTES / max(_write_s(directory, machine.clock), 1e-9)
        what = f"{directory}: {free_bytes / 1e9:.1f} GB free, writes {speed / 1e6:.0f} MB/s"
        if free_bytes < SMALL_BYTES:
            yield Finding("disk", Verdict.WARN, what, "make room: eight lines at 500 Hz take about 160 MB an hour")
        elif speed < SLOW_BYTES_A_S:
            yield Finding(
                "disk",
                Verdict.WARN,
                what,
                "use a faster medium (a worn SD card writes like this), or record on the training host",
            )
        else:
            yield Finding("disk", Verdict.OK, what)

    return check_disk


def _write_s(directory: Path, clock: Clock) -> float:
    path = directory / f".powerd-check-{os.getpid()}"
    data = os.urandom(1 << 20)
    begin_ns = clock.now_ns()
    try:
        with path.open("wb") as file:
            for _ in range(PROBE_BYTES >> 20):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)
    return (clock.now_ns() - begin_ns) / 1e9


def check_nvml(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """Whether NVML can be asked, and about how many GPUs."""
    wanted = "nvml" in kinds_in(config)
    nvml = machine.nvml()
    try:
        nvml.start()
    except SensorError as error:
        what, _, remedy = str(error).partition(": ")
        if wanted:
            yield Finding("nvml", Verdict.FAIL, what, remedy)
        else:
            yield Finding("nvml", Verdict.OK, "no NVIDIA GPU can be asked here, and none is asked for")
        return
    count = nvml.ask("nvmlDeviceGetCount")
    driver = nvml.ask("nvmlSystemGetDriverVersion")
    nvml.stop()
    what = f"{count or 0} GPU(s), driver {driver}"
    if wanted and not count:
        yield Finding("nvml", Verdict.FAIL, what, "see whether nvidia-smi lists a GPU, or leave the source 'nvml' out")
    else:
        yield Finding("nvml", Verdict.OK, what)
