"""The `joules` command: record a run, print its tables, draw it, say what is in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from powerd_analytics import (
    cli_compare,
    cli_files,
    cli_index,
    cli_operations,
    cli_pick,
    cli_plot,
    cli_report,
    cli_tables,
    cli_totals,
    cli_uncertainty,
)
from powerd_core.errors import PowerdError, RunFileError
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_analytics.run import Run


def _version() -> str:
    try:
        return f"joules (powerd) {version('powerd')}"
    except PackageNotFoundError:
        return "joules (powerd), not installed as a package"


app = App(
    name="joules",
    help="Joules for every phase of deep-learning training.\n\n"
    "For example:\n\n"
    "  joules record --out run.h5 -- python train.py\n\n"
    "  joules tables run.h5\n\n"
    "  joules plot run.h5 -o power.png",
    version=_version,
    help_format="plaintext",
    help_on_error=False,
)

app.command(cli_tables.tables)
app.command(cli_compare.compare)
app.command(cli_files.verify)
app.command(cli_files.recover)
app.command(cli_totals.totals)
app.command(cli_operations.operations)
app.command(cli_operations.layers)
app.command(cli_pick.pick)
app.command(cli_uncertainty.uncertainty)
app.command(cli_plot.plot)
app.command(cli_report.report)
app.command(cli_index.index)
app.command(cli_index.query)

Device = Annotated[str | None, Parameter(help="Only this device; all of them without it.")]
Calibration = Annotated[
    Path | None,
    Parameter(help="Compute again with this file of `powerd calibrate`; the run file stays as it is."),
]
Overwrite = Annotated[bool, Parameter(negative="", help="Replace a file that exists.")]


@app.command
def info(
    run: Annotated[Path, Parameter(help="A run file.")], *, device: Device = None, calibration: Calibration = None
) -> None:
    """Say what a run file holds: devices, lines and how they compare, clocks, gaps, messages.

    For example: joules info run.h5
    """
    from powerd_analytics.info import describe_run
    from powerd_analytics.progress import LateProgress

    with LateProgress(_stderr()) as progress:
        lines = list(describe_run(_open(run, calibration, progress), device, progress=progress))
    # Names, causes and messages in a run file are whatever its maker wrote.
    print("\n".join(map(printable, lines)))


@app.command
def clock(
    run: Annotated[Path, Parameter(help="A run file.")],
    *,
    out: Annotated[Path | None, Parameter(alias="-o", help="Draw them as well (.png, .pdf, .svg).")] = None,
    marker: Annotated[str | None, Parameter(help="A line of edges that --phase moves: check the clock by it.")] = None,
    phase: Annotated[str | None, Parameter(help="With --marker: the phase whose begins and ends move the pin.")] = None,
    json: Annotated[bool, Parameter(negative="", help="Print for programs.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Say how the boards' clocks and the wall clock went against the host's, and how sure their times are.

    For example: joules clock run.h5 --out clock.png
    """
    from dataclasses import asdict
    from json import dumps

    from powerd_analytics import clock as clocks
    from powerd_analytics.clock_marker import compare_marker, describe_marker
    from powerd_analytics.clock_wall import describe_wall, wall_drifts
    from powerd_analytics.progress import LateProgress
    from powerd_analytics.run import read_run
    from powerd_core.errors import ConfigError

    if (marker is None) != (phase is None):
        raise ConfigError("--marker LINE and --phase NAME go together: the line's edges are compared with the phase's")
    if out is not None:
        _check_picture(out)
        _refuse_existing(out, overwrite)
    with LateProgress(_stderr()) as progress:
        opened = read_run(run, progress=progress)
        traces = clocks.read_traces(opened)
        reports, others = [clocks.report(t) for t in traces], clocks.other_clocks(opened)
        walls = wall_drifts(opened)
        checked = compare_marker(opened, marker, phase) if marker is not None and phase is not None else None
        if out is not None:
            from powerd_analytics.clock_plot import plot_clocks

            _write(out, lambda partial: plot_clocks(opened, traces, partial), overwrite)
    if json:
        document = clocks.to_document(reports, others) | {"wall_clock": [asdict(w) for w in walls]}
        print(dumps(document | ({"marker": asdict(checked)} if checked else {}), indent=1))
        return
    lines = [*clocks.describe(opened, reports, others), *describe_wall(walls)]
    lines += describe_marker(checked) if checked else ()
    print("\n".join(map(printable, lines)))
    if out is not None:
        print(out)


