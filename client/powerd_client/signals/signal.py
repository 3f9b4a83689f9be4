"""From raw codes to a signal: watts at moments, or joules counted, with the bad readings left out.

The one way from codes to watts and joules: tables, `joules top` and pmlib's counters take it. A signal is in memory, as
a whole; `powerd_analytics.runs.signals` has those whose readings stay in a file and come slice by slice
(`Signal.slices`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_client.signals.integral import Integral, unwrap_counter
from powerd_core.errors import AnalysisError
from powerd_core.model import (
    BAD,
    FAULT_FLAGS,
    Accuracy,
    Block,
    Conversion,
    CounterConversion,
    Fault,
    Flag,
    Line,
    Provenance,
    QuantityConversion,
    ScaledConversion,
    ShuntConversion,
    Stream,
    columns_of_all,
)

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

_MOST_SHUNT_CODE, _MOST_BUS_CODE = 0x7FFF, 0xFFFF
"""Codes of 16 bits at full scale: signed, and not."""
LATE_FACTOR, FLAGGED_FACTOR = 3.5, 1.8
"""Good readings farther apart than this many usual distances miss some between them; the second where a bad one lies
there. A scan that is late on a busy machine is ordinary sampling, and its uncertainty follows from the signal."""


def _no_times() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class RunClock:
    """Guaranteed half-width of the mapping of one board's clock at host times ``t_ns`` (both [x])."""

    board: str
    drift_ppm: float
    t_ns: NDArray[np.float64]
    half_width_ns: NDArray[np.float64]
    steps: int
    """Clock steps seen: pieces of the mapping less one."""

    def bound_ns(self, t_ns: Ints) -> NDArray[np.float64]:
        """Guaranteed bound at host times: the nearer knots' half-widths, widened by the drift since them."""
        if not len(self.t_ns):
            return np.zeros(len(t_ns))
        after = np.searchsorted(self.t_ns, t_ns)
        bounds = [
            self.half_width_ns[near] + np.abs(t_ns - self.t_ns[near]) * self.drift_ppm * 1e-6
            for near in (np.clip(after - 1, 0, None), np.clip(after, None, len(self.t_ns) - 1))
        ]
        return np.minimum(*bounds)


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings of one line: int64 times [n], uint16 flags [n], raw codes by column [n]."""

    t_ns: Ints
    flags: NDArray[np.uint16]
    codes: Mapping[str, NDArray[Any]]

    def at(self, i: int) -> Readings:
        """One reading alone, in memory of its own."""
        return self.some(i, i + 1)

    def some(self, first: int, behind: int) -> Readings:
        """Readings ``first`` to ``behind - 1``, in memory of their own."""
        own = slice(first, behind)
        codes = {name: column[own].copy() for name, column in self.codes.items()}
        return Readings(self.t_ns[own].copy(), self.flags[own].copy(), codes)


@dataclass(frozen=True, slots=True)
class RunLine:
    """One line without its readings, of a run file or of a powerd that is listened to."""

    name: str
    device: str
    source: str
    board: str
    provenance: Provenance
    quantity: str
    """``power_w``, ``energy_j``, or what it is that is neither, such as ``temperature_c``."""
    description: str
    period_ns: int
    conversion: Conversion
    accuracy: Accuracy
    detail: Mapping[str, Any]
    clock: str = ""
    count: int = 0
    """Readings in the file, good and bad."""

    @classmethod
    def of(cls, line: Line, stream: Stream, board: str) -> RunLine:
        """As a board describes it, which has no readings yet."""
        return cls(
            line.name,
            line.device,
            stream.source,
            board,
            line.provenance,
            line.quantity,
            line.description,
            stream.period_ns,
            line.conversion,
            line.accuracy,
            stream.detail,
        )

    @property
    def sensor(self) -> Mapping[str, Any]:
        """What the line's source says of the sensor behind it (its chip, its shunt); empty where it says nothing."""
        sensors = self.detail.get("sensors")
        for sensor in sensors if isinstance(sensors, list | tuple) else ():
            if isinstance(sensor, Mapping) and self.name.endswith(f".{sensor.get('name')}"):
                return sensor
        return {}

    @property
    def is_auxiliary(self) -> bool:
        """An auxiliary channel, neither power nor energy: shown, never summed or compared."""
        return isinstance(self.conversion, QuantityConversion)


