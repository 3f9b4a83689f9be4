"""What goes on on this machine: runs that are being recorded, the powerds that answer, and the phases of a run.

All of it is read from /proc and from the files of the run's journal (docs/journal.md): nobody is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerd_client.baseline import BASELINE
from powerd_client.runfile import open_run
from powerd_core.errors import RunFileError
from powerd_core.marks import RECORD, written

DEFAULT_URL = "tcp://127.0.0.1:7360"
_SUFFIX = ".journal"


def runs_here() -> dict[Path, set[int]]:
    """Run files that are being recorded by processes whose open files we may see, the newest first, with these
    processes."""
    found: dict[Path, set[int]] = {}
    for process in _processes():
        with contextlib.suppress(OSError):
            for entry in os.scandir(process / "fd"):
                with contextlib.suppress(OSError):
                    target = Path(entry.path).readlink()
                    if target.name == "journal.bin" and target.parent.name.endswith(_SUFFIX):
                        found.setdefault(_run_of(target.parent), set()).add(int(process.name))
    return dict(sorted(found.items(), key=lambda item: _began_s(journal_of(item[0])), reverse=True))


def powerds_here(recorders: Collection[int] = ()) -> list[str]:
    """Addresses of the powerds that run on this machine, as far as their command lines tell; first those that one of
    the processes ``recorders`` has started."""
    found: dict[str, bool] = {}
    for process in _processes():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "run" in words and any(w == "powerd_daemon" or w.endswith("/powerd") for w in words):
                found[_listens(words, process)] = _value(words, "--parent-pid") in set(map(str, recorders))
    return sorted(found, key=lambda url: not found[url])


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


def _run_of(journal: Path) -> Path:
    return journal.with_name(journal.name.removesuffix(_SUFFIX))


@dataclass(slots=True)
class _Process:
    """One process's marks as far as they have been read."""

    about: dict[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    cuts: dict[int, int] = field(default_factory=dict)
    """Kinds whose end cuts off the innermost open phase of another kind."""
    names_at: int = 0
    segment: int = 0
    record: int = 0
    open: dict[int, list[int]] = field(default_factory=dict)
    """By thread: kinds of the phases that are open, outermost first."""
    latest: tuple[int, int] = (0, 0)
    """Time and thread of the latest mark."""
    ended: int = 0


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
        self._processes: dict[str, _Process] = {}

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
            for path in sorted(self.journal.glob("marks-*.names")):
                process = self._processes.setdefault(path.stem, _Process())
                _read_names(process, path)
                _read_marks(process, self.journal, path.stem)

    def current(self) -> list[CurrentPhase]:
        """One entry a process, ranks in order."""
        found = []
        for process in sorted(self._processes.values(), key=lambda p: (p.about.get("rank", 0), p.about.get("pid", 0))):
            stack = process.open.get(process.latest[1], [])
            if not stack and set(process.names.values()) == {BASELINE}:
                continue  # `joules record` itself, after its baseline
            rank = (
                f"rank {process.about['rank']}" if "rank" in process.about else f"pid {process.about.get('pid', '?')}"
            )
            names = tuple(process.names.get(kind, "?") for kind in stack)
            found.append(CurrentPhase(rank, names, process.ended))
        return found


def _began_s(journal: Path) -> float:
    """When a recording began, on the monotonic clock: its lock is made first and never written."""
    for made in (journal / "lock", journal):
        with contextlib.suppress(OSError):
            return time.monotonic() - max(time.time() - made.stat().st_mtime, 0.0)
    return time.monotonic()


def _read_names(process: _Process, path: Path) -> None:
    with path.open("rb") as file:
        file.seek(process.names_at)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    process.names_at += len(whole)
    for line in whole.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            document = json.loads(line)
            if "cuts" in document:
                process.cuts[int(document["kind"])] = int(document["cuts"])
            elif "kind" in document:
                process.names[int(document["kind"])] = str(document["name"])
            elif "process" in document:
                process.about |= document


def _read_marks(process: _Process, journal: Path, stem: str) -> None:
    numbers = sorted(int(p.stem.rpartition("-")[2]) for p in journal.glob(f"{stem}-*.bin"))
    for number in (n for n in numbers if n >= process.segment):
        if number > process.segment:
            process.segment, process.record = number, 0
        with (journal / f"{stem}-{number:06d}.bin").open("rb") as file:
            file.seek(process.record * RECORD.size)
            data = file.read()
        end = written(data)
        process.record += end
        for code, thread, t_ns in RECORD.iter_unpack(data[: end * RECORD.size]):
            _take(process, code, thread, t_ns)


def _take(process: _Process, code: int, thread: int, t_ns: int) -> None:
    stack = process.open.setdefault(thread, [])
    process.latest = max(process.latest, (t_ns, thread))
    if code >= 0:
        stack.append(code)
        return
    kind = process.cuts.get(~code, ~code)
    if kind in stack:
        process.ended += 1
        del stack[len(stack) - 1 - stack[::-1].index(kind) :]
