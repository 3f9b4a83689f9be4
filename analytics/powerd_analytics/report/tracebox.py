"""Traces as the page holds them: what the template prints around each, and what the script draws from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from powerd_analytics.energy.reasons import digits, seconds
from powerd_analytics.report.packing import Packed
from powerd_analytics.report.traces import Trace, TraceLine, TracePhases
from powerd_core.text import printable

AROUND = 6
"""Colour of phases that have none of their own."""


@dataclass(frozen=True, slots=True)
class Block:
    """A column's text under its id in the page."""

    id: str
    text: str


@dataclass(slots=True)
class Blocks:
    """All columns of a page."""

    made: list[Block] = field(default_factory=list)

    def add(self, packed: Packed) -> dict[str, Any]:
        """What the script needs to find and unpack a column."""
        name = f"data-{len(self.made)}"
        self.made.append(Block(name, packed.text))
        return {"id": name, "n": packed.n, "planes": packed.planes}


@dataclass(frozen=True, slots=True)
class TraceBox:
    """One trace for the template: strings for people, made printable."""

    box: str
    heading: str
    provenance: str
    lines: tuple[str, ...]
    with_phases: bool
    has_sum: bool
    text: str
    note: str


def run_document(
    name: str,
    run_name: str,
    traces: Sequence[Trace],
    phases: TracePhases | None,
    colours: Mapping[str, int],
    blocks: Blocks,
) -> tuple[list[TraceBox], dict[str, Any]]:
    """The boxes of a run's traces, and the document that the script draws them from."""
    boxes, specs = [], []
    for k, trace in enumerate(traces):
        box = f"trace-{name}-{k}"
        boxes.append(_box(box, run_name, trace, phases))
        specs.append({
            "box": box, "length_us": trace.length_us, "gaps": [list(gap) for gap in trace.gaps],
            "lines": [_line(line, blocks) for line in trace.lines],
        })  # fmt: skip
    if phases is None or not traces:
        return boxes, {"traces": specs, "phases": None}
    document = {
        "names": [printable(n) for n in phases.names],
        "details": [printable(d) for d in phases.details],
        "colours": [colours.get(n, AROUND) for n in phases.names],
        "columns": [blocks.add(c) for c in phases.columns],
    }
    return boxes, {"traces": specs, "phases": document}


def _line(line: TraceLine, blocks: Blocks) -> dict[str, Any]:
    watts = line.watts
    return {
        "name": printable(line.name), "role": line.role, "readings": line.readings, "block": line.block,
        "gap_us": line.gap_us, "time": blocks.add(line.time),
        "watts": {"low": watts.low, "step": watts.step, "columns": [blocks.add(c) for c in watts.columns]},
    }  # fmt: skip


def _box(box: str, run_name: str, trace: Trace, phases: TracePhases | None) -> TraceBox:
    heading = f"{run_name}: {trace.device}"
    lines = tuple(printable(f"{x.name} (compared)" if x.role == "compared" else x.name) for x in trace.lines)
    readings = sum(x.readings for x in trace.lines if x.role != "sum")
    text = (
        f"Power over {seconds(trace.length_us * 1e-6)} of {trace.device} in {run_name}, {len(lines)} curves of "
        f"{readings} readings; arrow keys move, plus and minus zoom, the values at the cursor are read out below."
    )
    with_phases = phases is not None and phases.rows > 0
    note = " ".join(filter(None, (_said(trace), _left_out(phases))))
    return TraceBox(
        box, printable(heading), trace.provenance, lines, with_phases, trace.has_sum, printable(text), printable(note)
    )


def _said(trace: Trace) -> str:
    """How many readings stand in the page, and how they were thinned."""
    if not trace.lines:
        return "This device has fewer than two good readings: there is nothing to draw."
    alike: dict[str, list[TraceLine]] = {}
    for line in trace.lines:
        points = f"{line.readings:,} readings".replace(",", " ")
        if line.role == "sum":
            points = "interpolated at the readings of the fastest line"
        if line.block > 1:
            points += f", thinned: least and greatest of every {line.block}"
        alike.setdefault(points, []).append(line)
    said = []
    for points, lines in alike.items():
        whose = lines[0].name if len(lines) == 1 else f"{len(lines)} lines"
        each = " each" if len(lines) > 1 else ""
        said.append(f"{whose}: {points}{each}, power to within {digits(max(x.watts.step for x in lines) / 2, 2)} W")
    return "; ".join(said) + "."


def _left_out(phases: TracePhases | None) -> str:
    if phases is None or not phases.left_out:
        return ""
    return f"{phases.left_out} of the innermost phases are left out here, not in the tables."
