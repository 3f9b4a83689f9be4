"""`joules top`: watts, joules, phase and losses in the terminal while a run goes on, as lines of text, or as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from powerd_analytics.energy.reasons import OUT_OF_STEP, moments_seen
from powerd_analytics.output.colours import REST, phase_colour
from powerd_analytics.output.text import bar, digits, seconds
from powerd_client.energies.live import (
    BETWEEN,
    DEFAULT_URL,
    DeviceFigures,
    Listener,
    LiveLine,
    LivePowerd,
    RecordingEnergies,
    RunPhases,
    powerds_here,
    runs_here,
)
from powerd_client.energies.live_energy import Energy
from powerd_core.errors import ConfigError, PowerdError
from powerd_core.model import NAMED_SHARE, Fault, faults_text
from powerd_core.text import lost_text, printable, with_u95

if TYPE_CHECKING:
    from powerd_analytics.run_tables.table import RunRow

_NARROW, _MIDDLE = 50, 76
"""Columns of a terminal from which tables have more of their own."""
_LOOK_S, _LINE_S, _RECORDER_S = 0.25, 1.0, 15.0
_MOST_PHASES = 8


def top(
    urls: Sequence[str], run: Path | None = None, *, keys: Path | None = None, once: bool = False, as_json: bool = False
) -> None:
    """Show until ``q`` is pressed; without a terminal print a line a second until the reader has gone. ``keys`` is the
    directory of keys.

    A ``run`` that has not begun is waited for; of one that has ended the joules of the whole are told. Without one it
    is the newest that is recorded from one of the powerds. Raises `PowerdError` when no powerd answers, or a ``run``
    records none of those that are named.
    """
    if run is not None and has_ended(run):
        _tell_ended(run, as_json=as_json)
        return
    has_waited = run is not None and _await(run)
    runs = _runs_here() if run is None else [RunPhases(run)]
    listener = _open(urls, keys, runs, is_named=run is not None, patience_s=_RECORDER_S if has_waited else 0.0)
    phases = listener.run
    energies = None if phases is None else RecordingEnergies(phases)
    closed = None if phases is None else ClosedRun(phases.run)
    try:
        if energies is not None and not once:
            energies.start()
        if once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print_lines(listener, energies, closed, once=once, as_json=as_json)
        else:
            _show(listener, phases, energies, closed)
    finally:
        if energies is not None:
            energies.close()
        listener.close()


def has_ended(run: Path) -> bool:
    """Whether a run file stands and nobody records into it any more."""
    return run.is_file() and not run.with_name(f"{run.name}.journal").exists()


class ClosedRun:
    """What a run took that ends while somebody watches it, as its table says: no longer the plain integral."""

    def __init__(self, run: Path) -> None:
        self._run, self._thread = run, threading.Thread(target=self._work_out, name="closing", daemon=True)
        self._rows: tuple[RunRow, ...] = ()

    def rows(self) -> tuple[RunRow, ...]:
        """Nothing as long as the run goes on, and until its table is worked out, which nobody waits for."""
        if self._thread.ident is None and has_ended(self._run):
            self._thread.start()
        return self._rows

    def _work_out(self) -> None:
        from powerd_analytics.run_tables.closing_lines import run_totals
        from powerd_analytics.runs.run import read_run

        with contextlib.suppress(PowerdError):
            self._rows = run_totals(read_run(self._run))


def _closing(rows: Sequence[RunRow]) -> list[str]:
    from powerd_analytics.run_tables.closing_lines import joules_text

    return [joules_text(row) for row in rows]


def _tell_ended(run: Path, *, as_json: bool) -> None:
    from powerd_analytics.run_tables.closing_lines import run_totals
    from powerd_analytics.runs.run import read_run

    rows = run_totals(read_run(run))
    if as_json:
        print(json.dumps({"run": str(run), "has_ended": True, "devices": [asdict(row) for row in rows]}))
        return
    print(printable(f"{run} has ended: `joules tables` shows its phases"))
    for text in _closing(rows):
        print(printable(f"  {text}"))


def _await(run: Path) -> bool:
    """Wait until a run begins; whether it had not begun yet."""
    places = run, run.with_name(f"{run.name}.journal") / "journal.bin"
    if any(place.exists() for place in places):
        return False
    sys.stderr.write(f"joules top: {printable(str(run))} has not begun: waiting for it (Ctrl-C ends)\n")
    while not any(place.exists() for place in places):
        time.sleep(_LOOK_S)
    return True


def _runs_here() -> list[RunPhases]:
    runs = []
    for path in runs_here():
        with contextlib.suppress(PowerdError):  # it may just have ended
            runs.append(RunPhases(path))
    return runs


def _open(
    urls: Sequence[str], keys: Path | None, runs: Sequence[RunPhases], *, is_named: bool, patience_s: float
) -> Listener:
    """The powerds that are named, else those of the run that is named, else one of this machine that one of the runs
    records, else any of this machine.

    ``is_named``: whether the run was asked for by name. ``patience_s``: how long to look for its powerd, which may have
    been started just now.
    """
    for url in urls:
        if url.endswith(".h5"):
            raise ConfigError(f"{url} is no address of a powerd: a run is named with --run {url}")
    deadline_s = time.monotonic() + patience_s
    while True:
        others: list[Listener] = []
        try:
            for choice in [urls] if urls else _choices(runs[0] if is_named else None):
                try:
                    listener = Listener(choice, keys)
                except PowerdError:  # of somebody else, or just ending
                    if urls:
                        raise
                    continue
                others.append(listener)
                if any(not run.is_over and listener.follow(run) for run in runs):
                    return others.pop()
            if time.monotonic() >= deadline_s:
                if is_named:
                    raise ConfigError(_other_sources(runs[0], urls))
                if not others:
                    raise ConfigError(f"no powerd answers on this machine: name one, as in `joules top {DEFAULT_URL}`")
                others[0].no_run = _why_no_run(runs, others[0])
                return others.pop(0)
        finally:
            for listener in others:
                listener.close()
        time.sleep(_LOOK_S)


def _choices(run: RunPhases | None) -> list[list[str]]:
    own = sorted(run.sources().urls) if run is not None else []
    return [*([own] if own else []), *([url] for url in (*powerds_here(), DEFAULT_URL))]


def _other_sources(run: RunPhases, urls: Sequence[str]) -> str:
    recorded = ", ".join(sorted(run.sources().urls)) or "a powerd that its journal does not name yet"
    if urls:
        return f"{run.run.name} is not recorded from {', '.join(urls)} but from {recorded}"
    return f"{run.run.name} is recorded from {recorded}, which does not answer"


def _why_no_run(runs: Sequence[RunPhases], listener: Listener) -> str:
    going_on = [run for run in runs if not run.is_over]
    if not going_on:
        return "no run is recorded on this machine"
    whose = " and ".join(p.url for p in listener.powerds)
    return f"no run is recorded from {whose}; {len(going_on)} from other powerds are not shown"


def _print_lines(
    listener: Listener,
    energies: RecordingEnergies | None,
    closed: ClosedRun | None,
    *,
    once: bool,
    as_json: bool,
) -> None:
    due_s = time.monotonic() + _LINE_S
    while True:
        listener.step(min(max(due_s - time.monotonic(), 0.0), 0.05))
        if time.monotonic() < due_s:
            continue
        due_s += _LINE_S
        if once and energies is not None:
            energies.look()
        if once and listener.run is not None and listener.run.is_over:
            listener.let_go(f"{listener.run.run.name} has just ended")
        known = energies.latest if energies is not None and listener.run is not None else ()
        rows = closed.rows() if closed is not None else ()
        say = document if as_json else one_line
        text = say(listener, listener.run, known, rows)
        print(json.dumps(text) if as_json else printable(str(text)), flush=True)
        if once:
            return


def _show(
    listener: Listener, run: RunPhases | None, energies: RecordingEnergies | None, closed: ClosedRun | None
) -> None:
    screen, descriptor, due_s = Screen(listener, run, energies, closed), sys.stdin.fileno(), 0.0
    with _raw_keys(descriptor), Live(console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            if listener.step(0.05, descriptor):
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

    def __init__(
        self,
        listener: Listener,
        run: RunPhases | None = None,
        energies: RecordingEnergies | None = None,
        closed: ClosedRun | None = None,
    ) -> None:
        self._listener, self._run, self._energies, self._closed = listener, run, energies, closed

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        parts: list[Any] = [Text(printable(line), no_wrap=True, overflow="ellipsis") for line in self._head()]
        devices = [self._device(d, width) for d in self._listener.devices()]
        own = ("device", "W", "J", *(() if self._energies is None else ("W of 60 s",)), "missing s", "", "")
        parts.append(_table(own if width >= _NARROW else own[:3], devices))
        on_device, phases = self._phases(width) if width >= _NARROW else ("", [])
        # What does not fit is counted, never cut off silently.
        room = max(height - len(parts) - len(devices) - 3, 1)
        if phases and room > 4:
            headings = (on_device, "n", "W", "J", "J each", "share", "")
            parts.append(_table(headings, phases[: min(room - 3, _MOST_PHASES)]))
            room = max(room - 1 - min(len(phases), room - 3, _MOST_PHASES), 1)
        lines = sorted(self._listener.lines(), key=lambda line: line.line.name)
        shown = ("line", "W", "J", "Hz", "flagged", "")[: 6 if width >= _MIDDLE else 4 if width >= _NARROW else 3]
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
        room = width - 64 - 16 * (self._energies is not None)
        watts = list(self._listener.sparks[d.device, d.provenance])[-max(room, 8) :]
        most = max((w for w in watts if w is not None), default=0.0)
        scale = f"0 to {digits(most, 3)} W" if most > 0 else ""
        now = (name, digits(d.power_w), digits(d.energy_j))
        mean = () if self._energies is None else (mean_power(d, self._energies.latest),)
        return *now, *mean, digits(d.missing_s, 3), sparkline(watts, most), scale

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
            strip = Text(bar(share, max(width - 70, 6)), style=REST if name == BETWEEN else phase_colour(name))
            watts = digits(value / time_s if time_s > 0 else None, 3)
            each = energy_each(name, device, self._energies.latest if self._energies is not None else ())
            rows.append((name, str(run.ended[name] or ""), watts, digits(value), each, f"{100 * share:.0f} %", strip))
        return f"phase on {device}", rows

    def _head(self) -> list[str]:
        elapsed = timedelta(seconds=int(self._listener.elapsed_s))
        since = "since the run began" if self._listener.is_since_run else "since then"
        lines = [f"joules top · listening for {elapsed}: joules are {since}"]
        lines += [f"{p.board.description.board} {p.url} · {state(p)}" for p in self._listener.powerds]
        if (run := self._run) is not None:
            ended = "has ended" if run.is_over else timedelta(seconds=int(run.elapsed_s))
            phases = run.current()
            lines.append(f"run {run.run.name} · {ended}{'' if phases else ' · no phases marked yet'}")
            lines += [f"  {text}" for text in _closing(self._closed.rows() if self._closed is not None else ())]
            lines += [f"  {p.process}: {'/'.join(p.path) or 'between phases'} · {p.ended} ended" for p in phases]
            if names := in_step(run, self._listener.recorded):
                lines.append(f"! {', '.join(names)} in lock step with the phases: {OUT_OF_STEP}")
        lines += [self._listener.no_run] if self._listener.no_run else []
        return lines


def _row(line: LiveLine) -> tuple[str, ...]:
    is_power = line.value is None
    about = line.line.provenance.value + ("" if line.feeds else ", compared") if is_power else line.line.quantity
    worst = max(line.fault_shares().items(), key=lambda own: own[1], default=None) if is_power else None
    if worst is not None and (worst[1] > NAMED_SHARE or worst[0] is Fault.SATURATED):
        about += f", {worst[0]}"
    watts, joules = digits(line.power_w if is_power else line.value), digits(line.known_j) if is_power else "–"
    return line.line.name, watts, joules, digits(line.rate_hz), str(line.bad), about


def _table(headings: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    """The first columns of the rows, as many as there are headings; figures to the right."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for heading in headings:
        is_figure = heading in ("W", "J", "missing s", "Hz", "flagged", "n", "share", "W of 60 s", "J each")
        table.add_column(heading, justify="right" if is_figure else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        cells = row[: len(headings)]
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in cells))
    return table


