"""`joules top`: watts, joules, phase and losses in the terminal while a run goes on, as lines of text, or as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from powerd_analytics.colours import REST, phase_colour
from powerd_analytics.energy.reasons import OUT_OF_STEP
from powerd_analytics.live.feed import (
    BETWEEN,
    DEFAULT_URL,
    DeviceFigures,
    Feed,
    LiveLine,
    RunPhases,
    Watch,
    powerds_here,
    runs_here,
)
from powerd_analytics.text import bar, digits, seconds
from powerd_core.errors import ConfigError, PowerdError
from powerd_core.text import printable

_NARROW, _MIDDLE = 50, 76
"""Columns of a terminal from which tables have more of their own."""
_LOOK_S, _LINE_S, _RECORDER_S = 0.25, 1.0, 15.0
_MOST_PHASES = 8


def top(
    urls: Sequence[str], run: Path | None = None, *, keys: Path | None = None, once: bool = False, as_json: bool = False
) -> None:
    """Show until ``q`` is pressed; without a terminal print a line a second until the reader has gone. ``keys`` is the
    directory of keys.

    A ``run`` that has not begun is waited for. Raises `PowerdError` when no powerd answers, or the run has ended.
    """
    has_waited = run is not None and _await(run)
    phases = None if run is None else RunPhases(run)
    for newest in runs_here() if run is None else ():
        with contextlib.suppress(PowerdError):  # it may just have ended
            phases = RunPhases(newest)
            break
    watch = _open(urls, keys, phases, _RECORDER_S if has_waited else 0.0)
    try:
        if once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print_lines(watch, phases, once=once, as_json=as_json)
        else:
            _show(watch, phases)
    finally:
        watch.close()


def _await(run: Path) -> bool:
    """Wait until a run begins; whether it had not begun yet."""
    places = run, run.with_name(f"{run.name}.journal") / "journal.bin"
    if any(place.exists() for place in places):
        return False
    sys.stderr.write(f"joules top: {printable(str(run))} has not begun: waiting for it (Ctrl-C ends)\n")
    while not any(place.exists() for place in places):
        time.sleep(_LOOK_S)
    return True


def _open(urls: Sequence[str], keys: Path | None, run: RunPhases | None, patience_s: float) -> Watch:
    """The powerds that are named, else the one of this machine that the run records, else any of this machine.

    ``patience_s``: how long to look for the run's, which may have been started just now.
    """
    for url in urls:
        if url.endswith(".h5"):
            raise ConfigError(f"{url} is no address of a powerd: a run is named with --run {url}")
    deadline_s, is_any = time.monotonic() + patience_s, run is None
    while True:
        for choice in [urls] if urls else [[url] for url in (*powerds_here(), DEFAULT_URL)]:
            try:
                watch = Watch(choice, keys)
            except PowerdError:  # of somebody else, or just ending
                if urls:
                    raise
                continue
            if (run is not None and watch.follow(run)) or is_any or urls:
                return watch
            watch.close()
        if is_any:
            raise ConfigError(f"no powerd answers on this machine: name one, as in `joules top {DEFAULT_URL}`")
        is_any = time.monotonic() >= deadline_s
        time.sleep(0.0 if is_any else _LOOK_S)


def _print_lines(watch: Watch, run: RunPhases | None, *, once: bool, as_json: bool) -> None:
    due_s = time.monotonic() + _LINE_S
    while True:
        watch.step(min(max(due_s - time.monotonic(), 0.0), 0.05))
        if time.monotonic() < due_s:
            continue
        due_s += _LINE_S
        print(json.dumps(document(watch, run)) if as_json else printable(one_line(watch, run)), flush=True)
        if once:
            return


def _show(watch: Watch, run: RunPhases | None) -> None:
    screen, descriptor, due_s = Screen(watch, run), sys.stdin.fileno(), 0.0
    with _raw_keys(descriptor), Live(console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            if watch.step(0.05, descriptor):
                keys = os.read(descriptor, 64).decode(errors="replace")
                if not keys or "q" in keys or "\x03" in keys:
                    return
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + _LOOK_S
                live.update(screen, refresh=True)


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
    """All of it for a terminal of any size, made anew for each look."""

    def __init__(self, watch: Watch, run: RunPhases | None = None) -> None:
        self._watch, self._run = watch, run

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        parts: list[Any] = [Text(printable(line), no_wrap=True, overflow="ellipsis") for line in self._head()]
        devices = [self._device(d, width) for d in self._watch.devices()]
        parts.append(_table(("device", "W", "J", "", "")[: 5 if width >= _NARROW else 3], devices))
        on_device, phases = self._phases(width) if width >= _NARROW else ("", [])
        # What does not fit is counted, never cut off silently.
        room = max(height - len(parts) - len(devices) - 3, 1)
        if phases and room > 4:
            parts.append(_table((on_device, "n", "W", "J", "share", ""), phases[: min(room - 3, _MOST_PHASES)]))
            room = max(room - 1 - min(len(phases), room - 3, _MOST_PHASES), 1)
        lines = sorted(self._watch.lines(), key=lambda line: line.line.name)
        headings = ("line", "W", "J", "Hz", "flagged", "")
        shown = headings[: 6 if width >= _MIDDLE else 4 if width >= _NARROW else 3]
        most = room - 1 - (len(lines) > room - 1) if room > 2 else 1
        parts.append(_table(shown, [_row(line) for line in lines[:most]]))
        if len(lines) > most:
            parts.append(Text(f"… {len(lines) - most} more lines", style="dim"))
        parts.append(Text("q quits", style="dim"))
        yield Group(*parts)

    def _device(self, d: DeviceFigures, width: int) -> tuple[str | Text, ...]:
        """A device with its power now, its joules, and its power of the last minute."""
        name = Text(printable(d.device))
        if d.provenance != "measured":
            name = Text.assemble(name, " ", (d.provenance.upper(), "bold black on yellow"))
        watts = list(self._watch.sparks[d.device, d.provenance])[-max(width - 54, 8) :]
        most = max((w for w in watts if w is not None), default=0.0)
        scale = f"0 to {digits(most, 3)} W" if most > 0 else ""
        return name, digits(d.power_w), digits(d.energy_j), sparkline(watts, most), scale

    def _phases(self, width: int) -> tuple[str, list[tuple[str | Text, ...]]]:
        """The phases of a run with their joules on the device that took most, and its name: those with most first."""
        run = self._run
        if run is None or not run.energies:
            return "", []
        (device, _), joules = max(run.energies.items(), key=lambda own: sum(own[1].values()))
        total = sum(joules.values())
        rows: list[tuple[str | Text, ...]] = []
        for name, value in sorted(joules.items(), key=lambda own: -own[1]):
            share, time_s = value / total if total > 0 else 0.0, run.seconds[name]
            strip = Text(bar(share, max(width - 54, 6)), style=REST if name == BETWEEN else phase_colour(name))
            watts = digits(value / time_s if time_s > 0 else None, 3)
            rows.append((name, str(run.ended[name] or ""), watts, digits(value), f"{100 * share:.0f} %", strip))
        return f"phase on {device}", rows

    def _head(self) -> list[str]:
        elapsed = timedelta(seconds=int(self._watch.elapsed_s))
        since = "since the run began" if self._watch.is_since_run else "since then"
        lines = [f"joules top · listening for {elapsed}: joules are {since}"]
        lines += [f"{f.board.description.board} {f.url} · {state(f)}" for f in self._watch.feeds]
        if (run := self._run) is not None:
            ended = "has ended" if run.is_over else timedelta(seconds=int(run.elapsed_s))
            phases = run.current()
            lines.append(f"run {run.run.name} · {ended}{'' if phases else ' · no phases marked yet'}")
            lines += [f"  {p.process}: {'/'.join(p.path) or 'between phases'} · {p.ended} ended" for p in phases]
            if names := run.in_step(self._watch.feeds):
                lines.append(f"! {', '.join(names)} in lock step with the phases: {OUT_OF_STEP}")
        return lines


def _row(line: LiveLine) -> tuple[str, ...]:
    is_power = line.value is None
    about = line.line.provenance.value + ("" if line.feeds else ", compared") if is_power else line.line.quantity
    watts, joules = digits(line.power_w if is_power else line.value), digits(line.known_j) if is_power else "–"
    return line.line.name, watts, joules, digits(line.rate_hz), str(line.bad), about


def _table(headings: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    """The first columns of the rows, as many as there are headings; figures to the right."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for heading in headings:
        is_figure = heading in ("W", "J", "Hz", "flagged", "n", "share")
        table.add_column(heading, justify="right" if is_figure else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        cells = row[: len(headings)]
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in cells))
    return table


