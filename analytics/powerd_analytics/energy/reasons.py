"""Why an energy is missing, or weaker than it could be, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.output.text import seconds
from powerd_analytics.runs.phases import moments_of, pieces
from powerd_analytics.runs.signals import parts_between
from powerd_client.signals.signal import Signal
from powerd_core.model import Fault, faults_text

if TYPE_CHECKING:
    from powerd_analytics.energy.devices import Part, PhaseColumns, SensedIntervals

AT_LEAST = "energy and power are lower bounds, without an interval"
"""What follows for a row with a number from readings at full scale."""
NO_BOUND = "energy and power are no lower bounds, and have no interval"
"""The same from readings at negative full scale."""
REMEDY = "a faster sensor, a longer run, another batch size or `meter.magnify` would tell them apart"
OUT_OF_STEP = "another batch size or another rate of readings would be out of step"
IN_STEP, MOST_LOOKED_AT = 0.9, 1 << 14
"""Length of the mean direction of readings within the repetitions of a phase from which on they are in lock step,
and of how many readings."""
_TIMES = {1: "always at the same moment", 2: "at the same 2 moments", 3: "at the same 3 moments"}
ENOUGH = 20
"""Readings that phases should have had by their time, from which on having none is no chance."""
WITHOUT_STEPS = "before the first or behind the last step of its counter"
WITHOUT_READINGS, CLIPPED_OR_WITHOUT = "without readings", "saturated or without readings"
_MOSTLY_ONE = 0.9
"""Of the seconds without good readings: nearly all are of one kind."""
MOSTLY = 0.5
"""A phase of which more than this share has no readings gives no number."""


def usable(columns: SensedIntervals) -> NDArray[np.bool_]:
    """[m] phases that have a number of their own: resolvable, and not mostly without readings."""
    return columns.resolvable & (columns.missing_s <= MOSTLY * columns.duration_s)


def not_resolvable(
    part: Part,
    columns: SensedIntervals,
    which: NDArray[np.bool_],
    begin_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
) -> str:
    """Why the phases ``which`` of a kind, among those that begin and end so, have no energy."""
    missing, duration = columns.missing_s[which], columns.duration_s[which]
    share = float(np.mean(missing > MOSTLY * duration)) if len(missing) else 0.0
    if share <= MOSTLY and (lock := in_step(part, begin_ns[which])):
        return f"not resolvable: {lock}"
    return no_energy(part, share, float(missing.sum()), float(duration.sum()))


def in_step(part: Part, begin_ns: NDArray[np.int64]) -> str:
    """Which lines are in lock step with phases of a kind, and what to do; empty where none is."""
    told = []
    for signal in part.signals:
        first_ns = int(begin_ns[0]) if len(begin_ns) else 0
        # One slice tells.
        moments = max((moments_seen(s.t_ns, begin_ns) for s in parts_between(signal, first_ns, first_ns)), default=0)
        told += [f"{signal.line.name} looks {_TIMES[moments]}"] if moments else []
    return f"{', '.join(told)} of each repetition, in step with it: {OUT_OF_STEP}" if told else ""


def moments_seen(t_ns: NDArray[np.int64], begin_ns: NDArray[np.int64]) -> int:
    """How many moments of what begins at ``begin_ns`` again and again readings see: 1 to 3 in lock step, else 0.

    By the length of the mean of exp(2 pi i n x) over the places x of the readings between two beginnings (Rayleigh's
    test of uniformity on a circle): 1 where they always are the same n, about 0 where they are spread."""
    begin_ns = moments_of(begin_ns)
    t = t_ns[slice(*np.searchsorted(t_ns, begin_ns[[0, -1]]))][:MOST_LOOKED_AT] if len(begin_ns) > ENOUGH else t_ns[:0]
    if len(t) < ENOUGH:
        return 0
    i = np.searchsorted(begin_ns, t, "right") - 1
    places = (t - begin_ns[i]) / (begin_ns[i + 1] - begin_ns[i])
    return next((n for n in _TIMES if abs(np.mean(np.exp(2j * np.pi * n * places))) > IN_STEP), 0)


def sensor_faults(signals: Iterable[Signal]) -> str:
    """Which sensors have saturated, stand still or do not answer, by the share of readings that they lost; empty where
    none has."""
    shares = {s.line.name: {fault: count / max(s.line.count, 1) for fault, count in s.faults.items()} for s in signals}
    return faults_text(shares)


def no_energy(part: Part, mostly_missing: float, missing_s: float, duration_s: float) -> str:
    """The same of phases together, of which a share is mostly without readings."""
    if not part.signals:
        return "not resolvable: no line feeds this device"
    if mostly_missing > 0.5:
        why = sensor_faults(part.signals)
        what = f"no good readings ({why})" if why else "no readings"
        return f"not resolvable: {what} in {seconds(missing_s)} of {seconds(duration_s)}"
    slowest = max(part.signals, key=lambda s: s.guard_ns * 2 + 2 * s.spacing_ns)
    return f"not resolvable: phases too short, {sensor(slowest)}: {REMEDY}"


def sensor(signal: Signal) -> str:
    """What limits a sensor in time."""
    every = seconds(signal.spacing_ns * 1e-9)
    if signal.is_counter:
        unsure = f", of a moment unsure by ± {seconds(signal.centre_ns * 1e-9)}" if signal.centre_ns else ""
        return f"the counter {signal.line.name} gives a value every {every}{unsure}"
    window, centre = signal.window_ns, signal.centre_ns
    if 2 * signal.guard_ns < 0.05 * signal.spacing_ns:
        return f"sensor reads every {every}"
    around = f" (± {seconds(centre * 1e-9)})" if centre > 0.1 * window else ""
    if low_pass := signal.line.accuracy.filter_ns:
        around = f" (± {seconds(centre * 1e-9)})" if centre else ""
        return f"sensor smooths with a time constant of {seconds(low_pass * 1e-9)}{around} and reads every {every}"
    return f"sensor averages {seconds(window * 1e-9)}{around} and reads every {every}"


@dataclass(frozen=True, slots=True)
class Clip:
    """Lines that stood at full scale within an interval, by the side; False for none."""

    high: tuple[str, ...]
    low: tuple[str, ...]
    seconds: float = 0.0
    """For how long, of the line that did so longest."""
    without: str = WITHOUT_READINGS
    """What seconds are called that no line tells."""

    def __bool__(self) -> bool:
        return bool(self.high or self.low)

    @property
    def is_lower_bound(self) -> bool:
        """Whether what was read is the least that it can have been."""
        return bool(self.high) and not self.low

    def __str__(self) -> str:
        sides = ((self.high, "stood at full scale"), (self.low, "clipped at negative full scale"))
        return " and ".join(f"{', '.join(names)} {what}" for names, what in sides if names)

    def missing_word(self, missing_s: float) -> str:
        """What so many seconds without good readings are called: saturated as far as sensors answered, and stood at
        full scale."""
        if self.seconds < (1 - _MOSTLY_ONE) * missing_s:
            return self.without
        return str(Fault.SATURATED) if self.seconds > _MOSTLY_ONE * missing_s else CLIPPED_OR_WITHOUT

    def note(self, *, has_number: bool) -> str:
        """What a row says of it."""
        if not self or not has_number:
            return str(self)
        return f"{self}: {AT_LEAST if self.is_lower_bound else NO_BOUND}"


def without_readings(missing_s: float, off_by_j: float, clip: Clip) -> str:
    """A note on missing readings: ± U95 holds what they are likely to have done, and ``off_by_j`` is the guaranteed
    bound; NaN is none. Those at full scale (``clip``) leave no limit of how far off an energy is."""
    text = f"{seconds(missing_s)} {clip.missing_word(missing_s)}"
    if clip:
        return text
    if np.isnan(off_by_j):
        return f"{text}: ± U95 holds what that likely changed, and no bound is known"
    return f"{text}: ± U95 holds what that likely changed, the guaranteed bound is {off_by_j:.3g} J"


def phase_note(columns: PhaseColumns, of_kind: NDArray[np.bool_], cut: NDArray[np.bool_], clip: Clip) -> str:
    """What a reader must know of a row that has a number; ``clip`` is what `find_clipping` says of it."""
    ended = of_kind & ~cut
    notes = []
    if count := int(np.sum(of_kind & cut)):
        notes.append(f"{count} cut off, left out")
    if count := int(np.sum(ended & ~columns.resolvable)):
        notes.append(f"{count} of {int(ended.sum())} too short for the sensor, taken at the others' power")
    mostly = ended & columns.resolvable & ~usable(columns)
    if count := int(mostly.sum()):
        notes.append(f"{count} mostly without readings, left out")
    lost = ended & usable(columns)
    if (missing := float(columns.missing_s[lost].sum())) > 0:
        notes.append(without_readings(missing, float(columns.off_by_j[lost].mean()), clip))
    return "; ".join(notes)


def find_clipping(
    part: Part, begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64], which: NDArray[np.bool_] | None = None
) -> Clip:
    """Which lines stood at full scale within these intervals [m], or within those ``which`` [m] of them.

    How far beyond it the power went is in no reading, so no uncertainty can contain it: an energy is a lower bound
    then. Where it went beyond negative full scale (a shunt whose current went backwards) it is none.
    """
    names: dict[str, list[str]] = {"clipped_ns": [], "clipped_low_ns": []}
    longest_s = 0.0
    for signal in part.signals:
        clipped_s = 0.0
        for side, at_limit in names.items():
            at, guard_ns = np.sort(getattr(signal, side)), round(signal.guard_ns)
            for some in pieces(len(begin_ns) if len(at) else 0):
                own = slice(None) if which is None else which[some]
                begin, end = begin_ns[some][own], end_ns[some][own]
                # A reading tells of the time around its own that it averages over.
                counts = np.searchsorted(at, end + guard_ns, "right") - np.searchsorted(at, begin - guard_ns)
                if np.any(counts) and at_limit[-1:] != [signal.line.name]:
                    at_limit.append(signal.line.name)
                clipped_s += float(counts.sum()) * signal.spacing_ns * 1e-9
        longest_s = max(longest_s, clipped_s)
    is_stepped = any(s.is_counter and s.line.accuracy.step_j and s.line.accuracy.update_ns for s in part.signals)
    without = WITHOUT_STEPS if is_stepped else WITHOUT_READINGS
    return Clip(tuple(names["clipped_ns"]), tuple(names["clipped_low_ns"]), longest_s, without)
