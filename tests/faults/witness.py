"""Who bears witness that a fault happened: counts that the faulted thing itself keeps, apart from the act that struck.

The proxy counts connections that it reset and pieces that it held, delayed and spoiled; the fake disk writes down each
write that it delayed or refused, the simulated bus each transfer that failed, came late or was answered by another
chip; a parent writes down what its child died of; the kernel says which processes stand still. An act never counts for
itself: where it does nothing, its witness has nothing to tell, and the cell fails.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from faults.processes import Child
from faults.rows import Cell
from faults.stage import Stage
from powerd_client.journals.journal import journal_path, read_events
from powerd_core.wire import Garbage

LOOK_S = 0.02
Pids = Callable[[Stage], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Witness:
    """What is counted and how much of it there is at least, beside ``share`` times the fault's duration."""

    what: str
    count: Callable[[Stage], float] | None = None
    least: float = 1.0
    share: float = 0.0
    stands: str = ""
    """The process whose time at a stand is counted, in the place of ``count``."""


class Standing:
    """The seconds for which the kernel said at two successive looks that a process is stopped."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids, self._seconds = list(pids), 0.0
        self._stood_s: float | None = None
        """When they were last seen to stand, None where they ran at the last look."""
        self._lock, self._done = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(LOOK_S):
            self.seconds()

    def seconds(self) -> float:
        with self._lock:
            now_s, before_s = time.monotonic(), self._stood_s
            self._stood_s = now_s if self._pids and all(map(is_stopped, self._pids)) else None
            if self._stood_s is not None and before_s is not None:
                self._seconds += now_s - before_s
            return self._seconds

    def close(self) -> None:
        self._done.set()
        self._thread.join()


def is_stopped(pid: int) -> bool:
    """Whether the kernel says that a process is stopped by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


class Evidence:
    """A witness of one cell on one stage: asked before its act, as often as wanted during it, and behind it."""

    def __init__(self, cell: Cell, stage: Stage, pids: Pids | None = None) -> None:
        self._witness, self._stage = WITNESSES[cell.victim, cell.kind], stage
        self._standing = Standing(pids(stage)) if pids is not None else None
        self._before = self._count()
        self.amount = 0.0

    def _count(self) -> float:
        if self._standing is not None:
            return self._standing.seconds()
        assert self._witness.count is not None
        return self._witness.count(self._stage)

    def __enter__(self) -> Evidence:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._standing is not None:
            self._standing.close()

    def look(self) -> None:
        """What a file tells that is gone at the end is seen while it is there."""
        self.amount = max(self.amount, self._count() - self._before)

    def problems(self, length_s: float) -> list[str]:
        """That there is no evidence, where there is none."""
        least = self._witness.least + self._witness.share * length_s
        if self.amount >= least:
            return []
        return [f"no evidence of the fault: {self._witness.what}: {self.amount:g}, at least {least:g} expected"]


def _of_proxy(*keys: str) -> Callable[[Stage], float]:
    return lambda stage: sum(stage.network_counts()[key] for key in keys)


def _written_down(word: str) -> Callable[[Stage], float]:
    """The sum of what was written down under a word by the disk, the bus, or a parent."""

    def count(stage: Stage) -> float:
        rows = [line.split() for line in stage.seen.read_text().splitlines()] if stage.seen.exists() else []
        return sum(float(row[1]) for row in rows if row[0] == word)

    return count


def _ended_by(name: str, status: int) -> Callable[[Stage], float]:
    def is_one(child: Child) -> bool:
        return child.name == name and child.process.poll() == status

    return lambda stage: sum(map(is_one, stage.children))


def _damaged_journal(stage: Stage) -> float:
    path = journal_path(stage.out) / "journal.bin"
    if not path.exists():
        return 0
    return sum(event.count for event, _, _ in read_events(path) if isinstance(event, Garbage))


def _torn_names(stage: Stage) -> float:
    """Lines of the trainer's files of names that are no JSON object."""
    torn = 0
    for path in journal_path(stage.out).glob("marks-*.names"):
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines():
                try:
                    torn += not isinstance(json.loads(line), dict)
                except ValueError:
                    torn += 1
    return torn


def _garbage_of_powerd(stage: Stage) -> float:
    stats = stage.answered_stats()
    return sum(stats["garbage"][name] for name in ("control", "data", "clock"))


