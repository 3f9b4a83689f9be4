"""How phases are timed: by a GPU whose clock and delays are known, by waiting for an accelerator, by the host."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from powerd_client import Meter, open_run
from powerd_client.device_timing import DeviceTimer, Synchronized, choose_timing
from powerd_client.journal import FrameFile
from powerd_client.marks import MarkWriter
from powerd_core.clock import map_clock
from powerd_core.errors import ConfigError
from powerd_core.marks import Edges
from powerd_core.model import ClockExchange
from powerd_core.wire import Event, FrameReader, Garbage
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
    with pytest.raises(ConfigError, match="cuda"):
        Meter("tcp://127.0.0.1:1", tmp_path / "run.h5", device="cuda")
    with pytest.raises(ConfigError, match="device="):
        Meter("tcp://127.0.0.1:1", tmp_path / "run.h5", device="tpu")  # type: ignore[arg-type]


NO_CUDA = SimpleNamespace(is_available=lambda: False)


def accelerator(kind: str | None, waits: list[str]) -> SimpleNamespace:
    """`torch.accelerator`, from 2.6 on."""
    return SimpleNamespace(
        is_available=lambda: kind is not None,
        current_accelerator=lambda: SimpleNamespace(type=kind) if kind else None,
        synchronize=lambda: waits.append(str(kind)),
    )


def imported(monkeypatch: pytest.MonkeyPatch, **members: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**{"cuda": NO_CUDA, **members}))  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["auto", "accelerator"])
def test_an_accelerator_without_cuda_is_waited_for_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    waits: list[str] = []
    imported(monkeypatch, accelerator=accelerator("mps", waits))
    timing = choose_timing(device)
    assert (timing.name, timing.torch) == ("host-synchronised", None)
    assert bool(timing.remark) == (device == "auto")
    assert timing.synchronize is not None
    timing.synchronize()
    assert waits == ["mps"]


def test_a_forked_child_leaves_the_device_alone(tmp_path: Path) -> None:
    waits: list[int] = []
    writer = MarkWriter(tmp_path)
    mark = Synchronized(lambda: waits.append(1), writer)
    mark(0)
    child = os.fork()
    if child == 0:
        mark(~0)
        os._exit(len(waits))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    mark(~0)
    assert waits == [1, 1]
    writer.close()


def test_the_run_and_the_user_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    waits: list[str] = []
    imported(monkeypatch, accelerator=accelerator("mps", waits))
    with Meter(out=tmp_path / "run.h5") as meter, meter.phase("forward"):
        pass
    assert waits == ["mps", "mps"]
    text = capfd.readouterr().err.removeprefix("powerd: ").strip()
    assert "mps" in text
    with open_run(tmp_path / "run.h5") as file:
        assert json.loads(file["phases/kinds"].asstr()[0])["timing"] == "host-synchronised"
        assert text in [json.loads(m)["text"] for m in file["messages"].asstr()]
