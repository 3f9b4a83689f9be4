"""`joules totals` and `joules pick`: totals of trainings and the best configuration, from tables that anybody made."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from powerd_analytics.cli import shared
from powerd_analytics.terminal import LateProgress
from powerd_core.errors import ConfigError
from powerd_core.text import printable

Metric = Literal["e", "edp", "eds", "cost"]


def totals(
    *phases: Annotated[Path, Parameter(help="Tables of phases, CSV or Parquet; several are joined.")],
    operations: Annotated[
        Path | None, Parameter(help="Table with model,operations (of one sample), for GFLOPS/W.")
    ] = None,
    mix: Annotated[
        list[str] | None,
        Parameter(
            negative="", help="What a configuration of that many GPUs in all is made of, as in pascal=2,maxwell=2."
        ),
    ] = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Sum published tables of phases into whole trainings.

    Prints seconds, joules, EDP and GFLOPS/W of each as CSV.

    A row is device,gpus,model,phase,batch with iterations,s_per_batch,j_per_batch
    or s_per_training,j_per_training; joules are of one GPU. What lacks a phase
    stays empty, and the error stream says why.

    For example:

      joules totals phases.csv

      joules totals time.csv energy.csv --operations operations.csv --mix pascal=2,maxwell=2 -o totals.csv
    """
    from powerd_analytics.published import COLUMNS, parse_mixes, read_operations, read_phases, training_totals

    if not phases:
        raise ConfigError("nothing to sum: give a table of phases")
    mixes = parse_mixes(mix or [])
    shared.refuse_existing(output, overwrite, (*phases, *([operations] if operations else [])))
    with LateProgress() as progress:
        counts = read_operations(operations) if operations is not None else None
        table = read_phases(phases, progress)
        progress(0.8, "summing")
        trainings, notes = training_totals(table, counts, mixes)
    shared.warn(notes)
    rows = [(*row[:4], *map(_exact, row[4:])) for row in trainings.itertuples(index=False)]
    shared.put_out(_csv([COLUMNS, *rows]), output, overwrite)


def pick(
    table: Annotated[Path, Parameter(help="Configurations with energy_j and time_s, CSV or Parquet.")],
    /,
    *,
    reference: Annotated[str, Parameter(help="COLUMN=VALUE of the row that the others are compared with.")],
    metric: Annotated[Metric, Parameter(help="What is to be lowest: energy, EDP, EDS or the cost of Zeus.")],
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
    co2_g_per_kwh: shared.Co2 = None,
    price_per_kwh: shared.Price = None,
    currency: shared.Currency = None,
    format: Annotated[
        Literal["text", "csv"] | None, Parameter(help="How to print it; csv unless it goes to a terminal.")
    ] = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Print the best row of a table of configurations.

    With the metric, and what it saves and costs against a reference.

    For example:

      joules pick caps.csv --reference power_cap_w=260 --metric edp

      joules pick caps.csv --reference target=default --metric eds --k 1.5 --by model

      joules pick totals.csv --reference gpus=1 --metric e --price-per-kwh 0.30 --currency EUR
    """
    from powerd_analytics.costs import Factors
    from powerd_analytics.published import COLUMN_OF, choose, parse_condition, read_table
    from powerd_analytics.text import digits

    if not (math.isfinite(k) and k >= 1):
        raise ConfigError(f"--k {k:g}: must be 1 or more")
    if not 0 <= eta <= 1:
        raise ConfigError(f"--eta {eta:g}: must lie between 0 and 1")
    if max_power is not None and not (math.isfinite(max_power) and max_power > 0):
        raise ConfigError(f"--max-power {max_power:g}: must be above 0")
    factors = Factors(co2_g_per_kwh=co2_g_per_kwh, price_per_kwh=price_per_kwh, currency=currency)
    ref = parse_condition("--reference", reference)
    conditions = [parse_condition("--where", text) for text in where or []]
    shared.refuse_existing(output, overwrite, [table])
    with LateProgress() as progress:
        configurations = read_table(table, progress)
        choices, notes = choose(configurations, ref, metric, conditions, by or [], k=k, eta=eta, max_power_w=max_power)
    shared.warn(notes)
    # A table of configurations says nothing of what its joules are unsure of.
    costs = [name for name in factors.columns if not name.startswith("u95_")]
    computed = [COLUMN_OF[metric], "energy_saving_pct", "performance_loss_pct", "saving_minus_loss_pct", *costs]
    given = [name for name in configurations.columns if name and name not in computed]
    cells = [[configurations.cells[name][c.row] for name in given] for c in choices]
    figures = [
        [c.value, c.energy_saving_pct, c.performance_loss_pct, c.saving_minus_loss_pct]
        + [cost or 0.0 for name, cost in factors.of(c.energy_j, None).items() if name in costs]
        for c in choices
    ]
    header = [*given, *computed]
    if format == "text" or (format is None and shared.goes_to_terminal(output)):
        # One line for each column: tables of configurations are wide, and picks are few.
        columns = [[printable(text, limit=200) for text in row] for row in zip(*cells, strict=True)]
        columns += [[digits(figure) for figure in row] for row in zip(*figures, strict=True)]
        width = max(map(len, header))
        lines = (f"{printable(name):{width}}  {'  '.join(row)}" for name, row in zip(header, columns, strict=True))
        text = "".join(f"{line}\n" for line in lines)
    else:
        text = _csv([header, *([*texts, *map(_exact, of)] for texts, of in zip(cells, figures, strict=True))])
    shared.put_out(text, output, overwrite)


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _exact(value: float | None) -> str:
    """A figure for programs: 15 digits, so that sums of decimals read as such."""
    return "" if value is None or math.isnan(value) else repr(float(f"{value:.15g}"))
