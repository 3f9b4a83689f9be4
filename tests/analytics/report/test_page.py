"""The page of `joules report` without a browser: the tables' figures, escaped strings, files' names, no request."""

import base64
import hashlib
import json
import re
import shlex

import numpy as np
import pytest
from command import joules
from hypothesis import given, settings
from hypothesis import strategies as st
from make_campaign import one_run
from make_run import MS, LineSpec, PhaseSpec, S, make_run, training
from page import report, unpacked

from powerd_analytics import phase_table, read_run
from powerd_analytics.campaign import Length
from powerd_analytics.cli import main
from powerd_analytics.costs import Factors
from powerd_analytics.report.traces import STEPS, Columns, phases_of
from powerd_analytics.table_frames import records as csv_rows

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'{{7*7}}\u2028\x1b[2J"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    path = one_run(folder / "run.h5", batches=(64, 128), iterations=10, noise_w=4.0)
    return path, *report([path], folder / "report.html")


def columns_back(columns, column):
    return unpacked(columns.texts[column["id"]], column["n"], column["planes"])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(-(2**45), 2**45), max_size=60))
def test_columns_come_back_as_they_were(values):
    columns = Columns()
    assert columns_back(columns, columns.add(np.array(values, np.int64))) == values


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_watts_are_rounded_by_half_a_step_and_extremes_not_at_all(values):
    watts = np.array(values)
    columns = Columns()
    packed = columns.add_values(watts)
    back = packed["low"] + packed["step"] * np.array(columns_back(columns, packed["columns"][0]))
    assert np.abs(back - watts).max() <= packed["step"] / 2 * 1.001
    assert packed["step"] <= max(np.ptp(watts) / STEPS, 1e-300) or np.ptp(watts) == 0
    assert back.max() == pytest.approx(watts.max(), abs=1e-9)
    assert back.min() == pytest.approx(watts.min(), abs=1e-9)


def test_every_value_of_the_tables_is_in_the_page_exactly(made):
    path, _, page = made
    rows = csv_rows(phase_table(read_run(path)))
    phases = {(r["phase"], r["batch_size"]): r for r in rows if r["table"] == "phase"}
    names, batches = ([c[0] for c in page.column("energy", head)] for head in ("phase", "batch"))
    exact = dict(zip(zip(names, map(int, batches), strict=True), page.column("energy", "J/batch"), strict=True))
    for key, row in phases.items():
        if key[1] is not None and key in exact:
            assert exact[key][1] == (None if row["j_per_batch"] is None else repr(row["j_per_batch"]))
    assert sum(k in exact for k in phases) >= 8
    totals = [r for r in rows if r["table"] == "total"]
    for head, name in (("J", "energy_j"), ("s", "time_s"), ("EDP (J s)", "edp_js"), ("± U95 J", "u95_j")):
        assert [float(c[1]) for c in page.column("totals", head)] == [r[name] for r in totals]
    whole = [r for r in rows if r["table"] == "run"]
    assert [float(c[1]) for c in page.column("recordings", "J")] == [r["energy_j"] for r in whole]


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
    script = "".join(page.scripts[""])
    wanted = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{wanted}'" in policy
    style = re.search(r"<style>(.*?)</style>", text, re.S).group(1)
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in policy


def test_it_is_said_in_words_and_with_its_sources(made):
    path, _text, page = made
    said = " ".join(page.texts)
    assert "backward takes most of the joules on gpu0 (simulated) in all 2 configurations" in said
    assert "in all of them it differs from the next phase" in said
    assert "Least energy a sample: AlexNet, batch 128" in said
    assert "simulated joules are no measurement" in said
    assert hashlib.sha256(path.read_bytes()).hexdigest() in said
    assert "joules verify run.h5" in said
    assert "joules tables run.h5" in said
    assert page.tables["table-budget-0"]["rows"]
    assert page.tables["table-lines"]["rows"][0][1][0] == "gpu0.a"
    assert all(t["caption"] for t in page.tables.values())
    for name in ("canvas", "svg"):
        assert all(a.get("role") == "img" and a.get("aria-label") for t, a in page.tags if t == name)


