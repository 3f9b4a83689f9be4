"""Indexes: what is in them, that only what changed is read, and what is refused."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reducers
from command import joules
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_campaign import one_run
from make_job import machine
from make_run import LineSpec, make_run

from powerd_analytics.frame.figures import ATTRIBUTE, COLUMNS, attributes_in, of_kind, rows_of, run_frame
from powerd_analytics.frame.index import METADATA, index_frame, index_runs, open_index, query, reduce_runs
from powerd_analytics.frame.trainings import read_runs
from powerd_core.errors import AnalysisError, RunFileError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three runs of two products, one in a directory of its own."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "later").mkdir()
    one_run(folder / "a.h5", iterations=3, device_name="pascal", optimizer="sgd")
    one_run(folder / "b.h5", 1.3, (64, 96.5), iterations=3, device_name="maxwell", clock_mhz=1410)
    one_run(folder / "later" / "c.h5", 0.9, iterations=4, device_name="pascal", gpus=2)
    return folder


@pytest.fixture
def campaign(made, tmp_path):
    """A copy to change."""
    return Path(shutil.copytree(made, tmp_path / "runs"))


@pytest.fixture(scope="module")
def made_with_index(made, tmp_path_factory):
    folder = Path(shutil.copytree(made, tmp_path_factory.mktemp("indexed") / "runs"))
    index_runs(folder, jobs=1)
    return folder


@pytest.fixture
def indexed(made_with_index, tmp_path):
    """A copy to change, with its index."""
    return Path(shutil.copytree(made_with_index, tmp_path / "runs"))


def assert_same(found, expected):
    """The same rows in the same columns of the same types; attributes in any order."""
    pd.testing.assert_frame_equal(found, expected, check_like=True)


def test_an_index_has_the_frames_that_the_files_have(campaign):
    report = index_runs(campaign, jobs=1)
    assert (report.path, report.runs, report.read, report.failed) == (campaign / "index.parquet", 3, 3, ())
    expected = read_runs([campaign])
    assert_same(index_frame(campaign), expected)
    assert_same(index_frame(str(campaign / "index.parquet")), expected)  # as docs/howto/queries.md has it
    assert_same(read_runs([campaign / "index.parquet"]), expected)
    gpu1 = index_frame(campaign, "gpu1")
    assert_same(gpu1, run_frame(campaign / "later" / "c.h5", "gpu1"))
    with pytest.raises(AnalysisError, match="no device 'gpu7'"):
        index_frame(campaign, "gpu7")


def test_attributes_are_columns_of_their_own_type_over_all_runs(tmp_path):
    """What a number is among numbers stands as a text where one run has a text, and is a number again without it."""
    values = {
        "a": {"rate": 0.1, "amp": True},
        "b": {"rate": 3},
        "c": {"rate": "warm", "amp": "True"},
        "d": {"rate": "3"},
    }
    for name, own in values.items():
        one_run(tmp_path / f"{name}.h5", iterations=3, **own)
    index_runs(tmp_path, jobs=1)

    def rates(*names):
        frame = index_frame(tmp_path)
        assert_same(frame, read_runs([tmp_path]))
        return [rows_of(frame[frame["run"] == n])[0].get(f"{ATTRIBUTE}rate") for n in names]

    assert rates("a", "b", "c", "d") == ["0.1", "3", "warm", '"3"']
    assert str(index_frame(tmp_path)[f"{ATTRIBUTE}amp"].dtype) == "string"
    for name in ("c", "d"):
        (tmp_path / f"{name}.h5").unlink()
    assert index_runs(tmp_path, jobs=1).read == 0
    assert rates("a", "b") == [0.1, 3]
    types = {f.name: str(f.type) for f in pq.read_schema(tmp_path / "index.parquet")}
    assert (types[f"{ATTRIBUTE}rate"], types[f"{ATTRIBUTE}amp"]) == ("double", "bool")
    (tmp_path / "a.h5").unlink()
    index_runs(tmp_path, jobs=1)
    assert attributes_in(index_frame(tmp_path)) == [f"{ATTRIBUTE}rate"]  # no run has the other any more


def test_only_new_changed_and_broken_files_are_read(indexed, monkeypatch):
    campaign = indexed
    (campaign / "z.h5").write_bytes(b"junk")
    index_runs(campaign, jobs=1)
    before = (campaign / "index.parquet").stat().st_mtime_ns
    os.utime(campaign / "a.h5", ns=(0, 0))
    (campaign / "b.h5").unlink()
    shutil.copy(campaign / "a.h5", campaign / "new.h5")
    read = []
    from powerd_analytics.frame import index as indexing

    def noting(paths, **options):
        read.extend(p.name for p in paths)
        return reduce_runs(paths, **options)

    reduce_runs = indexing.reduce_runs
    monkeypatch.setattr(indexing, "reduce_runs", noting)
    report = index_runs(campaign, jobs=1)
    assert read == ["a.h5", "new.h5", "z.h5"]
    assert (report.runs, report.read, report.vanished) == (3, 2, (str(campaign / "b.h5"),))
    assert len(report.failed) == 1
    assert (campaign / "index.parquet").stat().st_mtime_ns != before
    shutil.copy(campaign / "new.h5", campaign / "z.h5")
    read.clear()
    assert index_runs(campaign, jobs=1).failed == ()
    assert read == ["z.h5"]
    read.clear()
    before = (campaign / "index.parquet").stat().st_mtime_ns
    assert index_runs(campaign, jobs=1).read == 0
    assert read == []
    assert (campaign / "index.parquet").stat().st_mtime_ns == before
    moved = campaign.rename(campaign.parent / "moved")  # runs and index together
    assert index_runs(moved, jobs=1).read == 0
    assert {Path(p).parent for p in index_frame(moved)["path"]} == {moved, moved / "later"}
    assert index_runs(moved, jobs=1, again=True).read == 4
    # As a former release of the same version may have written it.
    pq.write_table(pq.read_table(moved / "index.parquet").drop_columns(["off_by_j"]), moved / "index.parquet")
    assert index_frame(moved)["off_by_j"].isna().all()
    assert index_runs(moved, jobs=1).read == 4


def test_an_index_whose_files_have_all_changed_is_brought_up_to_date(tmp_path):
    run = make_run(tmp_path / "a.h5", [LineSpec("gpu0.a", lambda t: 100.0 + 0 * t)])
    index_runs(tmp_path, jobs=1)
    os.utime(run, ns=(0, 0))
    assert index_runs(tmp_path, jobs=1).read == 1


@given(
    steps=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(("a.h5", "b.h5", None))), max_size=3), max_size=3
    )
)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_index_does_not_remember_how_it_came_about(tmp_path_factory, steps):
    folder, made = tmp_path_factory.mktemp("history"), tmp_path_factory.mktemp("sources")
    for name, watts in (("a", 100.0), ("b", 130.0)):
        make_run(made / f"{name}.h5", [LineSpec("gpu0.a", lambda t, w=watts: w + 0 * t)], run_id=name)
    shutil.copy(made / "a.h5", folder / "always.h5")
    for i, step in enumerate([[], *steps]):
        for name, source in step:
            (folder / f"{name}.h5").unlink(missing_ok=True)
            if source is not None:
                shutil.copyfile(made / source, folder / f"{name}.h5")
                os.utime(folder / f"{name}.h5", ns=(i, i))  # as another time, on any file system
        index_runs(folder, jobs=1)
    index_runs(folder, folder / "fresh.parquet", jobs=1)
    assert pq.read_table(folder / "index.parquet").equals(pq.read_table(folder / "fresh.parquet"))


def test_tables_and_compare_take_an_index(indexed, capsys):
    campaign = indexed
    index = campaign / "index.parquet"
    of_files = joules(capsys, "tables", campaign, "--format", "csv")
    assert of_files[0] == 0
    assert joules(capsys, "tables", index, "--format", "csv") == of_files
    assert joules(capsys, "compare", campaign / "a.h5", index)[2].endswith(
        "a.h5 is on both sides: a run cannot be compared with itself\n"
    )
    (campaign / "z.h5").write_bytes(b"junk")
    joules(capsys, "query", campaign, "--jobs", "1")
    code, out, err = joules(capsys, "tables", index)
    assert (code, out) == (2, "")
    assert f"{campaign / 'z.h5'} could not be read when" in err


@pytest.mark.parametrize("kind", ["text", "parquet", "cut", "missing", "directory", "run"])
def test_what_is_no_index(made_with_index, tmp_path, kind):
    path = tmp_path / "index.parquet"
    if kind == "text":
        path.write_text("a,b\n1,2\n")
    elif kind == "parquet":
        pq.write_table(pa.table({"a": [1]}), path)
    elif kind == "cut":
        path.write_bytes((made_with_index / "index.parquet").read_bytes()[:-50])
    elif kind == "run":
        shutil.copy(made_with_index / "a.h5", path)
    with pytest.raises(RunFileError, match=r"is no index|there is no index|has no index\.parquet"):
        open_index(tmp_path if kind == "directory" else path)


def test_links_are_followed_no_run_counts_twice_and_what_cannot_be_read_is_named(campaign, tmp_path, capsys):
    other = tmp_path / "other disk"
    (campaign / "later").rename(other)
    for name in ("linked", "linked again"):
        (campaign / name).symlink_to(other)
    (other / "up").symlink_to(campaign)
    (campaign / "latest.h5").symlink_to("b.h5")
    (campaign / "gone.h5").symlink_to("nowhere.h5")
    (campaign / "z.h5").write_bytes(b"junk")
    for name in ("run.h5.journal/frames.h5", ".b.123.partial.h5"):
        (campaign / name).parent.mkdir(exist_ok=True)
        (campaign / name).touch()
    shutil.copy(campaign / "a.h5", os.fsdecode(os.fsencode(campaign) + b"/\xff.h5"))
    code, out, err = joules(capsys, "query", campaign, "--jobs", "1")
    assert (code, out) == (0, f"{campaign / 'index.parquet'}: 3 runs, 3 read now, 3 failed\n")
    assert err.count("\n") == 4
    for text in (
        "run.h5 is not in the index: it is being recorded",
        "gone.h5 cannot be read",
        "its name is no UTF-8",
        "z.h5 is no run file",
    ):
        assert text in err
    assert query(campaign, "select run from files where error is null").rows == (("a",), ("b",), ("c",))
    for name in ("gone.h5", "z.h5"):
        (campaign / name).unlink()
    _, out, err = joules(capsys, "query", campaign, "--jobs", "1")
    assert out == f"{campaign / 'index.parquet'}: 3 runs, 0 read now, 1 failed, 1 vanished\n"
    assert "z.h5 has vanished" in err


def test_an_index_of_another_version_is_refused_and_made_again(indexed):
    campaign = indexed
    index = campaign / "index.parquet"
    table = pq.read_table(index)
    about = json.loads(table.schema.metadata[METADATA]) | {"version": [99, 1]}
    pq.write_table(table.replace_schema_metadata({METADATA: json.dumps(about)}), index)
    with pytest.raises(RunFileError):
        open_index(index)
    report = index_runs(campaign, jobs=1)
    assert (report.read, report.afresh) == (3, "another release of powerd made the index")
    assert open_index(index).runs == campaign


def test_ctrl_c_leaves_no_traces(made, tmp_path):
    for i in range(400):
        os.link(made / "a.h5", tmp_path / f"{i}.h5")
    command = [sys.executable, "-m", "powerd_analytics", "query", str(tmp_path), "--jobs", "2"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests' caller ignores Ctrl-C
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True) as running:
        signal.signal(signal.SIGINT, before)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        while running.poll() is None and sum(is_worker(pid) for pid in children.read_text().split()) < 2:
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate()
    assert (running.returncode, out) == (130, "")
    assert err.strip() in ("", "joules: interrupted")  # nothing of the processes
    assert not [p.name for p in tmp_path.iterdir() if p.suffix != ".h5"]


def is_worker(pid):
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


# -- SQL over an index: answers that agree with the run files, and nothing else that can be done


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four runs in a directory whose name means something to SQL, to globs and to Hive."""
    folder = tmp_path_factory.mktemp("it's[1]") / "model=none"
    folder.mkdir()
    for i, (product, scale) in enumerate((("pascal", 1.0), ("pascal", 1.02), ("maxwell", 1.3), ("maxwell", 1.31))):
        one_run(folder / f"{i}.h5", scale, iterations=3, device_name=product, seed=i, optimizer="sgd")
    index_runs(folder, jobs=1)
    return folder


