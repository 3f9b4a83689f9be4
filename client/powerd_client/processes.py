"""What each process of a run said of itself, and its marks made into phases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from powerd_client.contents import Contents
from powerd_client.gpus import each_once
from powerd_client.phases import Phases, kind_key, pair_marks
from powerd_core.marks import RECORD, SEGMENT_RECORDS, Mark

_ABOUT = ("pid", "command", "rank", "local_rank", "world_size")
"""What the run file says of a process, beside its devices."""


@dataclass(slots=True)
class _Names:
    """The documents of one process, by what they are for."""

    about: dict[str, Any] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)
    kinds: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By the process's own number: name, attributes and timing."""
    cuts: dict[int, int] = field(default_factory=dict)
    """Numbers that stand for no phase, and the kind that such a mark cuts."""
    notes: dict[tuple[int, str], str] = field(default_factory=dict)
    """By what tells them apart: the journal and the names' file may both hold one."""
    closed: bool = False

    def take(self, document: dict[str, Any]) -> None:
        if "note" in document:
            self.notes[document["t_ns"], document["note"]] = document["level"]
        elif "closed" in document:
            self.closed = True
        elif "devices" in document:
            self.devices += [d for d in document["devices"] if isinstance(d, dict)]
        elif "cuts" in document:
            self.cuts[document["kind"]] = document["cuts"]
        elif "kind" in document:
            self.kinds[document["kind"]] = {key: document[key] for key in ("name", "attributes", "timing")}
        elif not self.about:
            self.about = {key: document[key] for key in _ABOUT if key in document}

    @property
    def timings(self) -> dict[int, str]:
        """By number of a kind, or of what cuts one."""
        own = {number: str(entry["timing"]) for number, entry in self.kinds.items()}
        return own | {number: own.get(cut, "") for number, cut in self.cuts.items()}


def phases_of(
    contents: Contents, progress: Callable[[float], None] = lambda share: None
) -> tuple[Phases, list[dict[str, Any]], list[dict[str, Any]]]:
    """The phases of all processes, the kinds that they are of, the processes. What does not fit becomes a message."""
    phases, kinds, processes = Phases(), dict[str, tuple[int, dict[str, Any]]](), []
    total, done = sum(_bytes(contents, token) for token in contents.marks) or 1, 0
    for token in sorted({*contents.names, *contents.marks}):
        names = _Names(devices=contents.devices.devices_of(token))
        for document in contents.names.get(token, []):
            names.take(document)
        for (t_ns, text), level in names.notes.items():
            contents.note(level, text, t_ns)
        process = names.about
        if known := each_once(names.devices):
            process["devices"] = known
        if "rank" in process and not names.closed:
            text = f"rank {process['rank']} (process {process.get('pid')}) ended without closing its Meter"
            contents.note("warning", text, contents.t_stop_ns)
        processes.append(process)
        numbers = {
            number: kinds.setdefault(kind_key(entry), (len(kinds), entry))[0] for number, entry in names.kinds.items()
        }
        marks = contents.devices.marks(token, contents.marks.get(token, {}), names.timings)
        pair_marks(
            phases,
            _counted(marks, progress, done, total),
            process=len(processes) - 1,
            kinds=numbers,
            names={number: entry["name"] for number, entry in names.kinds.items()},
            last_ns=contents.t_stop_ns if contents.complete else None,
            cuts=names.cuts,
        )
        done += _bytes(contents, token)
    if contents.devices.unresolved:
        text = f"{contents.devices.unresolved} edges of phases timed by a device have the host's time only"
        contents.note("warning", text)
    phases.sort()
    for t_ns, text in phases.problems:
        contents.note("warning", text, t_ns)
    return phases, [entry for _, entry in kinds.values()], processes


def _bytes(contents: Contents, token: int) -> int:
    return sum(map(len, contents.marks.get(token, {}).values()))


def _counted(marks: Iterable[Mark], progress: Callable[[float], None], before: int, total: int) -> Iterator[Mark]:
    """The marks; now and then ``progress`` hears the share of them, ``before`` and ``total`` in bytes."""
    for number, mark in enumerate(marks):
        if number % SEGMENT_RECORDS == 0:
            progress(min((before + number * RECORD.size) / total, 1.0))
        yield mark