@app.command
def record(
    *command: Annotated[str, Parameter(help="The command to record, after --.", allow_leading_hyphen=True)],
    url: Annotated[str | None, Parameter(help="A running powerd, such as tcp://board:7360; else a local one.")] = None,
    out: Annotated[Path, Parameter(alias="-o", help="Run file to write.")] = Path("run.h5"),
    overwrite: Overwrite = False,
    keys: Annotated[
        Path | None, Parameter(help="Directory of keys; $POWERD_KEYS, else ~/.config/powerd without it.")
    ] = None,
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
    from powerd_analytics.tags import Targets, tag_afterwards
    from powerd_client.record import record_command
    from powerd_core.errors import ConfigError

    if not command:
        raise ConfigError("nothing to record: give the command after --, as in `joules record -- python train.py`")
    targets = Targets(tag_wandb, tag_mlflow, tag_tensorboard)
    targets.check()  # before the training, not after it
    options = {} if baseline is None else {"baseline_s": baseline}
    status = record_command(command, url=url, out=out, overwrite=overwrite, quiet=quiet, keys=keys, **options)
    tag_afterwards(out, targets)
    return status


@app.command
def tag(
    run: Annotated[Path, Parameter(help="A run file.")],
    *,
    wandb: Annotated[str | None, Parameter(help="A W&B run: ENTITY/PROJECT/RUN.")] = None,
    mlflow: Annotated[str | None, Parameter(help="An MLflow run, by its id.")] = None,
    tensorboard: Annotated[Path | None, Parameter(help="A TensorBoard log directory.")] = None,
    device: Device = None,
) -> None:
    """Write a run's joules, seconds, watts and EDP to the experiment trackers that followed the training.

    For example: joules tag run.h5 --wandb me/cifar/3x4mpl3
    """
    from powerd_analytics.progress import LateProgress
    from powerd_analytics.tags import Targets, totals, write_tags
    from powerd_core.errors import ConfigError

    targets = Targets(wandb, mlflow, tensorboard)
    if not targets:
        raise ConfigError("nothing to tag: give --wandb ENTITY/PROJECT/RUN, --mlflow RUN_ID or --tensorboard DIR")
    targets.check()
    with LateProgress(_stderr()) as progress:
        values = totals(_open(run, None, progress), device, progress=progress)
    write_tags(values, targets)
    print(f"{len(values)} values written to {targets}")


@app.command
def trace(
    run: Annotated[Path, Parameter(help="A run file.")],
    *,
    output: Annotated[Path, Parameter(alias="-o", help="Trace to write (.json or .json.gz).")],
    profile: Annotated[
        Path | None, Parameter(help="A trace of torch.profiler (export_chrome_trace), .json or .json.gz.")
    ] = None,
    device: Device = None,
    max_points: Annotated[int, Parameter(help="At most so many points a counter; peaks and dips are kept.")] = 100_000,
    whole_run: Annotated[
        bool, Parameter(negative="", help="All of the run, not only what lies beside the profile.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Put power and phases into a torch.profiler trace, on its timeline, or into a trace of their own.

    For example:

      joules trace run.h5 --profile trace.json -o both.json.gz

      joules trace run.h5 -o power.json
    """
    from powerd_analytics.progress import LateProgress
    from powerd_analytics.run import read_run
    from powerd_analytics.trace import TraceOptions, write_trace
    from powerd_core.errors import ConfigError

    if not output.name.endswith((".json", ".json.gz")):
        raise ConfigError(f"{output}: a trace is written as .json or .json.gz")
    if max_points < 2:
        raise ConfigError(f"--max-points {max_points}: a counter has at least 2 points")
    _refuse_existing(output, overwrite)
    with LateProgress(_stderr()) as progress:
        opened = read_run(run, progress=progress)
        written = []

        def make(partial: Path) -> None:
            options = TraceOptions(device, max_points, whole_run=whole_run)
            written.append(write_trace(opened, partial, profile, options, progress=progress))

        _write(output, make, overwrite)
    said = f"{written[0].counters} counters, {written[0].phases} phases"
    print(f"{output}: {said}{', ' + written[0].alignment if profile else ''}")


@app.command
def top(
    *url: Annotated[str, Parameter(help="Powerds to listen to; those of this machine without it.")],
    run: Annotated[Path | None, Parameter(help="The run file that is being recorded; else the one found here.")] = None,
    keys: Annotated[
        Path | None, Parameter(help="Directory of keys; $POWERD_KEYS, else ~/.config/powerd without it.")
    ] = None,
    once: Annotated[bool, Parameter(negative="", help="Print one line after a second, and end.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print a JSON object a second.")] = False,
) -> None:
    """Show watts, joules, the current phase and losses while a run goes on. Keys: q, p, s, d.

    For example:

      joules top

      joules top tcp://board:7360 --run run.h5
    """
    from powerd_analytics.top import top as show

    show(url, run, keys=keys, once=once, as_json=json)


def _check_picture(path: Path) -> None:
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise RunFileError(f"{path}: a picture is written as .png, .pdf or .svg")


def _open(path: Path, calibration: Path | None, progress: Callable[[float, str], None]) -> Run:
    """The run, by its own calibrations or by later ones; which lines those change goes to the error stream."""
    from powerd_analytics.recalibration import recalibrate
    from powerd_analytics.run import read_run

    opened = read_run(path, progress=progress)
    if calibration is None:
        return opened
    opened, lines = recalibrate(opened, calibration)
    sys.stderr.write(f"joules: computed again with {calibration}: {', '.join(lines)}\n")
    return opened


def _refuse_existing(path: Path | None, overwrite: bool) -> None:
    if path is not None and path.exists() and not overwrite:
        raise RunFileError(f"{path} exists: give another name or --overwrite")
    if path is not None and not path.absolute().parent.is_dir():
        raise RunFileError(f"{path.parent} is no directory: make it first")


def _write(path: Path, make: Callable[[Path], object], overwrite: bool) -> None:
    """Make a file under another name and move it into place when it is whole."""
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        make(partial)
        if overwrite:
            partial.replace(path)
        else:
            os.link(partial, path)  # unlike a rename, refuses to replace a file that appeared meanwhile
    except FileExistsError as error:
        raise RunFileError(f"{path} exists: give another name or --overwrite") from error
    except OSError as error:
        if isinstance(error, PowerdError):
            raise
        raise RunFileError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _stderr() -> Console:
    return Console(stderr=True)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: errors become one line on the error stream and exit status 2."""
    try:
        status = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _fail(str(error))
    except PowerdError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("\njoules: interrupted\n")
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our output (`head`) has gone: not an error, but nothing more may be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    raise SystemExit(status if isinstance(status, int) else 0)


def _fail(message: str) -> None:
    sys.stderr.write(f"joules: {printable(' '.join(message.split()))}\n")
    raise SystemExit(2)
