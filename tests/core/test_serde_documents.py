"""Descriptions as JSON and back, and what is refused."""

import copy
import json

import pytest

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
from powerd_core.serde import from_document, read_description, to_document

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


def document() -> dict:
    return json.loads(json.dumps(to_document(DESCRIPTION)))


def test_a_description_survives_json():
    assert read_description(document()) == DESCRIPTION


def test_what_was_added_later_is_written_only_where_it_says_something():
    # Who does not know a low-pass reads every other line, and refuses the one he would get wrong.
    assert "filter_ns" not in to_document(Accuracy(window_ns=5))
    smoothed = Accuracy(window_ns=5, filter_ns=13_000_000)
    assert to_document(smoothed)["filter_ns"] == 13_000_000
    assert from_document(Accuracy, to_document(smoothed)) == smoothed
    assert from_document(Accuracy, to_document(Accuracy())).filter_ns == 0


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
        (change(["epoch"], "x"), "Description.epoch: expected an integer"),
        (change(["epoch"], True), "Description.epoch: expected an integer"),
        (change(["board"], None), "missing key 'board'"),
        (change(["streams", 0, "lines", 0, "accuracy", "u_more"], 0.1), "accuracy: unknown key 'u_more'"),
        (change(["streams", 0, "lines", 0, "conversion", "more"], 2.0), "conversion: unknown key 'more'"),
        (change(["streams", 0, "columns", 0, "more"], 1), "unknown key 'more'"),
        (change(["epoch"], 1 << 70), "Description.epoch: a number of more than 64 bits"),
        (change(["epoch"], -1), "-1 is no epoch"),
        (change(["board"], "x\x1b[2J"), r"control characters: x\\x1b\[2J"),
        (change(["board"], "x" * 20_000), "too long"),
        (change(["streams", 0, "number"], 1 << 16), "more than 16 bits"),
        (change(["streams", 0, "period_ns"], 0), "period of 0 ns"),
        (change(["streams", 0, "lines"], []), "has no lines"),
        (change(["streams", 0, "columns", 0, "name"], "t_ns"), "columns share a name"),
        (change(["streams", 0, "columns", 2, "name"], "kw"), "a column 'mw' that is not there"),
        (change(["streams", 0, "lines", 1, "name"], "../x"), "'../x' is no name"),
        (change(["devices", 0, "name"], "."), "'.' is no name"),
        (change(["streams", 0, "lines", 0, "conversion", "shunt_ohm"], 0), "cannot be"),
        (change(["streams", 0, "lines", 0, "conversion", "shunt_ohm"], 10**400), "more than 64 bits"),
        (change(["streams", 0, "lines", 0, "conversion", "kind"], ["shunt"]), r"unknown conversion \['shunt'\]"),
        (change(["streams", 0, "lines", 2, "conversion", "bits"], 65), "cannot be"),
        (change(["streams", 0, "lines", 0, "accuracy", "u_gain"], -0.1), "cannot be"),
        (change(["streams"], {}), "expected a list"),
        (change(["streams", 0, "columns", 0, "typecode"], "z"), "unknown type 'z'"),
        (change(["streams", 0, "detail"], []), "expected a table"),
        (change(["streams", 0, "lines", 1, "name"], "gpu0.a"), "two lines share a name"),
        (change(["streams", 0, "lines", 0, "provenance"], "guessed"), "provenance: unknown value 'guessed'"),
        (change(["streams", 0, "lines", 0, "conversion"], {"kind": "magic"}), "unknown conversion 'magic'"),
        (change(["streams", 0, "lines", 0], "x"), r"streams\[0\].lines\[0\]: expected a table"),
        (change(["devices", 0, "feeds"], ["gpu0.a", "gpu0.a"]), "fed by a line twice"),
        (change(["devices", 0, "feeds"], ["gpu9"]), "unknown line 'gpu9'"),
        (change(["devices", 0, "feeds"], ["gpu0.a", "gpu0.t"]), "'gpu0.t', which is no power"),
    ],
)
def test_a_damaged_description_is_named(damage, message):
    made = copy.deepcopy(document())
    damage(made)
    with pytest.raises(WireError, match=message):
        read_description(made)


@pytest.mark.parametrize(
    "path", [["colour"], ["streams", 0, "colour"], ["streams", 0, "lines", 0, "colour"], ["devices", 0, "colour"]]
)
def test_what_a_newer_powerd_says_besides_is_left_out(path):
    made = copy.deepcopy(document())
    change(path, {"red": 1})(made)
    assert read_description(made) == DESCRIPTION


def test_two_streams_of_one_number_are_refused():
    made = document()
    made["streams"].append({**made["streams"][0], "lines": []})
    with pytest.raises(WireError, match="share a number"):
        read_description(made)


def test_two_devices_of_one_name_are_refused():
    made = document()
    made["devices"].append(made["devices"][0])
    with pytest.raises(WireError, match="two devices share a name"):
        read_description(made)


def test_the_layout_tells_streams_apart():
    stream = DESCRIPTION.streams[0]
    other = from_document(Stream, {**to_document(stream), "columns": to_document(stream.columns)[:1]})
    assert stream.layout != other.layout
    assert stream.scan_bytes == 8 + 4 * (6 + 2 + 2 + 4 + 8 + 2)


@pytest.mark.parametrize(
    ("line", "quantity"), list(zip(LINES, ("power_w", "power_w", "energy_j", "temperature_c"), strict=True))
)
def test_a_line_says_what_it_measures(line, quantity):
    assert line.quantity == quantity
