"""CO2 and money: joules, and hours of GPUs, times factors that the user states, with what these and the joules are
unsure of."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import hypot, isfinite
from typing import TYPE_CHECKING

import pandas as pd

from powerd_analytics.energy.metrics import co2_g, money
from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.frame.figure import NODES, Record, figure_of, number_of
from powerd_analytics.frame.figures import Frame, rows_of
from powerd_core.errors import ConfigError
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_client.energies.carbon import Intensity

MOST = 1e12
"""Of grams, of any currency a kilowatt-hour: more than this is a slip."""

S_PER_HOUR = 3600.0
CO2 = "co2_g"
CO2_SOURCE = "co2_source"
"""Columns of CO2 equivalents, and of where their factor is from; that of money has the currency in its name:
``cost_eur``, or ``cost``."""

_NEEDS = {
    "u_co2_g_per_kwh": ("co2_g_per_kwh", "country"),
    "u_price_per_kwh": ("price_per_kwh",),
    "currency": ("price_per_kwh", "price_per_gpu_hour"),
}
"""Factors that say nothing without one of others."""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Factors:
    """Grams of CO2 equivalent and the price of a kilowatt-hour, each with its standard uncertainty, and the price of a
    GPU for an hour. None: not asked."""

    co2_g_per_kwh: float | None = None
    u_co2_g_per_kwh: float | None = None
    price_per_kwh: float | None = None
    u_price_per_kwh: float | None = None
    currency: str | None = None
    """The three letters of ISO 4217."""
    price_per_gpu_hour: float | None = None
    """Of the hardware: what a GPU costs, or its rent, without its energy."""
    country: str | None = None
    """Whose yearly mean stands for ``co2_g_per_kwh`` (`carbon_intensity`)."""

    def __post_init__(self) -> None:
        if self.country is not None:
            self._intensity(self.country)  # says what is wrong with it
            if self.co2_g_per_kwh is not None:
                raise ConfigError("--country says how much a kWh emits: leave --co2-g-per-kwh out")
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, float | int) and not (isfinite(value) and 0 <= value < MOST):
                raise ConfigError(f"{_option(name)} {value:g}: it must be 0 or more, and less than {MOST:g}")
            needed = _NEEDS.get(name, ())
            if value is not None and needed and all(getattr(self, other) is None for other in needed):
                raise ConfigError(f"{_option(name)} is of {_option(needed[0])}: give that too")
        if (text := self.currency) is not None and not (len(text) == 3 and text.isascii() and text.isalpha()):
            raise ConfigError(f"--currency {printable(text, limit=40)}: write its three letters, as in EUR")

    def __bool__(self) -> bool:
        return self.g_per_kwh is not None or self.has_price

    @staticmethod
    def _intensity(country: str) -> Intensity:
        from powerd_client.energies.carbon import carbon_intensity  # few ask for it

        return carbon_intensity(country)

    @property
    def g_per_kwh(self) -> float | None:
        """Grams of CO2 equivalent of a kilowatt-hour, stated or of the country."""
        return self.co2_g_per_kwh if self.country is None else self._intensity(self.country).g_per_kwh

    @property
    def has_price(self) -> bool:
        return self.price_per_kwh is not None or self.price_per_gpu_hour is not None

    @property
    def cost(self) -> str:
        """Name of the column of money."""
        return f"cost_{self.currency.lower()}" if self.currency else "cost"

    @property
    def figures(self) -> list[str]:
        """The names of the figures: each is followed by its U95."""
        return list(self.of(0.0, None, 0.0))

    @property
    def texts(self) -> dict[str, str]:
        """The same of every row: where the grams of a kilowatt-hour are from."""
        if self.country is not None:
            u = "" if self.u_co2_g_per_kwh is None else f", u = {self.u_co2_g_per_kwh:g} as stated"
            return {CO2_SOURCE: f"{self._intensity(self.country)}{u}"}
        if self.co2_g_per_kwh is not None:
            return {CO2_SOURCE: f"{_stated(self.co2_g_per_kwh, self.u_co2_g_per_kwh)} g/kWh, as stated"}
        return {}

    @property
    def columns(self) -> list[str]:
        """The columns that `with_costs` adds."""
        return [*self.figures, *self.texts]

    @property
    def stated(self) -> str:
        """The factors in words; empty where there is none."""
        per = f"{self.currency.upper()}/kWh" if self.currency else "a kWh"
        factors = [f"CO2 equivalents at {source}" for source in self.texts.values()]
        if self.price_per_kwh is not None:
            factors.append(f"cost at {_stated(self.price_per_kwh, self.u_price_per_kwh)} {per}, as stated")
        if self.price_per_gpu_hour is not None:
            money = f" {self.currency.upper()}" if self.currency else ""
            factors.append(f"{self.price_per_gpu_hour:g}{money} for an hour of a GPU, as stated, in the rows of GPUs")
        return ", ".join(factors)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of these columns."""
        return (f"{self.stated}, of the joules in the same row",) if self else ()

    def of(self, energy_j: float, u95_j: float | None, gpu_s: float | None = None) -> dict[str, float | None]:
        """The columns of an energy, and of so many seconds of GPUs, added up over these; without an interval where its
        own is not known. Nothing is told of money where the only price is that of GPUs and there is none."""
        columns: dict[str, float | None] = {}
        if (g_per_kwh := self.g_per_kwh) is not None:
            columns |= _product(CO2, energy_j, u95_j, g_per_kwh, self.u_co2_g_per_kwh, co2_g)
        if self.has_price:
            price = self.price_per_kwh or 0.0
            columns |= _product(self.cost, energy_j, u95_j, price, self.u_price_per_kwh, money)
            of_gpus = (self.price_per_gpu_hour or 0.0) * (gpu_s or 0.0) / S_PER_HOUR
            columns[self.cost] = (columns[self.cost] or 0.0) + of_gpus
            if self.price_per_kwh is None and not gpu_s:  # no price is of this row
                columns |= dict.fromkeys((self.cost, f"u95_{self.cost}"))
        return columns


