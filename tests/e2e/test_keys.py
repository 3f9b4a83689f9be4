"""docs/howto/security.md, typed in: a board and a training host with a key directory each, and real processes."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from powerd_client.meter import Meter
from powerd_core.errors import PeerError
from powerd_daemon.cli import main

DOCS = Path(__file__).parents[2] / "docs" / "howto" / "security.md"
PATIENCE_S = 60.0


class Place:
    """A machine, as far as keys go: a home of its own."""

    def __init__(self, home: Path, port: int) -> None:
        home.mkdir()
        self.home = home
        self.port = port
        self.environment = {k: v for k, v in os.environ.items() if k not in ("POWERD_KEYS", "XDG_CONFIG_HOME")}
        self.environment["HOME"] = str(home)

    def words(self, line: str) -> list[str]:
        """A line of the walk-through as a shell would see it, with this machine for the board."""
        here = line.replace("tcp://*:7360", f"tcp://127.0.0.1:{self.port}").replace(
            "board:7360", f"127.0.0.1:{self.port}"
        )
        name, *rest = shlex.split(here)
        module = {"powerd": "powerd_daemon", "joules": "powerd_analytics"}[name]
        return [sys.executable, "-P", "-m", module, *rest]

    def run(self, line: str, status: int = 0) -> str:
        """What a command prints; `powerd` in this process, which saves the start of one."""
        module, *arguments = self.words(line)[3:]
        if module == "powerd_daemon":
            out, err = io.StringIO(), io.StringIO()
            with patch.dict(os.environ, self.environment, clear=True), redirect_stdout(out), redirect_stderr(err):
                assert main(arguments) == status, err.getvalue()
            return (out if status == 0 else err).getvalue()
        done = subprocess.run(
            self.words(line),
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr


@contextmanager
def serving(place: Place, line: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(place.words(line), env=place.environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "listens on" in process.stderr.readline()
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def free_ports() -> int:
    """A port with two free ones after it."""
    for _ in range(100):
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            try:
                with socket.create_server(("127.0.0.1", port + 1)), socket.create_server(("127.0.0.1", port + 2)):
                    return port
            except OSError:
                continue
    raise AssertionError("there are no three free ports in a row")


def walk_through() -> list[str]:
    section = DOCS.read_text().partition("## Keys, step by step")[2].partition("### Where keys are")[0]
    return re.findall(r"^    (\S.*)$", section, re.MULTILINE)


def printed(output: str, line: str) -> str:
    """The command that one side printed for the other; the walk-through has a name where the key is."""
    command = next(row.strip() for row in output.splitlines() if row.startswith("    powerd keys "))
    assert command.split()[:3] == line.split()[:3]
    return command


@pytest.mark.timeout(120)
def test_the_walk_through_works_as_it_stands(tmp_path: Path) -> None:
    port = free_ports()
    board, host = Place(tmp_path / "board", port), Place(tmp_path / "host", port)
    server, trust, client, allow, run, describe, record = walk_through()
    host.run(printed(board.run(server), trust))
    board.run(printed(host.run(client), allow))
    # Loopback stands for the network here, so that keys must be asked for by name.
    run += f" --keys {board.home}/.config/powerd"
    with serving(board, run):
        assert "who may read: keys" in host.run(describe)
        (host.home / "train.py").write_text("import time\ntime.sleep(0.3)\n")
        host.run(record.replace("python train.py", f"{sys.executable} train.py"))
        assert (host.home / "run.h5").stat().st_size > 0
        # The board reaches itself with its own keys.
        assert "handshakes_failed: 0" in board.run(describe.replace("describe", "stats"))
        board.run("powerd keys revoke lab")
        assert "powerd keys allow NAME '" in host.run(describe, status=2)
        with pytest.raises(PeerError, match="powerd keys allow"):
            Meter(f"tcp://127.0.0.1:{port}", host.home / "three.h5", keys=host.home / ".config" / "powerd")
    assert not list(host.home.glob("t*.h5*"))
