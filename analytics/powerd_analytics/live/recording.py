"""What goes on on this machine: runs that are being recorded, the powerds that answer, and the phases of a run.

All of it is read from /proc and from the files of the run's journal (docs/journal.md): nobody is asked.
"""

from __future__ import annotations

import contextlib
import time
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from powerd_client.journal import MarkTail
from powerd_client.phase import BASELINE
from powerd_client.runfile import open_run
from powerd_core.errors import RunFileError
from powerd_core.marks import Mark

DEFAULT_URL = "tcp://127.0.0.1:7360"
_SUFFIX = ".journal"


def runs_here() -> list[Path]:
    """Run files that are being recorded by processes whose open files we may see, the newest first."""
    journals = set()
    for process in _processes():
        with contextlib.suppress(OSError):
            for entry in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = entry.readlink()
                    if target.name == "journal.bin" and target.parent.name.endswith(_SUFFIX):
                        journals.add(target.parent)
    newest = sorted(journals, key=_age_s)
    return [journal.with_name(journal.name.removesuffix(_SUFFIX)) for journal in newest]


def powerds_here() -> list[str]:
    """Addresses of the powerds that run on this machine, as far as their command lines tell; those that were started
    last come first: a recorder's own is among them."""
    urls = []
    for process in sorted(_processes(), key=lambda path: -int(path.name)):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "run" in words and any(w == "powerd_daemon" or w.endswith("/powerd") for w in words):
                urls.append(_listens(words, process))
    return list(dict.fromkeys(urls))


def _listens(words: list[str], process: Path) -> str:
    options = dict(pairwise(words)) | dict(w.split("=", 1) for w in words if "=" in w)
    listen = options.get("--listen")
    if listen is None and "--config" in options:
        with contextlib.suppress(OSError, ValueError):
            # Its relative paths are from where it runs, and seen as it sees them.
            path = (process / "cwd").readlink() / options["--config"]
            listen = tomllib.loads(path.read_text()).get("server", {}).get("listen")
    return str(listen or DEFAULT_URL).replace("*", "127.0.0.1").replace("0.0.0.0", "127.0.0.1")


def _processes() -> list[Path]:
    return [path for path in Path("/proc").iterdir() if path.name.isdigit()]


def _age_s(journal: Path) -> float:
    """How long ago a recording began: its lock is made first and never written."""
    with contextlib.suppress(OSError):
        return time.time() - (journal / "lock").stat().st_mtime
    return 0.0


@dataclass(slots=True)
class _Process:
    """One process's phases as far as its marks have been read."""

    about: dict[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    cuts: dict[int, int] = field(default_factory=dict)
    """Kinds whose end cuts off the innermost open phase of another kind."""
    open: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
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
        stack = self.open[mark.thread]
        self.latest = max(self.latest, (mark.t_host_ns, mark.thread))
        kind = self.cuts.get(mark.kind, mark.kind)
        if mark.is_begin:
            stack.append(mark.kind)
        elif kind in stack:
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
        self.journal = self.run.with_name(self.run.name + _SUFFIX)
        if not (self.journal / "journal.bin").exists():
            if run.exists():
                open_run(run).close()  # raises for what is no run file
                raise RunFileError(f"{run} has ended: `joules tables` shows it")
            raise RunFileError(f"{run} is not being recorded here")
        self._begin_s = time.monotonic() - _age_s(self.journal)
        self._tail = MarkTail(self.journal, consume=False)
        self._processes: defaultdict[int, _Process] = defaultdict(_Process)

    @property
    def is_over(self) -> bool:
        return not self.journal.exists()

    @property
    def elapsed_s(self) -> float:
        """Since the recording was begun."""
        return time.monotonic() - self._begin_s

    def current(self) -> list[CurrentPhase]:
        """Where the processes are now, one entry each, ranks in order."""
        with contextlib.suppress(OSError):  # the run may end at any moment, and its journal with it
            names, pieces = self._tail.read()
            for document in names:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._processes[cast("int", document["process"])].describe(document)
            for piece in pieces:
                for mark in piece:
                    self._processes[piece.process].take(mark)
        phases = []
        for process in sorted(self._processes.values(), key=lambda p: (p.about.get("rank", 0), p.about.get("pid", 0))):
            stack, about = process.open[process.latest[1]], process.about
            if not stack and set(process.names.values()) == {BASELINE}:
                continue  # `joules record` itself, after its baseline
            rank = f"rank {about['rank']}" if "rank" in about else f"pid {about.get('pid', '?')}"
            names_of = tuple(process.names.get(kind, "?") for kind in stack)
            phases.append(CurrentPhase(rank, names_of, process.ended))
        return phases
