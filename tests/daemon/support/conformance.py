"""What every source has to keep to. A source's test class inherits `SourceConformance` and says how to make one."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path

import pytest

from powerd_core.errors import SensorError
from powerd_core.model import (
    BAD,
    BASE_COLUMNS,
    CLOCK_NAME,
    Block,
    Description,
    Device,
    Gap,
    QuantityConversion,
    Stream,
    columns,
)
from powerd_core.serde import read_description, to_document
from powerd_core.wire import decode, encode
from powerd_daemon.sources.base import Source, Start
from powerd_daemon.sources.sim.bus import VirtualClock

PROTOCOL = Path(__file__).parents[3] / "docs" / "reference" / "protocol.md"
EPOCH = 0xC0FFEE
FIRST_STREAM = 3


@dataclass
class Opened:
    """A source after `open`, in virtual time."""

    source: Source
    clock: VirtualClock
    streams: tuple[Stream, ...]
    devices: tuple[Device, ...]

    def run_until_lost(self, polls: int) -> tuple[list[Block | Gap], bool]:
        """What comes of some polls, and whether the source was lost meanwhile."""
        made: list[Block | Gap] = []
        for _ in range(polls):
            self.clock.sleep_until(self.clock.now_ns() + self.source.period_ns)
            try:
                self.source.poll()
                made += self.source.take()
            except SensorError:
                return made + self.source.take(), True
        return made + self.source.finish(), False

    def run(self, polls: int, every: int = 25) -> list[Block | Gap]:
        """Poll at the source's deadlines and take every few polls, as the sampler does."""
        made: list[Block | Gap] = []
        due_ns = self.clock.now_ns()
        for k in range(polls):
            self.clock.sleep_until(due_ns)
            due_ns += self.source.period_ns
            self.source.poll()
            if k % every == every - 1 or k == polls - 1:
                taken = self.source.take()
                assert all(b.t_last_ns <= self.clock.now_ns() for b in taken), "a reading from the future"
                made += taken
        return made

    def readings(self, made: list[Block | Gap], line: str) -> dict[str, list[int]]:
        """Times, flags and codes of one line, by column."""
        stream, at = next((s, i) for s in self.streams for i, known in enumerate(s.lines) if known.name == line)
        types = {"dt_ns": "i", "flags": "H"} | {c.name: c.typecode for c in stream.columns}
        found: dict[str, list[int]] = {name: [] for name in ("t_ns", "flags", *types)}
        for block in made:
            if isinstance(block, Block) and block.stream == stream.number:
                views = columns(block, stream)
                rows = {n: array(t, bytes(views[n]))[at :: len(stream.lines)] for n, t in types.items()}
                times = array("q", bytes(views["t_ns"]))
                found["t_ns"] += [t + dt for t, dt in zip(times, rows["dt_ns"], strict=True)]
                for name in types:
                    found[name] += rows[name]
        return found


def swallow_errors(o: Opened, how: str) -> None:
    """Let a source do what none may: an error becomes the value before, a 0, or nothing at all. It stands where the
    source gives out its readings, so that it is the same for every kind."""
    last: dict[int, list[int]] = {}
    source, poll, take = o.source, o.source.poll, o.source.take

    def poll_on() -> None:
        try:
            poll()
        except SensorError:
            if how == "nothing":
                return
            for builder in source.builders:
                lines = len(builder.stream.lines)
                codes = last.get(builder.stream.number) if how == "the value before" else None
                rows = codes or [0] * len(builder.stream.columns)
                builder.append(o.clock.now_ns(), [0] * lines, [0] * lines, [[code] * lines for code in rows])

    def take_well() -> list[Block | Gap]:
        return [good for event in take() if (good := _without_flags(event, o, last, how)) is not None]

    source.poll, source.take = poll_on, take_well  # type: ignore[method-assign]
    source.finish = take_well  # type: ignore[method-assign]


