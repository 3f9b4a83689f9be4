"""Matching of edges with the kernels of a profile, as benchmarks/bench_edges.py does it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gpu_edges import NEVER_NS, admissible, errors_ns, read_trace, summary, tie, tie_bound_ns
from hypothesis import given
from hypothesis import strategies as st

from powerd_client.hosttime import to_host_ns

BASE_NS = 1_790_000_000_000_000_000

lengths = st.integers(1, 5_000)
"""Nanoseconds."""


@given(st.lists(st.tuples(lengths, lengths), min_size=1, max_size=30), st.data())
def test_an_edge_may_lie_between_its_neighbours_and_nowhere_else(kernels, data):
    t, begins, ends = 0, [], []
    for pause, length in kernels:
        begins.append(t + pause)
        t = t + pause + length
        ends.append(t)
    place = data.draw(st.integers(0, len(kernels)))
    order = data.draw(st.permutations(range(len(kernels))))
    queue = np.arange(len(kernels)) * 10
    low, high = admissible(
        queue[order], np.array(begins)[order], np.array(ends)[order], np.array([10 * place - 5], np.int64)
    )
    assert low[0] == (ends[place - 1] if place else -NEVER_NS)
    assert high[0] == (begins[place] if place < len(kernels) else NEVER_NS)
    off = data.draw(lengths)
    if place:
        assert errors_ns(low, low, high)[0] == 0
        assert errors_ns(low - off, low, high)[0] == -off
    if place < len(kernels):
        assert errors_ns(high, low, high)[0] == 0
        assert errors_ns(high + off, low, high)[0] == off


def call(name, number, ts, thread=1, dur=1.0):
    args = {"correlation": number}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": ts, "dur": dur, "tid": thread, "args": args}


def kernel(number, ts, dur, name="gemm", stream=7):
    args = {"correlation": number, "device": 0, "stream": stream}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "tid": stream, "args": args}


@pytest.fixture
def trace(tmp_path):
    def make(events):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"baseTimeNanoseconds": BASE_NS, "traceEvents": events}))
        return read_trace(path)

    return make


def test_marks_are_told_from_anchors_and_kernels_from_other_streams(trace):
    found = trace(
        [
            {"ph": "M", "name": "process_name", "ts": 0, "args": {}},
            call("cudaEventRecord", 1, 10.0),
            call("cudaLaunchKernel", 2, 12.0),
            call("cudaEventRecord", 3, 14.5, thread=2),
            call("cudaEventRecord", 4, 15.0),
            call("cudaEventRecord", 5, 16.0),
            call("cudaEventSynchronize", 6, 17.0),
            call("cudaLaunchKernel", 7, 18.0),
            kernel(7, 40.125, 2.5, "at::cuda::(anonymous namespace)::spin_kernel(long)"),
            kernel(2, 20.0, 5.0),
            kernel(99, 21.0, 1.0, stream=13),
        ]
    )
    assert found.records.tolist() == [1, 3, 4]
    assert found.record_begin_ns[1] == BASE_NS + 14_500
    assert found.number.tolist() == [2, 7]
    assert found.queued_ns.tolist() == [BASE_NS + 12_000, BASE_NS + 18_000]
    assert found.end_ns.tolist() == [BASE_NS + 25_000, BASE_NS + 42_625]
    assert found.pings.tolist() == [1]
    assert found.elsewhere == 1
    low, high = admissible(found.number, found.begin_ns, found.end_ns, found.records)
    assert low.tolist() == [-NEVER_NS, BASE_NS + 25_000, BASE_NS + 25_000]
    assert high.tolist() == [BASE_NS + 20_000, BASE_NS + 40_125, BASE_NS + 40_125]


def test_a_profile_without_kernels_or_launches_is_refused(trace):
    with pytest.raises(ValueError, match="no kernels"):
        trace([call("cudaEventRecord", 1, 10.0)])
    with pytest.raises(ValueError, match="when its kernels were launched"):
        trace([kernel(1, 1.0, 1.0)])


@given(st.integers(-(10**9), 10**9), st.floats(-20e-6, 20e-6), st.lists(st.tuples(lengths, lengths), min_size=2))
def test_pings_tie_the_profilers_clock_within_their_bound(offset_ns, rate, delays):
    """The profiler's GPU clock stands ``offset_ns`` ahead and runs at its own rate."""

    def gpu_ns(host):
        return BASE_NS + offset_ns + round(host * (1 + rate))

    hosts = [1_000_000 * (i + 1) for i in range(len(delays))]
    pings = [(h - before, h + 2_000 + after) for h, (before, after) in zip(hosts, delays, strict=True)]
    begin = np.array([gpu_ns(h) for h in hosts])
    end = np.array([gpu_ns(h + 2_000) for h in hosts])

    class Found:
        pings = np.arange(len(delays))
        begin_ns, end_ns = begin, end

    pieces = tie(pings, Found)
    assert len(pieces) == 1
    errors = np.abs(to_host_ns(begin, pieces) - np.array(hosts))
    assert np.all(errors <= tie_bound_ns(pieces, begin) + 2)
    with pytest.raises(ValueError, match="kernels in the trace"):
        tie(pings[1:], Found)


def test_a_summary_says_which_side_was_missed():
    found = summary(np.array([0, -3_000, 0, 1_000]))
    assert found["inside"] == 0.5
    assert (found["early_us"], found["late_us"], found["largest_us"]) == (3.0, 1.0, 3.0)
