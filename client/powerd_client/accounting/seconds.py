"""Joules of every line by seconds of UTC, from the numbered frames of a powerd: what `powerd-accounting` keeps, and
whatever else counts joules as they come.

Between two good readings power is the straight line that `powerd_client.signals.integral` takes, a counter's its mean;
an interval is cut at the edges of seconds, so that the sum over seconds is the integral of the same frames whatever the
clocks did. Rows add up: a second that came in two batches of frames has two rows.

A hole (`Signal.missing_ns`) of at most `BRIDGED_NS` is bridged by that line, a longer one of a line of power is left
out of the joules; the seconds of both are missing. A counter counts on meanwhile: its joules are all there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_client.signals.followed_line import FollowedLine
from powerd_client.signals.signal import (
    Readings,
    RunLine,
    Signal,
    arrays_of,
    columns_of,
    good_readings,
)
from powerd_core.model import Block, Description, Gap, QuantityConversion, Stream

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

SECOND_NS = 1_000_000_000
BRIDGED_NS = 1_000_000_000
"""A hole in a line of power that is longer is left out of the joules."""
_MINUTE_NS, _LONG_NS = 60 * SECOND_NS, 600 * SECOND_NS
"""A hole that is longer than the second comes in minutes: a night without powerd is no 30,000 rows."""
_MOST_EPOCHS = 4
"""Epochs whose late frames may still come; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class LineSeconds:
    """What frames that came together tell of one line, a row for each piece of a second: columns [k]."""

    line: RunLine
    begin_ns: Ints
    """UTC since 1970; a piece ends within the same second (of a hole of more than ten minutes: the same minute)."""
    energy_j: Values
    random_j2: Values
    """Variance of what the readings leave open between them, and in bridged holes. It differs from row to row."""
    time_s: Values
    """How long the piece is, its missing seconds included."""
    missing_s: Values

    @property
    def second(self) -> Ints:
        """Which second of UTC a row is of."""
        return self.begin_ns // SECOND_NS

    @property
    def shared_j(self) -> Values:
        """Standard uncertainty of gain and zero, which all rows of a line share: it adds up one to one."""
        a = self.line.accuracy
        return np.hypot(a.u_gain * self.energy_j, a.u_offset_w * (self.time_s - self.missing_s))


@dataclass(frozen=True, slots=True)
class Reported:
    """Values of an auxiliary channel, such as the power limit in force: [n] each."""

    line: RunLine
    t_ns: Ints
    """UTC."""
    value: Values


@dataclass(slots=True)
class StreamSeconds:
    """How far a stream has been counted."""

    stream: Stream
    lines: dict[str, FollowedLine]
    next: int | None = None
    """The number of the first frame that was not; None before the first one."""
    frames: list[Block | Gap] = field(default_factory=list)
    """In turn, to be counted."""


@dataclass(slots=True)
class EpochSeconds:
    """How far an epoch of a powerd has been counted."""

    description: Description
    streams: dict[int, StreamSeconds]
    offset_ns: int | None = None
    """UTC minus the board's clock, as it was known last."""
    said: set[str] = field(default_factory=set)
    """Lines whose silence until the next epoch's first reading is counted: what comes late takes it back."""

    @classmethod
    def of(cls, description: Description, wanted: Collection[str] | None = None) -> EpochSeconds:
        streams = {}
        for stream in description.streams:
            lines = {
                line.name: FollowedLine(RunLine.of(line, stream, description.board))
                for line in stream.lines
                if wanted is None or line.name in wanted
            }
            streams[stream.number] = StreamSeconds(stream, lines)
        return cls(description, streams)

    def last_of(self, name: str) -> int | None:
        """UTC of the last good reading of a line, None where there is none."""
        followed = next((s.lines[name] for s in self.streams.values() if name in s.lines), None)
        if followed is None or followed.last is None or self.offset_ns is None:
            return None
        return int(followed.last.t_ns[0]) + self.offset_ns


Cuts = Callable[[str], Ints]
"""Moments of UTC, increasing, at which rows of a device are cut beside the edges of seconds."""


def no_cuts(device: str) -> Ints:
    """None."""
    return np.zeros(0, np.int64)


