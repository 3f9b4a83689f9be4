"""`joules jobs`: sums of many nodes by DuckDB, against sums made by hand."""

import csv
import errno
import io
import json
import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from command import joules
from make_run import LineSpec, make_run, training

from support.accounted import DAY, job_row, write_node

pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two nodes and three days: a job on both nodes, one that is idle, a processor's share, and nobody."""
    folder = tmp_path_factory.mktemp("nodes")
    both = [job_row(1, energy_j=1000.0), job_row(1, device="gpu1", energy_j=500.0), job_row(None, energy_j=50.0)]
    write_node(folder / "n1", "n1", both)
    second = [
        job_row(1, energy_j=2000.0),
        job_row(2, "bob", "p8", energy_j=300.0, day=DAY + 1, idle_s=30.0, idle_j=40.0),
        job_row(2, "bob", "p8", "cpu0", 10.0, "modelled share", day=DAY + 1, known_s=0.0),
        job_row(3, "bob", "p7", energy_j=7.0, day=DAY + 7),
    ]
    write_node(folder / "n2", "n2", second)
    return folder


def rows_of(capsys, *arguments):
    code, out, err = joules(capsys, "jobs", *arguments, "--format", "csv")
    assert (code, err) == (0, "")
    return list(csv.DictReader(io.StringIO(out)))


def test_a_job_is_the_sum_of_its_devices_and_nodes(nodes, capsys):
    rows = {(row["job"], row["provenance"]): row for row in rows_of(capsys, nodes)}
    job = rows["slurm 1", "measured"]
    assert (job["user"], job["account"], job["gpus"], job["exit"], job["hours"]) == ("ana", "p7", "3", "0", "1.0")
    assert job["begin_utc"] == "2026-11-02 00:00:01"
    # What sensors share adds up one to one, the rest in quadrature.
    assert float(job["energy_j"]) == 3500
    assert float(job["u95_j"]) == pytest.approx(1.96 * np.hypot(0.01 * 3500, np.sqrt(300)), rel=1e-4)
    assert (float(job["missing_s"]), float(job["device_s"])) == (3, 180)
    assert rows["no job", "measured"]["user"] == ""
    assert rows["slurm 2", "modelled share"]["energy_j"] == "10.0"
    assert float(rows["slurm 2", "measured"]["idle_share"]) == 0.5
    assert rows["slurm 2", "modelled share"]["idle_share"] == ""  # no driver says it of a processor


def test_by_user_and_week_with_what_it_costs(nodes, capsys):
    cost = ("--co2-g-per-kwh", 500, "--price-per-kwh", 0.3, "--currency", "EUR")
    rows = rows_of(capsys, nodes, "--by", "user,week", *cost)
    measured = {(r["user"], r["week"]): r for r in rows if r["provenance"] == "measured"}
    assert set(measured) == {("ana", "2026-W45"), ("bob", "2026-W45"), ("bob", "2026-W46"), ("no job", "2026-W45")}
    assert float(measured["ana", "2026-W45"]["co2_g"]) == pytest.approx(3500 / 3.6e6 * 500)
    assert float(measured["ana", "2026-W45"]["cost_eur"]) == pytest.approx(3500 / 3.6e6 * 0.3)


def test_the_hours_in_which_a_gpu_was_held_cost_too(nodes, capsys):
    of_gpus = ("--price-per-gpu-hour", 2, "--currency", "EUR")
    rows = {(r["job"], r["provenance"]): r for r in rows_of(capsys, nodes, *of_gpus)}
    of_hours = 3 * 60 / 3600 * 2
    assert float(rows["slurm 1", "measured"]["cost_eur"]) == pytest.approx(of_hours)
    assert rows["slurm 2", "modelled share"]["cost_eur"] == ""  # a processor: nothing has a price
    rows = {(r["job"], r["provenance"]): r for r in rows_of(capsys, nodes, *of_gpus, "--price-per-kwh", 0.3)}
    assert float(rows["slurm 1", "measured"]["cost_eur"]) == pytest.approx(of_hours + 3500 / 3.6e6 * 0.3)
    assert float(rows["slurm 2", "modelled share"]["cost_eur"]) == pytest.approx(10 / 3.6e6 * 0.3)


