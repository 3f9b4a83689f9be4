"""Exchanges with a powerd on this machine, over TCP: both sides read one clock, so the true offset is zero."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import zmq

from powerd_client.link import BoardLink
from powerd_core.clock import ClockFilter, map_clock
from powerd_core.model import ClockExchange

FAST, FAST_S, SLOW_S = 100, 0.02, 0.1


@dataclass(frozen=True, slots=True)
class Loopback:
    """Errors in nanoseconds, sorted; delays of the exchanges."""

    after: list[float]
    """Of the mapping from the whole run, at every exchange and between two."""
    online: list[float]
    """Of the filter, after each exchange but the first twenty."""
    outside: int
    """Moments at which zero was outside the bound."""
    half_widths: list[float]
    delays: list[int]
    tried: int


@contextmanager
def simulated_powerd(*options: str) -> Iterator[tuple[str, int]]:
    """``powerd run --sim`` on a free TCP port; yields its address and process id."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "powerd_daemon", "run", "--sim", "--listen", "tcp://127.0.0.1:*", *options],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"listens on (tcp://\S+)", line):
                break
        else:
            raise RuntimeError("powerd did not start")
        yield found[1], process.pid
    finally:
        process.terminate()
        process.communicate(timeout=10)


@contextmanager
def stream_client(url: str) -> Iterator[None]:
    """Another process that takes everything that powerd sends."""
    process = subprocess.Popen([sys.executable, __file__, url])
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def measure(url: str, seconds: float, at_once: int) -> Loopback:
    """Exchange at the recorder's pace, ``at_once`` at a time of which the quickest counts; judge the mappings.

    The first finds the processes and the processor asleep, which costs one way more than the other.
    """
    exchanges: list[ClockExchange] = []
    online: list[float] = []
    clock, tried = ClockFilter(), 0
    with connected(url) as link:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            tried += 1
            made = [e for _ in range(at_once) if (e := link.exchange()) is not None]
            if made:
                exchange = min(made, key=lambda e: e.delay_ns)
                exchanges.append(exchange)
                clock.add(exchange)
                if clock.count > 20:
                    online.append(abs(clock.at(exchange.t_board_ns)[0]))
            time.sleep(FAST_S if tried < FAST else SLOW_S)
    after: list[float] = []
    half_widths: list[float] = []
    outside = 0
    for piece in map_clock(exchanges):
        knots = piece.t_board_ns
        for t in (*knots, *((a + b) // 2 for a, b in pairwise(knots))):
            offset, low, high = piece.at(t)
            after.append(abs(offset))
            half_widths.append((high - low) / 2)
            outside += not low <= 0 <= high
    return Loopback(
        sorted(after), sorted(online), outside, sorted(half_widths), sorted(e.delay_ns for e in exchanges), tried
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds for one exchange."""

    wall_us: float
    wall_p99_us: float
    client_us: float
    daemon_us: float


def cost(url: str, pid: int, count: int = 3000) -> Cost:
    """Of exchanges one after the other; what the daemon uses besides is measured for as long and subtracted."""
    with connected(url) as link:
        for _ in range(100):
            link.exchange()
        begin, used = time.perf_counter(), _ran_us(pid)
        time.sleep(2.0)
        idle = (_ran_us(pid) - used) / (time.perf_counter() - begin)
        begin, used, own = time.perf_counter(), _ran_us(pid), time.process_time()
        walls = []
        for _ in range(count):
            began = time.perf_counter()
            link.exchange()
            walls.append((time.perf_counter() - began) * 1e6)
        spent = time.perf_counter() - begin
        daemon, client = _ran_us(pid) - used - idle * spent, (time.process_time() - own) * 1e6
    cut = statistics.quantiles(walls, n=100)
    return Cost(statistics.median(walls), cut[98], client / count, daemon / count)


def _ran_us(pid: int) -> float:
    """Microseconds that all threads of a process have run: finer than its clock ticks."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1000


@contextmanager
def connected(url: str) -> Iterator[BoardLink]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = BoardLink(context, url, client=f"clock benchmark {os.getpid()}")
    try:
        link.describe()
        yield link
    finally:
        link.close()
        context.destroy(linger=0)


def _take_everything(url: str) -> None:
    with connected(url) as link:
        while True:
            link.ask()
            assert link.data is not None
            link.data.poll(20)
            for _ in link.receive():
                pass


if __name__ == "__main__":
    _take_everything(sys.argv[1])
