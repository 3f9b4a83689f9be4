"""A run file out of a CSV of watts or joules with their times, and a CSV of phases, which other instruments wrote.

Units come from the headings, or are asked for; what is not understood is refused: a wrong unit is a thousandfold joule.
The readings become frames of a journal, as if a powerd had sent them, and `powerd_client.runs.build` writes the run
file. Codes are microwatts and microjoules, which hold what was written. What is wrong is a `ConfigError` that names the
line. The rows are read here and not by pandas: numbers stay decimal (nanoseconds since 1970 are too long for a float),
and errors have the number of the line.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal, DecimalException
from io import StringIO
from itertools import groupby, pairwise
from math import gcd, isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unicodedata import normalize
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from powerd_client.energies.phase import WHOLE
from powerd_client.host.hostclock import FARTHEST_NS, WallAnchor, anchor_note
from powerd_client.host.ownership import open_own
from powerd_client.journals import journal as journals
from powerd_client.record.log_formats import LogFormat, Rows, format_of, named_format, numbers_of
from powerd_client.record.recording import environment, release
from powerd_client.runs.build import read_contents, write_file
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
from powerd_core.text import printable
from powerd_core.wire import Event, Message, encode

_PREFIXES = {"u": ("micro", "1e-6"), "m": ("milli", "1e-3"), "": ("", "1"), "k": ("kilo", "1e3"), "M": ("mega", "1e6"),
             "G": ("giga", "1e9")}  # fmt: skip
_BASES = {"W": ("watt", "1"), "J": ("joule", "1"), "Ws": ("wattsecond", "1"), "Wh": ("watthour", "3600")}
SCALES = {
    prefix + base: Decimal(scale) * Decimal(of_base)
    for base, (_, of_base) in _BASES.items()
    for prefix, (_, scale) in _PREFIXES.items()
}
"""Watts or joules of one of each unit that a reading may have."""
POWERS = tuple(unit for unit in SCALES if unit.endswith("W"))
"""The others are energies, of a counter that only grows."""
TIMES_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_WORDS = {
    "ns": "nsec nanosecond nanos", "us": "usec microsecond micros", "ms": "msec millisecond millis", "s": "sec second",
    "min": "minute", "h": "hr hour", "d": "day",
}  # fmt: skip


def _spelled(words: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """Units by their spellings without case: mW and MW share one."""
    units: dict[str, tuple[str, ...]] = {}
    for unit, others in words.items():
        for spelling in {unit.casefold(), *others, *(f"{word}s" for word in others)}:
            units[spelling] = (*units.get(spelling, ()), unit)
    return units


READING_UNITS = _spelled(
    {prefix + base: [word + of_base]
     for base, (of_base, _) in _BASES.items() for prefix, (word, _) in _PREFIXES.items()}
    | {f"{prefix}Wh": [f"{word}watthour", f"{prefix.casefold()}whr"] for prefix, (word, _) in _PREFIXES.items()}
)  # fmt: skip
TIME_UNITS = _spelled({unit: words.split() for unit, words in _WORDS.items()})
_WATT_HOURS = re.compile(
    r"(?<![^\W\d_])((?:[kmug]|kilo|milli|micro|mega|giga)?w(?:atts?)?)[\s_.*·⋅∙×-]*"
    r"(h(?:rs?|ours?)?|s(?:ec(?:ond)?s?)?)(?![^\W\d_])",
    re.IGNORECASE,
)
"""Watt-hours and watt-seconds, whatever stands between the two."""

AMPERES = _spelled({f"{prefix}A": [] for prefix in ("u", "m", "")})
_NO_POWER = {
    spelling: (of,)
    for of, words in {
        "amperes": "a ma ua ka current curr amp amps ampere amperes milliamps milliamperes",
        "volts": "v mv uv kv voltage volt volts millivolts",
        "per cent": "percent pct util utilization utilisation",
        "temperature": "temperature temp degc degf celsius fahrenheit kelvin c f k",
        "bytes": "b kb mb gb kib mib gib bytes",
        "frequency": "hz khz mhz ghz rpm",
        "apparent or reactive power": "va kva var kvar",
        "decibels": "db dbm",
    }.items()
    for spelling in words.split()
}  # fmt: skip
"""Units of what is neither power nor energy, by their spellings without case."""
_POWER_WORDS = {"p", "power", "watts", "watt", "e", "energy", "load", "consumption"}
_NUMBERED = re.compile(r"(?:gpu|cuda|card|device|cpu|node|socket)[\s_:#-]*\d{1,4}(?!\d)", re.IGNORECASE)
"""How the heading of a column begins that is one device's of a wide file."""

_TIME_WORDS = {
    "time",
    "times",
    "timestamp",
    "timestamps",
    "t",
    "ts",
    "date",
    "datetime",
    "elapsed",
    "unixtime",
    "walltime",
}
"""A column with one of them in its heading holds times."""
_PLAIN_WORDS = _TIME_WORDS - {"date", "datetime"} | {
    "begin", "end", "start", "since", "epoch", "unix", "wall", "host", "clock", "utc"
}  # fmt: skip
"""Numbers below a heading of these alone are seconds; any other word may be a unit that is not known here."""
_LONGEST_UNSAID_NS = 10 * 10**9
"""Readings farther apart are no seconds unless somebody says so: they are milliseconds or less."""
_DEVICE_IDS = ("gpu_index", "gpu_idx", "gpu_id", "device_index", "device_id", "uuid", "gpu_uuid", "pci_bus_id",
               "gpu_bus_id", "serial", "gpu_serial")  # fmt: skip
"""Headings of columns that say which device a row is of, as nvidia-smi and others write them."""
_DEVICE_NAMES = ("index", "gpu", "device", "card", "id", "gpu_name", "device_name", "name")
"""Those that may say something else as well: they count where the devices take turns."""
_TURNS, _BURSTS, _CHANGES = 0.8, 5, 0.05
_FAILED = {"", "-", "nan", "na", "n/a", "#n/a", "none", "null", "err!", "error", "unknown error", "not supported",
           "unavailable", "unknown"}  # fmt: skip
