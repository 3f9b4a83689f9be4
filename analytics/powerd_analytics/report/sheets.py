"""The page's own tables: recordings, lines, clocks, gaps, messages, uncertainty, environment, files; and its words."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from powerd_analytics.frame.costs import Factors
from powerd_analytics.frame.figures import Frame, floats, of_kind, table_from
from powerd_analytics.frame.trainings import Length
from powerd_analytics.output.export import Column, Kind, Table, make_table, round_table
from powerd_analytics.output.text import Cell, first_of
from powerd_analytics.runs.run import Run
from powerd_analytics.runs.signals import missing_of
from powerd_analytics.views.breakdown import KINDS
from powerd_client.host.hostclock import read_anchor
from powerd_client.signals.signal import Signal
from powerd_core.errors import RunFileError
from powerd_core.text import printable

LONG = 60
"""A text longer than this may be broken into lines."""
MOST_ROWS = 200
"""Of losses and of messages."""
MISSING = 1e-3
"""Share of a recording from which on its missing readings are spoken of, as in the notes of the tables."""
UNITS = ("s", "ms", "µs", "Hz", "J", "%")

Names = Mapping[Path, str]
"""What a page calls the run files."""


def run_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Names of files; where two have one (``old/0.h5``, ``new/0.h5``), paths below the directory that holds them all,
    from which the page's commands can then be typed."""
    if len({p.name for p in paths}) == len(set(paths)):
        return {p: p.name for p in paths}
    above = os.path.commonpath([p.absolute().parent for p in paths])
    return {p: p.absolute().relative_to(above).as_posix() for p in paths}


def with_run_names(frame: Frame, names: Names) -> Frame:
    """The frame with runs by their names as the page has them, without the suffix; sums over machines keep theirs."""
    known = {str(path): name.removesuffix(path.suffix) for path, name in names.items()}
    own = frame["path"].map(known).where(frame["machines"].isna())
    return frame.assign(run=own.fillna(frame["run"]).astype("string"))


# ---- for the template --------------------------------------------------------------------------------------------


def shown_sheet(table: Table, identity: str = "") -> dict[str, Any]:
    """A table for the template, its strings made printable. A cell has its text, its number in full precision (None for
    a text or where nothing is known), and its style."""
    shown = round_table(table)

    def cell(value: Cell, text: str, column: Column) -> tuple[str, str | None, str]:
        text = printable(text)
        if not column.is_numeric:
            if column.name == "provenance" and text != "measured":
                return text, None, "unmeasured"
            return text, None, "long" if len(text) > LONG else ""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return text, repr(value) if is_number else None, "n"

    return {
        "id": identity or table.name,
        "title": printable(table.title),
        "heads": [
            (printable(c.heading or c.name), "" if c.units == "1" else printable(c.units), c.is_numeric)
            for c in shown.columns
        ],
        "rows": [
            [cell(row[at], text, column) for at, column, text in zip(shown.places, shown.columns, line, strict=True)]
            for row, line in zip(table.rows, shown.lines, strict=True)
        ],
        "footnotes": list(map(printable, shown.footnotes)),
        "notes": list(map(printable, table.notes)),
    }


def _sheet(name: str, title: str, rows: Sequence[Mapping[str, Cell]], note: str = "", most: int = 0) -> Table:
    """A sheet of rows by heading, whose last word may be a unit. Rows beyond ``most`` are left out and counted."""
    columns = []
    for heading in rows[0] if rows else ():
        value = next((r[heading] for r in rows if r[heading] is not None), "")
        kind: Kind = "text" if isinstance(value, str) else "integer" if isinstance(value, int) else "number"
        unit = heading.split()[-1]
        is_uncertainty = heading.startswith("±")
        columns.append(Column(heading, kind, unit if unit in UNITS else "", is_uncertainty=is_uncertainty))
    if most and len(rows) > most:
        note, rows = f"{len(rows) - most} more stand in the run files", rows[:most]
    return make_table(name, title, columns, rows, [note] if note else [])


# ---- seconds and joules ----------------------------------------------------------------------------------------------