@dataclass(frozen=True, slots=True)
class Signal:
    """The good readings of one line on the host's clock.

    ``value`` [n] is power in watts, or for counters the joules since the first reading. ``window_ns`` and
    ``centre_ns`` say over which time one reading averages (for counters, what is unsure about its moment).
    """

    line: RunLine
    t_ns: Ints
    value: Values
    is_counter: bool
    broken: Mask
    """[n-1] intervals whose energy is unknown because the counter was set back, or may have gone round unseen."""
    flagged: Mask
    """[n-1] intervals with a bad reading in them."""
    spacing_ns: float
    """Usual distance of two readings that carry news."""
    window_ns: float
    centre_ns: float
    bad: int
    """Readings left out: flagged, or not later than the one before."""
    clock: RunClock | None
    clipped_ns: Ints = field(default_factory=_no_times)
    """Times of readings at full scale: left out too, but known to be at least that much."""
    clipped_low_ns: Ints = field(default_factory=_no_times)
    """The same at negative full scale: known to be at most that."""
    range_w: tuple[float, float] | None = None
    """Least and greatest power of the whole line, where these readings are a part of it."""
    cuts_ns: Ints = field(default_factory=_no_times)
    """[k-1] times of good readings at which the k slices meet; a signal in memory is one slice."""
    faults: Mapping[Fault, int] = field(default_factory=dict)
    """How many of the ``bad`` readings have each fault."""
    unordered: int = 0
    """Readings not later than the one before, as no line of a run file has them (`powerd_client.runs.verify`)."""
    progress: Callable[[float, str], None] = lambda share, text: None

    def __len__(self) -> int:
        return len(self.t_ns)

    @property
    def guard_ns(self) -> float:
        """A reading says nothing of what is farther from its timestamp than this (clock bound apart)."""
        return self.window_ns / 2 + self.centre_ns

    @property
    def resolution_ns(self) -> float:
        """The shortest time that two readings can tell apart."""
        return max(self.spacing_ns, 2 * self.guard_ns)

    def integral(self) -> Integral:
        """The signal's energy integral."""
        if self.is_counter:
            return Integral.of_energy(self.t_ns, self.value)
        return Integral.of_power(self.t_ns, self.value)

    def power(self) -> tuple[Ints, Values]:
        """Moments and watts for pictures; for counters the mean power of each interval at its middle."""
        if not self.is_counter:
            return self.t_ns, self.value
        dt = np.diff(self.t_ns)
        return self.t_ns[:-1] + dt // 2, np.diff(self.value) / (dt * 1e-9)

    def shown_w(self) -> tuple[float, float]:
        """Least and greatest power that the line showed in the run. The signal has two readings or more."""
        if self.range_w is not None:
            return self.range_w
        _, watts = self.power()
        return float(watts.min()), float(watts.max())

    def drawable_w(self) -> tuple[float, float]:
        """Least and greatest power that the line could have drawn while nothing was read, whatever it happened to show:
        a shunt's full scale, or the greatest limit that a GPU's driver states. The greatest is NaN where nothing says
        it. The signal has two readings or more."""
        least, greatest = self.shown_w()
        c, stated = self.line.conversion, self.line.detail.get("max_power_limit_mw")
        if isinstance(c, ShuntConversion):
            most_a = abs((_MOST_SHUNT_CODE * c.shunt_lsb_v / c.shunt_ohm + c.offset_a) * c.gain)
            greatest = max(greatest, most_a * (_MOST_BUS_CODE >> c.bus_shift) * c.bus_lsb_v)
        elif isinstance(stated, int | float) and stated > 0:
            greatest = max(greatest, stated * 1e-3)
        else:
            greatest = math.nan
        return min(least, 0.0), greatest

    def set_back_ns(self) -> int:
        """Time in which a counter was set back: what it counted there is unknown."""
        return int(np.diff(self.t_ns)[self.broken].sum())

    @contextmanager
    def slices(self) -> Iterator[Callable[[int], Signal]]:
        """A function that gives slice ``i`` of `len(cuts_ns) + 1`, with its margins."""
        yield lambda i: self

    def missing_ns(self) -> Values:
        """[n-1] how much of each interval between good readings has lost its readings."""
        dt = np.diff(self.t_ns)
        if self.line.accuracy.step_j:  # what comes late is a step: no reading is missing
            return np.where(self.broken, dt, 0.0)
        if not self.broken.any() and dt.max(initial=0) <= FLAGGED_FACTOR * self.spacing_ns:
            return np.zeros(len(dt))
        limit = np.where(self.flagged, FLAGGED_FACTOR, LATE_FACTOR) * self.spacing_ns
        return np.where(self.broken, dt, np.where(dt > limit, dt - self.spacing_ns, 0.0))


