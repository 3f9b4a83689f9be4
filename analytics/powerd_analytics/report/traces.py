"""What the page's traces are drawn from: readings, or least and greatest where there are too many; phases; gaps.

Columns of whole numbers travel as short texts, which `trace.js` takes apart: the first differences (the first from 0),
each folded to be positive (0, -1, 1, -2 -> 0, 1, 2, 3); then all lowest bytes, all second bytes and so on; zlib,
base64. Times are whole microseconds since the run began, watts whole steps between their line's least and greatest.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part
from powerd_analytics.energy.rest import merged
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.signal import LATE_FACTOR, Signal
from powerd_analytics.signals.streams import (
    Points,
    count_points,
    envelope_of,
    fastest_of,
    holes_of,
    points_of,
    summed_of,
)
from powerd_analytics.table_rows import group_line
from powerd_analytics.text import digits, seconds
from powerd_core.text import printable

STEPS = (1 << 16) - 1
"""Watts are rounded to this many steps between the least and the greatest of their line."""
MOST_PHASES = 400_000
"""Phases of one run in a page; of more, the innermost are left out."""
MOST_GAPS = 2000
FARTHEST_NS = 1 << 55
"""A year: what is farther from the run's begin than this is no part of it, and would not fit into a column."""

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Document = dict[str, Any]
"""What the script gets as JSON."""


