"""What a device was set to: its product, its power cap and its clocks, as asked, as requested and as enforced.

What a script writes into the attributes of its phases is a label (*asked*). What somebody asked the driver for is
*requested*: its management limit, or what an event says. What the driver held the card to is *enforced*: an auxiliary
channel of its own, else what an event says (`powerd_core.settings`). The enforced value wins, and a note says where it
is not what was asked. A device that no driver reads, such as one behind a sensor board, has its label alone. No driver
tells a clock that was locked: without events a clock that phases state counts as chosen. A clock that was merely
observed is an outcome, as the power is, and no setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.output.text import is_number_cell, join_texts
from powerd_analytics.runs.in_force import TOLERANCE_W, Enforced, Steps, enforced_name, steps_of, watts_text
from powerd_analytics.runs.phases import positive_number
from powerd_analytics.runs.ranks import device_identity
from powerd_analytics.runs.run import Run, stated_settings
from powerd_client.signals.signal import Readings, RunLine
from powerd_core.lease import Evidence
from powerd_core.model import Conversion, QuantityConversion, quantity_of
from powerd_core.settings import KNOB_OF_NAME, UNITS, KnobSetting
from powerd_core.text import times
from powerd_core.verdict import CLOCK_STEP_MHZ, Verdict, judge, worst

AMBIENT = "ambient_c"
"""Attribute of phases, and column of the frame."""
ENFORCED, STATED, REQUESTED = "enforced", "stated", "requested"
"""Where the value of a setting comes from: the driver's channel, the phases' attributes, the limit that the driver had
when its source was opened."""


_LIMITS_ARE_READ_NS = 1_000_000_000
"""How far the driver's limits are read apart."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One quantity that can be set, in its own unit; None where nobody says it."""

    asked: float | None = None
    """Attribute of the phases."""
    requested: float | None = None
    """Of the driver. Where no line tells it, what it was when the driver's source was opened, maybe long before."""
    enforced: float | None = None
    """By the driver, all through; None where it changed meanwhile."""
    observed: float | None = None
    """Mean of what was read of it while the device worked: an outcome."""
    readings: int = 0
    """So many is `observed` the mean of."""
    is_driven: bool = False
    """A driver tells what it enforces: nothing else stands for that."""

    @property
    def value(self) -> float | None:
        """What counts as the setting."""
        return self._told[0]

    @property
    def basis(self) -> str | None:
        """Where `value` comes from: `ENFORCED`, `STATED` or `REQUESTED`; None without a value."""
        return self._told[1]

    @property
    def _told(self) -> tuple[float | None, str | None]:
        ways = [(self.enforced, ENFORCED)]
        if not self.is_driven:
            ways += [(self.asked, STATED), (self.requested, REQUESTED)]
        return next(((value, basis) for value, basis in ways if value is not None), (None, None))


@dataclass(frozen=True, slots=True)
class DeviceSetting:
    """What one device was set to while some phases ran."""

    product: str | None
    """Attribute of the phases, else as the driver names it."""
    power_cap_w: Setting
    clock_hz: Setting
    """Of the multiprocessors."""
    memory_clock_hz: Setting
    verdict: str
    """Whether what was set was honoured (`powerd_core.verdict`), empty where the driver tells nothing by which to
    judge and nobody asked for anything."""
    verdict_note: str
    """Why, in a few words."""
    is_held: bool
    """Whether somebody held a lease of one of its knobs."""
    note: str
    """How what was enforced differs from what was asked or requested, or that it changed; mostly empty."""


@dataclass(frozen=True, slots=True)
class Driver:
    """A GPU as its driver describes it; None for what is not known."""

    product: str | None
    version: str | None
    cuda: str | None
    """The newest CUDA that the driver serves."""
    power_limit_w: float | None
    default_power_limit_w: float | None
    least_power_limit_w: float | None
    greatest_power_limit_w: float | None

    def text(self) -> str:
        """In words; empty for a device that no driver described."""
        reach = (self.least_power_limit_w, self.greatest_power_limit_w)
        limits = [f"default {self.default_power_limit_w:g} W"] if self.default_power_limit_w is not None else []
        limits += [f"{reach[0]:g} to {reach[1]:g} W can be set"] if None not in reach else []
        limit = "" if self.power_limit_w is None else f"power limit {self.power_limit_w:g} W"
        limit += f" ({', '.join(limits)})" if limit and limits else ""
        return ", ".join(filter(None, (self.product, self.version and f"driver {self.version}", limit)))


