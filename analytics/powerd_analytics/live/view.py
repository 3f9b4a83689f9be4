"""What `joules top` shows: a screen for a terminal of any width, a line of text, or a JSON object."""

from __future__ import annotations

from typing import Any, Literal

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from powerd_analytics.energy.reasons import digits, seconds
from powerd_analytics.live.feed import Watch
from powerd_analytics.live.lines import LiveLine
from powerd_core.text import printable

Sort = Literal["name", "watts", "joules"]
SORTS: tuple[Sort, ...] = ("name", "watts", "joules")
_NARROW, _MIDDLE = 50, 76
_KEYS = "q quit · p pause · s sort · d devices or lines"


class Screen:
    """The whole of it, made anew for each look. ``watch`` may have gone on since."""

    def __init__(self, watch: Watch, *, sort: Sort, devices_only: bool, paused: bool) -> None:
        self._watch, self._sort, self._devices_only, self._paused = watch, sort, devices_only, paused

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        parts: list[Any] = [Text(printable(line), no_wrap=True, overflow="ellipsis") for line in self._head()]
        rows = [] if self._devices_only else _sorted(self._watch.lines(), self._sort)
        devices = _device_table(self._watch, width)
        # What does not fit is said, never cut off silently.
        room = max(height - len(parts) - devices.row_count - 5, 1)
        parts.append(devices)
        if not self._devices_only:
            parts.append(_line_table(rows[:room], width))
            if len(rows) > room:
                parts.append(Text(f"… {len(rows) - room} more lines", style="dim"))
        keys = f"{_KEYS}   [{self._sort}{', paused' if self._paused else ''}]"
        parts.append(Text(keys, style="dim", no_wrap=True, overflow="ellipsis"))
        yield Group(*parts)

    def _head(self) -> list[str]:
        watch = self._watch
        found = [f"joules top · listening for {clock(watch.elapsed_s)}: joules are since then"]
        for feed in watch.feeds:
            board, bound = feed.board, feed.clock_bound_s
            parts = [f"{board.description.board} {feed.url}", losses(feed.board, feed.link.refused)]
            parts.append(f"clock ± {seconds(bound)}" if bound is not None else "clock not compared yet")
            parts += [f"restarted {feed.restarts} times"] if feed.restarts else []
            parts += [f"! {feed.trouble}"] if feed.trouble else []
            found.append(" · ".join(parts))
        if watch.run is not None:
            state = "has ended" if watch.run.is_over else clock(watch.run.elapsed_s)
            phases = watch.phases()
            found.append(f"run {watch.run.run.name} · {state}{'' if phases else ' · no phases marked yet'}")
            found += [f"  {p.process}: {'/'.join(p.path) or 'between phases'} · {p.ended} ended" for p in phases]
        return found


def losses(board: Any, refused: int) -> str:
    """What was lost, in words."""
    bad = sum(line.bad for line in board.lines.values())
    parts = []
    if board.gaps:
        unknown = f", {board.unknown_gaps} of unknown length" if board.unknown_gaps else ""
        parts.append(f"{board.gaps} gaps, {board.lost_scans} scans lost{unknown} ({board.last_cause})")
    parts += [f"{bad} readings flagged"] if bad else []
    parts += [f"{refused} frames refused"] if refused else []
    return ", ".join(parts) or "nothing lost"


def _sorted(lines: list[LiveLine], sort: Sort) -> list[LiveLine]:
    if sort == "name":
        return sorted(lines, key=lambda line: line.line.name)
    if sort == "watts":
        return sorted(lines, key=lambda line: -(line.power_w or 0.0))
    return sorted(lines, key=lambda line: -line.energy_j)


def _device_table(watch: Watch, width: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("device", no_wrap=True, overflow="ellipsis")
    for name in ("W", "J"):
        table.add_column(name, justify="right", no_wrap=True)
    if width >= _NARROW:
        table.add_column("provenance", no_wrap=True)
    for d in watch.devices():
        row = [Text(printable(d.device)), Text(digits(d.power_w)), Text(digits(d.energy_j))]
        table.add_row(*row, *([Text(f"{d.provenance}, {d.lines} lines")] if width >= _NARROW else []))
    return table


def _line_table(lines: list[LiveLine], width: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("line", no_wrap=True, overflow="ellipsis")
    for name in ("W", "J"):
        table.add_column(name, justify="right", no_wrap=True)
    if width >= _NARROW:
        table.add_column("Hz", justify="right", no_wrap=True)
    if width >= _MIDDLE:
        table.add_column("flagged", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
    for line in lines:
        value = line.power_w if line.value is None else line.value
        row = [line.line.name, digits(value), "–" if line.value is not None else digits(line.known_j)]
        row += [digits(line.rate_hz)] if width >= _NARROW else []
        row += [str(line.bad), _about(line)] if width >= _MIDDLE else []
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _about(line: LiveLine) -> str:
    if line.value is not None:
        return line.line.quantity
    return line.line.provenance.value + ("" if line.feeds else ", compared")


def one_line(watch: Watch) -> str:
    """All devices in one line of text, for where there is no terminal."""
    parts = [clock(watch.elapsed_s)]
    parts += [f"{d.device} {digits(d.power_w)} W {digits(d.energy_j)} J ({d.provenance})" for d in watch.devices()]
    parts += [f"{p.process} {'/'.join(p.path) or 'between phases'}" for p in watch.phases()]
    for feed in watch.feeds:
        parts += [f"clock ± {seconds(feed.clock_bound_s)}"] if feed.clock_bound_s is not None else []
        parts += [losses(feed.board, feed.link.refused)]
        parts += [feed.trouble] if feed.trouble else []
    return " · ".join(parts)


def document(watch: Watch) -> dict[str, Any]:
    """The same and every line, for JSON. SI units are in the names; what is not known is null."""
    return {
        "elapsed_s": round(watch.elapsed_s, 3),
        "run": None
        if watch.run is None
        else {
            "path": str(watch.run.run),
            "is_over": watch.run.is_over,
            "processes": [
                {"process": p.process, "phase": list(p.path), "phases_ended": p.ended} for p in watch.phases()
            ],
        },
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
                "lines": [
                    {
                        "line": line.line.name,
                        "device": line.line.device,
                        "quantity": line.line.quantity,
                        "provenance": line.line.provenance.value,
                        "power_w": line.power_w if line.value is None else None,
                        "energy_j": line.known_j if line.value is None else None,
                        "value": line.value,
                        "covered_s": line.covered_s,
                        "rate_hz": line.rate_hz,
                        "readings": line.readings,
                        "flagged": line.bad,
                    }
                    for line in feed.board.lines.values()
                ],
            }
            for feed in watch.feeds
        ],
    }


def clock(value_s: float) -> str:
    """A duration as a clock shows it."""
    whole = int(value_s)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