def phases_sheet(time: Table, energy: Table) -> Table:
    """The tables of time and of energy by phase as one: they have the same rows in the same order. What was measured
    stands first, and last what belongs to no configuration, such as a warm-up."""
    rows = _without_repeats([a | b for a, b in zip(time.records(), energy.records(), strict=True)])
    rows.sort(key=lambda row: (KINDS.index(str(row["provenance"])), row["batch_size"] is None))
    columns = {c.name: c for table in (time, energy) for c in table.columns}
    if all(row["gpus"] == 1 for row in rows):
        del columns["gpus"]
    # On a telephone the first four columns are seen: joules are one of them.
    one_model = ("model",) if len({row["model"] for row in rows} - {None, ""}) <= 1 else ()
    last = (*one_model, "runs", "provenance", "is_lower_bound", "note")
    first = tuple(n for n in columns if (columns[n].is_setting or n == "phase") and n not in last)
    order = (*first, "j_per_batch", "u95_j_per_batch", "power_w")
    names = sorted(
        columns, key=lambda n: order.index(n) if n in order else 100 + last.index(n) if n in last else len(order)
    )
    every = dict.fromkeys([*time.notes, *energy.notes])
    # That of the times says all that the one of the joules does, and more.
    notes = [note for note in every if not any(other != note and other.startswith(note) for other in every)]
    return make_table("phases", "Time and energy by phase", [columns[name] for name in names], rows, notes)


def _without_repeats(rows: Sequence[dict[str, Cell]]) -> list[dict[str, Cell]]:
    """The rows without those of all phases where iterations say the same, or where there is one phase alone."""
    phases: dict[tuple[Cell, ...], set[Cell]] = {}

    def place(row: Mapping[str, Cell]) -> tuple[Cell, ...]:
        return tuple(
            row[name] for name in ("model", "device", "gpus", "batch_size", "provenance", "run") if name in row
        )

    for row in rows:
        phases.setdefault(place(row), set()).add(row["phase"])
    return [
        row for row in rows
        if row["phase"] != "all" or not ("iteration" in phases[place(row)] or len(phases[place(row)]) == 2)
    ]  # fmt: skip


_OF_RECORDINGS = ("run", "device", "provenance", "time_s", "energy_j", "u95_j", "power_w", "phases_j", "rest_j",
                  "rest_u95_j", "missing_s", "is_lower_bound", "note")  # fmt: skip


def recordings_sheet(frame: Frame) -> Table:
    """One row for each recording and device: joules from begin to end, and what phases and rest make of them."""
    note = "phases + rest = the whole; missing: seconds of it without readings"
    return table_from(of_kind(frame, "run"), "recordings", "Whole recordings", _OF_RECORDINGS, (note,))


# ---- data quality ------------------------------------------------------------------------------------------------


def lines_sheet(lines: Sequence[tuple[Run, Signal, str]], names: Names) -> Table:
    """A row for each line: readings, what is missing of them, and what one reading can tell apart."""
    rows = []
    for run, s, role in lines:
        missing_s, longest_s = missing_of(s, run.begin_ns, run.end_ns)
        rows.append({
            "run": names[run.path],
            "line": s.line.name,
            "device": s.line.device,
            "role": role,
            "source": s.line.source,
            "provenance": s.line.provenance.value,
            "readings": s.line.count,
            "bad": s.bad,
            "full scale": len(s.clipped_ns) + len(s.clipped_low_ns),
            "rate Hz": 1e9 / s.spacing_ns if s.spacing_ns > 0 and len(s) > 1 else None,
            "missing s": missing_s,
            "longest without s": longest_s,
            "window ms": s.window_ns * 1e-6,
            "age ms": s.centre_ns * 1e-6,
        })  # fmt: skip
    note = "missing: seconds of the recording without readings of this line; of a device's lines, the one that misses "
    note += "most counts; longest without: the longest time between two good readings; window: what one reading "
    note += "averages over; age: how far its middle can lie from its timestamp"
    return _sheet("lines", "Lines", rows, note)


def clocks_sheet(runs: Sequence[Run], names: Names) -> Table:
    """The guaranteed bound of each board's clock against the host's."""
    rows: list[dict[str, Cell]] = [
        {
            "run": names[run.path],
            "clock of": c.board or name,
            "exchanges": len(c.t_ns),
            "median bound µs": float(np.median(c.half_width_ns)) * 1e-3,
            "largest bound µs": float(c.half_width_ns.max()) * 1e-3,
            "steps": c.steps,
        }
        for run in runs
        for name, c in run.clocks.items()
        if len(c.half_width_ns)
    ]
    return _sheet("clocks", "Clocks", rows)


def gaps_sheet(runs: Sequence[Run], names: Names) -> Table:
    """What is known to have been lost on the way, and why."""
    rows: list[dict[str, Cell]] = [
        {
            "run": names[run.path],
            "stream": g.stream,
            "at s": (g.begin_ns - run.begin_ns) * 1e-9,
            "length s": (g.end_ns - g.begin_ns) * 1e-9,
            "scans lost": g.lost if g.lost >= 0 else None,
            "cause": g.cause,
        }
        for run in runs
        for g in run.gaps
    ]
    return _sheet("gaps", "Scans lost", rows, most=MOST_ROWS)