def sparkline(values: Sequence[float | None], most: float) -> str:
    """A character for each value, from 0 to ``most``; a blank for what is not known."""
    return "".join(" " if v is None or most <= 0 else "▁▂▃▄▅▆▇█"[min(max(int(8 * v / most), 0), 7)] for v in values)


# ---- words and figures -------------------------------------------------------------------------------------------


def mean_power(device: DeviceFigures, energies: Sequence[Energy]) -> str:
    """The mean power of the last minute with its 95 % interval, as the estimator of the tables has it."""
    own = [e for e in energies if not e.phase and (e.device, e.provenance) == (device.device, device.provenance)]
    if not device.is_recorded:  # another powerd's device of that name
        return ""
    if not own or own[0].energy_j is None or not own[0].seconds:
        return ""
    per_s = 1 / own[0].seconds
    u95_w = None if own[0].u95_j is None else own[0].u95_j * per_s
    return with_u95(own[0].energy_j * per_s, u95_w, is_lower_bound=own[0].is_lower_bound)


def energy_each(phase: str, device: str, energies: Sequence[Energy]) -> str:
    """The mean joules of the phases of a name in the last minute, with their 95 % interval."""
    own = [e for e in energies if (e.phase, e.device) == (phase, device)]
    if not own:
        return ""
    most = max(own, key=lambda e: e.count)  # there may be several groups of it
    return "n.r." if most.energy_j is None else with_u95(most.energy_j, most.u95_j, is_lower_bound=most.is_lower_bound)


