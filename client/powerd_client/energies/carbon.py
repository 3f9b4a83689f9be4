"""How much CO2 equivalent a kilowatt-hour emits: by country from a table, and by the hour from a file that a user has.

Nothing is asked of the network.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from powerd_core.errors import ConfigError
from powerd_core.text import printable

SOURCE = "Ember, Yearly Electricity Data, CC BY 4.0"
"""Of every row: the year's mean of what a country generates, without imports. The values are those that CO2.js 0.19
republishes (data/output/average-intensities.json of 2025-08-03)."""

_TABLE = """
ARE AE  467.51 2024 United Arab Emirates
ARG AR  344.83 2024 Argentina
ARM AM  243.52 2024 Armenia
AUS AU  553.76 2024 Australia
AUT AT  102.62 2024 Austria
BEL BE  117.58 2024 Belgium
BGD BD  694.63 2024 Bangladesh
BGR BG  264.21 2024 Bulgaria
BHR BH  902.41 2023 Bahrain
BIH BA  638.05 2024 Bosnia and Herzegovina
BLR BY  323.63 2024 Belarus
BRA BR  106.06 2024 Brazil
CAN CA  184.99 2024 Canada
CHE CH   36.72 2024 Switzerland
CHL CL  265.52 2024 Chile
CHN CN  557.50 2024 China
COL CO  285.80 2024 Colombia
CRI CR   63.01 2024 Costa Rica
CYP CY  512.24 2024 Cyprus
CZE CZ  413.86 2024 Czechia
DEU DE  342.06 2024 Germany
DNK DK  143.30 2024 Denmark
DZA DZ  633.65 2023 Algeria
ECU EC  209.70 2024 Ecuador
EGY EG  574.50 2024 Egypt
ESP ES  146.15 2024 Spain
EST EE  341.02 2024 Estonia
FIN FI   72.25 2024 Finland
FRA FR   44.18 2024 France
GBR GB  215.79 2024 United Kingdom
GEO GE  143.06 2024 Georgia
GRC GR  319.76 2024 Greece
HKG HK  681.99 2023 Hong Kong
HRV HR  174.48 2024 Croatia
HUN HU  182.82 2024 Hungary
IDN ID  682.43 2023 Indonesia
IND IN  708.96 2024 India
IRL IE  279.79 2024 Ireland
IRN IR  648.68 2024 Iran
IRQ IQ  689.40 2023 Iraq
ISL IS   28.33 2023 Iceland
ISR IL  567.26 2023 Israel
ITA IT  287.75 2024 Italy
JOR JO  539.21 2022 Jordan
JPN JP  483.73 2024 Japan
KAZ KZ  801.79 2024 Kazakhstan
KEN KE   84.83 2024 Kenya
KOR KR  415.65 2024 South Korea
KWT KW  637.24 2024 Kuwait
LKA LK  509.78 2022 Sri Lanka
LTU LT  139.34 2024 Lithuania
LUX LU  134.62 2024 Luxembourg
LVA LV  136.22 2024 Latvia
MAR MA  577.65 2024 Morocco
MEX MX  483.14 2024 Mexico
MKD MK  568.97 2024 North Macedonia
MLT MT  484.16 2024 Malta
MYS MY  604.43 2024 Malaysia
NGA NG  507.85 2024 Nigeria
NLD NL  252.70 2024 Netherlands
NOR NO   30.75 2024 Norway
NZL NZ  120.11 2024 New Zealand
OMN OM  545.33 2024 Oman
PAK PK  398.61 2024 Pakistan
PER PE  263.27 2024 Peru
PHL PH  613.38 2024 Philippines
POL PL  614.98 2024 Poland
PRT PT  111.80 2024 Portugal
QAT QA  602.83 2024 Qatar
ROU RO  245.55 2024 Romania
RUS RU  446.17 2024 Russia
SAU SA  691.95 2024 Saudi Arabia
SGP SG  498.74 2024 Singapore
SRB RS  670.80 2024 Serbia
SVK SK   96.49 2024 Slovakia
SVN SI  227.11 2024 Slovenia
SWE SE   35.89 2024 Sweden
THA TH  555.43 2024 Thailand
TUN TN  560.25 2024 Tunisia
TUR TR  469.70 2024 Türkiye
TWN TW  635.15 2024 Taiwan
UKR UA  250.47 2022 Ukraine
URY UY   96.70 2024 Uruguay
USA US  383.55 2024 United States
UZB UZ 1121.18 2023 Uzbekistan
VNM VN  486.13 2024 Vietnam
ZAF ZA  713.90 2024 South Africa
world world 472.94 2024 the world
"""
"""ISO 3166 alpha-3 and alpha-2 code, g/kWh, year, name."""

_ALSO_WRITTEN = """
ALG=DZA BAN=BGD BUL=BGR CHI=CHL CRC=CRI CRO=HRV DEN=DNK EL=GRC GER=DEU GRE=GRC HOL=NLD INA=IDN IRI=IRN KSA=SAU KUW=KWT
LAT=LVA MAS=MYS NED=NLD NGR=NGA OMA=OMN PHI=PHL POR=PRT RSA=ZAF SLO=SVN SRI=LKA SUI=CHE TPE=TWN UAE=ARE UK=GBR URU=URY
VIE=VNM WLD=world HOLLAND=NLD TURKEY=TUR
"""
"""Codes and names that people write, such as the codes of the International Olympic Committee. ISO 3166 gives none of
them to another country, and what is printed says which country it was."""
_ALSO = dict(pair.lower().split("=") for pair in _ALSO_WRITTEN.split())

S_PER_HOUR = 3600
MOST_G_PER_KWH = 10_000.0
"""Several times what any power station emits: more is a slip of the unit."""


# -- by country --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Intensity:
    """Of the electricity of one country, or of the world: the mean of one year."""

    code: str
    """ISO 3166 alpha-3, or ``world``."""
    name: str
    g_per_kwh: float
    year: int
    source: str

    def __str__(self) -> str:
        """``342.06 g/kWh (Germany 2024: Ember, ...)``"""
        return f"{self.g_per_kwh:g} g/kWh ({self.name} {self.year}: {self.source})"


def carbon_intensity(country: str) -> Intensity:
    """The intensity of a country, by its ISO 3166 code of three or two letters or its English name, or of ``world``;
    upper and lower case are the same. Raises `ConfigError` for what the table does not have."""
    known = _intensities()
    word = country.strip().lower()
    word = _ALSO.get(word, word)
    if word in known:
        return known[word]
    begun = [name for name in known if len(word) > 2 and name.startswith(word)]
    near = [known[name] for name in begun[:1] or get_close_matches(word, known, n=1)]
    hint = (
        f": did you mean {near[0].code} ({near[0].name})?"
        if near
        else ": write a code of ISO 3166, as in DEU, or world"
    )
    raise ConfigError(f"no carbon intensity is known of {printable(country, limit=40)!r}{hint}")


@cache
def _intensities() -> dict[str, Intensity]:
    """By code and name, in lower case."""
    known: dict[str, Intensity] = {}
    for line in _TABLE.strip().splitlines():
        alpha3, alpha2, g_per_kwh, year, name = line.split(maxsplit=4)
        intensity = Intensity(alpha3, name, float(g_per_kwh), int(year), SOURCE)
        known |= dict.fromkeys((alpha3.lower(), alpha2.lower(), name.lower()), intensity)
    return known


# -- by hour -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HourlyIntensity:
    """Of single hours; of others nothing is known."""

    g_per_kwh: dict[int, float]
    """By the hour's number since 1970 in UTC: Unix seconds over 3,600."""
    source: str
    """The file."""