"""What meters write for a reading that failed. nvidia-smi has others, in brackets: [N/A], [Unknown Error], ..."""
_CELL = re.compile(r"([-+.,\deE]*?[\d.,])\s*([^\d\s.,+-]\D*)?")
_SLASHED = re.compile(r"(\d{4})/(\d\d)/(\d\d)(?=\D|$)")
_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d):([0-5]\d(?:\.\d+)?)")
_DAY_FIRST = re.compile(r"(\d{1,2})[./-](\d{1,2})[./-](\d{4})(?=\D|$)")
_MOST_LINES_BELOW = 30
"""So many lines below the last row may be a footer."""
_CODES_PER_UNIT = 1_000_000
_MOST_HELD = 200_000
_BLOCK_READINGS, _MARKS = 1000, 4096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SensorCard:
    """What made the readings, and how good it is, which no CSV says."""

    device: str
    """Of several, a number follows the name, without that of its own. Empty: ``node``, and ``gpu`` of several."""
    line: str
    provenance: Provenance
    accuracy: Accuracy
    """Its window is 0 where a reading averages from one to the next."""
    clock_ns: int = 0
    """So far the clock of the readings and that of the phases may be apart."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What is asked for, where headings do not say it."""

    readings: str | None = None
    unit: str | None = None
    """Of the readings, in `SCALES`."""
    times: str | None = None
    """A column, or several (``Date,Time``) whose cells together are a date."""
    time_unit: str | None = None
    """Of times of both files, in `TIMES_NS`."""
    devices: str | None = None
    has_decimal_comma: bool = False
    volts: float | None = None
    """Of readings that are amperes."""
    several: tuple[str, ...] = ()
    """Columns of readings, each of a device of its own."""
    has_day_first: bool = False
    """Dates are day, month, year."""
    time_zone: tzinfo | None = None
    """Of dates that do not say theirs; UTC without it."""
    date_forms: tuple[str, ...] = ()
    """As `datetime.strptime` has them, where they are not ISO 8601."""
    interval_s: float | None = None
    """Between rows without times, of each device."""
    step_j: float | None = None
    """Of a counter: in which it moves, where the file shows finer ones or too few."""
    bits: int | None = None
    """Of a counter that goes round: at so many bits of its unit."""
    is_per_interval: bool = False
    """Energies are those since the row before."""
    is_spread: bool = False
    """Rows of one whole second are of one device, whatever their number."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What is in the run file."""

    readings: int
    phases: int
    period_s: float
    devices: Mapping[str, str]
    """By name what the column of devices says of each, or its own column; nothing of one device."""
    device_column: str
    notes: tuple[str, ...] = ()
    """What was skipped, or is not as the file says it, a line each."""


@dataclass(frozen=True, slots=True)
class _Series:
    """The readings of one device: times, and codes, which are None where a reading failed."""

    device: str
    label: str
    line: str
    readings: list[tuple[int, int | None]]

    @property
    def period_ns(self) -> int:
        return round(median(b[0] - a[0] for a, b in pairwise(self.readings)))

    def accuracy(self, accuracy: Accuracy, step_j: float | None) -> Accuracy:
        """That of a counter, whose step is the greatest in which all of its changes are whole ones.

        Where it stands still between steps, the least change is one step, whatever its file rounds it to, and the
        readings that mark one date it within their distance.
        """
        good = [(t_ns, code) for t_ns, code in self.readings if code is not None]
        moved = [(b[0], b[1] - a[1]) for a, b in pairwise(good) if b[1] != a[1]]
        found_j = gcd(*(by for _, by in moved)) / _CODES_PER_UNIT
        stood_ns = [b[0] - a[0] for a, b in pairwise(moved)] or [0]
        if median(stood_ns) <= 1.5 * self.period_ns:
            return replace(accuracy, step_j=step_j or found_j)
        step_j = step_j or min((by for _, by in moved if by > 0), default=0) / _CODES_PER_UNIT or found_j
        left_out = min(1.0, self.period_ns / min(stood_ns))
        return replace(accuracy, step_j=step_j * left_out, update_ns=round(median(stood_ns)))


@dataclass(frozen=True, slots=True)
class _Phase:
    begin_ns: int
    end_ns: int
    name: str
    attributes: dict[str, Any]
    line: int


@dataclass(frozen=True, slots=True)
class _TimeColumn:
    place: int
    heading: str
    unit: str | None
    """Of numbers; None where the heading does not say it."""
    is_assumed: bool
    """Seconds, because the heading names no unit."""