def in_step(run: RunPhases, powerds: Sequence[LivePowerd]) -> list[str]:
    """Lines that see the same few moments of each repetition of the phase that takes most time: lock step."""
    phases = {name: seconds for name, seconds in run.seconds.items() if name != BETWEEN}
    begin_ns = run.begins_ns(max(phases, key=phases.__getitem__)) if phases else np.zeros(0, np.int64)
    if not len(begin_ns):
        return []
    return [
        line.line.name
        for powerd in powerds
        for lines in powerd.board.devices.values()
        for line in lines
        if moments_seen(np.arange(begin_ns[0], begin_ns[-1], max(line.line.period_ns, 1)), begin_ns)
    ]


def state(powerd: LivePowerd) -> str:
    """What a powerd declares lost, how well its clock is known, and its trouble."""
    board, refused, bound_s = powerd.board, powerd.link.refused, powerd.clock_bound_s
    bad = sum(line.bad for line in board.lines.values())
    parts = [f"{lost_text(board.losses, board.lost_scans, board.unknown_losses)}"]
    parts[0] += f" ({board.last_cause})" if board.losses else ""
    faults = faults_text({line.line.name: line.fault_shares() for line in board.lines.values() if line.value is None})
    parts += [f"{bad} readings flagged" + (f" ({faults})" if faults else "")] if bad else []
    parts += [f"{refused} frames refused"] if refused else []
    parts.append(f"clock ± {seconds(bound_s)}" if bound_s is not None else "clock not compared yet")
    parts += [f"restarted {powerd.restarts} times"] if powerd.restarts else []
    return " · ".join([*parts, *([f"! {powerd.trouble}"] if powerd.trouble else [])])


