"""The page's own tables: recordings, lines, clocks, gaps, messages, uncertainty, environment, files; and its words."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from powerd_analytics.campaign import Length
from powerd_analytics.costs import Factors
from powerd_analytics.energy.uncertainty import ROUNDING
from powerd_analytics.export import Cell, Column, Kind, rounded, rows_of, table_frame
from powerd_analytics.records import Record, column, number_of
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.signal import FAR_NS, Signal, parts_between
from powerd_analytics.table import group_line
from powerd_analytics.text import digits, first_of
from powerd_analytics.uncertainty_table import BudgetRow
from powerd_client.hostclock import read_anchor
from powerd_core.errors import RunFileError
from powerd_core.text import printable

LONG = 60
"""A text longer than this may be broken into lines."""
MOST_GAPS = 200
MOST_MESSAGES = 200
MOST_COLUMNS = 2
"""Runs that have a column each in the table of the environment."""
TEXT, COUNT = "", "1"
"""Of a column of texts, and of whole numbers; else its numbers' unit."""

Names = Mapping[Path, str]
"""What a page calls the run files."""


# ---- names -------------------------------------------------------------------------------------------------------


def run_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Names of files; where two have one (``old/0.h5``, ``new/0.h5``), paths below the directory that holds them all,
    from which the page's commands can then be typed."""
    if len({p.name for p in paths}) == len(set(paths)):
        return {p: p.name for p in paths}
    above = os.path.commonpath([p.absolute().parent for p in paths])
    return {p: p.absolute().relative_to(above).as_posix() for p in paths}


def named(records: Sequence[Record], names: Names) -> list[Record]:
    """The records with their run's name as the page has it, without the suffix."""
    known = {str(path): name.removesuffix(path.suffix) for path, name in names.items()}
    return [{**r, "run": known.get(str(r["path"]), r["run"])} for r in records]


# ---- for the template --------------------------------------------------------------------------------------------


def shown_sheet(frame: pd.DataFrame, identity: str = "") -> dict[str, Any]:
    """A table for the template, its strings made printable. A cell has its text, its number in full precision (None for
    a text or where nothing is known), and its style."""
    shown = rounded(frame)

    def cell(value: Cell, text: str, column: Column) -> tuple[str, str | None, str]:
        text = printable(text)
        if not column.is_numeric:
            return text, None, "long" if len(text) > LONG else ""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return text, repr(value) if is_number else None, "n"

    return {
        "id": identity or frame.attrs["name"],
        "title": printable(frame.attrs["title"]),
        "heads": [
            (printable(c.heading or c.name), "" if c.units == "1" else printable(c.units), c.is_numeric)
            for c in shown.columns
        ],
        "rows": [
            [cell(row[at], text, column) for at, column, text in zip(shown.places, shown.columns, line, strict=True)]
            for row, line in zip(rows_of(frame), shown.lines, strict=True)
        ],
        "footnotes": list(map(printable, shown.footnotes)),
        "notes": list(map(printable, frame.attrs["notes"])),
    }


def _sheet(
    name: str, title: str, units: Mapping[str, str], rows: Sequence[Sequence[Cell]], notes: Sequence[str] = ()
) -> pd.DataFrame:
    """A sheet of cells as they are; ``units`` of its columns by their headings (`TEXT`, `COUNT`)."""
    kinds: dict[str, Kind] = {TEXT: "text", COUNT: "integer"}
    columns = (
        Column(heading, kinds.get(unit, "number"), unit, is_uncertainty=heading.startswith("±"))
        for heading, unit in units.items()
    )
    return table_frame(name, title, tuple(columns), rows, notes)


# ---- joules and their uncertainty --------------------------------------------------------------------------------

_RECORDINGS = ("run", "device", "provenance", "time_s", "energy_j", "u95_j", "power_w", "phases_j", "rest_j",
               "residual_j", "missing_s", "is_lower_bound", "note")  # fmt: skip
_HEADINGS = {"phases_j": "phases J", "rest_j": "rest J", "residual_j": "residual J", "missing_s": "missing s"}


