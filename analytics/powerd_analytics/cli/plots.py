"""`joules plot`, `joules report` and `joules trace`: runs to look at, as a picture, a page or a trace for Perfetto."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from powerd_analytics.cli import shared
from powerd_analytics.cli.tables import UNCOUNTED, LayerCounts, layers_of
from powerd_analytics.output.terminal import LateProgress
from powerd_core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["power", "phases", "pareto", "caps", "quality", "roofline", "clocks"]
OF_CONFIGURATIONS = ("phases", "pareto", "caps")


def plot(
    *runs: Annotated[Path, Parameter(help="A run file; for some kinds several, directories of them, or a TABLE.csv.")],
    kind: Annotated[
        Kind | None,
        Parameter(
            help="power over time with phases; energy and time by phases and batch size; pareto: energy against time; "
            "curves over power caps; clock and data quality; the energy roofline of layers; clocks against the host's. "
            "Power and phases in one picture without it."
        ),
    ] = None,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="Picture to write (.png, .pdf, .svg); RUN.png without it.")
    ] = None,
    device: shared.Device = None,
    calibration: shared.Calibration = None,
    reference: Annotated[
        str | None, Parameter(help="COLUMN=VALUE of the configuration that EDS and caps are relative to.")
    ] = None,
    k: Annotated[
        list[float] | None,
        Parameter(negative="", help="Of the EDS, several for caps: 2 holds energy and time equal, less favours time."),
    ] = None,
    width: shared.Width = None,
    counts: LayerCounts = UNCOUNTED,
    overwrite: shared.Overwrite = False,
) -> None:
    """Draw a run, many runs or a table.

    Without --kind: power over time with the phases, and joules per phase.

    For example:

      joules plot run.h5 -o power.png

      joules plot runs/ --kind phases -o phases.pdf

      joules plot caps.csv --kind caps --reference target=default -o caps.svg

      joules plot run.h5 --kind roofline --operations resnet50 -o roofline.png
    """
    from powerd_analytics import plots

    if not runs:
        raise ConfigError("nothing to draw: give a run file, as in `joules plot run.h5 -o power.png`")
    is_table = runs[0].suffix.lower() in (".csv", ".parquet", ".tsv")
    kinds = ", ".join(OF_CONFIGURATIONS)
    if is_table and (kind not in OF_CONFIGURATIONS or device is not None or calibration is not None):
        raise ConfigError(f"{runs[0]} is a table: it goes with --kind {kinds}, and without --device and --calibration")
    if len(runs) > 1 and (is_table or kind not in OF_CONFIGURATIONS):
        raise ConfigError(f"{len(runs)} files: only --kind {kinds} take several, of runs")
    if reference is not None and kind not in ("pareto", "caps"):
        raise ConfigError("--reference goes with --kind pareto or --kind caps")
    ks = tuple(k or (2.0,))
    if wrong := [one for one in ks if not 1 <= one < 1e6]:
        raise ConfigError(f"--k {wrong[0]:g}: must be 1 or more")
    if len(ks) > 1 and kind not in ("pareto", "caps"):
        raise ConfigError("several --k go with --kind pareto or --kind caps")
    if (counts.operations is not None) != (kind == "roofline"):
        raise ConfigError("--kind roofline is of operations per byte and per joule: give it and --operations together")
    out = output or (runs[0].with_suffix(".png") if kind is None else runs[0].with_name(f"{runs[0].stem}-{kind}.png"))
    shared.refuse_picture(out, overwrite)
    naming = shared.naming(runs[0] if len(runs) == 1 else None)
    with LateProgress() as progress, naming, plots.printed_at(width):
        if kind == "roofline":
            figure = plots.draw_roofline(layers_of(runs[0], device, counts, None, progress)[1], runs[0].name)
        else:
            figure = _figure(runs, kind, device, calibration, reference, ks, progress, is_table=is_table)
        progress(0.9, "drawing")
        shared.write(out, lambda path: plots.save(figure, path), overwrite)
    print(out)


def _figure(
    runs: tuple[Path, ...], kind: Kind | None, device: str | None, calibration: Path | None, reference: str | None,
    ks: tuple[float, ...], progress: LateProgress, *, is_table: bool,
) -> Figure:  # fmt: skip
    from powerd_analytics import plots
    from powerd_analytics.frame.published import read_table
    from powerd_analytics.frame.trainings import read_runs

    path, name = runs[0], runs[0].name if len(runs) == 1 else f"{len(runs)} files"
    if kind in OF_CONFIGURATIONS:
        configurations = (
            plots.configurations_of_table(read_table(path, progress))
            if is_table
            else plots.configurations_of_runs(read_runs(runs, device, calibration, progress=progress))
        )
        if kind == "phases":
            return plots.draw_phases(configurations, name)
        return (plots.draw_pareto if kind == "pareto" else plots.draw_sweep)(configurations, name, reference, ks)
    run = shared.open_run(path, calibration, progress, is_checked=True)
    if kind == "clocks":
        from powerd_analytics.runs.clock_report import read_traces

        return plots.draw_clocks(run, read_traces(run))
    if kind == "quality":
        return plots.draw_quality(run, device, progress=progress)
    return plots.draw_run(run, device, with_bars=kind is None, progress=progress)


def report(
    *runs: Annotated[Path, Parameter(help="Run files, and directories of them.")],
    output: Annotated[Path | None, Parameter(alias="-o", help="Page to write (.html).")] = None,
    device: shared.Device = None,
    calibration: shared.Calibration = None,
    training: shared.WholeTraining = shared.UNSTATED,
    costs: shared.Costs = shared.FREE,
    title: Annotated[str | None, Parameter(help="Heading of the page.")] = None,
    max_points: Annotated[
        int, Parameter(help="Points of all traces together; of more readings, least and greatest are kept.")
    ] = 5_000_000,
    overwrite: shared.Overwrite = False,
) -> None:
    """Write one page about one or many runs.

    It can be read, sorted and zoomed without a network.

    For example:

      joules report run.h5 -o report.html

      joules report runs/ --epochs 90 --dataset-size 1281167 -o report.html

      joules report run.h5 --co2-g-per-kwh 380 --price-per-kwh 0.30 --currency EUR -o report.html
    """
    from powerd_analytics.report import ReportOptions, write_report

    if not runs or output is None or output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError("give run files and a page to write, as in `joules report run.h5 -o report.html`")
    options = ReportOptions(
        device, calibration, max_points, title=title, length=training.length(), factors=costs.factors()
    )
    shared.refuse_existing(output, overwrite)
    with LateProgress() as progress:
        shared.write(output, lambda path: write_report(runs, path, options, progress=progress), overwrite)
    print(output)


def trace(
    run: shared.RunFile,
    *,
    output: Annotated[Path, Parameter(alias="-o", help="Trace to write (.json or .json.gz).")],
    profile: Annotated[
        Path | None, Parameter(help="A trace of torch.profiler (export_chrome_trace), .json or .json.gz.")
    ] = None,
    device: shared.Device = None,
    max_points: Annotated[int, Parameter(help="At most so many points a counter; peaks and dips are kept.")] = 100_000,
    whole_run: Annotated[
        bool, Parameter(negative="", help="All of the run, not only what lies beside the profile.")
    ] = False,
    overwrite: shared.Overwrite = False,
) -> None:
    """Put power and phases into a torch.profiler trace.

    On its timeline, or into a trace of their own.

    For example:

      joules trace run.h5 --profile trace.json -o both.json.gz

      joules trace run.h5 -o power.json
    """
    from powerd_analytics.run_tables.trace import write_trace

    if not output.name.endswith((".json", ".json.gz")):
        raise ConfigError(f"{output}: a trace is written as .json or .json.gz")
    if max_points < 2:
        raise ConfigError(f"--max-points {max_points}: a counter has at least 2 points")
    shared.refuse_existing(output, overwrite)
    with LateProgress() as progress:
        make = partial(
            write_trace, shared.open_run(run, None, progress), profile=profile, device=device, most_points=max_points,
            whole_run=whole_run, progress=progress,
        )  # fmt: skip
        written = shared.write(output, make, overwrite)
    counts = (written.counters, "counter"), (written.phases, "phase")
    words = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts]
    print(f"{output}: {', '.join(filter(None, [*words, written.alignment]))}")
