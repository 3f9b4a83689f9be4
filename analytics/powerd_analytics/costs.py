"""CO2 and money of energies: by factors that the user states, with what these and the joules are unsure of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.export import Cell
from powerd_analytics.metrics import co2_g, money
from powerd_analytics.quantity import Quantity
from powerd_analytics.records import Record, number_of
from powerd_core.errors import ConfigError
from powerd_core.text import printable

CO2 = "co2_g"
"""Column of CO2 equivalents; that of money has the currency in its name: ``cost_eur``, or ``cost``."""
MOST = 1e12
"""Of any currency, or grams, a kilowatt-hour: more is a slip."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Grams of CO2 equivalent and the price of a kilowatt-hour, each with its standard uncertainty. None: not asked."""

    co2_g_per_kwh: float | None = None
    u_co2_g_per_kwh: float | None = None
    price_per_kwh: float | None = None
    u_price_per_kwh: float | None = None
    currency: str | None = None
    """The three letters of ISO 4217."""

    def __post_init__(self) -> None:
        for name in ("co2_g_per_kwh", "price_per_kwh"):
            option, factor, u = f"--{name.replace('_', '-')}", getattr(self, name), getattr(self, f"u_{name}")
            for what, value in ((option, factor), (f"--u-{option[2:]}", u)):
                if value is not None and not (isfinite(value) and 0 <= value < MOST):
                    raise ConfigError(f"{what} {value:g}: it must be 0 or more, and less than {MOST:g}")
            if u is not None and factor is None:
                raise ConfigError(f"--u-{option[2:]} is the standard uncertainty of {option}: give that too")
        if self.currency is not None and self.price_per_kwh is None:
            raise ConfigError("--currency is that of --price-per-kwh: give that too")
        if self.currency is not None and not _is_code(self.currency):
            raise ConfigError(f"--currency {printable(self.currency, limit=40)}: write its three letters, as in EUR")

    def __bool__(self) -> bool:
        return self.co2_g_per_kwh is not None or self.price_per_kwh is not None

    @property
    def cost(self) -> str:
        """Name of the column of money."""
        return f"cost_{self.currency.lower()}" if self.currency else "cost"

    @property
    def columns(self) -> list[str]:
        """The columns that `with_factors` adds."""
        names = [CO2] if self.co2_g_per_kwh is not None else []
        names += [self.cost] if self.price_per_kwh is not None else []
        return [column for name in names for column in (name, f"u95_{name}")]

    @property
    def stated(self) -> str:
        """The factors in words; empty where there is none."""
        factors = []
        if self.co2_g_per_kwh is not None:
            factors.append(f"CO2 equivalents at {_stated(self.co2_g_per_kwh, self.u_co2_g_per_kwh)} g/kWh")
        if self.price_per_kwh is not None:
            per = f"{self.currency.upper()}/kWh" if self.currency else "a kWh"
            factors.append(f"cost at {_stated(self.price_per_kwh, self.u_price_per_kwh)} {per}")
        return f"{', '.join(factors)}, as stated" if factors else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of these columns."""
        return (f"{self.stated}, of the joules in the same row",) if self else ()

    def of(self, energy_j: float, u95_j: float | None) -> dict[str, float | None]:
        """The columns of an energy; without an interval where its own is not known."""
        joules = Quantity.measured(energy_j, 0.0, (u95_j or 0.0) / COVERAGE_FACTOR)
        columns: dict[str, float | None] = {}
        of_each: tuple[tuple[str, Callable[[Quantity, Quantity], Quantity], float | None, float | None], ...] = (
            (CO2, co2_g, self.co2_g_per_kwh, self.u_co2_g_per_kwh),
            (self.cost, money, self.price_per_kwh, self.u_price_per_kwh),
        )
        for name, function, factor, u in of_each:
            if factor is not None:
                cost = function(joules, Quantity.measured(factor, 0.0, u or 0.0))
                columns |= {name: cost.value, f"u95_{name}": None if u95_j is None else cost.u95}
        return columns


def with_factors(records: Sequence[Record], factors: Factors) -> list[Record]:
    """The records with the columns of ``factors``: of ``energy_j``, and of phases of a whole training of
    ``j_per_training``. Averaged before: what repeats share of a factor's error does not average out."""
    if not factors:
        return list(records)
    return [{**r, **dict.fromkeys(factors.columns), **_of_record(r, factors)} for r in records]


def _of_record(record: Record, factors: Factors) -> dict[str, Cell]:
    if record["kind"] == "phase":
        names = ("j_per_training", "u95_j_per_training")
        energy, u95 = (number_of(record, n) if n in record else None for n in names)
    else:
        energy, u95 = number_of(record, "energy_j"), number_of(record, "u95_j")
    if energy is None:
        return {}
    return dict(factors.of(energy, None if record["is_lower_bound"] is True else u95))


def _is_code(currency: str) -> bool:
    return len(currency) == 3 and currency.isascii() and currency.isalpha()


def _stated(factor: float, u: float | None) -> str:
    return f"{factor:g}" if u is None else f"{factor:g} (u = {u:g})"
