"""Power that comes later than the marks of its phases."""

import numpy as np
import pytest
from bench_folding import Sensor, readings
from folding_waveforms import draw
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.folding.folded import LAG, fold
from powerd_analytics.folding.lag import LAG_VARIABLE, MOST_LAG_MS, Places, most_lag_ns
from powerd_analytics.folding.segments import Phases, segments_of
from powerd_core.errors import ConfigError

MS = 1_000_000


def phases_of(lengths, n=40, seed=0):
    rng = np.random.default_rng(seed)
    length = (np.tile(lengths, n) * MS * rng.uniform(0.95, 1.05, n * len(lengths))).astype(np.int64)
    edges = np.concatenate([[0], np.cumsum(length)])
    return Phases(edges[:-1], edges[1:], np.tile(np.arange(len(lengths)), n), len(lengths))


def folded(lag_ms, sensor=None, waveform="steps", seed=3, seconds=20):
    rng = np.random.default_rng(seed)
    begin, end, kind, wave = draw(waveform, (22.0, 51.0), seconds, rng, lag_ms=lag_ms)
    signal = readings(wave, int(end[-1]) + 100 * MS, sensor or Sensor("", 20, 29, 1.0), rng)
    exact = (wave.energy(end) - wave.energy(begin)) * 1e-9
    watts = [exact[kind == k].sum() / ((end - begin)[kind == k].sum() * 1e-9) for k in range(2)]
    return fold([signal], Phases(begin, end, kind, 2)), np.array(watts)


@given(st.floats(0, 4), st.integers(0, 5))
def test_late_power_moves_joules_over_edges_and_none_away(lag_ms, seed):
    phases = phases_of((8.0, 6.0, 9.0), seed=seed)
    segments = segments_of(phases, 1e6)
    watts = np.array([100.0, 300.0, 180.0])
    marks = segments.between_marks([round(lag_ms * MS)], [slice(0, len(segments.kind))])[0, :3]
    of_bins = np.concatenate(
        [np.repeat(watts, segments.bins.count[:3]), np.zeros(marks.shape[1] - sum(segments.bins.count[:3]))]
    )
    length_ms = np.array(segments.bins.length_ms[:3])
    # Power before an edge less that behind it, for as long as power is late; a few phases at the begin are left out.
    moved_j = (np.roll(watts, 1) - watts) * lag_ms
    got_j = (marks @ of_bins - watts) * length_ms
    np.testing.assert_allclose(got_j, moved_j, rtol=0.05, atol=1e-3)
    assert got_j.sum() == pytest.approx(0, abs=0.02 * np.abs(moved_j).sum() + 1e-3)


def test_a_phase_that_comes_once_and_lasts_long_has_few_bins():
    begin = np.arange(200) * 10 * MS
    end = begin + 10 * MS
    kind = np.zeros(200, np.int64)
    end[-1], kind[-1] = begin[-1] + 3000 * MS, 1
    assert segments_of(Phases(begin, end, kind, 2), 1e6).bins.columns < 200


@given(st.integers(0, 5_000_000), st.integers(0, 5_000_000), st.floats(1e5, 1e8))
def test_cases_are_spread_as_their_limits_say(beside, most_lag, window):
    places = Places(beside, most_lag, window)
    nodes = places.nodes()
    cases = places.cases(nodes)
    assert cases.weight.sum() == pytest.approx(1)
    assert np.all((cases.lag_ns >= -1e-6) & (cases.lag_ns <= most_lag + 1e-6))
    lag = np.average(cases.lag_ns.mean(axis=1), weights=cases.weight)
    assert lag == pytest.approx(most_lag / 2, abs=0.02 * (most_lag + beside) + 1e-6)
    if most_lag > 1:
        square = np.average(np.mean((cases.lag_ns - lag) ** 2, axis=1), weights=cases.weight)
        assert np.sqrt(square) == pytest.approx(most_lag / np.sqrt(12), rel=0.15)


@pytest.mark.parametrize("lag_ms", [0.3, 1.0, 1.7])
def test_joules_between_marks_hold_whatever_the_lag(lag_ms):
    found, watts = folded(lag_ms)
    for f, w in zip(found, watts, strict=True):
        assert f.per_s.energy_j == pytest.approx(w, abs=f.per_s.u95_j)
        assert 0 < dict(f.parts_w)[LAG] < f.per_s.u_systematic_j


def test_a_known_lag_has_no_part_and_a_narrower_interval(monkeypatch):
    wide, _ = folded(0.0)
    monkeypatch.setenv(LAG_VARIABLE, "0")
    narrow, watts = folded(0.0)
    for a, b, w in zip(narrow, wide, watts, strict=True):
        assert dict(a.parts_w)[LAG] == 0
        assert a.per_s.u95_j < b.per_s.u95_j
        assert a.per_s.energy_j == pytest.approx(w, abs=a.per_s.u95_j)


def test_a_sensor_that_sees_the_edges_tells_the_lag(monkeypatch):
    sharp = Sensor("", 2, 1.06)
    found, watts = folded(1.3, sharp, seconds=8)
    for f, w in zip(found, watts, strict=True):
        # Unknown, 2 ms would be 4 W or more.
        assert dict(f.parts_w)[LAG] < 0.5
        assert f.per_s.energy_j == pytest.approx(w, abs=max(f.per_s.u95_j, 0.5))


def test_the_bound_of_the_lag_is_a_setting(monkeypatch):
    monkeypatch.delenv(LAG_VARIABLE, raising=False)
    assert most_lag_ns() == MOST_LAG_MS * MS
    monkeypatch.setenv(LAG_VARIABLE, "0.5")
    assert most_lag_ns() == 500_000


@pytest.mark.parametrize("text", ["-1", "51", "nan", "two", "1\x1b[2J"])
def test_a_bound_that_is_none_is_refused_in_one_line(monkeypatch, text):
    monkeypatch.setenv(LAG_VARIABLE, text)
    with pytest.raises(ConfigError, match=LAG_VARIABLE) as e:
        most_lag_ns()
    assert "\x1b" not in str(e.value)
    assert "\n" not in str(e.value)
