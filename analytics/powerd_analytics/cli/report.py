"""`joules report`: one page with findings, tables, traces, uncertainty, data quality and provenance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from powerd_analytics.cli.common import Co2, Currency, Device, OfFactor, Price, refuse_existing, write
from powerd_core.errors import ConfigError


def report(
    *runs: Annotated[Path, Parameter(help="Run files, and directories of them.")],
    output: Annotated[Path | None, Parameter(alias="-o", help="Page to write (.html).")] = None,
    device: Device = None,
    calibration: Annotated[
        Path | None,
        Parameter(help="Compute again with this file of `powerd calibrate`; the run files stay as they are."),
    ] = None,
    iterations: Annotated[float | None, Parameter(help="Iterations of the whole training.")] = None,
    epochs: Annotated[float | None, Parameter(help="Epochs of the whole training; with --dataset-size.")] = None,
    dataset_size: Annotated[float | None, Parameter(help="Samples of an epoch.")] = None,
    co2_g_per_kwh: Co2 = None,
    u_co2_g_per_kwh: OfFactor = None,
    price_per_kwh: Price = None,
    u_price_per_kwh: OfFactor = None,
    currency: Currency = None,
    title: Annotated[str | None, Parameter(help="Heading of the page.")] = None,
    max_points: Annotated[
        int, Parameter(help="Points of all traces together; of more readings, least and greatest are kept.")
    ] = 5_000_000,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace a file that exists.")] = False,
) -> None:
    """Write one page about one or many runs that can be read, sorted and zoomed without a network.

    For example:

      joules report run.h5 -o report.html

      joules report runs/ --epochs 90 --dataset-size 1281167 -o report.html

      joules report run.h5 --co2-g-per-kwh 380 --price-per-kwh 0.30 --currency EUR -o report.html
    """
    from powerd_analytics.campaigns.factors import Factors
    from powerd_analytics.campaigns.trainings import Length
    from powerd_analytics.progress import LateProgress
    from powerd_analytics.report import ReportOptions, write_report

    if not runs:
        raise ConfigError("no run: give run files or directories of them, as in `joules report run.h5 -o report.html`")
    if output is None:
        raise ConfigError("no file to write to: give it with -o, as in -o report.html")
    if output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{output}: a report is written as .html")
    length = Length(iterations, epochs, dataset_size)
    factors = Factors(co2_g_per_kwh, u_co2_g_per_kwh, price_per_kwh, u_price_per_kwh, currency)
    options = ReportOptions(device, calibration, max_points, title=title, length=length, factors=factors)
    refuse_existing(output, overwrite)
    with LateProgress(Console(stderr=True)) as progress:
        write(output, lambda partial: write_report(runs, partial, options, progress=progress), overwrite)
    print(output)
