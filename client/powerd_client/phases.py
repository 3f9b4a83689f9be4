"""Phases out of marks: which begin belongs to which end, and what to do when one is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from powerd_client.fileshape import FARTHEST_NS
from powerd_core.marks import Mark


@dataclass(slots=True)
class Phases:
    """The phases of a run as columns, in the order of their beginnings; docs/run-file.md says what each means."""

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

    def sort(self) -> None:
        """Order by beginning (of those that begin together, the longer first)."""
        order = sorted(range(len(self.begin_ns)), key=lambda i: (self.begin_ns[i], -self.end_ns[i], i))
        place = {old: new for new, old in enumerate(order)}
        for name in ("begin_ns", "end_ns", "kind", "process", "cut", "begin_bound_ns", "end_bound_ns"):
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in order])
        self.parent = [place[self.parent[i]] if self.parent[i] >= 0 else -1 for i in order]


def pair_marks(
    phases: Phases,
    marks: Iterable[Mark],
    *,
    process: int,
    kinds: Mapping[int, int],
    names: Mapping[int, str],
    last_ns: int | None = None,
    cuts: Mapping[int, int] = MappingProxyType({}),
) -> None:
    """Add the phases of one process to ``phases``.

    ``kinds`` maps the process's own kind numbers to those of the run, ``names`` to names for messages. Phases nest
    within each thread. An end that fits no open phase is reported and dropped; ending an outer phase cuts those still
    open inside it; what is open at the end is cut at ``last_ns``, and reported (default: at the process's last mark,
    which needs no report: then the process ended before the run). ``cuts`` maps
    numbers that stand for no phase to the kind that such a mark cuts: its innermost open phase, and all inside.
    """
    stacks: dict[int, list[int]] = {}
    reached: dict[int, int] = {}
    seen: set[str] = set()
    latest = 0

    def report(t_ns: int, text: str) -> None:
        if text not in seen:
            seen.add(text)
            phases.problems.append((t_ns, text))

    def open_phase(mark: Mark, stack: list[int]) -> None:
        phases.begin_ns.append(mark.t_host_ns)
        phases.end_ns.append(mark.t_host_ns)
        phases.kind.append(kinds[mark.kind])
        phases.parent.append(stack[-1] if stack else -1)
        phases.process.append(process)
        phases.cut.append(1)
        phases.begin_bound_ns.append(mark.bound_ns)
        phases.end_bound_ns.append(mark.bound_ns)
        stack.append(len(phases.begin_ns) - 1)

    def end_phase(index: int, mark: Mark) -> None:
        phases.end_ns[index], phases.end_bound_ns[index] = mark.t_host_ns, mark.bound_ns

    def close_phase(mark: Mark, stack: list[int]) -> None:
        kind = kinds[mark.kind]
        depth = next((i for i in range(len(stack) - 1, -1, -1) if phases.kind[stack[i]] == kind), None)
        if depth is None:
            report(mark.t_host_ns, f"phase {names[mark.kind]!r} was ended without being begun in its thread")
            return
        for index in stack[depth + 1 :]:
            end_phase(index, mark)
            report(mark.t_host_ns, f"a phase inside {names[mark.kind]!r} was not ended before it")
        end_phase(stack[depth], mark)
        phases.cut[stack[depth]] = 0
        del stack[depth:]

    def cut_phase(mark: Mark, stack: list[int]) -> None:
        kind = kinds.get(cuts[mark.kind])
        depth = next((i for i in range(len(stack) - 1, -1, -1) if phases.kind[stack[i]] == kind), len(stack))
        for index in stack[depth:]:
            end_phase(index, mark)
        del stack[depth:]

    for mark in marks:
        if abs(mark.t_host_ns) > FARTHEST_NS:
            report(0, "marks at times that cannot be")
            continue
        latest = max(latest, mark.t_host_ns)
        if mark.kind not in kinds and mark.kind not in cuts:
            report(mark.t_host_ns, f"marks of phase kind {mark.kind}, whose name was lost")
            continue
        stack = stacks.setdefault(mark.thread, [])
        if stack and mark.t_host_ns < reached[mark.thread]:
            # Whatever damaged it: a phase that ends before it begins, or begins before the one around it, is none.
            report(mark.t_host_ns, "a thread's marks go back in time")
            late_ns = reached[mark.thread] - mark.t_host_ns if mark.bound_ns > 0 else 0
            mark = replace(mark, t_host_ns=reached[mark.thread], bound_ns=mark.bound_ns + late_ns)  # noqa: PLW2901
        reached[mark.thread] = mark.t_host_ns
        if mark.kind in cuts:
            cut_phase(mark, stack)
        elif mark.is_begin:
            open_phase(mark, stack)
        else:
            close_phase(mark, stack)
    end = max(latest, last_ns or 0)
    by_kind = {kinds[number]: name for number, name in names.items() if number in kinds}
    for stack in stacks.values():
        for index in stack:
            if last_ns is not None:
                report(end, f"phase {by_kind[phases.kind[index]]!r} was not ended: it is cut at the end of the run")
            phases.end_ns[index] = end
            if phases.begin_bound_ns[index]:  # timed by a device, which never said when it came to the end
                phases.end_bound_ns[index] = -1


def kind_key(document: Mapping[str, Any]) -> str:
    """What makes two kinds of two processes one kind of the run."""
    return json.dumps([document["name"], document["attributes"], document["timing"]], sort_keys=True)