def test_names_from_strangers_are_text_and_nothing_else(tmp_path):
    tr = training((64,), 6, model=HOSTILE)
    phases = [
        PhaseSpec(HOSTILE if p.name == "forward" else p.name, p.begin_ns, p.end_ns, p.attributes, p.parent)
        for p in tr.phases
    ]
    clean = HOSTILE.replace("/", "")
    line = LineSpec(clean, tr.power(), device=clean, description=HOSTILE)
    hostile = {"environment": json.dumps({"host": HOSTILE, HOSTILE: HOSTILE}), "command": json.dumps([HOSTILE])}
    path = make_run(tmp_path / "r.h5", [line], phases, end_ns=tr.end_ns, **hostile)
    text, page = report([path], tmp_path / "r.html", title=HOSTILE)
    plain = one_run(tmp_path / "plain.h5", batches=(64,), iterations=6)
    _, other = report([plain], tmp_path / "plain.html")
    # Whatever the names are, the elements are those of a run with harmless names.
    kinds = [{t for t, _ in p.tags} for p in (page, other)]
    assert kinds[0] == kinds[1]
    assert [t for t, a in page.tags if t == "script" and "id" not in a] == ["script"]
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    assert "".join(page.scripts[""]) == "".join(other.scripts[""])
    assert "49" not in "".join(page.texts[:3])
    assert "\x1b" not in text
    assert "\u2028" not in text
    document = json.loads("".join(page.scripts["traces"]))
    assert any("</script>" in name for name in document[0]["phases"]["names"])


def test_traces_hold_all_readings_or_say_how_they_were_thinned(made, tmp_path):
    path, _, page = made
    spec = json.loads("".join(page.scripts["traces"]))[0]
    n = read_run(path).lines["gpu0.a"].count
    assert page.decoded(spec["traces"][0]["lines"][0]["time"]) == n
    assert page.decoded(spec["phases"]["columns"][0]) == len(read_run(path).phases)
    t = np.arange(0, 30 * S, MS // 2, dtype=np.int64)
    power = np.full(len(t), 100.0)
    power[31_234], power[47_111] = 900.0, 1.0
    line = LineSpec("gpu0.a", lambda at: power, t_ns=t)
    many = make_run(tmp_path / "many.h5", [line], [PhaseSpec("x", S, 29 * S)], end_ns=30 * S)
    _, thin = report([many], tmp_path / "many.html", max_points=10_000)
    found = json.loads("".join(thin.scripts["traces"]))[0]["traces"][0]["lines"][0]
    assert (found["readings"], found["block"]) == (60_000, 12)
    low, high = found["watts"]["columns"]
    assert thin.decoded(low) == thin.decoded(high) == 5000
    assert found["watts"]["low"] == pytest.approx(1.0)
    assert found["watts"]["low"] + found["watts"]["step"] * STEPS == pytest.approx(900.0)
    assert "thinned: least and greatest of every 12" in " ".join(thin.texts)


def test_of_too_many_phases_the_innermost_are_left_out(made):
    run = read_run(made[0])
    some = phases_of(run, Columns(), most=30)
    assert (some["rows"], some["columns"][0]["n"]) == (2, 22)
    assert some["left_out"] == len(run.phases) - 22


def test_missing_readings_and_what_is_not_resolvable_are_said(tmp_path):
    t = np.concatenate([np.arange(0, S, 2 * MS), np.arange(2 * S, 4 * S, 2 * MS)])
    line = LineSpec("gpu0.a", lambda at: np.full(len(at), 50.0), t_ns=t)
    a = {"model": "m", "batch_size": 8}
    phases = [PhaseSpec("a", 500 * MS, 2500 * MS, a), PhaseSpec("b", 3 * S, 3 * S + 1000, a)]
    path = make_run(tmp_path / "r.h5", [line], phases, end_ns=4 * S)
    _, page = report([path], tmp_path / "r.html")
    said = " ".join(page.texts)
    assert "Not resolvable: 1 of 2 kinds of phases (b on gpu0)" in said
    assert [c[0] for c in page.column("energy", "J/batch")].count("–") >= 1
    assert float(page.column("lines", "longest gap s")[0][1]) == pytest.approx(1.002)
    assert json.loads("".join(page.scripts["traces"]))[0]["traces"][0]["gaps"] == [[998_000, 2_000_000]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no run"),
        (["run.h5"], "no file to write to"),
        (["run.h5", "-o", "x.pdf"], "a report is written as .html"),
        (["run.h5", "-o", "x.html", "--max-points", "5"], "--max-points 5"),
        (["run.h5", "-o", "x.html", "--device", "gpu7"], "gpu7"),
        (["none.h5", "-o", "x.html"], "phases"),
        (["text.h5", "-o", "x.html"], "is no run file"),
    ],
)
def test_bad_input_is_one_line_and_no_file(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    one_run(tmp_path / "run.h5", iterations=2)
    make_run(tmp_path / "none.h5", [LineSpec("a", lambda t: 0.0 * t + 5)])
    (tmp_path / "text.h5").write_text("no")
    with pytest.raises(SystemExit) as end:
        main(["report", *arguments])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("*.html"))
    assert not list(tmp_path.glob(".x*"))


