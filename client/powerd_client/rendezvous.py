"""Ranks of one machine in one recording: local rank 0 records, the others join, and the end waits for all of them.

They meet at the journal: ``job.json`` in it says which launch it belongs to and whether readings flow. A journal that
an earlier job left is never joined, since its launch is another one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from powerd_client.journal import journal_path
from powerd_client.log import tell
from powerd_client.ranks import JOB_ENVIRONMENT, Rank, started
from powerd_core.errors import PeerError, PeerTimeout, RunFileError

JOIN_S = 60.0
"""So long a rank waits for local rank 0 to begin."""
CLOSE_S = 60.0
"""So long local rank 0 waits for the others to close."""
APPEAR_S = 30.0
"""A rank that has made no Meter so long after local rank 0 did will make none."""
_SAY_S = 3.0
_LOOK_S = 0.02

_opened: dict[Path, int] = {}
"""How many recordings this process has opened of a file: the n-th of one rank is the n-th of the others."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and what passes it, for tests."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Rendezvous:
    """The recording that the ranks of one machine share."""

    def __init__(self, out: Path, rank: Rank, clock: Clock | None = None) -> None:
        self.rank = rank
        self.out = rank.file_of(out).absolute()
        self.journal = journal_path(self.out)
        _opened[self.out] = _opened.get(self.out, 0) + 1
        self._job = f"{rank.launch} {_opened[self.out]}"
        self._clock = clock or Clock()
        self._began_s = self._clock.now()

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that records."""
        return self.rank.local_rank == 0

    def announce(self, *, ready: bool) -> None:
        """Tell the other ranks that this journal is theirs, and whether it can be joined. Raises `RunFileError`."""
        partial = self.journal / f"job.{os.getpid()}.new"
        try:
            partial.write_text(json.dumps({"job": self._job, "ready": ready, "pid": os.getpid()}))
            partial.replace(self.journal / "job.json")
        except OSError as error:
            raise RunFileError(f"cannot record into {self.out}: {error.strerror}: {error.filename}") from error

    def join(self, *, overwrite: bool) -> None:
        """Wait until local rank 0 records.

        Raises `RunFileError` when a run file of that name is in the way, `PeerError` when rank 0 gave up, and
        `PeerTimeout`.
        """
        me, was_announced = f"rank {self.rank.rank}", False
        notice = _Notice()
        while (is_ready := self._is_ready()) is not True:
            waited_s = self._clock.now() - self._began_s
            if is_ready is False:
                was_announced = True
            elif was_announced:
                raise PeerError(f"{me}: local rank 0 could not begin to record {self.out}: its own message says why")
            elif self.out.exists() and not overwrite:
                raise RunFileError(
                    f"{me}: {self.out} exists: choose another name, or overwrite it with overwrite=True (if this run "
                    "wrote it, local rank 0 closed it before this rank made its Meter)"
                )
            if waited_s > JOIN_S:
                raise PeerTimeout(
                    f"{me} waited {JOIN_S:g} s for local rank 0 to record {self.out}: make the Meter in every rank, "
                    "with the same out, before anything that waits for other ranks (where the launcher starts every "
                    f"rank through a process of its own, set {JOB_ENVIRONMENT} to one text for all of them)"
                )
            what = f"{me} waits for local rank 0 to begin the recording of {self.out.name}"
            notice.tell(waited_s, f"{what}, at most {JOIN_S:g} s")
            self._clock.sleep(_LOOK_S)

    def _is_ready(self) -> bool | None:
        """Whether this job's journal can be joined; None while there is none."""
        try:
            document = json.loads((self.journal / "job.json").read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(document, dict) or document.get("job") != self._job:
            return None
        return document.get("ready") is True

    def await_others(self) -> list[str]:
        """In local rank 0: wait until every rank of this machine has closed its marks, or died. What the run should say
        of those that have not.
        """
        if not self.is_first or self.rank.local_world_size < 2:
            return []
        begin_s, others, notice = self._clock.now(), range(1, self.rank.local_world_size), _Notice()
        while True:
            processes = self._processes()
            absent = [local_rank for local_rank in others if local_rank not in processes]
            still_open = [p for local_rank in others for p in processes.get(local_rank, []) if p.is_open]
            now_s = self._clock.now()
            appear_s = APPEAR_S - (now_s - self._began_s)
            if now_s - begin_s > CLOSE_S or not (still_open or (absent and appear_s > 0)):
                break
            names = [f"rank {p.rank} (process {p.pid})" for p in still_open] + [f"local rank {k}" for k in absent]
            limit_s = CLOSE_S if still_open else appear_s
            notice.tell(now_s - begin_s, f"waiting for {', '.join(names)} to close its Meter, at most {limit_s:.0f} s")
            self._clock.sleep(_LOOK_S)
        notes = [
            f"rank {p.rank} (process {p.pid}) had not closed its Meter {CLOSE_S:g} s after local rank 0: what it "
            "marked later is not here"
            for p in still_open
        ]
        return [*notes, *(f"local rank {k} made no Meter: its phases are not in this run" for k in absent)]

    def _processes(self) -> dict[int, list[_Process]]:
        """What each local rank has said in this journal."""
        processes: dict[int, list[_Process]] = {}
        for path in self.journal.glob("marks-*.names"):
            process = _read_process(path)
            if process is not None:
                processes.setdefault(process.local_rank, []).append(process)
        return processes


@dataclass(slots=True)
class _Notice:
    """Tells the user once that something is waited for, when that takes long."""

    is_told: bool = False

    def tell(self, waited_s: float, text: str) -> None:
        if waited_s > _SAY_S and not self.is_told:
            self.is_told = True
            tell(text)


@dataclass(frozen=True, slots=True)
class _Process:
    rank: int
    local_rank: int
    pid: int
    is_open: bool


def _read_process(path: Path) -> _Process | None:
    """None for what is no rank, such as a counter of pmlib's, or has not been written yet."""
    try:
        lines = path.read_bytes().splitlines()
        about = json.loads(lines[0])
        rank, local_rank, pid = int(about["rank"]), int(about["local_rank"]), int(about["pid"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    is_closed = any(line.startswith(b'{"closed"') for line in lines[-1:])
    return _Process(rank, local_rank, pid, not is_closed and started(pid) is not None)