def test_an_answer_agrees_with_the_frame(runs):
    table = query(
        runs, "select device_name, avg(energy_j) as j, count(*) as n from totals group by all order by device_name"
    )
    assert [(c.name, c.kind) for c in table.columns] == [("device_name", "text"), ("j", "number"), ("n", "integer")]
    totals = of_kind(index_frame(runs), "total")
    for name, joules_, n in table.rows:
        assert (joules_, n) == (pytest.approx(totals["energy_j"][totals["device_name"] == name].mean()), 2)


def test_the_views_are_the_kinds_of_rows_and_the_files(runs):
    frame = index_frame(runs)
    for view, kind in (("runs", "run"), ("phases", "phase"), ("totals", "total")):
        table = query(runs, f"select * from {view}")
        assert table.names == [*COLUMNS, f"{ATTRIBUTE}optimizer"]
        expected = [tuple(r[name] for name in table.names) for r in rows_of(of_kind(frame, kind))]
        assert (len(table), set(table.rows)) == (len(expected), set(expected))
    assert query(runs, "select count(*), sum(records) from files where error is null").rows == ((4, len(frame)),)
    assert query(runs, "select distinct attribute_optimizer from phases").rows == (("sgd",),)


def test_attributes_of_any_name_can_be_asked_for(tmp_path):
    one_run(tmp_path / "a.h5", iterations=3, **{'a "b"; --': 1, "Rate": 2, "rate": "x"})
    index_runs(tmp_path, jobs=1)
    assert_same(index_frame(tmp_path), read_runs([tmp_path]))
    sql = 'select distinct "attribute_a ""b""; --", "attribute_Rate", attribute_rate_1 from phases'
    assert query(tmp_path, sql).rows == ((1.0, 2.0, "x"),)


