"""Pull and resume over a way that loses, repeats and reorders, on a clock of its own."""

import random
from bisect import bisect_left
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_core.model import Block, Gap
from powerd_core.protocol import SILENCE_NS, WINDOW, StreamReceiver
from powerd_core.wire import CURRENT
from support.fake_daemon import make_stream

STEP_NS = 10_000_000
EPOCH = 7


def events(count, rng):
    """Blocks with a gap here and there; numbers without a hole."""
    found, number = [], 0
    while len(found) < count:
        if rng.random() < 0.05:
            span = rng.randint(1, 5)
            found.append(Gap(0, EPOCH, number, 0, number, span, -1, "test"))
            number += span
        else:
            found.append(Block(0, EPOCH, number, number, number, 1, 0, b""))
            number += 1
    return found


class Way:
    """A daemon that holds all frames behind a network that is bad until ``good_ns``."""

    def __init__(self, frames, rng, *, loss, good_ns, delay_steps):
        self.frames, self.rng, self.loss = frames, rng, loss
        self.good_ns, self.delay_steps = good_ns, delay_steps
        self.next = self.limit = None
        self.flying = []
        self.resets = 0

    def _spoilt(self, now_ns):
        return now_ns < self.good_ns and self.rng.random() < self.loss

    def _put(self, now_ns, what):
        late = self.rng.randint(0, self.delay_steps) if now_ns < self.good_ns else 0
        self.flying.append((now_ns + late * STEP_NS, what))

    def ask(self, now_ns, want):
        self.resets += want.reset
        if not self._spoilt(now_ns):
            self._put(now_ns, want)

    def step(self, now_ns, state):
        """Everything that is due arrives; returns what the client accepted."""
        accepted, arrived = [], [what for t, what in self.flying if t <= now_ns]
        self.flying = [(t, what) for t, what in self.flying if t > now_ns]
        for what in arrived:
            if isinstance(what, Block | Gap):
                if state.take(what, now_ns):
                    accepted.append(what)
                continue
            begin = self.frames[-1].sequence if what.sequence == CURRENT else what.sequence
            if self.next is None or what.reset:
                self.next = begin
            self.limit = begin + what.window
        if self.next is not None:
            for frame in self.frames[bisect_left(self.frames, self.next, key=lambda f: f.sequence) :]:
                if frame.sequence >= self.limit:
                    break
                if frame.sequence >= self.next:
                    for _ in range(1 + (now_ns < self.good_ns and self.rng.random() < 0.02)):
                        if not self._spoilt(now_ns):
                            self._put(now_ns, frame)
                    self.next = frame.sequence + (frame.span if isinstance(frame, Gap) else 1)
        return accepted


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 700),
    loss=st.sampled_from([0.0, 0.01, 0.2, 0.9]),
    delay_steps=st.integers(0, 6),
)
def test_each_frame_is_accepted_once_and_in_turn(seed, count, loss, delay_steps):
    rng = random.Random(seed)
    frames = events(count, rng)
    good_ns = 5 * SILENCE_NS
    way = Way(frames, rng, loss=loss, good_ns=good_ns, delay_steps=delay_steps)
    state = StreamReceiver(make_stream(), EPOCH, 0, asked_ns=0)
    accepted, now_ns = [], STEP_NS
    while len(accepted) < len(frames) and now_ns < good_ns + 30 * SILENCE_NS:
        if (want := state.due(now_ns)) is not None:
            way.ask(now_ns, want)
            state.asked(want, now_ns)
        accepted += way.step(now_ns, state)
        now_ns += STEP_NS
    assert accepted == frames
    # Each request to start over costs the daemon a window: the pauses between them must grow.
    assert way.resets < 100


def test_a_hole_is_asked_for_at_once_and_then_ever_more_rarely():
    state = StreamReceiver(make_stream(), EPOCH, 5)
    state.asked(state.due(1), 1)
    begin = SILENCE_NS // 2
    assert state.take(Block(0, EPOCH, 5, 0, 0, 1, 0, b""), begin)
    assert state.due(begin) is None
    assert not state.take(Block(0, EPOCH, 7, 0, 0, 1, 0, b""), begin)
    want = state.due(begin)
    assert (want.sequence, want.reset, want.window) == (6, True, WINDOW)
    state.asked(want, begin)
    times = []
    for t in range(begin, begin + 3 * SILENCE_NS, STEP_NS):
        state.take(Block(0, EPOCH, 9, 0, 0, 1, 0, b""), t)
        if (want := state.due(t)) is not None and want.reset:
            times.append(t)
            state.asked(want, t)
    assert [round((b - a) / 1e8) for a, b in pairwise([begin, *times])] == [1, 2, 4, 8]


def test_what_was_overtaken_counts_as_replayed():
    state = StreamReceiver(make_stream(), EPOCH, 0)
    numbers = [0, 2, 3, 1, 2, 3, 4]
    taken = [n for n in numbers if state.take(Block(0, EPOCH, n, 0, 0, 1, 0, b""), 1)]
    assert taken == [0, 1, 2, 3, 4]
    assert state.replayed == 3


def test_an_epoch_that_is_over_is_asked_for_up_to_its_end():
    state = StreamReceiver(make_stream(), EPOCH, 3, end=5)
    assert state.due(1).sequence == 3
    for number in (3, 4):
        assert state.take(Block(0, EPOCH, number, 0, 0, 1, 0, b""), 1)
    assert state.is_over
    assert state.due(10 * SILENCE_NS) is None


def test_five_minutes_without_a_network_cost_no_frame():
    rng = random.Random(1)
    frames = events(3000, rng)
    cut_ns = 300 * SILENCE_NS
    way = Way(frames, rng, loss=1.0, good_ns=cut_ns, delay_steps=0)
    state = StreamReceiver(make_stream(), EPOCH, 0)
    accepted, now_ns = [], STEP_NS
    while len(accepted) < len(frames) and now_ns < cut_ns + 10 * SILENCE_NS:
        if (want := state.due(now_ns)) is not None:
            way.ask(now_ns, want)
            state.asked(want, now_ns)
        accepted += way.step(now_ns, state)
        now_ns += STEP_NS
    assert accepted == frames
    assert way.resets < 310
