"""SQL over an index: answers that agree with the run files, and nothing else that can be done."""

import csv
import io
import json

import pytest
from command import joules
from make_campaign import one_run

from powerd_analytics.indexes.index import index_records
from powerd_analytics.indexes.indexing import index_runs
from powerd_analytics.indexes.query import query
from powerd_analytics.records.columns import COLUMNS
from powerd_analytics.records.flat import run_records
from powerd_core.errors import AnalysisError


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four runs in a directory whose name means something to SQL, to globs and to Hive."""
    folder = tmp_path_factory.mktemp("it's[1]") / "model=none"
    folder.mkdir()
    for i, (product, scale) in enumerate((("pascal", 1.0), ("pascal", 1.02), ("maxwell", 1.3), ("maxwell", 1.31))):
        one_run(folder / f"{i}.h5", scale, iterations=3, device_name=product, seed=i, optimizer="sgd")
    index_runs(folder, jobs=1)
    return folder


def test_an_answer_agrees_with_the_records(runs):
    sheet = query(
        runs, "select device_name, avg(energy_j) as j, count(*) as n from totals group by all order by device_name"
    )
    assert [(c.name, c.kind) for c in sheet.columns] == [("device_name", "text"), ("j", "number"), ("n", "integer")]
    totals = [r for r in index_records(runs) if r["kind"] == "total"]
    for name, joules_, n in sheet.rows:
        of = [r["energy_j"] for r in totals if r["device_name"] == name]
        assert (joules_, n) == (pytest.approx(sum(of) / len(of)), 2)


def test_the_views_are_the_kinds_of_records_and_the_files(runs):
    records = index_records(runs)
    for view, kind in (("runs", "run"), ("phases", "phase"), ("totals", "total")):
        sheet = query(runs, f"select * from {view} order by path, phase_path")
        assert [c.name for c in sheet.columns] == list(COLUMNS)
        expected = [tuple(r.values()) for r in records if r["kind"] == kind]
        assert sorted(map(repr, sheet.rows)) == sorted(repr(_as_stored(row)) for row in expected)
    (row,) = query(runs, "select count(*), sum(records) from files where error is null").rows
    assert row == (4, len(records))


def _as_stored(row):
    return tuple(
        float(v) if name == "batch_size" and v is not None else v for name, v in zip(COLUMNS, row, strict=True)
    )


def test_a_path_leads_to_the_run_file(runs):
    ((path, energy),) = query(runs, "select path, energy_j from totals order by energy_j desc limit 1").rows
    assert path == str(runs / "3.h5")
    assert energy in [r["energy_j"] for r in run_records(path)]


def test_attributes_of_phases_are_json(runs):
    sheet = query(runs, "select distinct attributes->>'optimizer' as optimizer from totals")
    assert sheet.rows == (("sgd",),)


@pytest.mark.parametrize(
    "sql",
    [
        "", ";", "select 1; select 2", "create table t as select 1", "drop view runs", "insert into runs values (1)",
        "set enable_external_access = true", "copy runs to '{dir}/stolen.csv'", "export database '{dir}/stolen'",
        "attach '{dir}/stolen.db'", "install httpfs", "load httpfs", "select * from read_csv('/etc/passwd')",
        "select * from '{dir}/secret.csv'", "select * from read_text('{dir}/secret.csv')",
        "select * from glob('{dir}/*')", "select * from read_parquet('{dir}/index.parquet')", "call pragma_version()",
        "copy (from runs) to '{index}'", "explain analyze copy (from runs) to '{index}'",
        "copy (pivot phases on phase using count(*)) to '{index}'", "attach '{index}'",
        "with x as (pivot phases on phase using count(*)) insert into t from x",
        "update runs set energy_j = 0", "from secret", "pragma database_list", "vacuum", "detach memory",
    ],
)  # fmt: skip
def test_an_index_is_only_asked(runs, tmp_path, sql):
    secret = tmp_path / "secret.csv"
    secret.write_text("secret\n1\n")
    before = (runs / "index.parquet").read_bytes()
    with pytest.raises(AnalysisError) as refused:
        query(runs, sql.format(dir=tmp_path, index=str(runs / "index.parquet").replace("'", "''")))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(str(runs / "index.parquet"))
    assert [p.name for p in tmp_path.iterdir()] == ["secret.csv"]
    assert (runs / "index.parquet").read_bytes() == before


def test_a_query_may_pivot(runs):
    sql = "pivot phases on phase using count(*) group by device_name order by all"
    for form in (sql, f"with p as ({sql}) from p", f"select * from ({sql})"):
        sheet = query(runs, form)
        assert [c.name for c in sheet.columns][:2] == ["device_name", "backward"]
        assert [row[:2] for row in sheet.rows] == [("maxwell", 2), ("pascal", 2)]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selec 1", 'syntax error at or near "selec"'),
        ("select nope from runs", 'column "nope" not found'),
        ("select * from run", 'Did you mean "runs"'),
        ("select sum(model) from runs", "sum"),
        ("select 'a'::int", "Could not convert"),
        ("select now()", "cast them"),
    ],
)
def test_errors_of_sql_are_one_line_with_status_2(runs, capsys, sql, said):
    code, out, err = joules(capsys, "query", runs, sql)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err


def test_formats(runs, capsys, tmp_path):
    columns = "device_name as x, null as x, 1e400 as inf, [1, 2] as list, 1.5::decimal(4, 2) as d, true as b"
    sql = f"select {columns} from runs limit 1"
    code, out, _ = joules(capsys, "query", runs, sql, "--format", "json")
    assert code == 0
    assert json.loads(out) == [{"x": "pascal", "x_2": None, "inf": None, "list": "[1, 2]", "d": 1.5, "b": True}]
    out = joules(capsys, "query", runs, sql, "--format", "csv")[1]
    assert list(csv.reader(io.StringIO(out))) == [
        ["x", "x_2", "inf", "list", "d", "b"], ["pascal", "", "", "[1, 2]", "1.5", "True"],
    ]  # fmt: skip
    out = joules(capsys, "query", runs, sql, "--format", "markdown")[1]
    assert out.splitlines()[0] == "| x | x_2 | inf | list | d | b |"
    assert out.splitlines()[2].startswith("| pascal | NULL | NULL |")
    out = joules(capsys, "query", runs, sql)[1]
    assert out.splitlines()[0].split() == ["x", "x_2", "inf", "list", "d", "b"]
    file = tmp_path / "answer.csv"
    assert joules(capsys, "query", runs, "from runs", "--format", "csv", "-o", file)[:2] == (0, "")
    assert len(file.read_text().splitlines()) == 5
    code, _, err = joules(capsys, "query", runs, "from runs", "-o", file)
    assert code == 2
    assert "exists" in err


def test_an_index_that_is_none(runs, capsys, tmp_path):
    code, out, err = joules(capsys, "query", tmp_path, "from runs")
    assert (code, out) == (2, "")
    assert err == f"joules: {tmp_path} has no index.parquet: make it with `joules index {tmp_path}`\n"
    assert "is no index" in joules(capsys, "query", runs / "0.h5", "from runs")[2]
