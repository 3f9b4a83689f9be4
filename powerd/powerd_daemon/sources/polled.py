"""Meters that are asked for one reading at a time, whatever they are asked by, and what becomes of their answers.

A `Meter` is what one transfer reaches: a file, a question over HTTP, a program's output, a library's function. Its
`MeterAnswer` holds raw codes by line. `PolledSource` asks its meters at every poll and turns what comes into readings:
timed at the middle of the transfer, flagged where that failed, and the source as a whole lost where none answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import (
    Accuracy,
    Column,
    CounterConversion,
    Device,
    Flag,
    Line,
    Provenance,
    ScaledConversion,
    Stream,
)
from powerd_daemon.sources.base import LEAST_RATE_HZ, LineOutput, Source, Start

CODES_PER_UNIT = 1_000_000
"""Codes are microwatts and microjoules: whole numbers that hold what was printed without rounding to binary."""
POWER = ScaledConversion("power_uw", 1 / CODES_PER_UNIT)
ENERGY = CounterConversion("energy_uj", 1 / CODES_PER_UNIT)
MOST_CODE = 1 << 62
LOST = 5
"""So many readings in a row that failed or did not come, and the source has to be opened again."""
SILENCE = 3
"""So many times the usual distance without a new reading is a silence."""


class Unanswered(Exception):
    """One reading failed, for the reason in its text: the next may come."""


@dataclass(frozen=True, slots=True)
class MeterChannel:
    """One line of a meter, and how its codes come about."""

    line: str
    device: str
    description: str
    accuracy: Accuracy
    conversion: ScaledConversion | CounterConversion = POWER
    age_ns: int = 0
    """From the centre of what a reading shows to the middle of the transfer."""


@dataclass(frozen=True, slots=True)
class MeterAnswer:
    """What came of one transfer."""

    codes: Mapping[str, int]
    """By line; a line that is not in it had no value."""
    t_ns: int | None = None
    """When it was measured or arrived; None where that is the middle of the transfer."""
    stamp: object = None
    """The meter's own time or number of it, where it tells one: with the same codes again, it is no new reading."""
    is_late: bool = False
    """Whether nobody looked when it came, so that its time is not known."""


class Meter(ABC):
    """What one transfer reaches. ``channels`` are known once it is made."""

    channels: tuple[MeterChannel, ...]
    period_ns: int
    """Usual distance of its readings."""
    timeout_ns: int = 0
    """A transfer that takes longer tells no time any more; 0 where it cannot."""
    detail: Mapping[str, object]
    """For the run file: who it is, how it is asked."""

    @abstractmethod
    def ask(self) -> Iterable[MeterAnswer]:
        """What is there now: one answer of a meter that is asked, all since the last call of one that sends by itself.
        Raises `Unanswered`, or `SensorError` where the meter has to be opened again."""

    def close(self) -> None:  # noqa: B027  (nothing to release is the common case)
        """Let go of it. May be called twice."""


class _State:
    """What became of a meter's answers so far."""

    def __init__(self, now_ns: int) -> None:
        self.heard_ns = now_ns
        self.last: tuple[object, Mapping[str, int]] | None = None
        """Stamp and codes of the last reading."""
        self.failures = 0
        """In a row."""
        self.failed = self.repeated = self.late = self.silences = 0
        self.why = ""


