"""Indexes: what is in them, that only what changed is read, and what is refused."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import joules
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_campaign import one_run
from make_run import MS, LineSpec, make_run

from powerd_analytics.campaigns.campaign import read_campaign
from powerd_analytics.indexes.files import look_below, run_files
from powerd_analytics.indexes.index import INDEX_COLUMNS, METADATA, index_frame, index_records, open_index
from powerd_analytics.indexes.indexing import index_runs
from powerd_analytics.indexes.query import query
from powerd_analytics.records.frame import to_frame
from powerd_core.errors import AnalysisError, ConfigError, RunFileError


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


def test_an_index_has_the_records_that_the_files_have(campaign):
    report = index_runs(campaign, jobs=1)
    assert (report.path, report.runs, report.read, report.failed) == (campaign / "index.parquet", 3, 3, ())
    expected = read_campaign([campaign])
    found = index_records(campaign)
    assert found == expected
    assert [list(map(type, r.values())) for r in found] == [list(map(type, r.values())) for r in expected]
    assert index_frame(str(campaign / "index.parquet")).equals(to_frame(expected))  # as docs/campaigns.md has it
    gpu1 = index_records(campaign, "gpu1")
    assert gpu1 == [r for r in expected if r["device"] == "gpu1"] != []


def test_a_row_for_each_file_and_units_in_the_columns(campaign):
    (campaign / "z.h5").write_bytes(b"junk")
    index_runs(campaign, jobs=1)
    table = pq.read_table(campaign / "index.parquet")
    assert table.column_names == list(INDEX_COLUMNS)
    assert table.schema.field("energy_j").metadata == {b"units": b"J"}
    files = [row for row in table.to_pylist() if row["kind"] == "file"]
    assert [row["path"] for row in files] == ["a.h5", "b.h5", "later/c.h5", "z.h5"]
    stat = (campaign / "a.h5").stat()
    assert (files[0]["file_bytes"], files[0]["file_mtime_ns"]) == (stat.st_size, stat.st_mtime_ns)
    assert files[0]["records"] == sum(row["path"] == "a.h5" for row in table.to_pylist()) - 1
    assert files[0]["run_id"].startswith("id")
    assert files[3]["records"] == 0
    assert "is no run file" in files[3]["error"]


def test_only_new_changed_and_broken_files_are_read(campaign, monkeypatch):
    (campaign / "z.h5").write_bytes(b"junk")
    index_runs(campaign, jobs=1)
    before = (campaign / "index.parquet").stat().st_mtime_ns
    os.utime(campaign / "a.h5", ns=(0, 0))
    (campaign / "b.h5").unlink()
    one_run(campaign / "new.h5", iterations=3)
    read = []
    from powerd_analytics.indexes import indexing

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
    assert index_runs(campaign, jobs=1, again=True).read == 4


@given(
    steps=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(("a.h5", "b.h5", None))), max_size=3), max_size=3
    )
)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_runs_and_index_move_together(campaign, tmp_path):
    index_runs(campaign, campaign.parent / "campaign.parquet", jobs=1)
    (tmp_path / "elsewhere").mkdir()
    campaign.rename(tmp_path / "elsewhere" / "runs")
    moved = (campaign.parent / "campaign.parquet").rename(tmp_path / "elsewhere" / "campaign.parquet")
    paths = {r["path"] for r in index_records(moved)}
    assert paths == {str(tmp_path / "elsewhere" / "runs" / name) for name in ("a.h5", "b.h5", "later/c.h5")}
    assert index_runs(tmp_path / "elsewhere" / "runs", moved, jobs=1).read == 0


def test_tables_and_compare_take_an_index(campaign, capsys):
    joules(capsys, "index", campaign, "--jobs", "1")
    index = campaign / "index.parquet"
    of_files = joules(capsys, "tables", campaign, "--format", "csv")
    assert of_files[0] == 0
    assert joules(capsys, "tables", index, "--format", "csv") == of_files
    assert joules(capsys, "compare", campaign / "a.h5", index)[2].endswith(
        "a.h5 is on both sides: a run cannot be compared with itself\n"
    )
    (campaign / "z.h5").write_bytes(b"junk")
    joules(capsys, "index", campaign, "--jobs", "1")
    code, out, err = joules(capsys, "tables", index)
    assert (code, out) == (2, "")
    assert f"{campaign / 'z.h5'} could not be read when" in err


def test_the_command_says_what_it_did(campaign, capsys):
    (campaign / "z.h5").write_bytes(b"junk")
    code, out, err = joules(capsys, "index", campaign, "--jobs", "1")
    index = campaign / "index.parquet"
    assert (code, out) == (0, f"{index}: 3 runs, 3 read now, 1 failed\n")
    assert err == f"joules: {campaign / 'z.h5'} is no run file, or was cut off: it is not HDF5\n"
    (campaign / "z.h5").unlink()
    code, out, err = joules(capsys, "index", campaign, "--jobs", "1")
    assert (code, out) == (0, f"{index}: 3 runs, 0 read now, 1 vanished\n")
    assert err == f"joules: {campaign / 'z.h5'} has vanished: taken out of the index\n"


def test_nothing_is_written_when_nothing_can_be_read(tmp_path, capsys):
    (tmp_path / "a.h5").write_bytes(b"junk")
    code, out, err = joules(capsys, "index", tmp_path, "--jobs", "1")
    assert (code, out) == (1, "")
    assert err.splitlines()[1] == "joules: none of 1 run files can be read: no index written"
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def test_journals_and_partial_files_are_no_run_files(made, tmp_path, capsys):
    shutil.copy(made / "a.h5", tmp_path / "a.h5")
    for name in ("run.h5.journal/frames.h5", ".b.123.partial.h5"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    report = index_runs(tmp_path, jobs=1)
    assert (report.runs, report.failed, report.unbuilt) == (1, (), (str(tmp_path / "run.h5"),))
    _, _, err = joules(capsys, "index", tmp_path, "--jobs", "1")
    run = tmp_path / "run.h5"
    assert err == f"joules: {run} is not in the index: it is being recorded, or `joules info {run}` builds it\n"


def test_a_run_without_lines_is_in_the_index_with_no_records(tmp_path):
    make_run(tmp_path / "empty.h5", [], end_ns=MS)
    report = index_runs(tmp_path, jobs=1)
    assert (report.runs, report.failed) == (1, ())
    with pytest.raises(AnalysisError, match="there is no run in it"):
        index_records(tmp_path)


def test_half_characters_in_attributes_and_names(tmp_path):
    make_run(tmp_path / "a.h5", [LineSpec("gpu0.a", lambda t: 100.0 + 0 * t)], device_name="", run_id="x")
    shutil.copy(tmp_path / "a.h5", os.fsdecode(os.fsencode(tmp_path) + b"/\xff.h5"))
    report = index_runs(tmp_path, jobs=1)
    assert report.runs == 1
    assert len(report.failed) == 1
    assert "is no UTF-8" in report.failed[0]


def with_metadata(index, **changes):
    """The index with other words on itself."""
    table = pq.read_table(index)
    said = json.loads(table.schema.metadata[METADATA]) | changes
    pq.write_table(table.replace_schema_metadata({METADATA: json.dumps(said)}), index)


def test_an_index_of_another_version_is_refused_and_made_again(campaign):
    index_runs(campaign, jobs=1)
    index = campaign / "index.parquet"
    for changes in ({"version": [99, 1]}, {"powerd_version": "0.0.1"}):
        with_metadata(index, **changes)
        if "version" in changes:
            with pytest.raises(RunFileError, match=r"is an index of version 99\.1, this powerd reads"):
                open_index(index)
        report = index_runs(campaign, jobs=1)
        assert (report.read, report.afresh) == (3, "another release of powerd made the index")
        assert open_index(index).runs == campaign


def test_an_index_of_a_former_release_without_a_column_can_be_read(campaign):
    index_runs(campaign, jobs=1)
    index = campaign / "index.parquet"
    pq.write_table(pq.read_table(index).drop_columns(["residual_j"]), index)
    records = index_records(index)
    assert {r["residual_j"] for r in records} == {None}
    assert index_runs(campaign, jobs=1).read == 3


@pytest.mark.parametrize("kind", ["text", "parquet", "cut", "missing", "directory", "run"])
def test_what_is_no_index(made, tmp_path, kind):
    path = tmp_path / "index.parquet"
    if kind == "text":
        path.write_text("a,b\n1,2\n")
    elif kind == "parquet":
        pq.write_table(pa.table({"a": [1]}), path)
    elif kind == "cut":
        index_runs(made, path, jobs=1)
        path.write_bytes(path.read_bytes()[:-50])
    elif kind == "run":
        shutil.copy(made / "a.h5", path)
    with pytest.raises(RunFileError, match=r"is no index|there is no index|has no index\.parquet"):
        open_index(tmp_path if kind == "directory" else path)


def test_files_in_the_way_and_directories_without_runs(made, tmp_path):
    (tmp_path / "other").mkdir()
    shutil.copy(made / "a.h5", tmp_path / "other" / "a.h5")
    index_runs(tmp_path / "other", tmp_path / "other.parquet", jobs=1)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "table.parquet")
    (tmp_path / "empty").mkdir()
    for error, said, arguments in (
        (RunFileError, "there is no directory", (tmp_path / "nowhere",)),
        (RunFileError, "is no directory", (made / "a.h5",)),
        (RunFileError, "there are no run files", (tmp_path / "empty",)),
        (RunFileError, "is in the way", (made, tmp_path / "table.parquet")),
        (RunFileError, "is the index of", (made, tmp_path / "other.parquet")),
        (RunFileError, "directory that exists", (made, tmp_path / "no" / "index.parquet")),
        (ConfigError, "ends in .parquet", (made, tmp_path / "index.csv")),
    ):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(error, match=said):
            index_runs(*arguments, jobs=1)
        assert sorted(tmp_path.rglob("*")) == before


def names_in(index):
    return [row["path"] for row in pq.read_table(index).to_pylist() if row["kind"] == "file"]


def test_links_to_directories_are_followed_and_no_run_counts_twice(campaign, tmp_path):
    other = tmp_path / "other disk"
    (campaign / "later").rename(other)
    (campaign / "linked").symlink_to(other)
    (campaign / "linked again").symlink_to(other)
    (other / "up").symlink_to(campaign)
    (campaign / "latest.h5").symlink_to("b.h5")
    (campaign / "elsewhere.h5").symlink_to(shutil.copy(other / "c.h5", tmp_path / "c.h5"))
    report = index_runs(campaign, jobs=1)
    assert (report.runs, report.failed) == (4, ())
    assert names_in(report.path) == ["a.h5", "b.h5", "elsewhere.h5", "linked/c.h5"]
    assert [p.name for p in run_files([campaign])] == ["a.h5", "b.h5", "elsewhere.h5", "c.h5"]


def test_a_link_to_nothing_and_a_directory_that_cannot_be_read_are_named(campaign, monkeypatch):
    (campaign / "gone.h5").symlink_to("nowhere.h5")
    scan = os.scandir

    def refuse(path):
        if Path(path).name == "later":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    report = index_runs(campaign, jobs=1)
    later = campaign / "later"
    assert report.failed == (
        f"{later} cannot be read: Permission denied",
        f"{campaign / 'gone.h5'} is a link to nothing",
    )
    assert report.runs == 2
    with pytest.raises(RunFileError, match="later cannot be read: Permission denied"):
        run_files([campaign])


def test_a_file_that_vanishes_meanwhile_is_said_and_is_not_in_the_index(campaign):
    progress = Vanishing(campaign / "b.h5")
    report = index_runs(campaign, jobs=1, progress=progress)
    assert (report.runs, report.failed, report.vanished) == (2, (), (str(campaign / "b.h5"),))
    assert names_in(report.path) == ["a.h5", "later/c.h5"]
    assert index_runs(campaign, jobs=1) == replace(report, read=0, vanished=())


class Vanishing:
    """Somebody removes a file when the first is being read."""

    def __init__(self, path):
        self.path = path

    def __call__(self, share, text):
        if text.startswith("0 of "):
            self.path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "name", ["a*b", "[ab]", "a?", "ü 'q' \"d\"", "model=x", "back\\slash", "with, comma", "$HOME ~"]
)
def test_directories_of_any_name(made, tmp_path, name):
    decoys = [tmp_path / "aXb", tmp_path / "a", tmp_path / "ab"]
    for folder in (tmp_path / name, *decoys):
        folder.mkdir()
        shutil.copy(made / "a.h5", folder / "run 1 [x] ü.h5")
        index_runs(folder, jobs=1)
    asked = query(tmp_path / name, "select path, model from runs where device = 'gpu0'")
    assert asked.rows == ((str(tmp_path / name / "run 1 [x] ü.h5"), "AlexNet"),)
    assert {r["path"] for r in index_records(tmp_path / name)} == {str(tmp_path / name / "run 1 [x] ü.h5")}
    assert index_runs(tmp_path / name, jobs=1).read == 0


def test_what_may_not_be_read_is_one_line(campaign, capsys, monkeypatch):
    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    index_runs(campaign, jobs=1)
    index = campaign / "index.parquet"
    monkeypatch.setattr(pq, "ParquetFile", refuse)
    with pytest.raises(RunFileError, match=r"index\.parquet cannot be read: Permission denied"):
        open_index(index)
    monkeypatch.setattr(Path, "is_dir", refuse)  # as of a path inside a directory that is closed
    for words in (("index", campaign), ("query", campaign, "select 1"), ("tables", campaign)):
        assert joules(capsys, *words) == (2, "", f"joules: {campaign} cannot be read: Permission denied\n")


def test_where_nothing_can_be_written_nothing_is_read(campaign, monkeypatch):
    def refuse(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr("powerd_analytics.indexes.indexing.reduce_runs", refuse)
    with pytest.raises(RunFileError, match=r"index\.parquet cannot be written: Read-only file system; name another"):
        index_runs(campaign, jobs=1)


def test_an_index_that_is_up_to_date_is_looked_at_in_a_directory_that_is_read_only(campaign, monkeypatch):
    index_runs(campaign, jobs=1)
    monkeypatch.setattr(Path, "touch", None)
    assert index_runs(campaign, jobs=1).runs == 3


def test_a_disk_that_is_full_leaves_the_old_index(campaign):
    index_runs(campaign, jobs=1)
    before = (campaign / "index.parquet").read_bytes()
    shutil.copy(campaign / "a.h5", campaign / "copy.h5")
    code = (
        "import resource, sys; from powerd_analytics.cli.app import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "index", campaign, "--jobs", "1"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == f"joules: {campaign / 'index.parquet'} cannot be written: File too large"
    assert (campaign / "index.parquet").read_bytes() == before
    assert not list(campaign.glob(".*"))


def test_two_at_once_leave_one_whole_index(campaign):
    command = [sys.executable, "-m", "powerd_analytics", "index", str(campaign), "--jobs", "1"]
    both = [subprocess.Popen(command, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    said = [one.communicate(timeout=60) for one in both]
    for one, (out, err) in zip(both, said, strict=True):
        assert (one.returncode, err.strip()) == (0, "")  # a slow machine ends its progress with a new line
        assert out.startswith(f"{campaign / 'index.parquet'}: 3 runs, ")
    assert index_runs(campaign, jobs=1).read == 0
    assert not list(campaign.glob(".*"))


def test_ctrl_c_leaves_no_traces(made, tmp_path):
    for i in range(400):
        os.link(made / "a.h5", tmp_path / f"{i}.h5")
    command = [sys.executable, "-m", "powerd_analytics", "index", str(tmp_path), "--jobs", "2"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        while running.poll() is None and sum(_is_worker(pid) for pid in children.read_text().split()) < 2:
            pass
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (130, "")
    assert err.strip() in ("", "joules: interrupted")  # nothing of the processes
    assert not [p.name for p in tmp_path.iterdir() if p.suffix != ".h5"]


def _is_worker(pid):
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_pipe_is_no_index_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "index.parquet")
    for index in (tmp_path, tmp_path / "index.parquet"):
        with pytest.raises(RunFileError, match="is no index: it is a device or a pipe"):
            open_index(index)


def test_a_directory_that_refuses_is_not_an_empty_one(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(RunFileError, match=f"{tmp_path.name} cannot be read: Permission denied"):
        look_below(tmp_path)
