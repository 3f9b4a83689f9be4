"""Commands whose output finds no room: a read-only file system, a full disk behind standard output."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from powerd_analytics.cli.common import write
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