class PolledSource(Source):
    """A source of meters that are asked. Subclasses implement `find_meters` and `describe_devices`.

    A transfer that fails is a reading flagged `Flag.IO_ERROR`, a value that the meter does not have `Flag.MISSING`, and
    an answer that came too late to have a time, or keeps the stamp of the one before, `Flag.STALE`.
    """

    is_untested: ClassVar[bool] = True

    def __init__(self, options: Any, start: Start) -> None:
        super().__init__(options, start)
        self._meters: tuple[Meter, ...] = ()
        self._states: list[_State] = []
        self._outputs: dict[str, LineOutput] = {}

    @abstractmethod
    def find_meters(self) -> Sequence[Meter]:
        """Get hold of the meters, each asked once where that tells what it has. Raises `SensorError`, `ConfigError` or
        `Unanswered`."""

    def describe_devices(self, channels: Sequence[MeterChannel]) -> tuple[Device, ...]:
        """Each device with the first of its lines as its feed: the others measure the same power by other means."""
        first = {c.device: c for c in reversed(channels)}
        return tuple(Device(name, (c.line,), c.description) for name, c in reversed(first.items()))

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        try:
            self._meters = tuple(self.find_meters())
        except Unanswered as error:
            raise SensorError(str(error)) from error
        self._states = [_State(self.start.clock.now_ns()) for _ in self._meters]
        streams = tuple(self._add(meter, channel) for meter in self._meters for channel in meter.channels)
        return streams, self.describe_devices([c for meter in self._meters for c in meter.channels])

    def poll(self) -> None:
        for meter, state in zip(self._meters, self._states, strict=True):
            self._ask(meter, state)
        if all(state.failures >= LOST for state in self._states):
            raise SensorError(f"no reading {LOST} times in a row: {self._states[0].why}")

    def health(self) -> dict[str, object]:
        by_line = {m.channels[0].line: s for m, s in zip(self._meters, self._states, strict=True)}
        return {
            "failed_reads": {line: state.failed for line, state in by_line.items()},
            "repeated_answers": {line: state.repeated for line, state in by_line.items()},
            "late_answers": {line: state.late for line, state in by_line.items()},
            "silences": sum(state.silences for state in by_line.values()),
        }

    def close(self) -> None:
        for meter in self._meters:
            meter.close()

    def _ask(self, meter: Meter, state: _State) -> None:
        begin_ns = self.start.clock.now_ns()
        answers: Iterable[MeterAnswer] = ()
        try:
            answers = meter.ask()
        except Unanswered as error:
            state.failed += 1
            state.failures += 1
            state.why = str(error)
            state.heard_ns = begin_ns
            self._flag(meter, (begin_ns + self.start.clock.now_ns()) // 2, Flag.IO_ERROR)
        now_ns = self.start.clock.now_ns()
        is_slow = 0 < meter.timeout_ns < now_ns - begin_ns
        is_repeated = False
        for answer in answers:
            is_repeated = answer.stamp is not None and (answer.stamp, answer.codes) == state.last
            state.repeated += is_repeated
            is_late = is_slow or answer.is_late
            state.late += is_late
            if not is_repeated:
                state.last, state.heard_ns, state.failures = (answer.stamp, answer.codes), now_ns, 0
                t_ns = (begin_ns + now_ns) // 2 if answer.t_ns is None else answer.t_ns
                self._put(meter, answer, t_ns, is_late=is_late)
        if now_ns - state.heard_ns > SILENCE * meter.period_ns:
            # Told again after every usual distance, in the place of the readings that did not come.
            state.silences += 1
            state.failures += 1
            state.why = "nothing new came"
            state.heard_ns += meter.period_ns
            self._flag(meter, state.heard_ns, Flag.STALE if is_repeated else Flag.MISSING)

    def _put(self, meter: Meter, answer: MeterAnswer, t_ns: int, *, is_late: bool) -> None:
        for channel in meter.channels:
            code = answer.codes.get(channel.line)
            flag = Flag.MISSING if code is None else Flag.STALE if is_late else 0
            self._outputs[channel.line].append(t_ns - channel.age_ns, 0 if flag else code or 0, flag)

    def _flag(self, meter: Meter, t_ns: int, flag: Flag) -> None:
        for channel in meter.channels:
            self._outputs[channel.line].append(t_ns - channel.age_ns, 0, flag)

    def _add(self, meter: Meter, channel: MeterChannel) -> Stream:
        # Nobody knows at which moment within its transfer a meter looks.
        accuracy = replace(channel.accuracy, centre_ns=channel.accuracy.centre_ns + meter.timeout_ns // 2)
        line = Line(
            channel.line, channel.device, channel.conversion, Provenance.MEASURED, accuracy, channel.description
        )
        stream = self.add_stream((Column(channel.conversion.column, "q"),), (line,), meter.period_ns, meter.detail)
        self._outputs[channel.line] = LineOutput(self.builders[-1])
        return stream


def check_pace(rate_hz: float, timeout_s: float = 0.001, u_gain: float = 1.0) -> None:
    """Raises `ConfigError` for options of a polled source that cannot be met."""
    if not LEAST_RATE_HZ <= rate_hz <= 1000:
        raise ConfigError(f"rate_hz = {rate_hz:g} is not between {LEAST_RATE_HZ:g} and 1000")
    if not 0.001 <= timeout_s <= 10:
        raise ConfigError(f"timeout_s = {timeout_s:g} is not between 0.001 and 10")
    if u_gain <= 0:
        raise ConfigError("u_gain must be positive: no meter is exact")


def micro_code(value: Decimal) -> int:
    """A value in whole micro-units. Raises ValueError for what is no finite number of a meter."""
    if not value.is_finite() or abs(value) * CODES_PER_UNIT >= MOST_CODE:
        raise ValueError(f"{value} is beyond what any meter measures")
    return int((value * CODES_PER_UNIT).to_integral_value())
