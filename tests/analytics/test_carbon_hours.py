"""CO2 by country and by the hour: year and source in every output, and hours of which nothing is known are said."""

import csv
import io
import json

import pytest
from command import joules
from make_campaign import one_run
from make_run import LineSpec, S, make_run

from powerd_analytics.frame.costs import Factors
from powerd_client.energies.carbon import SOURCE
from powerd_core.errors import ConfigError

GERMANY = f"342.06 g/kWh (Germany 2024: {SOURCE})"


def steady(path, power_w=100.0, length_s=6, **attributes):
    """A run of steady power that begins two seconds before 13:00 UTC."""
    line = LineSpec("gpu0.a", lambda t: power_w + 0 * t, "gpu0", accuracy={"u_gain": 0.01})
    begun = {"created_utc": "2026-01-01T12:59:58Z"} | attributes
    return make_run(path, [line], end_ns=length_s * S, **begun)


def hours_file(folder, *lines):
    path = folder / "grid.csv"
    path.write_text("\n".join(("time_utc,g_per_kwh", *lines)) + "\n", encoding="utf-8")
    return path


def rows_by_hour(capsys, *arguments):
    code, out, err = joules(capsys, "tables", *arguments, "--format", "csv")
    assert (code, err) == (0, "")
    return {row["hour_utc"]: row for row in csv.DictReader(io.StringIO(out))}


def test_each_hour_has_its_own_joules_and_intensity(tmp_path, capsys):
    hours = hours_file(tmp_path, "2026-01-01T12:00Z,300", "2026-01-01T13:00Z,600")
    rows = rows_by_hour(capsys, steady(tmp_path / "a.h5"), "--co2-by-hour", hours)
    assert list(rows) == ["2026-01-01T12:00Z", "2026-01-01T13:00Z", "all"]
    assert [float(row["energy_j"]) for row in rows.values()] == pytest.approx([200, 400, 600], rel=1e-3)
    grams = [200 * 300 / 3.6e6, 400 * 600 / 3.6e6]
    assert [float(row["co2_g"]) for row in rows.values()] == pytest.approx([*grams, sum(grams)], rel=1e-3)
    assert float(rows["all"]["g_per_kwh"]) == pytest.approx(500, rel=1e-3)
    # The sensor's gain is off in both hours alike: what it adds does not average out.
    all_of_it = {name: float(rows["all"][name]) for name in ("energy_j", "u95_j", "co2_g", "u95_co2_g")}
    relative = all_of_it["u95_j"] / all_of_it["energy_j"]
    assert relative > 0.01
    assert all_of_it["u95_co2_g"] == pytest.approx(relative * sum(grams), rel=0.01)
    assert {row["co2_source"] for row in rows.values()} == {"grid.csv"}
    assert {row["is_lower_bound"] for row in rows.values()} == {"False"}


def test_an_hour_without_an_intensity_is_said_and_not_guessed(tmp_path, capsys):
    hours = hours_file(tmp_path, "2026-01-01T12:00Z,300", "2026-01-01T14:00Z,600")
    run = steady(tmp_path / "a.h5")
    rows = rows_by_hour(capsys, run, "--co2-by-hour", hours)
    assert (rows["2026-01-01T13:00Z"]["co2_g"], rows["2026-01-01T13:00Z"]["note"]) == ("", "no intensity of this hour")
    assert rows["all"]["is_lower_bound"] == "True"
    assert rows["all"]["co2_g"] == rows["2026-01-01T12:00Z"]["co2_g"]
    assert rows["all"]["note"] == "400 J of 1 hours without an intensity are in no grams"
    _, text, _ = joules(capsys, "tables", run, "--co2-by-hour", hours)
    assert "≥" in text
    assert "grid.csv" in text


def test_hours_go_with_few_options_and_bad_files_are_one_line(tmp_path, capsys):
    run, hours = steady(tmp_path / "a.h5"), hours_file(tmp_path, "2026-01-01T12:00Z,300")
    for wrong in (("--co2-by-hour", hours, "--country", "DEU"), ("--co2-by-hour", tmp_path / "none.csv"),
                  ("--co2-by-hour", hours, "--format", "parquet"), ("--country", "Germny"),
                  ("--country", "DEU", "--co2-g-per-kwh", "3")):  # fmt: skip
        code, out, err = joules(capsys, "tables", run, *wrong)
        assert (code, out, len(err.splitlines())) == (2, "", 1), wrong
    code, out, err = joules(capsys, "tables", run, "--co2-by-hour", hours, "-o", hours, "--overwrite")
    assert (code, "is read by this command" in err) == (2, True)


def test_a_country_is_in_every_output_with_year_and_source(tmp_path, capsys):
    run = one_run(tmp_path / "a.h5")
    _, out, _ = joules(capsys, "tables", run, "--table", "totals", "--country", "de", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert float(row["co2_g"]) == pytest.approx(342.06 * float(row["energy_j"]) / 3.6e6, rel=1e-6)
    assert row["co2_source"] == GERMANY
    for form in ("text", "json"):
        _, out, _ = joules(capsys, "tables", run, "--table", "totals", "--country", "de", "--format", form)
        text = json.dumps(json.loads(out), ensure_ascii=False) if form == "json" else " ".join(out.split())
        assert "Germany 2024" in text, form
        assert "Ember" in text, form


def test_a_country_takes_the_uncertainty_that_a_user_states():
    factors = Factors(country="DEU", u_co2_g_per_kwh=30.0)
    assert factors.of(3.6e6, 0.0) == {"co2_g": pytest.approx(342.06), "u95_co2_g": pytest.approx(60.0)}
    assert factors.stated == f"CO2 equivalents at {GERMANY}, u = 30 as stated"
    assert factors.columns == ["co2_g", "u95_co2_g", "co2_source"]
    with pytest.raises(ConfigError, match="u-co2-g-per-kwh is of --co2-g-per-kwh"):
        Factors(u_co2_g_per_kwh=30.0)
