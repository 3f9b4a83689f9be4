"""A sampler's loop, on any clock and without a process: open, poll at absolute deadlines, take, reopen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from powerd_core.errors import ConfigError, PowerdError, SensorError
from powerd_core.model import UNKNOWN_TIME_NS, Block, Device, Gap, Stream
from powerd_daemon.deadlines import Deadlines
from powerd_daemon.lateness import Lateness
from powerd_daemon.outbox import MAX_CAUSE, Outbox
from powerd_daemon.sources.base import Source, Start

REOPEN_MIN_NS = 100_000_000
REOPEN_MAX_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a stream stood when its sampler ended. ``t_last_ns`` may be UNKNOWN_TIME_NS."""

    stream: int
    next_sequence: int
    t_last_ns: int


def same_streams(one: Iterable[Stream], other: Iterable[Stream]) -> bool:
    """Whether blocks of the one mean the same in the other; settings in ``detail`` may differ."""

    def key(stream: Stream) -> tuple[object, ...]:
        lines = tuple((line.name, line.device, line.conversion, line.provenance) for line in stream.lines)
        return stream.number, stream.columns, lines

    return [key(s) for s in one] == [key(s) for s in other]


class Sampling:
    """Drives one source. All it produces goes into ``outbox``.

    ``make`` builds the source from a `Start`; it is called again for every reopening. With ``resume`` the loop goes on
    where a sampler that died had stopped: an error of the first open is then like any later one, and each stream
    begins with a gap.
    """

    def __init__(
        self,
        make: Callable[[Start], Source],
        start: Start,
        outbox: Outbox,
        *,
        block_ns: int,
        resume: Iterable[Resume] = (),
        on_open: Callable[[tuple[Stream, ...], tuple[Device, ...]], None] = lambda _streams, _devices: None,
    ) -> None:
        self._make = make
        self._start = start
        self._clock = start.clock
        self._outbox = outbox
        self._block_ns = block_ns
        self._on_open = on_open
        self._source: Source | None = None
        self._last_health: dict[str, object] = {}
        self._streams: tuple[Stream, ...] | None = None
        self._next: dict[int, int] = {}
        self._t_last_ns: dict[int, int] = {}
        self._cause = ""
        self._pause_ns = REOPEN_MIN_NS
        now_ns = self._clock.now_ns()
        self._retry_ns = now_ns
        self._flush_ns = now_ns + block_ns
        self.deadlines: Deadlines | None = None
        self.reopened = 0
        for r in resume:
            self._next[r.stream] = r.next_sequence
            self._t_last_ns[r.stream] = r.t_last_ns
            self._cause = "sampler restarted"

    def open(self) -> None:
        """The first open of a sampler that resumes nothing. Raises what the source raises."""
        self._open()
        self._start_polling()

    def step(self) -> None:
        """Sleep until something is due and do it: never longer than one block."""
        polls = self._source is not None and self.deadlines is not None
        due_ns = self.deadlines.next_ns if polls and self.deadlines else self._retry_ns
        self._clock.sleep_until(min(due_ns, self._flush_ns))
        now_ns = self._clock.now_ns()
        if now_ns >= due_ns:
            if polls:
                self._poll(now_ns)
            else:
                self._reopen()
            now_ns = self._clock.now_ns()
        if now_ns >= self._flush_ns:
            self._flush_ns += self._block_ns
            if self._flush_ns <= now_ns:
                self._flush_ns = now_ns + self._block_ns
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Move what the source has into the outbox; the ``last`` time also what it holds back."""
        if self._source is None:
            return
        try:
            events = self._source.finish() if last else self._source.take()
        except SensorError as error:
            self._lose(error)
            return
        for event in events:
            self._put(event)

    def close(self) -> None:
        """Take what is left and let go of the sensor."""
        self.flush(last=True)
        self._let_go()

    def abandon(self) -> None:
        """Let go of the sensor of a source that has failed in a way it must not: nothing more is asked of it."""
        source, self._source = self._source, None
        if source is not None:
            with suppress(Exception):
                source.close()

    def statistics(self) -> dict[str, object]:
        """What the stats of powerd say about this sampler."""
        d = self.deadlines
        late = d.lateness if d else Lateness()
        return {
            "polls": late.count,
            "missed_deadlines": d.missed if d else 0,
            "rate_hz": d.rate_hz if d else 0.0,
            "lateness_mean_us": late.mean_ns / 1000,
            "lateness_p99_us": late.quantile_ns(0.99) / 1000,
            "lateness_max_us": late.max_ns / 1000,
            "jitter_us": late.deviation_ns / 1000,
            "reopened": self.reopened,
            "dropped_frames": self._outbox.dropped_frames,
            "error": self._cause if self._source is None else "",
            "sensors": self._last_health if self._source is None else self._source.health(),
        }

    def _open(self) -> None:
        # A gap that tells of an interruption takes one number of each stream; the source goes on behind it.
        begin = {number: sequence + 1 for number, sequence in self._next.items()}
        source = self._make(replace(self._start, next_sequence=begin))
        try:
            streams, devices = source.open()
            self._check(streams)
        except BaseException:
            with suppress(PowerdError):
                source.close()
            raise
        self._source = source
        self._streams = streams
        self._on_open(streams, devices)

    def _check(self, streams: tuple[Stream, ...]) -> None:
        if not streams:
            raise ConfigError("the source has no lines")
        if self._streams is not None and not same_streams(self._streams, streams):
            raise ConfigError("after an interruption the source describes other lines than before")

    def _start_polling(self) -> None:
        assert self._source is not None
        now_ns = self._clock.now_ns()
        if self.deadlines is None:
            self.deadlines = Deadlines(now_ns, self._source.period_ns)
        else:
            self.deadlines.restart(now_ns)
        for stream in self._streams or ():
            self._next.setdefault(stream.number, 0)
            self._t_last_ns.setdefault(stream.number, UNKNOWN_TIME_NS)

    def _poll(self, now_ns: int) -> None:
        assert self._source is not None
        assert self.deadlines is not None
        self.deadlines.meet(now_ns)
        try:
            self._source.poll()
        except SensorError as error:
            self.flush()
            if self._source is not None:
                self._lose(error)

    def _lose(self, error: SensorError) -> None:
        self._let_go()
        self._cause = str(error) or "the sensor was lost"
        self._pause_ns = REOPEN_MIN_NS
        self._retry_ns = self._clock.now_ns() + self._pause_ns

    def _let_go(self) -> None:
        if self._source is not None:
            # What a sensor counted before it was lost may be why.
            self._last_health = self._source.health()
            with suppress(PowerdError):
                self._source.close()
            self._source = None

    def _reopen(self) -> None:
        # A failed attempt leaves a gap too: whoever reads along learns within seconds why nothing comes.
        try:
            self._open()
        except SensorError as error:
            self._put_gaps()
            self._cause = str(error) or self._cause
            self._retry_ns = self._clock.now_ns() + self._pause_ns
            self._pause_ns = min(self._pause_ns * 2, REOPEN_MAX_NS)
            return
        self._put_gaps()
        self._cause = ""
        self.reopened += 1
        self._start_polling()

    def _put_gaps(self) -> None:
        now_ns = self._clock.now_ns()
        for number, sequence in self._next.items():
            begin = self._t_last_ns[number]
            end = max(now_ns, begin)
            self._put(Gap(number, self._start.epoch, sequence, begin, end, 1, -1, self._cause[:MAX_CAUSE]))

    def _put(self, event: Block | Gap) -> None:
        self._outbox.put(event)
        self._next[event.stream] = event.sequence + (event.span if isinstance(event, Gap) else 1)
        self._t_last_ns[event.stream] = event.t_last_ns
