"""Values of a configuration as a frozen dataclass, strictly: every error says where it is and what would be right."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from powerd_core.errors import ConfigError
from powerd_core.text import did_you_mean

T = TypeVar("T")

_NAMES: dict[object, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    Path: "a path",
    types.NoneType: "nothing",
}


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option as `powerd sources` prints it. ``default`` is empty for an option that must be given."""

    name: str
    type: str
    default: str
    help: str


def build_options(cls: type[T], given: Mapping[str, object], where: str) -> T:
    """An instance of the dataclass ``cls`` from a TOML table.

    Raises `ConfigError`, each message beginning with ``where``, for unknown and missing options, for values of the
    wrong type, and for whatever the dataclass itself refuses with ValueError.
    """
    hints = typing.get_type_hints(cls)
    # `fields` wants a dataclass; the caller's type variable cannot say so.
    known = {f.name: f for f in fields(typing.cast(Any, cls)) if f.init}
    for name in given:
        if name not in known:
            raise ConfigError(f"{where}: unknown option {name!r}{did_you_mean(name, known)}")
    made = {}
    for name, field in known.items():
        if name in given:
            made[name] = _convert(hints[name], given[name], f"{where}: option {name!r}")
        elif _required(field):
            raise ConfigError(f"{where}: missing option {name!r} ({type_name(hints[name])})")
    try:
        return cls(**made)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    except OverflowError as error:
        raise ConfigError(f"{where}: a number is too large: {error}") from error


def describe_options(cls: type) -> tuple[OptionInfo, ...]:
    """Name, type, default and help of each option. The help is the string below the field, or ``metadata['help']``."""
    hints, notes = typing.get_type_hints(cls), _notes(cls)
    found = []
    for f in fields(cls):
        if f.init:
            text = str(f.metadata.get("help", notes.get(f.name, "")))
            found.append(OptionInfo(f.name, type_name(hints[f.name]), _default(f), " ".join(text.split())))
    return tuple(found)


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
        return f"a list of {_plural(args[0])}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(repr(member.value) for member in kind)
    if origin in (dict, Mapping) or is_dataclass(kind):
        return "a table"
    return _NAMES.get(kind, "a value")


def _plural(kind: Any) -> str:
    name = type_name(kind)
    return {"a string": "strings", "an integer": "integers", "a number": "numbers", "a table": "tables"}.get(name, name)


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _default(field: Field[Any]) -> str:
    if _required(field):
        return ""
    value = field.default if field.default is not MISSING else typing.cast(Any, field.default_factory)()
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(repr(v) for v in value) + "]"
    return repr(value.value) if isinstance(value, Enum) else repr(value)


def _notes(cls: type) -> dict[str, str]:
    """The string literals below the fields of a dataclass, inherited ones included."""
    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not is_dataclass(base):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, note in itertools.pairwise(body):
            match field, note:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    notes[name] = text
    return notes


def _convert(kind: Any, value: object, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return value
    if origin in (types.UnionType, typing.Union):
        return _convert_union(args, value, where)
    if origin is typing.Literal:
        if value in args and any(type(a) is type(value) for a in args):
            return value
        raise ConfigError(f"{where}: unknown value {value!r}{did_you_mean(str(value), map(str, args))}")
    if origin in (tuple, list, Sequence):
        return _convert_list(origin, args, value, where, kind)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise _wrong(kind, value, where)
        return {k: _convert(args[1], v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, dict):
            raise _wrong(kind, value, where)
        return build_options(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _convert_enum(kind, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, str) and value:
        return Path(value)
    if not isinstance(kind, type) or not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(kind, value, where)
    return value


def _convert_union(args: tuple[Any, ...], value: object, where: str) -> Any:
    errors = []
    for kind in args:
        if kind is types.NoneType:
            continue
        try:
            return _convert(kind, value, where)
        except ConfigError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    raise _wrong(typing.Union[args], value, where)  # noqa: UP007  (the members are only known here)


def _convert_list(origin: Any, args: tuple[Any, ...], value: object, where: str, kind: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise _wrong(kind, value, where)
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        if len(value) != len(args):
            raise ConfigError(f"{where}: expected {len(args)} values, found {len(value)}")
        inner = args
    else:
        inner = (args[0],) * len(value)
    made = [_convert(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(inner, value, strict=True))]
    return made if origin is list else tuple(made)


def _convert_enum(kind: type[Enum], value: object, where: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        known = [str(member.value) for member in kind]
        raise ConfigError(f"{where}: unknown value {value!r}{did_you_mean(str(value), known)}") from None


def _wrong(kind: Any, value: object, where: str) -> ConfigError:
    found = "a table" if isinstance(value, dict) else repr(value)
    return ConfigError(f"{where}: expected {type_name(kind)}, found {found}")