def test_machines_of_one_training_are_one_and_its_ranks_have_their_seconds(tmp_path):
    paths = [machine(tmp_path / f"{n}.h5", n) for n in range(2)]
    index_runs(tmp_path, jobs=1)
    assert_same(read_runs([tmp_path / "index.parquet"]), read_runs(paths))
    (total,) = rows_of(of_kind(read_runs(paths), "total"))
    assert query(tmp_path, "select device, energy_j from totals").rows == ((total["device"], total["energy_j"]),)
    ranks = query(tmp_path, "select rank, s_per_batch from ranks where phase = 'forward' order by rank").rows
    assert ranks == tuple((n, pytest.approx(0.0213)) for n in range(4))
    marks = pq.read_table(tmp_path / "index.parquet")["of_job"].to_pylist()
    assert {"part", "whole"} == set(filter(None, marks))


@pytest.mark.parametrize(
    "sql",
    [
        "", "select 1; select 2", "drop view runs", "set enable_external_access = true",
        "copy runs to '{dir}/stolen.csv'", "load httpfs", "select * from '{dir}/secret.csv'",
        "copy (pivot phases on phase using count(*)) to '{index}'",
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


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("select count(*) from range(10000000000000)", r"no answer within 0\.05 s"),
        ("select length(repeat('x', 3500000000))", "Out of Memory"),
    ],
)
def test_a_query_is_bounded_in_time_and_memory(runs, sql, why):
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(AnalysisError, match=why):
        query(runs, sql, most_s=0.05 if "range" in sql else 60.0)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_query_may_pivot(runs):
    sql = "pivot phases on phase using count(*) group by device_name order by all"
    for form in (sql, f"with p as ({sql}) from p", f"select * from ({sql})"):
        table = query(runs, form)
        assert table.names[:2] == ["device_name", "backward"]
        assert [row[:2] for row in table.rows] == [("maxwell", 2), ("pascal", 2)]


