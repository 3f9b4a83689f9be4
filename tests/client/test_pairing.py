"""Phases out of marks."""

from hypothesis import given
from hypothesis import strategies as st

from powerd_client.pairing import PhaseSpans, pair_marks
from powerd_core.marks import Mark

NAMES = {0: "training", 1: "forward", 2: "backward"}


def pair(marks, last_ns=None, cuts=None):
    phases = PhaseSpans()
    pair_marks(phases, marks, process=0, kinds={k: k for k in NAMES}, names=NAMES, last_ns=last_ns, cuts=cuts or {})
    phases.sort()
    return phases


def rows(phases):
    return list(zip(phases.kind, phases.begin_ns, phases.end_ns, phases.parent, phases.cut, strict=True))


def b(kind, t, thread=0):
    return Mark(kind, True, thread, t)


def e(kind, t, thread=0):
    return Mark(kind, False, thread, t)


def test_an_end_without_a_begin_is_reported_once():
    phases = pair([e(1, 1), b(0, 2), e(1, 3), e(0, 4)])
    assert rows(phases) == [(0, 2, 4, -1, 0)]
    assert phases.problems == [(1, "phase 'forward' was ended without being begun in its thread")]


def test_an_inner_phase_left_open_is_cut_where_the_outer_one_ends():
    phases = pair([b(0, 1), b(1, 2), e(0, 7)])
    assert rows(phases) == [(0, 1, 7, -1, 0), (1, 2, 7, 0, 1)]
    assert "not ended before it" in phases.problems[0][1]


def test_a_mark_that_cuts_ends_its_kind_and_what_is_inside_without_a_word():
    phases = pair([b(0, 1), b(1, 2), b(2, 3), b(9, 5), b(1, 6), e(1, 7), e(0, 8)], cuts={9: 1})
    assert rows(phases) == [(0, 1, 8, -1, 0), (1, 2, 5, 0, 1), (2, 3, 5, 1, 1), (1, 6, 7, 0, 0)]
    assert phases.problems == []


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 1)), max_size=40))
def test_whatever_is_marked_the_phases_nest(steps):
    marks = [Mark(kind, begins, thread, t + 1) for t, (kind, begins, thread) in enumerate(steps)]
    phases = pair(marks)
    assert len(phases.begin_ns) == sum(m.is_begin for m in marks)
    assert phases.begin_ns == sorted(phases.begin_ns)
    for i, parent in enumerate(phases.parent):
        assert phases.begin_ns[i] <= phases.end_ns[i]
        if parent >= 0:
            assert parent < i
            assert phases.begin_ns[parent] <= phases.begin_ns[i]
            assert phases.end_ns[i] <= phases.end_ns[parent]
