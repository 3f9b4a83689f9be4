"""The firmware as a process behind a pty, read by the real powerd through pyserial."""

import subprocess
import sys
from array import array
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon_harness import running

from powerd_core.model import BAD, Block, Gap, columns
from powerd_core.serde import read_description
from powerd_core.wire import Message
from powerd_daemon.config import parse_config

SENSORS = 4
SCRIPT = Path(__file__).parent / "support" / "node_process.py"


class NodeProcess:
    """A plugged-in node."""

    def __init__(self, link: Path) -> None:
        self.link = link
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, link, str(SENSORS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def unplug(self) -> None:
        # As udev does. A link that stayed could lead to another test's node, as the number of its terminal is free.
        self.link.unlink(missing_ok=True)
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


@contextmanager
def plugged(link: Path):
    node = NodeProcess(link)
    try:
        yield node
    finally:
        node.unplug()


def configuration(directory: Path, link: Path):
    tables = "".join(
        f'[[source.sensors]]\nname = "rail{i}"\naddress = {0x40 + i // 2}\ncontroller = {i % 2}\n'
        for i in range(SENSORS)
    )
    return parse_config(
        f'[server]\nlisten = "ipc://{directory}/s"\n[[source]]\nkind = "node"\nport = "{link}"\nrate_hz = 200\n'
        # A process on a busy machine answers echoes when it is its turn.
        f"clock_limit_us = 50000\n{tables}",
        "node.toml",
    )


def rows(block, stream, column, typecode):
    found = array(typecode, bytes(columns(block, stream)[column]))
    return [tuple(found[k : k + len(stream.lines)]) for k in range(0, len(found), len(stream.lines))]


@pytest.fixture
def link(tmp_path):
    return tmp_path / "ttyACM0"


def test_readings_garbage_marker_and_replugging(link, tmp_path):
    with plugged(link) as node, running(configuration(tmp_path, link)) as powerd:
        with powerd.control() as control:
            streams = read_description(control.ask(Message("describe")).body).streams
        assert [line.name for s in streams for line in s.lines] == [
            *(f"gpu0.rail{i}" for i in range(SENSORS)),
            "gpu0.marker",
            "gpu0.clock_bound",
        ]
        with powerd.data() as client:
            seen = client.frames(0, 0, lambda found: sum(b.count for b in found if isinstance(b, Block)) > 50)
            for _ in range(5):
                node.tell("garbage")
                following = len(seen) + 3
                seen = client.frames(0, 0, lambda found, n=following: len(found) >= n)
            node.tell("edge 1")
            node.tell("edge 0")
            marks = client.frames(1, 0, lambda found: edges(found, streams[1]) >= 2)
            node.unplug()
            again = client.frames(0, 0, lambda found: any("unplugged" in g.cause for g in gaps(found)))
            before = len(again)
            with plugged(link):
                made = client.frames(0, 0, lambda found: sum(isinstance(b, Block) for b in found[before:]) > 3)

    levels = [level for b in marks if isinstance(b, Block) for (level,) in rows(b, streams[1], "level", "B")]
    assert 1 in levels
    good = 0
    expected = [(1000 * (i + 1), (3000 + i) << 3 | 2) for i in range(SENSORS)]
    for block in (b for b in made if isinstance(b, Block)):
        flags = rows(block, streams[0], "flags", "H")
        shunts = rows(block, streams[0], "shunt", "h")
        buses = rows(block, streams[0], "bus", "H")
        for flag, shunt, bus in zip(flags, shunts, buses, strict=True):
            readings = list(zip(flag, zip(shunt, bus, strict=True), expected, strict=True))
            assert all(got == want for flags_of_one, got, want in readings if not flags_of_one & BAD), (block, readings)
            good += sum(not flags_of_one & BAD for flags_of_one, _, _ in readings)
    assert good > 50 * SENSORS
    told = [g for g in gaps(made) if "unplugged" in g.cause or "no such port" in g.cause or "answers" in g.cause]
    assert told
    last = max(b.t_last_ns for b in made[:before] if isinstance(b, Block))
    first = min(b.t_first_ns for b in made[before:] if isinstance(b, Block))
    assert told[0].t_first_ns == last
    assert last < told[-1].t_last_ns <= first + 50_000_000


def gaps(found):
    return [e for e in found if isinstance(e, Gap)]


def edges(found, stream):
    """The highest count of edges among the readings of the marker."""
    counts = [n for b in found if isinstance(b, Block) for (n,) in rows(b, stream, "edge", "H")]
    return max(counts, default=0)
