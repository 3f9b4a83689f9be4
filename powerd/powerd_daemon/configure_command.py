"""`powerd configure`: show or replace the configuration of a powerd, here or elsewhere."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from powerd_core.errors import ConfigError, PeerError, PeerTimeout
from powerd_core.text import printable
from powerd_core.wire import Message
from powerd_daemon.asking import Board
from powerd_daemon.sockets import MAX_REQUEST_BYTES
from powerd_daemon.textfile import read_text

MAX_TEXT_BYTES = MAX_REQUEST_BYTES // 2
"""JSON may write a character with more bytes than the file has."""
RESTART_S = 90.0
"""Opening a sensor may take a minute."""


def configure(arguments: argparse.Namespace) -> int:
    """Raises `PowerdError`, also for a configuration that was tried and does not start."""
    with Board(arguments.url, arguments.keys) as board:
        if arguments.file is None:
            text = str(_asked(board).body.get("text"))
            print("".join(c if c in "\n\t" else printable(c) for c in text), end="")
            return 0
        answer = _asked(board, {"text": _text(arguments.file), "name": str(arguments.file)})
        outcome = _await_restart(board, answer.epoch)
    if outcome:
        raise PeerError(f"{arguments.file}: {outcome}")
    print(f"the powerd at {arguments.url} runs with {arguments.file}")
    return 0


def _asked(board: Board, body: dict[str, object] | None = None) -> Message:
    try:
        return board.ask("configure", body, timeout_ms=None if body is None else 10_000)
    except PeerError as error:
        if "unknown subject" not in str(error):
            raise
        raise PeerError(
            f"the powerd at {board.url} has no configuration to show or replace: start it with powerd run --config FILE"
        ) from error


def _text(file: Path) -> str:
    text = read_text(file, "there is no such configuration file")
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise ConfigError(f"{file}: longer than {MAX_TEXT_BYTES} bytes: put it onto the board itself")
    return text


def _await_restart(board: Board, epoch: int) -> str:
    """What the powerd's next life says of the change."""
    end_s = time.monotonic() + RESTART_S
    last: PeerError | None = None
    while time.monotonic() < end_s:
        try:
            answer = board.ask("configure", timeout_ms=1000)
        except PeerError as error:  # while it starts
            last = error
        else:
            if answer.epoch != epoch:
                return str(answer.body.get("outcome", ""))
        time.sleep(0.1)
    raise PeerTimeout(f"the powerd at {board.url} took the configuration and has not come back: {last}")
