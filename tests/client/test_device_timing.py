"""How phases are timed: by a GPU whose clock and delays are known, by waiting for an accelerator, by the host; and how
far the edges of phases can be from the times that the run file has."""

import json
import os
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.runs.phases import read_phases
from powerd_client import Meter, open_run
from powerd_client.journals.device_timing import EVENT_NS, DeviceTimer, DeviceTimes, Synchronized, choose_timing
from powerd_client.journals.event_sampling import LOOKS, PAIRS, WARM_UP, EventSampling
from powerd_client.journals.journal import FrameFile
from powerd_client.journals.marks import MarkWriter
from powerd_client.runs.runfile import BOUND_COLUMNS, DIGEST, seal
from powerd_client.signals.pairing import PhaseSpans, pair_marks
from powerd_core.clock_comparison import map_clock
from powerd_core.marks import RECORD, Edges, Mark
from powerd_core.model import ClockExchange
from powerd_core.wire import FrameReader, Message
from support.fake_torch import FakeStream, FakeTorch, host_ns
from support.small_run import make_run_file, wrong

CLOCK, PROCESS = 9, 4


class Bench:
    def __init__(self, directory, sampling=None):
        self.directory = directory
        self.torch = FakeTorch()
        self.writer = MarkWriter(directory)
        self.timer = DeviceTimer(self.writer, FrameFile(directory, self.writer.token), self.torch, sampling)

    def events(self, kind):
        reader = FrameReader()
        data = b"".join(path.read_bytes() for path in sorted(self.directory.glob("frames-*.bin")))
        return [event for event, _ in reader.feed(data) if isinstance(event, kind)]

    def edges(self):
        return {n: t for event in self.events(Edges) for n, t in event}


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.timer.close()
    bench.writer.close()


def test_device_times_map_to_the_moments_at_which_the_gpu_passed(bench):
    kind = bench.writer.kind("forward", {}, "device")
    for _ in range(50):
        bench.timer.mark(kind)
        bench.torch.work(2.0)
        bench.timer.mark(~kind)
    bench.timer.close()
    (piece,) = map_clock(bench.events(ClockExchange))
    edges = bench.edges()
    assert sorted(edges) == list(range(100))
    for number, truth_ns in enumerate(bench.torch.passed_ns):
        offset, low, high = piece.at(edges[number])
        assert low <= truth_ns - edges[number] <= high
        assert abs(edges[number] + offset - truth_ns) < 200_000
    assert bench.timer.failure is None


def test_marking_waits_for_nothing(bench):
    bench.torch.work(300.0)
    before = len(bench.torch.passed_ns)
    for _ in range(10):
        bench.timer.mark(0)
    assert len(bench.torch.passed_ns) == before + 10
    assert not bench.events(Edges), "the GPU is still at work"
    bench.timer.close()
    assert sorted(bench.edges()) == list(range(10))


def test_an_anchor_that_would_wait_is_dropped(bench, monkeypatch):
    class Busy(FakeStream):
        def __init__(self, device=0):
            super().__init__(device)
            self.busy_until_ns = host_ns() + 30_000_000  # other streams' work in the same queue

    monkeypatch.setattr(bench.torch.cuda, "Stream", Busy)
    bench.timer.mark(0)
    bench.timer.mark(~0)
    marked_ns = host_ns()
    bench.timer.close()
    (exchange,) = bench.events(ClockExchange)
    assert exchange.t1_host_ns > marked_ns  # the last one's, when nothing is held up any more
    assert len(bench.edges()) == 2


def test_two_threads_that_come_to_a_devices_first_mark_at_once_have_one_clock(bench, monkeypatch):
    others = []

    class Slow(FakeStream):
        """While the first thread makes it, another one marks."""

        def __init__(self, device=0):
            super().__init__(device)
            if not others:
                others.append(threading.Thread(target=bench.timer.mark, args=(0,)))
                others[0].start()
                others[0].join(0.2)

    monkeypatch.setattr(bench.torch.cuda, "Stream", Slow)
    bench.timer.mark(0)
    others[0].join()
    bench.timer.close()
    assert len(bench.events(Message)) == 1
    assert sorted(bench.edges()) == [0, 1]