def settings_of(run: Run) -> Settings:
    """The settings of a run's devices."""
    return Settings(run)


Span = tuple[int, int, Enforced | None]
"""Host times between which phases ran, and the setting of their class: what is observed then counts only where that was
in force."""


class Settings:
    """The settings of a run's devices, by what its lines tell; lines are read when they are needed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._channels = _Channels(run)
        self._caps = _Caps(self._channels)
        self._clocks = _Clocks(self._channels)
        self._verdicts = _Verdicts(self._channels, self._caps, self._clocks)

    def of(
        self,
        device: str,
        begin_ns: int,
        end_ns: int,
        stated: Mapping[str, Any],
        setting: Enforced | None = None,
    ) -> DeviceSetting:
        """The setting of a device while phases with the attributes ``stated`` ran, between two host times.

        ``setting`` is that of their class (`PhaseClass.setting`): what is observed then counts only where it was in
        force. Attributes that are no positive numbers say nothing.
        """
        span = (begin_ns, end_ns, setting)
        cap, _ = self._caps.of(device, span, stated)
        clocks = [
            replace(self._clocks.locked(device, knob, span, stated), observed=observed, readings=readings)
            for knob, clock in _CLOCKS.items()
            for observed, readings in [self._clocks.observed(device, clock.line, span)]
        ]
        verdict, why, is_held = self._verdicts.of(device, span, cap)
        return DeviceSetting(
            product=_text(stated.get("device_name")) or self._channels.text(device, "name"),
            power_cap_w=cap,
            clock_hz=clocks[0],
            memory_clock_hz=clocks[1],
            verdict=verdict,
            verdict_note=why,
            is_held=is_held,
            note=self.note_of(device, begin_ns, end_ns, stated, setting),
        )

    def note_of(
        self,
        device: str,
        begin_ns: int,
        end_ns: int,
        stated: Mapping[str, Any],
        setting: Enforced | None = None,
    ) -> str:
        """The note of `of` alone, for which no further line is read."""
        span = (begin_ns, end_ns, setting)
        _, note = self._caps.of(device, span, stated)
        return join_texts(
            note, *(_clock_note(knob, self._clocks.locked(device, knob, span, stated)) for knob in _CLOCKS)
        )

    def note_of_run(self, device: str) -> str:
        """What is to be said of a device over a whole recording: what was held, that its settings changed, a power cap
        that nobody asked for, and one that an event states and its driver did not enforce."""
        channels, whole = self._channels, (self._run.begin_ns, self._run.end_ns, None)
        driver, of_phases = channels.driver_of(device), channels.span_of_phases()
        # A lease that ended behind the training changed nothing for it.
        is_set = any(s.device == driver for _, s in channels.events)
        span = of_phases if of_phases is not None and is_set else whole
        notes = [self._caps.of(device, span, {})[1], *self._clocks.changes(driver, span)]
        if of_phases is not None:
            notes = [self._verdicts.held(device, of_phases), self._caps.unasked(device, of_phases), *notes]
        return join_texts(*notes, self._caps.contradiction(driver))

    def ambient_c(self, begin_ns: int, end_ns: int, stated: Mapping[str, Any]) -> float | None:
        """The temperature around the machine over a stretch: the mean of the line that is called ambient, else what
        phases with the attributes ``stated`` say."""
        degrees = self._channels.ambient((begin_ns, end_ns, None))
        return float(degrees.mean()) if len(degrees) else positive_number(stated, AMBIENT)

    def driver(self, device: str) -> Driver:
        """What the driver said of a GPU when its source was opened."""
        limits = (self._channels.watts(device, f"{name}power_limit_mw") for name in ("", "default_", "min_", "max_"))
        product, version, cuda = (
            self._channels.text(device, name) for name in ("name", "driver_version", "cuda_version")
        )
        return Driver(product, version, cuda, *limits)


class _Channels:
    """What the channels of a GPU's driver and the events of a run tell, each read once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.events = stated_settings(run.events)
        self._read: dict[str, Readings] = {}
        self._drivers: dict[str, str] = {}

    def driver_of(self, device: str) -> str:
        """The device under whose name the driver's channels of a GPU are: nearly always the same. A board's device
        that says which GPU it is has those of that GPU."""
        if device not in self._drivers:
            run, told = self.run, self.run.enforced.devices
            others = [d for d in told if d in run.devices] if device in run.devices and device not in told else []
            own = device_identity(run, device) if others else None
            same = [d for d in others if own and own.overlaps(device_identity(run, d))]
            self._drivers[device] = same[0] if same else device
        return self._drivers[device]

    def span_of_phases(self) -> Span | None:
        """From the first phase to the last."""
        phases = self.run.phases
        return (int(phases.begin_ns.min()), int(phases.end_ns.max()), None) if len(phases) else None

    def stated(self, driver: str, knob: str) -> list[tuple[int, KnobSetting]]:
        """What events say of a knob, with their times."""
        return [(t_ns, s) for t_ns, s in self.events if (s.device, s.knob) == (driver, knob)]

    def stating(self, driver: str, knob: str, enforced: float | None, end_ns: int) -> KnobSetting | None:
        """The last event that states what was enforced of a knob."""
        alike = [s for t_ns, s in self.stated(driver, knob) if t_ns <= end_ns and s.enforced == enforced]
        return alike[-1] if alike and enforced is not None else None

    def last(self, driver: str, end_ns: int) -> dict[str, KnobSetting]:
        """By knob what was stated last."""
        return {s.knob: s for t_ns, s in self.events if s.device == driver and t_ns <= end_ns}

    def text(self, device: str, key: str) -> str | None:
        """A text by which the device's lines are described, as ``name`` for the product."""
        texts = (line.detail.get(key) for line in self._described(device))
        return next((text for text in texts if isinstance(text, str) and text), None)

    def watts(self, device: str, key: str) -> float | None:
        """A limit of milliwatts by which they are described."""
        limits = (positive_number(line.detail, key) for line in self._described(device))
        return next((mw / 1e3 for mw in limits if mw is not None), None)

    def _described(self, device: str) -> list[RunLine]:
        return [*self.lines(device), *self.lines(self.driver_of(device))]

    def lines(self, device: str) -> list[RunLine]:
        return [line for line in self.run.lines.values() if line.device == device]

    def good(self, line: str, column: str) -> Readings:
        if line not in self._read:
            self._read[line] = self.run.good_readings(line, column)
        return self._read[line]

    def series(self, driver: str, suffix: str, span: Span) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Times and values of a channel of the driver in a stretch, in order; empty where there is none."""
        begin_ns, end_ns, setting = span
        line = next((x for x in self.lines(driver) if x.name.endswith(f".{suffix}")), None)
        if line is None or not isinstance(line.conversion, QuantityConversion):
            return np.zeros(0, np.int64), np.zeros(0)
        read = self.good(line.name, line.conversion.column)
        here = (read.t_ns >= begin_ns) & (read.t_ns <= end_ns)
        if setting is not None:
            here &= self.run.enforced.holds(setting, read.t_ns)
        return read.t_ns[here], read.codes[line.conversion.column][here] * line.conversion.per_code

    def ambient(self, span: Span) -> NDArray[np.float64]:
        """Readings of the temperature around the machine; empty where nothing measures it."""
        lines = (x for x in self.run.lines.values() if x.name.rpartition(".")[2] == "ambient")
        line = next((x for x in lines if quantity_of(x.conversion) == "temperature_c"), None)
        return np.zeros(0) if line is None else self.series(line.device, "ambient", span)[1]

    def clock_with_events(self, driver: str, suffix: str, span: Span) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Readings of a clock in hertz, and what the driver told in the same scans of why it was so."""
        t_ns, clock_hz = self.series(driver, suffix, span)
        events_ns, reasons = self.series(driver, "clock_events", span)
        if not len(events_ns):
            return clock_hz[:0], np.zeros(0, np.int64)
        after = np.searchsorted(events_ns, t_ns).clip(max=len(events_ns) - 1)
        before = (after - 1).clip(0)
        is_before = np.abs(events_ns[before] - t_ns) < np.abs(events_ns[after] - t_ns)
        near = np.where(is_before, before, after)
        is_same_scan = np.abs(events_ns[near] - t_ns) <= _SCAN_NS
        return clock_hz[is_same_scan], reasons[near[is_same_scan]].astype(np.int64)


