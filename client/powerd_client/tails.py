"""What training processes leave in a journal's directory, followed while they write it: marks, frames beside them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from powerd_core.marks import RECORD, Marks, written
from powerd_core.serde import check_json
from powerd_core.wire import Event, FrameReader, Garbage

_TAIL_RECORDS = 4096


@dataclass(slots=True)
class Copied:
    """What of the marks a journal already holds."""

    marks: dict[int, list[list[int]]] = field(default_factory=dict)
    """By process: begin and end of stretches of record indices, in the order in which they were written."""
    documents: dict[int, int] = field(default_factory=dict)
    """By process: how many lines of its names."""

    def add(self, piece: Marks) -> None:
        stretches = self.marks.setdefault(piece.process, [])
        end = piece.first + len(piece)
        for stretch in reversed(stretches):
            if stretch[1] == piece.first:
                stretch[1] = end
                return
        stretches.append([piece.first, end])

    def records(self, process: int, base: int, count: int) -> int:
        """How many records of the segment that begins at index ``base`` were copied: they are its first ones."""
        ends = [end for begin, end in self.marks.get(process, []) if begin < base + count and end > base]
        return min(max(ends, default=base) - base, count)


class MarkTail:
    """Follows the marks of every process under a journal directory.

    `read` gives what is new since the last call: descriptions of processes and kinds as dicts, and raw marks. With
    ``consume`` a segment that is full and has been read is deleted by the next call, when what was read has surely been
    written. What was ``copied`` before is not given again.
    """

    def __init__(self, journal: Path, *, consume: bool, copied: Copied | None = None) -> None:
        self._journal = journal
        self._consume = consume
        self._copied = copied or Copied()
        self._done: dict[Path, int] = {}
        self._spent: list[Path] = []

    def read(self, *, final: bool = False) -> tuple[list[dict[str, object]], list[Marks]]:
        """New descriptions (each with its ``process``) and new marks, in the order in which they were written.

        A record that another thread is still writing holds back those behind it, unless ``final`` says that nobody
        writes.
        """
        for path in self._spent:
            path.unlink(missing_ok=True)
        self._spent.clear()
        names: list[dict[str, object]] = []
        marks: list[Marks] = []
        # Marks first: a kind is always described before a mark uses it.
        for path in sorted(self._journal.glob("marks-*.bin")):
            marks += self._read_segment(path, final)
        for path in sorted(self._journal.glob("marks-*.names")):
            names += self._read_names(path)
        return names, marks

    def _read_segment(self, path: Path, final: bool) -> list[Marks]:
        _, token, number = path.stem.split("-")
        size, found = RECORD.size, []
        with path.open("rb") as file:
            records = os.fstat(file.fileno()).st_size // size
            base = int(number) * records
            at = self._done[path] if path in self._done else self._copied.records(int(token, 16), base, records)
            while at < records:
                file.seek(at * size)
                data = file.read(_TAIL_RECORDS * size)
                end = written(data)
                if end:
                    found.append(Marks(int(token, 16), base + at, data[: end * size]))
                    at += end
                elif final:
                    at += 1
                if end < len(data) // size and not final:
                    break
        self._done[path] = at
        if self._consume and at == records:
            self._spent.append(path)
        return found

    def _read_names(self, path: Path) -> list[dict[str, object]]:
        process = int(path.stem.split("-")[1], 16)
        with path.open("rb") as file:
            file.seek(self._done.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._done[path] = self._done.get(path, 0) + len(whole)
        found = []
        for text in whole.splitlines():
            try:
                # An attribute that is no finite number stays one that can be written: as the text it was.
                document = json.loads(text, parse_constant=str)
                check_json(document)
            except (ValueError, RecursionError):
                continue  # a torn line of a process that was killed while writing it
            if not isinstance(document, dict):
                continue
            if self._copied.documents.get(process, 0):
                self._copied.documents[process] -= 1
            else:
                found.append({**document, "process": process})
        return found


class FrameTail:
    """Follows the frames that processes leave beside their marks (`powerd_client.framefile`).

    With ``consume`` a piece that is complete and has been read is deleted by the next call. A recorder that was started
    anew reads again what is still there: each of these frames says the same however often it is said.
    """

    def __init__(self, journal: Path, *, consume: bool) -> None:
        self._journal = journal
        self._consume = consume
        self._readers: dict[Path, tuple[FrameReader, int]] = {}
        self._spent: list[Path] = []

    def read(self) -> list[tuple[Event | Garbage, bytes]]:
        """New frames, each with its bytes (none for garbage)."""
        for path in self._spent:
            path.unlink(missing_ok=True)
            self._readers.pop(path, None)
        self._spent.clear()
        found: list[tuple[Event | Garbage, bytes]] = []
        paths = sorted(self._journal.glob("frames-*.bin"))
        for path, following in zip_longest(paths, paths[1:]):
            reader, at = self._readers.get(path) or (FrameReader(), 0)
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            found += reader.feed(data)
            self._readers[path] = reader, at + len(data)
            is_complete = following is not None and following.name.rpartition("-")[0] == path.name.rpartition("-")[0]
            if self._consume and is_complete:
                self._spent.append(path)
        return found
