"""`powerd keys` and the key directory on a disk."""

from __future__ import annotations

import shlex
import stat
import threading
from pathlib import Path

import pytest

from powerd_daemon.auth import KeyDirectory, make_pair
from powerd_daemon.cli import main


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "k"
    monkeypatch.setenv("POWERD_KEYS", str(directory))
    return directory


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["keys", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["keys", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def pasted(output: str, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Run the command that a command printed, as a shell would take it, with another key directory."""
    monkeypatch.setenv("POWERD_KEYS", str(directory))
    line = next(line for line in output.splitlines() if line.startswith("    powerd keys "))
    assert main(shlex.split(line)[1:]) == 0


def test_the_printed_commands_introduce_board_and_client(
    keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    board, client = KeyDirectory(keys), KeyDirectory(tmp_path / "c")
    first = said(capsys, "server", "--address", "board:7360")
    assert said(capsys, "server", "--address", "board:7360").replace("already there:", "made") == first
    pasted(first, monkeypatch, client.path)
    made = said(capsys, "client", "--name", "lab.pc")
    pasted(made.partition("\n")[2], monkeypatch, board.path)
    credentials, own = client.credentials("tcp://board:7360"), board.server()
    assert credentials is not None
    assert own is not None
    assert credentials.board == own.public
    assert board.clients()["lab.pc"].public == credentials.own.public
    listed = said(capsys, "list", "--keys", str(board.path)) + said(capsys, "list", "--keys", str(client.path))
    for public in (own.public, credentials.own.public, "lab.pc", "board:7360", " read "):
        assert public in listed
    for secret in (own.secret, credentials.own.secret):
        assert secret not in first + made + listed


def test_the_printed_commands_have_the_directory_that_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "of the board"
    made = said(capsys, "client", "--name", "lab", "--keys", str(given))
    pasted(made, monkeypatch, tmp_path / "elsewhere")
    told = capsys.readouterr().out
    assert f"lab may read from the board whose keys are in {given}" in told
    assert f"no board has its keys there yet: powerd keys server --keys '{given}'" in told
    pasted(said(capsys, "server", "--address", "b:1", "--keys", str(given)), monkeypatch, tmp_path / "elsewhere")
    assert (set(KeyDirectory(given).clients()), set(KeyDirectory(given).boards())) == ({"lab"}, {"b:1"})
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("name", "mode"), [("server.toml", 0o640), ("clients.toml", 0o664), ("", 0o777)])
def test_what_others_could_read_or_change_is_refused(
    keys: Path, name: str, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("server",), ("client",), ("allow", "a", "a" * 40)):
        said(capsys, *arguments)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in keys.iterdir()}
    assert modes == {"server.toml": 0o600, "client.toml": 0o600, "clients.toml": 0o644}
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    (keys / name).chmod(mode)
    assert "run `chmod" in refused(capsys, "list")


def test_roles_and_revoking(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "allow", "a", "a" * 40)
    said(capsys, "allow", "b", "b" * 40, "--role", "control")
    said(capsys, "allow", "a", "a" * 40, "--role", "control")
    said(capsys, "allow", "a", "a" * 40)
    assert {c.name: c.role for c in KeyDirectory(keys).clients().values()} == {"a": "control", "b": "control"}
    said(capsys, "revoke", "b")
    assert set(KeyDirectory(keys).clients()) == {"a"}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["allow", "a", "b" * 40], "powerd keys revoke a"),
        (["allow", "c", "a" * 40], "'a'"),
        (["allow", "c", "short"], "KEY"),
        (["allow", "-", "c" * 40], "NAME"),
        (["revoke", "aa"], "'aa'"),
        (["trust", "board", "a" * 40], "HOST:PORT"),
        (["trust", "b:1", "c" * 40], "--replace"),
        (["client", "--name", "a b"], "--name"),
    ],
)
def test_bad_requests(arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "allow", "a", "a" * 40)
    said(capsys, "trust", "b:1", "b" * 40)
    assert name in refused(capsys, *arguments)


def test_two_commands_at_once_lose_nothing(keys: Path) -> None:
    pairs = [make_pair() for _ in range(8)]
    commands = [["keys", "allow", f"c{i}", pair.public] for i, pair in enumerate(pairs)]
    threads = [threading.Thread(target=main, args=(command,)) for command in commands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(KeyDirectory(keys).clients()) == {f"c{i}" for i in range(8)}
