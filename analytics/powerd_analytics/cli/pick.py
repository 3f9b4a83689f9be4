"""`joules pick`: the best of several configurations."""

from __future__ import annotations

import csv
import io
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from powerd_analytics.cli.common import goes_to_terminal, put_out, refuse_existing
from powerd_core.errors import ConfigError
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_analytics.campaigns.factors import Factors
    from powerd_analytics.published.choice import Choices


def pick(
    table: Annotated[Path, Parameter(help="Configurations with energy_j and time_s, CSV or Parquet.")],
    /,
    *,
    reference: Annotated[str, Parameter(help="COLUMN=VALUE of the row that the others are compared with.")],
    metric: Annotated[
        Literal["e", "edp", "eds", "cost"],
        Parameter(help="What is to be lowest: energy, EDP, EDS or the cost of Zeus."),
    ],
    k: Annotated[float, Parameter(help="Of EDS: 2 weighs energy and time alike, less favours time.")] = 2.0,
    eta: Annotated[float, Parameter(help="Of the cost: 1 counts energy alone, 0 time alone.")] = 0.5,
    max_power: Annotated[
        float | None, Parameter(help="Of the cost: maximum power of the GPU in W; else the highest cap in the table.")
    ] = None,
    where: Annotated[
        list[str] | None, Parameter(negative="", help="COLUMN=VALUE: only these rows. May be repeated.")
    ] = None,
    by: Annotated[
        list[str] | None, Parameter(negative="", help="COLUMN: one pick for each of its values. May be repeated.")
    ] = None,
    co2_g_per_kwh: Annotated[
        float | None, Parameter(help="Grams of CO2 equivalent of a kWh: adds those of the pick.")
    ] = None,
    price_per_kwh: Annotated[float | None, Parameter(help="Price of a kWh: adds what the pick costs.")] = None,
    currency: Annotated[str | None, Parameter(help="Of the price, in three letters: EUR.")] = None,
    format: Annotated[
        Literal["table", "csv"] | None, Parameter(help="How to print it; csv unless it goes to a terminal.")
    ] = None,
    output: Annotated[Path | None, Parameter(alias="-o", help="Write to this file instead of the terminal.")] = None,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace a file that exists.")] = False,
) -> None:
    """Print the best row of a table of configurations, with the metric and what it saves and costs against a reference.

    For example:

      joules pick caps.csv --reference power_cap_w=260 --metric edp

      joules pick caps.csv --reference target=default --metric eds --k 1.5 --by model

      joules pick totals.csv --reference gpus=1 --metric e --price-per-kwh 0.30 --currency EUR
    """
    from powerd_analytics.campaigns.factors import Factors
    from powerd_analytics.progress import LateProgress
    from powerd_analytics.published.choice import Criterion, choose, parse_condition
    from powerd_analytics.published.tablefile import read_table

    _check(k, eta, max_power)
    factors = Factors(co2_g_per_kwh=co2_g_per_kwh, price_per_kwh=price_per_kwh, currency=currency)
    ref = parse_condition("--reference", reference)
    conditions = [parse_condition("--where", text) for text in where or []]
    refuse_existing(output, overwrite, [table])
    with LateProgress(Console(stderr=True)) as progress:
        found = choose(read_table(table, progress), ref, Criterion(metric, k, eta, max_power), conditions, by or [])
    for note in found.notes:
        sys.stderr.write(f"joules: {note}\n")
    header, rows, behind = _cells(found, metric, factors)
    if format == "table" or (format is None and goes_to_terminal(output)):
        made = _as_table(header, rows, behind)
    else:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        made = text.getvalue()
    put_out(made, output, overwrite)


def _check(k: float, eta: float, max_power: float | None) -> None:
    if not (math.isfinite(k) and k >= 1):
        raise ConfigError(f"--k {k:g}: must be 1 or more")
    if not 0 <= eta <= 1:
        raise ConfigError(f"--eta {eta:g}: must lie between 0 and 1")
    if max_power is not None and not (math.isfinite(max_power) and max_power > 0):
        raise ConfigError(f"--max-power {max_power:g}: must be above 0")


def _cells(
    found: Choices, metric: Literal["e", "edp", "eds", "cost"], factors: Factors
) -> tuple[list[str], list[list[str]], int]:
    """The rows as they stand in the table, and behind them what was computed, which replaces cells of the same name;
    and where that begins."""
    from powerd_analytics.cli.totals import number_text
    from powerd_analytics.published.choice import COLUMN_OF

    # A table of configurations says nothing of what its joules are unsure of.
    added = [name for name in factors.columns if not name.startswith("u95_")]
    computed = [COLUMN_OF[metric], "energy_saving_pct", "performance_loss_pct", "saving_minus_loss_pct", *added]
    given = [column for column in found.table.columns if column and column not in computed]
    rows = []
    for choice in found.chosen:
        costs = factors.of(choice.energy_j, None)
        figures = (
            choice.value, choice.energy_saving_pct, choice.performance_loss_pct, choice.saving_minus_loss_pct,
            *(cost for name in added if (cost := costs[name]) is not None),
        )  # fmt: skip
        rows.append([*(found.table.cells[column][choice.row] for column in given), *map(number_text, figures)])
    return [*given, *computed], rows, len(given)


def _as_table(header: list[str], rows: list[list[str]], behind: int) -> str:
    from rich.table import Table
    from rich.text import Text

    from powerd_analytics.energy.reasons import digits

    text = io.StringIO()
    # One line for each column: tables of configurations are wide, and picks are few.
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    for i, name in enumerate(header):
        cells = [printable(row[i], limit=200) if i < behind else digits(float(row[i])) for row in rows]
        shown.add_row(*map(Text, (printable(name), *cells)))
    Console(file=text, width=Console().width).print(shown)
    return text.getvalue()
