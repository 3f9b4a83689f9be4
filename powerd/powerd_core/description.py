"""Whether a description that came from outside can be worked with: on a screen, in a run file, and in arithmetic.

Types are right by now (`powerd_core.document`). What is checked here is what a damaged or hostile powerd could say
with the right types, and what would then surface far away: in a division, a group of the run file, a frame's header.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite

from powerd_core.errors import WireError
from powerd_core.model import (
    CODE_BYTES,
    Accuracy,
    Conversion,
    CounterConversion,
    Description,
    QuantityConversion,
    ShuntConversion,
    Stream,
)
from powerd_core.text import printable

MAX_NAME = 200
MAX_TEXT = 10_000
MAX_PERIOD_NS = 10**15
"""Eleven days: nothing that is measured is read more rarely."""
_BASE = frozenset({"t_ns", "dt_ns", "flags", "t_board_ns"})
"""Names that blocks and run files use beside a stream's columns."""


def check_description(description: Description) -> None:
    """Raises `WireError` for the first thing in it that cannot be used."""
    for text in _texts(description):
        if len(text) > MAX_TEXT or not text.isprintable():
            raise WireError(f"Description: a text is too long or has control characters: {printable(text, limit=60)}")
    if not 0 <= description.epoch < 1 << 64:
        raise WireError(f"Description: {description.epoch} is no epoch")
    numbers = [s.number for s in description.streams]
    if len(set(numbers)) != len(numbers):
        raise WireError("Description: two streams share a number")
    for stream in description.streams:
        _check_stream(stream)
    lines = [line for s in description.streams for line in s.lines]
    names = {line.name for line in lines}
    if len(names) != len(lines):
        raise WireError("Description: two lines share a name")
    if len({d.name for d in description.devices}) != len(description.devices):
        raise WireError("Description: two devices share a name")
    for name in (*names, *(d.name for d in description.devices)):
        _check_name(name)
    besides = {line.name for line in lines if isinstance(line.conversion, QuantityConversion)}
    for device in description.devices:
        if missing := set(device.feeds) - names:
            raise WireError(f"Description: device {device.name!r} is fed by unknown line {min(missing)!r}")
        if len(set(device.feeds)) < len(device.feeds):
            raise WireError(f"Description: device {device.name!r} is fed by a line twice: each counts once")
        if beside := set(device.feeds) & besides:
            raise WireError(f"Description: device {device.name!r} is fed by {min(beside)!r}, which is no power")


def _texts(value: object) -> Iterator[str]:
    """Every text but those of ``detail``, which are a source's own and may be anything."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for inner in value:
            yield from _texts(inner)
    elif is_dataclass(value) and not isinstance(value, Mapping):
        for f in fields(value):
            yield from _texts(getattr(value, f.name))


def _check_name(name: str) -> None:
    # Names become groups of the run file, where a slash leads into another group and dots are places.
    if not name or len(name) > MAX_NAME or "/" in name or name in (".", ".."):
        raise WireError(f"Description: {name[:MAX_NAME]!r} is no name for a line or device")


def _check_stream(stream: Stream) -> None:
    where = f"Description: stream {stream.number} ({stream.source!r})"
    if not 0 <= stream.number < 1 << 16:
        raise WireError(f"{where}: its number has more than 16 bits")
    if not 1 <= stream.period_ns <= MAX_PERIOD_NS:
        raise WireError(f"{where}: a period of {stream.period_ns} ns cannot be")
    if bad := [c.typecode for c in stream.columns if c.typecode not in CODE_BYTES]:
        raise WireError(f"{where} has a column of unknown type {bad[0]!r}")
    columns = {c.name for c in stream.columns}
    if len(columns) != len(stream.columns) or columns & _BASE:
        raise WireError(f"{where}: two of its columns share a name")
    for column in columns:
        _check_name(column)
    if not stream.lines:
        raise WireError(f"{where} has no lines")
    for line in stream.lines:
        check_conversion(line.conversion, line.accuracy, columns, f"{where}: line {line.name!r}")


def check_conversion(conversion: Conversion, accuracy: Accuracy, columns: Collection[str], where: str) -> None:
    """Raises `WireError`, beginning with ``where``, when readings with these ``columns`` cannot be converted so."""
    if missing := _columns_of(conversion).difference(columns):
        raise WireError(f"{where} is computed from a column {min(missing)!r} that is not there")
    if not _is_sound(conversion) or not _are_sound(accuracy):
        raise WireError(f"{where} has a conversion or accuracy that cannot be")


def _columns_of(conversion: Conversion) -> set[str]:
    if isinstance(conversion, ShuntConversion):
        return {conversion.shunt, conversion.bus}
    return {conversion.column}


def _is_sound(conversion: Conversion) -> bool:
    numbers = (getattr(conversion, f.name) for f in fields(conversion))
    if not all(isfinite(n) for n in numbers if isinstance(n, float)):
        return False
    if isinstance(conversion, ShuntConversion):
        return conversion.shunt_ohm > 0 and 0 <= conversion.bus_shift < 16
    return not isinstance(conversion, CounterConversion) or 1 <= conversion.bits <= 64


def _are_sound(accuracy: object) -> bool:
    """Uncertainties and widths: finite and not negative."""
    numbers = (getattr(accuracy, f.name) for f in fields(accuracy))  # type: ignore[arg-type]
    return all(isfinite(n) and 0 <= n < 1 << 62 for n in numbers if isinstance(n, int | float))