def arrays_of(blocks: Sequence[Block], stream: Stream) -> dict[str, NDArray[Any]]:
    """The arrays of one block or more, one after the other: ``t_ns`` [n], and ``dt_ns``, ``flags`` and the codes
    [n, lines]. Raises `WireError`."""
    types: dict[str, Any] = {"t_ns": "<i8", "dt_ns": "<i4", "flags": "<u2"}
    types |= {c.name: np.dtype(c.typecode).newbyteorder("<") for c in stream.columns}
    views = columns_of_all(blocks, stream)
    arrays = {
        name: np.frombuffer(b"".join(own) if len(own) > 1 else own[0], types[name]) for name, own in views.items()
    }
    return {name: a if name == "t_ns" else a.reshape(-1, len(stream.lines)) for name, a in arrays.items()}


def make_signal(line: RunLine, readings: Readings, clock: RunClock | None = None) -> Signal:
    """Convert readings by the line's conversion; flags decide what is a value."""
    t_all, good = readings.t_ns, good_readings(readings)
    if isinstance(line.conversion, CounterConversion):
        return _counter_signal(line, line.conversion, readings, good, clock)
    t, value = t_all[good], _power_w(line, readings, good)
    a = line.accuracy
    clipped = (readings.flags & np.uint16(int(Flag.SATURATED))) != 0
    t_clipped, is_low = t_all[clipped], _power_w(line, readings, clipped) < 0
    spacing = _spacing(t, line.period_ns)
    # A value that is renewed more rarely than it is read may be older than its timestamp by that much.
    stale = a.update_ns if a.update_ns > 1.2 * spacing else 0
    return Signal(
        line=line,
        t_ns=t,
        value=value,
        is_counter=False,
        broken=np.zeros(max(0, len(t) - 1), bool),
        flagged=np.diff(np.flatnonzero(good)) > 1,
        spacing_ns=max(spacing, float(a.update_ns)),
        window_ns=float(a.reach_ns),
        centre_ns=float(a.centre_ns + stale),
        bad=len(t_all) - len(t),
        clock=clock,
        clipped_ns=t_clipped[~is_low],
        clipped_low_ns=t_clipped[is_low],
        faults=count_faults(readings.flags),
        unordered=_unordered(readings),
    )


def count_faults(flags: NDArray[np.uint16]) -> dict[Fault, int]:
    """How many readings have each fault, by their flags [n]."""
    bad = flags[(flags & np.uint16(int(BAD))) != 0]
    counts: dict[Fault, int] = {}
    for fault, own in FAULT_FLAGS.items() if len(bad) else ():
        is_own = (bad & np.uint16(int(own))) != 0
        if is_own.any():
            counts[fault] = int(is_own.sum())
            bad = bad[~is_own]
    return counts


def _unordered(readings: Readings) -> int:
    # While a clock steps nobody knows the order, and the flag says so.
    t_ns = readings.t_ns[(readings.flags & np.uint16(int(Flag.MISSING))) == 0]
    return int(np.count_nonzero(t_ns[1:] <= t_ns[:-1]))


def good_readings(readings: Readings) -> Mask:
    """[n] which readings are values: not flagged, and later than all values before them."""
    good: Mask = (readings.flags & np.uint16(int(BAD))) == 0
    t_all = readings.t_ns
    if len(t_all) > 1:
        # After a clock step the mapping may fold back: time goes on where it passes what was there.
        latest = np.maximum.accumulate(np.where(good, t_all, np.iinfo(np.int64).min))
        good[1:] &= t_all[1:] > latest[:-1]
    return good


def _power_w(line: RunLine, readings: Readings, good: Mask) -> Values:
    match line.conversion:
        case ShuntConversion() as c:
            bus = (_column(line, readings, c.bus)[good].astype(np.int64) >> c.bus_shift) * c.bus_lsb_v
            shunt = _column(line, readings, c.shunt)[good].astype(np.float64)
            watts: Values = bus * ((shunt * (c.shunt_lsb_v / c.shunt_ohm) + c.offset_a) * c.gain)
            return watts
        case ScaledConversion() as c:
            return _column(line, readings, c.column)[good].astype(np.float64) * c.w_per_code
        case QuantityConversion() as c:
            raise AnalysisError(f"line {line.name!r} is {c.quantity}, no power: `joules info` shows it")
        case _:
            raise AnalysisError(f"line {line.name!r} counts energy: it has no power readings")