def one_line(
    listener: Listener,
    run: RunPhases | None = None,
    energies: Sequence[Energy] = (),
    closed: Sequence[RunRow] = (),
) -> str:
    """All devices in one line of text, for where there is no terminal; ``closed`` is what the run took once it has
    ended."""
    parts = [str(timedelta(seconds=int(listener.elapsed_s)))]
    for d in listener.devices():
        mean = mean_power(d, energies)
        of_minute = f", {mean} W over 60 s" if mean else ""
        missing = f", {seconds(d.missing_s)} without readings" if d.missing_s else ""
        parts.append(f"{d.device} {digits(d.power_w)} W {digits(d.energy_j)} J ({d.provenance}){of_minute}{missing}")
    parts += [f"{p.process} {'/'.join(p.path) or 'between phases'}" for p in (run.current() if run else ())]
    parts += [f"the run has ended: {text}" for text in _closing(closed)]
    parts += [listener.no_run] if listener.no_run else []
    return " · ".join([*parts, *map(state, listener.powerds)])


def document(
    listener: Listener,
    run: RunPhases | None = None,
    energies: Sequence[Energy] = (),
    closed: Sequence[RunRow] = (),
) -> dict[str, Any]:
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
        recording["in_step"] = in_step(run, listener.recorded)
        recording["last_minute"] = [asdict(energy) for energy in energies]
        recording["closed"] = [asdict(row) for row in closed]
    return {
        "elapsed_s": round(listener.elapsed_s, 3),
        "since_run": listener.is_since_run,
        "run": recording,
        "no_run": listener.no_run or None,
        "devices": [asdict(figures) for figures in listener.devices()],
        "powerds": [
            {
                "url": powerd.url,
                "board": powerd.board.description.board,
                "clock_bound_s": powerd.clock_bound_s,
                "losses": powerd.board.losses,
                "lost_scans": powerd.board.lost_scans,
                "losses_of_unknown_length": powerd.board.unknown_losses,
                "frames_refused": powerd.link.refused,
                "restarts": powerd.restarts,
                "trouble": powerd.trouble,
                "lines": [_line_document(line) for line in powerd.board.lines.values()],
            }
            for powerd in listener.powerds
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
        "missing_s": line.missing_until_now_s(),
        "rate_hz": line.rate_hz,
        "readings": line.readings,
        "flagged": line.bad,
        "faults": {str(fault): count for fault, count in line.faults.items()},
    }
