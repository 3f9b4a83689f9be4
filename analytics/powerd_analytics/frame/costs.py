"""CO2 and money: joules, and hours of GPUs, times factors that the user states, with what these and the joules are
unsure of."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import hypot, isfinite

import pandas as pd

from powerd_analytics.energy.metrics import co2_g, money
from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.frame.figure import NODES, Record, figure_of, number_of
from powerd_analytics.frame.figures import Frame, rows_of
from powerd_core.errors import ConfigError
from powerd_core.text import printable

MOST = 1e12
"""Of grams, of any currency a kilowatt-hour: more than this is a slip."""

S_PER_HOUR = 3600.0
CO2 = "co2_g"
"""Column of CO2 equivalents; that of money has the currency in its name: ``cost_eur``, or ``cost``."""


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

    def __post_init__(self) -> None:
        options = {name: f"--{name.replace('_', '-')}" for name in self.__slots__}
        for name, option in options.items():
            value = getattr(self, name)
            if name != "currency" and value is not None and not (isfinite(value) and 0 <= value < MOST):
                raise ConfigError(f"{option} {value:g}: it must be 0 or more, and less than {MOST:g}")
            of = "price_per_kwh" if name == "currency" else name.removeprefix("u_")
            is_priced = name == "currency" and self.price_per_gpu_hour is not None
            if value is not None and getattr(self, of) is None and not is_priced:
                raise ConfigError(f"{option} is of {options[of]}: give that too")
        if (text := self.currency) is not None and not (len(text) == 3 and text.isascii() and text.isalpha()):
            raise ConfigError(f"--currency {printable(text, limit=40)}: write its three letters, as in EUR")

    def __bool__(self) -> bool:
        return self.co2_g_per_kwh is not None or self.has_price

    @property
    def has_price(self) -> bool:
        return self.price_per_kwh is not None or self.price_per_gpu_hour is not None

    @property
    def cost(self) -> str:
        """Name of the column of money."""
        return f"cost_{self.currency.lower()}" if self.currency else "cost"

    @property
    def columns(self) -> list[str]:
        """The columns that `with_factors` adds."""
        return list(self.of(0.0, None, 0.0))

    @property
    def stated(self) -> str:
        """The factors in words; empty where there is none."""
        per = f"{self.currency.upper()}/kWh" if self.currency else "a kWh"
        factors = []
        if self.co2_g_per_kwh is not None:
            factors.append(f"CO2 equivalents at {_stated(self.co2_g_per_kwh, self.u_co2_g_per_kwh)} g/kWh")
        if self.price_per_kwh is not None:
            factors.append(f"cost at {_stated(self.price_per_kwh, self.u_price_per_kwh)} {per}")
        if self.price_per_gpu_hour is not None:
            money = f" {self.currency.upper()}" if self.currency else ""
            factors.append(f"{self.price_per_gpu_hour:g}{money} for an hour of a GPU, in the rows of GPUs")
        return f"{', '.join(factors)}, as stated" if factors else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of these columns."""
        return (f"{self.stated}, of the joules in the same row",) if self else ()

    def of(self, energy_j: float, u95_j: float | None, gpu_s: float | None = None) -> dict[str, float | None]:
        """The columns of an energy, and of so many seconds of GPUs, added up over these; without an interval where its
        own is not known."""
        columns: dict[str, float | None] = {}
        if self.co2_g_per_kwh is not None:
            columns |= _product(CO2, energy_j, u95_j, self.co2_g_per_kwh, self.u_co2_g_per_kwh, co2_g)
        if self.has_price:
            price = self.price_per_kwh or 0.0
            columns |= _product(self.cost, energy_j, u95_j, price, self.u_price_per_kwh, money)
            of_gpus = (self.price_per_gpu_hour or 0.0) * (gpu_s or 0.0) / S_PER_HOUR
            columns[self.cost] = (columns[self.cost] or 0.0) + of_gpus
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
    for name in factors.columns:
        frame[name] = pd.Series([own.get(name) for own in columns], frame.index, "float64")
    return frame


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
