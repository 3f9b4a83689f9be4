import csv
import io
import json
import re

import pytest
from command import joules
from make_run import LineSpec, make_run, training

from powerd_analytics.cli.app import modern
from powerd_analytics.table import CSV_COLUMNS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    tr = training((64, 128), 4)
    lines = [
        LineSpec("gpu0.a", tr.power()),
        LineSpec("cpu0.m", tr.power(0.3), "cpu0", "modelled", period_ns=20_000_000),
    ]
    return make_run(tmp_path_factory.mktemp("cli") / "run.h5", lines, tr.phases, end_ns=tr.end_ns)


def test_the_columns_are_these_and_stay(run, capsys):
    code, out, _ = joules(capsys, "tables", run, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert tuple(rows[0]) == CSV_COLUMNS
    assert CSV_COLUMNS == (
        "table", "model", "batch_size", "phase", "path", "device", "provenance", "timing", "iterations",
        "s_per_batch", "j_per_batch", "u95_j", "u_statistical_j", "u_systematic_j", "power_w", "samples_per_s",
        "time_s", "energy_j", "edp_js", "gflops_per_w_paper", "gflops_basis", "phases_j", "rest_j", "residual_j",
        "missing_s", "off_by_j", "is_lower_bound", "method", "note", "sd_s", "sd_j", "j_per_sample", "samples_per_j",
        "ed2p_js2", "eds", "gflops_per_w_executed",
    )  # fmt: skip
    assert {r["table"] for r in rows} == {"phase", "total", "run"}
    unresolved = next(r for r in rows if r["phase"] == "update")
    assert unresolved["j_per_batch"] == ""
    assert unresolved["note"].startswith("not resolvable")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("tables", "absent.h5"), "no run file"),
        (("tables", "{run}", "--device", "gpu1"), "did you mean 'gpu0'"),
        (("info", "{run}", "--device", "quite-another"), "this run has 'cpu0', 'gpu0'"),
        (("tables", "{run}", "--frmat", "csv"), "--format"),
        (("tables", "{run}", "--format", "xls"), "xls"),
        (("tabels", "{run}"), "tables"),
        (("tables",), "run"),
        (("record",), "nothing to record"),
        (("tables", "{run}", "-o", "no/such/dir/t.csv"), "no directory"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, capsys, arguments, text):
    code, out, err = joules(capsys, *(a.format(run=run) for a in arguments))
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert text.lower() in err.lower()


def test_options_of_earlier_releases_still_work(run, capsys):
    assert joules(capsys, "verify", run, "--json") == joules(capsys, "verify", run, "--format", "json")
    assert modern(["tables", "run.h5", "--format", "table"]) == ["tables", "run.h5", "--format", "text"]
    assert modern(["clock", "run.h5", "--out=clock.png"]) == ["clock", "run.h5", "--plot=clock.png"]
    own = ["record", "--out", "r.h5", "--", "python", "--out", "x", "--json", "--format", "table"]
    assert modern(own) == ["record", "--output", *own[2:]]


def test_a_counter_among_the_attributes_of_phases_is_told_by_name(run, capsys, monkeypatch):
    monkeypatch.setattr("powerd_client.marks.MANY_KINDS", 2)
    code, out, err = joules(capsys, "tables", run, "--format", "json")
    assert code == 0
    assert json.loads(out)
    assert re.search(r"joules: .*run.h5: phase '\w+' has 2 values of its attribute 'batch_size': ", err)
    assert err.count("values of its attribute") == 1