FACTORS = Factors(380.0, 20.0, 0.3, None, "eur")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A run in each of two directories, under one name."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, product in enumerate(("old", "new")):
        (folder / product).mkdir()
        one_run(folder / product / "0.h5", 1.0 - 0.2 * seed, iterations=8, seed=seed, device_name=product,
                accuracy={"u_gain": 0.005})  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def costed(pair):
    return report([pair], pair / "page.html", length=Length(None, 90.0, 1281167.0), factors=FACTORS)


def test_the_sentence_on_cost_has_the_figures_of_the_totals(costed):
    _, page = costed
    columns = [page.column("totals", head) for head in ("g CO2e", "± U95 g CO2e", "EUR", "± U95 EUR", "product")]
    said = next(t for t in page.texts if t.startswith("The whole training: "))
    found = re.findall(r"([\d.]+) ± ([\d.]+) g CO2e and ([\d.]+) ± ([\d.]+) EUR \(.*?(old|new)\)", said)
    shown = sorted(tuple(c[0] for c in row) for row in zip(*columns, strict=True))
    assert sorted(found) == shown
    assert [row[4] for row in found] == ["new", "old"]
    assert said.endswith("of simulated joules; CO2 equivalents at 380 (u = 20) g/kWh, cost at 0.3 EUR/kWh, as stated.")


def test_files_of_one_name_are_told_apart_everywhere(costed):
    _, page = costed
    assert sorted(c[0] for c in page.column("recordings", "run")) == ["new/0", "old/0"]
    for table, head in (("lines", "run"), ("clocks", "run"), ("files", "file")):
        assert sorted(c[0] for c in page.column(table, head)) == ["new/0.h5", "old/0.h5"]
    texts = " ".join(page.texts)
    assert {f"Uncertainty budget of {n}/0.h5" for n in ("old", "new")} <= {t["caption"] for t in page.tables.values()}
    assert "old/0: gpu0 took" in texts
    assert "new/0.h5: gpu0" in texts


def test_the_commands_of_the_page_make_its_figures_again(costed, pair, capsys, monkeypatch):
    _, page = costed
    monkeypatch.chdir(pair)
    commands = [line for t in page.texts for line in t.splitlines() if line.startswith("joules ")]
    again = shlex.split(next(c for c in commands if c.startswith("joules report")))
    assert again[-2:] == ["-o", "report.html"]
    code, _, err = joules(capsys, *again[1:])
    assert (code, err) == (0, "")
    assert (pair / "report.html").read_text().count("1281167") == costed[0].count("1281167") > 0
    tables = shlex.split(next(c for c in commands if c.startswith("joules tables")))
    code, out, _ = joules(capsys, *tables[1:-2])
    assert code == 0
    assert "co2_g" in out.splitlines()[0]


def test_of_many_runs_the_environment_is_a_row_each_value(tmp_path):
    for i in range(5):
        one_run(tmp_path / f"{i}.h5", iterations=3, seed=i)
    _, page = report([tmp_path], tmp_path / "page.html")
    table = page.tables["table-environment"]
    assert table["heads"] == ["what", "value", "runs"]
    assert ["host", "box", "all"] in [[c[0] for c in row] for row in table["rows"]]