def _text_of(path: Path) -> tuple[str, bool]:
    """The text of a file, and whether its letters are Latin-1. Raises `ConfigError` for one that cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    try:
        if b"\0" in data[:2000]:
            coding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-16-le"
            return data.decode(coding).removeprefix("\ufeff"), False
        return data.decode("utf-8-sig"), False
    except UnicodeDecodeError as error:
        if "utf-16" in error.encoding:
            raise ConfigError(f"{path} is no CSV: {error}") from error
        return data.decode("cp1252", errors="replace"), True


def log_format_of(path: Path, name: str | None = None) -> LogFormat | None:
    """The format of that name, or the one whose heading the file has; None for a CSV that none is known for.

    Raises `ConfigError`.
    """
    if name is not None:
        return None if name == "csv" else named_format(name)
    return format_of(_text_of(path)[0])


class _Table:
    """A CSV: its ``heading``, and its ``rows`` with their line numbers."""

    def __init__(self, path: Path, asked: Columns, clock: str = "", log_format: LogFormat | None = None) -> None:
        self.path, self.asked, self.clock = path, asked, clock
        """What its times are: numbers, dates, or times of the day; empty until the first is read."""
        self.has_no_zone = False
        """Whether a date did not say its time zone."""
        self.holds_values = log_format is not None and log_format.has_changes_alone
        """Whether a value lasts until the next row."""
        self.skipped: list[str] = []
        text, is_latin = _text_of(path)
        if is_latin:
            self.skipped.append("its letters are Latin-1")
        try:
            self.heading, below = log_format.table(text, self.error, self.skipped) if log_format else self._cells(text)
        except csv.Error as error:
            raise ConfigError(f"{path} is no CSV: {error}") from error
        if not below:
            raise ConfigError(f"{path} holds nothing: below a line of headings stands one row a reading, or a phase")
        self.rows = self._without_what_is_no_row(below)
        if log_format is not None:
            self.asked = self._declared(log_format)

    def _cells(self, text: str) -> tuple[list[str], Rows]:
        first, _, below = text.partition("\n")
        separator = re.fullmatch(r"sep=(.)\s*", first, re.IGNORECASE)  # Excel's
        delimiter = separator[1] if separator else max(",;\t", key=first.count)
        reader = csv.reader(StringIO(below if separator else text, newline=""), delimiter=delimiter)
        above = 1 if separator else 0
        rows = [(reader.line_num + above, [cell.strip() for cell in row]) for row in reader if any(row)]
        return (rows[0][1], rows[1:]) if rows else ([], [])

    def _declared(self, log_format: LogFormat) -> Columns:
        """What is asked for, and beside it what the format of the log says."""
        asked, name = self.asked, log_format.name
        columns = asked.several or ((asked.readings,) if asked.readings else ())
        columns = columns or tuple(log_format.columns_of_readings(self.heading))
        if not columns and log_format.readings:
            raise self.error(1, f"{name} has no column of readings here: give --column, of {', '.join(self.heading)}")
        units = {log_format.unit_of(column) for column in columns}
        declared = replace(
            asked,
            readings=columns[0] if len(columns) == 1 else None,
            several=columns if len(columns) > 1 else (),
            unit=asked.unit or (units.pop() if len(units) == 1 else None),
            devices=asked.devices or (log_format.devices if log_format.devices in self.heading else None),
            is_per_interval=asked.is_per_interval or log_format.is_per_interval,
        )
        if asked.times is not None or asked.interval_s is not None:
            return declared
        times = [column for column in log_format.times if column in self.heading]
        if not times:
            why = f"this log of {name} has no times ({' '.join(log_format.times)})"
            raise self.error(1, f"{why}: give --interval-s, the seconds from one row to the next, or --time-column")
        forms = () if asked.has_day_first else log_format.date_forms
        time_unit = asked.time_unit or log_format.time_unit
        return replace(declared, times=",".join(times), time_unit=time_unit, date_forms=forms)

    def _without_what_is_no_row(self, rows: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
        """Without headings that come again, as a logger writes them that is started anew, the line before one that was
        cut off, and what stands below the last row: a footer, or a row that was cut off.

        Raises `ConfigError` for any other row of another number of cells.
        """
        width = len(self.heading)
        rows = [(line, row[:width] if not any(row[width:]) else row) for line, row in rows]
        last = max((i for i, (_, row) in enumerate(rows) if len(row) == width), default=-1)
        footer = rows[last + 1 :]
        if last < 0 or len(footer) > _MOST_LINES_BELOW:
            raise self.error(footer[0][0], f"{len(footer[0][1])} cells below {width} headings")
        kept, again, cut = list[tuple[int, list[str]]](), list[int](), list[int]()
        for (line, row), (_, following) in pairwise([*rows[: last + 1], (0, self.heading)]):
            if row == self.heading:
                again.append(line)
            elif len(row) < width and following == self.heading:
                cut.append(line)
            elif len(row) != width:
                raise self.error(line, f"{len(row)} cells below {width} headings")
            else:
                kept.append((line, row))
        for lines, what in ((again, "headings that come again"), (cut, "rows that are cut off")):
            if lines:
                self.skipped.append(f"skipped {what} ({numbers_of(lines)})")
        if footer:
            what = "a footer or a row that is cut off"
            self.skipped.append(f"skipped {what} (from line {footer[0][0]}, {footer[0][1][0][:40]!r})")
        return kept

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"{self.path}: {'; '.join(self.skipped)}",) if self.skipped else ()

    def error(self, line: int, text: str) -> ConfigError:
        return ConfigError(f"{self.path}, line {line}: {printable(text, limit=400)}")

    def column(self, name: str) -> int:
        if name not in self.heading:
            raise self.error(1, f"there is no column {name!r} in {', '.join(self.heading)}")
        if self.heading.count(name) > 1:
            raise self.error(1, f"there are {self.heading.count(name)} columns {name!r}: give each its own heading")
        return self.heading.index(name)

    def number(self, text: str) -> Decimal | None:
        """None for what is no number, is not finite, or has a thousand digits."""
        if self.asked.has_decimal_comma:
            text = text.translate({ord(","): ".", ord("."): "x"})  # no point stands beside a decimal comma
        try:
            number = Decimal(text)
        except DecimalException:
            return None
        return number if number.is_finite() and number.adjusted() < 1000 else None

    def comma_hint(self, text: str) -> str:
        has_comma = re.fullmatch(r"[-+]?\d+,\d+", text) and not self.asked.has_decimal_comma
        return ": is it a decimal comma? give --decimal-comma" if has_comma else ""

    # -- times --

    def time_column(self) -> _TimeColumn:
        """The column asked for, the first one, or the only one whose heading speaks of time."""
        if self.asked.interval_s is not None:
            return self._counted(self.asked.interval_s)
        if self.asked.times is not None:
            return self._times_in(self._joined(self.asked.times))
        places = [i for i, of in enumerate(self.heading) if _speaks_of_time(of)]
        if places[:1] != [0] and len(places) != 1:
            among = ", ".join(repr(self.heading[i]) for i in places or range(len(self.heading)))
            raise self.error(1, f"which column holds the times? give --time-column, one of {among}")
        return self._times_in(places[0])

    def _joined(self, names: str) -> int:
        """The column of that name, or a new one of date and time that stand in two."""
        if names in self.heading or "," not in names:
            return self.column(names)
        places = [self.column(name) for name in names.split(",")]
        self.heading = [*self.heading, names.replace(",", " ")]
        self.rows = [(line, [*row, " ".join(row[place] for place in places)]) for line, row in self.rows]
        return len(self.heading) - 1

    def _counted(self, interval_s: float) -> _TimeColumn:
        """A new column of times: a step further where a device comes again."""
        device = None if self.asked.devices is None else self.column(self.asked.devices)
        step, rows, seen = 0, list[tuple[int, list[str]]](), set[str]()
        for line, row in self.rows:
            label = "" if device is None else row[device]
            if label in seen:
                step += 1
                seen.clear()
            seen.add(label)
            rows.append((line, [*row, str(step * Decimal(str(interval_s)))]))
        self.heading, self.rows = [*self.heading, "time [s]"], rows
        return _TimeColumn(len(self.heading) - 1, "time [s]", "s", is_assumed=False)

    def edge_column(self, name: str) -> _TimeColumn:
        """The column ``begin`` or ``end`` of a file of phases, whose heading may name a unit as well."""
        found = [
            of for of in self.heading
            if _words(of) == [name] or (_words(of)[:1] == [name] and named_unit(of, TIME_UNITS))
        ]  # fmt: skip
        return self._times_in(self.column(found[0] if found else name))

    def _times_in(self, place: int) -> _TimeColumn:
        heading = self.heading[place]
        asked, named = self.asked.time_unit, named_unit(heading, TIME_UNITS)
        if asked and named and asked != named:
            raise self.error(1, f"the heading {heading!r} says {named}, --time-unit says {asked}: mend one of them")
        unit = asked or named
        is_assumed = unit is None and set(_words(heading)) <= _PLAIN_WORDS and not _bracketed(heading)
        return _TimeColumn(place, heading, "s" if is_assumed else unit, is_assumed)

    def time_ns(self, line: int, row: Sequence[str], column: _TimeColumn) -> int:
        """A number in the column's unit, a date with a time (UTC where it does not say), or the time since midnight."""
        text = row[column.place]
        of_day, number = _OF_DAY.fullmatch(text), self.number(text)
        if of_day is not None:
            clock = "times of the day"
            t_ns = round((3600 * int(of_day[1]) + 60 * int(of_day[2]) + Decimal(of_day[3])) * 10**9)
        elif number is not None:
            clock, t_ns = "numbers", self._count_ns(line, number, column)
        else:
            clock, t_ns = "dates", self._date_ns(line, text)
        if self.clock not in ("", clock):
            raise self.error(line, f"the time {text!r} is not of the clock of those before, which are {self.clock}")
        self.clock = clock
        return t_ns

    def _count_ns(self, line: int, number: Decimal, column: _TimeColumn) -> int:
        if column.unit is None:
            raise self.error(1, f"the heading {column.heading!r} names no unit of time that is known: give --time-unit")
        t_ns = number * TIMES_NS[column.unit]
        if column.is_assumed and not abs(t_ns) < FARTHEST_NS:
            why = f"{number} are no seconds, and the heading {column.heading!r} names no unit: give --time-unit"
            raise self.error(line, why)
        if not abs(t_ns) < FARTHEST_NS:
            raise self.error(line, f"{number} {column.unit} is no time of any clock")
        return round(t_ns)

    def _date_ns(self, line: int, text: str) -> int:
        day_first = _DAY_FIRST.match(text)
        iso = _SLASHED.sub(r"\1-\2-\3", text)
        if day_first and self.asked.has_day_first:
            day, month, year = day_first.groups()
            iso = f"{year}-{month:0>2}-{day:0>2}{text[day_first.end() :]}"
        iso = re.sub(r"[, T]+(\d):", r" 0\1:", iso.replace(", ", " "))
        try:
            moment = self._in_form(text) or datetime.fromisoformat(iso)
        except ValueError:
            hint = self.comma_hint(text) or ": write a number, or UTC as in 2026-01-31T12:00:00.5Z"
            if day_first and not self.asked.has_day_first:
                hint = ": give --day-first if its day stands before its month"
            raise self.error(line, f"{text!r} is no time{hint}") from None
        if moment.tzinfo is None:
            self.has_no_zone = True
            moment = moment.replace(tzinfo=self.asked.time_zone or UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1) * 1000

    def _in_form(self, text: str) -> datetime | None:
        for form in self.asked.date_forms:
            with contextlib.suppress(ValueError):
                return datetime.strptime(text, form)
        return None