def test_a_failing_event_leaves_the_marks(bench):
    bench.timer.mark(0)
    bench.torch.fail = RuntimeError("an illegal memory access was encountered")
    bench.timer.mark(~0)
    bench.timer.mark(0)
    assert "illegal memory access" in bench.timer.failure
    assert bench.writer.failure is None
    assert bench.writer.mark_at(0, 1) == 3, "three marks were written, each once"


def test_marks_of_iterations_without_events_are_moved_by_the_gpus_lag(tmp_path):
    """A GPU that waits for the host: 0.1 ms of work behind every begin."""
    bench = Bench(tmp_path, sampling := EventSampling())
    timer = bench.timer
    kind = bench.writer.kind("update", {}, "device")
    for _ in range(WARM_UP + LOOKS + 2 * PAIRS + 1):
        timer.mark(kind)
        bench.torch.work(0.1)
        while host_ns() < bench.torch.stream.busy_until_ns:
            pass
        timer.mark(~kind)
        timer.turn(~kind)
    assert sampling.is_settled
    timer.close()
    bench.writer.close()
    times = DeviceTimes()
    for message in bench.events(Message):
        take = times.add_sampling if message.subject == "device-sampling" else partial(times.add_clock, message.epoch)
        take(message.body)
    for edges in bench.events(Edges):
        times.add_edges(edges)
    exchanges = {}
    for exchange in bench.events(ClockExchange):
        exchanges.setdefault(exchange.epoch, []).append(exchange)
    times.map_all(exchanges)
    (segment,) = bench.directory.glob("marks-*.bin")
    marks = list(
        times.marks(
            bench.writer.token,
            {0: segment.read_bytes()[: 2 * (WARM_UP + LOOKS + 2 * PAIRS + 1) * RECORD.size]},
            {kind: "device"},
        )
    )
    assert times.moved >= PAIRS, "half of the pairs went without"
    assert times.unresolved == 0
    assert all(mark.bound_ns > 0 for mark in marks)


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """A run timed by a GPU whose truth is known, and the times at which it passed the marks: the host only queues."""
    out, torch = tmp_path_factory.mktemp("timed") / "run.h5", FakeTorch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", torch)
        with Meter(out=out) as meter:
            for _ in range(20):
                with meter.phase("work"):
                    torch.work(3.0)
            while host_ns() < torch.stream.busy_until_ns:  # the host's own time is to come after the device's
                time.sleep(0.001)
            torch.capturing = True
            meter.begin("captured")
            torch.capturing = False
            meter.end("captured")
            meter.begin("lost")
    return out, np.array(torch.passed_ns)


def test_the_truth_lies_within_the_bound(timed):
    out, truth = timed
    with open_run(out) as file:
        assert {json.loads(k)["timing"] for k in file["phases/kinds"].asstr()} == {"device"}
        assert any(name.startswith("Fake GPU 0-") for name in file["clocks"])
        for side, name, passed in (("begin", "begin_bound_ns", truth[0:40:2]), ("end", "end_bound_ns", truth[1:40:2])):
            edge, bound = file[f"phases/{side}_ns"][:20], file[f"phases/{name}"][:20]
            assert file[f"phases/{name}"].attrs["units"] == "ns"
            assert (bound > EVENT_NS).all()
            assert (bound < 5_000_000).all()
            assert (np.abs(edge - passed) <= bound).all()


def test_an_edge_of_which_only_the_host_knows_has_no_bound(timed):
    with open_run(timed[0]) as file:
        phases = read_phases(file["phases"])
    assert phases.begin_bound_ns[20] == -1, "captured into a graph"
    assert phases.end_bound_ns[20] > 0
    assert phases.begin_bound_ns[21] > 0
    assert phases.end_bound_ns[21] == -1, "never ended: cut at the end of the run"
    assert len(phases) == 22
    assert wrong(timed[0]) == {}


