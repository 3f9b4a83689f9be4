"""`joules published`: tables that anybody published, summed to whole trainings and chosen from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from powerd_analytics.cli import shared
from powerd_analytics.output.terminal import LateProgress
from powerd_analytics.output.text import digits
from powerd_core.errors import ConfigError
from powerd_core.text import printable

if TYPE_CHECKING:
    from pandas import DataFrame


app = App(
    name="published",
    help="""Sum and choose from tables that anybody published.

For example:

  joules published totals phases.csv -o totals.csv

  joules published pick totals.csv --reference gpus=1 --metric edp""",
    help_format="plaintext",
    help_on_error=False,
    default_parameter=Parameter(show_default=lambda value: None if value is False or value == () else value),
)


@app.command
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
    format: shared.Format = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Sum published tables of phases into whole trainings.

    Prints iterations, seconds, joules, EDP and GFLOPS/W of each, as CSV where no
    terminal reads it.

    A row is device,gpus,model,phase,batch with iterations,s_per_batch,j_per_batch
    or s_per_training,j_per_training; joules are of one GPU. What lacks a phase
    stays empty, and the error stream says why.

    For example:

      joules published totals phases.csv

      joules published totals time.csv energy.csv --operations operations.csv --mix pascal=2,maxwell=2 -o totals.csv
    """
    from powerd_analytics.frame.published import parse_mixes, read_operations, read_phases, training_totals

    if not phases:
        raise ConfigError("nothing to sum: give a table of phases")
    mixes, form = parse_mixes(mix or []), _form(format, output)
    inputs = (*phases, *([operations] if operations else []))
    shared.check_output(output, form, overwrite, inputs)
    with LateProgress() as progress:
        counts = read_operations(operations) if operations is not None else None
        table = read_phases(phases, progress)
        progress(0.8, "summing")
        trainings, notes = training_totals(table, counts, mixes)
    shared.warn(notes)
    _put(trainings, "trainings", form, output, overwrite)


def _form(format: shared.TableFormat | None, output: Path | None) -> shared.TableFormat:
    """As every table's, but for CSV where nobody reads it on a terminal: these tables go from program to program."""
    is_for_people = shared.goes_to_terminal(output) or (output is not None and output.suffix)
    return shared.form_of(format if format or is_for_people else "csv", output)


def _put(frame: DataFrame, name: str, form: shared.TableFormat, output: Path | None, overwrite: bool) -> None:
    from powerd_analytics.frame.published import csv_text, table_of_frame

    if form == "csv":
        shared.put_out(csv_text(frame), output, overwrite)
    else:
        shared.put_tables([table_of_frame(frame, name)], form, output, overwrite)


@app.command
def pick(
    table: Annotated[Path, Parameter(help="Configurations with energy_j and time_s, CSV or Parquet.")],
    /,
    *,
    reference: Annotated[str, Parameter(help="COLUMN=VALUE,... of the row that the others are compared with.")],
    metric: Annotated[
        str,
        Parameter(
            help="What is to be best, one or several: e, time, edp, ed2p, eds, eds:1.5, cost (of Zeus), sml (saving "
            "minus loss), gflops_per_w, j_per_sample, money."
        ),
    ],
    k: Annotated[float, Parameter(help="Of EDS: 2 weighs energy and time alike, less favours time.")] = 2.0,
    eta: Annotated[float, Parameter(help="Of the cost: 1 counts energy alone, 0 time alone.")] = 0.5,
    max_power: Annotated[
        float | None, Parameter(help="Of the cost: maximum power of the GPU in W; else the highest cap in the table.")
    ] = None,
    within: Annotated[
        float | None, Parameter(help="Only rows whose accuracy is so near the best one's, in its own unit.")
    ] = None,
    of: Annotated[str, Parameter(help="The accuracy that --within is of, as in top1.")] = "",
    where: Annotated[
        list[str] | None, Parameter(negative="", help="COLUMN=VALUE: only these rows. May be repeated.")
    ] = None,
    by: Annotated[
        list[str] | None, Parameter(negative="", help="COLUMN: one pick for each of its values. May be repeated.")
    ] = None,
    co2_g_per_kwh: shared.Co2 = None,
    price_per_kwh: shared.Price = None,
    currency: shared.Currency = None,
    country: shared.Country = None,
    format: shared.Format = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Print the best row of a table of configurations.

    With the metric, and what it saves and costs against a reference. Where the table
    says how sure its joules are, with U95 and with all rows that cannot be told from
    the best. Rows that did unequal work are compared by the sample, or refused.

    For example:

      joules published pick caps.csv --reference power_cap_w=260 --metric edp

      joules published pick caps.csv --reference target=default --metric e,edp,eds:1.5,eds:2 --by model

      joules published pick runs.csv --reference power_cap_w=300,batch_size=64 --metric e,edp --within 0.5 --of top1

      joules published pick totals.csv --reference gpus=1 --metric money --price-per-kwh 0.30 --currency EUR
    """
    from powerd_analytics.frame.costs import Factors
    from powerd_analytics.frame.figures import parse_condition
    from powerd_analytics.frame.published import read_table
    from powerd_analytics.views.choice import Request, choose, parse_metrics, parse_reference, pick_table, picked_rows

    form = _form(format, output)
    if not 0 <= eta <= 1:
        raise ConfigError(f"--eta {eta:g}: must lie between 0 and 1")
    if max_power is not None and not (math.isfinite(max_power) and max_power > 0):
        raise ConfigError(f"--max-power {max_power:g}: must be above 0")
    if within is not None and not (math.isfinite(within) and within >= 0):
        raise ConfigError(f"--within {within:g}: must be 0 or more")
    if (within is None) == bool(of):
        raise ConfigError("--within and --of belong together: give both, as in --within 0.5 --of top1")
    request = Request(
        reference=parse_reference(reference),
        metrics=parse_metrics(metric, k),
        where=[parse_condition("--where", text) for text in where or []],
        by=by or [],
        eta=eta,
        max_power_w=max_power,
        within=within,
        of=of,
        factors=Factors(co2_g_per_kwh=co2_g_per_kwh, price_per_kwh=price_per_kwh, currency=currency, country=country),
    )
    if price_per_kwh is None and any(asked.name == "money" for asked in request.metrics):
        raise ConfigError("--metric money needs --price-per-kwh: give that too")
    shared.check_output(output, form, overwrite, [table])
    with LateProgress() as progress:
        configurations = read_table(table, progress)
        choices, notes = choose(configurations, request)
    shared.warn(notes)
    picked = picked_rows(configurations, request, choices)
    if form != "text":
        _put(picked, "picked", form, output, overwrite)
    elif len(request.metrics) > 1:
        shared.put_tables([pick_table(configurations, request, choices)], form, output, overwrite)
    else:
        # One line for each column: tables of configurations are wide, and picks are few.
        width = max(map(len, picked))
        lines = []
        for name, values in picked.items():
            texts = [digits(v) if isinstance(v, float) else printable(v or "–", limit=200) for v in values]
            lines.append(f"{printable(str(name)):{width}}  {'  '.join(texts)}\n")
        shared.put_out("".join(lines), output, overwrite)