def read_hourly_intensity(path: Path) -> HourlyIntensity:
    """A CSV file with a heading: first the time at which each hour begins, in UTC where it names no offset, and g/kWh
    in the column ``g_per_kwh``, or in the only one whose heading speaks of an intensity. An hour without a number is
    one of which nothing is known.

    Raises `ConfigError` for a file that cannot be read, and for what is no hour or intensity, with the line's number.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"{path} cannot be read as CSV: {reason}") from error
    column = _column_of(path, rows[0] if rows else [])
    hours: dict[int, float] = {}
    for number, row in enumerate(rows[1:], 2):
        value = row[column].strip() if column < len(row) else ""
        if not value:
            continue
        try:
            hour, g_per_kwh = _hour_of(row[0]), _g_per_kwh(value)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
        if hour in hours:
            raise ConfigError(f"{path}, line {number}: a second value of the hour {printable(row[0], limit=40)}")
        hours[hour] = g_per_kwh
    if not hours:
        raise ConfigError(f"{path} holds no hour with an intensity")
    return HourlyIntensity(hours, path.name)


def _column_of(path: Path, heading: Sequence[str]) -> int:
    names = [name.strip().lower() for name in heading]
    named = [i for i, name in enumerate(names) if name == "g_per_kwh"]
    alike = named or [i for i, name in enumerate(names) if i and "intensity" in name]
    if len(alike) != 1 or not alike[0]:
        there = printable(", ".join(heading), limit=200) or "nothing"
        raise ConfigError(f"{path}: call one column g_per_kwh, behind the times in the first; its heading is {there}")
    return alike[0]


def _hour_of(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{printable(text, limit=40)!r} is no time, as in 2026-03-01T13:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    hour, rest = divmod(moment.timestamp(), S_PER_HOUR)
    if rest:
        raise ValueError(f"{text.strip()} is not the beginning of an hour in UTC")
    return int(hour)


def _g_per_kwh(text: str) -> float:
    value = float(text) if text.isascii() else math.nan
    if not 0 <= value <= MOST_G_PER_KWH:
        raise ValueError(f"{text} g/kWh: it must be 0 to {MOST_G_PER_KWH:g}")
    return value