class _Caps:
    """Power caps, as asked, as requested and as enforced."""

    def __init__(self, channels: _Channels) -> None:
        self._channels, self._enforced = channels, channels.run.enforced
        self._requested: dict[str, Steps | None] = {}

    def of(self, device: str, span: Span, stated: Mapping[str, Any]) -> tuple[Setting, str]:
        """The power cap over a stretch in which phases with the attributes ``stated`` ran, and how what was enforced
        differs from what was asked or requested. No line of readings is read but that of what was requested."""
        begin_ns, end_ns, setting = span
        asked, driver = positive_number(stated, "power_cap_w"), self._channels.driver_of(device)
        steps, told = self._enforced.steps.get(driver), self._requested_steps(driver)
        requested = _only(told, begin_ns, end_ns) if told else self._opened_w(driver)
        if steps is None:
            # Of a device without such a channel, as a wall meter: a label, else the one cap of all that have a driver.
            alike = setting.value if setting is not None and asked is None else None
            note = ""
            if _differs(asked, requested):
                when = "" if told else " when its source was opened"
                note = f"{_claim(asked)}, the driver was set to {watts_text(requested)}{when}"
            return Setting(asked, requested, float(alike) if is_number_cell(alike) else None), note
        caps = dict(setting.caps_w) if setting is not None else {}
        enforced = caps[driver] if driver in caps else _only(steps, begin_ns, end_ns)
        enforced = enforced or None
        if driver not in self._enforced.by_line:
            said = self._channels.stating(driver, "power_cap", enforced, end_ns)
            asked = asked if asked is not None or said is None else said.asked
            requested = requested if said is None else said.requested
        cap = Setting(asked, requested, enforced, is_driven=True)
        if enforced is None:
            watts = steps.between(begin_ns, end_ns)
            return cap, _changes(watts) if len(watts) > 1 else ""
        claims = [_claim(asked)] if _differs(asked, enforced) else []
        is_told = told is not None or driver not in self._enforced.by_line
        claims += [f"{watts_text(requested)} were requested"] if is_told and _differs(requested, enforced) else []
        return cap, ", ".join([*claims, f"the driver enforced {watts_text(enforced)}"]) if claims else ""

    def unasked(self, device: str, span: Span) -> str:
        """A power cap that nobody asked for in this run, and that is not the device's own."""
        driver, classes = self._channels.driver_of(device), self._channels.run.phases.classes
        if self._channels.stated(driver, "power_cap") or any("power_cap_w" in kind.attributes for kind in classes):
            return ""
        enforced_w = self.of(device, span, {})[0].enforced
        default_w = self._channels.watts(device, "default_power_limit_mw")
        if not _differs(enforced_w, default_w):
            return ""
        return f"a power cap of {watts_text(enforced_w)} was in force, not the default of {watts_text(default_w)}"

    def contradiction(self, driver: str) -> str:
        """The first power cap that an event states and that the driver's own readings do not have."""
        told = self._channels.stated(driver, "power_cap")
        if not told or driver not in self._enforced.by_line:
            return ""
        ends = [*(t_ns for t_ns, _ in told[1:]), self._channels.run.end_ns]
        for (t_ns, stated), end_ns in zip(told, ends, strict=True):
            caps = self._enforced.steps[driver].between(t_ns, end_ns)
            if t_ns >= self._last_ns(driver) - _LIMITS_ARE_READ_NS:
                continue  # the driver was not asked any more, or may have been asked just before
            if stated.enforced is not None and all(_differs(w, stated.enforced) for w in caps):
                at_s = (t_ns - self._channels.run.begin_ns) * 1e-9
                return (
                    f"an event at {at_s:.3f} s says a cap of {watts_text(stated.enforced)}, "
                    f"the driver enforced {watts_text(caps[-1])}"
                )
        return ""

    def _last_ns(self, driver: str) -> int:
        """When the driver was last asked for its limit."""
        lines = [x for x in self._channels.lines(driver) if x.quantity == "power_limit_w"]
        last = [self._channels.good(x.name, x.conversion.column).t_ns[-1:] for x in lines if _is_quantity(x.conversion)]
        return max((int(t_ns[0]) for t_ns in last if len(t_ns)), default=0)

    def _requested_steps(self, device: str) -> Steps | None:
        if device not in self._requested:
            lines = [line for line in self._channels.lines(device) if line.quantity == "power_limit_w"]
            line = next((line for line in lines if line.name.endswith("_requested")), None)
            self._requested[device] = self._steps(line) if line is not None else None
        return self._requested[device]

    def _steps(self, line: RunLine) -> Steps | None:
        c = line.conversion
        if not isinstance(c, QuantityConversion):
            return None
        read = self._channels.good(line.name, c.column)
        return steps_of(read.t_ns, read.codes[c.column] * c.per_code) if len(read.t_ns) else None

    def _opened_w(self, device: str) -> float | None:
        """The management limit when the driver's source was opened."""
        limits = (positive_number(line.detail, "power_limit_mw") for line in self._channels.lines(device))
        return next((mw / 1e3 for mw in limits if mw is not None), None)


