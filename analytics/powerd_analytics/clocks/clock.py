"""`joules clock`: how the clocks of a run's boards went against the host's, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.reasons import seconds
from powerd_analytics.runs.quantities import CodeCounts, good_pieces
from powerd_analytics.runs.run import Run
from powerd_client.runfile import open_run
from powerd_core.errors import RunFileError
from powerd_core.model import QuantityConversion

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ClockTrace:
    """One board's clock in one epoch: at [x] exchanges that map it, and the [y] delays of all exchanges."""

    name: str
    board: str
    epoch: str
    drift_ppm: float
    t_board_ns: NDArray[np.int64]
    t_host_ns: Floats
    offset_ns: Floats
    """Host minus board time: the estimate."""
    half_ns: Floats
    """Farther end of the guaranteed bound from the estimate."""
    piece: NDArray[np.int64]
    delay_ns: NDArray[np.int64]
    delay_t_host_ns: NDArray[np.int64]
    not_used: int
    """Exchanges that map nothing."""

    def pieces(self) -> Iterator[slice]:
        """The stretches between steps of a clock."""
        edges = [0, *(np.flatnonzero(np.diff(self.piece)) + 1).tolist(), len(self.piece)]
        for begin, end in pairwise(edges):
            if end > begin:
                yield slice(begin, end)

    def trend_ns(self) -> Floats:
        """The straight line through the ends of each piece."""
        trend = np.array(self.offset_ns)
        for part in self.pieces():
            t, o = self.t_board_ns[part], self.offset_ns[part]
            if len(t) > 1:
                trend[part] = o[0] + (t - t[0]) * ((o[-1] - o[0]) / (t[-1] - t[0]))
        return trend


@dataclass(frozen=True, slots=True)
class ClockStep:
    """A clock stepped between two host times: the offset grew by ``by_s``."""

    begin_ns: int
    end_ns: int
    by_s: float


@dataclass(frozen=True, slots=True)
class ClockReport:
    """One board's clock in one epoch, in figures."""

    clock: str
    board: str
    epoch: str
    exchanges: int
    not_used: int
    """Exchanges that could have been made on either side of a step."""
    duration_s: float
    offset_begin_s: float
    offset_end_s: float
    skew_ppm: float | None
    """Growth of the offset, between steps; None for a single exchange."""
    delay_min_s: float
    delay_median_s: float
    delay_p99_s: float
    bound_median_s: float
    bound_max_s: float
    steps: tuple[ClockStep, ...]


@dataclass(frozen=True, slots=True)
class OtherClock:
    """A clock behind a board's, as far as the run says anything on it."""

    name: str
    what: str
    bound_median_s: float
    bound_max_s: float


def read_traces(run: Run) -> tuple[ClockTrace, ...]:
    """All clocks of a run with an exchange. Raises `RunFileError`."""
    with open_run(run.path) as file:
        try:
            found = [_trace(name, group) for name, group in file["clocks"].items()]
        except (KeyError, ValueError, TypeError, OSError) as error:
            raise RunFileError(f"{run.path} is damaged or incomplete: {error}") from error
    return tuple(sorted((t for t in found if len(t.t_board_ns)), key=lambda t: (t.board, t.t_host_ns[0])))