def zone_of(name: str) -> tzinfo:
    """A time zone by its name or its distance from UTC. Raises `ConfigError`."""
    try:
        offset = datetime.fromisoformat(f"2000-01-01T00:00{name}").tzinfo
    except ValueError:
        offset = None
    try:
        return offset or ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"--time-zone {name}: write it as Europe/Madrid or +01:00") from error


# -- headings --


def _bracketed(heading: str) -> re.Match[str] | None:
    return re.search(r"[\[({]([^][(){}]*)[])}]\s*$", heading)


def _in_letters(heading: str) -> str:
    """With u for both signs of micro."""
    return normalize("NFKC", heading).replace("μ", "u")


def _words(heading: str) -> list[str]:
    return [word.casefold() for word in re.findall(r"[^\W\d_]+", _in_letters(heading))]


def named_unit(heading: str, spelled: Mapping[str, Sequence[str]]) -> str | None:
    """The unit that a heading names: in brackets at its end, behind a stroke, or as a word; None where it names none,
    two, or one that is not known.

    Case tells mW from MW. In a heading of capitals alone (``POWER_MW``) it does not: that is none.
    """
    text = _in_letters(heading)
    bracketed = _bracketed(text)
    part = _WATT_HOURS.sub(r"\1\2", bracketed[1] if bracketed else text.rpartition("/")[2])
    words = re.findall(r"[^\W\d_]+", part)
    if (bracketed and words != [part.strip()]) or "per" in _words(part):
        return None
    is_symbol = bracketed is not None or part.strip() != text.strip() or len(words) == 1
    found = set[str]()
    for word in words:
        units = spelled.get(word.casefold(), ())
        if len(units) > 1:
            units = [unit for unit in units if unit[0] == word[0] and (is_symbol or not heading.isupper())]
            if not units:
                return None
        found.update(units)
    return found.pop() if len(found) == 1 else None


