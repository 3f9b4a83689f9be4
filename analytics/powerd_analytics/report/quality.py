"""How good the data are, how uncertain and where they come from, as sheets: lines, clocks, gaps, messages, budget."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from powerd_analytics.energy.reasons import digits
from powerd_analytics.exports.sheet import Sheet, SheetColumn
from powerd_analytics.records.columns import Cell
from powerd_analytics.report.names import Names
from powerd_analytics.report.sheets import count_column, number_column, plain_sheet, text_column
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.signal import Signal
from powerd_analytics.signals.slices import FAR_NS, parts_between
from powerd_analytics.tables.groups import group_line
from powerd_analytics.tables.shares import BudgetRow
from powerd_client.wallclock import read_anchor

MOST_GAPS = 200
MOST_MESSAGES = 200
MOST_COLUMNS = 2
"""Runs that have a column each in the table of the environment."""
MOST_NAMES = 8


def lines_sheet(found: Sequence[tuple[Run, Signal, str]], names: Names) -> Sheet:
    """A row for each line: readings, what is missing of them, and what one reading can tell apart."""
    columns = [
        text_column("run"), text_column("line"), text_column("device"), text_column("role"), text_column("source"),
        text_column("provenance"), count_column("readings"), count_column("bad"), count_column("full scale"),
        number_column("rate Hz", "Hz"), number_column("missing s", "s"), number_column("longest gap s", "s"),
        number_column("window ms", "ms"), number_column("age ms", "ms"),
    ]  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for run, s, role in found:
        missing, longest = _missing(s)
        rate = 1e9 / s.spacing_ns if s.spacing_ns > 0 and len(s) > 1 else None
        rows.append((
            names[run.path], s.line.name, s.line.device, role, s.line.source, s.line.provenance.value, s.line.count,
            s.bad, len(s.clipped_ns) + len(s.clipped_low_ns), rate, missing, longest, s.window_ns * 1e-6,
            s.centre_ns * 1e-6,
        ))  # fmt: skip
    sheet = plain_sheet("lines", "Lines", columns, rows)
    note = "window: what one reading averages over; age: how far its middle can lie from its timestamp"
    return Sheet(sheet.name, sheet.title, sheet.columns, sheet.rows, (note,))


def _missing(signal: Signal) -> tuple[float, float]:
    """Seconds without readings, and the longest stretch between two. Slices overlap: each interval counts once."""
    total, longest, last = 0.0, 0.0, -FAR_NS
    for piece in parts_between(signal, -FAR_NS, FAR_NS):
        if len(piece) < 2:
            continue
        new = piece.t_ns[:-1] >= last
        total += float(piece.missing_ns()[new].sum()) * 1e-9
        longest = max(longest, float(np.diff(piece.t_ns)[new].max(initial=0)) * 1e-9)
        last = int(piece.t_ns[-1])
    return total, longest


def clocks_sheet(runs: Iterable[Run], names: Names) -> Sheet:
    """The guaranteed bound of each board's clock against the host's."""
    columns = [
        text_column("run"), text_column("clock of"), count_column("exchanges"), number_column("bound, median µs", "µs"),
        number_column("bound, largest µs", "µs"), count_column("steps"),
    ]  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            names[run.path], c.board or name, len(c.t_ns), float(np.median(c.half_width_ns)) * 1e-3,
            float(c.half_width_ns.max()) * 1e-3, c.steps,
        )
        for run in runs for name, c in run.clocks.items() if len(c.half_width_ns)
    ]  # fmt: skip
    return plain_sheet("clocks", "Clocks", columns, rows)


def gaps_sheet(runs: Iterable[Run], names: Names) -> Sheet:
    """What was lost on the way, and why."""
    columns = [
        text_column("run"), text_column("stream"), number_column("at s", "s"), number_column("seconds", "s"),
        count_column("scans lost"), text_column("cause"),
    ]  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            names[run.path], g.stream, (g.begin_ns - run.begin_ns) * 1e-9, (g.end_ns - g.begin_ns) * 1e-9,
            g.lost if g.lost >= 0 else None, g.cause,
        )
        for run in runs for g in run.gaps
    ]  # fmt: skip
    more = (f"{len(rows) - MOST_GAPS} more gaps: `joules info` lists all",) if len(rows) > MOST_GAPS else ()
    sheet = plain_sheet("gaps", "Gaps", columns, rows[:MOST_GAPS])
    return Sheet(sheet.name, sheet.title, sheet.columns, sheet.rows, more)


def messages_sheet(runs: Iterable[Run], names: Names) -> Sheet:
    """What recorder and client wrote into the runs."""
    rows: list[tuple[Cell, ...]] = [
        (names[run.path], str(m.get("level", "info")), str(m.get("text", "")))
        for run in runs
        for m in run.messages
        if read_anchor(m) is None
    ]
    more = (f"{len(rows) - MOST_MESSAGES} more messages are in the run files",) if len(rows) > MOST_MESSAGES else ()
    columns = (text_column("run"), text_column("level"), text_column("message"))
    return Sheet("messages", "Messages", columns, tuple(rows[:MOST_MESSAGES]), more)


def budget_sheet(name: str, rows: Sequence[BudgetRow]) -> Sheet:
    """A row for each energy: its parts by share of the variance, the largest first."""
    columns = [
        text_column("group"), text_column("phase"), text_column("device"), text_column("provenance"),
        number_column("J", "J"), SheetColumn("u95_j", "± U95 J", "number", "J", is_uncertainty=True),
        text_column("largest part"), number_column("share %", "%"),
        text_column("parts"), text_column("note"),
    ]  # fmt: skip
    found: list[tuple[Cell, ...]] = []
    of_variance = re.compile(r" \(\d+% of the variance\)")  # has a column of its own here
    for r in rows:
        parts = ", ".join(f"{s.part} {_percent(s.share)} ({digits(s.u_j, 2)} J)" for s in r.parts)
        first = r.parts[0] if r.parts else None
        found.append((
            group_line(r.group), r.phase or f"({r.table})", r.device, r.provenance, r.energy_j,
            r.u95_j, first.part if first else None, 100 * first.share if first else None, parts,
            of_variance.sub("", r.words),
        ))  # fmt: skip
    return plain_sheet("budget", f"Uncertainty budget of {name}", columns, found)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "< 1 %"


def environment_sheet(runs: Sequence[Run], names: Names) -> Sheet:
    """What each run says of its machine, software and command: a column each run, or of many runs a row each value."""
    values: dict[str, dict[int, str]] = {}
    for i, run in enumerate(runs):
        a = run.attributes
        known: dict[str, Any] = {
            "command": " ".join(run.command) or None,
            **run.environment,
            **{k: a.get(k) for k in ("powerd_version", "host_clock", "format_version")},
            "boards": ", ".join(sorted({line.board for line in run.lines.values() if line.board})) or None,
            "processes": len(run.processes) or None,
        }
        for key, value in known.items():
            if value is not None:
                values.setdefault(str(key), {})[i] = _text(value)
    if len(runs) > MOST_COLUMNS:
        return _by_value(values, [names[run.path] for run in runs])
    columns = [text_column("what"), *(text_column(names[run.path]) for run in runs)]
    rows = [(key, *(of.get(i) for i in range(len(runs)))) for key, of in values.items()]
    return Sheet("environment", "Environment", tuple(columns), tuple(rows))


def _by_value(values: Mapping[str, Mapping[int, str]], names: Sequence[str]) -> Sheet:
    """A row for each value of each thing, with the runs that have it."""
    rows: list[tuple[Cell, ...]] = []
    for key, of in values.items():
        for value in dict.fromkeys(of.values()):
            have = [name for i, name in enumerate(names) if of.get(i) == value]
            more = f" and {len(have) - MOST_NAMES} more" if len(have) > MOST_NAMES else ""
            rows.append((key, value, "all" if len(have) == len(names) else ", ".join(have[:MOST_NAMES]) + more))
    return plain_sheet("environment", "Environment", [text_column(n) for n in ("what", "value", "runs")], rows)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {v}" for k, v in value.items())
    return str(value)