class _Clocks:
    """Clocks: as events say that they were enforced, as phases state them, and as they were observed."""

    def __init__(self, channels: _Channels) -> None:
        self._channels, self._enforced = channels, channels.run.enforced
        self._observed: dict[tuple[str, str, Span], tuple[float | None, int]] = {}

    def locked(self, device: str, knob: str, span: Span, stated: Mapping[str, Any]) -> Setting:
        """A clock: as events say that it was enforced, else as phases state it."""
        clock, driver, setting = _CLOCKS[knob], self._channels.driver_of(device), span[2]
        of_class = setting.of(enforced_name(knob, UNITS[knob]), driver) if setting is not None else None
        told = self._locks(driver, knob, span) if of_class is None else (of_class,)
        mhz = told[0] if len(told) == 1 and told[0] else None
        said, asked_hz = self._channels.stating(driver, knob, mhz, span[1]), asked_clock_hz(stated, clock.attribute)
        return Setting(
            asked_hz if asked_hz is not None or said is None else _hz(said.asked),
            None if said is None else _hz(said.requested),
            _hz(mhz),
            is_driven=mhz is not None or len(told) > 1,
        )

    def changes(self, driver: str, span: Span) -> Iterator[str]:
        """A note on each clock that was locked at several values."""
        for knob in _CLOCKS:
            changes = len(self._locks(driver, knob, span)) - 1
            if changes > 0:
                yield f"the {KNOB_OF_NAME[knob].words} that was enforced changed {times(changes)}"

    def _locks(self, driver: str, knob: str, span: Span) -> Sequence[float]:
        """What was enforced of a clock, one after the other."""
        steps = self._enforced.others.get((enforced_name(knob, UNITS[knob]), driver))
        return () if steps is None else steps.between(span[0], span[1])

    def observed(self, device: str, suffix: str, span: Span) -> tuple[float | None, int]:
        """Mean of a clock while the device worked, or of all readings where its driver does not tell when that was; and
        of how many."""
        key = driver, _, _ = self._channels.driver_of(device), suffix, span
        if key not in self._observed:
            clock_hz, bits = self._channels.clock_with_events(driver, suffix, span)
            worked = clock_hz[(bits & _IDLE) == 0] if len(bits) else self._channels.series(driver, suffix, span)[1]
            self._observed[key] = float(worked.mean()) if len(worked) else None, len(worked)
        return self._observed[key]

    def beside(self, driver: str, held: KnobSetting, span: Span) -> str:
        """The clock that was measured, where it was off its lock: a cap may hold it below."""
        clock, asked_mhz = _CLOCKS.get(held.knob), held.asked
        observed_hz = self.observed(driver, clock.line, span)[0] if clock is not None else None
        if observed_hz is None or asked_mhz is None or abs(observed_hz * 1e-6 - asked_mhz) <= CLOCK_STEP_MHZ:
            return ""
        return f" ({observed_hz * 1e-6:.0f} MHz measured)"

    def looks(self, driver: str, suffix: str, asked_mhz: float, span: Span) -> tuple[int, int]:
        """How often a clock was read while the device worked, and how often it was off its lock without a reason."""
        clock_hz, bits = self._channels.clock_with_events(driver, suffix, span)
        works = (bits & _IDLE) == 0
        off = np.abs(clock_hz * 1e-6 - asked_mhz) > CLOCK_STEP_MHZ
        return int(works.sum()), int((works & off & ((bits & _SLOWED) == 0)).sum())