@pytest.mark.parametrize(
    ("options", "accounts"),
    [
        ((), {"p7": 3507, "p8": 300, "no job": 50}),
        (("--since", "2026-11-03"), {"p7": 7, "p8": 300}),
        (("--since", "2026-11-03", "--until", "2026-11-08"), {"p8": 300}),
        (("--until", "2026-11-03"), {"p7": 3500, "p8": 300, "no job": 50}),
        (("--top", 1), {"p7": 3507}),
    ],
)
def test_accounts(nodes, capsys, options, accounts):
    rows = rows_of(capsys, nodes, "--by", "account", *options)
    assert {r["account"]: float(r["energy_j"]) for r in rows if r["provenance"] == "measured"} == accounts


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (("--since", "2027-02-01"), "no job since 2027-02-01: "),
        (("--until", "2026-10-31"), "no job until 2026-10-31: "),
        (("--since", "2026-11-04", "--until", "2026-11-05"), "no job since 2026-11-04 until 2026-11-05: "),
    ],
)
def test_an_empty_answer_says_what_is_there(nodes, capsys, options, asked):
    err = refused(capsys, nodes, *options)
    assert f"{asked}the first one there is of 2026-11-02, the last one of 2026-11-09" in err


def test_the_page_closes_a_month(nodes, tmp_path, capsys):
    text = (Path(__file__).parents[2] / "docs/howto/cluster.md").read_text().replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.endswith("-o november.csv"))
    words = shlex.split(line)[3:]
    assert (words[0], words[-1]) == ("nodes/", "november.csv")
    words[0], words[-1] = str(nodes), str(tmp_path / "november.csv")
    assert joules(capsys, "jobs", *words)[::2] == (0, "")
    rows = list(csv.DictReader((tmp_path / "november.csv").read_text().splitlines()))
    (p7,) = (row for row in rows if row["account"] == "p7")
    assert float(p7["cost_eur"]) == pytest.approx(3507 / 3.6e6 * 0.3)
    assert "Germany" in p7["co2_source"]


def test_one_node_a_sum_over_it_and_what_is_told_of_kinds(nodes, capsys):
    assert {r["node"] for r in rows_of(capsys, nodes / "n1", "--by", "node")} == {"n1"}
    code, out, _ = joules(capsys, "jobs", nodes, "--by", "account", "--top", 2)
    assert code == 0
    assert "the 2 of 4 rows with the most joules" in out


def test_a_job_without_readings_is_there_and_has_no_joules(tmp_path, capsys):
    write_node(tmp_path, "n1", [(*job_row(9)[:14], *[None] * 10)])
    (row,) = rows_of(capsys, tmp_path, "--price-per-kwh", 1)
    assert (row["job"], row["user"], row["energy_j"], row["cost"], row["gpus"]) == ("slurm 9", "ana", "", "", "0")


def test_the_help_says_what_a_country_stands_for(capsys):
    _, out, _ = joules(capsys, "jobs", "--help")
    assert "A country in place of --co2-g-per-kwh" in " ".join(out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--by", "usr"), "did you mean 'user'"),
        (("--since", "yesterday"), "write a day"),
        (("--until", "2026-11"), "--until 2026-11: write a day"),
        (("--since", "2026-11-03", "--until", "2026-11-02"), "--until 2026-11-02 is before"),
        (("--top", "0"), "1 or more"),
        (("--price-per-kwh", "-1"), "0 or more"),
    ],
)
def test_what_is_asked_wrongly(nodes, capsys, options, text):
    code, _, err = joules(capsys, "jobs", nodes, *options)
    assert (code, err.count("\n")) == (2, 1)
    assert text in err


def test_a_folder_that_may_not_be_read_is_named(tmp_path, capsys, monkeypatch):
    for node in ("n1", "n2"):
        write_node(tmp_path / node, node)
    scandir, asked = os.scandir, []

    def forbidding(path):
        if path == str(tmp_path / "n2"):
            asked.append(path)
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidding)  # root, as whom tests may run, reads everything
    for place in (tmp_path, tmp_path / "n2"):
        assert f"{tmp_path}/n2 cannot be read: Permission denied" in refused(capsys, place)
    assert len(asked) == 2


def refused(capsys, *arguments):
    code, _, err = joules(capsys, "jobs", *arguments)
    assert (code, err.count("\n")) == (2, 1)
    return err


def test_a_copy_of_a_nodes_folder_is_refused(tmp_path, capsys):
    write_node(tmp_path / "n01", "n01")
    write_node(tmp_path / "n02", "n02")  # another node's file may have the same name
    assert len(rows_of(capsys, tmp_path, "--by", "node")) == 2
    shutil.copytree(tmp_path / "n01", tmp_path / "n01.bak")
    err = refused(capsys, tmp_path)
    assert f"{tmp_path}/n01/jobs/" in err
    assert f"{tmp_path}/n01.bak/jobs/" in err
    assert "given twice" in refused(capsys, tmp_path / "n02", tmp_path / "n02" / "jobs")


