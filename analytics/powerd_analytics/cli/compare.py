"""`joules compare`: two runs or campaigns side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from powerd_analytics.cli.common import Device, put_out, refuse_existing, stderr

if TYPE_CHECKING:
    from powerd_analytics.comparison.samples import Sample
    from powerd_analytics.energy.devices import Progress
    from powerd_analytics.records.columns import Record

Format = Literal["table", "csv", "json", "markdown", "latex", "html"]


def compare(
    a: Annotated[Path, Parameter(help="A run file, or a directory or an index of them.")],
    b: Annotated[Path, Parameter(help="What to compare it with: the same.")],
    *,
    format: Annotated[Format, Parameter(help="How to print it.")] = "table",
    output: Annotated[Path | None, Parameter(alias="-o", help="Write to this file instead of the terminal.")] = None,
    device: Device = None,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace a file that exists.")] = False,
) -> None:
    """Say which joules and seconds a batch differ between two runs or campaigns, and whether by more than chance.

    Run files are opened also where an index names them: what tells chance from a difference are the single phases and
    whose sensors measured them, and an index holds neither.

    For example:

      joules compare before.h5 after.h5

      joules compare runs/260W runs/140W --format markdown -o caps.md
    """
    from powerd_analytics.cli.tables import text_of
    from powerd_analytics.comparison.compare import compare as compared
    from powerd_analytics.comparison.sheet import comparison_sheet
    from powerd_analytics.progress import LateProgress

    refuse_existing(output, overwrite, (a, b))
    with LateProgress(stderr()) as progress:
        of_a = _samples(a, device, lambda share, text: progress(share / 2, text))
        of_b = _samples(b, device, lambda share, text: progress(0.5 + share / 2, text))
    _check(of_a, of_b)
    sheet = comparison_sheet(compared(of_a, of_b), str(a), str(b))
    text = text_of([sheet], format, output is None)
    put_out(text, output, overwrite)


def _samples(path: Path, device: str | None, progress: Progress) -> list[Sample]:
    from powerd_analytics.campaigns.campaign import part_of
    from powerd_analytics.comparison.jobs import merge_samples
    from powerd_analytics.comparison.samples import run_samples
    from powerd_analytics.indexes.files import run_files
    from powerd_analytics.records.checks import check_run

    files = run_files([path])
    found: list[Sample] = []
    others: list[Record] = []
    for i, file in enumerate(files):
        of_run, runs = run_samples(file, device, progress=part_of(progress, i, len(files), file.name))
        check_run(file, [*(s.record for s in of_run), *runs])
        found += of_run
        others += runs
    return merge_samples(found, others)


def _check(a: list[Sample], b: list[Sample]) -> None:
    from powerd_analytics.records.checks import check_campaign
    from powerd_core.errors import AnalysisError

    check_campaign(s.record for s in [*a, *b])
    files = {Path(str(s.record["path"])).resolve() for s in a} & {Path(str(s.record["path"])).resolve() for s in b}
    if files:
        raise AnalysisError(f"{min(files)} is on both sides: a run cannot be compared with itself")