def _trace(name: str, group: h5py.Group) -> ClockTrace:
    exchanges = group["exchanges"][:].reshape(-1, 4)
    mapping, t_board = group["map"][:].reshape(-1, 3), group["map_t_board_ns"][:]
    t1, t2, t3, t4 = exchanges.T
    return ClockTrace(
        name,
        str(group.attrs.get("board", "")),
        str(group.attrs.get("epoch", "")),
        float(group.attrs.get("drift_ppm", 100.0)),
        t_board,
        t_board + mapping[:, 0],
        mapping[:, 0],
        np.maximum(mapping[:, 2] - mapping[:, 0], mapping[:, 0] - mapping[:, 1]),
        group["map_piece"][:].astype(np.int64),
        (t4 - t1) - (t3 - t2),
        (t1 + t4) // 2,
        int((~np.isin((t2 + t3) // 2, t_board)).sum()),
    )


def report(trace: ClockTrace) -> ClockReport:
    """The figures of one clock."""
    parts = list(trace.pieces())
    t, o = trace.t_board_ns, trace.offset_ns
    lengths = [float(t[p][-1] - t[p][0]) for p in parts]
    growth = sum(float(o[p][-1] - o[p][0]) for p in parts)
    steps = tuple(
        ClockStep(
            int(trace.t_host_ns[a.stop - 1]), int(trace.t_host_ns[b.start]), float(o[b.start] - o[a.stop - 1]) * 1e-9
        )
        for a, b in pairwise(parts)
    )
    delays = trace.delay_ns * 1e-9
    return ClockReport(
        trace.name,
        trace.board,
        trace.epoch,
        len(delays),
        trace.not_used,
        float(trace.t_host_ns.max() - trace.t_host_ns.min()) * 1e-9,
        float(o[0]) * 1e-9,
        float(o[-1]) * 1e-9,
        growth / sum(lengths) * 1e6 if sum(lengths) else None,
        float(delays.min()),
        float(np.median(delays)),
        float(np.quantile(delays, 0.99)),
        float(np.median(trace.half_ns)) * 1e-9,
        max(_widest_ns(trace, p) for p in parts) * 1e-9,
        steps,
    )


def _widest_ns(trace: ClockTrace, part: slice) -> float:
    """The greatest bound between two exchanges included: it is widest about half-way."""
    half, gaps = trace.half_ns[part], np.diff(trace.t_board_ns[part])
    if not len(gaps):
        return float(half[0])
    between = (half[:-1] + half[1:]) / 2 + gaps * trace.drift_ppm * 1e-6 / 2
    return float(max(half.max(), between.max()))


def other_clocks(run: Run) -> tuple[OtherClock, ...]:
    """Clocks of nodes and drivers: lines of the quantity ``clock_bound_s``, and what a node's streams say of it."""
    found: dict[str, OtherClock] = {}
    for line in run.lines.values():
        c = line.conversion
        if isinstance(c, QuantityConversion) and c.quantity == "clock_bound_s":
            counts = CodeCounts(piece.codes[c.column] for piece in good_pieces(run, line.name, c.column))
            if len(counts):
                median, largest = counts.median() * c.per_code, counts.largest() * c.per_code
                found[line.name] = OtherClock(line.name, line.description, median, largest)
        elif "clock_half_ns" in line.detail and (limit_ns := line.detail.get("clock_limit_ns")):
            name = f"{line.source} at {line.detail.get('port', '?')}"
            half_ns = float(line.detail["clock_half_ns"])
            what = "the node's clock against its board's: bound at the start, and the limit that readings are held to"
            found.setdefault(name, OtherClock(name, what, half_ns * 1e-9, float(limit_ns) * 1e-9))
    return tuple(found.values())


def describe(run: Run, reports: Sequence[ClockReport], others: Sequence[OtherClock]) -> Iterator[str]:
    """Lines of text for people."""
    for r in reports:
        yield f"clock of {r.board or 'the board'}, epoch {r.epoch}"
        unused = f", {r.not_used} of them not used (beside a step)" if r.not_used else ""
        yield f"  exchanges: {r.exchanges} over {seconds(r.duration_s)}{unused}"
        skew = f"{r.skew_ppm:.3f} ppm" if r.skew_ppm is not None else "unknown (one exchange)"
        yield f"  host minus board: {r.offset_begin_s:.9f} s at first, {r.offset_end_s:.9f} s at last; skew {skew}"
        delays = (r.delay_min_s, r.delay_median_s, r.delay_p99_s)
        yield "  delay: {} least, {} median, {} p99".format(*map(seconds, delays))
        yield f"  guaranteed bound: ± {seconds(r.bound_median_s)} median, ± {seconds(r.bound_max_s)} largest"
        for step in r.steps:
            at = (step.begin_ns - run.begin_ns) * 1e-9
            yield (
                f"  step of {step.by_s:+.6f} s, {at:.3f} s into the run; nothing is mapped in the "
                f"{seconds((step.end_ns - step.begin_ns) * 1e-9)} around it"
            )
    if not reports:
        yield "no board's clock was ever compared with the host's"
    for other in others:
        said = f"± {seconds(other.bound_median_s)} median, ± {seconds(other.bound_max_s)} largest"
        yield f"{other.name}: {said} ({other.what})"


def to_document(reports: Sequence[ClockReport], others: Sequence[OtherClock]) -> dict[str, Any]:
    """The same for programs: SI units, ready for JSON."""
    return {"clocks": [asdict(r) for r in reports], "others": [asdict(o) for o in others]}
