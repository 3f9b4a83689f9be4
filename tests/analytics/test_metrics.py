"""Figures of merit by hand and against published ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_tables import CAPS, CASTRO, DATA, rows

from powerd_analytics.energy import metrics
from powerd_core.errors import AnalysisError


def test_values_by_hand():
    assert metrics.energy_j(200.0, 3.0) == 600.0
    assert metrics.mean_power_w(600.0, 3.0) == 200.0
    assert metrics.edp_js(600.0, 3.0) == 1800.0
    assert metrics.ed2p_js2(600.0, 3.0) == 5400.0
    assert metrics.eds(600.0, 3.0, 800.0, 2.0, 1.5) == pytest.approx(0.5 / 1.5 * 0.75 + 1.5 / 1.5)
    assert metrics.energy_saving_pct(600.0, 800.0) == pytest.approx(25.0)
    assert metrics.performance_loss_pct(3.0, 2.0) == pytest.approx(50.0)
    assert metrics.saving_minus_loss_pct(600.0, 3.0, 800.0, 2.0) == pytest.approx(-25.0)
    assert metrics.zeus_cost_j(600.0, 3.0, 300.0, 0.25) == pytest.approx(150.0 + 0.75 * 900.0)
    assert metrics.gflops_per_w(3e12, 600.0) == pytest.approx(5.0)
    assert metrics.gflops_per_w_paper(1e9, 100, 2, 40.0) == pytest.approx(5.0)
    assert metrics.samples_per_s(1200, 3.0) == 400.0
    assert metrics.co2_g(7.2e6, 400.0) == pytest.approx(800.0)
    assert metrics.money(1.8e6, 0.30) == pytest.approx(0.15)


def test_savings_and_losses_as_krzywaniak_prints_them():
    published = rows(CAPS)
    checked = 0
    for row in published:
        if row["target"] == "default" or row["model"] == "Alexnet":
            continue  # the printed per cents of Alexnet do not follow from its joules and seconds
        default = next(r for r in published if (r["model"], r["target"]) == (row["model"], "default"))
        e, t, e0, t0 = (float(r[c]) for r in (row, default) for c in ("energy_kj", "time_s"))
        assert metrics.energy_saving_pct(e, e0) == pytest.approx(-float(row["energy_vs_default_pct"]), abs=0.8)
        assert metrics.performance_loss_pct(t, t0) == pytest.approx(float(row["time_vs_default_pct"]), abs=0.25)
        checked += 1
    assert checked == 20


def test_iterations_of_castro_follow_from_the_epochs():
    data = {"CaffeNet": 1_280_000, "ResNetIm": 1_280_000}
    for row in rows(CASTRO / "table3_iterations.csv"):
        if row["model"] in data:
            found = metrics.iterations_of(int(row["epochs"]), data[row["model"]], int(row["batch"]))
            assert found == int(row["iterations"])
    assert metrics.iterations_of(3, 10, 4) == 9
    assert metrics.iterations_of(3, 10, 4, drop_last=True) == 6
    assert metrics.iterations_of(0.5, 100, 10) == 5
    assert [metrics.iterations_of(epochs, 3, 1) for epochs in (0.5, 1.5, 2.5)] == [2, 5, 8]
    inf, nan = float("inf"), float("nan")
    for bad in ((1, 0, 4), (1, 10, 0), (-1, 10, 4), (nan, 10, 4), (1, nan, 4), (1, inf, 4), (1, 10, nan)):
        with pytest.raises(AnalysisError):
            metrics.iterations_of(*bad)


# Each metric of an energy and a time against a reference.
OF_ALL = {
    "mean_power_w": lambda e, t, e0, t0: metrics.mean_power_w(e, t),
    "edp_js": lambda e, t, e0, t0: metrics.edp_js(e, t),
    "ed2p_js2": lambda e, t, e0, t0: metrics.ed2p_js2(e, t),
    "eds": lambda e, t, e0, t0: metrics.eds(e, t, e0, t0, 1.5),
    "saving": lambda e, t, e0, t0: metrics.energy_saving_pct(e, e0),
    "loss": lambda e, t, e0, t0: metrics.performance_loss_pct(t, t0),
    "difference": metrics.saving_minus_loss_pct,
    "cost": lambda e, t, e0, t0: metrics.zeus_cost_j(e, t, 300.0, 0.4),
    "gflops_per_w": lambda e, t, e0, t0: metrics.gflops_per_w(1e12, e),
    "samples_per_s": lambda e, t, e0, t0: metrics.samples_per_s(100, t),
    "co2_g": lambda e, t, e0, t0: metrics.co2_g(e, 400.0),
    "money": lambda e, t, e0, t0: metrics.money(e, 0.3),
}


@given(st.lists(st.tuples(*[st.floats(1.0, 1000.0)] * 4), min_size=1, max_size=5))
def test_arrays_give_what_their_numbers_give(rows):
    for name, metric in OF_ALL.items():
        of_arrays = metric(*np.array(rows).T)
        assert of_arrays == pytest.approx([metric(*row) for row in rows], rel=1e-12), name


def slow_front(points):
    """By the definition: not beaten by any other."""
    return {
        i for i, (t, e) in enumerate(points)
        if not any((u <= t and f <= e) and (u < t or f < e) for u, f in points)
    }  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30))
def test_front_by_its_definition(points):
    t, e = zip(*points, strict=True)
    front = metrics.pareto_front(t, e).tolist()
    assert set(front) == slow_front(points)
    assert len(front) == len(set(front))
    assert [t[i] for i in front] == sorted(t[i] for i in front)


# What the simulator of the Zeus study ended with on a V100 (eta 0.5): batch size, power limit, joules, seconds of a
# training. The three with joules always took the same runs; the others drew some of the traced ones.
ZEUS = {
    "cifar100": (128, 100, 28477.8604436586, 339.2106666667),
    "imagenet": (360, 175, None, None),
    "librispeech": (48, 150, 5846868.056530896, 45777.214),
    "movielens-1m": (16384, 175, None, None),
    "sentiment140": (64, 175, 2180790.642808361, 13385.69074062),
}


@pytest.mark.parametrize("job", ZEUS)
def test_the_lowest_cost_is_where_zeus_ends(job):
    traced = [r for r in rows(DATA / "zeus" / "v100.csv") if r["job"] == job]
    power, epochs, s_per_epoch = (
        np.array([float(r[c]) for r in traced]) for c in ("average_power_w", "epochs", "s_per_epoch")
    )
    time_s = s_per_epoch * epochs
    energy_j = metrics.energy_j(power, time_s)
    best = int(np.argmin(metrics.zeus_cost_j(energy_j, time_s, 250.0, 0.5)))
    batch, limit, joules, seconds = ZEUS[job]
    assert (int(traced[best]["batch_size"]), float(traced[best]["power_limit_w"])) == (batch, limit)
    if joules is not None:
        assert (energy_j[best], time_s[best]) == pytest.approx((joules, seconds), rel=1e-9)
