"""What a source is: a driver that produces readings, run by a sampler process of its own.

A source registers under the entry-point group ``powerd.sources``; the configuration names it by that or as
``module.path:Class``. The configuration's options become an instance of its ``Options`` dataclass. The sampler then
calls `open` once, `poll` at deadlines ``period_ns`` apart, `take` a few dozen times a second, and `close` once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar

from powerd_core.errors import ConfigError
from powerd_core.model import Block, BlockBuilder, Column, Device, Gap, Line, Stream
from powerd_core.text import did_you_mean
from powerd_daemon.clock import Clock

GROUP = "powerd.sources"
UNTESTED = "untested on hardware"
"""Said wherever a source is chosen and its readings are shown that was tested against simulated answers alone."""
FIRST_GARBLED = "first_garbled"
"""In `Source.health`: the first text that was no reading. powerd logs it, once for each source."""
LEAST_RATE_HZ = 0.001
"""The slowest pace of a source: a reading in a quarter of an hour."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a source is told when its sampler starts."""

    name: str
    """The source's name in the configuration, unique within it."""
    epoch: int
    first_stream: int
    """Number of its first stream; further streams count up from it (at most 256)."""
    clock: Clock
    next_sequence: Mapping[int, int] = field(default_factory=dict)
    """First sequence number to give out for each stream number (0 where absent): a restarted sampler goes on."""


class Source(ABC):
    """A driver that produces readings. Subclasses set ``Options`` and implement `open` and `poll`."""

    Options: ClassVar[type[Any]]
    """A frozen dataclass of the options that the configuration may give, with their defaults."""
    catches_up: ClassVar[bool] = False
    """Whether a late `poll` makes up for the deadlines before it, so that none is missed."""
    is_untested: ClassVar[bool] = False
    """Whether the source has never met what it measures with: said in its help and with its lines (`UNTESTED`)."""

    def __init__(self, options: Any, start: Start) -> None:
        """Keep what is needed; touch no hardware. Raises `ConfigError` for options that cannot work together."""
        self.options = options
        self.start = start
        self.builders: list[BlockBuilder] = []
        """One for each stream, once open: `poll` appends readings to them and `take` empties them."""

    @property
    def period_ns(self) -> int:
        """Distance of two polls: that of the option ``rate_hz``, unless a source says otherwise."""
        period_ns: int = round(1e9 / self.options.rate_hz)
        return period_ns

    def foresee(self) -> tuple[Line, ...] | None:
        """The lines that `open` will describe, where the options alone tell; None where the hardware has to be asked.

        A configuration whose lines cannot go together is then refused when it is read.
        """
        return None

    @abstractmethod
    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        """Get hold of the sensor and say what it measures. Raises `SensorError` or `ConfigError`."""

    @abstractmethod
    def poll(self) -> None:
        """Take one scan. A failed reading is a flagged reading, not an exception; `SensorError` means that the source
        as a whole is lost and has to be opened again."""

    def take(self) -> list[Block | Gap]:
        """Everything since the last call, in the order of its sequence numbers within each stream."""
        blocks = (builder.take() for builder in self.builders)
        return [block for block in blocks if block]

    def finish(self) -> list[Block | Gap]:
        """What `take` gives and whatever was still held back, for instance to be confirmed. Called before `close`."""
        return self.take()

    def health(self) -> dict[str, object]:
        """What `powerd stats` is to say about the sensors beside the sampler's own figures: counters since `open` and
        the state of things, by name, as plain JSON values. Asked for every second and once more before `close`, also
        when the sensor was just lost; must be cheap and must not ask the sensor."""
        return {}

    def close(self) -> None:  # noqa: B027  (nothing to release is the common case)
        """Let go of the sensor. Called once, also after an error in `open`."""

    def add_stream(
        self, columns: Iterable[Column], lines: Iterable[Line], period_ns: int, detail: Mapping[str, object]
    ) -> Stream:
        """The source's next stream, in this epoch and numbered where its last sampler left off."""
        start = self.start
        if self.is_untested:
            detail = {**detail, "untested": UNTESTED}
        stream = Stream(
            start.first_stream + len(self.builders), start.name, tuple(columns), tuple(lines), period_ns, detail
        )
        self.builders.append(BlockBuilder(stream, start.epoch, start.next_sequence.get(stream.number, 0)))
        return stream


class LineOutput:
    """Readings of a stream with one line and one column, each later than the one before."""

    def __init__(self, builder: BlockBuilder) -> None:
        self.builder = builder
        self.last_ns = -(1 << 62)

    def append(self, t_ns: int, code: int, flag: int = 0) -> None:
        """One reading, unless it is not later than the one before."""
        if t_ns > self.last_ns:
            self.last_ns = t_ns
            self.builder.append(t_ns, (0,), (flag,), ((code,),))


def devices_of(stream: Stream, description: str) -> tuple[Device, ...]:
    """The devices that a stream's lines belong to, each fed by all of its lines."""
    owners = dict.fromkeys(line.device for line in stream.lines)
    return tuple(Device(o, tuple(n.name for n in stream.lines if n.device == o), description) for o in owners)


def kinds() -> tuple[str, ...]:
    """The registered kinds of source, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def find_source(kind: str) -> type[Source]:
    """The class behind ``kind``. Raises `ConfigError` when it is unknown, cannot be imported or is no source."""
    if ":" in kind:
        point = EntryPoint(name=kind, group=GROUP, value=kind)
    else:
        points = [point for point in entry_points(group=GROUP) if point.name == kind]
        if not points:
            raise ConfigError(f"unknown kind of source {kind!r}{did_you_mean(kind, kinds())} (or module.path:Class)")
        point = points[0]
    try:
        source = point.load()
    except Exception as error:
        # Whatever a third party's module does while it is imported is a fault of the configuration that names it.
        raise ConfigError(f"source {kind!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(source, type) and issubclass(source, Source) and is_dataclass(source.Options)):
        raise ConfigError(f"source {kind!r} is not a subclass of powerd_daemon.sources.base.Source with Options")
    return source