def _speaks_of_time(heading: str) -> bool:
    words = set(_words(heading))
    is_unit = named_unit(heading, TIME_UNITS) is not None and words <= _PLAIN_WORDS | TIME_UNITS.keys()
    return bool(words & _TIME_WORDS) or is_unit


# -- the readings --


def _readings_columns(table: _Table, times: _TimeColumn) -> list[int]:
    """The column of the readings; of a wide file, those of several devices."""
    asked = table.asked
    if asked.readings is not None or asked.several:
        return [table.column(of) for of in asked.several or (asked.readings or "",)]
    known = {*_DEVICE_IDS, *_DEVICE_NAMES}
    others = [i for i, of in enumerate(table.heading) if i != times.place and "_".join(_words(of)) not in known]
    others += [i for i, of in enumerate(table.heading) if _NUMBERED.match(of) and i not in others and i != times.place]
    others = sorted(i for i in others if table.heading[i] != asked.devices)
    numbered = [_NUMBERED.match(table.heading[i]) for i in others]
    names = {match[0].casefold() for match in numbered if match}
    behind = {table.heading[i][match.end() :] for i, match in zip(others, numbered, strict=True) if match}
    if len(others) > 1 and len(names) == len(others) and len(behind) == 1:
        return others
    if len(others) != 1:
        there = ", ".join(repr(of) for i, of in enumerate(table.heading) if i != times.place)
        raise table.error(
            1, f"which column holds the readings? give --column or, of several devices, --columns: {there}"
        )
    return [table.column(table.heading[others[0]])]


def _unit_of_readings(table: _Table, place: int) -> str | None:
    """That asked for or that of the heading; None where each cell names its own.

    Raises `ConfigError` for a heading or a cell of what is no power or energy, or of another unit than asked for.
    """
    heading, asked = table.heading[place], table.asked.unit
    named = named_unit(heading, READING_UNITS)
    units = {named} if named else _either_unit(heading)
    if table.asked.volts is not None:
        amperes = named_unit(heading, AMPERES)
        if amperes is None:
            raise table.error(1, f"--volts is for amperes, and {heading!r} does not say that it holds them")
        return f"{amperes[:-1]}W"
    if not units and (other := _other_quantity(heading)) is not None:
        hint = "--volts, " if other == "amperes" else ""
        raise table.error(
            1, f"{heading!r} is of {other}, which is no power or energy: give {hint}--column or --columns"
        )
    if asked is not None and units and asked not in units:
        raise table.error(
            1, f"the heading {heading!r} says {' or '.join(sorted(units))}, --unit says {asked}: mend one of them"
        )
    if asked is not None or len(units) == 1:
        return asked or next(iter(units))
    cells = (_CELL.fullmatch(row[place]) for _, row in table.rows if not _is_failed(row[place]))
    cell = next(cells, None)
    if cell is not None and cell[2] and not units:
        if named_unit(cell[2], READING_UNITS) is None:
            raise table.error(
                1, f"{cell[2]!r} in the cells below {heading!r} is no unit of power or energy that is known"
            )
        return None
    why = f"the heading {heading!r} names no unit of power or energy that is known"
    raise table.error(1, f"{why}: give --unit W, or J for a counter of joules")


def _either_unit(heading: str) -> set[str]:
    """What a heading of capitals alone, as POWER_MW, may name."""
    words = _words(heading)
    return set(READING_UNITS.get(words[-1], ())) if heading.isupper() and words else set()


def _other_quantity(heading: str) -> str | None:
    """Of what a heading is that names no power or energy: ``I [A]``, ``gpu_temp_c``, ``load %``; and not ``power_a``,
    that of a conductor."""
    text = heading.replace("%", "percent").replace("°", "deg")
    other, words = named_unit(text, _NO_POWER), {*_words(text)}
    if other is None or _bracketed(text) or "percent" in words:
        return other
    is_told = any(len(word) > 1 and _NO_POWER.get(word) == (other,) for word in words)
    return other if is_told and not words & _POWER_WORDS else None


def _is_failed(text: str) -> bool:
    return text.casefold() in _FAILED or (text.startswith("[") and text.endswith("]"))


def _code(table: _Table, line: int, text: str, unit: str | None) -> int | None:
    """Microwatts or microjoules; None for a reading that failed. Without a ``unit`` the cell names its own."""
    if _is_failed(text):
        return None
    cell = _CELL.fullmatch(text)
    of = named_unit(cell[2], READING_UNITS) if cell is not None and cell[2] else unit
    number = table.number(cell[1]) if cell is not None and of is not None and unit in (None, of) else None
    if number is None or of is None:
        raise table.error(
            line, f"{text!r} is no number {f'of {unit}' if unit else 'with its unit'}{table.comma_hint(text)}"
        )
    volts = Decimal(1) if table.asked.volts is None else Decimal(str(table.asked.volts))
    code = number * volts * SCALES[of] * _CODES_PER_UNIT
    if not abs(code) < 1 << 62:
        raise table.error(line, f"{text} {of} is beyond what any meter measures")
    return round(code)


