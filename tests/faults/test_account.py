"""The account finds what a run file does not say: otherwise the matrix would prove nothing."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from faults.account import Account, FileGap, Scans, _count

PERIOD = 2_000_000
FIRST = 5_000_000


def made(numbers, *, flagged=(), is_grid=True, is_counted=True):
    number = np.array(sorted(numbers), np.int64)
    good = ~np.isin(number, list(flagged))
    return Scans("l", PERIOD, number * PERIOD, good, number if is_counted else None, is_grid)


def taken(numbers, gaps, behind, **options):
    """The account of scans FIRST ... FIRST + behind - 1."""
    account = Account(t_start_ns=FIRST * PERIOD - 7, t_stop_ns=(FIRST + behind - 1) * PERIOD + 7)
    _count(made(numbers, **options), gaps, account)
    return account


def gap(before, after, lost=-1):
    return FileGap(before * PERIOD, after * PERIOD, lost, ("l",))


def gaps_of(kept, behind, *, known):
    """The gaps that a truthful file has: one for each hole."""
    edges = [FIRST - 1, *sorted(kept), FIRST + behind]
    return [gap(a, b, b - a - 1 if known else -1) for a, b in pairwise(edges) if b - a > 1]


BEHIND = 40
KEPT = st.sets(st.integers(FIRST, FIRST + BEHIND - 1), min_size=1)


@given(KEPT, st.booleans())
def test_a_truthful_file_is_believed(kept, known):
    account = taken(kept, gaps_of(kept, BEHIND, known=known), BEHIND)
    assert account.problems == []
    assert account.sent == BEHIND
    assert account.received == len(kept)
    assert account.lost == account.declared == BEHIND - len(kept)


@given(KEPT, st.booleans(), st.data())
def test_a_gap_that_is_not_told_is_found(kept, known, data):
    gaps = gaps_of(kept, BEHIND, known=known)
    if not gaps:
        return
    gaps.remove(data.draw(st.sampled_from(gaps)))
    account = taken(kept, gaps, BEHIND)
    assert account.lost > account.declared
    assert account.problems


@given(KEPT, st.data())
def test_a_gap_that_claims_too_much_is_found(kept, data):
    there = data.draw(st.sampled_from(sorted(kept)))
    gaps = [*gaps_of(kept, BEHIND, known=False), gap(there - 1, there + 1)]
    account = taken(kept, gaps, BEHIND)
    assert account.declared > account.lost
    assert account.problems


def test_a_gap_that_gives_a_wrong_number_is_found():
    kept = set(range(FIRST, FIRST + BEHIND)) - {FIRST + 10, FIRST + 11}
    assert taken(kept, [gap(FIRST + 9, FIRST + 12, 2)], BEHIND).problems == []
    assert taken(kept, [gap(FIRST + 9, FIRST + 12, 3)], BEHIND).problems


def test_a_reading_that_is_there_twice_is_found():
    scans = made(range(FIRST, FIRST + BEHIND))
    account = Account(t_start_ns=FIRST * PERIOD, t_stop_ns=(FIRST + BEHIND) * PERIOD)
    twice = np.concatenate([scans.t_ns, scans.t_ns[-1:]])
    number = np.concatenate([scans.number, scans.number[-1:]])
    _count(Scans("l", PERIOD, twice, np.ones(len(twice), bool), number, is_grid=True), [], account)
    assert any("twice" in problem for problem in account.problems)


def test_a_reading_at_a_wrong_time_is_found():
    number = np.arange(FIRST, FIRST + BEHIND)
    t = number * PERIOD
    t[5] += PERIOD // 2
    account = Account(t_start_ns=FIRST * PERIOD, t_stop_ns=(FIRST + BEHIND) * PERIOD)
    _count(Scans("l", PERIOD, t, np.ones(len(t), bool), number, is_grid=True), [], account)
    assert any("true time" in problem for problem in account.problems)


def test_where_nobody_counts_a_flag_declares_and_a_hole_needs_a_gap():
    numbers = set(range(FIRST, FIRST + BEHIND)) - {FIRST + 20, FIRST + 21, FIRST + 22}
    options = {"flagged": {FIRST + 5}, "is_grid": False, "is_counted": False}
    account = taken(numbers, [gap(FIRST + 19, FIRST + 23)], BEHIND, **options)
    assert account.problems == []
    assert account.lost == account.declared == 4
    account = taken(numbers, [], BEHIND, **options)
    assert account.lost == 4
    assert account.declared == 1
    assert account.problems


def test_a_reading_that_its_source_never_counted_out_is_found():
    scans = replace(made(range(FIRST, FIRST + BEHIND)), counted=np.arange(FIRST + 1, FIRST + BEHIND))
    account = Account(t_start_ns=FIRST * PERIOD, t_stop_ns=(FIRST + BEHIND - 1) * PERIOD)
    _count(scans, [], account)
    assert (account.due, account.sent, account.received) == (BEHIND, BEHIND - 1, BEHIND)
    assert any("never counted out" in problem for problem in account.problems)


def node(kept, counted, gaps):
    """The account of a node's scans 0 ... 39, of which it counted out ``counted`` and the file holds ``kept``."""
    ledger = np.array([(FIRST * PERIOD + n * PERIOD, n) for n in counted], np.int64)
    number = np.array(kept, np.int64)
    t_ns = FIRST * PERIOD + number * PERIOD + 1000
    scans = Scans("l", PERIOD, t_ns, np.ones(len(t_ns), bool), number, is_grid=False, ledger=ledger)
    account = Account(t_start_ns=FIRST * PERIOD - 7, t_stop_ns=(FIRST + BEHIND) * PERIOD)
    _count(scans, gaps, account)
    return account


def test_a_nodes_readings_are_held_against_its_own_ledger():
    everything = list(range(BEHIND))
    without = [n for n in everything if not 10 <= n < 13]
    hole = [gap(FIRST + 9, FIRST + 13, 3)]
    assert node(everything, everything, []).problems == []
    assert node(without, everything, hole).problems == []  # lost on the way
    assert node(without, without, hole).problems == []  # slept through
    assert node(without, everything, []).problems
    assert node(without, everything, [gap(FIRST + 9, FIRST + 13, 2)]).problems
    assert any("never counted out" in problem for problem in node(everything, without, []).problems)
