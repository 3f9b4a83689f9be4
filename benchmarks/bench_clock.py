"""How well clocks are compared: simulated runs of known truth, and a powerd on loopback.

Targets: the truth inside the guaranteed bound at every moment of 10,000 runs; p99 of the error under 30 us on an idle
path and under 100 us on a loaded one; p99 under 10 us on loopback, where both sides read one clock and exchanges are
made in pairs. Exits with 1 when one is missed.

In a simulated run host time is the truth. The board's clock drifts against it by a rate that wanders (a quartz in
changing temperature), and steps: the board sleeps (its clock stands still), the host sleeps (the board's clock seems to
jump ahead), or the board comes back with an older clock. The path has two base delays, queues, bursts, losses, answers
that overtake each other and answers that come twice. Everything follows from the seed.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import time
from array import array
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from math import pi, sin

from common import connected, free_port, machine, options, p50_p99_max, powerd, progress

from powerd_core.clock_comparison import map_clock, piece_at
from powerd_core.model import ClockExchange

SOURCE = '[[source]]\nkind = "sim"\nname = "rails"\nrate_hz = 500.0\n'
MS, S = 1_000_000, 1_000_000_000
GRID_NS = S
FAST, FAST_NS, SLOW_NS = 100, 20 * MS, 100 * MS
"""The recorder's schedule."""
ANSWER_NS = 60 * MS
"""An answer that comes later is not waited for."""


@dataclass(frozen=True, slots=True)
class Step:
    """At ``t_host_ns`` the board's clock jumps by ``by_ns``, or stands still for ``still_ns``."""

    t_host_ns: int
    by_ns: int = 0
    still_ns: int = 0


@dataclass(frozen=True, slots=True)
class NetworkPath:
    """Delays in nanoseconds. A direction is busy with probability ``busy``, and then waits exponentially long."""

    there_ns: float = 60_000.0
    back_ns: float = 60_000.0
    jitter_ns: float = 3_000.0
    busy: float = 0.0
    queue_ns: float = 0.0
    burst: float = 0.0
    """Probability of a burst of heavy-tailed length, up to ``burst_ns``."""
    burst_ns: float = 20e6
    loss: float = 0.0
    twice: float = 0.0
    load_share: float = 0.0
    """Share of the run in which one direction is nearly always busy and no packet finds it empty."""
    load_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Quartz:
    """Rate of host against board: a constant, a swing and a random walk, never beyond ``limit_ppm`` together."""

    drift_ppm: float = 40.0
    swing_ppm: float = 0.5
    swing_s: float = 600.0
    walk_ppm: float = 0.02
    """Of the rate, after a second."""
    limit_ppm: float = 99.9