def _device_column(table: _Table, times_ns: Sequence[int], taken: Collection[int]) -> int | None:
    """The column that says which of several devices a row is of; None for the log of one device.

    Raises `ConfigError` where rows come in bursts, as those of several devices do, and no column says of which.
    """
    if table.asked.devices is not None:
        return table.column(table.asked.devices)
    places = {"_".join(_words(of)): i for i, of in enumerate(table.heading) if i not in taken}
    by_time = sorted(range(len(times_ns)), key=times_ns.__getitem__)
    is_told = False
    for name in (*_DEVICE_IDS, *_DEVICE_NAMES):
        if name not in places:
            continue
        labels = [table.rows[i][1][places[name]] for i in by_time]
        devices = len(set(labels))
        is_told = is_told or (devices == 1 and not name.endswith("name"))  # of two GPUs of one product
        # A column with as many values as rows numbers the rows.
        is_several = devices > 1 and devices * devices <= len(labels)
        if is_several and (name in _DEVICE_IDS or _take_turns(labels, devices) or _changes(name, labels)):
            return places[name]
    is_whole = not any(t_ns % 10**9 for t_ns in times_ns)  # see `_spread`
    if not is_told and not is_whole and _come_in_bursts(times_ns):
        raise table.error(1, f"rows come in bursts, as those of several devices do; {_TELL_APART}")
    return None


_TELL_APART = "a column has to say which device a row is of (index, uuid, or --device-column)"


def _changes(name: str, labels: Sequence[str]) -> bool:
    """Whether an ``index`` goes to and fro as devices do that are read at rates of their own. One that numbers epochs
    has many rows of each."""
    changes = sum(a != b for a, b in pairwise(labels))
    return name == "index" and changes >= _CHANGES * len(labels)


def _take_turns(labels: Sequence[str], devices: int) -> bool:
    """Whether each device comes once in nearly every so many rows."""
    turns = sum(labels[i] not in labels[max(0, i - devices + 1) : i] for i in range(len(labels)))
    return turns >= _TURNS * len(labels)


def _come_in_bursts(times_ns: Sequence[int]) -> bool:
    """Whether two or more rows, nearly always as many, follow each other closely, and then comes a pause at least four
    times as long as the steps between them."""
    steps = [b - a for a, b in pairwise(times_ns)]
    mean = fmean(steps) if steps else 0.0
    pauses = [i for i, step in enumerate(steps) if step > mean]
    close = [step for step in steps if step <= mean]
    if len(pauses) < _BURSTS or not close or 4 * median(close) > median(steps[i] for i in pauses):
        return False
    lengths = Counter(b - a for a, b in pairwise(pauses))
    length, count = lengths.most_common(1)[0]
    return length > 1 and count >= 0.9 * lengths.total()


@dataclass(frozen=True, slots=True)
class _Log:
    """The readings of a file, by device."""

    is_counter: bool
    device_column: str
    """What says which device a reading is of: a column, or those of a wide file; empty of one device."""
    series: list[_Series]
    notes: tuple[str, ...]
    centre_ns: int
    """So far the times of readings may be off that are whole seconds."""


def _read_log(table: _Table, card: SensorCard) -> _Log:
    asked, times = table.asked, table.time_column()
    places = _readings_columns(table, times)
    units = [_unit_of_readings(table, place) for place in places]
    times_ns = [table.time_ns(line, row, times) for line, row in table.rows]
    device_column = _device_column(table, times_ns, (times.place, places[0])) if len(places) == 1 else None
    spread = _spread(table, times_ns, device_column)
    is_spread = spread != times_ns
    notes = (*table.notes, *([f"{table.path}: {_SPREAD}"] if is_spread else ()))
    of_device: dict[str, list[tuple[int, int | None]]] = {}
    kinds = set[bool]()
    for place, unit in zip(places, units, strict=True):
        of_place, is_counter = _of_column(table, times, spread, place, unit, device_column)
        kinds.add(is_counter)
        of_device |= {table.heading[place]: of_place[""]} if len(places) > 1 else of_place
    if len(kinds) > 1:
        raise table.error(1, "some columns are powers and some are energies: import them one at a time")
    (is_counter,) = kinds
    for label, readings in of_device.items():
        of = f" of {label}" if label else ""
        codes = {code for _, code in readings if code is not None}
        if sum(code is not None for _, code in readings) < 2:
            raise ConfigError(f"{table.path} holds fewer than two readings{of}: there is nothing between them")
        if is_counter and len(codes) == 1 and asked.step_j is None:
            raise ConfigError(f"{table.path}: the counter{of} never moves; give --step-j if its step is so coarse")
    if table.holds_values:
        of_device = {label: _held(readings) for label, readings in of_device.items()}
    heading = "" if device_column is None else f"the column {table.heading[device_column]!r}"
    names = (_names_of_columns if len(places) > 1 else _device_names)(card, [*of_device])
    series = [
        _Series(device, label, _line_name(card, device, len(of_device)), of_device[label])
        for device, label in names.items()
    ]
    slowest_ns = max(of.period_ns for of in series)
    if times.is_assumed and table.clock == "numbers" and slowest_ns >= _LONGEST_UNSAID_NS:
        why = f"a reading every {slowest_ns * 1e-9:g} s? The heading {times.heading!r} names no unit"
        raise table.error(1, f"{why}: give --time-unit, s or ms")
    return _Log(is_counter, heading or (_WIDE if len(places) > 1 else ""), series, notes, 10**9 if is_spread else 0)


