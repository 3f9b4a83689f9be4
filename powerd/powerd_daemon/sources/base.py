"""What a source is: a driver that produces readings, run by a sampler process of its own.

A source registers under the entry-point group ``powerd.sources``. The configuration's options become an instance
of its ``Options`` dataclass; the sampler then calls `open` once, `poll` at absolute deadlines ``period_ns`` apart,
`take` a few dozen times a second, and `close` once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from powerd_core.model import Block, BlockBuilder, Device, Gap, Stream
from powerd_daemon.clock import Clock


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

    def builder(self, stream: Stream) -> BlockBuilder:
        """Blocks of one of its streams, in this epoch, numbered where its last sampler left off."""
        return BlockBuilder(stream, self.epoch, self.next_sequence.get(stream.number, 0))


class Source(ABC):
    """A driver that produces readings. Subclasses set ``Options`` and implement the five methods."""

    Options: ClassVar[type[Any]]
    """A frozen dataclass of the options that the configuration may give, with their defaults."""

    def __init__(self, options: Any, start: Start) -> None:
        """Keep what is needed; touch no hardware. Raises `ConfigError` for options that cannot work together."""
        self.options = options
        self.start = start

    @property
    @abstractmethod
    def period_ns(self) -> int:
        """Distance of two polls."""

    @abstractmethod
    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        """Get hold of the sensor and say what it measures. Raises `SensorError` or `ConfigError`."""

    @abstractmethod
    def poll(self) -> None:
        """Take one scan. A failed reading is a flagged reading, not an exception; `SensorError` means that the source
        as a whole is lost and has to be opened again."""

    @abstractmethod
    def take(self) -> list[Block | Gap]:
        """Everything since the last call, in the order of its sequence numbers within each stream."""

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
