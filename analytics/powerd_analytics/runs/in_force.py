"""The power caps in force: what drivers enforced at each moment of a run, as step functions of time.

A driver is asked for its limit now and then, mostly once a second, so a change lies somewhere between two readings.
That stretch belongs to neither setting. A limit counts as another one when it differs by more than `TOLERANCE_W` for at
least two readings in a row: the enforced limit is the least of all that limit a card, and on some cards one of these
dips for a moment. Whatever knows moments at which a setting changed makes `Steps` of them; `Timeline.of` puts the steps
of all devices together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

TOLERANCE_W = 0.5
"""Limits are set in whole watts and told in milliwatts."""
MOST_SETTINGS = 64
"""A limit that takes more values than this was not set but wanders, and parts nothing."""
_FIRST_NS, _LAST_NS = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def watts_text(watts: float | None) -> str:
    """A cap for people, to a tenth of a watt: ``200 W``."""
    return "no cap" if watts is None else f"{_rounded(watts)} W"


def _rounded(watts: float) -> int | float:
    tenths = round(watts, 1)
    return int(tenths) if tenths.is_integer() else tenths


@dataclass(frozen=True, slots=True)
class Enforced:
    """The caps that drivers enforced while a phase ran."""

    caps_w: tuple[tuple[str, float], ...] = ()
    """Each device whose driver tells its limit, by name; empty where one of them changed while the phase ran."""

    @property
    def is_changing(self) -> bool:
        return not self.caps_w

    @property
    def value(self) -> int | float | str:
        """What sets groups of phases apart: watts where all devices have one cap, else a text."""
        devices: dict[int | float, list[str]] = {}
        for device, watts in self.caps_w:
            devices.setdefault(_rounded(watts), []).append(device)
        if len(devices) == 1:
            return next(iter(devices))
        return ", ".join(f"{watts} W on {' and '.join(names)}" for watts, names in devices.items()) or "changing"


CHANGING = Enforced()


@dataclass(frozen=True, slots=True)
class Steps:
    """What one driver enforced, in watts, from each change to the next."""

    watts: tuple[float, ...]
    """[k + 1] each differs from the one before; the first and the last reach back and on for ever."""
    changes_ns: tuple[tuple[int, int], ...] = ()
    """[k] the last moment known of the setting before, and the first of the next one."""

    def between(self, begin_ns: int, end_ns: int) -> tuple[float, ...]:
        """The caps that were in force at any moment between two, in order."""
        first = sum(end <= begin_ns for _, end in self.changes_ns)
        last = sum(begin < end_ns for begin, _ in self.changes_ns)
        return self.watts[first : max(first, last) + 1]


def without_repeats(t_ns: Ints, watts: Values) -> tuple[Ints, Values]:
    """Of each stretch of equal readings the first and the last: all that `steps_of` needs of a long line."""
    same = watts[1:] == watts[:-1]
    inner = np.append(False, same) & np.append(same, False)
    return t_ns[~inner], watts[~inner]


def steps_of(t_ns: Ints, watts: Values, bound_ns: Values | float = 0.0) -> Steps:
    """The steps of a limit's readings [n], at least one; ``bound_ns`` is how far their times can be off."""
    bounds = np.broadcast_to(np.ceil(bound_ns), t_ns.shape)
    order = np.argsort(t_ns, kind="stable")
    first_ns, last_ns = (t_ns + bounds)[order].astype(np.int64), (t_ns - bounds)[order].astype(np.int64)
    watts = watts[order]
    known: list[float] = []
    steps: list[float] = []
    changes: list[tuple[int, int]] = []
    until_ns = 0
    for first, last in _levels(watts.tolist()):
        readings = watts[first : last + 1]
        level = float(np.median(readings[np.abs(readings - watts[first]) <= TOLERANCE_W]))
        alike = [w for w in known if abs(w - level) <= TOLERANCE_W]
        if not alike:
            known.append(level)
        level = alike[0] if alike else level
        if steps and steps[-1] != level:
            changes.append((until_ns, int(first_ns[first])))
        if not steps or steps[-1] != level:
            steps.append(level)
        until_ns = int(last_ns[last])
    return Steps(tuple(steps), tuple(changes))


def _levels(watts: Sequence[float]) -> Iterator[tuple[int, int]]:
    """The first and the last reading of each stretch in which a limit stayed."""
    first = last = 0
    other = -1  # the reading with which another limit may have begun
    for i, here in enumerate(watts):
        if abs(here - watts[first]) <= TOLERANCE_W:
            last, other = i, -1
        elif other >= 0 and abs(here - watts[other]) <= TOLERANCE_W:
            yield first, last
            first, last, other = other, i, -1
        else:
            other = i
    yield first, last


@dataclass(frozen=True, slots=True)
class Timeline:
    """The caps of all devices of a run. Changes that overlap are one."""

    steps: Mapping[str, Steps] = field(default_factory=dict)
    """By device."""
    begin_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    end_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[k] the stretches in which a setting changed, in order and apart."""
    settings: tuple[Enforced, ...] = ()
    """[k + 1] before, between and behind them; empty where nothing changed."""

    @classmethod
    def of(cls, steps: Mapping[str, Steps]) -> Timeline:
        told = {device: steps[device] for device in sorted(steps) if len(set(steps[device].watts)) <= MOST_SETTINGS}
        changes: list[list[int]] = []
        for begin, end in sorted(change for s in told.values() for change in s.changes_ns):
            if changes and begin <= changes[-1][1]:
                changes[-1][1] = max(changes[-1][1], end)
            else:
                changes.append([begin, end])
        if not changes:
            return cls(steps)
        begin_ns, end_ns = np.array(changes, np.int64).T
        settings = [
            Enforced(tuple((device, s.between(since_ns, since_ns)[0]) for device, s in told.items()))
            for since_ns in (_FIRST_NS, *end_ns.tolist())
        ]
        return cls(steps, begin_ns, end_ns, tuple(settings))

    def spans(self, begin_ns: Ints, end_ns: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """[m] the number of the last setting that intervals can have seen the begin of, and whether they lie in it."""
        span = np.searchsorted(self.end_ns, begin_ns, "right")
        return span, np.asarray(end_ns <= np.append(self.begin_ns, _LAST_NS)[span])

    def holds(self, setting: Enforced, t_ns: Ints) -> NDArray[np.bool_]:
        """[n] at which moments a setting was in force."""
        span, is_in = self.spans(t_ns, t_ns)
        is_this = np.array([s == setting for s in self.settings])
        return ~is_in if setting.is_changing else is_in & is_this[span]