def test_files_of_earlier_releases_have_zeros(tmp_path):
    path = make_run_file(tmp_path / "run.h5")
    with h5py.File(path, "r+") as file:
        for name in BOUND_COLUMNS:
            del file["phases"][name]
        file.attrs.pop(DIGEST)
        seal(file)
    assert wrong(path) == {}
    with open_run(path) as file:
        assert read_phases(file["phases"]).end_bound_ns.tolist() == [0] * 11


@given(
    st.lists(st.integers(1, 10**7), min_size=2, max_size=20),
    st.lists(st.integers(0, 50_000), min_size=20, max_size=20),
    st.integers(-50, 50),
)
def test_whatever_the_anchors_and_the_drift_the_bound_holds(steps, delays, drift_ppm):
    """A device's clock 1 s behind and up to 50 ppm off; each anchor lies anywhere between its two host times."""
    at = np.cumsum(steps).tolist()

    def device_ns(t_host_ns):
        return 10**9 + t_host_ns + t_host_ns * drift_ppm // 10**6

    anchors = [
        ClockExchange(CLOCK, t - d // 3, device_ns(t), device_ns(t), t + d + 1)
        for t, d in zip(at, delays, strict=False)
    ]
    times = DeviceTimes(edges={PROCESS: {}}, pieces={CLOCK: map_clock(anchors)})
    truth = list(range(0, at[-1] + 1000, max(1, at[-1] // 7)))
    times.add_edges(Edges.of(PROCESS, CLOCK, [(n, device_ns(t)) for n, t in enumerate(truth)]))
    records = b"".join(RECORD.pack(0, 1, t + 5) for t in truth) + RECORD.pack(0, 1, 77) + RECORD.pack(1, 1, 78)
    *marks, unknown, host = times.marks(PROCESS, {0: records}, {0: "device", 1: "host"})
    assert all(abs(mark.t_host_ns - t) <= mark.bound_ns for mark, t in zip(marks, truth, strict=True))
    assert (unknown.t_host_ns, unknown.bound_ns, host.bound_ns) == (77, -1, 0)


def test_an_edge_that_is_moved_forward_keeps_its_truth_within_the_bound():
    """On two streams of a device one mark can be passed before another that was made earlier."""
    phases = PhaseSpans()
    begins = [Mark(0, True, 1, 1000, 20), Mark(1, True, 1, 400, 30)]
    marks = [*begins, Mark(1, False, 1, 1100, 10), Mark(0, False, 1, 900, 5)]
    pair_marks(phases, marks, process=0, kinds={0: 0, 1: 1}, names={0: "a", 1: "b"}, cuts={})
    assert phases.begin_ns == [1000, 1000]
    assert phases.begin_bound_ns == [20, 630]
    assert phases.end_ns == [1100, 1100]
    assert phases.end_bound_ns == [205, 10]


# ---- what times the phases


@pytest.fixture
def waits(monkeypatch):
    """The waits for an accelerator that torch, imported, has beside no CUDA."""
    waits = []
    accelerator = SimpleNamespace(
        is_available=lambda: True,
        current_accelerator=lambda: SimpleNamespace(type="mps"),
        synchronize=lambda: waits.append("mps"),
    )
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False), accelerator=accelerator)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return waits


def test_an_accelerator_without_cuda_is_waited_for_and_that_is_said(tmp_path, waits, capfd):
    assert not choose_timing("accelerator").remark
    with Meter(out=tmp_path / "run.h5") as meter, meter.phase("forward"):
        pass
    assert waits == ["mps", "mps"]
    text = capfd.readouterr().err.removeprefix("powerd: ").strip()
    assert "mps" in text
    with open_run(tmp_path / "run.h5") as file:
        assert json.loads(file["phases/kinds"].asstr()[0])["timing"] == "host-synchronised"
        assert text in [json.loads(m)["text"] for m in file["messages"].asstr()]


def test_a_forked_child_leaves_the_device_alone(tmp_path):
    waits, writer = [], MarkWriter(tmp_path)
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