# -- Many run files: the same frames in every way of running, and no file stops another


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Four run files, of which the third is none."""
    folder = tmp_path_factory.mktemp("reduce")
    one_run(folder / "0.h5", iterations=3)
    one_run(folder / "1.h5", 1.2, iterations=4)
    (folder / "2.h5").write_bytes(b"junk")
    shutil.copy(folder / "0.h5", folder / "3.h5")
    return [folder / f"{i}.h5" for i in range(4)]


@pytest.fixture(scope="module")
def dask_cluster():
    """A scheduler and one worker, each reached by TCP."""
    from dask.distributed import LocalCluster

    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "protocol": "tcp://"}
    with LocalCluster(**options, host="127.0.0.1", dashboard_address="127.0.0.1:0") as made:
        yield made


def test_one_process_and_dask_give_the_same_in_the_order_of_the_paths(paths, dask_cluster):
    here = reduce_runs(paths, jobs=1)
    assert [r.path for r in here] == paths
    assert [r.error is None for r in here] == [True, True, False, True]
    assert here[2].error.startswith(f"{paths[2]} is no run file")
    there = reduce_runs(paths, scheduler=dask_cluster.scheduler_address)
    assert [(r.path, r.error) for r in there] == [(r.path, r.error) for r in here]
    for path, *of_path in zip(paths, here, there, strict=True):
        for result in of_path if path.name != "2.h5" else ():
            assert_same(result.value, run_frame(path))


def test_a_file_that_kills_its_process_is_named_and_the_others_are_done_with_one_thread_each(paths, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    told = []
    found = reduce_runs(paths, reducers.dies_of_1, jobs=2, progress=lambda share, text: told.append((share, text)))
    assert [r.value for r in found] == [("0.h5", 1), None, ("2.h5", 1), ("3.h5", 1)]
    assert found[1].error == f"{paths[1]}: the process that read it was killed (out of memory?)"
    assert told[0] == (0.0, "0 of 4 run files")
    assert told == sorted(told)
