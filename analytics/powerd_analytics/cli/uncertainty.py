"""`joules uncertainty`: what each energy's uncertainty comes from, and what would shrink it."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from powerd_analytics.cli.common import Device, check_picture, goes_to_terminal, put_out, refuse_existing, stdout, write
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from powerd_analytics.tables.shares import BudgetRow


def uncertainty(
    run: Annotated[Path, Parameter(help="A run file.")],
    *,
    device: Device = None,
    phase: Annotated[str | None, Parameter(help="Only phases of this name; totals and run are left out.")] = None,
    format: Annotated[Literal["table", "csv", "json", "markdown"], Parameter(help="How to print it.")] = "table",
    output: Annotated[Path | None, Parameter(alias="-o", help="Write to this file instead of the terminal.")] = None,
    plot: Annotated[Path | None, Parameter(help="Draw the shares as bars as well (.png, .pdf, .svg).")] = None,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace a file that exists.")] = False,
) -> None:
    """Say what the uncertainty of each energy comes from: shares of the variance, largest first, and what shrinks it.

    For example:

      joules uncertainty run.h5

      joules uncertainty run.h5 --phase forward --plot budget.png
    """
    from powerd_analytics.progress import LateProgress
    from powerd_analytics.records.checks import check_durations
    from powerd_analytics.records.groups import check_models
    from powerd_analytics.runs.run import read_run
    from powerd_analytics.tables import share_render as render
    from powerd_analytics.tables.shares import budget_rows

    if plot is not None:
        check_picture(plot)
        if output is not None and plot.absolute() == output.absolute():
            raise AnalysisError(f"{plot}: the picture and the table need two names")
    for path in (output, plot):
        refuse_existing(path, overwrite)
    with LateProgress(Console(stderr=True)) as progress:
        opened = read_run(run, progress=progress)
        check_models(opened)
        check_durations(opened)
        rows = budget_rows(opened, device, phase, progress=progress)
    if phase is None:
        _check_rows(run, rows)
    if plot is not None and not any(row.parts for row in rows):
        raise AnalysisError(f"{run}: nothing to draw: {rows[0].words}")
    if format == "table":
        text = io.StringIO()
        render.print_budget(rows, stdout() if goes_to_terminal(output) else Console(file=text, width=200))
        made = text.getvalue()
    else:
        made = {"csv": render.to_csv, "json": render.to_json, "markdown": render.to_markdown}[format](rows)
    if plot is not None:
        from powerd_analytics.pictures.shares import plot_budget

        write(plot, lambda partial: plot_budget(rows, partial), overwrite)
    put_out(made, output, overwrite)
    if plot is not None:
        sys.stderr.write(f"{plot}\n")


def _check_rows(run: Path, rows: Sequence[BudgetRow]) -> None:
    """Raises `AnalysisError` for a run without lines, phases or energy, as `joules tables` does."""
    if not rows:
        raise AnalysisError(f"{run}: this run is empty: no line feeds any of its devices")
    inside = [row for row in rows if row.table != "run"]
    if not inside:
        raise AnalysisError(
            f"{run}: this run has no phases: mark them with `meter.phase(...)` (`joules info` has its joules)"
        )
    if all(row.energy_j is None and "no readings" in row.words for row in inside):
        raise AnalysisError(
            f"{run}: none of its phases has joules, as readings are missing in all or most of them: clocks or times do "
            "not overlap, or few readings are good (`joules info` and `joules clock` say what was read, and when)"
        )
