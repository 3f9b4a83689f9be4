"""`joules jobs`: whose joules they are, on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from powerd_analytics.cli import shared
from powerd_core.errors import ConfigError


def jobs(
    *places: Annotated[str, Parameter(help="Folders of powerd-accounting, or of many nodes' folders; s3://BUCKET/...")],
    by: Annotated[
        str, Parameter(help="What a row is of: job, name, user, account, partition, node, device, day, week, month.")
    ] = "job",
    since: Annotated[str | None, Parameter(help="The first day that counts, as in 2026-11-01 (UTC).")] = None,
    until: Annotated[str | None, Parameter(help="The last day that counts.")] = None,
    top: Annotated[int | None, Parameter(help="Only so many rows with the most joules.")] = None,
    index: Annotated[
        Path | None, Parameter(help="An index of the jobs' run files: joules by phase, joined by the job's id.")
    ] = None,
    costs: shared.Costs = shared.FREE,
    format: shared.Format = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Print joules of a cluster's jobs, users and accounts.

    From the files that powerd-accounting keeps on each node, gathered in one
    folder. Joules that are measured, modelled, simulated or a modelled share of
    a processor are rows of their own.

    For example:

      joules jobs /var/lib/powerd/accounting

      joules jobs nodes/ --by account --since 2026-11-01 --until 2026-11-30 --price-per-kwh 0.30 --currency EUR

      joules jobs nodes/ --by user,week --top 20 --format csv -o users.csv

      joules jobs nodes/ --by user --index runs/index.parquet
    """
    from powerd_analytics.frame.job_totals import JobRequest, day_of, job_files, job_totals, phase_totals

    if not places:
        raise ConfigError("no folder is given: name that of powerd-accounting, or one with those of many nodes")
    if top is not None and top < 1:
        raise ConfigError(f"--top {top}: it must be 1 or more")
    form = shared.form_of(format, output)
    shared.check_output(output, form, overwrite, [Path(place) for place in places])
    names = tuple(name.strip() for name in by.split(","))
    first, last = day_of("--since", since), day_of("--until", until)
    request = JobRequest(names, first, last, top, costs.factors())
    files = job_files(places)
    table = job_totals(files, request) if index is None else phase_totals(files, index, request)
    shared.put_tables([table], form, output, overwrite)