def _product(
    name: str, energy_j: float, u95_j: float | None, factor: float, u_factor: float | None,
    of: Callable[[float, float], float],
) -> dict[str, float | None]:  # fmt: skip
    """Joules times a factor, which are off independently of each other (GUM 5.1.6)."""
    value = of(energy_j, factor)
    by_joules = of(u95_j or 0.0, factor)
    by_factor = COVERAGE_FACTOR * of(energy_j, u_factor or 0.0)
    return {name: value, f"u95_{name}": None if u95_j is None else hypot(by_joules, by_factor)}


def with_costs(frame: Frame, factors: Factors) -> Frame:
    """The frame with the columns of ``factors``: of ``energy_j``, and of phases of a whole training of
    ``j_per_training``. Averaged before: what repeats share of a factor's error does not average out."""
    if not factors:
        return frame
    frame, columns = frame.copy(), [_of_row(r, factors) for r in rows_of(frame)]
    for name in factors.figures:
        frame[name] = pd.Series([own.get(name) for own in columns], frame.index, "float64")
    return frame.assign(**factors.texts)


def _of_row(row: Record, factors: Factors) -> dict[str, float | None]:
    name = "j_per_training" if row["kind"] == "phase" else "energy_j"
    if row.get(name) is None:
        return {}
    joules, seconds = figure_of(row, name), number_of(row, "s_per_training" if row["kind"] == "phase" else "time_s")
    return {} if joules is None else factors.of(joules.value, joules.u95, gpus_in(row) * (seconds or 0.0))


def gpus_in(row: Record) -> float:
    """How many GPUs a row's seconds are of: the one, all of a training in the row of their sum and in that of the
    machine, and none in a row of processors, whose hours are in no price."""
    device = str(row["device"])
    if re.fullmatch(r"gpu\d+", device):
        return 1.0
    is_whole = device.startswith("gpu") or device in NODES or device.endswith("GPUs")
    return number_of(row, "gpus") or 1.0 if is_whole else 0.0


def _stated(factor: float, u: float | None) -> str:
    return f"{factor:g}" if u is None else f"{factor:g} (u = {u:g})"
