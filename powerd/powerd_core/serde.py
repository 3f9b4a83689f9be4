"""Frozen dataclasses as TOML tables and JSON objects, and back: one decoder for all that comes from outside.

A configuration, a calibration file, the answer to *describe*, a journal's records and a run file's attributes are all
decoded by `_decode`, which converts by the type hints of a dataclass and refuses the rest. Two doors lead to it:

`build_options`   TOML tables that a person wrote. Raises `ConfigError`, with a suggestion for a misspelt name.
`from_document`   JSON that a program wrote. Raises `WireError`. A newer program may say more about a description, a
                  stream, a line or a device: keys of theirs that are not known here are left out.

Types are right after that. `check_description` then refuses what a damaged or hostile powerd could say with the right
types, and what would surface far away: in a division, a group of the run file, a frame's header.
"""

from __future__ import annotations

import json
import tomllib
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, astuple, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from math import isfinite
from typing import Any, TypeVar

from powerd_core.errors import ConfigError, PowerdError, WireError
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
from powerd_core.text import did_you_mean, printable

T = TypeVar("T")

MAX_DEPTH = 32
"""Of objects and lists within each other; none of ours has ten."""
MAX_NAME = 200
MAX_TEXT = 10_000
MAX_STREAMS, MAX_BOARD_LINES = 512, 2000
"""Of one board: eight GPUs have some 150 lines, and a recorder opens each of them."""
MAX_PERIOD_NS = 10**15
"""Eleven days: nothing that is measured is read more rarely."""
MOST = 1e12
"""No number of a description or an option is larger. What codes of 64 bits then amount to can be squared and added."""
_INTEGERS = range(-(1 << 63), 1 << 64)
"""JSON's integers may be an epoch or a counter of 64 bits without a sign."""
_TOML_INTEGERS = range(-(1 << 63), 1 << 63)
_BASE_COLUMNS = frozenset({"t_ns", "dt_ns", "flags", "t_board_ns"})
"""Names that blocks and run files use beside a stream's columns."""
_CONVERSIONS: dict[str, type] = {
    "shunt": ShuntConversion,
    "scaled": ScaledConversion,
    "counter": CounterConversion,
    "quantity": QuantityConversion,
}
"""The members of the union `Conversion`, which a document tells apart by its key ``kind``."""
_GROWING = frozenset({Description, Stream, Line, Device})
"""What a newer powerd may say more of. What an older client must not miss, because a number would come out otherwise,
is a new conversion or a new version of the protocol instead."""


def parse_toml(text: str) -> dict[str, Any]:
    """The document in a text. Raises `tomllib.TOMLDecodeError`, also for what `tomllib` lets through or chokes on:
    numbers that are not finite or have more than 64 bits, NUL characters, tables that are nested too deep."""
    try:
        document = tomllib.loads(text)
        leaves = list(_leaves(document))
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise tomllib.TOMLDecodeError(str(error)) from error
    for value in leaves:
        if isinstance(value, float) and not isfinite(value):
            raise tomllib.TOMLDecodeError(f"{value} is not a finite number")
        if isinstance(value, int) and value not in _TOML_INTEGERS:
            raise tomllib.TOMLDecodeError("a number has more than 64 bits")
        if isinstance(value, str) and "\0" in value:
            # Most texts become names of files and ports, which end at such a character or refuse it.
            raise tomllib.TOMLDecodeError(f"{_shown(value)} has a NUL character")
    return document


def toml_table(head: str, value: Any) -> str:
    """A dataclass of numbers and texts as a TOML table; dataclasses in it are left to tables of their own."""
    rows = [head]
    for f in fields(value):
        inner = getattr(value, f.name)
        if inner is not None and not is_dataclass(inner):
            rows.append(f"{f.name} = {toml_value(inner)}")
    return "\n".join(rows) + "\n"


def toml_value(value: Any) -> str:
    """A number, a text or a list of these as TOML writes it; a text may be a key, too."""
    # JSON's numbers and strings are TOML's, but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def check_json(document: Any) -> None:
    """Raises `WireError` for JSON that can be read and not written: deeper than recursion reaches, or not finite."""
    if any(isinstance(value, float) and not isfinite(value) for value in _leaves(document)):
        raise WireError("JSON with a number that is not finite")


