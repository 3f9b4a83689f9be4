"""What all readings of a chip share of the doubt where their windows lie, and what it does to the joules of phases."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from powerd_analytics.edges.cells import Cells
from powerd_analytics.edges.edges import phase_line_energies
from powerd_analytics.edges.geometry import geometry_of
from powerd_analytics.edges.place import shared_place_ns
from powerd_analytics.edges.sensor import sensor_of
from powerd_analytics.runs.run import RunLine
from powerd_analytics.signals.signal import Signal
from powerd_core.model import Accuracy, Provenance, ScaledConversion, ShuntConversion
from powerd_daemon.ina.sensor import Sensor, accuracy

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
    found = shared_place_ns(signal_of(SHUNT, given, {"sensors": [asdict(sensor)]}))
    assert found == pytest.approx(given.centre_ns - settings.cycle_ns / 2, abs=2)


def test_what_is_known_of_other_sensors():
    given = Accuracy(window_ns=MS, centre_ns=1_200_000)
    ina219 = {"sensors": [{"name": "b", "chip": "INA226"}, {"name": "a", "chip": "INA219"}]}
    assert sensor_of(signal_of(SHUNT, given, ina219).line)["chip"] == "INA219"
    # Its cycle is measured; of a chip that nobody names, what half a reading distance cannot be is shared.
    assert shared_place_ns(signal_of(SHUNT, replace(given, centre_ns=790_000), ina219)) == 15_000
    assert shared_place_ns(signal_of(SHUNT, given, {})) == 200_000
    assert shared_place_ns(signal_of(SHUNT, replace(given, centre_ns=790_000), {})) == 0
    assert shared_place_ns(signal_of(ScaledConversion("c", 1.0), given, {})) == 1_200_000
    assert shared_place_ns(replace(signal_of(SHUNT, given, {}), is_counter=True)) == 0
    for strange in ({"sensors": 3}, {"sensors": [None, {"name": 1}]}, {"sensors": "a"}):
        assert shared_place_ns(signal_of(SHUNT, given, strange)) == 200_000


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
    u = np.sqrt(found.u_edge_j**2 + found.u_left_j**2 + found.u_place_j**2)[which]
    assert abs(error_j.mean()) < 2 * u.mean() < 0.1


@pytest.mark.parametrize("place_ns", [-190_000, 0, 190_000])
def test_a_ramp_is_assigned_wherever_the_windows_lie_and_their_place_is_a_part_of_the_doubt(place_ns):
    found, error_j, which = seen(ramping, place_ns)
    u = np.sqrt(found.u_edge_j**2 + found.u_left_j**2 + found.u_place_j**2)[which]
    # Nothing assigned would be 60 mJ off; the place alone makes 28.
    assert abs(error_j.mean()) < 0.045
    assert abs(error_j.mean()) < 2 * u.mean()
    assert found.u_place_j[which].mean() == pytest.approx(0.204e-3 / np.sqrt(3) * 150, rel=0.25)


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


def test_the_place_that_windows_share_is_no_scatter_besides():
    given = Accuracy(window_ns=140_000, centre_ns=344_000)
    t = np.arange(0, 20 * MS, 285_714)
    chip = signal_of(SHUNT, given, {"sensors": [{"name": "a", "chip": "INA226"}]}, t, None, 285_714)
    own = chip.centre_ns - shared_place_ns(chip)
    assert 0 < own < 0.5 * chip.centre_ns
    plain = geometry_of(285_714, 140_000, own, is_counter=False)
    assert Cells(chip).geometry == plain != geometry_of(285_714, 140_000, chip.centre_ns, is_counter=False)
