"""Phases out of marks: which begin belongs to which end, and what to do when one is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from powerd_core.marks import Mark

_ABOUT = ("pid", "command", "rank", "local_rank", "world_size")
"""What the run file says of a process, beside its devices."""


@dataclass(slots=True)
class ProcessNames:
    """What a training process said beside its marks (docs/reference/journal.md), by what it is for."""

    about: dict[str, Any] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)
    kinds: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By the process's own number: name, attributes and timing."""
    cuts: dict[int, int] = field(default_factory=dict)
    """Numbers that stand for no phase, and the kind that such a mark cuts."""
    notes: dict[tuple[int, str], str] = field(default_factory=dict)
    """Level by time and text: the journal and the names' file may both hold one."""
    closed: bool = False

    def take(self, document: dict[str, Any]) -> None:
        """The next document. Raises KeyError, TypeError or ValueError for what is none."""
        if "note" in document:
            self.notes[int(document["t_ns"]), str(document["note"])] = str(document["level"])
        elif "closed" in document:
            self.closed = True
        elif "devices" in document:
            self.devices += [d for d in document["devices"] if isinstance(d, dict)]
        elif "cuts" in document:
            self.cuts[int(document["kind"])] = int(document["cuts"])
        elif "kind" in document:
            self.kinds[int(document["kind"])] = {
                "name": str(document["name"]),
                "attributes": dict(document["attributes"]),
                "timing": str(document["timing"]),
            }
        elif not self.about:
            self.about = {key: document[key] for key in _ABOUT if key in document}

    @property
    def timings(self) -> dict[int, str]:
        """By number of a kind, or of what cuts one."""
        own = {number: entry["timing"] for number, entry in self.kinds.items()}
        return own | {number: own.get(cut, "") for number, cut in self.cuts.items()}


@dataclass(slots=True)
class PhaseSpans:
    """The phases of a run as columns, by their beginnings; docs/reference/run-file.md says what each means."""

    begin_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    process: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    begin_bound_ns: list[int] = field(default_factory=list)
    end_bound_ns: list[int] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)
    """Time and text of everything that did not fit, at most one text a kind of problem and phase."""

    def begin(self, mark: Mark, kind: int, parent: int, process: int) -> int:
        """Add a phase that begins at a mark, and is cut until `end` is called for it. Returns its index."""
        self.begin_ns.append(mark.t_host_ns)
        self.end_ns.append(mark.t_host_ns)
        self.kind.append(kind)
        self.parent.append(parent)
        self.process.append(process)
        self.cut.append(1)
        self.begin_bound_ns.append(mark.bound_ns)
        self.end_bound_ns.append(mark.bound_ns)
        return len(self.begin_ns) - 1

    def end(self, index: int, mark: Mark, *, is_cut: bool) -> None:
        """End a phase that has begun at a mark."""
        self.end_ns[index] = mark.t_host_ns
        self.end_bound_ns[index] = mark.bound_ns
        self.cut[index] = int(is_cut)

    def sort(self) -> None:
        """Order by beginning (of those that begin together, the longer first)."""
        order = sorted(range(len(self.begin_ns)), key=lambda i: (self.begin_ns[i], -self.end_ns[i], i))
        place = {old: new for new, old in enumerate(order)} | {-1: -1}
        self.parent = [place[parent] for parent in self.parent]
        for name in ("begin_ns", "end_ns", "kind", "parent", "process", "cut", "begin_bound_ns", "end_bound_ns"):
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in order])


