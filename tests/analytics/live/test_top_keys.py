"""`joules top --keys`: the directory of keys that is named is the one that is read."""

from pathlib import Path

import pytest

from powerd_analytics import cli
from powerd_daemon.keys import KeyDirectory, make_pair

URL = "tcp://127.0.0.1:9"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Keys for the board at URL, with a secret that others could read: whoever reads them says so."""
    directory = KeyDirectory(tmp_path / "keys")
    with directory.changing():
        directory.write_pair("client.toml", make_pair())
        directory.write_boards({URL.removeprefix("tcp://"): make_pair().public})
    (tmp_path / "keys" / "client.toml").chmod(0o644)
    return tmp_path / "keys"


def test_the_named_directory_of_keys_is_read(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWERD_KEYS", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["top", URL, "--once", "--keys", str(keys)])
    said = capsys.readouterr().err
    assert str(keys) in said
    assert "others could read this secret" in said
