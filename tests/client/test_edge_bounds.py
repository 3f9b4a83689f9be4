"""How far the edges of phases can be from the times that the run file has."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.runs.phases import read_phases
from powerd_client import Meter, open_run
from powerd_client.device_timing import EVENT_NS, DeviceTimes
from powerd_client.pairing import PhaseSpans, pair_marks
from powerd_client.runfile import BOUND_COLUMNS
from powerd_client.verify import verify_file
from powerd_core.clock import map_clock
from powerd_core.marks import RECORD, Edges, Mark
from powerd_core.model import ClockExchange
from support.fake_torch import FakeTorch, host_ns

CLOCK, PROCESS = 9, 4


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A run timed by a GPU whose truth is known, and the times at which it passed the marks."""
    out, torch = tmp_path_factory.mktemp("timed") / "run.h5", FakeTorch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
        with Meter(out=out) as meter:
            for _ in range(20):
                with meter.phase("forward"):
                    torch.work(3.0)
            while host_ns() < torch.stream.busy_until_ns:  # the host's own time is to come after the device's
                time.sleep(0.001)
            torch.capturing = True
            meter.begin("backward")
            torch.capturing = False
            meter.end("backward")
            meter.begin("lost")
    return out, np.array(torch.passed_ns)


def test_the_truth_lies_within_the_bound(timed: tuple[Path, np.ndarray]) -> None:
    out, truth = timed
    with open_run(out) as file:
        group = file["phases"]
        bounds = {name: group[name][:] for name in BOUND_COLUMNS}
        assert {(b.dtype, group[name].attrs["units"]) for name, b in bounds.items()} == {(np.dtype(np.int64), "ns")}
        begin, end = group["begin_ns"][:20], group["end_ns"][:20]
    for name, edge, passed in (("begin_bound_ns", begin, truth[0:40:2]), ("end_bound_ns", end, truth[1:40:2])):
        bound = bounds[name][:20]
        assert (bound > EVENT_NS).all()
        assert (bound < 5_000_000).all()
        assert (np.abs(edge - passed) <= bound).all()


def test_an_edge_of_which_only_the_host_knows_has_no_bound(timed: tuple[Path, np.ndarray]) -> None:
    with open_run(timed[0]) as file:
        assert file["phases/begin_bound_ns"][20] == -1, "captured into a graph"
        assert file["phases/end_bound_ns"][20] > 0
        assert file["phases/begin_bound_ns"][21] > 0
        assert file["phases/end_bound_ns"][21] == -1, "never ended: cut at the end of the run"
        phases = read_phases(file["phases"])
    assert phases.end_bound_ns[-1] == -1
    assert len(phases.begin_bound_ns) == len(phases) == 22
    assert [f for f in verify_file(timed[0]) if f.state == "wrong"] == []


@given(
    st.lists(st.integers(1, 10**7), min_size=2, max_size=20),
    st.lists(st.integers(0, 50_000), min_size=20, max_size=20),
    st.integers(-50, 50),
)
def test_whatever_the_anchors_and_the_drift_the_bound_holds(
    steps: list[int], delays: list[int], drift_ppm: int
) -> None:
    """A device's clock 1 s behind and up to 50 ppm off; each anchor lies anywhere between its two host times."""
    at = np.cumsum(steps).tolist()

    def device_ns(t_host_ns: int) -> int:
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


def test_an_edge_that_is_moved_forward_keeps_its_truth_within_the_bound() -> None:
    """On two streams of a device one mark can be passed before another that was made earlier."""
    phases = PhaseSpans()
    begins = [Mark(0, True, 1, 1000, 20), Mark(1, True, 1, 400, 30)]
    marks = [*begins, Mark(1, False, 1, 1100, 10), Mark(0, False, 1, 900, 5)]
    pair_marks(phases, marks, process=0, kinds={0: 0, 1: 1}, names={0: "a", 1: "b"}, cuts={})
    assert phases.begin_ns == [1000, 1000]
    assert phases.begin_bound_ns == [20, 630]
    assert phases.end_ns == [1100, 1100]
    assert phases.end_bound_ns == [205, 10]
