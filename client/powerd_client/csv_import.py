"""A run file out of a CSV of watts or joules with their times, and a CSV of phases, which other instruments wrote.

The readings become frames of a journal, as if a powerd had sent them, and `powerd_client.build` writes the run file.
Codes are microwatts and microjoules, which hold what was written. What is wrong is a `ConfigError` that names the line.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, DecimalException
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from powerd_client import journal as journals
from powerd_client.build import read_contents, write_file
from powerd_client.hostclock import FARTHEST_NS, WallAnchor, anchor_note
from powerd_client.ownership import open_own
from powerd_client.phase import WHOLE
from powerd_client.recording import environment, release
from powerd_core.errors import ConfigError
from powerd_core.marks import RECORD, Marks
from powerd_core.model import (
    Accuracy,
    BlockBuilder,
    ClockExchange,
    Column,
    CounterConversion,
    Description,
    Device,
    Flag,
    Line,
    Provenance,
    ScaledConversion,
    Stream,
)
from powerd_core.serde import to_document
from powerd_core.wire import Event, Message, encode

POWERS = {"W": "1", "mW": "1e-3", "kW": "1e3"}
ENERGIES = {"J": "1", "mJ": "1e-3", "kJ": "1e3", "Wh": "3600", "mWh": "3.6", "kWh": "3.6e6"}
_WORDS = {unit.lower(): unit for unit in (*POWERS, *ENERGIES)} | {"watts": "W", "joules": "J"}
_FAILED = {"", "nan", "n/a", "[n/a]"}
_CODES_PER_UNIT = 1_000_000
_BLOCK_READINGS, _MARKS = 1000, 4096
_BEYOND = Decimal(1 << 70)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SensorCard:
    """What made the readings, and how good it is, which no CSV says."""

    device: str
    line: str
    provenance: Provenance
    accuracy: Accuracy
    """Its window is 0 where a reading averages from one to the next."""
    clock_ns: int = 0
    """So far the clock of the readings and that of the phases may be apart."""


@dataclass(frozen=True, slots=True)
class _Phase:
    begin_ns: int
    end_ns: int
    name: str
    attributes: dict[str, Any]
    line: int


class _Table:
    """A CSV: its ``heading``, and its ``rows`` with their line numbers."""

    def __init__(self, path: Path, is_utc: bool | None = None) -> None:
        self.path, self.is_utc = path, is_utc
        """Whether times are ISO 8601; None until the first is read."""
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                first = file.readline()
                file.seek(0)
                reader = csv.reader(file, delimiter=";" if first.count(";") > first.count(",") else ",")
                rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise ConfigError(f"{path} is no CSV: {error}") from error
        if len(rows) < 2:
            raise ConfigError(f"{path} holds nothing: below a line of headings stands one row a reading, or a phase")
        (_, self.heading), *self.rows = rows
        for line, row in self.rows:
            if len(row) != len(self.heading):
                raise self.error(line, f"{len(row)} cells below {len(self.heading)} headings")

    def error(self, line: int, text: str) -> ConfigError:
        return ConfigError(f"{self.path}, line {line}: {text}")

    def column(self, name: str) -> int:
        if name not in self.heading:
            raise self.error(1, f"there is no column {name!r} in {', '.join(self.heading)}")
        return self.heading.index(name)

    def time_ns(self, line: int, text: str) -> int:
        """Seconds of any clock, or ISO 8601 (UTC where it does not say)."""
        try:
            t_ns, is_utc = _rounded(Decimal(text) * 1_000_000_000), False
        except (DecimalException, ValueError, OverflowError):
            try:
                moment = datetime.fromisoformat(text)
            except ValueError:
                why = f"{text!r} is no time: write seconds, or UTC as in 2026-01-31T12:00:00.5Z"
                raise self.error(line, why) from None
            since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
            t_ns, is_utc = since // timedelta(microseconds=1) * 1000, True
        if abs(t_ns) >= FARTHEST_NS or self.is_utc not in (None, is_utc):
            raise self.error(line, f"the time {text!r} is not of the clock of those before: all seconds, or all UTC")
        self.is_utc = is_utc
        return t_ns


def _rounded(value: Decimal) -> int:
    """The nearest whole number; of one far beyond 64 bits a bound, for its digits may be a million."""
    return round(max(min(value, _BEYOND), -_BEYOND))


def _readings(table: _Table, name: str | None, unit: str | None) -> tuple[str, list[tuple[int, int | None]]]:
    """The readings' unit, and their times with their codes, which are None where a reading failed."""
    others = table.heading[1:]
    if name is None and len(others) != 1:
        raise table.error(1, f"which column holds the readings? give --column, one of {', '.join(others)}")
    name = name or others[0]
    words = [_WORDS[word] for word in re.findall("[a-z]+", name.lower()) if word in _WORDS]
    if unit is None and not words:
        raise table.error(1, f"the heading {name!r} names no unit: give --unit W, or J for a counter of joules")
    unit = unit or words[-1]
    place, scale = table.column(name), Decimal((POWERS | ENERGIES)[unit]) * _CODES_PER_UNIT
    readings: list[tuple[int, int | None]] = []
    last_ns, last = -FARTHEST_NS, -(1 << 62)
    for line, row in table.rows:
        t_ns, text, code = table.time_ns(line, row[0]), row[place].removesuffix(unit).strip(), None
        if t_ns <= last_ns:
            raise table.error(line, f"its time {row[0]} is not behind that of the row before")
        if text.lower() not in _FAILED:
            try:
                code = _rounded(Decimal(text) * scale)
            except (DecimalException, ValueError, OverflowError):
                raise table.error(line, f"{row[place]!r} is no number of {unit}") from None
            if abs(code) >= 1 << 62:
                raise table.error(line, f"{row[place]} {unit} is beyond what any meter measures")
            if unit in ENERGIES and code < last:
                raise table.error(line, f"the counter goes back to {text} {unit}: import what lies before it alone")
            last = code
        readings.append((t_ns, code))
        last_ns = t_ns
    if sum(code is not None for _, code in readings) < 2:
        raise ConfigError(f"{table.path} holds fewer than two readings: there is nothing between them")
    return unit, readings


