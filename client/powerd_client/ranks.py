"""Which rank of a distributed training this process is, as its launcher says in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from powerd_core.errors import ConfigError
from powerd_core.text import printable

JOB_ENVIRONMENT = "POWERD_JOB"
"""Environment variable with any text that is the same in all ranks of one launch, on all its machines, and in no other
launch: for launchers that start each rank through a process of its own."""

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a training of ``world_size``, ``local_world_size`` of them on this machine."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    """Number of the machine (GROUP_RANK); 0 where the launcher says nothing."""
    restart: int
    """How often torchrun has started the training anew."""
    launch: str
    """Tells this launch from every other one on this machine."""

    @property
    def about(self) -> dict[str, object]:
        """What the run file says of the process."""
        return {"rank": self.rank, "local_rank": self.local_rank, "world_size": self.world_size}

    def file_of(self, out: Path) -> Path:
        """``run.h5``, or ``run.node1.h5`` on the second machine and ``run.restart1.h5`` after a restart: machines that
        share a file system have a file each."""
        marks = [f"node{self.node}"] if self.node else []
        marks += [f"restart{self.restart}"] if self.restart else []
        return out.with_name(".".join([out.stem, *marks]) + out.suffix) if marks else out


def rank_here(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """The rank of this process; None where RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE are not all set (or
    LOCAL_RANK is negative, by which some scripts say that they are alone).

    Raises `ConfigError` for values that cannot be.
    """
    if not all(environment.get(name) for name in _NEEDED):
        return None
    rank, world, local, local_world = (_number(environment, name) for name in _NEEDED)
    if local < 0:
        return None
    if not (0 <= rank < world and local < local_world):
        values = ", ".join(f"{name}={environment[name]}" for name in _NEEDED)
        raise ConfigError(f"{values}: ranks are counted from 0, below the sizes")
    node, restart = (max(_number(environment, name), 0) for name in ("GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"))
    return Rank(rank, world, local, local_world, node, restart, _launch(environment))


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name) or "0"
    try:
        return int(text)
    except ValueError:
        shown = printable(text, limit=40)
        raise ConfigError(f"{name}={shown} in the environment is no number: set it as torchrun does") from None


def _launch(environment: Mapping[str, str]) -> str:
    if given := environment.get(JOB_ENVIRONMENT):
        return given
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "GROUP_RANK")
    parts = [environment.get(name, "") for name in names]
    error_file = environment.get("TORCHELASTIC_ERROR_FILE", "")
    if parts[0] and len(Path(error_file).parts) > 3:
        # torchrun's run id and port may be the same every time; this directory is made anew by each launch.
        parts.append(str(Path(error_file).parents[1]))
    elif "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" in environment:
        parts.append(f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}")
    else:
        # The process that started this one, told from later ones with its number by when it began.
        parts.append(f"{os.getppid()}@{started(os.getppid()) or ''}")
    return " ".join(parts)


def training_here(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a run file says of the training as a whole, the same on all its machines, as far as the launcher tells.

    ``job`` names it: `JOB_ENVIRONMENT`, else the job and step of Slurm, else torchrun's id and where its ranks meet.
    The last may be the same for the next training too. ``machines`` is how many there are.
    """
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    cluster, job, step, run, address, port = (environment.get(name, "") for name in names)
    training = {}
    if given := environment.get(JOB_ENVIRONMENT):
        training["job"] = f"given {given}"
    elif job and step:
        training["job"] = f"slurm {cluster} {job}.{step}" if cluster else f"slurm {job}.{step}"
    elif address and port:
        training["job"] = f"torchrun {run} at {address}:{port}" if run else f"ranks at {address}:{port}"
    machines = environment.get("GROUP_WORLD_SIZE") or (environment.get("SLURM_STEP_NUM_NODES") if step else None)
    if training and machines and machines.isdecimal():
        training["machines"] = machines
    return training


def started(pid: int) -> str | None:
    """When a process began (clock ticks since boot), None when it has ended or nobody can tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