def sparkline(values: Sequence[float | None], most: float) -> str:
    """A character for each value, from 0 to ``most``; a blank for what is not known."""
    return "".join(" " if v is None or most <= 0 else "▁▂▃▄▅▆▇█"[min(max(int(8 * v / most), 0), 7)] for v in values)


# ---- words and figures -------------------------------------------------------------------------------------------


def state(feed: Feed) -> str:
    """What was lost of a powerd, how well its clock is known, and its trouble."""
    board, refused, bound_s = feed.board, feed.link.refused, feed.clock_bound_s
    bad = sum(line.bad for line in board.lines.values())
    unknown = f", {board.unknown_gaps} of unknown length" if board.unknown_gaps else ""
    parts = [f"{board.gaps} gaps, {board.lost_scans} scans lost{unknown} ({board.last_cause})"] if board.gaps else []
    parts += [f"{bad} readings flagged"] if bad else []
    parts += [f"{refused} frames refused"] if refused else []
    parts = parts or ["nothing lost"]
    parts.append(f"clock ± {seconds(bound_s)}" if bound_s is not None else "clock not compared yet")
    parts += [f"restarted {feed.restarts} times"] if feed.restarts else []
    return " · ".join([*parts, *([f"! {feed.trouble}"] if feed.trouble else [])])


def one_line(watch: Watch, run: RunPhases | None = None) -> str:
    """All devices in one line of text, for where there is no terminal."""
    parts = [str(timedelta(seconds=int(watch.elapsed_s)))]
    parts += [f"{d.device} {digits(d.power_w)} W {digits(d.energy_j)} J ({d.provenance})" for d in watch.devices()]
    parts += [f"{p.process} {'/'.join(p.path) or 'between phases'}" for p in (run.current() if run else ())]
    return " · ".join([*parts, *map(state, watch.feeds)])


def document(watch: Watch, run: RunPhases | None = None) -> dict[str, Any]:
    """The same and every line, for JSON. SI units are in the names; what is not known is null."""
    recording = None
    if run is not None:
        processes = [{"process": p.process, "phase": list(p.path), "phases_ended": p.ended} for p in run.current()]
        phases = [
            {"phase": name, "device": device, "provenance": kind, "energy_j": joules, "ended": run.ended[name]}
            for (device, kind), own in run.energies.items()
            for name, joules in own.items()
        ]
        recording = {"path": str(run.run), "is_over": run.is_over, "processes": processes, "phases": phases}
        recording["in_step"] = run.in_step(watch.feeds)
    return {
        "elapsed_s": round(watch.elapsed_s, 3),
        "since_run": watch.is_since_run,
        "run": recording,
        "devices": [asdict(figures) for figures in watch.devices()],
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