def recordings_sheet(records: Sequence[Record]) -> pd.DataFrame:
    """One row for each recording and device: joules from begin to end, and what phases and rest make of them."""
    runs = [r for r in records if r["kind"] == "run"]
    columns = tuple(column(name, heading=_HEADINGS.get(name, "")) for name in _RECORDINGS)
    rows = tuple(tuple(_residual(r) if name == "residual_j" else r[name] for name in _RECORDINGS) for r in runs)
    note = (
        "phases + rest + residual = the whole; the residual is what straight lines across the phases' edges get wrong"
    )
    return table_frame("recordings", "Whole recordings", columns, rows, (note,))


def _residual(run: Record) -> float | None:
    """What phases and rest leave of the whole; 0 where it is the rounding of sums."""
    residual, whole = number_of(run, "residual_j"), number_of(run, "energy_j")
    return 0.0 if residual and whole and abs(residual) <= ROUNDING * abs(whole) else residual


def budget_sheet(name: str, rows: Sequence[BudgetRow]) -> pd.DataFrame:
    """A row for each energy: its parts by share of the variance, the largest first."""
    of_variance = re.compile(r" \(\d+% of the variance\)")  # has a column of its own here
    cells = []
    for r in rows:
        shares = [f"{100 * s.share:.0f} %" if s.share >= 0.01 else "< 1 %" for s in r.parts]
        parts = ", ".join(f"{s.part} {share} ({digits(s.u_j, 2)} J)" for s, share in zip(r.parts, shares, strict=True))
        first = r.parts[0] if r.parts else None
        cells.append((
            group_line(r.group), r.phase or f"({r.table})", r.device, r.provenance, r.energy_j, r.u95_j,
            first.part if first else None, 100 * first.share if first else None, parts, of_variance.sub("", r.words),
        ))  # fmt: skip
    units = {
        "group": TEXT, "phase": TEXT, "device": TEXT, "provenance": TEXT, "J": "J", "± U95 J": "J",
        "largest part": TEXT, "share %": "%", "parts": TEXT, "note": TEXT,
    }  # fmt: skip
    return _sheet("budget", f"Uncertainty budget of {name}", units, cells)


# ---- data quality ------------------------------------------------------------------------------------------------


def lines_sheet(lines: Sequence[tuple[Run, Signal, str]], names: Names) -> pd.DataFrame:
    """A row for each line: readings, what is missing of them, and what one reading can tell apart."""
    rows = []
    for run, s, role in lines:
        missing_s, longest_s = _missing(s)
        rate_hz = 1e9 / s.spacing_ns if s.spacing_ns > 0 and len(s) > 1 else None
        rows.append((
            names[run.path], s.line.name, s.line.device, role, s.line.source, s.line.provenance.value, s.line.count,
            s.bad, len(s.clipped_ns) + len(s.clipped_low_ns), rate_hz, missing_s, longest_s, s.window_ns * 1e-6,
            s.centre_ns * 1e-6,
        ))  # fmt: skip
    units = {
        "run": TEXT, "line": TEXT, "device": TEXT, "role": TEXT, "source": TEXT, "provenance": TEXT, "readings": COUNT,
        "bad": COUNT, "full scale": COUNT, "rate Hz": "Hz", "missing s": "s", "longest gap s": "s", "window ms": "ms",
        "age ms": "ms",
    }  # fmt: skip
    note = "window: what one reading averages over; age: how far its middle can lie from its timestamp"
    return _sheet("lines", "Lines", units, rows, [note])


def _missing(signal: Signal) -> tuple[float, float]:
    """Seconds without readings, and the longest stretch between two. Slices overlap: each interval counts once."""
    total_s, longest_s, last = 0.0, 0.0, -FAR_NS
    for piece in parts_between(signal, -FAR_NS, FAR_NS):
        if len(piece) < 2:
            continue
        new = piece.t_ns[:-1] >= last
        total_s += float(piece.missing_ns()[new].sum()) * 1e-9
        longest_s = max(longest_s, float(np.diff(piece.t_ns)[new].max(initial=0)) * 1e-9)
        last = int(piece.t_ns[-1])
    return total_s, longest_s


