"""Which jobs held the devices of a machine, and when: by the prolog and epilog of a scheduler, else by the environment
of the programs that the driver lists on a GPU.

A GPU's joules go to who holds it, in equal parts where jobs share it. A processor's are parted by CPU time, and are
then called a modelled share: what a processor takes is no sum over programs.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from powerd_client.host.hostclock import started
from powerd_client.host.job_identity import JobIdentity, gpus_of, job_of, read_environment
from powerd_client.host.ownership import read_small

NOBODY = ""
"""The job of what no job held."""
_EVENT = re.compile(r"(\d{10,19})\.([^/]{1,200})\.(begin|end)")
"""The name of a file that `deploy/slurm` writes: nanoseconds since 1970, the job, and what it did."""
_EXITS = ("SLURM_JOB_EXIT_CODE2", "SLURM_JOB_EXIT_CODE")
_KEPT_NS = 3600 * 1_000_000_000
"""So long a job that has ended is remembered for readings that come late."""
_PROCESSOR = re.compile(r"(cpu|dram|memory)\d*")
_TICKS_HZ = os.sysconf("SC_CLK_TCK")

PROLOG, PROCESSES = "prolog", "processes"


@dataclass(slots=True)
class HeldJob:
    """A job on this machine. Times are UTC in nanoseconds."""

    identity: JobIdentity
    devices: tuple[str, ...]
    begin_ns: int
    end_ns: int | None = None
    """None as long as it runs, as far as anybody knows."""
    seen_ns: int = 0
    """When a program of its was last seen on a GPU."""
    exit: str = ""
    origin: str = PROLOG

    @property
    def key(self) -> str:
        return self.identity.key

    @property
    def row(self) -> tuple[object, ...]:
        """For the table ``jobs``."""
        times = (self.begin_ns, self.end_ns, self.seen_ns)
        return (self.key, *astuple(self.identity), ",".join(self.devices), *times, self.exit, self.origin)

    @classmethod
    def of_row(cls, row: Sequence[object]) -> HeldJob:
        identity, (gpus, begin, end, seen, exit_code, origin) = row[1:8], row[8:]
        end_ns = None if end is None else int(str(end))
        return cls(
            JobIdentity(*map(str, identity)), tuple(filter(None, str(gpus).split(","))), int(str(begin)), end_ns,
            int(str(seen)), str(exit_code), str(origin),
        )  # fmt: skip


@dataclass(slots=True)
class JobBook:
    """The jobs of a machine. ``changed`` are those that a store does not know yet as they are."""

    jobs: dict[str, HeldJob] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    _shares: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """Until a moment: the share of the processor's time that each job had since the one before."""
    _files: set[str] = field(default_factory=set)
    _looked_ns: int = 1 << 62
    """When the driver was asked last."""

    def add(self, jobs: Iterable[HeldJob]) -> None:
        """Those that a store has."""
        self.jobs |= {job.key: job for job in jobs}

    def running(self) -> list[HeldJob]:
        return [job for job in self.jobs.values() if job.end_ns is None]

    def take_changed(self) -> list[HeldJob]:
        """What a store is to keep now."""
        changed = [self.jobs[key] for key in self.changed if key in self.jobs]
        self.changed = set()
        return changed

    def forget(self, now_ns: int) -> None:
        """Jobs that ended long ago, which a store has."""
        for key in [k for k, job in self.jobs.items() if job.end_ns is not None and job.end_ns < now_ns - _KEPT_NS]:
            if key not in self.changed:
                del self.jobs[key]
        self._shares = [share for share in self._shares if share[0] > now_ns - _KEPT_NS]

    # -- what schedulers and the driver say ----------------------------------------------------------------------------

    def read_spool(self, folder: Path) -> None:
        """Take the events of a spool folder that were not taken yet. What cannot be read is left alone."""
        names = set[str]()
        with contextlib.suppress(OSError):
            names = set(os.listdir(folder))
        for name in sorted(names - self._files):
            event = _EVENT.fullmatch(name)
            if event is not None:
                with contextlib.suppress(OSError):
                    self.take(read_environment(read_small(folder / name)), int(event[1]), event[3] == "end")
        self._files = names

    def take(self, environment: Mapping[str, str], t_ns: int, is_end: bool) -> None:
        """A prolog or an epilog has run with this environment."""
        identity = job_of(environment)
        if identity is None:
            return
        job = self.jobs.get(identity.key)
        if not is_end:
            devices = tuple(f"gpu{number}" for number in gpus_of(environment) or ())
            if job is None or job.origin != PROLOG:
                self._set(HeldJob(identity, devices, t_ns))
            elif job.end_ns is not None and t_ns > job.end_ns:  # it was queued again
                self._set(replace(job, devices=devices, end_ns=None, exit=""))
        elif job is not None and (job.end_ns is None or job.origin != PROLOG):
            job.end_ns, job.exit = t_ns, next((environment[name] for name in _EXITS if name in environment), "")
            self.changed.add(job.key)

    def see(
        self, on: Mapping[str, Iterable[JobIdentity]], t_ns: int, began_ns: Mapping[str, int] | None = None
    ) -> None:
        """The jobs whose programs the driver lists on each device now, and when the first of these began: a job that is
        new begins then, at most as long ago as the last look. One that is gone has ended between the looks, before the
        next one on its devices began: what was counted is not given away again. A prolog knows all this better."""
        devices: dict[str, set[str]] = {}
        identities: dict[str, JobIdentity] = {}
        for device, jobs in on.items():
            for identity in jobs:
                devices.setdefault(identity.key, set()).add(device)
                identities.setdefault(identity.key, identity)
        for key, identity in identities.items():
            job = self.jobs.get(key)
            if job is None:
                begin_ns = max((began_ns or {}).get(key, t_ns), min(self._looked_ns, t_ns))
                self._set(HeldJob(identity, tuple(sorted(devices[key])), begin_ns, None, t_ns, "", PROCESSES))
            elif job.origin == PROCESSES:
                more = devices[key] - set(job.devices)
                job.devices, job.seen_ns, job.end_ns = (*job.devices, *sorted(more)), t_ns, None
                self.changed.add(key)
        for job in self.running():
            if job.origin == PROCESSES and job.key not in identities:
                others = (o for o in self.running() if o.begin_ns > job.seen_ns and set(o.devices) & set(job.devices))
                job.end_ns = min([(job.seen_ns + t_ns) // 2, *(other.begin_ns for other in others)])
                self.changed.add(job.key)
        self._looked_ns = t_ns

    def share(self, cpu_s: Mapping[str, float], busy_s: float, until_ns: int) -> None:
        """What each job had of the ``busy_s`` seconds of all processors since the moment before."""
        whole = max(busy_s, sum(cpu_s.values()))
        self._shares.append((until_ns, {job: own / whole for job, own in cpu_s.items() if own > 0}))

    def _set(self, job: HeldJob) -> None:
        self.jobs[job.key] = job
        self.changed.add(job.key)

    # -- who held what -------------------------------------------------------------------------------------------------

    def cuts(self, device: str) -> NDArray[np.int64]:
        """When somebody took the device or let it go, increasing."""
        moments = {t for job in self.jobs.values() if device in job.devices for t in (job.begin_ns, job.end_ns) if t}
        return np.array(sorted(moments), np.int64)

    def holders(self, device: str, t_ns: int) -> tuple[str, ...]:
        """The jobs that hold the device at a moment."""
        return tuple(
            job.key
            for job in self.jobs.values()
            if device in job.devices and job.begin_ns <= t_ns and (job.end_ns is None or t_ns < job.end_ns)
        )

    def shares(self, device: str, t_ns: int) -> Mapping[str, float]:
        """How the joules of a device that nobody holds as a whole are parted at a moment: empty where they are not."""
        if not self._shares or not is_processor(device):
            return {}
        place = bisect_right(self._shares, t_ns, key=lambda share: share[0])
        return self._shares[min(place, len(self._shares) - 1)][1]


def began_utc_ns(pid: int) -> int:
    """When a process began (proc(5), starttime); now where it has ended."""
    ticks = started(pid)
    if ticks is None:
        return time.time_ns()
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(ticks) * 1_000_000_000 // _TICKS_HZ


def is_processor(device: str) -> bool:
    """Whether a device is one whose joules are parted by CPU time, by its name."""
    return _PROCESSOR.fullmatch(device) is not None


# -- CPU time of jobs --------------------------------------------------------------------------------------------------

CGROUPS = Path("/sys/fs/cgroup")
_OF_SLURM = ("system.slice/slurmstepd.scope", "system.slice/*_slurmstepd.scope", "cpuacct/slurm/uid_*")
_JOB_GROUP = re.compile(r"^0::(/.*?(?:/job_\d+|pod[0-9a-f_-]{36}(?:\.slice)?))(?:/|$)", re.MULTILINE)


class CpuTimes:
    """The processors' seconds of jobs, by the control group of each; where it has none, of its programs on GPUs."""

    def __init__(self, cgroups: Path = CGROUPS, proc: Path = Path("/proc")) -> None:
        self._cgroups, self._proc = cgroups, proc
        self._groups: dict[str, Path | None] = {}
        self._pids: dict[str, set[int]] = {}
        self.last: dict[str, float] = {}
        """By job, and of the whole machine by `NOBODY`."""

    def see(self, job: str, pid: int) -> None:
        """A program of a job."""
        self._pids.setdefault(job, set()).add(pid)
        if self._groups.get(job) is None:
            with contextlib.suppress(OSError):
                group = _JOB_GROUP.search((self._proc / str(pid) / "cgroup").read_text(errors="replace"))
                self._groups[job] = self._cgroups / group[1].lstrip("/") if group else None

    def used(self, jobs: Iterable[HeldJob]) -> tuple[dict[str, float], float] | None:
        """Seconds that jobs used since the last call, and that all processors were busy; None the first time."""
        now = {job.key: self._of(job) for job in jobs}
        now[NOBODY] = self._busy_s()
        before, self.last = self.last, now
        if NOBODY not in before:
            return None
        used = {key: max(own - before.get(key, 0.0), 0.0) for key, own in now.items() if key != NOBODY}
        return used, max(now[NOBODY] - before[NOBODY], 0.0)

    def _of(self, job: HeldJob) -> float:
        if job.key not in self._groups:
            self._groups[job.key] = next(self._slurm_groups(job), None)
        group = self._groups[job.key]
        with contextlib.suppress(OSError, ValueError, StopIteration):
            if group is not None and (group / "cpu.stat").exists():
                lines = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
                return next(int(value) for name, value in lines if name == "usage_usec") * 1e-6
            if group is not None:
                return int((group / "cpuacct.usage").read_text()) * 1e-9
        return sum(map(self._of_process, self._pids.get(job.key, ())))

    def _slurm_groups(self, job: HeldJob) -> Iterator[Path]:
        if job.identity.scheduler == "slurm" and job.identity.id.isdecimal():
            for place in _OF_SLURM:
                yield from self._cgroups.glob(f"{place}/job_{job.identity.id}")

    def _of_process(self, pid: int) -> float:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (self._proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / _TICKS_HZ
        return 0.0

    def _busy_s(self) -> float:
        """User, nice, system, interrupts and steal of all processors (proc(5))."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:]
            return sum(int(fields[i]) for i in (0, 1, 2, 5, 6, 7)) / _TICKS_HZ
        return 0.0