def _counter_signal(
    line: RunLine, c: CounterConversion, readings: Readings, good: Mask, clock: RunClock | None
) -> Signal:
    good = _until_it_stood(_column(line, readings, c.column), readings.flags, good)
    codes, t = _column(line, readings, c.column)[good], readings.t_ns[good]
    bad = len(good) - len(t)
    counts, broken = unwrap_counter(codes, c.bits)
    flagged = np.diff(np.flatnonzero(good)) > 1
    centre = float(line.accuracy.centre_ns)
    period = _spacing(t, line.period_ns)
    counts, broken = _without_lost_turns(t, counts, broken, c, period)
    if line.accuracy.update_ns > 1.2 * period and len(t) > 2:
        # Read more often than it moves: only where it moved is its value that of the moment, at most a reading late.
        keep = np.concatenate([[True], np.diff(counts) > 0]) | np.concatenate([[True], broken])
        if line.accuracy.step_j and np.count_nonzero(keep) > 2:
            # Between two steps it may have counted nearly a whole one, which the next one dates.
            keep[0] = False
        else:
            # One that has stood still for longer than it ever does stands: nothing was counted.
            keep |= t - np.maximum.accumulate(np.where(keep, t, t[0])) > line.accuracy.update_ns + period
            keep[-1] = True
        broken, flagged = (_any_between(mask, keep) for mask in (broken, flagged))
        t, counts, centre = t[keep], counts[keep], centre + period
    energy = counts * c.j_per_code
    if len(t):
        energy = energy + c.background_w * ((t - t[0]) * 1e-9)
    spacing = max(_spacing(t, line.period_ns), float(line.accuracy.update_ns))
    unordered, faults = _unordered(readings), count_faults(readings.flags)
    return Signal(
        line, t, energy, True, broken, flagged, spacing, 0.0, centre, bad, clock, faults=faults, unordered=unordered
    )


def _until_it_stood(codes: NDArray[np.integer], flags: NDArray[np.uint16], good: Mask) -> Mask:
    """[n] good readings of a counter without those between its last step and the first one that is flagged as standing
    still: it stood there too, which its source can only know later."""
    stands = (flags & np.uint16(int(Flag.STALE))) != 0
    begins = np.flatnonzero(stands[1:] & ~stands[:-1]) + 1
    kept = good.copy() if len(begins) else good
    for begin in begins.tolist():
        own = np.flatnonzero(good[:begin])
        moved = np.flatnonzero(np.diff(codes[own]) != 0)
        kept[own[moved[-1] + 2 if len(moved) else 1 :]] = False
    return kept


def _without_lost_turns(
    t: Ints, counts: Values, broken: Mask, c: CounterConversion, period: float
) -> tuple[Values, Mask]:
    """Counts [n] and broken intervals [n-1] of a counter that may have gone round more than once where readings miss.

    At the greatest power that it showed between two readings, it would have: how often is in no reading, so that what
    it counted there is unknown like what one counted that was set back.
    """
    steps, dt = np.diff(counts), np.diff(t).astype(np.float64)
    is_late = dt > LATE_FACTOR * period
    if c.bits >= 64 or is_late.all() or not is_late.any():
        return counts, broken
    fastest = float(np.max(steps[~is_late] / dt[~is_late]))
    lost = is_late & (fastest * dt >= 2.0**c.bits)
    return np.concatenate([[0.0], np.cumsum(np.where(lost, 0.0, steps))]), broken | lost


def _column(line: RunLine, readings: Readings, name: str) -> NDArray[np.integer]:
    if name not in readings.codes:
        raise AnalysisError(f"line {line.name!r} has no column {name!r}, which its conversion needs")
    return readings.codes[name]


def _spacing(t: Ints, nominal_ns: int) -> float:
    return float(np.median(np.diff(t))) if len(t) > 2 else float(max(nominal_ns, 1))


def usual_spacing(pieces: Iterable[tuple[int, float]], line: RunLine) -> float:
    """The usual distance of a line's good readings in ns: the median over pieces of their medians, by the readings that
    each piece has; that of the line's description where there are none."""
    every = sorted((spacing, count) for count, spacing in pieces)
    half = sum(count for _, count in every) / 2
    passed = 0
    for spacing, count in every:
        passed += count
        if passed >= half:
            return spacing
    return float(max(line.period_ns, line.accuracy.update_ns, 1))


def _any_between(mask: Mask, keep: Mask) -> Mask:
    """Of intervals [n-1], whether any is True between two readings [n] that are kept (both ends are)."""
    ends = np.flatnonzero(keep)[:-1]
    return np.asarray(np.logical_or.reduceat(mask, ends))


def columns_of(line: RunLine) -> tuple[str, ...]:
    """The columns that a line's conversion needs."""
    c = line.conversion
    return (c.shunt, c.bus) if isinstance(c, ShuntConversion) else (c.column,)


def joined_readings(parts: Sequence[Readings]) -> Readings:
    """Readings one after the other. ``parts`` has at least one."""
    if len(parts) == 1:
        return parts[0]
    codes = {k: np.concatenate([p.codes[k] for p in parts]) for k in parts[0].codes}
    times, flags = np.concatenate([p.t_ns for p in parts]), np.concatenate([p.flags for p in parts])
    return Readings(times, flags, codes)
