"""Millions of intervals are looked at a piece at a time: what comes of a few at a time is what comes of all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_run import MS, LineSpec, PhaseSpec, S, make_run

from powerd_analytics.energy import rest
from powerd_analytics.energy.devices import load_parts, part_phase_energies
from powerd_analytics.energy.reasons import clipped, no_energy, not_resolvable
from powerd_analytics.energy.rest import Given, merged, overlapping, rest_energy_j
from powerd_analytics.runs import phases
from powerd_analytics.runs.run import read_run
from powerd_analytics.tables.shares import budget_rows
from powerd_analytics.tables.table import phase_table
from powerd_analytics.tables.totals import iterations_of
from powerd_core.model import Flag


@pytest.fixture(scope="module")
def gapped(tmp_path_factory):
    """Outermost phases of three kinds, a gap after each; a line stands at full scale within one of them."""
    specs = [
        PhaseSpec(("f", "b", "u")[k % 3], k * 50 * MS, (k * 50 + 30 + k % 7) * MS, {"model": "m"}, cut=k == 38)
        for k in range(39)
    ]
    t = np.arange(0, 2 * S, 2 * MS)
    flags = np.zeros(len(t), np.uint16)
    flags[(t > 701 * MS) & (t < 709 * MS)] = Flag.SATURATED
    lines = [
        LineSpec("gpu0.a", lambda t: 50 + 20 * (t // (50 * MS) % 3), t_ns=t, flags=flags),
        LineSpec("gpu0.b", lambda t: 30 + 5 * np.sin(t * 1e-8), period_ns=3 * MS),
    ]
    return read_run(make_run(tmp_path_factory.mktemp("gapped") / "r.h5", lines, specs, end_ns=2 * S))


@pytest.fixture
def few(monkeypatch):
    def at_a_time(count):
        monkeypatch.setattr(phases, "AT_A_TIME", count)
        monkeypatch.setattr(rest, "AT_A_TIME", count)

    return at_a_time


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 9))
def test_numbers_come_so_many_at_a_time(which, count):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rest, "AT_A_TIME", count)
        found = list(rest._numbers(np.array(which, bool)))
    assert [n for some in found for n in some.tolist()] == np.flatnonzero(which).tolist()
    assert all(len(some) == count for some in found[:-1])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=20), st.integers(1, 5))
def test_merging_does_not_depend_on_how_many_are_looked_at(intervals, count):
    begin = np.array([b for b, _ in intervals], np.int64)
    end = begin + np.array([n for _, n in intervals], np.int64)
    expected, overlaps = merged(begin, end), overlapping(begin, end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rest, "AT_A_TIME", count)
        for a, b in zip(merged(begin, end), expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert overlapping(begin, end) == overlaps


@pytest.mark.parametrize("count", [1, 4, 17])
def test_a_line_at_full_scale_is_found_in_any_piece(gapped, few, count):
    (part,) = load_parts(gapped)
    p = gapped.phases
    few(count)
    at = np.array([14])  # from 700 to 730 ms
    assert clipped(part, p.begin_ns, p.end_ns).high == ("gpu0.a",)
    assert clipped(part, p.begin_ns[at], p.end_ns[at]).high == ("gpu0.a",)
    assert clipped(part, p.begin_ns, p.end_ns, p.label == p.label[14]).high == ("gpu0.a",)
    assert not clipped(part, p.begin_ns, p.end_ns, p.label == p.label[0])


def test_iterations_are_counted_piece_by_piece(gapped, few):
    p = gapped.phases
    labels = list(range(len(p.classes)))
    expected = int(np.bincount(p.label[~p.cut]).max())
    few(4)
    assert iterations_of(gapped, labels) == expected == 13


def test_rest_between_phases_does_not_depend_on_pieces(gapped, few):
    (part,) = load_parts(gapped)
    columns, p = part_phase_energies(gapped, part), gapped.phases
    given = Given(columns.begin_j, columns.end_j)
    outer = np.array([gapped.begin_ns]), np.array([gapped.end_ns])
    expected = rest_energy_j(part, outer, (p.begin_ns, p.end_ns), given)
    few(10)
    assert rest_energy_j(part, outer, (p.begin_ns, p.end_ns), given) == pytest.approx(expected, rel=0.01)


def test_tables_and_shares_of_many_outermost_phases(gapped, few):
    table, shares = phase_table(gapped), budget_rows(gapped)
    few(10)
    for a, b in zip(phase_table(gapped).totals, table.totals, strict=True):
        assert a.energy_j == pytest.approx(b.energy_j, abs=b.u_statistical_j or 0.01)
        assert (a.iterations, a.time_s, a.note) == (b.iterations, pytest.approx(b.time_s), b.note)
    for a, b in zip(budget_rows(gapped), shares, strict=True):
        assert (a.table, a.phase, a.n) == (b.table, b.phase, b.n)
        if a.table == "phase":
            assert a == b
        assert {s.part for s in a.parts} >= {s.part for s in b.parts if s.share > 0.01}


def test_why_phases_together_have_no_energy(gapped):
    (part,) = load_parts(gapped)
    columns = part_phase_energies(gapped, part)
    every = np.ones(len(gapped.phases), bool)
    missing, duration = float(columns.missing_s.sum()), float(columns.duration_s.sum())
    assert not_resolvable(part, columns, every) == no_energy(part, 0.0, missing, duration)
    assert "no readings in 1.5 s of 2 s" in no_energy(part, 0.6, 1.5, 2.0)