def clocks_sheet(runs: Sequence[Run], names: Names) -> pd.DataFrame:
    """The guaranteed bound of each board's clock against the host's."""
    rows = [
        (
            names[run.path], c.board or name, len(c.t_ns), float(np.median(c.half_width_ns)) * 1e-3,
            float(c.half_width_ns.max()) * 1e-3, c.steps,
        )
        for run in runs for name, c in run.clocks.items() if len(c.half_width_ns)
    ]  # fmt: skip
    units = {"run": TEXT, "clock of": TEXT, "exchanges": COUNT, "bound, median µs": "µs", "bound, largest µs": "µs",
             "steps": COUNT}  # fmt: skip
    return _sheet("clocks", "Clocks", units, rows)


def gaps_sheet(runs: Sequence[Run], names: Names) -> pd.DataFrame:
    """What was lost on the way, and why."""
    rows = [
        (
            names[run.path], g.stream, (g.begin_ns - run.begin_ns) * 1e-9, (g.end_ns - g.begin_ns) * 1e-9,
            g.lost if g.lost >= 0 else None, g.cause,
        )
        for run in runs for g in run.gaps
    ]  # fmt: skip
    units = {"run": TEXT, "stream": TEXT, "at s": "s", "seconds": "s", "scans lost": COUNT, "cause": TEXT}
    more = [f"{len(rows) - MOST_GAPS} more gaps: `joules info` lists all"] if len(rows) > MOST_GAPS else []
    return _sheet("gaps", "Gaps", units, rows[:MOST_GAPS], more)


def messages_sheet(runs: Sequence[Run], names: Names) -> pd.DataFrame:
    """What recorder and client wrote into the runs."""
    rows = [
        (names[run.path], str(m.get("level", "info")), str(m.get("text", "")))
        for run in runs for m in run.messages if read_anchor(m) is None
    ]  # fmt: skip
    more = [f"{len(rows) - MOST_MESSAGES} more messages are in the run files"] if len(rows) > MOST_MESSAGES else []
    units = {"run": TEXT, "level": TEXT, "message": TEXT}
    return _sheet("messages", "Messages", units, rows[:MOST_MESSAGES], more)


def quality_notes(runs: Sequence[Run], names: Names) -> list[str]:
    """What the tables of quality do not have: runs that are incomplete or rebuilt, and that nothing was lost."""
    notes = [f"{printable(names[r.path])} is incomplete: the training process vanished or a part was cut off."
             for r in runs if not r.is_complete]  # fmt: skip
    notes += [f"{printable(names[r.path])} was rebuilt from the journal of a recorder that died."
              for r in runs if r.attributes.get("rebuilt")]  # fmt: skip
    if not any(r.gaps for r in runs):
        notes.append(
            "No gap was recorded: nothing was lost between the boards and the run files. What the table of lines calls "
            "bad or missing was not read, or read badly, where the sensors are."
        )
    return notes


# ---- where it comes from -----------------------------------------------------------------------------------------


def environment_sheet(runs: Sequence[Run], names: Names) -> pd.DataFrame:
    """What each run says of its machine, software and command: a column each run, or of many runs a row each value."""
    values: dict[str, dict[str, str]] = {}
    for run in runs:
        known: dict[str, Any] = {
            "command": " ".join(run.command) or None,
            **run.environment,
            **{k: run.attributes.get(k) for k in ("powerd_version", "host_clock", "format_version")},
            "boards": ", ".join(sorted({line.board for line in run.lines.values() if line.board})) or None,
            "processes": len(run.processes) or None,
        }
        for key, value in known.items():
            if value is not None:
                text = ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
                values.setdefault(str(key), {})[names[run.path]] = text
    if len(runs) <= MOST_COLUMNS:
        units = {"what": TEXT, **{names[run.path]: TEXT for run in runs}}
        return _sheet("environment", "Environment", units, [
            (key, *(by_run.get(names[run.path]) for run in runs)) for key, by_run in values.items()
        ])  # fmt: skip
    rows = []
    for key, by_run in values.items():
        for value in dict.fromkeys(by_run.values()):
            own = [name for name, of_run in by_run.items() if of_run == value]
            rows.append((key, value, "all" if len(own) == len(runs) else first_of(own, ", ")))
    return _sheet("environment", "Environment", dict.fromkeys(("what", "value", "runs"), TEXT), rows)