class _Verdicts:
    """Whether what was set was honoured (`powerd_core.verdict`)."""

    def __init__(self, channels: _Channels, caps: _Caps, clocks: _Clocks) -> None:
        self._channels, self._caps, self._clocks = channels, caps, clocks

    def of(self, device: str, span: Span, cap: Setting) -> tuple[str, str, bool]:
        """Verdict and why over a stretch, and whether somebody held a lease of a knob meanwhile."""
        driver = self._channels.driver_of(device)
        told = self._channels.last(driver, span[1])
        held = {knob: s for knob, s in told.items() if s.asked is not None or s.state in _TAKEN}
        evidence = self._limited(driver, span)
        verdicts = [self._judge(driver, s, span, cap, evidence) for s in held.values()]
        if "power_cap" not in held and evidence.at_cap_s is not None:
            verdicts.append(judge("power_cap", None, cap.requested, cap.enforced, evidence))
        if not verdicts:
            return "", "", False
        verdict, why = worst(verdicts)
        if verdict is Verdict.UNKNOWN and not evidence.duration_s and self._counts(driver):
            why = "too short for the driver's counters, which are read now and then: a run should last some seconds"
        return verdict.value, why, bool(held)

    def held(self, device: str, span: Span) -> str:
        """What was held over a stretch, and the verdict on it: ``power cap 120 W held: honoured, binding``."""
        driver = self._channels.driver_of(device)
        held = [s for s in self._channels.last(driver, span[1]).values() if s.asked is not None]
        texts = [f"{_noun(s)} {s.asked:g} {s.unit} held{self._clocks.beside(driver, s, span)}" for s in held]
        cap, _ = self._caps.of(device, span, {})
        verdict, why, is_held = self.of(device, span, cap)
        return f"{' and '.join(texts) or 'a lease'}: {join_texts(verdict, why)}" if is_held else ""

    def _judge(
        self, driver: str, told: KnobSetting, span: Span, cap: Setting, evidence: Evidence
    ) -> tuple[Verdict, str]:
        if told.state in _TAKEN:
            return Verdict.OVERRIDDEN, told.why
        if told.knob == "power_cap":
            return judge(told.knob, told.asked, cap.requested, cap.enforced, evidence)
        if told.knob in _CLOCKS and told.asked is not None:
            looks, missed = self._clocks.looks(driver, _CLOCKS[told.knob].line, told.asked, span)
            evidence = replace(evidence, looks=looks, missed=missed)
        return judge(told.knob, told.asked, told.requested, told.enforced, evidence)

    def _limited(self, driver: str, span: Span) -> Evidence:
        """What the driver has counted at its limits in a stretch, between the first and the last of its readings."""
        counted: dict[str, float] = {}
        duration_s = 0.0
        for name, suffix in _LIMITED.items():
            t_ns, seconds = self._channels.series(driver, suffix, span)
            if len(t_ns) > 1:
                steps_s = np.diff(t_ns) * 1e-9
                # Readings of another setting between two of ours are no evidence for ours.
                own = steps_s <= 1.5 * float(np.median(steps_s))
                duration_s = float(steps_s[own].sum())
                counted[name] = float(np.diff(seconds)[own].sum())
        return Evidence(duration_s, counted.get("at_cap_s"), counted.get("thermal_s"), counted.get("brake_s"))

    def _counts(self, driver: str) -> bool:
        """Whether there are channels of what the driver counts at its limits."""
        return any(line.name.endswith(f".{_LIMITED['at_cap_s']}") for line in self._channels.lines(driver))


