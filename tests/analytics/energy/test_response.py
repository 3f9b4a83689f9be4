"""What a sensor sees of power: the design of the regression and what the model's readings would show are one thing."""

import numpy as np
import pytest

from powerd_analytics.energy.response import Response
from powerd_analytics.energy.states import StateCells

SENSORS = {
    "point": Response(0.0, 0.0, False),
    "window": Response(0.02, 0.0, False),
    "long window": Response(1.0, 0.0, False),
    "low-pass": Response(0.0, 0.0133, False),
    "window and low-pass": Response(0.01, 0.0133, False),
    "counter": Response(0.0, 0.0, True),
}


@pytest.mark.parametrize("sensor", SENSORS.values(), ids=list(SENSORS))
def test_shares_of_columns_times_their_power_are_what_is_seen(sensor):
    rng = np.random.default_rng(0)
    at_s = np.append(0.0, np.cumsum(rng.uniform(0.0005, 0.02, 600)))
    cells, watts = StateCells(0, at_s, rng.integers(0, 9, 600)), rng.uniform(50, 500, 9)
    t_s = np.sort(rng.uniform(1.2, at_s[-1] - 1.2, 50))
    design = sensor.moved(0.7e-3).design(cells, t_s, 9)
    assert design.sum(axis=1) == pytest.approx(1)
    assert design @ watts == pytest.approx(sensor.moved(0.7e-3).seen(cells, watts[cells.column], t_s), rel=1e-9)
