"""Which job of a cluster a process belongs to, as its scheduler says in the environment or by the control group.

The one table of schedulers: what a run file says of its job, what a prolog hands over, and what `powerd-accounting`
finds in the environments of processes that use a GPU are read by it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from powerd_core.text import printable

SET = "attributes"
"""Where a run's environment has what else people said of it (`joules record --set`)."""
_MOST = 200
"""Characters of one name: a user writes most of them."""


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """A job by the names that its scheduler gives it; empty what that does not tell."""

    scheduler: str
    id: str
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    """Also called the queue, or of Kubernetes the namespace."""
    step: str = ""
    """The step or the element of an array."""

    @property
    def key(self) -> str:
        """Tells it from the jobs of other schedulers: ``slurm 4711``."""
        return f"{self.scheduler} {self.id}"

    @property
    def document(self) -> dict[str, str]:
        """What a run file's environment says of it: ``job_scheduler``, ``job_id``, ``job_user``, ..."""
        return {f"job_{name}": value for name, value in asdict(self).items() if value}


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The variables in which a scheduler tells who a job is; of several names the first that is set counts."""

    name: str
    id: tuple[str, ...]
    job_name: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    account: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()
    step: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    """Numbers of the machine's GPUs that the job holds, as the scheduler counts them."""


SCHEDULERS = (
    Scheduler(
        "slurm", ("SLURM_JOB_ID", "SLURM_JOBID"), ("SLURM_JOB_NAME",), ("SLURM_JOB_USER",), ("SLURM_JOB_ACCOUNT",),
        ("SLURM_JOB_PARTITION",), ("SLURM_STEP_ID",), ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS"),
    ),
    Scheduler(
        "pbs", ("PBS_JOBID",), ("PBS_JOBNAME",), ("PBS_O_LOGNAME",), ("PBS_ACCOUNT",), ("PBS_QUEUE",),
        ("PBS_ARRAY_INDEX",),
    ),
    Scheduler(
        "lsf", ("LSB_JOBID",), ("LSB_JOBNAME",), ("LSFUSER",), ("LSB_PROJECT_NAME",), ("LSB_QUEUE",), ("LSB_JOBINDEX",),
    ),
)  # fmt: skip
"""Slurm: srun(1) and prolog_epilog; PBS: qsub(1B); LSF: environment variables set for job execution."""

_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_SLURM_GROUP = re.compile(r"/job_(\d+)(?:/step_([^/\n]+))?")


def job_of(environment: Mapping[str, str], groups: str = "") -> JobIdentity | None:
    """The job that an environment names, or else the control groups of a process (the text of /proc/PID/cgroup): of
    Slurm, whose environment may be another user's secret, and of Kubernetes, which has no other place for it."""
    for scheduler in SCHEDULERS:
        if told := _first(environment, scheduler.id):
            names = (scheduler.job_name, scheduler.user, scheduler.account, scheduler.partition, scheduler.step)
            name, user, account, partition, step = (_first(environment, of) for of in names)
            user = user or _first(environment, ("USER", "LOGNAME"))
            return JobIdentity(scheduler.name, told, name, user, account, partition, step)
    if pod := _POD.search(groups):
        name, namespace = _first(environment, ("POD_NAME", "HOSTNAME")), _first(environment, ("POD_NAMESPACE",))
        return JobIdentity("kubernetes", pod[1].replace("_", "-"), name, partition=namespace)
    if job := _SLURM_GROUP.search(groups):
        return JobIdentity("slurm", job[1])
    return None


def gpus_of(environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """The numbers of the GPUs that a scheduler gives a job on this machine: ``0,2-3``; None where it says nothing."""
    told = next((text for s in SCHEDULERS if (text := _first(environment, s.gpus))), "")
    numbers: list[int] = []
    for part in told.split(",") if told else ():
        first, _, last = part.strip().rpartition(":")[2].partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return None
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers) if numbers else None


def job_here() -> JobIdentity | None:
    """The job of this process."""
    groups = ""
    with contextlib.suppress(OSError):
        groups = Path("/proc/self/cgroup").read_text(errors="replace")
    return job_of(os.environ, groups)


def job_of_process(pid: int, proc: Path = Path("/proc")) -> JobIdentity | None:
    """The job of another process, as far as this one may look; its user is the process's owner where nothing says."""
    environment: dict[str, str] = {}
    groups = user = ""
    with contextlib.suppress(OSError):
        environment = read_environment((proc / str(pid) / "environ").read_bytes())
    with contextlib.suppress(OSError):
        groups = (proc / str(pid) / "cgroup").read_text(errors="replace")
    job = job_of(environment, groups)
    if job is None or job.user:
        return job
    with contextlib.suppress(OSError, KeyError):
        user = pwd.getpwuid((proc / str(pid)).stat().st_uid).pw_name
    return replace(job, user=user)


def read_environment(data: bytes) -> dict[str, str]:
    """Variables as /proc/PID/environ and `env -0` write them: NAME=VALUE, each ended by a zero byte."""
    entries = (entry.partition("=") for entry in data.decode(errors="replace").split("\0"))
    return {name: value for name, separator, value in entries if separator}


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((printable(text, limit=_MOST) for name in names if (text := environment.get(name))), "")
