"""`joules operations` and `joules layers`: what a model computes, and what each of its layers costs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from powerd_analytics.cli.common import Device, check_picture, naming, refuse_existing, stdout, write
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_analytics.layers.energy import CountOf

WIDE = 240
"""Characters a line where no terminal says how many it has."""
Format = Literal["table", "csv", "json", "markdown"]
Output = Annotated[Path | None, Parameter(alias="-o", help="Write to this file instead of the terminal.")]
Overwrite = Annotated[bool, Parameter(negative="", help="Replace a file that exists.")]
Inputs = Annotated[
    tuple[str, ...],
    Parameter(help="Shape of one sample (3x224x224, 128:int64); again for each further argument.", negative=""),
]


def operations(
    model: Annotated[str, Parameter(help="A model of ours (resnet50, caffenet, ...), or FILE.py:FUNCTION.")],
    *,
    input: Inputs = (),
    batch: Annotated[int, Parameter(help="Samples a batch.")] = 1,
    forward_only: Annotated[bool, Parameter(negative="", help="Leave backward out.")] = False,
    format: Annotated[Format, Parameter(help="How to print it.")] = "table",
    output: Output = None,
    overwrite: Overwrite = False,
) -> int:
    """Count a model's operations by layer: by the paper's equations, and as torch executes them.

    Exit status 1: a step of the model cannot be counted, nor what comes after it; the listing says which.

    For example:

      joules operations caffenet

      joules operations train.py:make_model --input 3x224x224 --batch 256 --format json -o operations.json
    """
    from powerd_analytics.operations import listing
    from powerd_analytics.operations.named import count_named
    from powerd_analytics.progress import LateProgress

    refuse_existing(output, overwrite)
    with LateProgress(Console(stderr=True)) as progress:
        count = count_named(
            model,
            input,
            batch,
            backward=not forward_only,
            progress=lambda share, text: progress(share, f"counting {model}: {text}"),
        )
    if format == "table":
        _put_table(lambda console: listing.print_table(count, console), output, overwrite)
    else:
        _put(listing.MAKERS[format](count), output, overwrite)
    if count.stopped:
        sys.stderr.write(f"joules: {printable(f'{model}: {listing.STOPPED}: {count.stopped}')}\n")
    return 1 if count.stopped else 0


def layers(
    run: Annotated[Path, Parameter(help="A run file whose layers were marked: meter.watch(model, layers=True).")],
    *,
    operations: Annotated[
        str | None,
        Parameter(help="What they compute: OPS.json of `joules operations`, a model of ours, FILE.py:FUNCTION."),
    ] = None,
    input: Inputs = (),
    batch: Annotated[int | None, Parameter(help="Samples a batch, where the run's phases do not say.")] = None,
    model: Annotated[str | None, Parameter(help="Only the phases of this model.")] = None,
    device: Device = None,
    plot: Annotated[Path | None, Parameter(help="Draw the roofline as well (.png, .pdf, .svg).")] = None,
    format: Annotated[Format, Parameter(help="How to print it.")] = "table",
    output: Output = None,
    overwrite: Overwrite = False,
) -> None:
    """Print joules of every layer, and GFLOPS/W of layers, phases and models where operations are given.

    For example: joules layers run.h5 --operations resnet50 --plot roofline.png
    """
    from powerd_analytics.layers import listing as layer_listing
    from powerd_analytics.layers.energy import layer_energies
    from powerd_analytics.pictures.roofline import plot_roofline
    from powerd_analytics.progress import LateProgress
    from powerd_analytics.runs.run import read_run
    from powerd_analytics.tables.table import phase_table
    from powerd_core.errors import ConfigError

    if plot is not None:
        if operations is None:
            raise ConfigError("--plot draws operations per byte against operations per joule: give --operations too")
        check_picture(plot)
        refuse_existing(plot, overwrite)
    refuse_existing(output, overwrite)
    count_of = _counter(operations, input) if operations is not None else None
    with LateProgress(Console(stderr=True)) as progress:
        opened = read_run(run, progress=lambda share, text: progress(0.3 * share, text))
        with naming(run):
            table = phase_table(opened, device, progress=lambda share, text: progress(0.3 + 0.6 * share, text))
            rows = layer_energies(table, count_of, batch_size=batch, model=model)
        if plot is not None:
            progress(0.9, "drawing")
            write(plot, lambda partial: plot_roofline(rows, partial, title=run.name), overwrite)
    if format == "table":
        _put_table(lambda console: layer_listing.print_table(rows, console), output, overwrite)
    else:
        _put(layer_listing.MAKERS[format](rows), output, overwrite)


def _counter(operations: str, inputs: tuple[str, ...]) -> CountOf:
    from powerd_analytics.operations.document import read_count
    from powerd_analytics.operations.named import count_named

    if operations.endswith(".json"):
        count = read_count(Path(operations))
        return lambda _batch: count
    return lambda batch: count_named(operations, inputs, batch)


def _put_table(show: Callable[[Console], None], output: Path | None, overwrite: bool) -> None:
    import io

    if output is None:
        show(stdout(width=None if sys.stdout.isatty() else WIDE))
        return
    text = io.StringIO()
    show(Console(file=text, width=WIDE))
    _put(text.getvalue(), output, overwrite)


def _put(made: str, output: Path | None, overwrite: bool) -> None:

    if output is None:
        sys.stdout.write(made)
        sys.stdout.flush()
    else:
        write(output, lambda partial: partial.write_text(made, encoding="utf-8"), overwrite)
