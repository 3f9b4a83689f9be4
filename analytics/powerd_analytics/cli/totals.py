"""`joules totals`: totals of whole trainings from tables of phases that anybody measured."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from powerd_analytics.cli.common import put_out, refuse_existing
from powerd_core.errors import ConfigError

if TYPE_CHECKING:
    from powerd_analytics.published.totals import TrainingTotals

_MOST_NOTES = 40


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
    output: Annotated[Path | None, Parameter(alias="-o", help="Write to this file instead of the terminal.")] = None,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace a file that exists.")] = False,
) -> None:
    """Sum published tables of phases into seconds, joules, EDP and GFLOPS/W of whole trainings, as CSV.

    A row is device,gpus,model,phase,batch with iterations,s_per_batch,j_per_batch or s_per_training,j_per_training;
    joules are of one GPU. What lacks a phase stays empty, and the error stream says why.

    For example:

      joules totals phases.csv

      joules totals time.csv energy.csv --operations operations.csv --mix pascal=2,maxwell=2 -o totals.csv
    """
    from powerd_analytics.progress import LateProgress
    from powerd_analytics.published.mix import parse_mixes
    from powerd_analytics.published.phasefiles import read_phases
    from powerd_analytics.published.totals import read_operations, training_totals

    if not phases:
        raise ConfigError("nothing to sum: give a table of phases")
    mixes = parse_mixes(mix or [])
    refuse_existing(output, overwrite, (*phases, *([operations] if operations else [])))
    with LateProgress(Console(stderr=True)) as progress:
        known = read_operations(operations) if operations is not None else None
        table = read_phases(phases, progress)
        progress(0.8, "summing")
        found = training_totals(table, known, mixes)
    for note in found.notes[:_MOST_NOTES]:
        sys.stderr.write(f"joules: {note}\n")
    if more := len(found.notes) - _MOST_NOTES:
        sys.stderr.write(f"joules: and {more} more such notes\n" if more > 0 else "")
    made = _to_csv(found)
    put_out(made, output, overwrite)


def _to_csv(found: TrainingTotals) -> str:
    from powerd_analytics.published.totals import COLUMNS

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in found.rows:
        figures = (row.time_s, row.energy_j, row.edp_js, row.gflops_per_w)
        writer.writerow([*row.configuration, *("" if f is None else number_text(f) for f in figures)])
    return text.getvalue()


def number_text(value: float) -> str:
    """A figure for programs: 15 digits, so that sums of decimals read as such."""
    return repr(float(f"{value:.15g}"))
