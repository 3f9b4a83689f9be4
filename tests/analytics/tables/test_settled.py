"""Uncertainties that are rounding, and JSON of what is no number."""

import json
from dataclasses import replace

import pytest
from command import joules
from hypothesis import given
from hypothesis import strategies as st
from make_campaign import one_run
from make_run import LineSpec, make_run, training

from powerd_analytics import phase_table, read_run
from powerd_analytics.celltext import encodable, to_json_text
from powerd_analytics.energy.negligible import ROUNDING, known, without_rounding
from powerd_analytics.energy.uncertainty import Estimate
from powerd_analytics.tables.shares import REPEATS, _shares, budget_rows


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    """Phases of equal length at one power, read by a line that states no error."""
    tr = training((64,), 20, watts=(100.0, 100.0, 100.0, 100.0))
    path = tmp_path_factory.mktemp("steady") / "r.h5"
    return make_run(path, [LineSpec("gpu0.a", tr.power())], tr.phases, end_ns=tr.end_ns)


def test_rounding_is_no_uncertainty(steady):
    table = phase_table(read_run(steady))
    for row in table.phases:
        if row.j_per_batch is not None:
            assert (row.u95_j, row.u_statistical_j, row.u_systematic_j) == (0, 0, 0)
    total = table.totals[0]
    assert (total.u95_j, total.u_statistical_j, total.u_systematic_j, table.runs[0].u95_j) == (0, 0, 0, 0)
    rows = budget_rows(read_run(steady))
    assert [row.parts for row in rows] == [()] * len(rows)
    assert {row.words for row in rows if row.u95_j == 0} == {"its lines state no error, and its readings show none"}


def test_a_part_that_is_rounding_is_not_listed():
    shares = _shares(REPEATS, 0.3, {"gain": 0.4, "left over": 4.5e-151, "edges": 0.0}, 0.4, {})
    assert [(s.part, s.u_j) for s in shares] == [("gain", pytest.approx(0.4)), (REPEATS, 0.3)]
    assert sum(s.share for s in shares) == pytest.approx(1)


@given(st.floats(1e-9, 1e9), st.floats(0, 1))
def test_what_is_known_stays_and_rounding_goes(value, share):
    u = value * share
    assert known(u, value) in (u, 0.0)
    assert known(u, value) == (u if u > ROUNDING * value else 0.0)
    assert known(u, -value) == known(u, value)
    estimate = Estimate(value, u, value * 1e-14, value * 1e-14)
    made = without_rounding(estimate)
    assert (made.u_statistical_j, made.u_systematic_j, made.rectangle_j) == (known(u, value), 0.0, 0.0)
    assert replace(made, u_statistical_j=u, u_systematic_j=value * 1e-14, rectangle_j=value * 1e-14) == estimate


def test_json_has_no_nan():
    text = to_json_text({"a": float("nan"), "b": [1.5, (float("inf"), {"c": -float("inf")})], 3: None})
    assert json.loads(text) == {"a": "nan", "b": [1.5, ["inf", {"c": "-inf"}]], "3": None}


@pytest.mark.parametrize("options", [("tables",), ("tables", "--iterations", "9"), ("uncertainty",),
                                     ("tables", "--pivot", "loss::energy_j")])  # fmt: skip
def test_an_attribute_of_the_users_own_may_be_nan_in_json_too(tmp_path, capsys, options):
    path = one_run(tmp_path / "r.h5", iterations=6, loss=float("nan"), best=float("inf"))
    code, out, err = joules(capsys, options[0], path, *options[1:], "--format", "json")
    assert (code, err) == (0, "")

    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    assert "nan" in str(json.loads(out, parse_constant=refuse))


@pytest.mark.parametrize("options", [(), ("--pivot", "own,model:phase:j_per_batch")])
@pytest.mark.parametrize("format", ["csv", "json", "markdown", "latex", "html", "parquet"])
def test_half_a_character_in_a_name_is_escaped_in_every_format(hostile, tmp_path, capsys, format, options):
    out = tmp_path / f"t.{format}"
    code, _, err = joules(capsys, "tables", hostile, "--format", format, *options, "-o", out)
    assert (code, err) == (0, "")
    assert out.stat().st_size > 0
    if format != "parquet":
        assert "\\udcff" in out.read_text("utf-8") or format in ("latex", "html")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return one_run(tmp_path_factory.mktemp("half") / "r.h5", iterations=6, model="caf\udcff", own="\udcfe")


def test_texts_that_can_be_written_stay():
    assert [encodable(v) for v in ("a", "é深\U0001f642", 5, None, "a\udcff")] == [
        "a",
        "é深\U0001f642",
        5,
        None,
        "a\\udcff",
    ]
