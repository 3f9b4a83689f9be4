"""Columns of many phases, made where their parts were, and what lies between phases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_run import MS, LineSpec, make_run, training

from powerd_analytics.energy import budget as budgets
from powerd_analytics.energy import rest
from powerd_analytics.energy.budget import Budget
from powerd_analytics.energy.devices import (
    PhaseColumns,
    interval_energies,
    load_parts,
    part_phase_energies,
    part_phases_seen,
)
from powerd_analytics.energy.gaps import Gaps, Moments
from powerd_analytics.energy.reasons import usable
from powerd_analytics.energy.rest import Given, merged, overlapping, rest_energy_j
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, sum_of
from powerd_analytics.energy.whole import whole_of
from powerd_analytics.runs.run import read_run
from powerd_analytics.signals.streams import plain_j


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


@pytest.mark.parametrize("slices", [{}, {"in_memory": 0, "slice_size": 1000}])
def test_columns_are_those_of_a_budget_that_is_kept(run, slices, monkeypatch):
    monkeypatch.setattr(budgets, "AT_A_TIME", 17)
    (part,) = load_parts(run, **slices)
    own, kept, details = (part_phase_energies(run, part, b) for b in (None, *_budgets(run)))
    for name in PhaseColumns.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(own, name), getattr(kept, name), name)
        np.testing.assert_allclose(getattr(own, name), getattr(details, name), rtol=1e-12, err_msg=name)
    assert np.nanmin(own.u_systematic_j) > 0
    assert own.missing_s.any()


def _budgets(run):
    return Budget(len(run.phases)), Budget(len(run.phases), details=True)


def test_parts_alone_are_the_same_without_the_energies(run):
    (part,) = load_parts(run)
    alone, beside = (Budget(len(run.phases), details=True) for _ in range(2))
    seen, columns = part_phases_seen(run, part, alone), part_phase_energies(run, part, beside)
    np.testing.assert_array_equal(usable(seen), usable(columns))
    assert list(alone.parts) == list(beside.parts)
    for name, u in beside.parts.items():
        np.testing.assert_array_equal(alone.parts[name], u)
        np.testing.assert_array_equal(alone.part(name, usable(seen)), u[usable(seen)])
    assert alone.part("device clock") is None


MOMENTS = st.lists(st.integers(0, 30), max_size=20).map(lambda x: np.array(sorted(x), np.int64))


@given(MOMENTS, MOMENTS, st.sampled_from(["left", "right"]))
def test_moments_of_two_lists_come_in_order_and_know_where_they_are_from(outer, cover, side):
    found = Moments(outer, cover, side)
    tagged = [(t, side == "right", -1) for t in outer.tolist()]
    tagged += [(t, side == "left", i) for i, t in enumerate(cover.tolist())]
    tagged.sort(key=lambda x: x[:2])
    every = np.arange(len(tagged))
    assert len(found) == len(tagged)
    assert found.at(every).tolist() == [t for t, _, _ in tagged]
    assert found.of_cover(every).tolist() == [i for _, _, i in tagged]
    assert found.at(every[::3]).tolist() == [t for t, _, _ in tagged][::3]
    moments = np.arange(-1, 32)
    assert found.before(moments).tolist() == [sum(t < moment for t, _, _ in tagged) for moment in moments]


@given(st.tuples(MOMENTS, MOMENTS), st.tuples(MOMENTS, MOMENTS))
def test_gaps_begin_and_end_in_order(outer, cover):
    n, m = (min(len(a), len(b)) for a, b in (outer, cover))
    gaps = Gaps(Moments(outer[0][:n], cover[1][:m], "left"), Moments(outer[1][:n], cover[0][:m], "right"))
    begin, end = gaps.between(np.arange(len(gaps)))
    assert np.all(end >= begin)
    assert np.all(np.diff(begin) >= 0)
    assert np.all(np.diff(end) >= 0)
    moments = np.arange(-1, 32)
    assert gaps.begun_before(moments).tolist() == np.searchsorted(begin, moments).tolist()
    assert gaps.ended_before(moments).tolist() == np.searchsorted(end, moments).tolist()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=20))
def test_intervals_in_any_order_are_merged_as_in_order(intervals):
    begin = np.array([b for b, _ in intervals], np.int64)
    end = begin + np.array([n for _, n in intervals], np.int64)
    order = np.argsort(begin, kind="stable")
    for a, b in zip(merged(begin, end), merged(begin[order], end[order]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert overlapping(begin, end) == overlapping(begin[order], end[order])
    covered = {x for b, e in zip(begin.tolist(), end.tolist(), strict=True) for x in range(2 * b, 2 * e + 1)}
    assert {x for b, e in zip(*merged(begin, end), strict=True) for x in range(2 * b, 2 * e + 1)} == covered


def test_rest_does_not_depend_on_the_order_of_phases(run):
    (part,) = load_parts(run)
    p, columns = run.phases, part_phase_energies(run, part)
    inner = np.flatnonzero(columns.resolvable & (p.depth == p.depth.max()))
    outer = np.array([run.begin_ns]), np.array([run.end_ns])
    rests = []
    for which in (inner, inner[::-1]):
        given = Given(columns.begin_j[which], columns.end_j[which])
        rests.append(rest_energy_j(part, outer, (p.begin_ns[which], p.end_ns[which]), given))
    assert rests[0] == pytest.approx(rests[1], rel=1e-12)
    assert rests[0] > 1


def test_many_intervals_together_are_the_sum_of_all(run, monkeypatch):
    (part,) = load_parts(run, in_memory=0, slice_size=1000)
    which = part_phase_energies(run, part).resolvable & (run.phases.depth == run.phases.depth.max())
    begin, end = merged(run.phases.begin_ns[which], run.phases.end_ns[which] - MS)
    none = np.zeros(len(begin), np.int64)
    columns, whole = interval_energies(part, begin, end, none, none), whole_of(part, begin, end, is_given=True)
    assert whole.energy == sum_of(*(getattr(columns, name) for name in MEAN_COLUMNS))
    np.testing.assert_array_equal(whole.given.end_j, columns.end_j)
    assert whole.is_resolvable == columns.resolvable.all()
    assert whole.missing_s == columns.missing_s.sum()
    assert whole.duration_s == columns.duration_s.sum()
    monkeypatch.setattr(rest, "AT_A_TIME", 7)
    parted = whole_of(part, begin, end)
    assert parted.energy.energy_j == pytest.approx(whole.energy.energy_j, abs=whole.energy.u_j)
    assert parted.energy.u_j == pytest.approx(whole.energy.u_j, rel=0.5)
    assert parted.off_by_j == pytest.approx(whole.off_by_j)
    assert parted.missing_s == pytest.approx(whole.missing_s, abs=1e-12)
    assert parted.duration_s == pytest.approx(whole.duration_s, rel=1e-12)
    assert len(parted.given.begin_j) == 0


@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_joules_of_a_part_of_the_run_need_its_slices_alone(run, share):
    (whole,), (sliced,) = load_parts(run), load_parts(run, in_memory=0, slice_size=400)
    edges = np.linspace(run.end_ns * share, run.end_ns * (share + 0.01), 9).astype(np.int64)
    lists = (edges[:-1:2], edges[1::2]), (edges[:0], edges[:0])
    for one, many in zip(whole.signals, sliced.signals, strict=True):
        for a, b in zip(plain_j(one, *lists), plain_j(many, *lists), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9)
        assert plain_j(many, lists[1])[0].size == 0
