"""Commands whose output finds no room: a read-only file system, a full disk behind standard output."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import refused
from make_campaign import one_run

from powerd_analytics import cli
from powerd_analytics.cli.common import refuse_existing, write
from powerd_analytics.exports.hdf5 import write_tables
from powerd_analytics.indexes.rows import write as write_index
from powerd_core.errors import RunFileError

FULL = Path("/dev/full")


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    """A directory in which a read-only file system refuses to make, to move and (as Linux does) to remove."""

    def refuse(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for name in ("unlink", "replace", "write_text"):
        monkeypatch.setattr(Path, name, refuse)
    return tmp_path


def test_a_read_only_file_system_is_one_clear_line(read_only):
    with pytest.raises(RunFileError, match="t.csv cannot be written: Read-only file system"):
        write(read_only / "t.csv", lambda path: path.write_text("x"), overwrite=False)


def test_so_it_is_for_tables_in_hdf5(read_only):
    with pytest.raises(RunFileError, match="t.h5 cannot be written: Read-only file system"):
        write_tables(read_only / "t.h5", [])


def test_so_it_is_for_an_index(read_only, monkeypatch):
    from powerd_analytics.indexes.index import schema_of

    table = schema_of(".", "1").empty_table()
    with pytest.raises(RunFileError, match="index.parquet cannot be written: Read-only file system"):
        write_index(read_only / "index.parquet", table, ".")


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_standard_output_on_a_full_disk_is_one_clear_line():
    code = "from powerd_analytics.cli.app import main; main(['--help'])"
    with FULL.open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "joules: the output cannot be written: No space left on device\n"


def test_a_pipe_or_device_is_not_replaced_even_with_overwrite(tmp_path, capsys):
    pipe, table = tmp_path / "pipe", tmp_path / "t.csv"
    os.mkfifo(pipe)
    table.write_text("cap,energy_j,time_s\n250,100,10\n")
    asked = ("pick", table, "--reference", "cap=250", "--metric", "e", "-o", pipe)
    for options in ((), ("--overwrite",)):
        assert "pipe is a device or a pipe, which no file may replace" in refused(capsys, *asked, *options)
    with pytest.raises(RunFileError, match="which no file may replace"):
        write(pipe, lambda path: path.write_text("x"), overwrite=True)
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == [pipe, table]


def test_neither_is_a_directory(tmp_path):
    with pytest.raises(RunFileError, match="is a directory: give the name of a file in it"):
        refuse_existing(tmp_path, overwrite=True)


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "far" / "file.txt")
    write(link, lambda path: path.write_text("one"), overwrite=False)
    with pytest.raises(RunFileError, match="link.txt exists"):
        write(link, lambda path: path.write_text("two"), overwrite=False)
    write(link, lambda path: path.write_text("three"), overwrite=True)
    assert link.is_symlink()
    assert [p.read_text() for p in (tmp_path / "far").iterdir()] == ["three"]


def test_an_input_that_may_not_be_read_is_not_taken_for_the_output(tmp_path):
    def make(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "run.h5"))

    with pytest.raises(RunFileError, match=r"run\.h5 cannot be opened: Permission denied"):
        write(tmp_path / "page.html", make, overwrite=False)


def test_an_output_in_a_directory_that_may_not_be_searched_cannot_be_written(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(RunFileError, match=r"t\.csv cannot be written: Permission denied"):
        refuse_existing(tmp_path / "t.csv", overwrite=False)


def test_a_closed_standard_output_is_nobody_who_listens(tmp_path, monkeypatch):
    table = tmp_path / "t.csv"
    table.write_text("cap,energy_j,time_s\n250,100,10\n")
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["pick", str(table), "--reference", "cap=250", "--metric", "e"])
    assert stopped.value.code == 0


def test_no_text_takes_the_place_of_a_run(tmp_path, capsys):
    run = one_run(tmp_path / "run.h5", iterations=2)
    before = run.read_bytes()
    table = tmp_path / "t.csv"
    table.write_text("cap,energy_j,time_s\n250,100,10\n")
    asked = ("pick", table, "--reference", "cap=250", "--metric", "e", "--overwrite", "-o", run)
    assert "run.h5 is an HDF5 file, as runs are" in refused(capsys, *asked)
    assert "run.h5 is read by this command" in refused(capsys, "tables", run, "-o", run, "--overwrite")
    with pytest.raises(RunFileError, match=r"run\.h5 is an HDF5 file"):
        write(run, lambda path: path.write_text("x"), overwrite=True)
    assert run.read_bytes() == before


def test_no_output_takes_the_place_of_an_input(tmp_path, capsys):
    table, link = tmp_path / "t.csv", tmp_path / "link.csv"
    table.write_text("cap,energy_j,time_s\n250,100,10\n")
    link.symlink_to(table)
    for output in (table, link):
        asked = ("pick", table, "--reference", "cap=250", "--metric", "e", "--overwrite", "-o", output)
        assert "is read by this command: give its output another name" in refused(capsys, *asked)
    assert table.read_text() == "cap,energy_j,time_s\n250,100,10\n"


def test_a_full_disk_is_told_in_the_words_of_the_system(tmp_path):
    def make(path):
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    with pytest.raises(RunFileError, match=r"t\.parquet cannot be written: No space left on device$"):
        write(tmp_path / "t.parquet", make, overwrite=False)


def test_an_input_that_may_not_be_looked_at_is_no_matter_of_the_output(tmp_path, monkeypatch):
    def refuse(path, other):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(other))

    (tmp_path / "t.csv").write_text("x")
    monkeypatch.setattr(Path, "samefile", refuse)
    refuse_existing(tmp_path / "t.csv", overwrite=True, inputs=[tmp_path / "run.h5"])
