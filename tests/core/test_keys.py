"""Key files as texts: read strictly, and no message repeats what may be a secret."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_core.errors import ConfigError
from powerd_core.keys import (
    AllowedClient,
    Credentials,
    KeyPair,
    board_address,
    control_url,
    find_credentials,
    parse_boards,
    parse_clients,
    parse_pair,
)

A, B, C = "a" * 40, "B" * 40, ".-:+=^!/*?" * 4
SECRET = "S3cr3t" * 6 + "abcd"


@pytest.mark.parametrize(
    "text",
    [
        f'public = "{A}"\nsecret = "{SECRET}x"',
        f'public = "{A}"\nsecret = {SECRET}',
        f'public = "{A}"\nsecret = "{SECRET}',
        f'public = "{A}"\nsecret = ["{SECRET}"]',
        f'public = "{A}"\n"{SECRET}" = 1\n',
        f'public = "{SECRET}x"\nsecret = "{A}"',
        f"{SECRET}\n{SECRET}",
        f'secret = "{SECRET}"',
        f'secret = "{SECRET}"\nsecret = "{SECRET}"',
        "",
    ],
)
def test_a_bad_pair_is_told_without_its_secret(text: str) -> None:
    with pytest.raises(ConfigError, match="^f: ") as caught:
        parse_pair(text, "f")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_clients_and_boards() -> None:
    text = f'[clients.lab]\npublic = "{A}"\nrole = "read"\n[clients."a.b"]\npublic = "{C}"\nrole = "control"'
    assert parse_clients(text, "f") == {
        "lab": AllowedClient("lab", A, "read"),
        "a.b": AllowedClient("a.b", C, "control"),
    }
    assert parse_clients("", "f") == {}
    assert parse_boards(f'"Board:07360" = "{A}"\n"[FE80::1]:7360" = "{B}"', "f") == {
        "board:7360": A,
        "[fe80::1]:7360": B,
    }


@pytest.mark.parametrize(
    "text",
    [
        f'[clients.lab]\npublic = "{A}"\nrole = "root"',
        '[clients.lab]\npublic = "short"\nrole = "read"',
        f'[clients.lab]\npublic = "{A}"',
        f'[clients.lab]\npublic = "{A}"\nrole = "read"\nadmin = 1',
        f'[clients."-x"]\npublic = "{A}"\nrole = "read"',
        f'[clients."a b"]\npublic = "{A}"\nrole = "read"',
        f'[clients.a]\npublic = "{A}"\nrole = "read"\n[clients.b]\npublic = "{A}"\nrole = "control"',
        "clients = 1",
        "[clients]\nlab = 1",
        "[client.a]\n",
        "[clients",
    ],
)
def test_bad_clients(text: str) -> None:
    with pytest.raises(ConfigError, match="^f: "):
        parse_clients(text, "f")


@pytest.mark.parametrize("text", [f'board = "{A}"', f'"b:1" = "{A}"\n"B:01" = "{A}"', '"b:1" = "x"', '"b:1" = 1'])
def test_bad_boards(text: str) -> None:
    with pytest.raises(ConfigError, match="^f: '[Bb]"):
        parse_boards(text, "f")


@settings(max_examples=30)
@given(st.text(max_size=200))
def test_any_text_is_keys_or_our_error(text: str) -> None:
    for parse in (parse_pair, parse_clients, parse_boards):
        try:
            parse(text, "f")
        except ConfigError:
            continue


@given(st.text(max_size=60))
def test_an_address_is_its_own_address(text: str) -> None:
    address = board_address(text)
    assert address is None or board_address(f"tcp://{address}") == board_address(address) == address


def test_credentials_are_found_by_address() -> None:
    files = {"boards.toml": f'"board:7360" = "{B}"', "client.toml": f'public = "{A}"\nsecret = "{SECRET}"'}

    def read(name: str, is_secret: bool) -> str | None:
        assert is_secret == (name == "client.toml")
        return files.get(name)

    assert find_credentials("tcp://Board:7360", "d", read) == Credentials(KeyPair(A, SECRET), B)
    assert find_credentials("tcp://board:7361", "d", read) is None
    assert find_credentials("ipc:///board:7360", "d", read) is None
    del files["client.toml"]
    with pytest.raises(ConfigError, match="powerd keys client"):
        find_credentials("tcp://board:7360", "d", read)
    files.clear()
    assert find_credentials("tcp://board:7360", "d", read) is None


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("board", "tcp://board:7360"),
        ("board:7361", "tcp://board:7361"),
        ("tcp://board", "tcp://board:7360"),
        ("tcp://192.168.7.2:7360", "tcp://192.168.7.2:7360"),
        ("[::1]", "tcp://[::1]:7360"),
        ("ipc:///run/powerd/powerd", "ipc:///run/powerd/powerd"),
    ],
)
def test_spellings_of_an_address(text, url):
    assert control_url(text) == control_url(url) == url