def pair_marks(
    spans: PhaseSpans,
    marks: Iterable[Mark],
    *,
    process: int,
    kinds: Mapping[int, int],
    names: Mapping[int, str],
    last_ns: int | None = None,
    cuts: Mapping[int, int],
) -> None:
    """Add the phases of one process to ``spans``, from its marks in the order in which they were written.

    ``kinds``    the process's own kind numbers, and those of the run
    ``names``    of the process's kinds, for messages
    ``last_ns``  where what is still open is cut, with a report; None: without one at the process's last mark, as the
                 process ended before the run
    ``cuts``     numbers that stand for no phase, and the kind that such a mark cuts: its innermost open phase, and all
                 inside

    Phases nest within each thread. An end that fits no open phase is reported and dropped. Ending an outer phase cuts
    those that are still open inside it.
    """
    pairing = _Pairing(spans, process, kinds, names, cuts)
    for mark in marks:
        pairing.take(mark)
    pairing.finish(last_ns)


@dataclass(slots=True)
class _Thread:
    open: list[int] = field(default_factory=list)
    """Indices of its open phases, the outermost first."""
    latest_ns: int = 0


@dataclass(slots=True)
class _Pairing:
    """What `pair_marks` has come to."""

    spans: PhaseSpans
    process: int
    kinds: Mapping[int, int]
    names: Mapping[int, str]
    cuts: Mapping[int, int]
    threads: defaultdict[int, _Thread] = field(default_factory=lambda: defaultdict(_Thread))
    latest_ns: int = 0
    reported: set[str] = field(default_factory=set)

    def report(self, t_ns: int, text: str) -> None:
        if text not in self.reported:
            self.reported.add(text)
            self.spans.problems.append((t_ns, text))

    def take(self, mark: Mark) -> None:
        self.latest_ns = max(self.latest_ns, mark.t_host_ns)
        if mark.kind not in self.kinds and mark.kind not in self.cuts:
            self.report(mark.t_host_ns, f"marks of phase kind {mark.kind}, whose name was lost")
            return
        thread = self.threads[mark.thread]
        if thread.open and mark.t_host_ns < thread.latest_ns:
            # A phase cannot end before it begins, nor begin before the one around it: the mark moves to where it could
            # be at the earliest. The bound of a mark that a device has timed grows by as much.
            self.report(mark.t_host_ns, "a thread's marks go back in time")
            moved_ns = thread.latest_ns - mark.t_host_ns if mark.bound_ns > 0 else 0
            mark = replace(mark, t_host_ns=thread.latest_ns, bound_ns=mark.bound_ns + moved_ns)
        thread.latest_ns = mark.t_host_ns
        if mark.kind not in self.cuts and mark.is_begin:
            parent = thread.open[-1] if thread.open else -1
            thread.open.append(self.spans.begin(mark, self.kinds[mark.kind], parent, self.process))
        else:
            self.end(mark, thread.open)

    def end(self, mark: Mark, open_phases: list[int]) -> None:
        """End, or cut, the innermost open phase of the mark's kind, and cut those inside it."""
        is_cut = mark.kind in self.cuts
        kind = self.kinds.get(self.cuts.get(mark.kind, mark.kind))
        depth = next((d for d in reversed(range(len(open_phases))) if self.spans.kind[open_phases[d]] == kind), None)
        if depth is None:
            if not is_cut:
                text = f"phase {self.names[mark.kind]!r} was ended without being begun in its thread"
                self.report(mark.t_host_ns, text)
            return
        if not is_cut and len(open_phases) > depth + 1:
            self.report(mark.t_host_ns, f"a phase inside {self.names[mark.kind]!r} was not ended before it")
        while len(open_phases) > depth:
            index = open_phases.pop()
            self.spans.end(index, mark, is_cut=is_cut or len(open_phases) > depth)

    def finish(self, last_ns: int | None) -> None:
        end_ns = max(self.latest_ns, last_ns or 0)
        names = {self.kinds[number]: name for number, name in self.names.items() if number in self.kinds}
        for index in (index for thread in self.threads.values() for index in thread.open):
            if last_ns is not None:
                name = names[self.spans.kind[index]]
                self.report(end_ns, f"phase {name!r} was not ended: it is cut at the end of the run")
            self.spans.end_ns[index] = end_ns
            if self.spans.begin_bound_ns[index]:  # timed by a device, which never said when it came to the end
                self.spans.end_bound_ns[index] = -1
