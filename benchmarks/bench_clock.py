"""How well clocks are compared: simulated runs of known truth, a powerd on loopback, and what one exchange costs.

Targets: the truth inside the guaranteed bound at every moment of 10,000 runs; p99 of the error under 30 us on an idle
path and under 100 us on a loaded one; p99 under 10 us on loopback, where
exchanges are made in pairs. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from array import array
from dataclasses import dataclass, field

from clock_loopback import Loopback, cost, measure, simulated_powerd, stream_client
from clock_simulation import S, draw_case
from common import machine, progress

from powerd_core.clock import map_clock, piece_at

KINDS = {
    "idle": (0.30, "ways differ by 20 us, +-40 ppm, the rate wanders", 30.0),
    "loaded": (0.30, "70 % busy both ways, bursts to 20 ms, 2 % lost, loads of one way", 100.0),
    "stepped": (0.15, "the same with 1 to 3 steps of the clocks", 100.0),
    "wild": (0.25, "any drift, delays, asymmetry, loss, steps", None),
}
"""Share of the runs, what they are, and the limit of the p99 error in microseconds."""
MOMENTS = 100
LOOPBACK_LIMIT_US = 10.0


@dataclass(slots=True)
class Found:
    """Of some runs of a kind: errors of the estimate and half-widths of the bound in nanoseconds, and counts."""

    errors: array[float] = field(default_factory=lambda: array("d"))
    half_widths: array[float] = field(default_factory=lambda: array("d"))
    runs: int = 0
    violations: int = 0
    unknown: int = 0
    mapping_s: float = 0.0

    def add(self, other: Found) -> None:
        self.errors.extend(other.errors)
        self.half_widths.extend(other.half_widths)
        self.runs += other.runs
        self.violations += other.violations
        self.unknown += other.unknown
        self.mapping_s += other.mapping_s


def judge(work: tuple[str, int, int]) -> tuple[str, Found]:
    """Simulate and map some runs of a kind from a seed, and compare with the truth at random moments and at steps."""
    kind, seed, runs = work
    rng, found = random.Random(f"{kind} {seed}"), Found()
    for _ in range(runs):
        sim = draw_case(rng, kind)
        if not sim.exchanges:
            continue
        begin = time.process_time()
        pieces = map_clock(sim.exchanges)
        found.mapping_s += time.process_time() - begin
        found.runs += 1
        moments = [rng.uniform(-5 * S, sim.length_ns + 5 * S) for _ in range(MOMENTS)]
        for step in sim.steps:
            for edge in {step.t_host_ns, step.t_host_ns + step.still_ns}:
                moments += [edge + side * 10 ** rng.uniform(2, 9) for side in (-1, 1) for _ in range(8)]
        for t_host in moments:
            if not sim.clocks.is_awake(t_host):
                continue
            t_board = sim.clocks.read(t_host)
            piece = piece_at(pieces, t_board)
            if piece is None:
                found.unknown += 1
                continue
            estimate, low, high = piece.at(t_board)
            low, high = (sim.clocks.error_ns(t_board, end, t_host) for end in (low, high))
            found.violations += not low <= 0 <= high
            if 0 <= t_host <= sim.length_ns:
                found.errors.append(abs(sim.clocks.error_ns(t_board, estimate, t_host)))
                found.half_widths.append((high - low) / 2)
    return kind, found


def simulations(runs: int, processes: int) -> bool:
    """Print how the simulated runs went. True when every target is met."""
    batch, works = 20, []
    for kind, (share, _, _) in KINDS.items():
        works += [(kind, k, batch) for k in range(round(runs * share / batch))]
    found = {kind: Found() for kind in KINDS}
    begin = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done, (kind, part) in enumerate(pool.imap_unordered(judge, works), 1):
            found[kind].add(part)
            progress(f"{done * batch:,} of {len(works) * batch:,} simulated runs, {time.monotonic() - begin:.0f} s")
    progress("")
    total = sum(f.runs for f in found.values())
    print(f"Mapping of clocks, {total:,} simulated runs of 20 to 90 s ({machine()})")
    good = True
    for kind, (_, what, limit_us) in KINDS.items():
        f = found[kind]
        error, half = _three(sorted(f.errors)), _three(sorted(f.half_widths))
        is_good = not f.violations and (limit_us is None or error[1] < limit_us)
        good &= is_good
        limit = f", limit {limit_us:g}" if limit_us is not None else ""
        print(f"  {kind}: {f.runs:,} runs; {what}{'' if is_good else '   MISSED'}")
        print(f"    error p50 {error[0]:.1f} us, p99 {error[1]:.1f} us{limit}, max {error[2]:.1f} us")
        print(f"    bound p50 +-{half[0]:.0f} us, p99 +-{half[1]:.0f} us; truth outside it: {f.violations} moments")
        print(f"    {f.unknown:,} moments without a mapping; {f.mapping_s / f.runs * 1e3:.1f} ms of CPU a mapping")
    return good


def loopback(seconds: float) -> bool:
    """Print how a powerd on this machine is seen. True when every target is met."""
    good = True
    print(f"Loopback over TCP, `powerd run --sim`, {seconds:g} s each")
    with simulated_powerd("--rate-hz", "500") as (url, pid):
        progress("loopback, quiet")
        good &= _print_loopback("quiet", measure(url, seconds, 2))
        progress("loopback, quiet, one at a time")
        _print_loopback("quiet, one at a time (no target)", measure(url, seconds, 1), has_target=False)
        with stream_client(url):
            progress("loopback, busy")
            good &= _print_loopback("with a busy stream client", measure(url, seconds, 2))
        progress("cost of an exchange")
        spent = cost(url, pid)
        progress("")
    print(
        f"One exchange: wall {spent.wall_us:.0f} us median, {spent.wall_p99_us:.0f} us p99; "
        f"CPU {spent.client_us:.0f} us at the client, {spent.daemon_us:.0f} us at powerd (threads of ZeroMQ included)"
    )
    return good


def _print_loopback(name: str, found: Loopback, *, has_target: bool = True) -> bool:
    progress("")
    after, online, half = _three(found.after), _three(found.online), _three(found.half_widths)
    delay = _three(found.delays)
    is_good = (after[1] < LOOPBACK_LIMIT_US or not has_target) and not found.outside
    print(f"  {name}: {len(found.delays)} of {found.tried} exchanges answered in time{'' if is_good else '   MISSED'}")
    limit = f", limit {LOOPBACK_LIMIT_US:g}" if has_target else ""
    print(f"    error p50 {after[0]:.1f} us, p99 {after[1]:.1f} us{limit}, max {after[2]:.1f} us")
    print(f"    while it runs: p50 {online[0]:.1f} us, p99 {online[1]:.1f} us, max {online[2]:.1f} us")
    print(
        f"    delay p50 {delay[0]:.0f} us, p99 {delay[1]:.0f} us; bound p50 +-{half[0]:.0f} us; outside {found.outside}"
    )
    return is_good


def _three(values: list[float] | list[int]) -> tuple[float, float, float]:
    """Median, 99th percentile and greatest of sorted nanoseconds, in microseconds."""
    return tuple(values[i] / 1000 for i in (len(values) // 2, len(values) * 99 // 100, -1))  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_400)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each loopback measurement")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    good = simulations(args.runs, args.processes)
    good &= loopback(args.seconds)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
