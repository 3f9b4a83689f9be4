"""Marks timed by a GPU's own events, with a GPU whose clock and delays are known."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from powerd_client import Meter, open_run
from powerd_client.accelerator import Timing, begin_timing
from powerd_client.device import DeviceTimer
from powerd_client.framefile import FrameFile
from powerd_client.markwriter import MarkWriter
from powerd_client.tails import FrameTail
from powerd_core.clock import map_clock
from powerd_core.errors import ConfigError
from powerd_core.marks import Edges
from powerd_core.model import ClockExchange
from powerd_core.wire import Event, FrameReader, Garbage, Message
from support.fake_torch import FakeStream, FakeTorch, host_ns


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.torch = FakeTorch()
        self.writer = MarkWriter(directory)
        self.timer = DeviceTimer(self.writer, FrameFile(directory, self.writer.token), self.torch)

    def events(self) -> list[Event | Garbage]:
        reader = FrameReader()
        data = b"".join(path.read_bytes() for path in sorted(self.directory.glob("frames-*.bin")))
        return [event for event, _ in reader.feed(data)]

    def edges(self) -> dict[int, int]:
        return {n: t for event in self.events() if isinstance(event, Edges) for n, t in event}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.timer.close()
    bench.writer.close()


def test_device_times_map_to_the_moments_at_which_the_gpu_passed(bench: Bench) -> None:
    kind = bench.writer.kind("forward", {}, "device")
    for _ in range(50):
        bench.timer.mark(kind)
        bench.torch.work(2.0)
        bench.timer.mark(~kind)
    bench.timer.close()
    exchanges = [e for e in bench.events() if isinstance(e, ClockExchange)]
    (piece,) = map_clock(exchanges)
    edges = bench.edges()
    assert sorted(edges) == list(range(100))
    for number, truth_ns in enumerate(bench.torch.passed_ns):
        offset, low, high = piece.at(edges[number])
        assert low <= truth_ns - edges[number] <= high
        assert abs(edges[number] + offset - truth_ns) < 200_000
    assert bench.timer.failure is None
    assert bench.timer.unresolved == 0


def test_the_clock_is_described_once_before_its_times(bench: Bench) -> None:
    bench.timer.mark(0)
    bench.timer.close()
    events = bench.events()
    clocks = [e for e in events if isinstance(e, Message)]
    assert [c.subject for c in clocks] == ["device-clock"]
    assert clocks[0].body["name"] == "Fake GPU"
    assert events.index(clocks[0]) == 0
    assert {e.epoch for e in events if isinstance(e, ClockExchange)} == {clocks[0].body["clock"]}
    assert {e.clock for e in events if isinstance(e, Edges)} == {clocks[0].body["clock"]}


def test_marking_waits_for_nothing(bench: Bench) -> None:
    bench.torch.work(300.0)
    before = len(bench.torch.passed_ns)
    for _ in range(10):
        bench.timer.mark(0)
    assert len(bench.torch.passed_ns) == before + 10
    assert not any(event for event in bench.events() if isinstance(event, Edges)), "the GPU is still at work"
    bench.timer.close()
    assert sorted(bench.edges()) == list(range(10))


def test_an_anchor_that_would_wait_is_dropped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(FakeStream):
        def __init__(self, device: int = 0) -> None:
            super().__init__(device)
            self.busy_until_ns = host_ns() + 30_000_000  # other streams' work in the same queue

    monkeypatch.setattr(bench.torch.cuda, "Stream", Busy)
    kind = bench.writer.kind("forward", {}, "device")
    begin = host_ns()
    bench.timer.mark(kind)
    bench.timer.mark(~kind)
    waited_ns = host_ns() - begin
    bench.timer.close()
    (exchange,) = [e for e in bench.events() if isinstance(e, ClockExchange)]
    assert exchange.t1_host_ns > begin + waited_ns  # the last one's, when nothing is held up any more
    assert len(bench.edges()) == 2


def test_a_failing_event_leaves_the_marks(bench: Bench) -> None:
    bench.timer.mark(0)
    bench.torch.fail = RuntimeError("an illegal memory access was encountered")
    bench.timer.mark(~0)
    bench.timer.mark(0)
    assert "illegal memory access" in str(bench.timer.failure)
    assert bench.writer.failure is None
    assert bench.writer.mark_at(0, 1) == 3, "three marks were written, each once"


def test_a_captured_graph_is_marked_by_the_host(bench: Bench) -> None:
    bench.torch.capturing = True
    bench.timer.mark(0)
    bench.torch.capturing = False
    bench.timer.mark(~0)
    bench.timer.close()
    assert sorted(bench.edges()) == [1]
    assert bench.timer.unresolved == 1


def test_frames_are_split_into_pieces(tmp_path: Path) -> None:
    file = FrameFile(tmp_path, 5, piece_bytes=300)
    for number in range(10):
        file.write(Edges.of(5, 9, [(number, 1000 + number)] * 3))
    file.close()
    pieces = sorted(tmp_path.glob("frames-*.bin"))
    assert len(pieces) > 2
    assert all(piece.stat().st_size <= 300 for piece in pieces)
    found = [event for piece in pieces for event, _ in FrameReader().feed(piece.read_bytes())]
    assert [next(iter(event))[0] for event in found] == list(range(10))


def test_phases_of_a_run_stand_where_the_gpu_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Meter to run file: the host only queues, so its own times would be far too early."""
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    with Meter(out=tmp_path / "run.h5") as meter:
        for _ in range(20):
            with meter.phase("forward"):
                torch.work(3.0)
            with meter.phase("backward"):
                torch.work(6.0)
    with open_run(tmp_path / "run.h5") as file:
        kinds = [json.loads(k) for k in file["phases/kinds"].asstr()]
        assert {k["timing"] for k in kinds} == {"device"}
        begin, end = file["phases/begin_ns"][:], file["phases/end_ns"][:]
        truth = np.array(torch.passed_ns)
        assert np.abs(begin - truth[0::2]).max() < 200_000
        assert np.abs(end - truth[1::2]).max() < 200_000
        assert any(name.startswith("Fake GPU 0-") for name in file["clocks"])
        assert not [m for m in file["messages"].asstr() if "host's time only" in m]


def test_a_device_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(ConfigError, match="torch has no GPU here"):
        Meter("tcp://127.0.0.1:1", tmp_path / "run.h5", device="cuda")
    with pytest.raises(ConfigError, match="'cuda', 'accelerator', 'host' or 'auto'"):
        Meter("tcp://127.0.0.1:1", tmp_path / "run.h5", device="tpu")  # type: ignore[arg-type]


def test_frames_are_given_once_and_spent_pieces_go(tmp_path: Path) -> None:
    file = FrameFile(tmp_path, 5, piece_bytes=200)
    tail = FrameTail(tmp_path, consume=True)
    seen = []
    for number in range(10):
        file.write(Edges.of(5, 9, [(number, 1000)] * 3))
        seen += [next(iter(event))[0] for event, _ in tail.read()]
    file.close()
    assert seen == list(range(10))
    tail.read()
    assert len(list(tmp_path.glob("frames-*.bin"))) == 1


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    bench = Bench(tmp_path)
    bench.timer.close()
    bench.timer.close()
    bench.writer.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_a_thread_the_host_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    writer = MarkWriter(tmp_path)
    mark, timer, name = begin_timing(Timing("device", FakeTorch()), writer, tmp_path, speaks=True)
    assert (mark, timer, name) == (writer.mark, None, "host")
    assert "phases are timed by the host: can't start new thread" in next(tmp_path.glob("*.names")).read_text()
    writer.close()
