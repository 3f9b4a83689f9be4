"""`joules journal`: what recordings have left beside their run files, saved or deleted."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from powerd_analytics.cli import shared
from powerd_analytics.output.terminal import LateProgress
from powerd_core.errors import RunFileError
from powerd_core.text import printable

app = App(
    name="journal",
    help="""Save what journals hold; delete those not needed.

A journal is what a recorder writes while a run goes on; the run file is made of it.

For example:

  joules journal recover run.h5

  joules journal tidy runs --yes""",
    help_format="plaintext",
    help_on_error=False,
    default_parameter=Parameter(show_default=lambda value: None if value is False or value == () else value),
)


@app.command
def recover(
    run: Annotated[Path, Parameter(help="A journal (RUN.journal, RUN.journal.gz), or a run that has one.")],
    *,
    output: Annotated[Path | None, Parameter(alias="-o", help="File to write; RUN.recovered.h5 without it.")] = None,
    overwrite: shared.Overwrite = False,
    url: Annotated[
        str | None, Parameter(name="--from", help="First fetch what the journal misses and this powerd still holds.")
    ] = None,
    keys: shared.Keys = None,
    format: shared.TextOrJson = "text",
) -> int:
    """Save what can be read of a journal into a new file.

    Says what is in it and what is lost. Exits with 1 when there is no reading, or
    when `joules info --check` calls the new file wrong.

    For example: joules journal recover run.h5 -o saved.h5
    """
    from powerd_analytics.run_tables.verification import verify_run
    from powerd_client.runs.recover import recover as save

    with LateProgress() as progress:
        report = save(run, output, overwrite=overwrite, url=url, keys=keys, progress=progress)
        findings = verify_run(report.out, progress)
        wrong = [f"{finding.check}: {finding.text}" for finding in findings if finding.state == "wrong"]
    if format == "json":
        document = {"run": str(report.out), "source": str(report.source), "readings": report.readings}
        print(dumps(document | {"kept": report.recovered, "lost": report.lost, "wrong": wrong}, indent=1))
    else:
        print(f"{report.out}: recovered from {report.source}")
        kept = [f"  kept: {printable(text)}" for text in report.recovered]
        lost = [f"  lost: {printable(text)}" for text in report.lost]
        print("\n".join([*kept, *(lost or ["  nothing is lost"]), *(f"  wrong: {printable(text)}" for text in wrong)]))
    return 0 if report.readings and not wrong else 1


_NOT_NEEDED = "not needed: --yes deletes it"


@app.command
def tidy(
    *paths: Annotated[Path, Parameter(help="Run files, journals, directories; this directory without any.")],
    yes: Annotated[bool, Parameter(negative="", help="Delete them; without it they are only listed.")] = False,
    format: shared.TextOrJson = "text",
) -> int:
    """List what runs have left beside them; delete what is not needed.

    Not needed is a journal whose run file is as `joules info --check` wants it, and
    holds all of it; and an output whose program was killed before it was whole.
    Exits with 1 when a journal has to stay.

    For example: joules journal tidy runs --yes
    """
    from powerd_client.host.ownership import delete_partial
    from powerd_client.runs.recover import discard, kept_journals, left_partials, size_of

    documents = []
    for partial in left_partials(paths or (Path(),)):
        size = size_of(partial)
        if yes:
            delete_partial(partial)
        documents.append({"journal": str(partial), "bytes": size, "needed_for": None, "is_deleted": yes})
        if format == "text":
            print(printable(f"{partial}  {size * 1e-6:.1f} MB  {'deleted' if yes else _NOT_NEEDED}"), flush=True)
    for journal in kept_journals(paths or (Path(),)):
        size = size_of(journal)
        with LateProgress() as progress:
            reason = _why_needed(journal, progress)
        if reason is None and yes:
            discard(journal)
        is_deleted = reason is None and yes
        documents.append({"journal": str(journal), "bytes": size, "needed_for": reason, "is_deleted": is_deleted})
        if format == "text":
            said = f"stays: {reason}" if reason else "deleted" if yes else _NOT_NEEDED
            print(printable(f"{journal}  {size * 1e-6:.1f} MB  {said}"), flush=True)
    if format == "json":
        print(dumps(documents, indent=1))
    return int(any(document["needed_for"] for document in documents))


def _why_needed(journal: Path, progress: LateProgress) -> str | None:
    from powerd_analytics.run_tables.verification import verify_run
    from powerd_client.journals.journal import run_of
    from powerd_client.runs.recover import needed_for

    try:
        for reason in needed_for(journal):
            return reason
        wrong = [finding for finding in verify_run(run_of(journal), progress) if finding.state == "wrong"]
    except RunFileError as error:
        return " ".join(str(error).split())
    return f"{run_of(journal).name} is wrong in {wrong[0].check}: {wrong[0].text}" if wrong else None
