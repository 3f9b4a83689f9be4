"""What goes on on this machine: runs that are being recorded, the powerds that answer, and the phases of a run.

All of it is read from /proc and from the files of the run's journal (docs/journal.md): nobody is asked.
"""

from __future__ import annotations

import contextlib
import os
import time
import tomllib
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from powerd_client.journal import MarkTail
from powerd_client.phase import BASELINE
from powerd_client.runfile import open_run
from powerd_core.errors import RunFileError
from powerd_core.marks import Mark

DEFAULT_URL = "tcp://127.0.0.1:7360"
_SUFFIX = ".journal"


def runs_here() -> dict[Path, set[int]]:
    """Run files that are being recorded by processes whose open files we may see, the newest first, with these
    processes."""
    runs: dict[Path, set[int]] = {}
    for process in _processes():
        with contextlib.suppress(OSError):
            for entry in os.scandir(process / "fd"):
                with contextlib.suppress(OSError):
                    target = Path(entry.path).readlink()
                    if target.name == "journal.bin" and target.parent.name.endswith(_SUFFIX):
                        run = target.parent.with_name(target.parent.name.removesuffix(_SUFFIX))
                        runs.setdefault(run, set()).add(int(process.name))
    return dict(sorted(runs.items(), key=lambda item: _began_s(journal_of(item[0])), reverse=True))


def powerds_here(recorders: Collection[int] = ()) -> list[str]:
    """Addresses of the powerds that run on this machine, as far as their command lines tell; first those that one of
    the processes ``recorders`` has started."""
    is_own: dict[str, bool] = {}
    for process in _processes():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "run" in words and any(w == "powerd_daemon" or w.endswith("/powerd") for w in words):
                is_own[_listens(words, process)] = _value(words, "--parent-pid") in set(map(str, recorders))
    return sorted(is_own, key=lambda url: not is_own[url])


def _listens(words: list[str], process: Path) -> str:
    listen = _value(words, "--listen")
    config = _value(words, "--config")
    if listen is None and config is not None:
        with contextlib.suppress(OSError, ValueError):
            # Its relative paths are from where it runs, and seen as it sees them.
            path = (process / "cwd").readlink() / config
            listen = tomllib.loads(path.read_text()).get("server", {}).get("listen")
    return str(listen or DEFAULT_URL).replace("*", "127.0.0.1").replace("0.0.0.0", "127.0.0.1")


def _value(words: list[str], option: str) -> str | None:
    for i, word in enumerate(words):
        if word == option and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(option + "="):
            return word.partition("=")[2]
    return None


def _processes() -> list[Path]:
    return [path for path in Path("/proc").iterdir() if path.name.isdigit()]


def journal_of(run: Path) -> Path:
    """The journal's directory of a run."""
    return run.with_name(run.name + _SUFFIX)


@dataclass(slots=True)
class _Process:
    """One process's phases as far as its marks have been read."""

    about: dict[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    cuts: dict[int, int] = field(default_factory=dict)
    """Kinds whose end cuts off the innermost open phase of another kind."""
    open: dict[int, list[int]] = field(default_factory=dict)
    """By thread: kinds of the phases that are open, outermost first."""
    latest: tuple[int, int] = (0, 0)
    """Time and thread of the latest mark."""
    ended: int = 0

    def describe(self, document: dict[str, Any]) -> None:
        if "cuts" in document:
            self.cuts[int(document["kind"])] = int(document["cuts"])
        elif "kind" in document:
            self.names[int(document["kind"])] = str(document["name"])
        elif "pid" in document:
            self.about = document

    def take(self, mark: Mark) -> None:
        stack = self.open.setdefault(mark.thread, [])
        self.latest = max(self.latest, (mark.t_host_ns, mark.thread))
        if mark.is_begin:
            stack.append(mark.kind)
            return
        kind = self.cuts.get(mark.kind, mark.kind)
        if kind in stack:
            self.ended += 1
            del stack[len(stack) - 1 - stack[::-1].index(kind) :]


@dataclass(frozen=True, slots=True)
class CurrentPhase:
    """Where a process of a run is."""

    process: str
    path: tuple[str, ...]
    """Open phases of the thread that marked last, outermost first; empty between phases."""
    ended: int
    """Phases that have ended since this began to look."""


class RunPhases:
    """Follows the marks of a run that is being recorded. The recorder deletes segments that it has copied: phases that
    were begun in those are not known, and what is inside them is shown without them."""

    def __init__(self, run: Path) -> None:
        """Raises `RunFileError` when no such run is being recorded."""
        self.run = run.absolute()
        self.journal = journal_of(self.run)
        if not (self.journal / "journal.bin").exists():
            if run.exists():
                open_run(run).close()  # raises for what is no run file
            state = "has ended: `joules tables` shows it" if run.exists() else "is not being recorded here"
            raise RunFileError(f"{run} {state}")
        self._begin_s = _began_s(self.journal)
        self._tail = MarkTail(self.journal, consume=False)
        self._processes: defaultdict[int, _Process] = defaultdict(_Process)

    @property
    def is_over(self) -> bool:
        return not self.journal.exists()

    @property
    def elapsed_s(self) -> float:
        """Since the recording was begun."""
        return time.monotonic() - self._begin_s

    def update(self) -> None:
        """Read what has been marked since the last call."""
        with contextlib.suppress(OSError):  # the run may end at any moment, and its journal with it
            names, pieces = self._tail.read()
            for document in names:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._processes[cast("int", document["process"])].describe(document)
            for piece in pieces:
                for mark in piece:
                    self._processes[piece.process].take(mark)

    def current(self) -> list[CurrentPhase]:
        """One entry a process, ranks in order."""
        phases = []
        for process in sorted(self._processes.values(), key=lambda p: (p.about.get("rank", 0), p.about.get("pid", 0))):
            stack = process.open.get(process.latest[1], [])
            if not stack and set(process.names.values()) == {BASELINE}:
                continue  # `joules record` itself, after its baseline
            about = process.about
            rank = f"rank {about['rank']}" if "rank" in about else f"pid {about.get('pid', '?')}"
            names = tuple(process.names.get(kind, "?") for kind in stack)
            phases.append(CurrentPhase(rank, names, process.ended))
        return phases


def _began_s(journal: Path) -> float:
    """When a recording began, on the monotonic clock: its lock is made first and never written."""
    for path in (journal / "lock", journal):
        with contextlib.suppress(OSError):
            return time.monotonic() - max(time.time() - path.stat().st_mtime, 0.0)
    return time.monotonic()