def _damaged_frames(stage: Stage) -> float:
    samplers = [stream["sampler"] for stream in stage.answered_stats()["streams"]]
    return sum(sampler.get("sensors", {}).get("damaged_frames", 0) for sampler in samplers)


_KILLED = "died-of-SIGKILL"
_REFUSED = Witness("writes that the disk refused", _written_down("refused"))
_SLOW = 0.1
"""A process that is throttled may end, at the end of a run, before much time has passed."""


def _stands(victim: str, least: float, share: float) -> Witness:
    return Witness("seconds for which it stood still", None, least, share, victim)


WITNESSES: dict[tuple[str, str], Witness] = {
    ("recorder", "kill"): Witness("recorders that died of SIGKILL", _written_down(_KILLED)),
    ("recorder", "restart"): Witness("recorders that died of SIGKILL", _written_down(_KILLED), 3),
    ("recorder", "full"): Witness("recorders that failed", _written_down("failed")),
    ("recorder", "garbage"): Witness("pieces that were spoiled", _of_proxy("spoiled")),
    ("recorder and guardian", "kill"): Witness("guardians that died of SIGKILL", _written_down(_KILLED)),
    ("trainer", "kill"): Witness("trainers that died of SIGKILL", _ended_by("trainer", -signal.SIGKILL)),
    ("trainer", "restart"): Witness("trainers that died of SIGKILL", _ended_by("trainer", -signal.SIGKILL)),
    ("trainer", "garbage"): Witness("torn lines in its files of names", _torn_names),
    ("trainer", "full"): _REFUSED,
    ("powerd", "kill"): Witness("powerds that died of SIGKILL", _ended_by("powerd", -signal.SIGKILL)),
    ("powerd", "restart"): Witness("powerds that ended in order", _ended_by("powerd", 0)),
    ("powerd", "garbage"): Witness("messages that powerd could not read", _garbage_of_powerd),
    ("powerd", "full"): Witness("connections that were reset", _of_proxy("reset")),
    ("powerd with a spool", "kill"): Witness("powerds that died of SIGKILL", _ended_by("powerd", -signal.SIGKILL)),
    ("powerd's spool", "full"): _REFUSED,
    ("node", "kill"): Witness("nodes that died of SIGKILL", _ended_by("node", -signal.SIGKILL)),
    ("node", "restart"): Witness("nodes that died of SIGKILL", _ended_by("node", -signal.SIGKILL)),
    ("node", "garbage"): Witness("frames that arrived damaged", _damaged_frames),
    ("node", "full"): _stands("sampler", 0, 0.5),
    ("network", "kill"): Witness("connections that were reset", _of_proxy("reset")),
    ("network", "five-minute cut"): Witness("connections that were reset", _of_proxy("reset")),
    ("network", "restart"): Witness("connections that were reset", _of_proxy("reset")),
    ("network", "stop"): Witness("pieces that were held", _of_proxy("held")),
    ("network", "slow"): Witness("pieces that were delayed", _of_proxy("late")),
    ("network", "garbage"): Witness("pieces that were spoiled", _of_proxy("spoiled")),
    ("network", "full"): Witness("pieces that waited for bandwidth", _of_proxy("choked")),
    ("disk", "kill"): _REFUSED,
    ("disk", "restart"): _REFUSED,
    ("disk", "full"): _REFUSED,
    ("disk", "stop"): Witness("seconds for which writes hung", _written_down("hung"), _SLOW),
    ("disk", "slow"): Witness("writes that were delayed", _written_down("delayed")),
    ("disk", "garbage"): Witness("bytes of the journal that cannot be read", _damaged_journal),
    ("sensor bus", "kill"): Witness("transfers that failed", _written_down("failed-transfer")),
    ("sensor bus", "stop"): Witness("transfers that failed", _written_down("failed-transfer")),
    ("sensor bus", "restart"): Witness("chips that were reset", _written_down("reset-chip")),
    ("sensor bus", "slow"): Witness("transfers that began late", _written_down("late-transfer")),
    ("sensor bus", "garbage"): Witness("words of another chip", _written_down("foreign-word")),
} | {
    (victim, kind): _stands(victim, *least)
    for victim in ("recorder", "trainer", "powerd", "node")
    for kind, least in (("stop", (0, 0.5)), ("slow", (_SLOW, 0)))
}
