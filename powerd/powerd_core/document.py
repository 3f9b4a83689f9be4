"""The frozen data as JSON objects and back, strictly: for *describe*, the journal and the run file."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from powerd_core.errors import WireError
from powerd_core.model import (
    CODE_BYTES,
    CounterConversion,
    Description,
    QuantityConversion,
    ScaledConversion,
    ShuntConversion,
)

T = TypeVar("T")

_CONVERSIONS: dict[str, type] = {
    "shunt": ShuntConversion,
    "scaled": ScaledConversion,
    "counter": CounterConversion,
    "quantity": QuantityConversion,
}


def to_document(value: Any) -> Any:
    """``value`` with its dataclasses as dicts, tuples as lists and enums as their values."""
    if is_dataclass(value) and not isinstance(value, type):
        made = {f.name: to_document(getattr(value, f.name)) for f in fields(value)}
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


def from_document(cls: type[T], document: Any, where: str = "") -> T:
    """An instance of the dataclass ``cls`` from what `to_document` made.

    Raises `WireError` naming the place for missing or unknown keys and for values of the wrong type.
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
        if name not in _CONVERSIONS:
            raise WireError(f"{where}: unknown conversion {name!r}")
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
        except ValueError as error:
            raise WireError(f"{where}: {error}") from error
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise WireError(f"{where}: expected {kind.__name__}, found {value!r}")
    return value


def _convert_dataclass(cls: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise WireError(f"{where}: expected an object")
    hints = typing.get_type_hints(cls)
    if unknown := sorted(value.keys() - hints.keys()):
        raise WireError(f"{where}: unknown key {unknown[0]!r}")
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
    numbers = [s.number for s in description.streams]
    if len(set(numbers)) != len(numbers):
        raise WireError("Description: two streams share a number")
    lines = [line.name for s in description.streams for line in s.lines]
    if len(set(lines)) != len(lines):
        raise WireError("Description: two lines share a name")
    besides = {
        line.name for s in description.streams for line in s.lines if isinstance(line.conversion, QuantityConversion)
    }
    for stream in description.streams:
        if bad := [c.typecode for c in stream.columns if c.typecode not in CODE_BYTES]:
            raise WireError(f"Description: stream {stream.source!r} has a column of unknown type {bad[0]!r}")
    for device in description.devices:
        if missing := set(device.feeds) - set(lines):
            raise WireError(f"Description: device {device.name!r} is fed by unknown line {sorted(missing)[0]!r}")
        if beside := set(device.feeds) & besides:
            raise WireError(f"Description: device {device.name!r} is fed by {sorted(beside)[0]!r}, which is no power")
    return description
