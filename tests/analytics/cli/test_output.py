"""Where results go: what is no run is one line and status 2, outputs are whole or not there, progress is late."""

import contextlib
import errno
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import refused
from make_campaign import one_run

from powerd_analytics import cli
from powerd_analytics.cli.all_commands import OLD_NAMES, replace_old_names
from powerd_analytics.cli.app import app
from powerd_analytics.cli.shared import harmless_output, put_out, write
from powerd_analytics.cli.start import main
from powerd_analytics.output.export import Column, write_rows
from powerd_core.errors import RunFileError

COMMANDS = {
    "compare": ("OTHER",), "import": ("-o", "made.h5"), "info": (), "info --check": (), "jobs": (),
    "journal recover": ("-o", "made.h5"), "operations": ("--format", "json", "-o", "made.json"),
    "plot": ("-o", "made.png"), "published pick": ("--reference", "model=a", "--metric", "edp"),
    "published totals": (), "query": ("select 1",), "report": ("-o", "made.html"),
    "tables": ("-o", "made.csv", "--format", "csv"), "tables --table layers": (), "tables --table uncertainty": (),
    "top": ("--once",), "trace": ("-o", "made.json"),
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("directory.h5").mkdir()
    Path("text.h5").write_text("hello\n")
    Path("empty.h5").touch()
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    return stopped.value.code, out, err


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((command, name) for command in COMMANDS for name in ("absent.h5", "text.h5")),
        *(("tables", name) for name in ("directory.h5", "empty.h5")),
    ],
)
def test_what_is_no_run_is_one_line_and_status_2(
    files: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    if (command, name) == ("top", "absent.h5"):
        pytest.skip("a run that has not begun is waited for")
    options = [name if word == "OTHER" else word for word in COMMANDS[command]]
    asked = [*command.split(), *(("--run",) if command == "top" else ()), name, *options]
    before = sorted(files.rglob("*"))
    code, out, err = said(capsys, *asked)
    if command == "info --check" and name == "text.h5":
        assert (code, err) == (1, "")  # a file that does not hold what must hold is this command's result
        assert "WRONG  structure: " in out
    else:
        assert code == 2
        assert out == ("" if command != "info --check" else f"{name}\n")
        assert err.startswith("joules: ")
        assert err.count("\n") == 1
        assert name in err
        assert "Traceback" not in err
        assert "Errno" not in err
    assert sorted(files.rglob("*")) == before


def test_every_command_is_in_this_list(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """But those whose mistakes other tests make. Each has one line of help at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = said(capsys, "--help-all")
    assert code == 0
    shown = dict(line.split(maxsplit=1) for line in out.splitlines() if re.match("  [a-z]+  +[A-Z]", line))
    assert {*shown} == {*(name.split()[0] for name in COMMANDS), "record", "completion", "campaign", "optimise"}
    assert max(map(len, out.splitlines())) <= 80
    for command, text in shown.items():
        assert app[command].help.partition("\n")[0] == text


def test_what_is_no_run_is_said_without_the_librarys_words(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("going.h5.journal").mkdir()
    for name, text in (
        ("empty.h5", "is empty"), ("text.h5", "it is not HDF5"), ("going.h5.journal", "is a journal: wait"),
    ):  # fmt: skip
        code, _, err = said(capsys, "tables", name)
        assert (code, text in err, "synchronously" in err) == (2, True, False)


def test_an_unknown_column_is_one_short_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(one_run(tmp_path / "run.h5", iterations=2))
    assert "did you mean 'batch_size'?" in refused(capsys, "tables", run, "--pivot", "batch_sise:phase:j_per_batch")
    assert len(refused(capsys, "tables", run, "--pivot", "foo:bar:baz")) < 240


def test_the_ending_of_a_file_says_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(one_run(tmp_path / "run.h5", iterations=2))
    begins = {
        ".txt": b"run.h5",
        ".csv": b"kind,",
        ".json": b"[",
        ".md": b"**Phases**",
        ".tex": b"% ",
        ".h5": b"\x89HDF",
    }
    for ending, begin in begins.items():
        out = tmp_path / f"table{ending}"
        assert said(capsys, "tables", run, "-o", str(out))[0] == 0
        assert out.read_bytes().startswith(begin), ending
    for out, format in (("t.docx", ()), ("t.h5", ("--format", "csv")), ("t.csv", ("--format", "hdf5"))):
        assert "t." in refused(capsys, "tables", run, "-o", str(tmp_path / out), *format)
        assert not (tmp_path / out).exists()


@pytest.mark.parametrize("old", OLD_NAMES)
def test_names_of_the_release_before_work_and_say_the_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str
) -> None:
    of_old, of_new = said(capsys, old, "--help"), said(capsys, *OLD_NAMES[old], "--help")
    assert of_old[:2] == of_new[:2]
    assert of_old[2].startswith(f"joules: joules {old} is called `joules {' '.join(OLD_NAMES[old])}` now")
    assert of_old[2].count("\n") == 1


def test_options_that_have_another_name_now_work_too() -> None:
    assert replace_old_names(["uncertainty", "r.h5", "--phase", "forward"])[0] == [
        "tables", "--table", "uncertainty", "r.h5", "--where", "phase=forward",
    ]  # fmt: skip
    assert replace_old_names(["layers", "r.h5", "--model=a", "--format=csv"])[0] == [
        "tables", "--table", "layers", "r.h5", "--where", "model=a", "--format", "csv",
    ]  # fmt: skip
    assert replace_old_names(["index", "runs", "-o", "i.parquet"])[0] == ["query", "runs", "--index", "i.parquet"]


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
    with pytest.raises(RunFileError, match=r"t\.csv.*Read-only"):
        write(read_only / "t.csv", lambda path: path.write_text("x"), overwrite=False)


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_standard_output_on_a_full_disk_is_one_clear_line():
    code = "from powerd_analytics.cli import main; main(['--help'])"
    with FULL.open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "joules: the output cannot be written: No space left on device\n"


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "far" / "file.txt")
    write(link, lambda path: path.write_text("one"), overwrite=False)
    with pytest.raises(RunFileError, match=r"link\.txt"):
        write(link, lambda path: path.write_text("two"), overwrite=False)
    write(link, lambda path: path.write_text("three"), overwrite=True)
    assert link.is_symlink()
    assert [p.read_text() for p in (tmp_path / "far").iterdir()] == ["three"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_terminal_does_not_obey_the_name_of_a_phase(stream, monkeypatch):
    text = "phase,joules\n\x1b]0;owned\x07,1\n"
    monkeypatch.setattr(sys, "stdout", stream())
    put_out(text, None, False)
    assert sys.stdout.getvalue() == (text if stream is io.StringIO else "phase,joules\n\\x1b]0;owned\\x07,1\n")


def test_no_text_takes_the_place_of_a_run(tmp_path, capsys):
    run = one_run(tmp_path / "run.h5", iterations=2)
    before = run.read_bytes()
    table = tmp_path / "t.csv"
    table.write_text("cap,energy_j,time_s\n250,100,10\n")
    asked = ("published", "pick", table, "--reference", "cap=250", "--metric", "e", "--overwrite", "-o", run)
    assert "run.h5 is a run file" in refused(capsys, *asked)
    assert "run.h5 is read by this command" in refused(capsys, "tables", run, "-o", run, "--overwrite")
    with pytest.raises(RunFileError, match=r"run\.h5"):
        write(run, lambda path: path.write_text("x"), overwrite=True)
    assert run.read_bytes() == before


def test_a_terminal_does_not_obey_the_rows_of_iterations(tmp_path, capsys, monkeypatch):
    """They are written piece by piece, and not as a whole text."""
    run = one_run(tmp_path / "run.h5", iterations=2, own="\u202e\x1b]0;owned\x07")
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    write_rows((Column("name"),), [[{"name": "\u202e\x1b]0;owned\x07"}]], "csv", harmless_output())
    assert out.getvalue() == "name\n\\u202e\\x1b]0;owned\\x07\n"
    with contextlib.suppress(SystemExit):
        main(["tables", str(run), "--table", "iterations", "--format", "csv"])
    assert len(out.getvalue().splitlines()) > 3
    assert "\x1b" not in out.getvalue()
    assert "\u202e" not in out.getvalue()


def test_a_link_that_leads_nowhere_is_refused_before_anything_is_read(tmp_path, capsys):
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "none" / "t.csv")
    assert not link.exists()
    (tmp_path / "no-run.h5").write_bytes(b"is not read")
    line = refused(capsys, "tables", tmp_path / "no-run.h5", "--format", "csv", "-o", link)
    assert f"{tmp_path}/none is no directory: make it first" in line
