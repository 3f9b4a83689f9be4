"""`joules record`, `info`, `clock`, `top`, `verify`, `recover`, `tidy`, `tag`: one run, recorded, looked at, kept."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from powerd_analytics.cli import shared
from powerd_analytics.terminal import LateProgress, print_lines
from powerd_core.errors import ConfigError, RunFileError
from powerd_core.text import printable


def record(
    *command: Annotated[str, Parameter(help="The command to record, after --.", allow_leading_hyphen=True)],
    url: Annotated[str | None, Parameter(help="A running powerd, such as tcp://board:7360; else a local one.")] = None,
    out: Annotated[Path, Parameter(alias="-o", help="Run file to write.")] = Path("run.h5"),
    overwrite: shared.Overwrite = False,
    keys: shared.Keys = None,
    quiet: Annotated[bool, Parameter(negative="", help="Print nothing of our own.")] = False,
    baseline: Annotated[float | None, Parameter(help="Measure idle power so many seconds before and after.")] = None,
    tag_wandb: Annotated[
        str | None, Parameter(help="Write the totals to this W&B run afterwards: ENTITY/PROJECT/RUN.")
    ] = None,
    tag_mlflow: Annotated[str | None, Parameter(help="The same for an MLflow run, by its id.")] = None,
    tag_tensorboard: Annotated[Path | None, Parameter(help="The same for a TensorBoard log directory.")] = None,
) -> int:
    """Record any command; its phases too, where it marks them. Exits with the command's status.

    For example: joules record --out run.h5 -- python train.py
    """
    from powerd_analytics.cli.tags import tag_afterwards, targets_of
    from powerd_client.recording import record_command

    if not command:
        raise ConfigError("nothing to record: give the command after --, as in `joules record -- python train.py`")
    targets = targets_of(tag_wandb, tag_mlflow, tag_tensorboard)
    options = {} if baseline is None else {"baseline_s": baseline}
    status = record_command(command, url=url, out=out, overwrite=overwrite, quiet=quiet, keys=keys, **options)
    tag_afterwards(out, targets)
    return status


def tag(
    run: shared.RunFile,
    *,
    wandb: Annotated[str | None, Parameter(help="A W&B run: ENTITY/PROJECT/RUN.")] = None,
    mlflow: Annotated[str | None, Parameter(help="An MLflow run, by its id.")] = None,
    tensorboard: Annotated[Path | None, Parameter(help="A TensorBoard log directory.")] = None,
    device: shared.Device = None,
) -> None:
    """Write a run's joules, seconds, watts and EDP to the experiment trackers that followed the training.

    For example: joules tag run.h5 --wandb me/cifar/3x4mpl3
    """
    from powerd_analytics.cli.tags import described, targets_of, totals, write_tags

    targets = targets_of(wandb, mlflow, tensorboard)
    if not targets:
        raise ConfigError("nothing to tag: give --wandb ENTITY/PROJECT/RUN, --mlflow RUN_ID or --tensorboard DIR")
    with LateProgress() as progress:
        values = totals(shared.open_run(run, None, progress), device, progress=progress)
    write_tags(values, targets)
    print(f"{len(values)} values written to {described(targets)}")


def info(run: shared.RunFile, *, device: shared.Device = None, calibration: shared.Calibration = None) -> None:
    """Say what a run file holds: devices, lines and how they compare, clocks, gaps, messages.

    For example: joules info run.h5
    """
    from powerd_analytics.cli.describe import describe_run

    with LateProgress() as progress:
        lines = list(describe_run(shared.open_run(run, calibration, progress), device, progress=progress))
    print_lines(lines)


def clock(
    run: shared.RunFile,
    *,
    out: Annotated[Path | None, Parameter(alias="-o", help="Draw them as well (.png, .pdf, .svg).")] = None,
    marker: Annotated[str | None, Parameter(help="A line of edges that --phase moves: check the clock by it.")] = None,
    phase: Annotated[str | None, Parameter(help="With --marker: the phase whose begins and ends move the pin.")] = None,
    json: shared.Json = False,
    overwrite: shared.Overwrite = False,
) -> None:
    """Say how the boards' clocks and the wall clock went against the host's, and how sure their times are.

    For example: joules clock run.h5 --out clock.png
    """
    from powerd_analytics import clocks

    if (marker is None) != (phase is None):
        raise ConfigError("--marker LINE and --phase NAME go together: the line's edges are compared with the phase's")
    if out is not None:
        shared.refuse_picture(out, overwrite)
    with LateProgress() as progress:
        opened = shared.open_run(run, None, progress)
        traces, others, walls = clocks.read_traces(opened), clocks.other_clocks(opened), clocks.wall_drifts(opened)
        reports = [clocks.clock_report(t) for t in traces]
        edges = clocks.compare_marker(opened, marker, phase) if marker is not None and phase is not None else None
        if out is not None:
            from powerd_analytics.plots import draw_clocks, save

            shared.write(out, lambda partial: save(draw_clocks(opened, traces), partial), overwrite)
    if json:
        document = clocks.clocks_document(reports, others) | {"wall_clock": [asdict(w) for w in walls]}
        print(dumps(document | ({"marker": asdict(edges)} if edges else {}), indent=1))
        return
    lines = [*clocks.describe_clocks(opened, reports, others), *clocks.describe_wall(walls)]
    lines += clocks.describe_marker(edges) if edges else ()
    print_lines(lines)
    if out is not None:
        print(out)


def top(
    *url: Annotated[str, Parameter(help="Powerds to listen to; those of this machine without it.")],
    run: Annotated[Path | None, Parameter(help="The run file that is being recorded; else the one found here.")] = None,
    keys: shared.Keys = None,
    once: Annotated[bool, Parameter(negative="", help="Print one line after a second, and end.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print a JSON object a second.")] = False,
) -> None:
    """Show watts, joules, the current phase and losses while a run goes on. Keys: q, p, s, d.

    For example:

      joules top

      joules top tcp://board:7360 --run run.h5
    """
    from powerd_analytics.live.top import top as show

    show(url, run, keys=keys, once=once, as_json=json)


def verify(*runs: Annotated[Path, Parameter(help="Run files.")], json: shared.Json = False) -> int:
    """Check everything that must hold in a run file, and say each. Exits with 1 when anything does not.

    OK holds, WRONG does not, and -- cannot be told: the release that wrote the file did not store what is needed.

    For example: joules verify run.h5
    """
    from powerd_analytics.verify import verify_run

    if not runs:
        raise RunFileError("nothing to verify: give the names of run files")
    marks = {"ok": "OK", "wrong": "WRONG", "unknown": "--"}
    documents = []
    for run in runs:
        findings = []
        if not json:
            print(run)
        with LateProgress() as progress:
            for finding in verify_run(run, progress):
                findings.append(finding)
                if not json:
                    print(f"  {marks[finding.state]:5}  {finding.check}: {printable(finding.text)}", flush=True)
        is_good = all(finding.state != "wrong" for finding in findings)
        documents.append({"run": str(run), "good": is_good, "checks": [asdict(finding) for finding in findings]})
    if json:
        print(dumps(documents, indent=1))
    return 0 if all(document["good"] for document in documents) else 1


def recover(
    run: Annotated[Path, Parameter(help="A journal (RUN.journal, RUN.journal.gz), or a run that has one.")],
    *,
    output: Annotated[Path | None, Parameter(alias="-o", help="File to write; RUN.recovered.h5 without it.")] = None,
    overwrite: shared.Overwrite = False,
    url: Annotated[
        str | None, Parameter(name="--from", help="First fetch what the journal misses and this powerd still holds.")
    ] = None,
    keys: shared.Keys = None,
) -> int:
    """Save what can be read of a journal into a new file; say what is in it and what is lost. Exits with 1 when there
    is no reading.

    For example: joules recover run.h5 -o saved.h5
    """
    from powerd_client.recover import recover as save

    with LateProgress() as progress:
        report = save(run, output, overwrite=overwrite, url=url, keys=keys, progress=progress)
    print(f"{report.out}: recovered from {report.source}")
    for what, texts in (("kept: ", report.recovered), ("lost: ", report.lost)):
        for text in texts:
            print(f"  {what}{printable(text)}")
    if not report.lost:
        print("  nothing is lost")
    return 0 if report.readings else 1


def tidy(
    *paths: Annotated[Path, Parameter(help="Run files, journals, directories; this directory without any.")],
    yes: Annotated[bool, Parameter(negative="", help="Delete them; without it they are only listed.")] = False,
) -> int:
    """List the journals that runs have left, and delete those that nobody needs: their run file is as `joules verify`
    wants it, and holds all of them. Exits with 1 when one has to stay.

    For example: joules tidy runs --yes
    """
    from powerd_client.recover import discard, kept_journals, size_of

    are_all_unneeded = True
    for journal in kept_journals(paths or (Path(),)):
        size_mb = size_of(journal) * 1e-6
        with LateProgress() as progress:
            reason = _why_needed(journal, progress)
        if reason is None and yes:
            discard(journal)
        are_all_unneeded = are_all_unneeded and reason is None
        said = f"stays: {reason}" if reason else "deleted" if yes else "not needed: --yes deletes it"
        print(printable(f"{journal}  {size_mb:.1f} MB  {said}"), flush=True)
    return 0 if are_all_unneeded else 1


def _why_needed(journal: Path, progress: LateProgress) -> str | None:
    from powerd_analytics.verify import verify_run
    from powerd_client.journal import run_of
    from powerd_client.recover import needed_for

    try:
        for reason in needed_for(journal):
            return reason
        wrong = [finding for finding in verify_run(run_of(journal), progress) if finding.state == "wrong"]
    except RunFileError as error:
        return " ".join(str(error).split())
    return f"{run_of(journal).name} is wrong in {wrong[0].check}: {wrong[0].text}" if wrong else None