def sha256(path: Path) -> str:
    """Of the file's bytes, in hexadecimal. Raises `RunFileError`."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunFileError(f"{path} cannot be read: {error.strerror or error}") from error


def files_sheet(runs: Sequence[Run], checksums: Sequence[str], names: Names) -> pd.DataFrame:
    """A row for each run file: id, when, with which version, checksum."""
    rows = [
        (
            names[run.path], str(run.attributes.get("run_id", "")), str(run.attributes.get("created_utc", "")),
            (run.end_ns - run.begin_ns) * 1e-9, f"powerd {run.attributes.get('powerd_version', '?')}",
            "yes" if run.is_complete else "no: the training process vanished or a part was cut off", checksum,
        )
        for run, checksum in zip(runs, checksums, strict=True)
    ]  # fmt: skip
    units = {"file": TEXT, "run id": TEXT, "recorded (UTC)": TEXT, "s": "s", "recorded with": TEXT, "complete": TEXT,
             "SHA-256": TEXT}  # fmt: skip
    return _sheet("files", "Run files", units, rows)


def commands(
    runs: Sequence[Run], names: Names, device: str | None, calibration: Path | None, length: Length, factors: Factors
) -> list[str]:
    """What a reader types to get the same."""
    files = " ".join(shlex.quote(names[run.path]) for run in runs[:20]) + (" ..." if len(runs) > 20 else "")
    values: dict[str, Any] = {
        "device": device, "calibration": calibration.name if calibration else None, "iterations": length.iterations,
        "epochs": length.epochs, "dataset_size": length.dataset_size,
        **{f.name: getattr(factors, f.name) for f in fields(factors)},
    }  # fmt: skip
    options = "".join(
        f" --{name.replace('_', '-')} {shlex.quote(value if isinstance(value, str) else f'{value:.15g}')}"
        for name, value in values.items() if value is not None
    )  # fmt: skip
    return [
        f"sha256sum {files}",
        f"joules verify {files}",
        f"joules tables {files}{options} --format csv -o tables.csv",
        f"joules report {files}{options} -o report.html",
    ]


# ---- words -------------------------------------------------------------------------------------------------------


def version_text() -> str:
    """The version of the package, or that it is not installed as one."""
    try:
        return f"powerd {version('powerd')}"
    except PackageNotFoundError:
        return "powerd, not installed as a package"


def citation(runs: Sequence[Run]) -> str:
    """One sentence for a paper."""
    kinds = sorted({line.provenance.value for run in runs for line in run.lines.values()})
    days = sorted({str(run.attributes.get("created_utc", ""))[:10] for run in runs} - {""})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "an unknown day"
    many = f"{len(runs)} runs" if len(runs) > 1 else f"run {runs[0].attributes.get('run_id', '?')}"
    return (
        f"Cite as: energies ({' and '.join(kinds)} power) of {many}, recorded on {when} and evaluated with "
        f"{version_text()}; run files with the SHA-256 checksums below."
    )


def title(runs: Sequence[Run]) -> str:
    return f"Energy of {runs[0].path.name}" if len(runs) == 1 else f"Energy of {len(runs)} runs"


def subtitle(runs: Sequence[Run]) -> str:
    """When and where the runs were recorded."""
    days = sorted(str(r.attributes.get("created_utc", ""))[:19].replace("T", " ") for r in runs)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    hosts = sorted({str(r.environment.get("host", "")) for r in runs} - {""})
    return f"Recorded {when} UTC" + (f" on {', '.join(hosts[:4])}." if hosts else ".")
