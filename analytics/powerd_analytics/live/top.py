"""`joules top`: watts, joules, phase and losses in the terminal while a run goes on, as lines of text, or as JSON."""

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
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from powerd_analytics.live.feed import Feed, LiveLine, Watch
from powerd_analytics.live.recording import DEFAULT_URL, RunPhases, powerds_here, runs_here
from powerd_analytics.text import digits, seconds
from powerd_core.errors import ConfigError, PowerdError
from powerd_core.text import printable

Sort = Literal["name", "watts", "joules"]
SORTS: tuple[Sort, ...] = ("name", "watts", "joules")
_NARROW, _MIDDLE = 50, 76
"""Columns of a terminal from which tables have more of their own."""
_KEYS = "q quit · p pause · s sort · d devices or lines"
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
    for newest in runs if run is None else ():
        with contextlib.suppress(PowerdError):  # it may just have ended
            run = RunPhases(newest)
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
    try:
        with _raw_keys(descriptor), Live(console=Console(), screen=True, auto_refresh=False) as live:
            due_s = 0.0
            while True:
                changed, resized = resized, False
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


# ---- the screen --------------------------------------------------------------------------------------------------


class Screen:
    """The whole of it for a terminal of any size, made anew for each look. ``watch`` may have gone on since."""

    def __init__(self, watch: Watch, *, sort: Sort, devices_only: bool, paused: bool) -> None:
        self._watch, self._sort, self._devices_only, self._paused = watch, sort, devices_only, paused

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        parts: list[Any] = [Text(printable(line), no_wrap=True, overflow="ellipsis") for line in self._head()]
        devices = self._device_table(width)
        # What does not fit is counted, never cut off silently.
        room = max(height - len(parts) - devices.row_count - 5, 1)
        parts.append(devices)
        if not self._devices_only:
            order = {
                "name": lambda line: line.line.name,
                "watts": lambda line: -(line.power_w or 0.0),
                "joules": lambda line: -line.energy_j,
            }
            lines = sorted(self._watch.lines(), key=order[self._sort])
            parts.append(_line_table(lines[:room], width))
            if len(lines) > room:
                parts.append(Text(f"… {len(lines) - room} more lines", style="dim"))
        keys = f"{_KEYS}   [{self._sort}{', paused' if self._paused else ''}]"
        parts.append(Text(keys, style="dim", no_wrap=True, overflow="ellipsis"))
        yield Group(*parts)

    def _head(self) -> list[str]:
        watch = self._watch
        lines = [f"joules top · listening for {timedelta(seconds=int(watch.elapsed_s))}: joules are since then"]
        for feed in watch.feeds:
            bound_s = feed.clock_bound_s
            parts = [f"{feed.board.description.board} {feed.url}", losses(feed)]
            parts.append(f"clock ± {seconds(bound_s)}" if bound_s is not None else "clock not compared yet")
            parts += [f"restarted {feed.restarts} times"] if feed.restarts else []
            parts += [f"! {feed.trouble}"] if feed.trouble else []
            lines.append(" · ".join(parts))
        if watch.run is not None:
            state = "has ended" if watch.run.is_over else timedelta(seconds=int(watch.run.elapsed_s))
            phases = watch.phases()
            lines.append(f"run {watch.run.run.name} · {state}{'' if phases else ' · no phases marked yet'}")
            lines += [f"  {p.process}: {'/'.join(p.path) or 'between phases'} · {p.ended} ended" for p in phases]
        return lines

    def _device_table(self, width: int) -> Table:
        rows = [
            (d.device, digits(d.power_w), digits(d.energy_j), f"{d.provenance}, {d.lines} lines")
            for d in self._watch.devices()
        ]
        return _table(("device", "W", "J", "provenance")[: 4 if width >= _NARROW else 3], rows)


def _line_table(lines: Sequence[LiveLine], width: int) -> Table:
    rows = []
    for line in lines:
        is_power = line.value is None
        about = (
            line.line.quantity if not is_power else line.line.provenance.value + ("" if line.feeds else ", compared")
        )
        watts, joules = digits(line.power_w if is_power else line.value), digits(line.known_j) if is_power else "–"
        rows.append((line.line.name, watts, joules, digits(line.rate_hz), str(line.bad), about))
    columns = 6 if width >= _MIDDLE else 4 if width >= _NARROW else 3
    return _table(("line", "W", "J", "Hz", "flagged", "")[:columns], rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The first columns of the rows, as many as there are headings; figures to the right."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for heading in headings:
        is_figure = heading in ("W", "J", "Hz", "flagged")
        table.add_column(heading, justify="right" if is_figure else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row[: len(headings)]))
    return table


# ---- words and figures -------------------------------------------------------------------------------------------


def losses(feed: Feed) -> str:
    """What was lost, in words."""
    board, refused = feed.board, feed.link.refused
    bad = sum(line.bad for line in board.lines.values())
    unknown = f", {board.unknown_gaps} of unknown length" if board.unknown_gaps else ""
    parts = [f"{board.gaps} gaps, {board.lost_scans} scans lost{unknown} ({board.last_cause})"] if board.gaps else []
    parts += [f"{bad} readings flagged"] if bad else []
    parts += [f"{refused} frames refused"] if refused else []
    return ", ".join(parts) or "nothing lost"


def one_line(watch: Watch) -> str:
    """All devices in one line of text, for where there is no terminal."""
    parts = [str(timedelta(seconds=int(watch.elapsed_s)))]
    parts += [f"{d.device} {digits(d.power_w)} W {digits(d.energy_j)} J ({d.provenance})" for d in watch.devices()]
    parts += [f"{p.process} {'/'.join(p.path) or 'between phases'}" for p in watch.phases()]
    for feed in watch.feeds:
        bound_s = feed.clock_bound_s
        parts += [f"clock ± {seconds(bound_s)}"] if bound_s is not None else []
        parts += [losses(feed), *([feed.trouble] if feed.trouble else [])]
    return " · ".join(parts)


def document(watch: Watch) -> dict[str, Any]:
    """The same and every line, for JSON. SI units are in the names; what is not known is null."""
    run = None
    if watch.run is not None:
        processes = [{"process": p.process, "phase": list(p.path), "phases_ended": p.ended} for p in watch.phases()]
        run = {"path": str(watch.run.run), "is_over": watch.run.is_over, "processes": processes}
    return {
        "elapsed_s": round(watch.elapsed_s, 3),
        "run": run,
        "devices": [
            {"device": d.device, "provenance": d.provenance, "power_w": d.power_w, "energy_j": d.energy_j}
            for d in watch.devices()
        ],
        "powerds": [
            {
                "url": feed.url,
                "board": feed.board.description.board,
                "clock_bound_s": feed.clock_bound_s,
                "gaps": feed.board.gaps,
                "lost_scans": feed.board.lost_scans,
                "gaps_of_unknown_length": feed.board.unknown_gaps,
                "frames_refused": feed.link.refused,
                "restarts": feed.restarts,
                "trouble": feed.trouble,
                "lines": [_line_document(line) for line in feed.board.lines.values()],
            }
            for feed in watch.feeds
        ],
    }


def _line_document(line: LiveLine) -> dict[str, Any]:
    is_power = line.value is None
    return {
        "line": line.line.name,
        "device": line.line.device,
        "quantity": line.line.quantity,
        "provenance": line.line.provenance.value,
        "power_w": line.power_w if is_power else None,
        "energy_j": line.known_j if is_power else None,
        "value": line.value,
        "covered_s": line.covered_s,
        "rate_hz": line.rate_hz,
        "readings": line.readings,
        "flagged": line.bad,
    }
