"""The page of `joules report` without a browser: the tables' figures, escaped strings, files' names, no request."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_campaign import one_run
from make_run import MS, LineSpec, PhaseSpec, S, make_run, training
from page import report, unpacked

from powerd_analytics import read_run
from powerd_analytics.frame.figure import figure_of
from powerd_analytics.frame.figures import rows_of, run_frame
from powerd_analytics.output.text import figure_and_u95, seconds
from powerd_analytics.report.page import STEPS, Columns, phases_of

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'{{7*7}}\u2028\x1b[2J"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    path = one_run(folder / "run.h5", batches=(64, 128), iterations=10, noise_w=4.0)
    return path, *report([path], folder / "report.html")


def documents(page):
    return json.loads("".join(page.scripts["traces"]))


def columns_back(columns, column):
    return unpacked(columns.texts[column["id"]], column["n"], column["planes"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-(2**45), 2**45), max_size=60), st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=60))
def test_columns_come_back_as_they_were_and_watts_within_half_a_step(values, watts):
    columns, watts = Columns(), np.array(watts)
    assert columns_back(columns, columns.add(np.array(values, np.int64))) == values
    packed = columns.add_values(watts)
    back = packed["low"] + packed["step"] * np.array(columns_back(columns, packed["columns"][0]))
    assert np.abs(back - watts).max() <= packed["step"] / 2 * 1.001
    assert packed["step"] <= max(np.ptp(watts) / STEPS, 1e-300) or np.ptp(watts) == 0
    assert (back.min(), back.max()) == pytest.approx((watts.min(), watts.max()), abs=1e-9)


def test_every_value_of_the_tables_is_in_the_page_exactly(made):
    path, _, page = made
    rows = rows_of(run_frame(path))
    phases = {(r["phase"], str(r["batch_size"])): r["j_per_batch"] for r in rows if r["kind"] == "phase"}
    columns = (page.column("phases", head) for head in ("phase", "batch", "J/batch"))
    shown = {(name[0], batch[0]): joules[1] for name, batch, joules in zip(*columns, strict=True)}
    assert len(shown.keys() & phases.keys()) >= 8
    for key in shown.keys() & phases.keys():
        assert shown[key] == (None if phases[key] is None else repr(phases[key]))
    totals = [r for r in rows if r["kind"] == "total"]  # of unequal work, so that they stand by the sample
    for head, name in (("J/sample", "j_per_sample"), ("s/sample", "s_per_sample"), ("samples/s", "samples_per_s")):
        assert [float(c[1]) for c in page.column("totals", head)] == [r[name] for r in totals]
    u95 = [float(c[1]) for c in page.column("totals", "± U95 J/sample")]
    assert u95 == [figure_of(r, "j_per_sample").u95 for r in totals]


def test_a_recording_has_one_number_in_the_tile_and_in_the_table(made):
    path, _, page = made
    (whole,) = [r for r in rows_of(run_frame(path)) if r["kind"] == "run"]
    figure, reach = figure_and_u95(whole["energy_j"], whole["u95_j"])
    tile = page.texts.index(f"{figure} ")
    assert [text for text in page.texts[tile : tile + 3] if text.strip()] == [f"{figure} ", "J", f"± {reach} J"]
    for head, name in (("J", "energy_j"), ("± U95 J", "u95_j"), ("s", "time_s"), ("rest J", "rest_j")):
        assert [float(c[1]) for c in page.column("recordings", head)] == [whole[name]]


def test_the_page_asks_for_nothing(made):
    _, text, page = made
    assert "http:" not in text
    assert "https:" not in text
    assert not [t for t in page.tags if t[0] in ("link", "iframe", "object", "embed", "img", "base")]
    for tag, a in page.tags:
        assert not {"src", "srcset", "data", "action", "style"} & set(a), tag
        assert not [name for name in a if name.startswith("on")]
        assert a.get("href", "#").startswith("#")
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    style = re.search(r"<style>(.*?)</style>", text, re.S).group(1)
    for kind, code in (("script", "".join(page.scripts[""])), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_it_is_said_in_words_and_with_its_sources(made):
    path, _, page = made
    said = " ".join(page.texts)
    for words in (
        "backward takes most of the joules on gpu0 (simulated) in all 2 configurations",
        "Least energy a sample: AlexNet, batch 128",
        "simulated joules are no measurement",
        hashlib.sha256(path.read_bytes()).hexdigest(),
        "joules info --check run.h5",
    ):
        assert words in said
    assert page.tables["table-budget-0"]["rows"]
    assert page.column("lines", "line")[0][0] == "gpu0.a"
    assert all(t["caption"] for t in page.tables.values())
    drawn = [a for t, a in page.tags if t == "canvas" or (t == "svg" and "role" in a)]
    assert len(drawn) == 2
    assert all(a["role"] == "img" and a["aria-label"] for a in drawn)


def test_names_from_strangers_are_text_and_nothing_else(made, tmp_path):
    tr = training((64,), 4, model=HOSTILE)
    phases = [
        PhaseSpec(HOSTILE if p.name == "forward" else p.name, p.begin_ns, p.end_ns, p.attributes, p.parent)
        for p in tr.phases
    ]
    clean = HOSTILE.replace("/", "")
    line = LineSpec(clean, tr.power(), device=clean, description=HOSTILE)
    hostile = {"environment": json.dumps({"host": HOSTILE, HOSTILE: HOSTILE}), "command": json.dumps([HOSTILE])}
    path = make_run(tmp_path / "r.h5", [line], phases, end_ns=tr.end_ns, **hostile)
    text, page = report([path], tmp_path / "r.html", title=HOSTILE)
    # Whatever the names are, the elements are those of a run with harmless names.
    assert {t for t, _ in page.tags} == {t for t, _ in made[2].tags}
    assert [t for t, a in page.tags if t == "script" and "id" not in a] == ["script"]
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    assert page.scripts[""] == made[2].scripts[""]
    assert "49" not in "".join(page.texts[:3])
    assert "\x1b" not in text
    assert "\u2028" not in text
    assert any("</script>" in name for name in documents(page)[0]["phases"]["names"])


def test_traces_hold_all_readings_or_say_how_they_were_thinned(made, tmp_path):
    run, (spec,) = read_run(made[0]), documents(made[2])
    assert made[2].decoded(spec["traces"][0]["lines"][0]["time"]) == run.lines["gpu0.a"].count
    assert made[2].decoded(spec["phases"]["columns"][0]) == len(run.phases)
    some = phases_of(run, Columns(), most=30)
    assert (some["rows"], some["columns"][0]["n"], some["left_out"]) == (2, 22, len(run.phases) - 22)
    t = np.arange(0, 30 * S, MS // 2, dtype=np.int64)
    power = np.full(len(t), 100.0)
    power[31_234], power[47_111] = 900.0, 1.0
    line = LineSpec("gpu0.a", lambda at: power, t_ns=t)
    many = make_run(tmp_path / "many.h5", [line], [PhaseSpec("x", S, 29 * S)], end_ns=30 * S)
    _, thin = report([many], tmp_path / "many.html", max_points=10_000)
    found = documents(thin)[0]["traces"][0]["lines"][0]
    assert (found["readings"], found["block"]) == (60_000, 12)
    low, high, mean = found["watts"]["columns"]
    assert thin.decoded(low) == thin.decoded(high) == thin.decoded(mean) == 5000
    assert found["watts"]["low"] == pytest.approx(1.0)
    assert found["watts"]["low"] + found["watts"]["step"] * STEPS == pytest.approx(900.0)
    assert "least and greatest of every 12" in " ".join(thin.texts)


def test_missing_readings_and_what_is_not_resolvable_are_said(tmp_path):
    t = np.concatenate([np.arange(0, S, 2 * MS), np.arange(2 * S, 4 * S, 2 * MS)])
    line = LineSpec("gpu0.a", lambda at: np.full(len(at), 50.0), t_ns=t)
    a = {"model": "m", "batch_size": 8}
    phases = [PhaseSpec("a", 500 * MS, 2500 * MS, a), PhaseSpec("b", 3 * S + MS, 3 * S + MS + 1000, a)]
    path = make_run(tmp_path / "r.h5", [line], phases, end_ns=4 * S)
    _, page = report([path], tmp_path / "r.html")
    said = " ".join(page.texts)
    assert "Not resolvable: 1 of 2 kinds of phases (b on gpu0)" in said
    (missing_s,) = [r["missing_s"] for r in rows_of(run_frame(path)) if r["kind"] == "run"]
    assert missing_s == pytest.approx(1.0, abs=0.01)
    assert f"Readings are missing: {seconds(missing_s)} of 4 s, in r on gpu0." in said
    assert "Readings are missing: for how long" in said
    for table in ("recordings", "lines"):
        assert float(page.column(table, "missing s")[0][1]) == pytest.approx(missing_s)
    assert ("–", None) in page.column("phases", "J/batch")
    assert float(page.column("lines", "longest without s")[0][1]) == pytest.approx(1.002)
    assert documents(page)[0]["traces"][0]["gaps"] == [[998_000, 2_000_000]]