class SecondsIntegral:
    """All lines of the epochs of one powerd: `begin` an epoch, `take` its frames, `settle` them now and then."""

    def __init__(self, wanted: Callable[[Description], Collection[str]] | None = None) -> None:
        """``wanted``: the names of the lines that count; all of them without it."""
        self._wanted = wanted
        self.epochs: dict[int, EpochSeconds] = {}
        """The latest last."""

    def begin(self, description: Description) -> None:
        """A powerd that was started, or found again: nothing where its epoch is known."""
        if description.epoch not in self.epochs:
            wanted = None if self._wanted is None else self._wanted(description)
            self.epochs[description.epoch] = EpochSeconds.of(description, wanted)
            for epoch in list(self.epochs)[:-_MOST_EPOCHS]:
                del self.epochs[epoch]

    def take(self, event: Block | Gap) -> None:
        """A frame in turn; one of an epoch or stream that nobody began, and one that was counted, is left alone."""
        epoch = self.epochs.get(event.epoch)
        stream = epoch.streams.get(event.stream) if epoch is not None else None
        if stream is None or (stream.next is not None and event.sequence < stream.next):
            return
        stream.next = event.following
        stream.frames.append(event)

    def settle(self, offsets_ns: Mapping[int, int], cuts: Cuts = no_cuts) -> tuple[list[LineSeconds], list[Reported]]:
        """Count the frames that were taken. ``offsets_ns``: UTC minus the board's clock by epoch; frames of an epoch
        that has never had one wait."""
        counted: list[LineSeconds] = []
        reported: list[Reported] = []
        for number, epoch in self.epochs.items():
            epoch.offset_ns = offsets_ns.get(number, epoch.offset_ns)
            if epoch.offset_ns is None:
                continue
            for stream in epoch.streams.values():
                frames, stream.frames = [f for f in stream.frames if isinstance(f, Block)], []
                if frames:
                    for line, readings in _by_line(stream, frames):
                        if isinstance(line.line.conversion, QuantityConversion):
                            reported.append(_reported(line.line, readings, epoch.offset_ns))
                        else:
                            counted += self._of_line(number, epoch, line, readings, cuts)
        return counted, reported

    def _of_line(
        self, number: int, epoch: EpochSeconds, followed: FollowedLine, readings: Readings, cuts: Cuts
    ) -> Iterator[LineSeconds]:
        line, is_first, offset_ns = followed.line, followed.last is None, epoch.offset_ns
        assert offset_ns is not None
        signal = followed.take(readings)
        if len(signal) and is_first:
            yield from self._silence(number, followed, int(signal.t_ns[0]) + offset_ns, cuts)
        if len(signal) > 1:
            rows = _rows(signal, offset_ns, cuts(line.device))
            if line.name in epoch.said:
                rows = LineSeconds(
                    line, rows.begin_ns, rows.energy_j, rows.random_j2, 0 * rows.time_s, rows.missing_s - rows.time_s
                )
            yield rows

    def _silence(self, number: int, followed: FollowedLine, first_ns: int, cuts: Cuts) -> Iterator[LineSeconds]:
        """From the last reading of the epoch before to the first one of this."""
        numbers = list(self.epochs)
        for earlier in reversed(numbers[: numbers.index(number)]):
            epoch, name = self.epochs[earlier], followed.line.name
            last_ns = epoch.last_of(name)
            if last_ns is None or name in epoch.said:
                continue
            epoch.said.add(name)
            if first_ns > last_ns:
                edges = _edges(last_ns, first_ns, cuts(followed.line.device), np.array([[last_ns, first_ns]]))
                time_s = np.diff(edges) * 1e-9
                share = max(1 - followed.spacing_ns / (first_ns - last_ns), 0.0)
                nothing = np.zeros(len(time_s))
                yield LineSeconds(followed.line, edges[:-1], nothing, nothing, time_s, time_s * share)
            return


def _by_line(stream: StreamSeconds, frames: Sequence[Block]) -> Iterator[tuple[FollowedLine, Readings]]:
    """The readings of each line, of all blocks together."""
    if not stream.lines:
        return
    arrays = arrays_of(frames, stream.stream)
    for i, line in enumerate(stream.stream.lines):
        if (followed := stream.lines.get(line.name)) is None:
            continue
        codes = {name: arrays[name][:, i] for name in columns_of(followed.line)}
        yield followed, Readings(arrays["t_ns"] + arrays["dt_ns"][:, i], arrays["flags"][:, i], codes)


def _reported(line: RunLine, readings: Readings, offset_ns: int) -> Reported:
    conversion = line.conversion
    assert isinstance(conversion, QuantityConversion)
    good = good_readings(readings)
    value = readings.codes[conversion.column][good].astype(np.float64) * conversion.per_code
    return Reported(line, readings.t_ns[good] + offset_ns, value)


