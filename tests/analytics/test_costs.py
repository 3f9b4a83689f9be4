"""CO2 and money of tables: propagated, in every format, and refused where a factor is none."""

import csv
import io
import math

import pytest
from command import joules
from hypothesis import given
from hypothesis import strategies as st
from make_campaign import one_run

from powerd_analytics.frame.costs import Factors, gpus_in
from powerd_core.errors import ConfigError

BOTH = ("--co2-g-per-kwh", "380", "--u-co2-g-per-kwh", "20", "--price-per-kwh", "0.3", "--currency", "EUR")
COLUMNS = ["co2_g", "u95_co2_g", "cost_eur", "u95_cost_eur"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return one_run(tmp_path_factory.mktemp("factors") / "r.h5", accuracy={"u_gain": 0.005}, noise_w=4.0)


def totals(capsys, run, *options):
    code, out, err = joules(capsys, "tables", run, "--table", "totals", "--format", "csv", *options)
    assert (code, err) == (0, "")
    return next(csv.DictReader(io.StringIO(out)))


@pytest.mark.parametrize("length", [(), ("--iterations", "100000")])
def test_totals_say_what_their_own_joules_cost(run, capsys, length):
    row = {name: float(v) for name, v in totals(capsys, run, *BOTH, *length).items() if name in (*COLUMNS, "energy_j",
           "u95_j")}  # fmt: skip
    kwh, u_kwh = row["energy_j"] / 3.6e6, row["u95_j"] / 3.6e6
    assert row["co2_g"] == pytest.approx(380 * kwh)
    assert row["u95_co2_g"] == pytest.approx(math.hypot(380 * u_kwh, 2 * 20 * kwh))
    assert row["cost_eur"] == pytest.approx(0.3 * kwh)
    assert row["u95_cost_eur"] == pytest.approx(0.3 * u_kwh)
    assert u_kwh > 0


@given(energy=st.floats(1.0, 1e9), u=st.floats(0.0, 0.1), factor=st.floats(0.001, 1e3), u_factor=st.floats(0.0, 0.1))
def test_relative_uncertainties_add_in_squares(energy, u, factor, u_factor):
    found = Factors(co2_g_per_kwh=factor, u_co2_g_per_kwh=u_factor * factor).of(energy, 2 * u * energy)
    assert found["u95_co2_g"] == pytest.approx(2 * math.hypot(u, u_factor) * found["co2_g"], rel=1e-9, abs=1e-300)
    assert Factors(price_per_kwh=factor).of(energy, None) == {"cost": pytest.approx(energy / 3.6e6 * factor),
                                                              "u95_cost": None}  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {"co2_g_per_kwh": -1.0}, {"price_per_kwh": math.nan}, {"co2_g_per_kwh": 1e12}, {"u_price_per_kwh": 0.1},
        {"currency": "EUR"}, {"price_per_kwh": 0.3, "currency": "EURO"},
    ],
)  # fmt: skip
def test_what_is_no_factor(given):
    with pytest.raises(ConfigError):
        Factors(**given)


def test_hours_of_gpus_cost_beside_their_energy(tmp_path, capsys):
    one_run(tmp_path / "a.h5", gpus=2)
    priced = ("--price-per-kwh", 0.36, "--price-per-gpu-hour", 3.6, "--currency", "EUR", "--iterations", 1000)
    code, out, _ = joules(capsys, "tables", tmp_path / "a.h5", "--table", "totals", "--format", "csv", *priced)
    assert code == 0
    found = {row["device"]: row for row in csv.DictReader(io.StringIO(out))}
    for device, gpus in (("gpu0", 1), ("gpu0+gpu1", 2)):
        row = found[device]
        expected = 0.36 * float(row["energy_j"]) / 3.6e6 + 3.6 * gpus * float(row["time_s"]) / 3600
        assert float(row["cost_eur"]) == pytest.approx(expected, rel=1e-4)


def test_processors_are_in_no_price_of_a_gpu():
    row = {"device": "cpu0", "gpus": 4}
    assert [gpus_in(row | {"device": name}) for name in ("cpu0", "gpu3", "gpu0+gpu1", "node")] == [0, 1, 4, 4]
