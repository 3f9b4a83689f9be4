"""What all readings of a chip share of the doubt where their windows lie, and what it does to the joules of phases."""

from dataclasses import asdict, replace

import bench_coverage
import numpy as np
import pytest
from bench_coverage import Waveform

from powerd_analytics.energy.lines import phase_line_energies
from powerd_analytics.energy.sampling import (
    instant_offset_ns,
    rounding_u,
    seen_of_step,
    step_figures,
    without_filter_tail,
)
from powerd_analytics.runs.run import RunLine
from powerd_analytics.signals.signal import Signal
from powerd_core.model import Accuracy, Provenance, ShuntConversion
from powerd_daemon.sources.ina.accuracy import accuracy
from powerd_daemon.sources.ina.sensor import Sensor

MS = 1_000_000
SHUNT = ShuntConversion(0.01, 1e-5, 1.0)


def signal_of(conversion, given, detail, t_ns=None, watts=None, period_ns=2 * MS):
    t_ns = np.arange(0, 20 * MS, period_ns) if t_ns is None else t_ns
    watts = np.zeros(len(t_ns)) if watts is None else watts
    none = np.zeros(len(t_ns) - 1, bool)
    line = RunLine(
        "gpu0.a", "gpu0", "s", "b", Provenance.SIMULATED, "power_w", "", period_ns, conversion, given, detail, "", 0
    )
    return Signal(
        line, t_ns, watts, False, none, none, float(period_ns), float(given.window_ns), float(given.centre_ns), 0, None
    )


@pytest.mark.parametrize("averages", [1, 4])
@pytest.mark.parametrize(
    ("chip", "shunt", "bus"),
    [
        ("INA226", "140us", "140us"),
        ("INA226", "1100us", "140us"),
        ("INA228", "84us", "84us"),
        ("INA228", "1052us", "150us"),
        ("INA3221", "332us", "140us"),
    ],
)
def test_half_a_cycle_averages_out_and_the_rest_of_what_the_driver_states_does_not(chip, shunt, bus, averages):
    sensor = Sensor("a", 0x40, chip, shunt_adc=shunt, bus_adc=bus, averages=1 if chip == "INA3221" else averages)
    settings = sensor.settings_of((1,))
    given = accuracy(sensor, settings, period_ns=2 * MS)
    found = instant_offset_ns(signal_of(SHUNT, given, {"sensors": [asdict(sensor)]}))
    assert found == pytest.approx(given.centre_ns - settings.cycle_ns / 2, abs=2)


def seen(power, place_ns, chip="INA226", length_ms=10):
    """30 rounds of two phases, ``length_ms`` each; the chip of 140 us a conversion, all windows ``place_ns`` late."""
    rng = np.random.default_rng(1)
    lengths = (length_ms * MS * (1 + 0.1 * (rng.random(60) - 0.5))).astype(np.int64)
    edges = np.concatenate([[0], np.cumsum(lengths)]) + 20 * MS
    begin, end, label = edges[:-1], edges[1:], np.arange(60) % 2
    fine = np.arange(0, edges[-1] + 20 * MS, 5000)
    watts = power(fine, edges)
    joules = np.concatenate([[0.0], np.cumsum((watts[1:] + watts[:-1]) * 2500e-9)])
    t = np.arange(MS, edges[-1] + 18 * MS, 285_714)
    middle = t + place_ns + rng.uniform(-140_000, 140_000, len(t))
    mean = (np.interp(middle + 70_000, fine, joules) - np.interp(middle - 70_000, fine, joules)) / 140e-6
    detail = {"sensors": [{"name": "a", "chip": chip}]}
    signal = signal_of(SHUNT, Accuracy(window_ns=140_000, centre_ns=344_000), detail, t, mean, 285_714)
    found = phase_line_energies(signal, begin, end, label, np.zeros(60, np.int64))
    exact = np.interp(end, fine, joules) - np.interp(begin, fine, joules)
    return found, (found.energy_j - exact)[label == 1], label == 1


def stepping(fine, edges):
    return np.where(np.searchsorted(edges, fine, "right") % 2 == 0, 250.0, 100.0)


def ramping(fine, edges):
    """The same with 0.8 ms behind each edge to get there."""
    i = np.searchsorted(edges, fine, "right")
    into = np.clip((fine - edges[np.clip(i - 1, 0, None)]) / (0.8 * MS), 0, 1)
    new = np.where(i % 2 == 0, 250.0, 100.0)
    return np.where(i == 0, 100.0, (350.0 - new) * (1 - into) + new * into)


@pytest.mark.parametrize("place_ns", [-190_000, 190_000])
def test_windows_beside_their_stamps_do_not_pass_for_a_step_that_comes_late(place_ns):
    """0.19 ms of a step of 150 W are 28 mJ, 1.1 % of the phase, always to the same side."""
    found, error_j, which = seen(stepping, place_ns)
    assert abs(error_j.mean()) < 0.3 * 0.028
    u = np.sqrt(found.u_edge_j**2 + found.u_residual_j**2 + found.u_instant_j**2)[which]
    assert abs(error_j.mean()) < 2 * u.mean() < 0.1


@pytest.mark.parametrize("place_ns", [-190_000, 0, 190_000])
def test_a_ramp_is_assigned_wherever_the_windows_lie_and_their_place_is_a_part_of_the_doubt(place_ns):
    found, error_j, which = seen(ramping, place_ns)
    u = np.sqrt(found.u_edge_j**2 + found.u_residual_j**2 + found.u_instant_j**2)[which]
    # Nothing assigned would be 60 mJ off; the place alone makes 28.
    assert abs(error_j.mean()) < 0.045
    assert abs(error_j.mean()) < 2 * u.mean()
    assert found.u_instant_j[which].mean() == pytest.approx(0.204e-3 / np.sqrt(3) * 150, rel=0.25)