def _leaves(document: Any) -> Iterator[Any]:
    """All values of a document that are neither tables nor lists. Raises `WireError` below `MAX_DEPTH`."""
    waiting = [(document, 0)]
    while waiting:
        value, depth = waiting.pop()
        if not isinstance(value, dict | list):
            yield value
            continue
        if depth >= MAX_DEPTH:
            raise WireError(f"tables and lists of more than {MAX_DEPTH} levels")
        waiting += [(inner, depth + 1) for inner in (value.values() if isinstance(value, dict) else value)]


def to_document(value: Any) -> Any:
    """``value`` with its dataclasses as dicts, tuples as lists and enums as their values."""
    if is_dataclass(value) and not isinstance(value, type):
        held = ((f, getattr(value, f.name)) for f in fields(value))
        document = {f.name: to_document(v) for f, v in held if not (f.metadata.get("later") and v == f.default)}
        for kind, cls in _CONVERSIONS.items():
            if type(value) is cls:
                document["kind"] = kind
        return document
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_document(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_document(v) for v in value]
    return value


def from_document(cls: type[T], document: Any, where: str = "") -> T:
    """An instance of the dataclass ``cls`` from what `to_document` made.

    Raises `WireError` naming the place for missing keys, for values of the wrong type, and for unknown keys other than
    those by which a newer powerd describes itself.
    """
    instance: T = _decode(cls, document, where or cls.__name__, WireError)
    return instance


def read_description(document: Any) -> Description:
    """A checked `Description` from a *describe* answer. Raises `WireError`."""
    description = from_document(Description, document)
    check_description(description)
    return description


def build_options(cls: type[T], given: Mapping[str, object], where: str) -> T:
    """An instance of the dataclass ``cls`` from a TOML table.

    Raises `ConfigError`, each message beginning with ``where``, for unknown and missing options, for values of the
    wrong type, and for whatever the dataclass itself refuses with ValueError.
    """
    options: T = _decode(cls, dict(given), where, ConfigError)
    return options