@pytest.mark.parametrize(
    ("folders", "begin", "is_twice"),
    [(("a", "b"), 0, True), (("a", "b"), 990, False), (("a", "a"), 990, False), (("a", "a"), 900, True)],
)
def test_two_accountings_of_a_node_share_no_seconds(tmp_path, capsys, folders, begin, is_twice):
    """One that has lost its database goes on in other files; the ten seconds are a clock that was set meanwhile."""
    write_node(tmp_path / folders[0], "n1", generation="00aa", seconds=range(1000))
    write_node(tmp_path / folders[1], "n1", generation="00bb", seconds=range(begin, 2000))
    if is_twice:
        err = refused(capsys, tmp_path)
        assert f"both have {1000 - begin:,} seconds of 2026-11-02 of gpu0 of n1" in err
        assert f"{tmp_path}/{folders[1]}/jobs/2026-11-00bb.parquet" in err
    else:
        (row,) = rows_of(capsys, tmp_path, "--by", "node")
        assert float(row["energy_j"]) == 4 * 3600


def test_two_accountings_without_their_seconds_are_told(tmp_path, capsys):
    write_node(tmp_path, "n1", generation="00aa")
    write_node(tmp_path, "n1", generation="00bb")
    code, out, _ = joules(capsys, "jobs", tmp_path)
    assert code == 0
    assert "several accountings of n1 on 2026-11-02: without their files of seconds" in " ".join(out.split())


def test_phases_of_a_jobs_runs(nodes, tmp_path, capsys):
    tr = training((64,), 8)
    about = json.dumps({"host": "n1", "job_id": "1"})
    lines = [LineSpec("gpu0.a", tr.power())]
    (tmp_path / "runs").mkdir()
    make_run(tmp_path / "runs" / "a.h5", lines, tr.phases, end_ns=tr.end_ns, environment=about)
    make_run(tmp_path / "runs" / "b.h5", lines, tr.phases, end_ns=tr.end_ns)
    assert joules(capsys, "query", tmp_path / "runs", "--jobs", 1)[0] == 0
    rows = rows_of(capsys, nodes, "--by", "user", "--index", tmp_path / "runs")
    _, out, _ = joules(capsys, "tables", tmp_path / "runs" / "a.h5", "--format", "csv")
    phases = [row for row in csv.DictReader(io.StringIO(out)) if row["kind"] == "phase" and row["j_per_batch"]]
    assert {(r["user"], r["phase_path"]): float(r["energy_j"]) for r in rows} == pytest.approx(
        {("ana", row["phase_path"]): int(row["n"]) * float(row["j_per_batch"]) for row in phases}
    )
    with_index = (nodes, "--index", tmp_path / "runs")
    assert "whole jobs" in refused(capsys, *with_index, "--by", "week")
    assert "no job since 2027-01-01" in refused(capsys, *with_index, "--since", "2027-01-01")
    assert "no phases with joules of a job" in refused(capsys, *with_index, "--since", "2026-11-09")


def test_only_devices_that_a_job_held_count_in_its_phases(nodes, tmp_path, capsys):
    """Job 2 held gpu0 of n2 and a share of its processor; gpu1 of n1 was held by job 1 alone."""
    tr = training((64,), 8)
    (tmp_path / "runs").mkdir()

    def recorded(name, host, job, devices):
        lines = [LineSpec(f"{device}.a", tr.power(), device=device) for device in devices]
        about = json.dumps({"host": host, "job_id": job})
        make_run(tmp_path / "runs" / name, lines, tr.phases, end_ns=tr.end_ns, environment=about)

    def asked(*options):
        assert joules(capsys, "query", tmp_path / "runs", "--jobs", 1)[0] == 0
        code, out, _ = joules(capsys, "jobs", nodes, "--index", tmp_path / "runs", *options)
        assert code == 0
        return out

    def of_iterations():
        rows = csv.DictReader(io.StringIO(asked("--by", "user", "--format", "csv")))
        iterations = [row for row in rows if row["phase_path"].endswith("iteration")]
        return {row["user"]: (int(row["phases"]), float(row["energy_j"])) for row in iterations}

    recorded("a.h5", "n1", "1", ["gpu0"])
    n, energy_j = of_iterations()["ana"]
    recorded("a.h5", "n1", "1", ["gpu0", "gpu1"])
    recorded("b.h5", "n1", "2", ["gpu0", "gpu1"])  # on a node where it held nothing
    recorded("c.h5", "n2", "2", ["gpu0", "cpu0", "wall"])
    found = of_iterations()
    assert found["ana"] == (n, pytest.approx(2 * energy_j))
    assert found["bob"] == (n, pytest.approx(3 * energy_j))
    out = " ".join(asked().split())
    assert "gpu0 of n1, gpu1 of n1: left out where its job did not hold it" in out
    assert "wall of n2: the accounting does not know it: all that was recorded of it counts" in out
    assert "cpu0 of n2: of a processor a job has a share" in out
