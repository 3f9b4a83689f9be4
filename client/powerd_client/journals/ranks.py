"""Which rank of a distributed training this process is, and how the ranks of one machine share one recording."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from powerd_client.host.hostclock import started
from powerd_client.host.log import tell
from powerd_client.host.ownership import foreign, move, write_new
from powerd_client.journals.journal import journal_path, numbered_runs
from powerd_core.errors import ConfigError, PeerError, PeerTimeout, RunFileError
from powerd_core.text import printable

JOB_ENVIRONMENT = "POWERD_JOB"
"""Environment variable with any text that is the same in all ranks of one launch, on all its machines, and in no other
launch: for launchers that start each rank through a process of its own."""

JOIN_S = 60.0
"""So long a rank waits for local rank 0 to begin."""
CLOSE_S = 60.0
"""So long local rank 0 waits for the others to close."""
APPEAR_S = 30.0
"""A rank that has made no Meter so long after local rank 0 did will make none."""
_BEGINS_S = 360.0
"""So long for one that has said that it begins: on a full machine its own powerd starts slowly."""
_SAY_S = 3.0
_LOOK_S = 0.02

_opened: dict[Path, int] = {}
"""How many recordings this process has opened of a file: the n-th of one rank is the n-th of the others."""

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
    """What a run file says of the training as a whole, the same on all its machines, as far as the launcher tells:
    its name ``job`` and how many ``machines`` there are."""
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


class Rendezvous:
    """The recording that the ranks of one machine share: local rank 0 records, the others join, and the end waits for
    all of them.

    They meet at the journal: ``job.json`` in it says which launch it belongs to and whether readings flow. A journal
    that an earlier job left is never joined, since its launch is another one.
    """

    def __init__(self, out: Path, rank: Rank, *, is_numbered: bool = False) -> None:
        """With ``is_numbered`` local rank 0 records into the first of RUN.h5, RUN-2.h5, ... that is free (`use`)."""
        self.rank = rank
        self._is_numbered = is_numbered
        self.out = rank.file_of(out).absolute()
        self.journal = journal_path(self.out)
        _opened[self.out] = _opened.get(self.out, 0) + 1
        self._job = f"{rank.launch} {_opened[self.out]}"
        self._began_s = monotonic()

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that records."""
        return self.rank.local_rank == 0

    def use(self, out: Path) -> None:
        """Meet at the recording of this run file."""
        self.out, self.journal = out, journal_path(out)

    def announce(self, *, ready: bool) -> None:
        """Tell the other ranks that this journal is theirs, and whether it can be joined. Raises `RunFileError`."""
        partial = self.journal / "job.json.new"
        try:
            write_new(partial, json.dumps({"job": self._job, "ready": ready, "pid": os.getpid()}))
            move(partial, self.journal / "job.json", overwrite=True)
        except OSError as error:
            raise RunFileError(f"cannot record into {self.out}: {error.strerror}: {error.filename}") from error

    def join(self, *, overwrite: bool) -> None:
        """Wait until local rank 0 records, and find where.

        Raises `RunFileError` when a run file of that name is in the way, `PeerError` when rank 0 gave up, and
        `PeerTimeout`.
        """
        me, was_announced, is_told = f"rank {self.rank.rank}", False, False
        while (is_ready := self._is_ready()) is not True:
            waited_s = monotonic() - self._began_s
            if is_ready is None and was_announced:
                raise PeerError(f"{me}: local rank 0 could not begin to record {self.out}: its own message says why")
            if is_ready is None and self.out.exists() and not (overwrite or self._is_numbered):
                raise RunFileError(f"{me}: {self.out} exists: choose another name, or overwrite it with overwrite=True")
            if waited_s > (JOIN_S if is_ready is None else _BEGINS_S):
                raise PeerTimeout(
                    f"{me} waited {JOIN_S:g} s for local rank 0 to record {self.out}: make the Meter in every rank, "
                    f"with the same out, before anything that waits for other ranks, or set {JOB_ENVIRONMENT}"
                )
            if waited_s > _SAY_S and not is_told:
                is_told = True
                tell(f"{me} waits for local rank 0 to begin the recording of {self.out.name}, at most {JOIN_S:g} s")
            was_announced = was_announced or is_ready is False
            sleep(_LOOK_S)

    def _is_ready(self) -> bool | None:
        """Whether this job's journal can be joined; None while there is none."""
        for out in (self.out, *(numbered_runs(self.out) if self._is_numbered else ())):
            if foreign(journal_path(out)):
                continue
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                document = json.loads((journal_path(out) / "job.json").read_text())
                if document["job"] == self._job:
                    self.use(out)
                    return bool(document["ready"])
        return None

    def await_others(self) -> list[str]:
        """In local rank 0: wait until every rank of this machine has closed its marks, or died. What the run should say
        of those that have not.
        """
        if not self.is_first:
            return []
        begin_s, is_told = monotonic(), False
        while True:
            members = [m for path in self.journal.glob("marks-*.names") if (m := _read_member(path)) is not None]
            absent = sorted({*range(1, self.rank.local_world_size)} - {m.local_rank for m in members})
            still_open = [m for m in members if m.is_open and m.local_rank > 0]
            now_s = monotonic()
            may_appear = now_s - self._began_s < APPEAR_S
            if now_s - begin_s > CLOSE_S or not (still_open or (absent and may_appear)):
                break
            if now_s - begin_s > _SAY_S and not is_told:
                names = [f"rank {m.rank} (process {m.pid})" for m in still_open] + [f"local rank {k}" for k in absent]
                is_told = True
                tell(f"waiting for {', '.join(names)} to close its Meter, at most {CLOSE_S:g} s")
            sleep(_LOOK_S)
        notes = [
            f"rank {m.rank} (process {m.pid}) had not closed its Meter {CLOSE_S:g} s after local rank 0: what it "
            "marked later is not here"
            for m in still_open
        ]
        return [*notes, *(f"local rank {k} made no Meter: its phases are not in this run" for k in absent)]


class _Member(NamedTuple):
    """What a process of the recording says of itself."""

    rank: int
    local_rank: int
    pid: int
    is_open: bool


def _read_member(path: Path) -> _Member | None:
    """None for what is no rank, such as a counter of pmlib's, or has not been written yet."""
    if not path.is_file():  # a device has no end, and a pipe lets us wait
        return None
    try:
        lines = path.read_bytes().splitlines()
        about = json.loads(lines[0])
        rank, local_rank, pid = int(about["rank"]), int(about["local_rank"]), int(about["pid"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    return _Member(rank, local_rank, pid, not lines[-1].startswith(b'{"closed"') and started(pid) is not None)
