"""How the wall clock went against the host's and the boards' clocks while a run was recorded.

No energy depends on it. It dates traces of other tools, and a clock that was set or slewed in a run explains why theirs
do not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.chrome.clock import SLEW, wall_clock
from powerd_analytics.energy.reasons import seconds
from powerd_analytics.runs.quantities import good_pieces
from powerd_analytics.runs.run import Run
from powerd_core.model import QuantityConversion

Ints = NDArray[np.int64]

HOST = "host"
OFFSETS = "clock_offset_s"
"""The quantity of lines that hold the wall clock less the board's."""


@dataclass(frozen=True, slots=True)
class WallDrift:
    """Growth of wall clock less ``against`` (`HOST`, or a board and its line) from the first reading to the last."""

    against: str
    readings: int
    duration_s: float
    drift_s: float
    """Without what it was set by."""
    drift_ppm: float | None
    """None for a single reading."""
    half_s: float | None
    """Largest half-width of a single reading, where it is known."""
    steps_s: tuple[float, ...]
    """What it was set by: changes from one reading to the next that no slewing makes (`SLEW`)."""


def wall_drifts(run: Run) -> tuple[WallDrift, ...]:
    """Against the host's clock by the run's anchors, then against each board's by its first line of offsets."""
    found = []
    if (wall := wall_clock(run)) is not None:
        half = float(wall.half_ns.max())
        found.append(_drift(HOST, [(wall.t_host_ns, wall.offset_ns)], half))
    boards: set[str] = set()
    for line in run.lines.values():
        c = line.conversion
        if not (isinstance(c, QuantityConversion) and c.quantity == OFFSETS) or line.board in boards:
            continue
        drift = _drift(f"{line.board}, {line.name}", _offsets(run, line.name, c), None)
        if drift is not None:
            boards.add(line.board)
            found.append(drift)
    return tuple(d for d in found if d is not None)


def _offsets(run: Run, name: str, c: QuantityConversion) -> Iterator[tuple[Ints, Ints]]:
    """Times and offsets, these since the first one: a float of nanoseconds since 1970 would lose hundreds of them."""
    first: int | None = None
    for piece in good_pieces(run, name, c.column):
        codes = piece.codes[c.column].astype(np.int64)
        if len(codes):
            first = int(codes[0]) if first is None else first
            yield piece.t_ns, np.rint((codes - first).astype(np.float64) * (c.per_code * 1e9)).astype(np.int64)


def _drift(against: str, pieces: Iterable[tuple[Ints, Ints]], half_ns: float | None) -> WallDrift | None:
    """From times and offsets in pieces that are not empty; None without any."""
    count, begin_ns, drift_ns, slewed_ns = 0, 0, 0.0, 0.0
    steps: list[float] = []
    t_ns, offset_ns = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for t_new, offset_new in pieces:
        begin_ns = begin_ns if count else int(t_new[0])
        count += len(t_new)
        t_ns, offset_ns = np.concatenate([t_ns[-1:], t_new]), np.concatenate([offset_ns[-1:], offset_new])
        apart, moved = np.diff(t_ns).astype(np.float64), np.diff(offset_ns)
        is_step = np.abs(moved) > SLEW * np.abs(apart) + 2 * (half_ns or 0.0)
        drift_ns += float(moved[~is_step].sum())
        slewed_ns += float(apart[~is_step].sum())
        steps += (moved[is_step] * 1e-9).tolist()
    if not count:
        return None
    return WallDrift(
        against,
        count,
        float(t_ns[-1] - begin_ns) * 1e-9,
        drift_ns * 1e-9,
        drift_ns / slewed_ns * 1e6 if slewed_ns > 0 else None,
        None if half_ns is None else half_ns * 1e-9,
        tuple(steps),
    )


def describe_wall(drifts: Sequence[WallDrift]) -> Iterator[str]:
    """One line of text for people."""
    if not drifts:
        yield "wall clock: the run holds no readings of it"
        return
    yield "wall clock: " + "; ".join(map(_said, drifts))


def _said(d: WallDrift) -> str:
    whose = "the host's clock" if d.against == HOST else f"the clock of {d.against}"
    if d.drift_ppm is None and not d.steps_s:
        return f"one reading, nothing is known of its drift against {whose}"
    sign = "-" if d.drift_s < 0 else "+"
    drifted = f"drifted {sign}{seconds(abs(d.drift_s))} in {seconds(d.duration_s)} against {whose}"
    about = [] if d.drift_ppm is None else [f"{d.drift_ppm:+.3f} ppm"]
    about.append(f"{d.readings} readings" + (f" of ± {seconds(d.half_s)} at most" if d.half_s is not None else ""))
    by = ", ".join(f"{s:+.6f} s" for s in d.steps_s[:3]) + (", …" if len(d.steps_s) > 3 else "")
    times = f" {len(d.steps_s)} times," if len(d.steps_s) > 1 else ""
    was_set = f"; it was set{times} by {by}" if d.steps_s else ""
    return f"{drifted} ({', '.join(about)}){was_set}"
