"""TOML as we take it: `tomllib`, with errors of one kind and numbers that arithmetic can hold."""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import Any, TypeVar

from powerd_core.errors import WireError
from powerd_core.model import (
    CODE_BYTES,
    Accuracy,
    Conversion,
    CounterConversion,
    Description,
    Device,
    Line,
    QuantityConversion,
    ScaledConversion,
    ShuntConversion,
    Stream,
)
from powerd_core.text import printable

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


def parse_toml(text: str) -> dict[str, Any]:
    """The document in a text. Raises `tomllib.TOMLDecodeError`, also for what `tomllib` lets through or chokes on.

    Integers have 64 bits, as TOML promises; infinities and what is no number are no option of ours.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise tomllib.TOMLDecodeError("tables and lists are nested too deep") from None
    except ValueError as error:
        raise tomllib.TOMLDecodeError(str(error)) from error
    waiting: list[tuple[str, Any]] = list(document.items())
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(name, inner) for inner in value]
        elif isinstance(value, float) and not isfinite(value):
            raise tomllib.TOMLDecodeError(f"{name!r} is not a finite number")
        elif isinstance(value, str) and "\0" in value:
            # Most texts become names of files and ports, which end at such a character or refuse it.
            raise tomllib.TOMLDecodeError(f"{name!r} has a NUL character")
        elif isinstance(value, int) and not _LEAST <= value <= _MOST:
            raise tomllib.TOMLDecodeError(f"{name!r} has more than 64 bits")
    return document


# Whether a description that came from outside can be worked with: on a screen, in a run file, and in arithmetic.
#
# Types are right by now (`powerd_core.serde`). What is checked here is what a damaged or hostile powerd could say
# with the right types, and what would then surface far away: in a division, a group of the run file, a frame's header.


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


# The frozen data as JSON objects and back, checked: for *describe*, the journal and the run file.


T = TypeVar("T")

MAX_DEPTH = 32
"""Of objects and lists within each other; none of ours has ten."""

_CONVERSIONS: dict[str, type] = {
    "shunt": ShuntConversion,
    "scaled": ScaledConversion,
    "counter": CounterConversion,
    "quantity": QuantityConversion,
}

_GROWING = frozenset({Description, Stream, Line, Device})
"""What a newer powerd may say more of: a key that is not known here is left out. What an older client must not miss,
because a number would come out otherwise, is a new conversion or a new version of the protocol instead."""


def to_document(value: Any) -> Any:
    """``value`` with its dataclasses as dicts, tuples as lists and enums as their values."""
    if is_dataclass(value) and not isinstance(value, type):
        held = ((f, getattr(value, f.name)) for f in fields(value))
        made = {f.name: to_document(v) for f, v in held if not (f.metadata.get("later") and v == f.default)}
        for kind, cls in _CONVERSIONS.items():
            if type(value) is cls:
                made["kind"] = kind
        return made
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_document(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_document(v) for v in value]
    return value


def check_json(document: Any) -> None:
    """Raises `WireError` for JSON that can be read and not written: deeper than recursion reaches, or not finite."""
    waiting = [(document, 0)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, dict | list):
            if depth >= MAX_DEPTH:
                raise WireError(f"JSON of more than {MAX_DEPTH} levels")
            waiting += [(inner, depth + 1) for inner in (value.values() if isinstance(value, dict) else value)]
        elif isinstance(value, float) and not isfinite(value):
            raise WireError("JSON with a number that is not finite")


def from_document(cls: type[T], document: Any, where: str = "") -> T:
    """An instance of the dataclass ``cls`` from what `to_document` made.

    Raises `WireError` naming the place for missing keys, for values of the wrong type, and for unknown keys other than
    those by which a newer powerd describes itself.
    """
    found: T = _convert(cls, document, where or cls.__name__)
    return found


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType and types.NoneType in args:
        return None if value is None else _convert(next(a for a in args if a is not types.NoneType), value, where)
    if origin is typing.Literal:
        if value not in args:
            raise WireError(f"{where}: expected {' or '.join(map(repr, args))}, found {value!r}")
        return value
    if origin is types.UnionType:
        name = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in _CONVERSIONS:
            raise WireError(f"{where}: unknown conversion {_shown(name)}")
        return _convert(_CONVERSIONS[name], {k: v for k, v in value.items() if k != "kind"}, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise WireError(f"{where}: expected a list")
        return tuple(_convert(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise WireError(f"{where}: expected an object")
        return value
    if is_dataclass(kind):
        return _convert_dataclass(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise WireError(f"{where}: {_shown(value)} is no {kind.__name__.lower()}") from None
    if not isinstance(value, bool) and isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise WireError(f"{where}: a number of more than 64 bits")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise WireError(f"{where}: expected {kind.__name__}, found {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """A value in an error: never more than a person reads, whatever was sent."""
    return printable(repr(value), limit=80)


def _convert_dataclass(cls: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise WireError(f"{where}: expected an object")
    hints = typing.get_type_hints(cls)
    if cls not in _GROWING and (unknown := sorted(value.keys() - hints.keys())):
        raise WireError(f"{where}: unknown key {_shown(unknown[0])}")
    made = {}
    for f in fields(cls):
        if f.name in value:
            made[f.name] = _convert(hints[f.name], value[f.name], f"{where}.{f.name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise WireError(f"{where}: missing key {f.name!r}")
    return cls(**made)


def read_description(document: Any) -> Description:
    """A checked `Description` from a *describe* answer. Raises `WireError`."""
    description = from_document(Description, document)
    check_description(description)
    return description
