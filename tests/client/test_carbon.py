"""Carbon intensities: of countries from the table, of hours from a file."""

import pytest

from powerd_client.energies.carbon import _ALSO, SOURCE, _intensities, carbon_intensity, read_hourly_intensity
from powerd_core.errors import ConfigError

HOUR_0 = 1_772_323_200 // 3600  # 2026-03-01T00:00Z


@pytest.mark.parametrize("country", ["DEU", "deu", "DE", "Germany", " germany "])
def test_a_country_has_codes_of_three_and_two_letters_and_a_name(country):
    germany = carbon_intensity(country)
    assert (germany.code, germany.name, germany.g_per_kwh, germany.year) == ("DEU", "Germany", 342.06, 2024)
    assert str(germany) == f"342.06 g/kWh (Germany 2024: {SOURCE})"


def test_the_world_is_no_country_and_has_no_code():
    assert carbon_intensity("world") == carbon_intensity("World")
    assert carbon_intensity("world").code == "world"


@pytest.mark.parametrize(
    ("written", "code"),
    [("UK", "GBR"), ("ger", "DEU"), ("SUI", "CHE"), ("NED", "NLD"), ("DEN", "DNK"), ("POR", "PRT"), ("Turkey", "TUR")],
)
def test_codes_that_people_write_are_known(written, code):
    assert carbon_intensity(written) == carbon_intensity(code)


def test_every_other_code_is_of_a_country_in_the_table_and_of_no_code_in_it():
    assert [carbon_intensity(code).code.lower() for code in _ALSO] == list(_ALSO.values())
    assert not _ALSO.keys() & _intensities().keys()


@pytest.mark.parametrize(
    ("country", "hint"),
    [
        ("DEY", "DEU (Germany)"),
        ("Germny", "DEU (Germany)"),
        ("Swedn", "SWE (Sweden)"),
        ("Swi", "CHE (Switzerland)"),
        ("-", "as in DEU"),
        ("", "DEU"),
    ],
)
def test_an_unknown_country_is_one_line_with_what_is_near(country, hint):
    with pytest.raises(ConfigError) as raised:
        carbon_intensity(country)
    assert hint in str(raised.value)
    assert "\n" not in str(raised.value)


def written(folder, text):
    path = folder / "hours.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "time_utc,g_per_kwh\n2026-03-01T00:00Z,300\n2026-03-01T01:00Z,\n2026-03-01T02:00Z,250.5\n",
        "Datetime (UTC),Zone,Carbon Intensity gCO2eq/kWh\n2026-03-01 00:00:00,DE,300\n2026-03-01 02:00:00,DE,250.5\n",
        "time,intensity,g_per_kwh\n2026-03-01T01:00:00+01:00,high,300\n2026-03-01T03:00:00+01:00,low,250.5\n",
    ],
)
def test_hours_of_a_file(tmp_path, text):
    hours = read_hourly_intensity(written(tmp_path, text))
    assert hours.g_per_kwh == {HOUR_0: 300.0, HOUR_0 + 2: 250.5}
    assert hours.source == "hours.csv"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "its heading is nothing"),
        ("time,power\n2026-03-01T00:00Z,300\n", "call one column g_per_kwh"),
        ("time,direct intensity,life cycle intensity\n2026-03-01T00:00Z,3,4\n", "call one column g_per_kwh"),
        ("g_per_kwh\n300\n", "behind the times"),
        ("time,g_per_kwh\nyesterday,300\n", "line 2: 'yesterday' is no time"),
        ("time,g_per_kwh\n2026-03-01T00:30Z,300\n", "line 2: 2026-03-01T00:30Z is not the beginning of an hour"),
        ("time,g_per_kwh\n2026-03-01T00:00Z,300\n2026-03-01T01:00+01:00,5\n", "line 3: a second value"),
        ("time,g_per_kwh\n2026-03-01T00:00Z,-3\n", "line 2: -3 g/kWh: it must be 0 to"),
        ("time,g_per_kwh\n2026-03-01T00:00Z,nan\n", "line 2: nan g/kWh"),
        ("time,g_per_kwh\n2026-03-01T00:00Z,much\n", "line 2: "),
        ("time,g_per_kwh\n2026-03-01T00:00Z,\n", "no hour with an intensity"),
    ],
)
def test_a_file_that_says_no_hours_is_one_line(tmp_path, text, reason):
    with pytest.raises(ConfigError, match="hours.csv") as raised:
        read_hourly_intensity(written(tmp_path, text))
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.csv cannot be read as CSV: No such file"):
        read_hourly_intensity(tmp_path / "none.csv")
    (tmp_path / "hours.csv").write_bytes(b"\xff\xfe\x00time")
    with pytest.raises(ConfigError, match="cannot be read as CSV"):
        read_hourly_intensity(tmp_path / "hours.csv")