class TwoClocks:
    """The board's clock by host time. Offsets are host minus board time."""

    def __init__(
        self, rng: random.Random, quartz: Quartz, length_ns: int, steps: tuple[Step, ...] = (), offset_ns: int = 0
    ) -> None:
        self.offset_ns = offset_ns
        rates = _rates(rng, quartz, length_ns)
        self._host: list[float] = []
        self._board: list[float] = []
        edges = sorted(
            {float(k * GRID_NS) for k in range(-60, len(rates) - 60)}
            | {float(s.t_host_ns) for s in steps}
            | {float(s.t_host_ns + s.still_ns) for s in steps if s.still_ns}
        )
        self._rate: list[float] = []
        """Board nanoseconds in one of the host."""
        jumps = {float(s.t_host_ns): s.by_ns for s in steps}
        board, before = edges[0], edges[0]
        for at in edges:
            board += (at - before) * (self._rate[-1] if self._rate else 1.0) + jumps.get(at, 0)
            is_still = any(s.t_host_ns <= at < s.t_host_ns + s.still_ns for s in steps)
            self._host.append(at)
            self._board.append(board)
            self._rate.append(0.0 if is_still else 1.0 - rates[int(at // GRID_NS) + 60])
            before = at

    def is_awake(self, t_host: float) -> bool:
        """False while the board sleeps."""
        return self._rate[self._segment(t_host)] > 0

    def board(self, t_host: float) -> float:
        """The board's time, without ``offset_ns`` (which is whole, so that nothing is lost in a float)."""
        i = self._segment(t_host)
        return self._board[i] + (t_host - self._host[i]) * self._rate[i]

    def read(self, t_host: float) -> int:
        """What the board's clock shows."""
        return int(self.board(t_host) // 1) - self.offset_ns

    def error_ns(self, t_board_ns: int, offset_ns: float, near_host: float) -> float:
        """An offset that is said to hold at a board time, less the true one at the host time that it belongs to."""
        # Where the board's clock showed that time for a while (asleep), any of these moments will do.
        shown = t_board_ns + self.offset_ns
        i = self._segment(near_host)
        truth = self._host[i] + (shown - self._board[i]) / self._rate[i]
        return (offset_ns - self.offset_ns) - (truth - shown)

    def _segment(self, t_host: float) -> int:
        return max(bisect_right(self._host, t_host) - 1, 0)


def _rates(rng: random.Random, quartz: Quartz, length_ns: int) -> list[float]:
    """For each second from a minute before the run until a minute after it."""
    walk, phase, rates = 0.0, rng.uniform(0, 2 * pi), []
    for k in range(length_ns // GRID_NS + 122):
        walk += rng.gauss(0, quartz.walk_ppm)
        ppm = quartz.drift_ppm + quartz.swing_ppm * sin(2 * pi * k / quartz.swing_s + phase) + walk
        rates.append(max(-quartz.limit_ppm, min(quartz.limit_ppm, ppm)) * 1e-6)
    return rates


@dataclass(frozen=True, slots=True)
class Simulation:
    """One run's clocks and what was exchanged, in the order in which the client had it."""

    clocks: TwoClocks
    exchanges: list[ClockExchange]
    length_ns: int
    steps: tuple[Step, ...]


def simulate(
    seed: int,
    path: NetworkPath,
    quartz: Quartz = Quartz(),
    *,
    length_ns: int = 60 * S,
    steps: tuple[Step, ...] = (),
    offset_ns: int = 0,
) -> Simulation:
    """A run of that length, exchanges as the recorder makes them."""
    rng = random.Random(seed)
    clocks = TwoClocks(rng, quartz, length_ns, steps, offset_ns)
    loaded = _loaded_periods(rng, path, length_ns)
    arrivals: list[tuple[float, ClockExchange]] = []
    t, count = 0.0, 0
    while t < length_ns:
        load = next((there for begin, end, there in loaded if begin <= t < end), None)
        arrivals += _exchange(rng, clocks, path, t, load)
        count += 1
        t += (FAST_NS if count < FAST else SLOW_NS) + rng.expovariate(1 / 200_000)
    arrivals.sort(key=lambda pair: pair[0])
    return Simulation(clocks, [e for _, e in arrivals], length_ns, steps)


def _loaded_periods(rng: random.Random, path: NetworkPath, length_ns: int) -> list[tuple[float, float, bool]]:
    """Begin, end, and whether the way there is loaded (else the way back)."""
    remaining, periods = path.load_share * length_ns, []
    while remaining > 0:
        length = min(remaining, rng.uniform(2e9, 10e9))
        begin = rng.uniform(0, length_ns - length)
        periods.append((begin, begin + length, rng.random() < 0.5))
        remaining -= length
    return periods


def _exchange(
    rng: random.Random, clocks: TwoClocks, path: NetworkPath, t1: float, load: bool | None
) -> list[tuple[float, ClockExchange]]:
    """None, one or two exchanges (an answer that comes twice), each with its host time of arrival."""
    if rng.random() < path.loss or not clocks.is_awake(t1):
        return []
    received = t1 + path.there_ns + _wait(rng, path, is_loaded=load is True)
    serve = 5_000 + rng.expovariate(1 / 5_000)
    answered = received + serve
    arrived = answered + path.back_ns + _wait(rng, path, is_loaded=load is False)
    if not (clocks.is_awake(received) and clocks.is_awake(answered)) or arrived - t1 > ANSWER_NS:
        return []
    e = ClockExchange(1, int(t1), clocks.read(received), clocks.read(answered), int(arrived))
    exchanges = [(arrived, e)]
    if rng.random() < path.twice:
        late = arrived + rng.expovariate(1 / 300_000)
        exchanges.append((late, replace(e, t4_host_ns=int(late))))
    return exchanges


def _wait(rng: random.Random, path: NetworkPath, *, is_loaded: bool) -> float:
    wait = rng.expovariate(1 / path.jitter_ns) if path.jitter_ns else 0.0
    if is_loaded:
        wait += path.load_ns * rng.uniform(0.5, 1.0) + rng.expovariate(1 / (2 * path.queue_ns + 1))
    elif rng.random() < path.busy:
        wait += rng.expovariate(1 / path.queue_ns)
    if rng.random() < path.burst:
        wait += min(path.burst_ns, 1e6 * rng.paretovariate(1.2))
    return wait


IDLE = NetworkPath(50_000, 70_000, jitter_ns=4_000, burst=0.002, burst_ns=2e6, loss=1e-4)
"""A quiet LAN: the ways differ by 20 us."""
LOADED = NetworkPath(
    60_000, 80_000, jitter_ns=5_000, busy=0.7, queue_ns=400_000, burst=0.01, loss=0.02, twice=0.005,
    load_share=0.2, load_ns=500_000,
)  # fmt: skip
"""The same at 70 % utilisation; a fifth of the time, nothing gets through one way without waiting."""


def draw_case(rng: random.Random, kind: str) -> Simulation:
    """A run on an ``idle`` or ``loaded`` path, one with ``stepped`` clocks, or a ``wild`` one: any drift."""
    seed, length = rng.getrandbits(40), rng.randint(20, 90) * S
    offset = rng.randint(-(10**15), 10**15)
    sign = rng.choice((-1, 1))
    if kind == "stepped":
        quartz = Quartz(drift_ppm=rng.uniform(-90, 90))
        steps = _draw_steps(rng, length, least_ns=5 * MS)
        return simulate(seed, LOADED, quartz, length_ns=length, offset_ns=offset, steps=steps)
    if kind != "wild":
        path = IDLE if kind == "idle" else LOADED
        if sign < 0:
            path = replace(path, there_ns=path.back_ns, back_ns=path.there_ns)
        quartz = Quartz(drift_ppm=rng.choice((-40, 40)), swing_ppm=rng.uniform(0, 1), walk_ppm=rng.uniform(0, 0.05))
        return simulate(seed, path, quartz, length_ns=length, offset_ns=offset)
    path = NetworkPath(
        there_ns=rng.uniform(1e3, 1e6),
        back_ns=rng.uniform(1e3, 1e6),
        jitter_ns=rng.choice((0.0, 1e3, 1e5)),
        busy=rng.random(),
        queue_ns=10 ** rng.uniform(3, 6),
        burst=rng.choice((0.0, 0.01, 0.2)),
        loss=rng.choice((0.0, 0.02, 0.5)),
        twice=rng.choice((0.0, 0.05)),
        load_share=rng.choice((0.0, 0.3)),
        load_ns=10 ** rng.uniform(4, 6.5),
    )
    quartz = Quartz(
        drift_ppm=rng.uniform(-99.9, 99.9),
        swing_ppm=rng.choice((0.0, 5.0, 50.0)),
        swing_s=rng.uniform(5, 600),
        walk_ppm=rng.choice((0.0, 0.5, 5.0)),
    )
    return simulate(
        seed, path, quartz, length_ns=length, offset_ns=offset, steps=_draw_steps(rng, length) if sign > 0 else ()
    )


def _draw_steps(rng: random.Random, length_ns: int, least_ns: int = 100 * MS) -> tuple[Step, ...]:
    """One to three steps with exchanges between them.

    A step that no exchange contradicts cannot be found by anybody: these are longer than what the path makes uncertain.
    """
    steps = []
    count = rng.randint(1, 3)
    for k in range(count):
        t = int(length_ns * (k + rng.uniform(0.3, 0.7)) / count)
        size = int(least_ns * 10 ** rng.uniform(0.0, 4.0))
        kind = rng.choices(("board sleeps", "host sleeps", "older clock"), (9, 9, 1))[0]
        if kind == "board sleeps":
            # Not longer than until the next step: the clock has to be seen in between.
            steps.append(Step(t, still_ns=min(size, length_ns // (5 * count))))
        elif kind == "host sleeps":
            steps.append(Step(t, by_ns=size))
        else:
            # Longer than the time between exchanges, which makes it certain that this is no sleep.
            steps.append(Step(t, by_ns=-max(size, 20 * S)))
    return tuple(steps)


# --- The mapping against the truth


KINDS = {
    "idle": (0.30, "ways differ by 20 us, +-40 ppm, the rate wanders", 30.0),
    "loaded": (0.30, "70 % busy both ways, bursts to 20 ms, 2 % lost, loads of one way", 100.0),
    "stepped": (0.15, "the same with 1 to 3 steps of the clocks", 100.0),
    "wild": (0.25, "any drift, delays, asymmetry, loss, steps", None),
}
"""Share of the runs, what they are, and the limit of the p99 error in microseconds."""
MOMENTS = 100
LOOPBACK_LIMIT_US = 10.0


Judged = tuple[str, array, array, int, int, int]
"""Kind, errors of the estimate and half-widths of the bound in ns, runs, moments outside the bound and unmapped."""


def judge(work: tuple[str, int, int]) -> Judged:
    """Simulate and map some runs of a kind from a seed, and compare with the truth at random moments and at steps."""
    kind, seed, runs = work
    rng, errors, half_widths = random.Random(f"{kind} {seed}"), array("d"), array("d")
    violations = unknown = 0
    for _ in range(runs):
        sim = draw_case(rng, kind)
        pieces = map_clock(sim.exchanges) if sim.exchanges else ()
        moments = [rng.uniform(-5 * S, sim.length_ns + 5 * S) for _ in range(MOMENTS)]
        for step in sim.steps:
            for edge in {step.t_host_ns, step.t_host_ns + step.still_ns}:
                moments += [edge + side * 10 ** rng.uniform(2, 9) for side in (-1, 1) for _ in range(8)]
        for t_host in filter(sim.clocks.is_awake, moments):
            t_board = sim.clocks.read(t_host)
            piece = piece_at(pieces, t_board)
            if piece is None:
                unknown += 1
                continue
            estimate, low, high = (sim.clocks.error_ns(t_board, offset, t_host) for offset in piece.at(t_board))
            violations += not low <= 0 <= high
            if 0 <= t_host <= sim.length_ns:
                errors.append(abs(estimate))
                half_widths.append((high - low) / 2)
    return kind, errors, half_widths, runs, violations, unknown


def simulations(runs: int) -> bool:
    """Print how the simulated runs went. True when every target is met."""
    batch = 20
    works = [
        (kind, k, batch) for kind, (share, _, _) in KINDS.items() for k in range(max(round(runs * share / batch), 1))
    ]
    parts: list[Judged] = []
    with multiprocessing.get_context("spawn").Pool() as pool:
        for part in pool.imap_unordered(judge, works):
            parts.append(part)
            progress(f"{len(parts) * batch:,} of {len(works) * batch:,} simulated runs")
    progress("")
    print(f"Mapping of clocks, {len(works) * batch:,} simulated runs of 20 to 90 s ({machine()})")
    is_met = True
    for kind, (_, what, limit_us) in KINDS.items():
        mine = [part[1:] for part in parts if part[0] == kind]
        error, half = (p50_p99_max([x for part in mine for x in part[i]], 1e3) for i in (0, 1))
        count, violations, unknown = (sum(part[i] for part in mine) for i in (2, 3, 4))
        is_good = not violations and (limit_us is None or error[1] < limit_us)
        is_met &= is_good
        limit = f", limit {limit_us:g}" if limit_us is not None else ""
        print(f"  {kind}: {count:,} runs; {what}{'' if is_good else '   MISSED'}")
        print(f"    error p50 {error[0]:.1f} us, p99 {error[1]:.1f} us{limit}, max {error[2]:.1f} us")
        print(f"    bound p50 +-{half[0]:.0f} us, p99 +-{half[1]:.0f} us; truth outside it: {violations} moments")
        print(f"    {unknown:,} moments without a mapping")
    return is_met


# --- Exchanges with a powerd on this machine, over TCP: both sides read one clock, so the true offset is zero


def take_everything(url: str) -> None:
    """A client that receives all that powerd sends."""
    with connected(url) as link:
        while True:
            link.ask()
            assert link.data is not None
            link.data.poll(20)
            for _ in link.receive():
                pass


def loopback(name: str, url: str, seconds: float) -> bool:
    """Exchange as the recorder does, in pairs of which the quicker counts. True when the target is met.

    The first of a pair finds the processes and the processor asleep, which costs one way more than the other.
    """
    progress(f"loopback, {name}")
    exchanges: list[ClockExchange] = []
    walls_us, tried = [], 0
    with connected(url) as link:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            tried += 1
            before = time.perf_counter()
            answered = [e for _ in range(2) if (e := link.exchange()) is not None]
            walls_us.append((time.perf_counter() - before) * 1e6 / 2)
            exchanges += sorted(answered, key=lambda e: e.delay_ns)[:1]
            time.sleep((FAST_NS if tried < FAST else SLOW_NS) * 1e-9)
    errors, half_widths, outside = [], [], 0
    for piece in map_clock(exchanges):
        knots = piece.t_board_ns
        for t in (*knots, *((a + b) // 2 for a, b in pairwise(knots))):
            offset, low, high = piece.at(t)
            errors.append(abs(offset))
            half_widths.append((high - low) / 2)
            outside += not low <= 0 <= high
    error, half = p50_p99_max(errors, 1e3), p50_p99_max(half_widths, 1e3)
    delay, wall = p50_p99_max([e.delay_ns for e in exchanges], 1e3), p50_p99_max(walls_us)
    is_good = error[1] < LOOPBACK_LIMIT_US and not outside
    progress("")
    print(f"  {name}: {len(exchanges)} of {tried} pairs answered in time{'' if is_good else '   MISSED'}")
    print(f"    error p50 {error[0]:.1f} us, p99 {error[1]:.1f} us, limit {LOOPBACK_LIMIT_US:g}, max {error[2]:.1f} us")
    print(f"    delay p50 {delay[0]:.0f} us, p99 {delay[1]:.0f} us; bound p50 +-{half[0]:.0f} us; outside {outside}")
    print(f"    one exchange: {wall[0]:.0f} us of wall time")
    return is_good


def all_loopback(seconds: float) -> bool:
    """Print how a powerd on this machine is seen. True when every target is met."""
    print(f"Loopback over TCP, the source `sim` at 500 scans/s, {seconds:g} s each")
    with powerd(SOURCE, listen=f"tcp://127.0.0.1:{free_port()}") as (url, _):
        is_met = loopback("quiet", url, seconds)
        client = multiprocessing.get_context("spawn").Process(target=take_everything, args=(url,), daemon=True)
        client.start()
        is_met &= loopback("with a busy stream client", url, seconds)
        client.terminate()
        client.join()
    return is_met


def main() -> int:
    args = options(__doc__, runs=10_400, seconds=30.0)
    is_met = simulations(args.runs)
    is_met &= all_loopback(args.seconds)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
