"""What the benchmarks share: a powerd with a given configuration, its CPU time, and how results are printed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")


def machine() -> str:
    """One line on what the figures were measured on."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return f"{os.cpu_count()} cores {model}, CPython {platform.python_version()}, Linux {platform.release()}"


@contextmanager
def powerd(sources: str, *, server: str = "") -> Iterator[tuple[str, int]]:
    """Run a powerd with the given ``[[source]]`` tables on an ipc endpoint; yields its address and process id."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        url = f"ipc://{directory}/powerd"
        config = Path(directory) / "powerd.toml"
        config.write_text(f'[server]\nlisten = "{url}"\n{server}\n{sources}')
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", config, "--quiet"],
            env={**os.environ, "PYTHONPATH": str(HERE)},
            start_new_session=True,
        )
        try:
            yield url, process.pid
        finally:
            process.terminate()
            process.wait(10)


def descendants(pid: int) -> list[int]:
    """All processes that descend from one and live."""
    found, todo = [], [pid]
    while todo:
        current = todo.pop()
        try:
            text = Path(f"/proc/{current}/task/{current}/children").read_text()
        except OSError:
            continue
        children = [int(child) for child in text.split()]
        found += children
        todo += children
    return found


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


def progress(text: str) -> None:
    """A line that replaces the one before, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def wait_until(condition: object, timeout_s: float = 20.0) -> None:
    """Wait for a callable to be true. Raises `TimeoutError`."""
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain")
        time.sleep(0.02)
