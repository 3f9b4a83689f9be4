"""`joules plot`: one picture of a run, a campaign or a table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from powerd_analytics.cli.common import Calibration, Device, check_picture, naming, open_run, refuse_existing, write
from powerd_core.errors import ConfigError

if TYPE_CHECKING:
    from powerd_analytics.pictures import Configuration
    from powerd_analytics.progress import LateProgress

Kind = Literal["power", "phases", "pareto", "caps", "matrix", "layers", "treemap", "quality"]
OF_ONE_RUN = ("power", "layers", "treemap", "quality")
FROM_TABLES = ("phases", "pareto", "caps", "matrix", "layers", "treemap")
TABLES = (".csv", ".parquet", ".tsv")


def plot(
    *runs: Annotated[Path, Parameter(help="A run file; for some kinds several, directories of them, or a TABLE.csv.")],
    kind: Annotated[
        Kind | None,
        Parameter(
            help="power over time with phases; energy and time by phases and batch size; pareto: energy against time; "
            "curves over power caps; matrix of GFLOPS/W; layers as bars or treemap; clock and data quality. "
            "Power and phases in one picture without it."
        ),
    ] = None,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="Picture to write (.png, .pdf, .svg); RUN.png without it.")
    ] = None,
    device: Device = None,
    calibration: Calibration = None,
    reference: Annotated[
        str | None, Parameter(help="COLUMN=VALUE of the configuration that EDS and caps are relative to.")
    ] = None,
    k: Annotated[float, Parameter(help="Of the EDS: 2 holds energy and time equal, less favours time.")] = 2.0,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace a file that exists.")] = False,
) -> None:
    """Draw a run, a campaign or a table. Without --kind: power over time with the phases, and joules per phase.

    For example:

      joules plot run.h5 -o power.png

      joules plot runs/ --kind phases -o phases.pdf

      joules plot caps.csv --kind caps --reference target=default -o caps.svg
    """
    from powerd_analytics.progress import LateProgress

    if not runs:
        raise ConfigError("nothing to draw: give a run file, as in `joules plot run.h5 -o power.png`")
    is_table = runs[0].suffix.lower() in TABLES
    _check_inputs(runs, kind, is_table=is_table)
    if is_table and (device is not None or calibration is not None):
        raise ConfigError("--device and --calibration are for run files, not for a table")
    if reference is not None and kind not in ("pareto", "caps"):
        raise ConfigError("--reference goes with --kind pareto or --kind caps")
    if not 1 <= k < 1e6:
        raise ConfigError(f"--k {k:g}: must be 1 or more")
    out = output or (runs[0].with_suffix(".png") if kind is None else runs[0].with_name(f"{runs[0].stem}-{kind}.png"))
    check_picture(out)
    refuse_existing(out, overwrite)
    with LateProgress(Console(stderr=True)) as progress, naming(runs[0]) if len(runs) == 1 else nullcontext():
        if kind is None or kind in OF_ONE_RUN:
            draw = _of_one(runs[0], kind, device, calibration, progress, is_table=is_table)
        else:
            draw = _of_many(runs, kind, device, calibration, (reference, k), progress, is_table=is_table)
        progress(0.9, "drawing")
        write(out, draw, overwrite)
    print(out)


def _check_inputs(runs: tuple[Path, ...], kind: Kind | None, *, is_table: bool) -> None:
    if is_table and kind not in FROM_TABLES:
        raise ConfigError(f"{runs[0]} is a table: say what to draw of it: --kind {', '.join(FROM_TABLES)}")
    if len(runs) > 1 and (is_table or kind is None or kind in OF_ONE_RUN):
        what = "a table" if is_table else f"--kind {kind}" if kind else "a picture without --kind"
        raise ConfigError(
            f"{len(runs)} files: {what} is drawn of one; --kind phases, pareto, caps, matrix take several runs"
        )


def _of_one(
    path: Path,
    kind: Kind | None,
    device: str | None,
    calibration: Path | None,
    progress: LateProgress,
    *,
    is_table: bool,
) -> Callable[[Path], object]:
    """The picture of one run, or of a table of layers."""
    from powerd_analytics import pictures
    from powerd_analytics.layers.energy import layer_energies
    from powerd_analytics.pictures.plots import plot_run
    from powerd_analytics.published.tablefile import read_table
    from powerd_analytics.records.checks import check_run
    from powerd_analytics.records.flat import records_of
    from powerd_analytics.records.groups import check_models
    from powerd_analytics.tables.table import phase_table

    if kind in ("layers", "treemap"):
        draw = pictures.draw_layers if kind == "layers" else pictures.draw_treemap
        if is_table:
            layers = pictures.layers_of_table(read_table(path, progress))
        else:
            run = open_run(path, calibration, progress)
            check_models(run)
            table = phase_table(run, device, progress=progress)
            check_run(path, records_of(run, table))
            layers = pictures.layers_of_rows(layer_energies(table))
        return lambda partial: pictures.save(draw(layers, path.name), partial)
    run = open_run(path, calibration, progress)
    check_models(run)
    if kind == "quality":
        return lambda partial: pictures.save(pictures.draw_quality(run, device, progress=progress), partial)
    return lambda partial: plot_run(run, partial, device, with_bars=kind is None, progress=progress)


def _of_many(
    runs: tuple[Path, ...],
    kind: Kind,
    device: str | None,
    calibration: Path | None,
    choice: tuple[str | None, float],
    progress: LateProgress,
    *,
    is_table: bool,
) -> Callable[[Path], object]:
    """A picture of configurations."""
    from powerd_analytics import pictures
    from powerd_analytics.campaigns.campaign import read_campaign
    from powerd_analytics.published.tablefile import read_table

    found: list[Configuration]
    if is_table:
        found = pictures.configurations_of_table(read_table(runs[0], progress))
    else:
        records = read_campaign(runs, device, calibration, progress=progress)
        found = pictures.configurations_of_records(records, with_gflops=kind == "matrix")
    name = runs[0].name if len(runs) == 1 else f"{len(runs)} files"
    reference, k = choice
    if kind == "pareto":
        return lambda partial: pictures.save(pictures.draw_pareto(found, name, reference, k), partial)
    if kind == "caps":
        return lambda partial: pictures.save(pictures.draw_caps(found, name, reference, k), partial)
    draw = pictures.draw_matrix if kind == "matrix" else pictures.draw_phases
    return lambda partial: pictures.save(draw(found, name), partial)
