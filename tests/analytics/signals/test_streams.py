"""A line read slice by slice gives the points, holes, joules and pictures that it gives in memory."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_run import MS, LineSpec, PhaseSpec, make_run

from powerd_analytics import cli
from powerd_analytics.plots.power import envelope_of_many
from powerd_analytics.run_tables.trace import power_of, summed_power
from powerd_analytics.runs import signals as slices
from powerd_analytics.runs.run import LineReader, read_run
from powerd_analytics.runs.signals import (
    View,
    count_points,
    extremes_of,
    fastest_of,
    holes_of,
    load_signal,
    load_sliced,
    points_of,
    summed_of,
)

SIZE = 250
COUNTER = {"kind": "counter", "column": "e", "j_per_code": 0.001, "background_w": 3.0, "bits": 32}


def times(rng, n, period_ns):
    """Readings with jitter, and a hole longer than a slice's margin."""
    t = np.arange(n, dtype=np.int64) * period_ns + rng.integers(-period_ns // 5, period_ns // 5, n)
    t[n // 2 :] += 90 * period_ns
    return t


def lines(seed, n=3000):
    """Three lines that differ in rate: two of power, one counter that moves at every eighth reading."""
    rng = np.random.default_rng(seed)
    made = []
    for name, period in (("gpu0.a", 2 * MS), ("gpu0.b", 3 * MS)):
        t = times(rng, n * 2 * MS // period, period)
        flags = (rng.random(len(t)) < 0.02).astype(np.uint16) * 8
        flags[900:1350] = 32  # longer than a slice with its margins
        watts = rng.integers(20, 40, len(t)) * 5000
        made.append(LineSpec(name, t_ns=t, codes={"power_mw": watts}, flags=flags, period_ns=period))
    t = times(rng, n, 2 * MS)
    moved = np.repeat(np.cumsum(rng.integers(100, 900, n // 8 + 1)), 8)[:n]
    more = {"accuracy": {"update_ns": 16 * MS}, "conversion": COUNTER}
    made.append(LineSpec("gpu0.c", t_ns=t, codes={"e": moved}, **more))
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made, end = lines(1), 6100 * MS
    phases = [PhaseSpec("p", int(b), int(b) + 290 * MS) for b in np.arange(50, 6000, 300) * MS]
    path = tmp_path_factory.mktemp("streams") / "r.h5"
    feeds = {"gpu0": ["gpu0.a", "gpu0.b"]}
    return read_run(make_run(path, made, phases, feeds, end_ns=end))


NAMES = ("gpu0.a", "gpu0.b", "gpu0.c")


class OpenRun:
    """A run whose file is opened once."""

    def __init__(self, file):
        self.file = file

    @contextmanager
    def reader(self, name):
        yield LineReader(name, self.file["lines"][name])


@pytest.fixture(scope="module")
def signals(run):
    with h5py.File(run.path, "r") as file:
        held = OpenRun(file)
        yield {n: (load_signal(run, n), replace(load_sliced(run, n, SIZE), run=held)) for n in NAMES}


def together(points):
    found = list(points)
    return [np.concatenate(x) if found else np.zeros(0) for x in zip(*found, strict=True)] or [np.zeros(0)] * 2


MOMENTS = st.tuples(st.sampled_from(["any", "reading", "cut"]), st.integers(0, 6999 * MS))


def moment(kind, number, whole, sliced):
    """A time; at a reading, and where slices meet, too."""
    among = {"any": [number - 200 * MS], "reading": whole.t_ns, "cut": sliced.cuts_ns}[kind]
    return int(among[number % len(among)])


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NAMES), MOMENTS, MOMENTS, st.booleans(), st.sampled_from([2, 7, 100, 10_000]))
def test_any_view_is_the_same(signals, name, one, other, is_step, most):
    whole, sliced = signals[name]
    begin, end = sorted(moment(*m, whole, sliced) for m in (one, other))
    view = View(begin, end, is_step)
    (t, watts), (t_sliced, watts_sliced) = (together(points_of(s, view)) for s in (whole, sliced))
    np.testing.assert_array_equal(t_sliced, t)
    np.testing.assert_allclose(watts_sliced, watts, rtol=1e-9)
    assert count_points(sliced, view) == len(t)
    np.testing.assert_array_equal(holes_of(sliced, view), holes_of(whole, view))
    if whole.is_counter:
        return  # equal rates differ in their last digits, and with them which is the highest
    for a, b in zip(power_of(whole, (begin, end), most), power_of(sliced, (begin, end), most), strict=True):
        np.testing.assert_array_equal(b, a)


@settings(max_examples=8, deadline=None)
@given(begin=st.integers(-100 * MS, 6500 * MS), length=st.integers(0, 6500 * MS))
def test_sums_of_lines_are_the_same(signals, begin, length):
    chosen = [signals[name] for name in NAMES]
    of_whole, of_sliced = ([pair[i] for pair in chosen] for i in (0, 1))
    view = View(begin, begin + length)
    (t, watts), (t_sliced, watts_sliced) = (together(summed_of(s, fastest_of(s), view)) for s in (of_whole, of_sliced))
    np.testing.assert_array_equal(t_sliced, t)
    np.testing.assert_allclose(watts_sliced, watts, rtol=1e-9)
    # The whole sum, by one interpolation over everything.
    moments, total = fastest_of(of_whole).power()[0], 0.0
    for s in of_whole:
        total = total + np.interp(moments.astype(float), s.power()[0].astype(float), s.power()[1])
    np.testing.assert_allclose(watts, total[np.searchsorted(moments, t)], rtol=1e-9)
    for a, b in zip(*(summed_power(s, (begin, begin + length), 50) for s in (of_whole, of_sliced)), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(0, 6), min_size=1, max_size=120),
    cuts=st.lists(st.integers(0, 120), max_size=5),
    most=st.integers(2, 40),
)
def test_thinning_in_pieces_keeps_what_thinning_the_whole_keeps(values, cuts, most):
    t, watts = np.arange(len(values), dtype=np.int64) * 3, np.array(values, np.float64)
    edges = sorted({0, len(t), *(c for c in cuts if c < len(t))})
    pieces = [(t[a:b], watts[a:b]) for a, b in pairwise(edges)]
    kept_t, kept = extremes_of(pieces, len(t), most)
    expected_t, expected = _thinned_by_sorting(t, watts, most)
    np.testing.assert_array_equal(kept_t, expected_t)
    np.testing.assert_array_equal(kept, expected)
    whole = envelope_of_many([(t, watts)], len(t), most)
    for a, b in zip(envelope_of_many(iter(pieces), len(t), most), whole, strict=True):
        np.testing.assert_array_equal(a, b)


def _thinned_by_sorting(t, value, most):
    """The same said another way: the lowest (first of equals) and the highest (last of equals) of every stretch."""
    n = len(t)
    if n <= max(most, 4):
        return t, value
    starts = np.linspace(0, n, max(most // 2, 1), endpoint=False).astype(int)
    keep = {0, n - 1}
    for a, b in pairwise([*starts.tolist(), n]):
        keep.add(a + int(np.argmin(value[a:b])))
        keep.add(b - 1 - int(np.argmax(value[a:b][::-1])))
    at = sorted(keep)
    return t[at], value[at]


@pytest.fixture
def small(monkeypatch):
    """Every line in slices of `SIZE` readings."""
    sliced = lambda run, name, size=SIZE, progress=lambda share, text: None: load_sliced(run, name, SIZE, progress)  # noqa: E731
    monkeypatch.setattr("powerd_client.runs.runfile.problems", lambda file: iter(()))  # looked at once a pass
    monkeypatch.setattr(slices, "load_sliced", sliced)
    monkeypatch.setattr(slices, "IN_MEMORY", 0)


def test_commands_hold_few_slices(run, small, monkeypatch, tmp_path):
    """Of a file of 20 slices, no command asks the reader for more than one with its margins."""
    asked = []
    readings = LineReader.readings

    def watched(self, first, last, columns=None):
        asked.append(last - first)
        return readings(self, first, last, columns)

    monkeypatch.setattr(LineReader, "readings", watched)
    path = str(run.path)
    for words in (
        ["info", path],
        ["plot", path, "--kind", "power", "-o", str(tmp_path / "p.svg")],
        ["trace", path, "-o", str(tmp_path / "t.json")],
    ):
        asked.clear()
        with pytest.raises(SystemExit):
            cli.main(words)
        assert len(asked) > 20, words
        assert max(asked) <= 3 * SIZE, words
