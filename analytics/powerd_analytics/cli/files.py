"""`joules verify` and `joules recover`: whether a run file is what it says, and what is left of one that is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from powerd_analytics.progress import LateProgress
from powerd_core.errors import RunFileError
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_client.findings import Finding

_MARKS = {"ok": "OK", "wrong": "WRONG", "unknown": "--"}


def verify(
    *runs: Annotated[Path, Parameter(help="Run files.")],
    json: Annotated[bool, Parameter(negative="", help="Print for programs.")] = False,
) -> int:
    """Check everything that must hold in a run file, and say each. Exits with 1 when anything does not.

    OK holds, WRONG does not, and -- cannot be told: the release that wrote the file did not store what is needed.

    For example: joules verify run.h5
    """
    from dataclasses import asdict
    from json import dumps

    if not runs:
        raise RunFileError("nothing to verify: give the names of run files")
    documents, is_good = [], True
    for run in runs:
        findings = []
        if not json:
            print(run)
        with LateProgress(Console(stderr=True)) as progress:
            for finding in _findings(run, progress):
                findings.append(finding)
                if not json:
                    print(f"  {_MARKS[finding.state]:5}  {finding.check}: {printable(finding.text)}", flush=True)
        good = all(finding.state != "wrong" for finding in findings)
        is_good = is_good and good
        documents.append({"run": str(run), "good": good, "checks": [asdict(finding) for finding in findings]})
    if json:
        print(dumps(documents, indent=1))
    return 0 if is_good else 1


def _findings(run: Path, progress: LateProgress) -> Iterator[Finding]:
    from powerd_analytics.tables.sums import verify_sums
    from powerd_client.verify import verify_file

    is_readable = True
    for finding in verify_file(run, lambda share, text: progress(0.6 * share, text)):
        is_readable = is_readable and (finding.check, finding.state) != ("structure", "wrong")
        yield finding
    if is_readable:
        yield from verify_sums(run, lambda share, text: progress(0.6 + 0.4 * share, text))


def recover(
    run: Annotated[Path, Parameter(help="A damaged run file, a journal directory, or a run that left a journal.")],
    *,
    output: Annotated[Path | None, Parameter(alias="-o", help="File to write; RUN.recovered.h5 without it.")] = None,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace a file that exists.")] = False,
) -> None:
    """Save what can be read of a damaged run or journal into a new file; say what is in it and what is lost.

    For example: joules recover run.h5 -o saved.h5
    """
    from powerd_client.recover import recover as save

    with LateProgress(Console(stderr=True)) as progress:
        report = save(run, output, overwrite=overwrite, progress=progress)
    print(f"{report.out}: recovered from {report.source}")
    for text in report.recovered:
        print(f"  kept: {printable(text)}")
    for text in report.lost:
        print(f"  lost: {printable(text)}")
    if not report.lost:
        print("  nothing is lost")
    sys.stdout.flush()