def _held(readings: Sequence[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """Each value until the next one, every second, or as often as `_MOST_HELD` allows."""
    first_ns, last_ns = readings[0][0], readings[-1][0]
    step_ns = max(10**9, (last_ns - first_ns) // _MOST_HELD)
    held: list[tuple[int, int | None]] = []
    for (begin_ns, code), (end_ns, _) in pairwise([*readings, (last_ns + 1, None)]):
        k = -((first_ns - begin_ns) // step_ns)  # the first step that is not before it
        held += [(t_ns, code) for t_ns in range(first_ns + k * step_ns, end_ns, step_ns)]
    return held


_WIDE = "their columns"
_SPREAD = "its times are whole seconds: rows of one second are spread evenly over it"


def _of_column(
    table: _Table, times: _TimeColumn, times_ns: Sequence[int], place: int, unit: str | None, device_column: int | None
) -> tuple[dict[str, list[tuple[int, int | None]]], bool]:
    """The readings of one column by the labels of its devices, and whether they are those of a counter."""
    asked = table.asked
    if unit is None:
        first = next(row[place] for _, row in table.rows if not _is_failed(row[place]))
        is_counter = _unit_in(first) not in POWERS
    else:
        is_counter = unit not in POWERS
    if not is_counter and (asked.is_per_interval or asked.bits is not None or asked.step_j is not None):
        raise table.error(
            1, f"{table.heading[place]!r} is a power: --per-interval, --bits and --step-j are for energies"
        )
    turn = None if asked.bits is None or unit is None else round(2**asked.bits * SCALES[unit] * _CODES_PER_UNIT)
    of_device: dict[str, list[tuple[int, int | None]]] = {}
    last, turned = dict[str, int](), dict[str, int]()
    for t_ns, (line, row) in zip(times_ns, table.rows, strict=True):
        label = "" if device_column is None else row[device_column]
        if device_column is not None and _is_failed(label):
            raise table.error(line, f"{label!r} does not say which device the row is of")
        of_cell = _unit_in(row[place]) if unit is None else None
        if of_cell is not None and (of_cell in POWERS) == is_counter:
            raise table.error(line, f"{row[place]!r} is of another kind than the cells before: power or energy?")
        readings, code = of_device.setdefault(label, []), _code(table, line, row[place], unit)
        if readings and t_ns <= readings[-1][0]:
            hint = f": {_TELL_APART}" if device_column is None and t_ns in (readings[-1][0], times_ns[0]) else ""
            raise table.error(line, f"its time {row[times.place]} is not behind that of the row before{hint}")
        if asked.is_per_interval:
            if code is None or code < 0:
                raise table.error(line, f"{row[place]!r} is no energy of an interval: what came behind it is unknown")
            code = last.get(label, -code) + code  # what came before the first time is of no interval
        elif is_counter and code is not None and code < last.get(label, code) - turned.get(label, 0):
            if turn is None or code < 0:
                raise table.error(line, f"the counter goes back to {row[place]}: import what lies before it alone")
            turned[label] = turned.get(label, 0) + turn
        if code is not None:
            if turn is not None and code >= turn:
                raise table.error(line, f"{row[place]} is more than --bits {asked.bits} can hold")
            code += turned.get(label, 0)
            last[label] = code
        readings.append((t_ns, code))
    return of_device, is_counter


def _unit_in(text: str) -> str | None:
    cell = _CELL.fullmatch(text)
    return named_unit(cell[2], READING_UNITS) if cell is not None and cell[2] else None


def _spread(table: _Table, times_ns: Sequence[int], device_column: int | None) -> list[int]:
    """Times of a log that shows whole seconds: the rows of each device in one second evenly over it.

    Raises `ConfigError` where as many rows as there may be devices share each second, and nobody says that it is one.
    """
    of_device: dict[str, list[int]] = {}
    for i, (_, row) in enumerate(table.rows):
        of_device.setdefault("" if device_column is None else row[device_column], []).append(i)
    spread = [*times_ns]
    if any(t_ns % 10**9 for t_ns in times_ns):
        return spread
    for places in of_device.values():
        seconds = [[*same] for _, same in groupby(places, key=times_ns.__getitem__)]
        together = gcd(*(len(same) for same in seconds[1:-1])) or 2  # the first and the last may be cut short
        if len(seconds) < len(places) and together > 1 and device_column is None and not table.asked.is_spread:
            why = f"{together} rows share each second: {_TELL_APART}"
            raise table.error(table.rows[0][0], f"{why}; or give --spread, of one device in a quick loop")
        for same in seconds:
            for i, place in enumerate(same):
                spread[place] += i * 10**9 // len(same)
    return spread


def _device_names(card: SensorCard, labels: Sequence[str]) -> dict[str, str]:
    """A device's name for each label of the column of devices: with its number where all have one, else numbered in the
    order in which they come."""
    if labels == [""]:
        return {card.device or "node": ""}
    numbered = [re.fullmatch(r"(?:gpu|cuda|device|card)?[\s:_#-]*(\d{1,4})", label, re.IGNORECASE) for label in labels]
    numbers = [int(match[1]) for match in numbered if match]
    if len(set(numbers)) < len(labels):
        numbers = list(range(len(labels)))
    base = card.device.rstrip("0123456789") or "gpu"
    return {f"{base}{number}": label for number, label in zip(numbers, labels, strict=True)}


def _names_of_columns(card: SensorCard, headings: Sequence[str]) -> dict[str, str]:
    """A device's name for each column of a wide file: the words of its heading without those of power and units
    (``gpu0``, ``n1``); numbered in their order where these are not its own, or another name is asked for."""
    words = [re.findall(r"[^\W_]+", _in_letters(heading).casefold()) for heading in headings]
    names = ["_".join(w for w in of if w not in _POWER_WORDS | READING_UNITS.keys()) for of in words]
    if card.device or not all(names) or len({*names}) < len(names):
        base = card.device.rstrip("0123456789") or "gpu"
        names = [f"{base}{number}" for number in range(len(headings))]
    return dict(zip(names, headings, strict=True))


def _line_name(card: SensorCard, device: str, devices: int) -> str:
    return card.line if devices == 1 else f"{device}.{card.line.rpartition('.')[2]}"


# -- the phases --


def _phases(table: _Table, begin_ns: int, end_ns: int) -> list[_Phase]:
    """In the order of their beginnings, the longer first. Most must lie where there are readings."""
    edges = [table.edge_column(of) for of in ("begin", "end")]
    name = table.column("name")
    others = {i: of for i, of in enumerate(table.heading) if i not in (name, *(edge.place for edge in edges))}
    phases: list[_Phase] = []
    for line, row in table.rows:
        attributes = {of: _value(row[i]) for i, of in others.items() if row[i]}
        begin, end = (table.time_ns(line, row, edge) for edge in edges)
        phases.append(_Phase(begin, end, row[name], attributes, line))
        if not row[name] or end <= begin:
            raise table.error(line, "a phase needs a name, and an end behind its begin")
    outside = [phase for phase in phases if phase.end_ns <= begin_ns or phase.begin_ns >= end_ns]
    if 2 * len(outside) > len(phases):
        why = f"{len(outside)} of {len(phases)} phases, this one first, lie where there are no readings"
        raise table.error(
            outside[0].line, f"{why}: are the times of both files in one unit (--time-unit), of one clock?"
        )
    return sorted(phases, key=lambda p: (p.begin_ns, -p.end_ns))


def _value(text: str) -> int | float | str:
    """A number where it is one."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return value if isfinite(value := float(text)) else text
    return text


# -- the run file --


def import_csv(
    power: Path,
    phases: Path | None,
    out: Path,
    card: SensorCard,
    asked: Columns = Columns(),
    *,
    log_format: LogFormat | None = None,
    overwrite: bool = False,
) -> Imported:
    """Write the run file ``out``; what is in it.

    ``power`` holds times, and watts or joules of a counter that only grows; with a column that says which device a row
    is of, those of several. ``phases`` has the columns name, begin and end; all others are attributes. Without it one
    phase ``run`` lies over all. Raises `ConfigError`, and `RunFileError` for a file that cannot be written.
    """
    table = _Table(power, asked, log_format=log_format)
    log = _read_log(table, card)
    series = log.series
    begin_ns = min(of.readings[0][0] for of in series)
    end_ns = max(of.readings[-1][0] for of in series)
    of_phases = _Table(phases, replace(asked, interval_s=None), table.clock) if phases is not None else table
    whole = _Phase(begin_ns, end_ns, WHOLE, {}, 0)
    spans = _phases(of_phases, begin_ns, end_ns) if phases is not None else [whole]
    begin_ns = min(begin_ns, spans[0].begin_ns)
    end_ns = max(end_ns, *(p.end_ns for p in spans))
    # No clock of a run shows 0 or less. Seconds since the start of something do.
    shift_ns = max(0, 1_000_000_000 - begin_ns)
    events = [*_run(power, log, card, (begin_ns, end_ns), shift_ns, asked.step_j, is_utc=table.clock == "dates")]
    events += _marks(of_phases, spans, shift_ns)
    journal, held = journals.claim(out.absolute(), overwrite=overwrite)
    try:
        with os.fdopen(open_own(journal / "journal.bin", os.O_WRONLY | os.O_EXCL), "wb") as file:
            file.writelines(map(encode, events))
        write_file(out, read_contents(journal), journal, overwrite=overwrite, progress=lambda share: None, kept=power)
    finally:
        journals.remove(journal)
        os.close(held)
    period_s = max(of.period_ns for of in series) * 1e-9
    labels = {of.device: of.label for of in series if log.device_column}
    notes = (*log.notes, *(of_phases.notes if phases is not None else ()))
    if log_format is not None:
        columns = ", ".join(table.asked.several or (table.asked.readings or "",))
        zone = "; its times name no zone and are taken as UTC (--time-zone)"
        is_unsaid = table.has_no_zone and asked.time_zone is None
        lasting = "; a value lasts until the next row"
        note = f"read as {log_format.name}: {columns} of {log_format.writer}{lasting * table.holds_values}"
        notes = (f"{note}{zone * is_unsaid}", *notes)
    return Imported(len(table.rows), len(spans), period_s, labels, log.device_column, notes)


def _run(
    power: Path, log: _Log, card: SensorCard, span_ns: tuple[int, int], shift_ns: int,
    step_j: float | None, *, is_utc: bool,
) -> Iterator[Event]:  # fmt: skip
    """Everything but the phases."""
    epoch, per_code, what = secrets.randbits(63), 1 / _CODES_PER_UNIT, f"imported from {power.name}"
    begin_ns, end_ns = (t_ns + shift_ns for t_ns in span_ns)
    created = _EPOCH + timedelta(seconds=begin_ns // 10**9) if is_utc else datetime.now(UTC)
    run = {"run_id": secrets.token_hex(8), "created_utc": created.isoformat(timespec="seconds")}
    yield Message("run", run | {"powerd_version": release(), "command": sys.argv, "environment": environment()})
    yield Message("start", {"t_start_ns": begin_ns})
    is_counter, series = log.is_counter, log.series
    conversion = CounterConversion("energy_uj", per_code) if is_counter else ScaledConversion("power_uw", per_code)
    streams, devices = [], []
    for number, of in enumerate(series):
        accuracy = replace(card.accuracy, centre_ns=card.accuracy.centre_ns + log.centre_ns)
        if is_counter:
            accuracy = of.accuracy(accuracy, step_j)
        elif not accuracy.window_ns:
            accuracy = replace(accuracy, window_ns=of.period_ns)
        about = f"{what}, rows of {of.label}" if of.label else what
        line = Line(of.line, of.device, conversion, card.provenance, accuracy, about)
        detail = {"file": str(power.absolute())}
        streams.append(Stream(number, "import", (Column(conversion.column, "q"),), (line,), of.period_ns, detail))
        devices.append(Device(of.device, (of.line,), about))
    description = Description(power.name, release(), epoch, "times of a CSV", "", tuple(streams), tuple(devices))
    yield Message("description", to_document(description), epoch)
    for stream, of in zip(streams, series, strict=True):
        builder = BlockBuilder(stream, epoch)
        for first in range(0, len(of.readings), _BLOCK_READINGS):
            for t_ns, code in of.readings[first : first + _BLOCK_READINGS]:
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
