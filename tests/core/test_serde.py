"""Dataclasses as JSON and TOML: what comes back, what is refused, and how options are described."""

import copy
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from powerd_core.errors import ConfigError, WireError
from powerd_core.model import (
    Accuracy,
    Column,
    CounterConversion,
    Description,
    Device,
    Line,
    Provenance,
    QuantityConversion,
    ScaledConversion,
    ShuntConversion,
    Stream,
)
from powerd_core.serde import (
    MAX_BOARD_LINES,
    MAX_STREAMS,
    OptionInfo,
    build_options,
    check_description,
    describe_options,
    from_document,
    parse_toml,
    read_description,
    to_document,
)

LINES = (
    Line("gpu0.a", "gpu0", ShuntConversion(0.05, 1e-5, 4e-3, 3), Provenance.MEASURED, Accuracy(0.01, origin="sheet")),
    Line("gpu0.b", "gpu0", ScaledConversion("mw", 1e-3), Provenance.SIMULATED),
    Line("gpu0.c", "gpu0", CounterConversion("mj", 1e-3, 2.5, 32), Provenance.MODELLED),
    Line("gpu0.t", "gpu0", QuantityConversion("deg", "temperature_c", 0.5), Provenance.MEASURED),
)
COLUMNS = (Column("shunt", "h"), Column("bus", "H"), Column("mw", "I"), Column("mj", "Q"), Column("deg", "h"))
DESCRIPTION = Description(
    "board", "0.1", 2**62, "CLOCK_MONOTONIC_RAW", "tcp://*:7361",
    (Stream(0, "rails", COLUMNS, LINES, 2_000_000, {"seed": 1}),),
    (Device("gpu0", ("gpu0.a", "gpu0.b")),),
)  # fmt: skip
DOCUMENT = json.loads(json.dumps(to_document(DESCRIPTION)))
LINE = ["streams", 0, "lines", 0]


def changed(path: list, value: object) -> dict:
    document = copy.deepcopy(DOCUMENT)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


def test_a_description_survives_json():
    assert read_description(DOCUMENT) == DESCRIPTION
    assert [line.quantity for line in LINES] == ["power_w", "power_w", "energy_j", "temperature_c"]
    stream = DESCRIPTION.streams[0]
    assert stream.scan_bytes == 8 + 4 * (6 + 2 + 2 + 4 + 8 + 2)
    assert stream.layout != from_document(Stream, {**to_document(stream), "columns": []}).layout
    conversion = read_description(changed([*LINE, "conversion", "shunt_ohm"], 1)).streams[0].lines[0].conversion
    assert isinstance(conversion.shunt_ohm, float), "a whole number serves where a float is meant"


def test_what_was_added_later_is_written_only_where_it_says_something():
    # Who does not know a low-pass reads every other line, and refuses the one he would get wrong.
    assert "filter_ns" not in to_document(Accuracy(window_ns=5))
    smoothed = Accuracy(window_ns=5, filter_ns=13_000_000)
    assert from_document(Accuracy, to_document(smoothed)) == smoothed


@pytest.mark.parametrize("path", [[], ["streams", 0], LINE, ["devices", 0]])
def test_what_a_newer_powerd_says_besides_is_left_out(path):
    assert read_description(changed([*path, "colour"], {"red": 1})) == DESCRIPTION


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        (["epoch"], "x", "epoch"),
        (["epoch"], True, "epoch"),
        (["epoch"], 1 << 70, "epoch"),
        (["epoch"], -1, "epoch"),
        (["board"], "x\x1b[2J", r"x\\x1b\[2J"),
        (["board"], "x" * 20_000, "too long"),
        ([*LINE, "accuracy", "u_more"], 0.1, "u_more"),
        ([*LINE, "accuracy", "u_gain"], -0.1, "gpu0.a"),
        ([*LINE, "conversion", "more"], 2.0, "more"),
        ([*LINE, "conversion", "shunt_ohm"], 0, "gpu0.a"),
        ([*LINE, "conversion", "shunt_ohm"], 10**400, "shunt_ohm"),
        ([*LINE, "conversion", "kind"], ["shunt"], "shunt"),
        ([*LINE, "conversion"], {"kind": "magic"}, "magic"),
        ([*LINE, "provenance"], "guessed", "guessed"),
        ([*LINE, "name"], "gpu0.b", "share a name"),
        ([*LINE, "name"], "../x", "../x"),
        (LINE, "x", r"streams\[0\].lines\[0\]"),
        (["streams", 0, "lines", 2, "conversion", "bits"], 65, "gpu0.c"),
        (["streams"], {}, "streams"),
        (["streams"], DOCUMENT["streams"] * 2, "share a number"),
        (["streams", 0, "number"], 1 << 16, "16 bits"),
        (["streams", 0, "period_ns"], 0, "period"),
        (["streams", 0, "lines"], [], "no lines"),
        (["streams", 0, "detail"], [], "detail"),
        (["streams", 0, "columns", 0, "more"], 1, "more"),
        (["streams", 0, "columns", 0, "name"], "t_ns", "columns"),
        (["streams", 0, "columns", 2, "name"], "kw", "'mw'"),
        (["streams", 0, "columns", 0, "typecode"], "z", "'z'"),
        (["devices", 0, "name"], ".", "'.'"),
        (["devices"], DOCUMENT["devices"] * 2, "devices"),
        (["devices", 0, "feeds"], ["gpu0.a", "gpu0.a"], "twice"),
        (["devices", 0, "feeds"], ["gpu9"], "gpu9"),
        (["devices", 0, "feeds"], ["gpu0.a", "gpu0.t"], "gpu0.t"),
    ],
)
def test_a_damaged_description_is_named(path, value, name):
    with pytest.raises(WireError, match=name):
        read_description(changed(path, value))


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Chip:
    address: int
    name: str = "u1"


