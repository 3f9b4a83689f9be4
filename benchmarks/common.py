"""What the benchmarks share: a powerd with a given configuration, its CPU time, and how results are printed."""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from powerd_client.journals.link import BoardLink

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")


def machine() -> str:
    """One line on what the figures were measured on."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return f"{os.cpu_count()} cores {model}, CPython {platform.python_version()}, Linux {platform.release()}"


def options(
    text: str | None, words: Sequence[str] | None = None, program: str | None = None, **defaults: Any
) -> argparse.Namespace:
    """The command line's options by their defaults: a number, a text, a list of them, or False for what may be said."""
    parser = argparse.ArgumentParser(
        prog=program, description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        if default is False:
            parser.add_argument(f"--{name.replace('_', '-')}", action="store_true")
            continue
        is_list = isinstance(default, list)
        kind, nargs = type(default[0] if is_list else default), "+" if is_list else None
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, nargs=nargs, default=default)
    return parser.parse_args(words)


@contextmanager
def powerd(
    sources: str, *, server: str = "", listen: str = "", environment: Mapping[str, str] = {}
) -> Iterator[tuple[str, int]]:
    """Run a powerd with the given ``[[source]]`` tables, on an ipc endpoint unless told where to listen.

    Yields its address and process id. Its sources may come from this folder.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        url = listen or f"ipc://{directory}/powerd"
        config = Path(directory) / "powerd.toml"
        config.write_text(f'[server]\nlisten = "{url}"\n{server}\n{sources}')
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", config, "--quiet"],
            env={**os.environ, "PYTHONPATH": str(HERE), **environment},
            start_new_session=True,
        )
        try:
            yield url, process.pid
        finally:
            process.terminate()
            process.wait(10)


@contextmanager
def connected(url: str) -> Iterator[BoardLink]:
    """A link to a powerd whose description is known."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = BoardLink(context, url, client=f"benchmark {os.getpid()}")
    try:
        link.describe(10)
        yield link
    finally:
        link.close()
        context.destroy(linger=0)


def free_port() -> int:
    """The first of three free TCP ports in a row: powerd takes three."""
    with zmq.Context() as context:
        while True:
            sockets = [context.socket(zmq.ROUTER) for _ in range(3)]
            try:
                first = sockets[0].bind_to_random_port("tcp://127.0.0.1", min_port=20_000, max_port=50_000)
                for step in (1, 2):
                    sockets[step].bind(f"tcp://127.0.0.1:{first + step}")
            except zmq.ZMQError:
                continue
            else:
                return first
            finally:
                for socket in sockets:
                    socket.close(0)


def descendants(pid: int) -> list[int]:
    """All processes that descend from one and live."""
    living: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in thread.read_text().split()]
        except OSError:
            continue
        for child in children:
            living += [child, *descendants(child)]
    return living


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and all its descendants that live."""
    total = 0.0
    for process in (pid, *descendants(pid)):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and its 95 % interval, by resampling."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]


def p50_p99_max(values: Sequence[float], unit: float = 1.0) -> tuple[float, float, float]:
    """Median, 99th percentile and greatest, in ``unit``."""
    ordered = sorted(values)
    return tuple(ordered[i] / unit for i in (len(ordered) // 2, len(ordered) * 99 // 100, -1))  # type: ignore[return-value]


def progress(text: str) -> None:
    """A line that replaces the one before, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def wait_until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait for a callable to be true. Raises `TimeoutError`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain")
        time.sleep(0.02)
