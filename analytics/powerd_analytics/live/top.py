"""`joules top`: watts, joules, phase and losses in the terminal while a run goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from powerd_analytics.live.feed import Watch
from powerd_analytics.live.machine import DEFAULT_URL, RunPhases, powerds_here, runs_here
from powerd_analytics.live.view import SORTS, Screen, document, one_line
from powerd_core.errors import ConfigError, PowerdError
from powerd_core.text import printable

_LOOK_S = 0.25
_LINE_S = 1.0


def top(
    urls: Sequence[str],
    run: Path | None = None,
    *,
    keys: Path | None = None,
    once: bool = False,
    as_json: bool = False,
) -> None:
    """Show until ``q`` is pressed; without a terminal print a line a second until the reader has gone. ``keys`` is the
    directory of keys.

    Raises `PowerdError` when no powerd answers, or there is no such run.
    """
    watch = _open(list(urls), run, keys)
    try:
        if once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print_lines(watch, once=once, as_json=as_json)
        else:
            _show(watch)
    finally:
        watch.close()


def _open(urls: list[str], path: Path | None, keys: Path | None) -> Watch:
    for url in urls:
        if url.endswith(".h5"):
            raise ConfigError(f"{url} is no address of a powerd: a run is named with --run {url}")
    runs = runs_here()
    run = None if path is None else RunPhases(path)
    for found in runs if run is None else ():
        with contextlib.suppress(PowerdError):  # it may just have ended
            run = RunPhases(found)
            break
    if urls:
        return Watch(urls, run, keys)
    for url in powerds_here(runs.get(run.run, ()) if run is not None else ()):
        with contextlib.suppress(PowerdError):  # of somebody else, or just ending
            return Watch([url], run, keys)
    try:
        return Watch([DEFAULT_URL], run, keys)
    except PowerdError as error:
        raise ConfigError(f"no powerd answers on this machine: name one, as in `joules top {DEFAULT_URL}`") from error


def _print_lines(watch: Watch, *, once: bool, as_json: bool) -> None:
    due_s = time.monotonic() + _LINE_S
    while True:
        watch.step(min(max(due_s - time.monotonic(), 0.0), 0.05))
        if time.monotonic() < due_s:
            continue
        due_s += _LINE_S
        print(json.dumps(document(watch)) if as_json else printable(one_line(watch)), flush=True)
        if once:
            return


def _show(watch: Watch) -> None:
    sort, devices_only, paused, resized = SORTS[0], False, False, True
    descriptor = sys.stdin.fileno()

    def take_size(*_: object) -> None:
        nonlocal resized
        resized = True

    previous = signal.signal(signal.SIGWINCH, take_size)
    console = Console()
    try:
        with _raw_keys(descriptor), Live(console=console, screen=True, auto_refresh=False) as live:
            due_s = 0.0
            while True:
                changed = resized
                resized = False
                if watch.step(0.05, descriptor):
                    keys = os.read(descriptor, 64).decode(errors="replace")
                    if not keys or "q" in keys or "\x03" in keys:
                        return
                    changed = True
                    for key in keys:
                        if key == "p":
                            paused = not paused
                        elif key == "s":
                            sort = SORTS[(SORTS.index(sort) + 1) % len(SORTS)]
                        elif key == "d":
                            devices_only = not devices_only
                if changed or (time.monotonic() >= due_s and not paused):
                    due_s = time.monotonic() + _LOOK_S
                    live.update(Screen(watch, sort=sort, devices_only=devices_only, paused=paused), refresh=True)
    finally:
        signal.signal(signal.SIGWINCH, previous)


@contextlib.contextmanager
def _raw_keys(descriptor: int) -> Iterator[None]:
    """Keys come one by one and are not shown; Ctrl-C still interrupts."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
