"""Lines that are neither power nor energy, read a piece at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_run import MS, LineSpec, make_run

from powerd_analytics.clocks.clock import other_clocks
from powerd_analytics.clocks.marker import _edges
from powerd_analytics.clocks.wall import wall_drifts
from powerd_analytics.records import setting
from powerd_analytics.records.setting import Setting
from powerd_analytics.runs import quantities
from powerd_analytics.runs.beside import describe_beside
from powerd_analytics.runs.quantities import CodeCounts
from powerd_analytics.runs.readings import LineReader
from powerd_analytics.runs.run import read_run

N = 500
T = np.arange(N, dtype=np.int64) * 2 * MS


def line(name, quantity, codes, per_code=1.0, **more):
    conversion = {"kind": "quantity", "column": "code", "quantity": quantity, "per_code": per_code}
    return LineSpec(name, t_ns=T, codes={"code": np.asarray(codes)} | more, conversion=conversion, flags=FLAGS)


RNG = np.random.default_rng(4)
FLAGS = (RNG.random(N) < 0.05).astype(np.uint16) * 8
STEP = np.where(np.arange(N) > 300, 5_000_000, 0)
LEVEL = (np.arange(N) // 7) % 2
LINES = [
    LineSpec("gpu0.a", lambda t: np.full(len(t), 100.0)),
    line("gpu0.sm_clock", "clock_hz", RNG.integers(1200, 1400, N), 1e6),
    line("gpu0.limit", "power_limit_w", RNG.integers(200, 260, N)),
    line("gpu0.bound", "clock_bound_s", RNG.integers(100, 900, N), 1e-9),
    line("gpu0.wall", "clock_offset_s", 10**15 + STEP + RNG.integers(0, 500, N), 1e-9),
    line("gpu0.pin", "pin_bits", LEVEL, edge=np.cumsum(np.diff(LEVEL, prepend=0) != 0).astype(np.uint16)),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_run(make_run(tmp_path_factory.mktemp("q") / "r.h5", LINES, devices={"gpu0": ["gpu0.a"]}))


def said(run):
    seen = Setting(run)
    spans = [(0, 2000 * MS), (100 * MS, 101 * MS), (100 * MS, 700 * MS), (5000 * MS, 6000 * MS)]
    drift = wall_drifts(run)[0]
    return (
        [(seen.power_cap_w("gpu0", *s), seen.clock_hz("gpu0", *s)) for s in spans],
        [describe_beside(run, s.name) for s in LINES[1:]],
        other_clocks(run),
        (drift.readings, drift.duration_s, drift.steps_s, drift.half_s, pytest.approx(drift.drift_ppm)),
        [edges.tolist() for edges in _edges(run, "gpu0.pin", "code")],
    )


@pytest.mark.parametrize("size", [30, 101])
def test_pieces_say_what_the_whole_line_says(run, monkeypatch, size):
    whole = said(run)
    asked = []
    values = LineReader.values

    def watched(self, columns, first, last):
        asked.append(last - first)
        return values(self, columns, first, last)

    monkeypatch.setattr(LineReader, "values", watched)
    monkeypatch.setattr(LineReader, "readings", None)
    monkeypatch.setattr(quantities, "AT_A_TIME", size)
    monkeypatch.setattr(setting, "IN_MEMORY", 100)
    assert said(run) == whole
    assert max(asked) == size


def test_the_whole_line_says_what_its_good_readings_are(run):
    good = FLAGS == 0
    t, clock, limit, bound = (x[good] for x in (T, *(s.codes["code"] for s in LINES[1:4])))
    caps, _, (other,), drift, (rising, falling) = said(run)
    here = (t >= 100 * MS) & (t <= 700 * MS)
    assert caps[2] == (pytest.approx(np.median(limit[here])), pytest.approx(np.median(clock[here]) * 1e6))
    assert caps[3] == (None, None)
    assert (other.bound_median_s, other.bound_max_s) == pytest.approx((np.median(bound) * 1e-9, bound.max() * 1e-9))
    assert drift[0] == good.sum()
    assert drift[2] == pytest.approx((5e-3,), abs=1e-6)
    moved = np.diff(LEVEL[good])
    assert set(rising) <= set(t[1:][moved > 0].tolist())
    assert len(rising) > 25 < len(falling)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(-5, 9), max_size=20), min_size=1, max_size=6))
def test_counted_codes_have_the_median_of_all(lists):
    every = [code for some in lists for code in some]
    counts = CodeCounts(np.array(some, np.int64) for some in lists)
    assert len(counts) == len(every)
    if every:
        assert counts.median() == np.median(every)
        assert counts.largest() == max(every)