def messages_sheet(runs: Sequence[Run], names: Names) -> Table:
    """What recorder and client wrote into the runs."""
    rows = [
        {"run": names[run.path], "level": str(m.get("level", "info")), "message": str(m.get("text", ""))}
        for run in runs
        for m in run.messages
        if read_anchor(m) is None
    ]
    return _sheet("messages", "Messages", rows, most=MOST_ROWS)


def quality_notes(runs: Sequence[Run], frame: Frame, names: Names) -> list[str]:
    """What the tables of quality do not have: runs that are incomplete or rebuilt, and whether anything is missing."""
    notes = [f"{printable(names[r.path])} is incomplete: the training process vanished or a part was cut off."
             for r in runs if not r.is_complete]  # fmt: skip
    notes += [f"{printable(names[r.path])} was rebuilt from the journal of a recorder that died."
              for r in runs if r.attributes.get("rebuilt")]  # fmt: skip
    whole = of_kind(frame, "run")
    if (floats(whole, "missing_s") > MISSING * floats(whole, "time_s")).any():
        notes.append("Readings are missing: for how long, whatever the cause, stands under whole recordings.")
    elif not any(r.gaps for r in runs):
        notes.append("No scan was lost, and no recording lacks readings for a thousandth of its time.")
    return notes


# ---- where it comes from -----------------------------------------------------------------------------------------


def environment_sheet(runs: Sequence[Run], names: Names) -> Table:
    """What the runs say of their machines, software and commands: a row for each value, with the runs that have it."""
    whose: dict[str, dict[str, list[str]]] = {}
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
                whose.setdefault(str(key), {}).setdefault(text, []).append(names[run.path])
    rows = [
        {"what": key, "value": text, "runs": "all" if len(own) == len(runs) else first_of(own, ", ")}
        for key, values in whose.items()
        for text, own in values.items()
    ]
    return _sheet("environment", "Environment", rows)


def sha256(path: Path) -> str:
    """Of the file's bytes, in hexadecimal. Raises `RunFileError`."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunFileError(f"{path} cannot be read: {error.strerror or error}") from error


def files_sheet(runs: Sequence[Run], checksums: Sequence[str], names: Names) -> Table:
    """A row for each run file: id, when, with which version, checksum."""
    rows = [
        {
            "file": names[run.path],
            "run id": str(run.attributes.get("run_id", "")),
            "recorded (UTC)": str(run.attributes.get("created_utc", "")),
            "length s": (run.end_ns - run.begin_ns) * 1e-9,
            "recorded with": f"powerd {run.attributes.get('powerd_version', '?')}",
            "complete": "yes" if run.is_complete else "no",
            "SHA-256": checksum,
        }
        for run, checksum in zip(runs, checksums, strict=True)
    ]
    return _sheet("files", "Run files", rows)


def commands(names: Names, device: str | None, calibration: Path | None, length: Length, factors: Factors) -> list[str]:
    """What a reader types to get the same."""
    files = " ".join(map(shlex.quote, names.values()))
    calibrated = {"device": device, "calibration": calibration.name if calibration else None}
    options = "".join(
        f" --{name.replace('_', '-')} {shlex.quote(value if isinstance(value, str) else f'{value:.15g}')}"
        for name, value in (calibrated | asdict(length) | asdict(factors)).items()
        if value is not None
    )
    return [
        f"sha256sum {files}",
        f"joules info --check {files}",
        f"joules tables {files}{options} --format csv -o tables.csv",
        f"joules report {files}{options} -o report.html",
    ]


# ---- words -------------------------------------------------------------------------------------------------------


def _days(runs: Sequence[Run], length: int) -> str:
    """When the runs were recorded, so many characters of the date."""
    days = sorted(str(r.attributes.get("created_utc", ""))[:length].replace("T", " ") for r in runs)
    return " to ".join(dict.fromkeys((days[0], days[-1])))


def citation(runs: Sequence[Run]) -> str:
    """One sentence for a paper."""
    kinds = sorted({line.provenance.value for run in runs for line in run.lines.values()})
    many = f"{len(runs)} runs" if len(runs) > 1 else f"run {runs[0].attributes.get('run_id', '?')}"
    return (
        f"Cite as: energies ({' and '.join(kinds)} power) of {many}, recorded on {_days(runs, 10)} and evaluated with "
        f"powerd {version('powerd')}; run files with the SHA-256 checksums below."
    )


def subtitle(runs: Sequence[Run]) -> str:
    """When and where the runs were recorded."""
    hosts = sorted({str(r.environment.get("host", "")) for r in runs} - {""})
    return f"Recorded {_days(runs, 19)} UTC" + (f" on {first_of(hosts, ', ', 4)}." if hosts else ".")