def _decode(kind: Any, value: Any, where: str, error: type[PowerdError]) -> Any:
    """``value`` as the type hint ``kind`` wants it, or ``error``, which says where it is and what would be right."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    is_class = isinstance(kind, type)
    if kind is Any or kind is object:
        return value
    if origin in (types.UnionType, typing.Union):
        return _decode_union(kind, value, where, error)
    if origin is typing.Literal and any(value == a and type(value) is type(a) for a in args):
        return value
    if origin is typing.Literal or (is_class and issubclass(kind, Enum)):
        known = {m.value: m for m in kind} if origin is None else {}
        if isinstance(value, str) and value in known:
            return known[value]
        names = map(str, known or args)
        raise error(f"{where}: unknown value {_shown(value)}{did_you_mean(str(value)[:80], names)}")
    if origin in (tuple, list, Sequence) and isinstance(value, list | tuple):
        kinds = args if _is_fixed(kind) else args[:1] * len(value)
        if len(kinds) != len(value):
            raise error(f"{where}: expected {len(kinds)} values, found {len(value)}")
        items = [_decode(k, v, f"{where}[{i}]", error) for i, (k, v) in enumerate(zip(kinds, value, strict=True))]
        return items if origin is list else tuple(items)
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {k: _decode(args[1], v, _within(where, k), error) for k, v in value.items()}
    if is_class and is_dataclass(kind) and isinstance(value, dict):
        return _decode_table(kind, value, where, error)
    if isinstance(value, int) and value not in _INTEGERS:
        raise error(f"{where}: a number of more than 64 bits")
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= MOST:  # nor what is no number
            raise error(f"{where}: {value:g} is beyond what any meter measures")
        return float(value)
    if _is_path(kind) and isinstance(value, str) and value:
        return kind(value)
    if origin is None and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    raise error(f"{where}: expected {type_name(kind)}, found {'a table' if isinstance(value, dict) else _shown(value)}")


_hints = lru_cache(typing.get_type_hints)
"""Of a dataclass. To work them out takes longer than to decode a table by them."""


def _decode_table(cls: Any, table: dict[str, Any], where: str, error: type[PowerdError]) -> Any:
    is_option = error is ConfigError
    noun = "option" if is_option else "key"
    hints = _hints(cls)
    known = {f.name: f for f in fields(cls) if f.init}
    unknown = next((name for name in table if name not in known), None)
    if unknown is not None and cls not in _GROWING:
        hint = did_you_mean(unknown[:80], known) if is_option else ""
        raise error(f"{where}: unknown {noun} {_shown(unknown)}{hint}")
    members = {}
    for name, f in known.items():
        if name in table:
            inner = f"{where}: option {name!r}" if is_option and not where.endswith("'") else _within(where, name)
            members[name] = _decode(hints[name], table[name], inner, error)
        elif _is_required(f):
            raise error(f"{where}: missing {noun} {name!r} ({type_name(hints[name])})")
    try:
        return cls(**members)
    except (ValueError, OverflowError) as refusal:
        raise error(f"{where}: {refusal}") from refusal


def _within(where: str, name: str) -> str:
    """The place of a member: ``option 'repeats.min'`` in ``option 'repeats'``."""
    return f"{where[:-1]}.{name}'" if where.endswith("'") else f"{where}.{name}"


def _decode_union(kind: Any, value: Any, where: str, error: type[PowerdError]) -> Any:
    """A conversion by its ``kind``; of another union the member, at most one of which is a table, that fits."""
    members = typing.get_args(kind)
    if value is None and types.NoneType in members:
        return None
    if kind == Conversion:
        name = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in _CONVERSIONS:
            raise error(f"{where}: unknown conversion {_shown(name)}")
        return _decode(_CONVERSIONS[name], {k: v for k, v in value.items() if k != "kind"}, where, error)
    members = tuple(m for m in members if m is not types.NoneType)
    if isinstance(value, dict):  # what is wrong in a table is worth more than what else could stand here
        members = tuple(m for m in members if is_dataclass(m) or typing.get_origin(m) in (dict, Mapping)) or members
    for member in members:
        try:
            return _decode(member, value, where, error)
        except error:
            if len(members) == 1:
                raise
    raise error(f"{where}: expected {type_name(kind)}, found {_shown(value)}")


def _shown(value: object) -> str:
    """A value in an error: never more than a person reads, whatever was sent."""
    return printable(repr(value), limit=80)


def _is_required(f: Field[Any]) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


def _is_path(kind: Any) -> bool:
    # Asked like this, the core names no module that can reach a disk.
    return isinstance(kind, type) and hasattr(kind, "__fspath__")


def _is_fixed(kind: Any) -> bool:
    """Whether a type hint is that of a tuple with so many members, each of its own type."""
    return typing.get_origin(kind) is tuple and typing.get_args(kind)[-1] is not Ellipsis


def option(default: T, help_text: str) -> T:
    """A dataclass's field that is an option of a configuration: its default, and what `powerd sources` says of it."""
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option as `powerd sources` prints it. ``default`` is empty for an option that must be given."""

    name: str
    type: str
    default: str
    help: str


def describe_options(cls: type) -> tuple[OptionInfo, ...]:
    """Name, type, default and help (``metadata['help']`` of its field) of each option."""
    hints = typing.get_type_hints(cls)
    return tuple(
        OptionInfo(f.name, type_name(hints[f.name]), _default(f), f.metadata.get("help", ""))
        for f in fields(cls)
        if f.init
    )


_TYPE_NAMES: dict[object, str] = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_PLURALS = {"a string": "strings", "an integer": "integers", "a number": "numbers", "a table": "tables"}


def type_name(kind: Any) -> str:
    """How a person says which values an option takes."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(map(repr, args))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_name(a) for a in args if a is not types.NoneType)
    if origin in (tuple, list, Sequence):
        inner = type_name(args[0])
        return f"a list of {len(args)} values" if _is_fixed(kind) else f"a list of {_PLURALS.get(inner, inner)}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(repr(member.value) for member in kind)
    if origin in (dict, Mapping) or is_dataclass(kind):
        return "a table"
    return "a path" if _is_path(kind) else _TYPE_NAMES.get(kind, "a value")


def _default(f: Field[Any]) -> str:
    if _is_required(f):
        return ""
    value = to_document(f.default_factory() if f.default_factory is not MISSING else f.default)
    if value is None:
        return "none"
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    return str(value).lower() if isinstance(value, bool) else repr(value)


