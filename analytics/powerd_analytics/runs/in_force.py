"""The settings in force: what drivers enforced at each moment of a run, as step functions of time.

A driver is asked for its limit now and then, mostly once a second, so a change lies somewhere between two readings.
That stretch belongs to neither setting. A limit counts as another one when it differs by more than `TOLERANCE_W` for at
least two readings in a row: the enforced limit is the least of all that limit a card, and on some cards one of these
dips for a moment. A limit that comes and goes within `STEADY` such stretches may flip faster than it is read, and sets
nothing apart either, unless events tell when it came and went. No driver tells a clock that was locked: it is known by
events (`powerd_core.settings`), which are exact in time. Whatever knows moments at which a setting changed makes
`Steps` of them; `Timeline.of` puts the steps of all devices and knobs together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from powerd_core.settings import UNITS

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

TOLERANCE_W = 0.5
"""Limits are set in whole watts and told in milliwatts."""
STEADY = 3
"""A limit that stays for fewer times than what lies between two readings of it is not known to stay."""
_ENFORCED = "_enforced_"
ENFORCED_CAP = "power_cap_enforced_w"
"""What a group calls the cap that drivers enforced, in a run in which that changed. The attribute ``power_cap_w`` is
what a script states."""
NOT_SET = "not set"
"""What is said of a knob before anybody has stated it, and after it was put back."""
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
    """What drivers enforced while a phase ran."""

    caps_w: tuple[tuple[str, float], ...] = ()
    """Each device whose driver tells its limit, by name, and 0 W as long as nobody has said it."""
    others: tuple[tuple[str, str, float], ...] = ()
    """The same of other knobs: name as of `enforced_name`, device, value in the unit that the name ends with."""
    changing: tuple[str, ...] = ()
    """Where a setting changed while the phase ran: the names of all knobs that changed in the run."""

    @property
    def is_changing(self) -> bool:
        return not (self.caps_w or self.others)

    def of(self, name: str, device: str) -> float | None:
        """What was enforced of a knob by its `enforced_name`, None where it is not told."""
        return next((x for own, who, x in self.others if (own, who) == (name, device)), None)

    @property
    def value(self) -> int | float | str:
        """What sets groups of phases apart: watts where all devices have one cap, else a text."""
        return _together(self.caps_w, "W") if self.caps_w else "changing"

    @property
    def group(self) -> dict[str, int | float | str]:
        """By the name of each knob that changed in the run, what it was set to."""
        if self.is_changing:
            return dict.fromkeys(self.changing or (ENFORCED_CAP,), "changing")
        own = {ENFORCED_CAP: self.value} if self.caps_w else {}
        for name in dict.fromkeys(name for name, _, _ in self.others):
            unit = knob_of(name)[1]
            own[name] = _together([(device, x) for other, device, x in self.others if other == name], unit)
        return own


def _together(values: Sequence[tuple[str, float]], unit: str) -> int | float | str:
    """The one value that all devices have, else a text; a knob that is not set has no number."""
    devices: dict[int | float, list[str]] = {}
    for device, value in values:
        devices.setdefault(_rounded(value), []).append(device)
    texts = {value: f"{value} {unit}" if value else NOT_SET for value in devices}
    if len(devices) == 1:
        return next(value or NOT_SET for value in devices)
    return ", ".join(f"{texts[value]} on {' and '.join(names)}" for value, names in devices.items())


def enforced_name(knob: str, unit: str) -> str:
    """What a group calls what was enforced of a knob: ``sm_clock_enforced_mhz``."""
    return f"{knob}{_ENFORCED}{unit.lower()}"


def knob_of(name: str) -> tuple[str, str]:
    """The knob and the unit of an `enforced_name`; empty texts for any other name."""
    knob, is_one, unit = name.rpartition(_ENFORCED)
    return (knob, UNITS.get(knob, unit)) if is_one else ("", "")


CHANGING = Enforced()


@dataclass(frozen=True, slots=True)
class Steps:
    """What one driver enforced of one knob, from each change to the next."""

    values: tuple[float, ...]
    """[k + 1] each differs from the one before; the first and the last reach back and on for ever."""
    changes_ns: tuple[tuple[int, int], ...] = ()
    """[k] the last moment known of the setting before, and the first of the next one."""

    def between(self, begin_ns: int, end_ns: int) -> tuple[float, ...]:
        """What was in force at any moment between two, in order."""
        first = sum(end <= begin_ns for _, end in self.changes_ns)
        last = sum(begin < end_ns for begin, _ in self.changes_ns)
        return self.values[first : max(first, last) + 1]


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
class Stated:
    """What an event states of a knob: from when on, what was enforced, and until when the device may take to follow."""

    t_ns: int
    value: float | None
    settled_ns: int


def stated_steps(stated: Sequence[Stated]) -> Steps:
    """The steps that events state, in the order of their times. Before the first nothing is set (0)."""
    levels, changes = [0.0], []
    for event in stated:
        if (event.value or 0.0) != levels[-1]:
            levels.append(event.value or 0.0)
            changes.append((event.t_ns, event.settled_ns))
    return Steps(tuple(levels), tuple(changes))


def timed_by(stated: Sequence[Stated], steps: Steps) -> Steps:
    """The steps of a driver's readings with their changes where events say when they were: a driver that is asked once
    a second knows them to a second. A change of which no event tells, or several, stays as it was read; where a limit
    came and went so within `STEADY` such stretches, its two changes meet: nothing lies between them."""
    changes, is_told = [], []
    for (before_ns, after_ns), value in zip(steps.changes_ns, steps.values[1:], strict=True):
        told = [e for e in stated if before_ns <= e.t_ns <= after_ns and _is(e.value, value)]
        is_told.append(len(told) == 1)
        changes.append((told[0].t_ns, told[0].settled_ns) if is_told[-1] else (before_ns, after_ns))
    for k, ((came_ns, since_ns), (until_ns, gone_ns)) in enumerate(pairwise(steps.changes_ns)):
        between_ns = max(since_ns - came_ns, gone_ns - until_ns)
        if until_ns - since_ns < STEADY * between_ns and not (is_told[k] and is_told[k + 1]):
            changes[k] = (changes[k][0], until_ns)
            changes[k + 1] = (until_ns, max(changes[k + 1][1], until_ns))
    return Steps(steps.values, tuple(changes))


def _is(value: float | None, watts: float) -> bool:
    return value is not None and abs(value - watts) <= TOLERANCE_W


@dataclass(frozen=True, slots=True)
class Timeline:
    """The settings of all devices of a run. Changes that overlap are one."""

    steps: Mapping[str, Steps] = field(default_factory=dict)
    """Power caps by device."""
    begin_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    end_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[k] the stretches in which a setting changed, in order and apart."""
    settings: tuple[Enforced, ...] = ()
    """[k + 1] before, between and behind them; empty where nothing changed."""
    others: Mapping[tuple[str, str], Steps] = field(default_factory=dict)
    """Other knobs, by `enforced_name` and device."""
    by_line: frozenset[str] = frozenset()
    """Devices whose power cap their driver tells all along; that of others is known by events."""
    changed: tuple[str, ...] = ()
    """The names of the knobs of which one changed, power caps first."""

    @classmethod
    def of(
        cls,
        steps: Mapping[str, Steps],
        others: Mapping[tuple[str, str], Steps] = MappingProxyType({}),
        within: tuple[int, int] = (_FIRST_NS, _LAST_NS),
    ) -> Timeline:
        """Of knobs that changed between two moments, such as the first phase's begin and the last one's end."""
        every = {(ENFORCED_CAP, device): steps[device] for device in sorted(steps)}
        every |= {key: others[key] for key in sorted(others)}
        told = {key: s for key, s in every.items() if len(set(s.values)) <= MOST_SETTINGS}
        # A knob that stays sets nothing apart.
        changed = tuple(dict.fromkeys(name for (name, _), s in told.items() if len(s.between(*within)) > 1))
        told = {key: s for key, s in told.items() if key[0] in changed}
        changes: list[list[int]] = []
        for begin, end in sorted(change for s in told.values() for change in s.changes_ns):
            if changes and begin <= changes[-1][1]:
                changes[-1][1] = max(changes[-1][1], end)
            else:
                changes.append([begin, end])
        if not changes:
            return cls(steps, others=others)
        begin_ns, end_ns = np.array(changes, np.int64).T
        settings = []
        for since_ns in (_FIRST_NS, *end_ns.tolist()):
            here = [(name, device, s.between(since_ns, since_ns)[0]) for (name, device), s in told.items()]
            caps_w = tuple((device, watts) for name, device, watts in here if name == ENFORCED_CAP)
            settings.append(Enforced(caps_w, tuple(x for x in here if x[0] != ENFORCED_CAP)))
        return cls(steps, begin_ns, end_ns, tuple(settings), others, changed=changed)

    @property
    def devices(self) -> tuple[str, ...]:
        """Those of which something is known."""
        return tuple(dict.fromkeys([*self.steps, *(device for _, device in self.others)]))

    @property
    def changing(self) -> Enforced:
        """The setting of phases during which a knob was changed."""
        return Enforced(changing=self.changed)

    def spans(self, begin_ns: Ints, end_ns: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """[m] the number of the last setting that intervals can have seen the begin of, and whether they lie in it."""
        span = np.searchsorted(self.end_ns, begin_ns, "right")
        return span, np.asarray(end_ns <= np.append(self.begin_ns, _LAST_NS)[span])

    def holds(self, setting: Enforced, t_ns: Ints) -> NDArray[np.bool_]:
        """[n] at which moments a setting was in force."""
        span, is_in = self.spans(t_ns, t_ns)
        is_this = np.array([s == setting for s in self.settings])
        return ~is_in if setting.is_changing else is_in & is_this[span]