def _phases(table: _Table) -> list[_Phase]:
    """In the order of their beginnings, the longer first."""
    name, begin, end = (table.column(of) for of in ("name", "begin", "end"))
    others = {i: of for i, of in enumerate(table.heading) if i not in (name, begin, end)}
    phases: list[_Phase] = []
    for line, row in table.rows:
        attributes = {of: _value(row[i]) for i, of in others.items() if row[i]}
        begin_ns, end_ns = table.time_ns(line, row[begin]), table.time_ns(line, row[end])
        phases.append(_Phase(begin_ns, end_ns, row[name], attributes, line))
        if not row[name] or end_ns <= begin_ns:
            raise table.error(line, "a phase needs a name, and an end behind its begin")
    return sorted(phases, key=lambda p: (p.begin_ns, -p.end_ns))


def _value(text: str) -> int | float | str:
    """A number where it is one."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return value if isfinite(value := float(text)) else text
    return text


def import_csv(
    power: Path,
    phases: Path | None,
    out: Path,
    card: SensorCard,
    *,
    column: str | None = None,
    unit: str | None = None,
    overwrite: bool = False,
) -> tuple[int, int]:
    """Write the run file ``out``; how many readings and phases are in it.

    The first column of ``power`` holds times, ``column`` (or the only other one) what was read, in one of `POWERS`, or
    `ENERGIES` of a counter that only grows: ``unit``, or what the heading says. ``phases`` has the columns name, begin
    and end; all others are attributes. Without it one phase ``run`` lies over all. Raises `ConfigError`, and
    `RunFileError` for a file that cannot be written.
    """
    table = _Table(power)
    unit, readings = _readings(table, column, unit)
    of_phases = _Table(phases, table.is_utc) if phases is not None else table
    whole = _Phase(readings[0][0], readings[-1][0], WHOLE, {}, 0)
    spans = _phases(of_phases) if phases is not None else [whole]
    # No clock of a run shows 0 or less. Seconds since the start of something do.
    shift_ns = max(0, 1_000_000_000 - min(readings[0][0], spans[0].begin_ns))
    events = [*_run(power, unit, readings, spans, card, shift_ns, is_utc=bool(table.is_utc))]
    events += _marks(of_phases, spans, shift_ns)
    journal, held = journals.claim(out.absolute(), overwrite=overwrite)
    try:
        with os.fdopen(open_own(journal / "journal.bin", os.O_WRONLY | os.O_EXCL), "wb") as file:
            file.writelines(map(encode, events))
        write_file(out, read_contents(journal), journal, overwrite=overwrite, progress=lambda share: None, kept=power)
    finally:
        journals.remove(journal)
        os.close(held)
    return len(readings), len(spans)


def _run(
    power: Path, unit: str, readings: Sequence[tuple[int, int | None]], spans: Sequence[_Phase], card: SensorCard,
    shift_ns: int, *, is_utc: bool,
) -> Iterator[Event]:  # fmt: skip
    """Everything but the phases."""
    epoch, per_code, what = secrets.randbits(63), 1 / _CODES_PER_UNIT, f"imported from {power.name}"
    begin_ns = min(readings[0][0], spans[0].begin_ns) + shift_ns
    end_ns = max(readings[-1][0], *(p.end_ns for p in spans)) + shift_ns
    created = _EPOCH + timedelta(seconds=begin_ns // 10**9) if is_utc else datetime.now(UTC)
    run = {"run_id": secrets.token_hex(8), "created_utc": created.isoformat(timespec="seconds")}
    yield Message("run", run | {"powerd_version": release(), "command": sys.argv, "environment": environment()})
    yield Message("start", {"t_start_ns": begin_ns})
    is_counter = unit in ENERGIES
    conversion = CounterConversion("energy_uj", per_code) if is_counter else ScaledConversion("power_uw", per_code)
    period_ns = round(median(b[0] - a[0] for a, b in pairwise(readings)))
    is_mean = not is_counter and not card.accuracy.window_ns
    accuracy = replace(card.accuracy, window_ns=period_ns) if is_mean else card.accuracy
    line = Line(card.line, card.device, conversion, card.provenance, accuracy, what)
    stream = Stream(0, "import", (Column(conversion.column, "q"),), (line,), period_ns, {"file": str(power.absolute())})
    device = Device(card.device, (card.line,), what)
    description = Description(power.name, release(), epoch, "times of a CSV", "", (stream,), (device,))
    yield Message("description", to_document(description), epoch)
    builder = BlockBuilder(stream, epoch)
    for first in range(0, len(readings), _BLOCK_READINGS):
        for t_ns, code in readings[first : first + _BLOCK_READINGS]:
            builder.append(t_ns + shift_ns, [0], [Flag.MISSING if code is None else 0], [[code or 0]])
        if (block := builder.take()) is not None:
            yield block
    # Exchanges say that the clocks are one, as far as the files agree: without them any clock may drift.
    step_ns = max(10**9, (end_ns - begin_ns) // 10_000)
    for t_ns in range(begin_ns, end_ns + step_ns, step_ns):
        yield ClockExchange(epoch, t_ns - card.clock_ns, t_ns, t_ns, t_ns + card.clock_ns)
    if is_utc:
        yield Message("note", anchor_note(WallAnchor(begin_ns, begin_ns - shift_ns, card.clock_ns + 1)))
    yield Message("stop", {"t_stop_ns": end_ns, "complete": True})


def _marks(table: _Table, spans: Sequence[_Phase], shift_ns: int) -> Iterator[Event]:
    """The phases as marks of one process, in the order of time. Raises `ConfigError` for those that do not nest."""
    process, kinds, records = secrets.randbits(63), dict[str, int](), list[bytes]()
    around: list[tuple[_Phase, int]] = []

    def end_until(t_ns: int) -> None:
        while around and around[-1][0].end_ns <= t_ns:
            ended, kind = around.pop()
            records.append(RECORD.pack(~kind, 1, ended.end_ns + shift_ns))

    for phase in spans:
        end_until(phase.begin_ns)
        if around and around[-1][0].end_ns < phase.end_ns:
            outer = around[-1][0]
            why = f"{phase.name!r} begins inside {outer.name!r} of line {outer.line} and ends behind it: phases nest"
            raise table.error(phase.line, why)
        about = {"name": phase.name, "attributes": phase.attributes, "timing": "host"}
        if (key := repr(about)) not in kinds:
            kinds[key] = len(kinds)
            yield Message("phase-names", {"process": process, "kind": kinds[key], **about})
        records.append(RECORD.pack(kinds[key], 1, phase.begin_ns + shift_ns))
        around.append((phase, kinds[key]))
    end_until(FARTHEST_NS)
    for first in range(0, len(records), _MARKS):
        yield Marks(process, first, b"".join(records[first : first + _MARKS]))