@dataclass(frozen=True)
class Options:
    path: Path
    rate_hz: float = field(default=500.0, metadata={"help": "Scans per second."})
    bits: int = 12
    on: bool = False
    chips: tuple[Chip, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    names: tuple[str, ...] = ()
    mode: Literal["fast", "slow"] = "fast"
    colour: Colour = Colour.RED
    limit: float | None = None
    either: int | str = 0
    gains: Mapping[str, float] = field(default_factory=dict)
    extra: Any = None

    def __post_init__(self) -> None:
        if self.bits > 16:
            raise ValueError("bits: at most 16")


def test_options_are_converted():
    given = {
        "path": "p", "rate_hz": 5, "chips": [{"address": 64}, {"address": 65, "name": "u2"}], "pair": [3, 4],
        "mode": "slow", "colour": "blue", "limit": 3, "either": "x", "gains": {"a": 1}, "extra": [1],
    }  # fmt: skip
    assert build_options(Options, given, "here") == Options(
        Path("p"), 5.0, chips=(Chip(64), Chip(65, "u2")), pair=(3, 4.0), mode="slow", colour=Colour.BLUE, limit=3.0,
        either="x", gains={"a": 1.0}, extra=[1],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": 1}, "here: unknown option 'rate': did you mean 'rate_hz'?"),
        ({"rate_hz": "1"}, "here: option 'rate_hz': expected a number, found '1'"),
        ({"bits": 1.5}, "here: option 'bits': expected an integer, found 1.5"),
        ({"bits": True}, "here: option 'bits': expected an integer, found True"),
        ({"on": 1}, "here: option 'on': expected true or false, found 1"),
        ({"chips": {}}, "here: option 'chips': expected a list of tables, found a table"),
        ({"chips": [{"adress": 1}]}, "here: option 'chips'[0]: unknown option 'adress': did you mean 'address'?"),
        ({"chips": [{}]}, "here: option 'chips'[0]: missing option 'address' (an integer)"),
        ({"pair": [1]}, "here: option 'pair': expected 2 values, found 1"),
        ({"mode": "fats"}, "here: option 'mode': unknown value 'fats': did you mean 'fast'?"),
        ({"colour": "green"}, "here: option 'colour': unknown value 'green' (there are: blue, red)"),
        ({"either": 1.5}, "here: option 'either': expected an integer or a string, found 1.5"),
        ({"gains": {"a": "b"}}, "here: option 'gains.a': expected a number, found 'b'"),
        ({"bits": 17}, "here: bits: at most 16"),
        ({"path": ""}, "here: option 'path': expected a path, found ''"),
    ],
)
def test_options_are_refused_where_they_stand(given, message):
    with pytest.raises(ConfigError) as caught:
        build_options(Options, {"path": "p", **given}, "here")
    assert str(caught.value) == message


def test_options_are_described():
    known = {info.name: info for info in describe_options(Options)}
    assert known["path"] == OptionInfo("path", "a path", "", "")
    assert known["rate_hz"] == OptionInfo("rate_hz", "a number", "500.0", "Scans per second.")
    assert known["colour"] == OptionInfo("colour", "'red' or 'blue'", "'red'", "")
    assert {n: i.type for n, i in known.items() if n in ("pair", "names", "gains", "limit")} == {
        "pair": "a list of 2 values", "names": "a list of strings", "gains": "a table", "limit": "a number",
    }  # fmt: skip
    assert [known[n].default for n in ("on", "limit", "pair", "gains")] == ["false", "none", "[1, 2.0]", "{}"]


@pytest.mark.parametrize("text", ["a = nan", "a = [inf]", f"a = {2**63}", 'a.b = "\\u0000"', "a = " + "[" * 5000, "="])
def test_toml_that_cannot_be_used(text):
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_toml(text)


def test_a_board_has_so_many_lines_and_streams():
    """Refused at once: twenty thousand lines kept a recorder busy for minutes."""
    stream = DESCRIPTION.streams[0]
    line = stream.lines[0]
    many = [replace(line, name=f"gpu0.l{i}") for i in range(MAX_BOARD_LINES + 1)]
    with pytest.raises(WireError, match=f"{MAX_BOARD_LINES + 1} lines, of {MAX_BOARD_LINES} at most"):
        check_description(replace(DESCRIPTION, streams=(replace(stream, lines=tuple(many)),), devices=()))
    streams = [replace(stream, number=i, lines=(many[i],)) for i in range(MAX_STREAMS + 1)]
    with pytest.raises(WireError, match=f"{MAX_STREAMS + 1} streams"):
        check_description(replace(DESCRIPTION, streams=tuple(streams), devices=()))
