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

import ast
import inspect
import itertools
import textwrap
import tomllib
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
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
_LEAST, _MOST, _MOST_TOML = -(1 << 63), (1 << 64) - 1, (1 << 63) - 1
"""JSON's integers may be an epoch or a counter of 64 bits without a sign; TOML's have a sign, by its standard."""

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
        elif isinstance(value, int) and not _LEAST <= value <= _MOST_TOML:
            raise tomllib.TOMLDecodeError(f"{name!r} has more than 64 bits")
    return document


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
    instance: T = _decode(cls, document, where or cls.__name__, _DOCUMENT)
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
    options: T = _decode(cls, dict(given), where, _OPTIONS)
    return options


@dataclass(frozen=True, slots=True)
class _Rules:
    """What differs between the two doors."""

    error: type[PowerdError]
    member: str
    """How an error names a member of a table, after the table's own place."""
    noun: str
    growing: frozenset[type] = frozenset()
    """Of these, unknown members are left out instead of refused."""


_OPTIONS = _Rules(ConfigError, ": option {!r}", "option")
_DOCUMENT = _Rules(WireError, ".{}", "key", _GROWING)


def _decode(kind: Any, value: Any, where: str, rules: _Rules) -> Any:
    """``value`` as the type hint ``kind`` wants it, or the error that says where it is and what would be right."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return value
    if origin in (types.UnionType, typing.Union):
        return _decode_union(args, value, where, rules)
    if origin is typing.Literal:
        if value in args and any(type(a) is type(value) for a in args):
            return value
        raise rules.error(f"{where}: unknown value {_shown(value)}{did_you_mean(_bare(value), map(str, args))}")
    if origin in (tuple, list, Sequence):
        return _decode_list(kind, value, where, rules)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise _wrong(kind, value, where, rules)
        inner = args[1] if args else Any
        return {k: _decode(inner, v, f"{where}.{k}", rules) for k, v in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, dict):
            raise _wrong(kind, value, where, rules)
        return _decode_table(kind, value, where, rules)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            known = [str(member.value) for member in kind]
            raise rules.error(f"{where}: unknown value {_shown(value)}{did_you_mean(_bare(value), known)}") from None
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise rules.error(f"{where}: a number of more than 64 bits")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if _is_path(kind) and isinstance(value, str) and value:
        return kind(value)
    if not isinstance(kind, type) or not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(kind, value, where, rules)
    return value


def _decode_table(cls: Any, table: dict[str, Any], where: str, rules: _Rules) -> Any:
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls) if f.init}
    if cls not in rules.growing:
        for name in table:
            if name not in known:
                hint = did_you_mean(_bare(name), known) if rules is _OPTIONS else ""
                raise rules.error(f"{where}: unknown {rules.noun} {_shown(name)}{hint}")
    members = {}
    for name, f in known.items():
        if name in table:
            members[name] = _decode(hints[name], table[name], where + rules.member.format(name), rules)
        elif _is_required(f):
            raise rules.error(f"{where}: missing {rules.noun} {name!r} ({type_name(hints[name])})")
    try:
        return cls(**members)
    except ValueError as error:
        raise rules.error(f"{where}: {error}") from error
    except OverflowError as error:
        raise rules.error(f"{where}: a number is too large: {error}") from error


def _decode_union(args: tuple[Any, ...], value: Any, where: str, rules: _Rules) -> Any:
    if value is None and types.NoneType in args:
        return None
    members = [a for a in args if a is not types.NoneType]
    if set(members) == set(_CONVERSIONS.values()):
        kind = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in _CONVERSIONS:
            raise rules.error(f"{where}: unknown conversion {_shown(kind)}")
        return _decode(_CONVERSIONS[kind], {k: v for k, v in value.items() if k != "kind"}, where, rules)
    errors = []
    for kind in members:
        try:
            return _decode(kind, value, where, rules)
        except rules.error as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    raise _wrong(typing.Union[args], value, where, rules)  # noqa: UP007  (the members are only known here)


def _decode_list(kind: Any, value: Any, where: str, rules: _Rules) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if not isinstance(value, list | tuple):
        raise _wrong(kind, value, where, rules)
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        if len(value) != len(args):
            raise rules.error(f"{where}: expected {len(args)} values, found {len(value)}")
        kinds = args
    else:
        kinds = (args[0],) * len(value)
    items = [_decode(k, v, f"{where}[{i}]", rules) for i, (k, v) in enumerate(zip(kinds, value, strict=True))]
    return items if origin is list else tuple(items)


def _wrong(kind: Any, value: object, where: str, rules: _Rules) -> PowerdError:
    shown = "a table" if isinstance(value, dict) else _shown(value)
    return rules.error(f"{where}: expected {type_name(kind)}, found {shown}")


def _shown(value: object) -> str:
    """A value in an error: never more than a person reads, whatever was sent."""
    return printable(repr(value), limit=80)


def _bare(value: object) -> str:
    return str(value)[:80]


def _is_required(f: Field[Any]) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


def _is_path(kind: Any) -> bool:
    # Asked like this, the core names no module that can reach a disk.
    return isinstance(kind, type) and hasattr(kind, "__fspath__")


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option as `powerd sources` prints it. ``default`` is empty for an option that must be given."""

    name: str
    type: str
    default: str
    help: str


def describe_options(cls: type) -> tuple[OptionInfo, ...]:
    """Name, type, default and help of each option. The help is the string below the field, or ``metadata['help']``."""
    hints, docstrings = typing.get_type_hints(cls), _field_docstrings(cls)
    options = []
    for f in fields(cls):
        if f.init:
            text = str(f.metadata.get("help", docstrings.get(f.name, "")))
            options.append(OptionInfo(f.name, type_name(hints[f.name]), _default(f), " ".join(text.split())))
    return tuple(options)


_TYPE_NAMES: dict[object, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    types.NoneType: "nothing",
}
_PLURALS = {"a string": "strings", "an integer": "integers", "a number": "numbers", "a table": "tables"}


def type_name(kind: Any) -> str:
    """How a person says which values an option takes."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(repr(a) for a in args)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_name(a) for a in args if a is not types.NoneType)
    if origin in (tuple, list, Sequence):
        if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
            return f"a list of {len(args)} values"
        inner = type_name(args[0])
        return f"a list of {_PLURALS.get(inner, inner)}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(repr(member.value) for member in kind)
    if origin in (dict, Mapping) or is_dataclass(kind):
        return "a table"
    return "a path" if _is_path(kind) else _TYPE_NAMES.get(kind, "a value")


def _default(f: Field[Any]) -> str:
    if _is_required(f):
        return ""
    value = f.default if f.default is not MISSING else typing.cast(Any, f.default_factory)()
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(repr(v) for v in value) + "]"
    return repr(value.value) if isinstance(value, Enum) else repr(value)


def _field_docstrings(cls: type) -> dict[str, str]:
    """The string literals below the fields of a dataclass, inherited ones included."""
    docstrings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not is_dataclass(base):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for statement, below in itertools.pairwise(body):
            match statement, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docstrings[name] = text
    return docstrings


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