def _without_flags(event: Block | Gap, o: Opened, last: dict[int, list[int]], how: str) -> Block | Gap | None:
    if isinstance(event, Gap):
        return event
    stream = next(s for s in o.streams if s.number == event.stream)
    views = columns(event, stream)
    types = dict(BASE_COLUMNS) | {c.name: c.typecode for c in stream.columns}
    arrays = {name: array(typecode, bytes(views[name])) for name, typecode in types.items()}
    codes = [arrays[c.name] for c in stream.columns]
    if how == "nothing" and any(flag & BAD for flag in arrays["flags"]):
        return None
    for i, flag in enumerate(arrays["flags"]):
        if flag & BAD:
            arrays["flags"][i] = 0
            for k, column in enumerate(codes):
                column[i] = last[stream.number][k] if how == "the value before" and stream.number in last else 0
        else:
            last[stream.number] = [column[i] for column in codes]
    return replace(event, payload=b"".join(values.tobytes() for values in arrays.values()))


class SourceConformance:
    """Set ``polls`` so that every stream has several blocks, and implement `make` and `fail`."""

    polls = 300

    @abstractmethod
    def make(self, start: Start) -> Source:
        """The source under test, with what answers it."""

    @abstractmethod
    def fail(self, source: Source) -> None:
        """Let what answers an open source of `make` fail from now on: pull its plug, at the register or the wire."""

    def check_failure(self, opened: Opened) -> None:
        """After it failed no reading is good: each is flagged, or the source says that it is lost."""
        opened.run_until_lost(self.polls // 2)
        self.fail(opened.source)
        failed_ns = opened.clock.now_ns()
        made, is_lost = opened.run_until_lost(self.polls)
        for line in (line.name for s in opened.streams for line in s.lines):
            r = opened.readings(made, line)
            flags = [flag for t_ns, flag in zip(r["t_ns"], r["flags"], strict=True) if t_ns > failed_ns]
            assert all(flag & BAD for flag in flags), f"{line} has good readings of a sensor that fails"
            assert flags or is_lost, f"{line} says nothing of its failure"

    def test_a_failure_is_flagged_or_loses_the_source(self, opened: Opened) -> None:
        self.check_failure(opened)

    @pytest.mark.parametrize("how", ["the value before", "0", "nothing", "no failure at all"])
    def test_errors_that_are_swallowed_fail_this_class(
        self, opened: Opened, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A source that hid its errors would not pass, and neither would a `fail` that does nothing."""
        if how == "no failure at all":
            monkeypatch.setattr(self, "fail", lambda _source: None)
        else:
            swallow_errors(opened, how)
        with pytest.raises(AssertionError, match="good readings of a sensor|says nothing of its failure"):
            self.check_failure(opened)

    @pytest.fixture
    def clock(self) -> VirtualClock:
        return VirtualClock()

    @pytest.fixture
    def opened(self, clock: VirtualClock) -> Iterator[Opened]:
        source = self.make(Start("under-test", EPOCH, FIRST_STREAM, clock))
        streams, devices = source.open()
        yield Opened(source, clock, streams, devices)
        source.close()

    def test_streams_and_lines_have_names_of_their_own(self, opened: Opened) -> None:
        numbers = [s.number for s in opened.streams]
        assert numbers == list(range(FIRST_STREAM, FIRST_STREAM + len(numbers)))
        assert numbers
        assert {s.source for s in opened.streams} == {"under-test"}
        names = [line.name for s in opened.streams for line in s.lines]
        assert len(set(names)) == len(names)
        assert opened.source.period_ns > 0
        assert all(s.period_ns > 0 for s in opened.streams)

    def test_devices_are_fed_by_lines_of_theirs(self, opened: Opened) -> None:
        device_of = {line.name: line.device for s in opened.streams for line in s.lines}
        assert {d.name for d in opened.devices} == set(device_of.values())
        auxiliary = {n.name for s in opened.streams for n in s.lines if isinstance(n.conversion, QuantityConversion)}
        for device in opened.devices:
            assert not auxiliary & set(device.feeds)
            assert device.feeds
            assert {device_of[name] for name in device.feeds} == {device.name}

    def test_every_line_says_how_sure_it_is_and_why(self, opened: Opened) -> None:
        for line in (line for s in opened.streams for line in s.lines):
            # The accuracy of what is neither power nor energy is not in watts: its origin says what is known.
            assert line.accuracy.u_gain > 0 or isinstance(line.conversion, QuantityConversion)
            assert line.accuracy.origin
            assert line.description

    def test_the_description_survives_the_wire(self, opened: Opened) -> None:
        description = Description("board", "0", EPOCH, CLOCK_NAME, "", opened.streams, opened.devices)
        again = read_description(json.loads(json.dumps(to_document(description), allow_nan=False)))
        assert [s.lines for s in again.streams] == [s.lines for s in opened.streams]
        assert again.devices == opened.devices

    def test_blocks_fit_their_streams_and_are_numbered_without_a_hole(self, opened: Opened) -> None:
        streams = {s.number: s for s in opened.streams}
        following = dict.fromkeys(streams, 0)
        for block in opened.run(self.polls):
            assert block.epoch == EPOCH
            assert block.sequence == following[block.stream]
            assert decode(encode(block)) == block
            following[block.stream] += block.span if isinstance(block, Gap) else 1
            if isinstance(block, Block):
                columns(block, streams[block.stream])
        assert all(n >= 2 for n in following.values()), "set polls so that every stream has several blocks"

    def test_numbers_go_on_where_they_are_told_to(self, clock: VirtualClock) -> None:
        start = Start("under-test", EPOCH, FIRST_STREAM, clock, {FIRST_STREAM: 41})
        source = self.make(start)
        try:
            streams, devices = source.open()
            made = Opened(source, clock, streams, devices).run(self.polls)
            assert [b.sequence for b in made if b.stream == FIRST_STREAM][:2] == [41, 42]
        finally:
            source.close()

    def test_times_increase_and_match_the_blocks(self, opened: Opened) -> None:
        made = opened.run(self.polls)
        for stream in opened.streams:
            spans = [(b.t_first_ns, b.t_last_ns) for b in made if isinstance(b, Block) and b.stream == stream.number]
            times = [opened.readings(made, line.name)["t_ns"] for line in stream.lines]
            for t_ns in times:
                assert all(a < b for a, b in pairwise(t_ns))
            assert min(t[0] for t in times) == spans[0][0]
            assert max(t[-1] for t in times) == spans[-1][1]

    def test_nothing_is_given_out_twice(self, opened: Opened) -> None:
        opened.run(self.polls)
        assert opened.source.take() == []

    def test_closing_twice_or_without_opening_is_harmless(self, clock: VirtualClock, opened: Opened) -> None:
        opened.source.close()
        opened.source.close()
        self.make(Start("under-test", EPOCH, FIRST_STREAM, clock)).close()

    def test_its_health_can_be_told_at_any_time(self, clock: VirtualClock, opened: Opened) -> None:
        """As JSON, which the statistics are sent in, and with names that the documentation explains."""
        closed = self.make(Start("under-test", EPOCH, FIRST_STREAM, clock))
        opened.run(50)
        documented = set(re.findall(r"`(\w+)`", PROTOCOL.read_text(encoding="utf-8")))
        for source in (closed, opened.source):
            json.dumps(source.health(), allow_nan=False)
            assert set(source.health()) <= documented, sorted(set(source.health()) - documented)
            source.close()
            json.dumps(source.health(), allow_nan=False)

    def test_every_option_has_a_help_text(self, opened: Opened) -> None:
        for option in fields(opened.source.Options):
            assert option.metadata.get("help"), option.name
