"""What rounding to codes leaves of a mean, against values rounded one by one."""

import numpy as np
import pytest

from powerd_analytics.edges.rounding import rounding_u


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
