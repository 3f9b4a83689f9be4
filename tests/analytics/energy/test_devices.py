"""Columns of many phases, made where their parts were, and what lies between phases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_run import MS, LineSpec, make_run, training

from powerd_analytics.energy.devices import (
    interval_energies,
    load_parts,
    part_phase_energies,
    whole_of,
)
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, sum_of
from powerd_analytics.runs.phases import any_overlap, merge_intervals
from powerd_analytics.runs.run import read_run
from powerd_analytics.runs.signals import plain_j


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    t = training(iterations=20, batches=(64,))
    rng = np.random.default_rng(3)
    flags = (rng.random(t.end_ns // (2 * MS) + 1) < 0.02).astype(np.uint16) * 8

    def power(at):
        return np.maximum(t.power()(at) + rng.normal(0, 3, len(at)), 0)

    accuracy = {"window_ns": MS, "centre_ns": 200_000, "u_gain": 0.003, "u_offset_w": 0.1, "step_w": 0.5}
    times = np.arange(len(flags), dtype=np.int64) * 2 * MS
    codes = {"power_mw": np.rint(power(times) * 1000).astype(np.int64)}
    lines = [LineSpec(name, t_ns=times, codes=codes, flags=flags, accuracy=accuracy) for name in ("gpu0.a", "gpu0.b")]
    path = make_run(tmp_path_factory.mktemp("d") / "r.h5", lines, t.phases, end_ns=t.end_ns, bound_ns=20_000.0)
    return read_run(path)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=20))
def test_intervals_in_any_order_are_merged_as_in_order(intervals):
    begin = np.array([b for b, _ in intervals], np.int64)
    end = begin + np.array([n for _, n in intervals], np.int64)
    order = np.argsort(begin, kind="stable")
    for a, b in zip(merge_intervals(begin, end), merge_intervals(begin[order], end[order]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any_overlap(begin, end) == any_overlap(begin[order], end[order])
    covered = {x for b, e in zip(begin.tolist(), end.tolist(), strict=True) for x in range(2 * b, 2 * e + 1)}
    assert {x for b, e in zip(*merge_intervals(begin, end), strict=True) for x in range(2 * b, 2 * e + 1)} == covered


def test_many_intervals_together_are_the_sum_of_all(run):
    (part,) = load_parts(run, in_memory=0, slice_size=1000)
    which = part_phase_energies(run, part).resolvable & (run.phases.depth == run.phases.depth.max())
    begin, end = merge_intervals(run.phases.begin_ns[which], run.phases.end_ns[which] - MS)
    columns, whole = interval_energies(part, begin, end), whole_of(part, begin, end)
    assert whole.energy == sum_of(*(getattr(columns, name) for name in MEAN_COLUMNS))
    assert whole.missing_s == columns.missing_s.sum()
    assert whole.duration_s == columns.duration_s.sum()


@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_joules_of_a_part_of_the_run_need_its_slices_alone(run, share):
    (whole,), (sliced,) = load_parts(run), load_parts(run, in_memory=0, slice_size=400)
    edges = np.linspace(run.end_ns * share, run.end_ns * (share + 0.01), 9).astype(np.int64)
    lists = (edges[:-1:2], edges[1::2]), (edges[:0], edges[:0])
    for one, many in zip(whole.signals, sliced.signals, strict=True):
        for a, b in zip(plain_j(one, *lists), plain_j(many, *lists), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9)
        assert plain_j(many, lists[1])[0].size == 0


# Millions of intervals are looked at a piece at a time: what comes of a few at a time is what comes of all.
