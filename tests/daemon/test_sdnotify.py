"""What the service manager is told, and that pings stop when the loop does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_harness import PATIENCE_S

from powerd_daemon.sdnotify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "n"))
        receiver.settimeout(PATIENCE_S)
        yield receiver


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname()} | more


def heard(manager: socket.socket) -> list[bytes]:
    manager.setblocking(False)
    found = []
    try:
        while True:
            found.append(manager.recv(4096))
    except BlockingIOError:
        return found


def test_ready_and_stopping(manager: socket.socket) -> None:
    notifier = Notifier(environment(manager))
    notifier.ready("serving on\ntcp://here")
    notifier.stopping()
    assert heard(manager) == [b"READY=1\nSTATUS=serving on tcp://here", b"STOPPING=1"]


def test_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0powerd-test-{os.getpid()}")
        Notifier({"NOTIFY_SOCKET": f"@powerd-test-{os.getpid()}"}).stopping()
        assert heard(receiver) == [b"STOPPING=1"]


def test_pings_come_three_times_within_the_limit(manager: socket.socket) -> None:
    notifier = Notifier(environment(manager, WATCHDOG_USEC="9000000", WATCHDOG_PID="7"), pid=7)
    for now_ns in range(0, 9_000_000_001, 50_000_000):
        notifier.alive(now_ns)
    assert heard(manager) == [b"WATCHDOG=1"] * 4


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "9000000", "WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "soon"}])
def test_no_ping_where_none_is_wanted(manager: socket.socket, more: dict[str, str]) -> None:
    Notifier(environment(manager, **more), pid=7).alive(0)
    assert heard(manager) == []


def test_no_manager_or_one_that_is_gone(tmp_path: Path) -> None:
    Notifier({}).ready("x")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("x")


def test_powerd_run_tells_its_manager(manager: socket.socket, tmp_path: Path) -> None:
    told = os.environ | environment(manager, WATCHDOG_USEC="60000")
    told.pop("WATCHDOG_PID", None)
    arguments = ["run", "--sim", "--rate-hz", "50", "--quiet", "--listen", f"ipc://{tmp_path}/s"]
    process = subprocess.Popen([sys.executable, "-P", "-m", "powerd_daemon", *arguments], env=told)
    try:
        said = [manager.recv(4096)]
        while not said[-1].startswith(b"READY=1"):
            assert said[-1] == b"WATCHDOG=1"
            said.append(manager.recv(4096))
        assert said[-1].endswith(f"STATUS=serving on ipc://{tmp_path}/s".encode())
        assert manager.recv(4096) == b"WATCHDOG=1", "the serving loop pings too"
        process.send_signal(signal.SIGTERM)
        while manager.recv(4096) != b"STOPPING=1":
            pass
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
