"""Descriptions as JSON and back, and what is refused."""

import copy
import json

import pytest

from powerd_core.document import from_document, read_description, to_document
from powerd_core.errors import WireError
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

LINES = (
    Line("gpu0.a", "gpu0", ShuntConversion(0.05, 1e-5, 4e-3, 3), Provenance.MEASURED, Accuracy(0.01, origin="sheet")),
    Line("gpu0.b", "gpu0", ScaledConversion("mw", 1e-3), Provenance.SIMULATED),
    Line("gpu0.c", "gpu0", CounterConversion("mj", 1e-3, 2.5, 32), Provenance.MODELLED),
    Line("gpu0.t", "gpu0", QuantityConversion("deg", "temperature_c", 0.5), Provenance.MEASURED),
)
DESCRIPTION = Description(
    "board", "0.1", 2**62, "CLOCK_MONOTONIC_RAW", "tcp://*:7361",
    (Stream(0, "rails", (Column("shunt", "h"), Column("bus", "H")), LINES, 2_000_000, {"seed": 1}),),
    (Device("gpu0", ("gpu0.a", "gpu0.b")),),
)  # fmt: skip


def document() -> dict:
    return json.loads(json.dumps(to_document(DESCRIPTION)))


def test_a_description_survives_json():
    assert read_description(document()) == DESCRIPTION


def test_a_whole_number_serves_where_a_float_is_meant():
    made = document()
    made["streams"][0]["lines"][0]["conversion"]["shunt_ohm"] = 1
    conversion = read_description(made).streams[0].lines[0].conversion
    assert isinstance(conversion, ShuntConversion)
    assert isinstance(conversion.shunt_ohm, float)


def change(path: list, value: object):
    def apply(made):
        for key in path[:-1]:
            made = made[key]
        if value is None:
            del made[path[-1]]
        else:
            made[path[-1]] = value

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change(["epoch"], "x"), "Description.epoch: expected int"),
        (change(["epoch"], True), "Description.epoch: expected int"),
        (change(["board"], None), "missing key 'board'"),
        (change(["colour"], "red"), "unknown key 'colour'"),
        (change(["streams"], {}), "expected a list"),
        (change(["streams", 0, "columns", 0, "typecode"], "z"), "unknown type 'z'"),
        (change(["streams", 0, "detail"], []), "expected an object"),
        (change(["streams", 0, "lines", 1, "name"], "gpu0.a"), "two lines share a name"),
        (change(["streams", 0, "lines", 0, "provenance"], "guessed"), "provenance: 'guessed'"),
        (change(["streams", 0, "lines", 0, "conversion"], {"kind": "magic"}), "unknown conversion 'magic'"),
        (change(["streams", 0, "lines", 0], "x"), r"streams\[0\].lines\[0\]: expected an object"),
        (change(["devices", 0, "feeds"], ["gpu9"]), "unknown line 'gpu9'"),
        (change(["devices", 0, "feeds"], ["gpu0.a", "gpu0.t"]), "'gpu0.t', which is no power"),
    ],
)
def test_a_damaged_description_is_named(damage, message):
    made = copy.deepcopy(document())
    damage(made)
    with pytest.raises(WireError, match=message):
        read_description(made)


def test_two_streams_of_one_number_are_refused():
    made = document()
    made["streams"].append({**made["streams"][0], "lines": []})
    with pytest.raises(WireError, match="share a number"):
        read_description(made)


def test_the_layout_tells_streams_apart():
    stream = DESCRIPTION.streams[0]
    other = from_document(Stream, {**to_document(stream), "columns": to_document(stream.columns)[:1]})
    assert stream.layout != other.layout
    assert stream.scan_bytes == 8 + 4 * (6 + 4)


@pytest.mark.parametrize(
    ("line", "quantity"), list(zip(LINES, ("power_w", "power_w", "energy_j", "temperature_c"), strict=True))
)
def test_a_line_says_what_it_measures(line, quantity):
    assert line.quantity == quantity