def kinking(fine, edges):
    """Power that turns at each edge and is steepest right behind it: 5 ms on its way to 250 or 100 W."""
    watts, last = np.full(len(fine), 100.0), 100.0
    for i in range(len(edges) - 1):
        inside = (fine >= edges[i]) & (fine < edges[i + 1])
        level = 250.0 if i % 2 == 1 else 100.0
        watts[inside] = level + (last - level) * np.exp(-(fine[inside] - edges[i]) / (5 * MS))
        last = level + (last - level) * np.exp(-(edges[i + 1] - edges[i]) / (5 * MS))
    watts[fine >= edges[-1]] = last
    return watts


def test_windows_beside_their_stamps_move_joules_as_power_at_the_edges_says():
    """Where lines are straight at the edges, power there counts, not that half way between two readings beside them."""
    late, exact, early = (seen(kinking, place_ns, length_ms=2) for place_ns in (190_000, 0, -190_000))
    moved_w = abs(late[1].mean() - early[1].mean()) / 380e-6
    assert moved_w > 20
    assert exact[0].u_shift_w[exact[2]].mean() == pytest.approx(moved_w, rel=0.15)


# What a low-pass of first order behind a sensor leaves of the power before an edge.


TAU = 13 * MS
(NVML,) = (s for s in bench_coverage.SENSORS if s.filter_ms)


def seen_lowpass(wave_of, length_ms, runs=40, seed=7):
    """Energies of phases that a low-pass of 13 ms, give or take 6 %, shows every 20 ms, with no error but that."""
    rng = np.random.default_rng(seed)
    plan = bench_coverage.plan_of(rng, runs, 30, length_ms)
    wave = wave_of(rng, plan)
    sensor = replace(NVML, gain_limits=(), bound_ms=1e-6, shared_centre_ms=1e-6, own_centre_ms=0.0, step_w=0.0)
    (signal,) = bench_coverage.part_of(wave, rng, plan, sensor).signals
    label = plan.run * bench_coverage.KINDS + plan.kind
    found = phase_line_energies(signal, plan.begin, plan.end, label, plan.run)
    return found, (wave.energy(plan.end) - wave.energy(plan.begin)) * 1e-9, plan


@pytest.mark.parametrize(
    ("kind", "length_ms", "off_by"), [("steps", 50, 0.003), ("edge ramps", 50, 0.004), ("steps", 200, 0.001)]
)
def test_phases_as_long_as_two_readings_look_are_right_in_the_mean(kind, length_ms, off_by):
    """Phases of 100 ms behind one of 50 ms: a level held as it is shown is 0.6 % off, its slope as much again."""
    found, exact, plan = seen_lowpass(bench_coverage.WAVEFORMS[kind], length_ms)
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
    found, exact, _ = seen_lowpass(rarely_stepping, 200)
    good = found.resolvable
    error_j, u_j = (found.energy_j - exact)[good], found.u_random_j[good]
    assert 0.8 < np.sqrt(np.mean(error_j**2) / np.mean(u_j**2)) < 1.2
    assert not seen_lowpass(rarely_stepping, 10, runs=2)[0].resolvable.any()


def test_the_old_level_is_taken_out_exactly():
    after = np.arange(2 * TAU, 9 * TAU, MS)
    shown = 250 - 170 * np.exp(-1 - after / TAU)
    assert without_filter_tail(shown, np.full(len(after), 80.0), after, TAU) == pytest.approx(
        np.full(len(after), 250.0)
    )
    assert without_filter_tail(shown, np.full(len(after), 80.0), after, 0.0) is shown


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
    g = step_figures(h, 4 * TAU, 0.0, TAU, is_counter=False)
    assert g.a == pytest.approx(np.mean(np.sum(np.diff(y) ** 2, axis=1)), rel=0.03)
    assert g.b == pytest.approx(np.mean(np.sum(np.diff(y, 2) ** 2, axis=1)) / 2, rel=0.03)
    off = y.sum(axis=1) - 0.5 * y[:, -1] - (t[-1] - moment) / h
    assert g.g == pytest.approx(np.mean(off**2), rel=0.05)


# What rounding to codes leaves of a mean, against values rounded one by one.


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2, 0.3])
def test_means_of_rounded_readings_are_off_as_stated(noise):
    rng = np.random.default_rng(1)
    step, n = 0.5, 4000
    value = rng.uniform(0, step, 400)
    readings = np.round((value[:, None] + rng.normal(0, noise * step, (400, n))) / step) * step
    off = readings.mean(axis=1) - value
    seen2 = np.array([(noise * step) ** 2 + (step**2 / 12 if noise else 0.0)])
    by_chance = np.mean(np.var(readings, axis=1)) / n
    rms = np.sqrt(max(np.mean(off**2) - by_chance, 0))
    assert rounding_u(step, seen2)[0] == pytest.approx(rms, rel=0.12, abs=0.002 * step)


def test_without_noise_it_is_a_rectangle_and_noise_never_widens_it():
    found = rounding_u(0.06, np.linspace(0, 0.01, 50))
    assert found[0] == pytest.approx(0.06 / np.sqrt(12))
    assert np.all(np.diff(found) <= 1e-12)
    assert found[-1] < 1e-9
    assert not rounding_u(0.0, np.ones(3)).any()
