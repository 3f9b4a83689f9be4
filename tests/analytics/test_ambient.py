"""The temperature around the machine: a column of the frame, by a sensor or by hand, and never what parts repeats."""

import numpy as np
import pandas as pd
import pytest
from make_campaign import one_run, with_attributes
from make_run import LineSpec, auxiliary, make_run, training

from powerd_analytics.frame.figures import rows_of, run_frame
from powerd_analytics.frame.repeats import average_repeats


def rising(t):
    return 20.0 + 2.0 * t / t[-1]


def totals(frame):
    return [row for row in rows_of(frame) if row["kind"] == "total"]


def test_a_line_that_is_called_ambient_is_the_temperature_around(tmp_path):
    line = auxiliary("room.ambient", "temperature_c", rising, device="room", period_ns=10_000_000)
    row = totals(run_frame(one_run(tmp_path / "a.h5", lines=[line])))[0]
    assert row["ambient_c"] == pytest.approx(21.0, abs=0.3)


@pytest.mark.parametrize("quantity", ["power_limit_w", "humidity_pct"])
def test_what_is_no_temperature_is_none(tmp_path, quantity):
    line = auxiliary("room.ambient", quantity, rising, device="room", period_ns=10_000_000)
    assert totals(run_frame(one_run(tmp_path / "a.h5", lines=[line])))[0]["ambient_c"] is None


def test_phases_may_say_it_and_repeats_at_other_temperatures_stay_repeats(tmp_path):
    frames = []
    for name, degrees in (("a", 18.0), ("b", 22.0)):
        tr = with_attributes(training((64,), 12), ambient_c=degrees)
        file = make_run(tmp_path / f"{name}.h5", [LineSpec("gpu0.a", tr.power())], tr.phases, end_ns=tr.end_ns)
        frames.append(run_frame(file).assign(run_id=name))
    assert [totals(frame)[0]["ambient_c"] for frame in frames] == [18.0, 22.0]
    (row,) = totals(average_repeats(pd.concat(frames, ignore_index=True)))
    assert (row["runs"], row["ambient_c"]) == (2, pytest.approx(np.mean([18.0, 22.0])))