@dataclass(slots=True)
class Columns:
    """All columns of a page, each a text under an id."""

    texts: dict[str, str] = field(default_factory=dict)

    def add(self, values: NDArray[np.integer[Any]]) -> Document:
        """What the script needs to find and unpack a column of whole numbers, whose differences have up to 47 bits."""
        d = np.diff(values.astype(np.int64), prepend=np.int64(0))
        folded = np.where(d < 0, -2 * d - 1, 2 * d).astype("<u8")
        planes = max(1, -(-int(folded.max(initial=0)).bit_length() // 8))
        raw = folded.view(np.uint8).reshape(-1, 8)[:, :planes]
        name = f"data-{len(self.texts)}"
        self.texts[name] = base64.b64encode(zlib.compress(raw.T.tobytes(), 6)).decode("ascii")
        return {"id": name, "n": len(values), "planes": planes}

    def add_values(self, *columns: Values) -> Document:
        """Finite numbers ``low + step * q`` on one scale, each rounded by at most half a step; the columns hold q."""
        low = min((float(c.min()) for c in columns if len(c)), default=0.0)
        high = max((float(c.max()) for c in columns if len(c)), default=0.0)
        step = (high - low) / STEPS or 1.0
        packed = [self.add(np.rint((c - low) / step).astype(np.int64)) for c in columns]
        return {"low": low, "step": step, "columns": packed}


def trace_of(run: Run, part: Part, compared: Sequence[Signal], most_points: int, columns: Columns) -> Document:
    """The trace of one device with at most about ``most_points`` points in all curves together.

    Each line says how many readings it has and how many a point stands for (``block``, of which the least and the
    greatest power are kept). Points farther apart than ``gap_us`` are not joined; ``gaps`` are stretches without
    readings [us].
    """
    feeds = [s for s in part.signals if len(s) > 1]
    others = [s for s in compared if len(s) > 1]
    has_sum = len(feeds) > 1
    each = max(most_points // max(len(feeds) + len(others) + has_sum, 1), 1000)
    lines = []

    def add(name: str, role: str, points: Iterator[Points], n: int, spacing_ns: float) -> None:
        block = 1 if n <= each else int(np.ceil(2 * n / each))
        t_ns, low, high = envelope_of(points, np.arange(0, n, block))
        lines.append({
            "name": printable(name), "role": role, "readings": n, "block": block,
            # What a block spans is known only to the next one's begin.
            "gap_us": LATE_FACTOR * spacing_ns / 1000 * (1 if block == 1 else block + 1),
            "time": columns.add(_microseconds(run, t_ns)),
            "watts": columns.add_values(low) if block == 1 else columns.add_values(low, high),
        })  # fmt: skip

    if has_sum:
        fastest, spacing_ns = fastest_of(feeds), max(s.spacing_ns for s in feeds)
        add(f"{part.device}, sum of lines", "sum", summed_of(feeds, fastest), count_points(fastest), spacing_ns)
    for role, signals in (("feed", feeds), ("compared", others)):
        for s in signals:
            add(s.line.name, role, _finite(s), count_points(s), s.spacing_ns)
    length_us = (run.end_ns - run.begin_ns) // 1000
    about = {"device": printable(part.device), "provenance": part.provenance}
    return {**about, "length_us": length_us, "gaps": _gaps(run, feeds), "lines": lines}


def phases_of(run: Run, columns: Columns, most: int = MOST_PHASES) -> Document:
    """The phases of a run, outermost first where not all fit: names and groups of their classes, and the columns begin,
    duration (both microseconds), class, and row in the picture, where processes lie one below the other, each with its
    depths."""
    p = run.phases
    deepest = max(int(np.searchsorted(np.cumsum(np.bincount(p.depth)), most, "right")), 1)
    kept = np.flatnonzero(p.depth < deepest)[:most]
    overlaps = np.isin(p.label, [i for i, c in enumerate(p.classes) if c.overlaps])
    lanes = p.process.astype(np.int64) * 1000 + np.where(overlaps, 999, p.depth)
    used, rows = np.unique(lanes[kept], return_inverse=True)
    begin, end = _microseconds(run, p.begin_ns[kept]), _microseconds(run, p.end_ns[kept])
    order = np.lexsort((begin, rows))
    return {
        "names": [printable(c.name) for c in p.classes],
        "details": [printable(group_line(dict(c.group))) for c in p.classes],
        "columns": [columns.add(c[order]) for c in (begin, end - begin, p.label[kept], rows)],
        "rows": len(used),
        "left_out": len(p) - len(kept),
    }


def _microseconds(run: Run, t_ns: Ints) -> Ints:
    """Since the run began; times that are wildly wrong are brought to where a page can hold them."""
    since_ns: Ints = np.clip(t_ns, run.begin_ns - FARTHEST_NS, run.begin_ns + FARTHEST_NS) - run.begin_ns
    return since_ns // 1000


def _finite(signal: Signal) -> Iterator[Points]:
    for t, watts in points_of(signal):
        good = np.isfinite(watts)
        if good.any():
            yield t[good], watts[good]


def _gaps(run: Run, signals: Sequence[Signal]) -> list[list[int]]:
    """Stretches that miss readings of any line, those that overlap as one; of very many, the longest."""
    holes = np.concatenate([np.zeros((0, 2), np.int64), *(holes_of(s) for s in signals)])
    gaps = np.stack(merged(holes[:, 0], holes[:, 1]), 1)
    longest = np.argsort(gaps[:, 0] - gaps[:, 1], kind="stable")[:MOST_GAPS]
    us: list[list[int]] = ((gaps[np.sort(longest)] - run.begin_ns) // 1000).tolist()
    return us


def box_of(run_name: str, trace: Document, phases: Document | None) -> Document:
    """What the template shows around a trace."""
    lines, name = trace["lines"], printable(f"{run_name}: {trace['device']}")
    readings = sum(x["readings"] for x in lines if x["role"] != "sum")
    notes = []
    for x in lines:
        number = f"{x['readings']:,} readings".replace(",", " ")
        points = "interpolated at the readings of the fastest line" if x["role"] == "sum" else number
        thinned = f", thinned: least and greatest of every {x['block']}" if x["block"] > 1 else ""
        notes.append(f"{x['name']}: {points}{thinned}, power to within {digits(x['watts']['step'] / 2, 2)} W")
    note = "; ".join(notes) or "This device has fewer than two good readings: there is nothing to draw"
    if phases is not None and phases["left_out"]:
        note += f". {phases['left_out']} of the innermost phases are left out here, not in the tables"
    return {
        "heading": name,
        "provenance": trace["provenance"],
        "lines": [f"{x['name']} (compared)" if x["role"] == "compared" else x["name"] for x in lines],
        "has_sum": any(x["role"] == "sum" for x in lines),
        "with_phases": phases is not None,
        "text": f"Power over {seconds(trace['length_us'] * 1e-6)} of {name}, {len(lines)} curves of {readings} "
        "readings; arrow keys move, plus and minus zoom, the values at the cursor are read out below.",
        "note": f"{note}.",
    }