def check_description(description: Description) -> None:
    """Raises `WireError` for the first thing in it that cannot be used."""
    # First: what follows looks at each of them.
    count = sum(len(stream.lines) for stream in description.streams)
    _require(len(description.streams) <= MAX_STREAMS, f"{len(description.streams)} streams, of {MAX_STREAMS} at most")
    _require(count <= MAX_BOARD_LINES, f"{count} lines, of {MAX_BOARD_LINES} at most")
    for text in _texts(description):
        shown = printable(text, limit=60)
        _require(len(text) <= MAX_TEXT and text.isprintable(), f"a text is too long or has control characters: {shown}")
    _require(0 <= description.epoch < 1 << 64, f"{description.epoch} is no epoch")
    lines = {line.name: line for stream in description.streams for line in stream.lines}
    devices = {device.name for device in description.devices}
    _require(len({s.number for s in description.streams}) == len(description.streams), "two streams share a number")
    _require(len(lines) == sum(len(s.lines) for s in description.streams), "two lines share a name")
    _require(len(devices) == len(description.devices), "two devices share a name")
    for stream in description.streams:
        _check_stream(stream)
    for name in (*lines, *devices):
        _check_name(name)
    for device in description.devices:
        where = f"device {device.name!r} is fed by"
        _require(len(set(device.feeds)) == len(device.feeds), f"{where} a line twice: each counts once")
        for name in device.feeds:
            _require(name in lines, f"{where} unknown line {name!r}")
            _require(not isinstance(lines[name].conversion, QuantityConversion), f"{where} {name!r}, which is no power")


def _require(is_so: bool, problem: str) -> None:
    if not is_so:
        raise WireError(f"Description: {problem}")


def _texts(value: object) -> Iterator[str]:
    """Every text but those of ``detail``, which are a source's own and may be anything."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for inner in value:
            yield from _texts(inner)
    elif is_dataclass(value):
        for f in fields(value):
            yield from _texts(getattr(value, f.name))


def _check_name(name: str) -> None:
    # Names become groups of the run file, where a slash leads into another group and dots are places.
    is_name = 0 < len(name) <= MAX_NAME and "/" not in name and name not in (".", "..")
    _require(is_name, f"{name[:MAX_NAME]!r} is no name for a line, column or device")


def _check_stream(stream: Stream) -> None:
    where = f"stream {stream.number} ({stream.source!r})"
    _require(0 <= stream.number < 1 << 16, f"{where}: its number has more than 16 bits")
    _require(1 <= stream.period_ns <= MAX_PERIOD_NS, f"{where}: a period of {stream.period_ns} ns cannot be")
    columns = {c.name for c in stream.columns}
    is_clear = len(columns) == len(stream.columns) and not columns & _BASE_COLUMNS
    _require(is_clear, f"{where}: two of its columns share a name")
    for column in stream.columns:
        _check_name(column.name)
        _require(column.typecode in CODE_BYTES, f"{where} has a column of unknown type {column.typecode!r}")
    _require(bool(stream.lines), f"{where} has no lines")
    for line in stream.lines:
        check_conversion(line.conversion, line.accuracy, columns, f"Description: {where}: line {line.name!r}")


def check_conversion(conversion: Conversion, accuracy: Accuracy, columns: Collection[str], where: str) -> None:
    """Raises `WireError`, beginning with ``where``, when readings with these ``columns`` cannot be converted so."""
    figures = {f.name: n for f in fields(conversion) if isinstance(n := getattr(conversion, f.name), float)}
    is_sound = all(isfinite(u) and 0 <= u < 1 << 62 for u in astuple(accuracy) if not isinstance(u, str))
    match conversion:
        case ShuntConversion():
            used = {conversion.shunt, conversion.bus}
            is_sound &= conversion.shunt_ohm > 0 and 0 <= conversion.bus_shift < 16
            if is_sound:
                figures["shunt_lsb_v / shunt_ohm"] = conversion.shunt_lsb_v / conversion.shunt_ohm
        case _:
            used = {conversion.column}
            is_sound &= not isinstance(conversion, CounterConversion) or 1 <= conversion.bits <= 64
    if missing := used.difference(columns):
        raise WireError(f"{where} is computed from a column {min(missing)!r} that is not there")
    for name, figure in figures.items():
        if not abs(figure) <= MOST:
            raise WireError(f"{where} has a conversion that cannot be: {name} is {figure:g}")
    if not is_sound:
        raise WireError(f"{where} has a conversion or accuracy that cannot be")
