"""The frozen data as JSON objects and back, checked: for *describe*, the journal and the run file."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import Any, TypeVar

from powerd_core.description import check_description
from powerd_core.errors import WireError
from powerd_core.model import (
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

T = TypeVar("T")

MAX_DEPTH = 32
"""Of objects and lists within each other; none of ours has ten."""
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1

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
