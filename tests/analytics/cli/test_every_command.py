"""What every `joules` command says of files that it cannot use: one line, exit status 2, and nothing written."""

from pathlib import Path

import pytest

from powerd_analytics import cli

COMMANDS = {
    "clock": (), "compare": ("OTHER",), "info": (), "index": ("--out", "made.parquet"), "layers": (),
    "operations": ("--format", "json", "-o", "made.json"), "pick": ("--reference", "model=a", "--metric", "edp"),
    "plot": ("-o", "made.png"), "query": ("select 1",), "recover": ("-o", "made.h5"), "report": ("-o", "made.html"),
    "tables": ("-o", "made.csv", "--format", "csv"), "top": ("--once",), "totals": (), "trace": ("-o", "made.json"),
    "uncertainty": (), "verify": (),
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


@pytest.mark.parametrize("name", ["absent.h5", "directory.h5", "text.h5", "empty.h5"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_run_is_one_line_and_status_2(
    files: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    options = [name if word == "OTHER" else word for word in COMMANDS[command]]
    asked = [command, *(("--run",) if command == "top" else ()), name, *options]
    before = sorted(files.rglob("*"))
    code, out, err = said(capsys, *asked)
    if command == "verify" and name in ("text.h5", "empty.h5"):
        assert (code, err) == (1, "")  # a file that does not hold what must hold is this command's result
        assert "WRONG  structure: " in out
    else:
        assert code == 2
        assert out == ("" if command != "verify" else f"{name}\n")
        assert err.startswith("joules: ")
        assert err.count("\n") == 1
        assert name in err
        assert "Traceback" not in err
        assert "Errno" not in err
    assert sorted(files.rglob("*")) == before


def test_every_command_is_in_this_list(capsys: pytest.CaptureFixture[str]) -> None:
    """But those whose mistakes other tests make."""
    code, out, _ = said(capsys, "--help")
    assert code == 0
    names = {line.split()[1] for line in out.splitlines() if line.startswith("│ ") and line[2:3].isalpha()}
    assert names == {*COMMANDS, "record", "tag", "completion"}


def test_recover_does_not_replace_a_directory(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "recover", "text.h5", "-o", "directory.h5", "--overwrite")
    assert (code, err) == (2, "joules: directory.h5 is a directory: give the name of a file in it\n")
