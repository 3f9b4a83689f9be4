"""The wall clock of a run against the host's, by the anchors that its recorder wrote down.

It dates single iterations and traces of other tools. No energy depends on it.
"""

from __future__ import annotations

from calendar import timegm
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.runs.run import Run
from powerd_client.host.hostclock import WallAnchor, read_anchor
from powerd_core.errors import AnalysisError

Ints = NDArray[np.int64]

SLEW = 500e-6
"""The fastest that the wall clock is taken to turn against the raw one: the limit of the kernel's own discipline
(adjtimex(2)). Daemons that slew faster for a moment show as two anchors farther apart than this allows."""


@dataclass(frozen=True, slots=True)
class WallClock:
    """Anchors in the order of the host's clock [a]: Unix time less host time, and half of what the reading took."""

    t_host_ns: Ints
    offset_ns: Ints
    half_ns: Ints

    @classmethod
    def of(cls, anchors: Sequence[WallAnchor]) -> WallClock:
        """From anchors in any order; at least one."""
        ordered = sorted((a.t_host_ns, a.t_unix_ns - a.t_host_ns, a.half_ns) for a in anchors)
        return cls(*np.array(ordered, np.int64).T)

    def unix_ns(self, t_host_ns: Ints) -> Ints:
        """Unix time of moments on the host's clock: straight lines between anchors, level beyond them."""
        base = self.offset_ns[0]  # a float of nanoseconds since 1970 would lose hundreds of them
        x = (t_host_ns - self.t_host_ns[0]).astype(np.float64)
        knots = (self.t_host_ns - self.t_host_ns[0]).astype(np.float64)
        offset = np.interp(x, knots, (self.offset_ns - base).astype(np.float64))
        unix: Ints = t_host_ns + base + np.rint(offset).astype(np.int64)
        return unix

    def host_ns(self, t_unix_ns: int) -> int:
        """The moment of a Unix time on the host's clock."""
        near = t_unix_ns - int(self.offset_ns[np.argmin(np.abs(self.t_host_ns + self.offset_ns - t_unix_ns))])
        return near - (int(self.unix_ns(np.array([near]))[0]) - t_unix_ns)

    def bound_ns(self, begin_ns: int, end_ns: int) -> float:
        """The farthest that `unix_ns` can be off between two moments, if nobody set the wall clock between anchors.

        Between anchors ``d`` apart that differ by ``x`` the clock can have left the line by at most
        (SLEW d)² - x² over 2 SLEW d, less than SLEW d / 2.
        """
        t = self.t_host_ns
        near = np.flatnonzero((t[1:] >= begin_ns) & (t[:-1] <= end_ns))
        reach = SLEW * np.diff(t)[near].astype(np.float64)
        jump = np.abs(np.diff(self.offset_ns)[near]).astype(np.float64)
        free = np.maximum(reach**2 - jump**2, 0) / (2 * np.maximum(reach, 1e-9))
        between = float(np.where(jump > reach, jump, free).max(initial=0.0))
        beyond = SLEW * float(max(t[0] - begin_ns, end_ns - t[-1], 0))
        return max(between, beyond) + float(self.half_ns.max())

    def seen_ns(self) -> float:
        """The farthest that an anchor lies from the line between its neighbours: what usually happens between two."""
        if len(self.t_host_ns) < 3:
            return float("nan")
        t, off = self.t_host_ns.astype(np.float64), (self.offset_ns - self.offset_ns[0]).astype(np.float64)
        share = (t[1:-1] - t[:-2]) / np.maximum(t[2:] - t[:-2], 1)
        return float(np.max(np.abs(off[1:-1] - off[:-2] - share * (off[2:] - off[:-2]))))


def wall_clock(run: Run) -> WallClock | None:
    """The wall clock of a run, None when it holds no anchors (recorded by an older powerd)."""
    anchors = [anchor for message in run.messages if (anchor := read_anchor(message)) is not None]
    return WallClock.of(anchors) if anchors else None


def needed_wall_clock(run: Run) -> WallClock:
    """The same. Raises `AnalysisError` without anchors."""
    wall = wall_clock(run)
    if wall is None:
        raise AnalysisError(f"{run.path} holds no anchors of the wall clock, by which a profile is dated")
    return wall


def begin_unix_s(run: Run) -> float | None:
    """By the anchors of the wall clock, else by the second in which the recording was begun."""
    if (wall := wall_clock(run)) is not None:
        return float(wall.unix_ns(np.array([run.begin_ns]))[0]) * 1e-9
    try:
        return float(timegm(datetime.fromisoformat(str(run.attributes.get("created_utc"))).utctimetuple()))
    except ValueError:
        return None
