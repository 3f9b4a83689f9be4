"""Which iterations of a training get a device's events, so that events cost it at most `MOST_COST` of its time.

An event takes 25 to 40 us of a GPU that waits for the host (eight an iteration: 0.19 to 0.29 ms of 1.3 ms on one H100),
and nothing that can be seen of one that the host waits for. So: is the GPU behind the host at the ends of the first
iterations, every iteration has its events, as the host's times say little there. Else pairs of iterations are taken in
turns, one with and one without events, and what these cost says how many iterations have them from then on. The others
have the host's times, which `DeviceTimes` moves by the lag that the same edges had with events.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from statistics import median

MOST_COST = 0.005
"""The share of an iteration that events may cost in the mean."""
WARM_UP = 10
"""Iterations before anything is judged: libraries choose their kernels, memory is taken."""
LOOKS = 10
"""Iterations after which is looked whether the GPU is behind."""
PAIRS = 30
EVENT_COST_NS = 50_000
"""An event costs less. A training whose iteration has time for all of them is left alone."""
RAREST = 256
_MAD = 1.4826
"""From the median distance to the standard deviation."""


class EventSampling:
    """Says of each mark whether it is without an event. `turn` is called at the end of each iteration."""

    def __init__(self) -> None:
        self.every = 1
        """One iteration of so many has events; from the end of the pairs on."""
        self.is_settled = False
        self.remark = ""
        """What came out, once it is settled."""
        self._leaves_out = False
        """Whether this iteration has no events."""
        self._turns = -1
        self._turning_code: int | None = None
        self._last_ns = 0
        self._marks: dict[int, int] = {}
        """By code: how many marks were made while this looked."""
        self._passed = 0
        self._durations: list[int] = []
        self._loop: frozenset[int] = frozenset()
        """The codes of every iteration. Others, as of evaluations, always have events."""

    @property
    def is_sampling(self) -> bool:
        """Whether marks have been left out, or may be."""
        return bool(self._loop)

    def leaves_out(self, code: int) -> bool:
        if self._leaves_out:
            return code in self._loop
        if not self.is_settled:
            self._marks[code] = self._marks.get(code, 0) + 1
        return False

    def turn(self, code: int, t_ns: int, has_passed: Callable[[], bool]) -> None:
        """The mark ``code`` has ended an iteration at ``t_ns``; ``has_passed`` says whether the GPU has come as far as
        the host had shortly before. Of a training that has several such marks the first one counts."""
        if self._turning_code is None:
            self._turning_code = code
        if code != self._turning_code:
            return
        duration, self._last_ns = t_ns - self._last_ns, t_ns
        self._turns += 1
        if self._turns == WARM_UP:
            self._marks.clear()
        elif self._turns > WARM_UP and not self.is_settled:
            self._look(duration, has_passed)
        if self.is_settled:
            self._leaves_out = self._turns % self.every != 0

    def _look(self, duration: int, has_passed: Callable[[], bool]) -> None:
        self._durations.append(duration)
        looked = len(self._durations)
        if looked <= LOOKS:
            self._passed += has_passed()
        if looked == LOOKS:
            self._judge()
        elif looked == LOOKS + 2 * PAIRS:
            self._count()
        if not self.is_settled and looked >= LOOKS:
            self._leaves_out = _is_without(looked - LOOKS)

    def _judge(self) -> None:
        loop = frozenset(code for code, times in self._marks.items() if times >= LOOKS)
        most_ns = EVENT_COST_NS * sum(self._marks.values()) / LOOKS
        if 2 * self._passed < LOOKS:
            self._settle(1, "the host is ahead of the GPU: every iteration has device events, what they cost is hidden")
        elif most_ns < MOST_COST * median(self._durations):
            self._settle(1, "iterations are long beside their device events: every one has them")
        else:
            self._loop = loop

    def _count(self) -> None:
        """What events cost, by the pairs."""
        pairs = self._durations[LOOKS:]
        differences, plain = [], []
        for at in range(0, 2 * PAIRS, 2):
            first, second = pairs[at : at + 2]
            differences.append(second - first if _is_without(at) else first - second)
            plain.append(first if _is_without(at) else second)
        cost, iteration = median(differences), median(plain)
        spread = _MAD * median(abs(d - cost) for d in differences) * 1.2533 / len(differences) ** 0.5
        rarely = ceil(max(cost + spread, 0.0) / (MOST_COST * iteration))
        every = min(1 << max(0, rarely - 1).bit_length(), RAREST)  # ranks that came to other numbers share most of them
        self._settle(
            every,
            f"device events cost {cost / iteration:+.1%} of an iteration, give or take {1.96 * spread / iteration:.1%} "
            f"({cost / 1e3:+.0f} us of {iteration / 1e6:.3g} ms, by {len(differences)} pairs in turns): "
            + (f"one iteration of {every} has them" if every > 1 else "every iteration has them"),
        )

    def _settle(self, every: int, remark: str) -> None:
        self.every, self.remark, self.is_settled = every, remark, True


def _is_without(place: int) -> bool:
    """Of the iterations in pairs, whether one has no events: with, without, without, with, and so on."""
    return place % 4 in (1, 2)
