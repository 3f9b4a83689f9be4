"""A whole powerd with sampler processes, from the source to a client's socket, and what its service manager is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import PATIENCE_S, running, steady_config

from powerd_core import Block, Gap, Message, PeerError, SensorError
from powerd_core.model import CLOCK_NAME, Column, Device, Line, Provenance, ShuntConversion, Stream
from powerd_core.serde import read_description
from powerd_daemon import daemon
from powerd_daemon.config import ServerConfig, parse_config
from powerd_daemon.daemon import Daemon, ring_seconds, spool_seconds
from powerd_daemon.supervisor import Supervisor


def sampler(stats: Any) -> Any:
    return stats["streams"][0]["sampler"]


def test_describe_stats_and_readings(tmp_path: Path) -> None:
    config = steady_config(tmp_path, 'lines = ["a", "b"]', more='[[device]]\nname = "slot"\nfeeds = ["b"]')
    with running(config) as powerd, powerd.control() as control:
        answer = control.ask(Message("describe", {"version": "x", "client": "test"}))
        description = read_description(answer.body)
        assert (description.board, description.clock) == ("bench", CLOCK_NAME)
        assert description.data_endpoint == f"ipc://{tmp_path}/s.data"
        assert 0 < description.epoch == answer.epoch < 2**63
        assert description.devices == (Device("dev", ("a", "b")), Device("slot", ("b",)))
        with powerd.data() as data:
            events = data.frames(0, 0, lambda got: len(got) >= 5)
            assert all(isinstance(e, Block) and e.epoch == description.epoch for e in events)
            stats = control.stats_when(lambda s: sampler(s).get("polls", 0) > 0)
        (stream,) = stats["streams"]
        assert stream["frames"] >= 5
        assert stream["scans"] >= stream["frames"]
        assert (stream["oldest"], stream["gaps"], stream["holes"]) == (0, 0, 0)
        assert stream["newest"] >= 4
        assert stream["ring_bytes"] > 0
        assert stats["clients"][0]["frames"] >= 5
        assert stats["garbage"] == {"control": 0, "data": 0, "clock": 0, "samplers": 0}
        assert stats["uptime_s"] > 0
    said = powerd.said.getvalue()
    assert f"listens on ipc://{tmp_path}/s (data on ipc://{tmp_path}/s.data)" in said
    assert "stream 0 steady: 2 lines at 1000 Hz, simulated, the ring lasts" in said
    assert "device slot = b" in said
    assert "powerd ran for" in said
    assert list(tmp_path.iterdir()) == [], "no socket stays behind"


def test_a_killed_sampler_is_restarted_with_a_gap_and_goes_on_counting(tmp_path: Path) -> None:
    with running(steady_config(tmp_path)) as powerd, powerd.control() as control, powerd.data() as data:
        before = data.frames(0, 0, lambda got: len(got) >= 3)
        os.kill(sampler(control.stats())["pid"], signal.SIGKILL)
        after = data.frames(
            0,
            before[-1].sequence + 1,
            lambda got: any(isinstance(e, Gap) for e in got) and isinstance(got[-1], Block),
        )
        (gap,) = [e for e in after if isinstance(e, Gap)]
        last = [*before, *after][gap.sequence - 1]
        assert (gap.cause, gap.span, gap.t_first_ns) == ("sampler restarted", 1, last.t_last_ns)
        assert gap.t_last_ns <= after[-1].t_first_ns
        stats = control.stats_when(lambda s: sampler(s).get("polls", 0) > 0)
        assert sampler(stats)["restarts"] == 1
        assert stats["streams"][0]["duplicates"] == 0
    assert "the sampler of source 'steady' was killed by signal 9; it is restarted in 0.1 s" in powerd.said.getvalue()


def test_a_powerd_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails last: what was opened before is let go of, and the next attempt finds it free."""
    config = parse_config(
        f'[server]\nlisten = "ipc://{tmp_path}/s"\nspool = "{tmp_path}/spool"\n[[source]]\nkind = "sim"\n', "test"
    )

    def full(*_: object) -> Supervisor:
        raise PeerError("no memory for the samplers")

    with monkeypatch.context() as patch:
        patch.setattr(daemon, "Supervisor", full)
        with pytest.raises(PeerError):
            Daemon(config)
    assert [p.name for p in tmp_path.iterdir()] == ["spool"]
    Daemon(config).close()


def test_a_driver_s_own_fault_restarts_its_sampler(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script"
    with running(steady_config(tmp_path, f'script = "{script}"')) as powerd, powerd.data() as data:
        data.frames(0, 0, lambda got: len(got) >= 1)
        script.write_text("bug")
        events = data.frames(0, 0, lambda got: any(isinstance(e, Gap) for e in got))
        script.unlink()
        assert isinstance(events[-1], Gap)
        assert events[-1].cause == "sampler restarted"
        assert script.with_suffix(".closed").exists(), "the sensor is let go of all the same"
    assert "KeyError" in capfd.readouterr().err, "its author is shown the traceback"


def test_other_lines_after_a_restart_stop_the_source(tmp_path: Path) -> None:
    script = tmp_path / "script"
    with running(steady_config(tmp_path, f'script = "{script}"')) as powerd, powerd.control() as control:
        pid = sampler(control.stats())["pid"]
        script.write_text("lines")
        os.kill(pid, signal.SIGKILL)
        stats = control.stats_when(lambda s: sampler(s)["state"] == "stopped")
        assert sampler(stats)["failure"] == "after its restart it describes other lines than before"
    assert "source 'steady' is stopped: after its restart" in powerd.said.getvalue()


def test_a_source_whose_description_cannot_be_sent_ends_powerd(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("huge")
    message = r"^test\.toml: .*: what it describes cannot be sent: .*period_ns: a number of more than 64 bits$"
    with pytest.raises(SensorError, match=message), running(steady_config(tmp_path, f'script = "{script}"')) as powerd:
        powerd.thread.join(PATIENCE_S)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "n"))
        receiver.settimeout(PATIENCE_S)
        yield receiver


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname()} | more


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


def rails(rate_hz: float, lines: int = 8) -> Stream:
    """A stream as sensors on I2C give it."""
    conversion = ShuntConversion(0.001, 1e-5, 4e-3)
    made = tuple(Line(f"l{i}", "gpu0", conversion, Provenance.MEASURED) for i in range(lines))
    return Stream(0, "rails", (Column("shunt", "h"), Column("bus", "H")), made, int(1e9 / rate_hz))


def test_eight_lines_at_a_kilohertz_last_ten_minutes_by_default() -> None:
    server = ServerConfig()
    seconds = ring_seconds(rails(1000), server.ring_bytes, server.block_ns)
    assert seconds == pytest.approx(666, abs=1)


def test_a_spool_lasts_for_all_streams_together() -> None:
    one = spool_seconds([rails(1000)], 1 << 30, 20_000_000)
    assert spool_seconds([rails(1000), rails(1000)], 1 << 30, 20_000_000) == pytest.approx(one / 2)
    assert one > ring_seconds(rails(1000), 1 << 30, 20_000_000), "a file has no overhead for each frame"
