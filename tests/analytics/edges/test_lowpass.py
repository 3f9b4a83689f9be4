"""What a low-pass of first order behind a sensor leaves of the power before an edge."""

from dataclasses import replace

import coverage_runs
import coverage_sensors
import numpy as np
import pytest
from energy_estimators import Waveform

from powerd_analytics.edges.edges import phase_line_energies
from powerd_analytics.edges.geometry import geometry_of
from powerd_analytics.edges.leftover import seen_of_step
from powerd_analytics.edges.lowpass import filter_ns, without_the_old

MS = 1_000_000
TAU = 13 * MS
(NVML,) = (s for s in coverage_sensors.SENSORS if s.filter_ms)


def seen(wave_of, length_ms, runs=40, seed=7):
    """Energies of phases that a low-pass of 13 ms, give or take 6 %, shows every 20 ms, with no error but that."""
    rng = np.random.default_rng(seed)
    plan = coverage_runs.plan_of(rng, runs, 30, length_ms)
    wave = wave_of(rng, plan)
    sensor = replace(NVML, gain_limits=(), bound_ms=1e-6, shared_centre_ms=1e-6, own_centre_ms=0.0, step_w=0.0)
    (signal,) = coverage_runs.part_of(wave, rng, plan, sensor).signals
    label = plan.run * coverage_runs.KINDS + plan.kind
    found = phase_line_energies(signal, plan.begin, plan.end, label, plan.run)
    return found, (wave.energy(plan.end) - wave.energy(plan.begin)) * 1e-9, plan


@pytest.mark.parametrize(
    ("kind", "length_ms", "off_by"), [("steps", 50, 0.003), ("edge ramps", 50, 0.004), ("steps", 200, 0.001)]
)
def test_phases_as_long_as_two_readings_look_are_right_in_the_mean(kind, length_ms, off_by):
    """Phases of 100 ms behind one of 50 ms: a level held as it is shown is 0.6 % off, its slope as much again."""
    found, exact, plan = seen(coverage_runs.WAVEFORMS[kind], length_ms)
    of_kind = (plan.kind == 1) & found.resolvable
    assert of_kind.mean() > 0.3
    assert found.energy_j[of_kind].sum() == pytest.approx(exact[of_kind].sum(), rel=off_by)


def rarely_stepping(rng, plan):
    """Another level every 0.4 s in the mean."""
    at = np.cumsum(rng.exponential(400 * MS, int(plan.span_ns * plan.runs / (400 * MS) * 1.2) + 50))
    levels = np.repeat(rng.uniform(50, 300, len(at) - 1), 2)
    return Waveform(np.ravel(np.column_stack([at[:-1], at[1:] - 1])), levels)


def test_what_power_does_behind_a_low_pass_is_told_by_its_shape():
    """Steps at random: the error has the size that readings say; as those of a window as wide, it has 0.78 of it."""
    found, exact, _ = seen(rarely_stepping, 200)
    good = found.resolvable
    error_j, u_j = (found.energy_j - exact)[good], found.u_random_j[good]
    assert 0.8 < np.sqrt(np.mean(error_j**2) / np.mean(u_j**2)) < 1.2
    assert not seen(rarely_stepping, 10, runs=2)[0].resolvable.any()


def test_the_old_level_is_taken_out_exactly():
    after = np.arange(2 * TAU, 9 * TAU, MS)
    shown = 250 - 170 * np.exp(-1 - after / TAU)
    assert without_the_old(shown, np.full(len(after), 80.0), after, TAU) == pytest.approx(np.full(len(after), 250.0))
    assert without_the_old(shown, np.full(len(after), 80.0), after, 0.0) is shown


def test_a_step_is_seen_as_the_filter_shows_it():
    after = np.linspace(-5 * TAU, 12 * TAU, 17_001)
    share = seen_of_step(after, 4.0 * TAU, 1.0, float(TAU))
    assert share == pytest.approx(np.where(after > -TAU, 1 - np.exp(-1 - np.maximum(after, -TAU) / TAU), 0.0), abs=1e-6)
    # Its weight is centred at the timestamp: as much is missing behind the step as is early before it.
    step = np.where(after > 0, 1.0, 0.0)
    assert np.trapezoid(share - step, after) == pytest.approx(0, abs=0.001 * TAU)


def test_squares_of_differences_are_those_of_a_step_behind_a_low_pass():
    h, rng = 20 * MS, np.random.default_rng(0)
    t = np.arange(-5, 12) * h
    moment = rng.uniform(0, h, 4000)
    y = -np.expm1(-np.maximum((t[None, :] - moment[:, None]) / TAU + 1, 0))
    g = geometry_of(h, 4 * TAU, 0.0, TAU, is_counter=False)
    assert g.square == pytest.approx(np.mean(np.sum(np.diff(y) ** 2, axis=1)), rel=0.03)
    assert g.second == pytest.approx(np.mean(np.sum(np.diff(y, 2) ** 2, axis=1)) / 2, rel=0.03)
    off = y.sum(axis=1) - 0.5 * y[:, -1] - (t[-1] - moment) / h
    assert g.inside == pytest.approx(np.mean(off**2), rel=0.05)


def test_counters_and_plain_windows_have_none():
    rng = np.random.default_rng(0)
    plan = coverage_runs.plan_of(rng, 1, 3, 20.0)
    wave = coverage_runs.waveform("steps", rng, plan)
    for sensor in coverage_sensors.SENSORS:
        signal = coverage_runs.part_of(wave, rng, plan, sensor).signals[0]
        assert filter_ns(signal) == sensor.filter_ms * MS