def _edges(first_ns: int, last_ns: int, cuts_ns: Ints, holes_ns: Ints) -> Ints:
    """From ``first_ns`` to ``last_ns``, cut at whole seconds and at ``cuts_ns``; within those of the holes [m, 2] that
    are long at whole minutes instead of seconds."""
    seconds = np.arange(first_ns // SECOND_NS + 1, -(-last_ns // SECOND_NS)) * SECOND_NS
    for begin_ns, end_ns in holes_ns[np.diff(holes_ns, axis=1)[:, 0] > _LONG_NS]:
        is_within = (seconds > begin_ns) & (seconds < end_ns) & (seconds - begin_ns > SECOND_NS)
        seconds = seconds[~is_within | (seconds % _MINUTE_NS == 0) | (end_ns - seconds <= SECOND_NS)]
    cuts_ns = cuts_ns[(cuts_ns > first_ns) & (cuts_ns < last_ns)]
    return np.unique(np.concatenate([[first_ns], seconds, cuts_ns, [last_ns]])).astype(np.int64)


def _rows(signal: Signal, offset_ns: int, cuts_ns: Ints) -> LineSeconds:
    """A signal of two readings or more."""
    t_ns, missing_ns = signal.t_ns, signal.missing_ns()
    dt_ns = np.diff(t_ns)
    is_hole = missing_ns > 0
    is_out = is_hole & (dt_ns > BRIDGED_NS) & (not signal.is_counter)
    out = np.flatnonzero(is_out)
    first_ns, last_ns = int(t_ns[0]) + offset_ns, int(t_ns[-1]) + offset_ns
    holes = np.flatnonzero(is_hole)
    edges = _edges(first_ns, last_ns, cuts_ns, np.stack([t_ns[holes], t_ns[holes + 1]], 1) + offset_ns)
    at = edges - offset_ns
    integral = signal.integral()
    upto_j = integral.between(t_ns[0], at)
    for i in out:
        upto_j -= integral.between(t_ns[i], np.clip(at, t_ns[i], t_ns[i + 1]))
    missing_s = np.where(is_out, dt_ns, missing_ns) * 1e-9
    variance = np.zeros(len(dt_ns))
    if not signal.is_counter:
        # Power that steps once, anywhere between two readings: the straight line is off by a rectangle.
        variance = np.where(is_out, 0.0, (np.diff(signal.value) * dt_ns * 1e-9) ** 2 / 12)
    bridged = np.flatnonzero(is_hole & ~is_out & ~signal.broken)
    variance[bridged] += integral.between(t_ns[bridged], t_ns[bridged + 1]) ** 2 / 3
    return LineSeconds(
        signal.line,
        edges[:-1],
        np.diff(upto_j),
        np.diff(_spread(at, t_ns, variance)),
        np.diff(edges) * 1e-9,
        np.diff(_spread(at, t_ns, missing_s)) if is_hole.any() else np.zeros(len(edges) - 1),
    )


def _spread(at_ns: Ints, t_ns: Ints, per_interval: Values) -> Values:
    """What the intervals between readings [n] have up to moments, evenly within each."""
    upto = np.concatenate([[0.0], np.cumsum(per_interval)])
    return np.asarray(np.interp(at_ns - t_ns[0], t_ns - t_ns[0], upto))


# -- where it has come to, for a store ---------------------------------------------------------------------------------


def position_of(stream: StreamSeconds) -> dict[str, Any]:
    """The next frame, and the last reading of each line: JSON that `restore` takes. Frames that wait are not in it."""
    lines = {}
    for name, followed in stream.lines.items():
        if followed.last is not None:
            last = followed.last
            codes = {column: values.tolist() for column, values in last.codes.items()}
            lines[name] = [last.t_ns.tolist(), last.flags.tolist(), codes, followed.spacing_ns]
    return {"next": stream.frames[0].sequence if stream.frames else stream.next, "lines": lines}


def restore(stream: StreamSeconds, position: Mapping[str, Any]) -> None:
    """Go on from there. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    stream.next = None if position["next"] is None else int(position["next"])
    kinds = {column.name: column.typecode for column in stream.stream.columns}
    for name, (t_ns, flags, codes, spacing_ns) in position["lines"].items():
        if (followed := stream.lines.get(name)) is not None:
            types = {column: np.dtype(kinds[column]) for column in codes}
            values = {column: np.array(codes[column], types[column]) for column in codes}
            followed.last = Readings(np.array(t_ns, np.int64), np.array(flags, np.uint16), values)
            followed.spacings.append((1 << 20, float(spacing_ns)))
