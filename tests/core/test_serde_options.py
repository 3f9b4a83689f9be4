"""Options of sources as dataclasses: conversion, refusal, description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from powerd_core import ConfigError
from powerd_core.serde import OptionInfo, build_options, describe_options, type_name


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
    rate_hz: float = 500.0
    """Scans
    per second."""
    bits: int = 12
    on: bool = False
    chips: tuple[Chip, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    mode: Literal["fast", "slow"] = "fast"
    colour: Colour = Colour.RED
    limit: float | None = None
    either: int | str = 0
    gains: Mapping[str, float] = field(default_factory=dict, metadata={"help": "by line"})
    extra: Any = None

    def __post_init__(self) -> None:
        if self.bits > 16:
            raise ValueError("bits: at most 16")


def build(**given: object) -> Options:
    return build_options(Options, {"path": "p", **given}, "here")


def test_conversions() -> None:
    made = build(
        rate_hz=5,
        chips=[{"address": 64}, {"address": 65, "name": "u2"}],
        pair=[3, 4],
        mode="slow",
        colour="blue",
        limit=3,
        either="x",
        gains={"a": 1},
        extra=[1],
    )
    assert made.path == Path("p")
    assert (made.rate_hz, type(made.rate_hz)) == (5.0, float)
    assert made.chips == (Chip(64), Chip(65, "u2"))
    assert made.pair == (3, 4.0)
    assert (made.mode, made.colour, made.limit, made.either) == ("slow", Colour.BLUE, 3.0, "x")
    assert made.gains == {"a": 1.0}
    assert build(either=5).either == 5


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
        ({"limit": "x"}, "here: option 'limit': expected a number, found 'x'"),
        ({"either": 1.5}, "here: option 'either': expected an integer or a string, found 1.5"),
        ({"gains": {"a": "b"}}, "here: option 'gains'.a: expected a number, found 'b'"),
        ({"gains": 5}, "here: option 'gains': expected a table, found 5"),
        ({"bits": 17}, "here: bits: at most 16"),
    ],
)
def test_refusals(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(**given)
    assert str(caught.value) == message


def test_a_required_option() -> None:
    with pytest.raises(ConfigError, match=r"here: missing option 'path' \(a path\)"):
        build_options(Options, {}, "here")


def test_description() -> None:
    found = {info.name: info for info in describe_options(Options)}
    assert list(found)[:2] == ["path", "rate_hz"]
    assert found["path"] == OptionInfo("path", "a path", "", "")
    assert found["rate_hz"] == OptionInfo("rate_hz", "a number", "500.0", "Scans per second.")
    assert found["on"].default == "false"
    assert found["colour"] == OptionInfo("colour", "'red' or 'blue'", "'red'", "")
    assert found["limit"] == OptionInfo("limit", "a number", "none", "")
    assert found["gains"] == OptionInfo("gains", "a table", "{}", "by line")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (tuple[str, ...], "a list of strings"),
        (tuple[int, int], "a list of 2 values"),
        (int | None, "an integer"),
        (Literal[1, 2], "1 or 2"),
        (dict[str, int], "a table"),
    ],
)
def test_type_names(kind: Any, name: str) -> None:
    assert type_name(kind) == name