_LIMITED = {"at_cap_s": "at_power_cap", "thermal_s": "thermal", "brake_s": "power_brake"}
"""Members of `Evidence`, and what the names of the channels that count them end with."""
_TAKEN = ("yielded", "lost")
"""States of a lease whose value is not in force any more (`powerd_core.lease.State`)."""
_IDLE, _SLOWED = 0x1, 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Bits of nvmlClocksEventReasons: nothing to do; the power cap, heat or the power brake."""
_SCAN_NS = 20_000_000
"""The channels of one scan are read within this."""


@dataclass(frozen=True, slots=True)
class _Clock:
    attribute: str
    """Of phases, without its unit."""
    line: str
    """What the name of the driver's channel ends with."""


_CLOCKS = {
    "sm_clock": _Clock("clock", "sm_clock"),
    "mem_clock": _Clock("memory_clock", "memory_clock"),
}
"""By knob."""


def _clock_note(knob: str, s: Setting) -> str:
    """How a clock that was enforced is not what was asked or requested."""
    if s.enforced is None:
        return ""
    claims = [f"{mhz_text(s.asked)} were asked"] if s.asked is not None and s.asked != s.enforced else []
    if s.requested is not None and s.requested != s.enforced:
        claims.append(f"{mhz_text(s.requested)} were requested")
    return f"{KNOB_OF_NAME[knob].words}: {', '.join(claims)}, {mhz_text(s.enforced)} enforced" if claims else ""


