"""A configuration file of any contents: a configuration, or one line that says what is wrong."""

from __future__ import annotations

import json
from dataclasses import fields

from fuzzing.picker import Picker, expect
from powerd_core.errors import ConfigError
from powerd_daemon.config import parse_config
from powerd_daemon.sources.base import find_source, kinds

_VALUES = ("inf", "-inf", "nan", "0", "-1", "1e308", "9" * 400, "true", '""', '"x"', "[]", "{}", "1979-05-27",
           "07:32:00", "[[1]]", '"\\u001b[2J"', '"\\u0000"', '"tcp://*:*"', '"ipc:///x"', "1e-320",
           "0x7fffffffffffffffffff", "[" * 600, '[{name="a", address=64}]', '"/dev/ttyX"', "1000", "0.5")  # fmt: skip
_KINDS = kinds()
_OPTIONS = {kind: sorted(f.name for f in fields(find_source(kind).Options)) for kind in _KINDS}
_SERVER = ("listen", "data", "clock", "board", "ring_mib", "block_ms", "spool", "keys", "insecure")


def one(data: bytes) -> None:
    picker = Picker(data)
    text = _file(picker) if picker.flip() else picker.rest().decode("utf-8", "replace")
    if ":" in text.partition("kind")[2].partition("\n")[0]:
        return  # a kind "module:Class" is imported: what that does is its own affair
    try:
        parse_config(text, "f.toml")
    except ConfigError as error:
        expect(str(error).startswith("f.toml: "), error)


def _file(picker: Picker) -> str:
    said = []
    if picker.flip():
        said.append("[server]")
        said += [f"{picker.one_of(_SERVER)} = {_value(picker)}" for _ in range(picker.below(3))]
    for _ in range(picker.below(3)):
        kind = picker.one_of(_KINDS)
        said += ["[[source]]", f"kind = {json.dumps(kind)}"]
        said += [
            f"{picker.one_of((*_OPTIONS[kind], 'name', 'priority'))} = {_value(picker)}" for _ in range(picker.below(5))
        ]
    if picker.rarely():
        said += ["[[device]]", f"{picker.one_of(('name', 'feeds'))} = {_value(picker)}"]
    return "\n".join(said)


def _value(picker: Picker) -> str:
    return picker.one_of(_VALUES) if picker.flip() else json.dumps(picker.value(), ensure_ascii=True)