def _noun(s: KnobSetting) -> str:
    return s.knob.replace("_", " ")


def _is_quantity(conversion: Conversion) -> TypeGuard[QuantityConversion]:
    return isinstance(conversion, QuantityConversion)


def _hz(mhz: float | None) -> float | None:
    return None if mhz is None else mhz * 1e6


def mhz_text(hz: float) -> str:
    """A clock for people: ``1200 MHz``."""
    return f"{hz * 1e-6:g} MHz"


def _only(steps: Steps, begin_ns: int, end_ns: int) -> float | None:
    """The cap that was in force all through, None where there were several."""
    watts = steps.between(begin_ns, end_ns)
    return watts[0] if len(watts) == 1 else None


def _differs(watts: float | None, others: float | None) -> bool:
    return watts is not None and others is not None and abs(watts - others) > TOLERANCE_W


def _claim(asked: float | None) -> str:
    return f"phases say a cap of {watts_text(asked)}"


def _changes(watts: Sequence[float]) -> str:
    times = "once" if len(watts) == 2 else f"{len(watts) - 1} times"
    return f"the power cap changed {times} ({watts_text(min(watts))} to {watts_text(max(watts))})"


def asked_clock_hz(attributes: Mapping[str, Any], name: str = "clock") -> float | None:
    """A clock that phases state in hertz or in megahertz."""
    hz, mhz = positive_number(attributes, f"{name}_hz"), positive_number(attributes, f"{name}_mhz")
    return hz or (mhz * 1e6 if mhz else None)


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)
