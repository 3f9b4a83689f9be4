"""`joules operations` and `joules layers`: what a model computes, and what each of its layers costs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from powerd_analytics.cli import shared
from powerd_analytics.terminal import LateProgress
from powerd_core.errors import ConfigError

if TYPE_CHECKING:
    from powerd_analytics.layers import CountOf

WIDE = 240
"""Characters a line where no terminal says how many it has."""
Inputs = Annotated[
    tuple[str, ...],
    Parameter(help="Shape of one sample (3x224x224, 128:int64); again for each further argument.", negative=""),
]


def operations(
    model: Annotated[str, Parameter(help="A model of ours (resnet50, caffenet, ...), or FILE.py:FUNCTION.")],
    /,
    *,
    input: Inputs = (),
    batch: Annotated[int, Parameter(help="Samples a batch.")] = 1,
    forward_only: Annotated[bool, Parameter(negative="", help="Leave backward out.")] = False,
    format: shared.Format = "text",
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Count a model's operations by layer.

    They are counted by the paper's equations, and as torch executes them.

    For example:

      joules operations caffenet

      joules operations train.py:make_model --input 3x224x224 --batch 256 --format json -o operations.json
    """
    from powerd_analytics.export import to_json_text
    from powerd_analytics.operations import listing
    from powerd_analytics.operations.count import count_named
    from powerd_analytics.operations.counts import to_document

    shared.refuse_existing(output, overwrite)
    count = count_named(model, input, batch, backward=not forward_only)
    if format == "json":
        text = to_json_text(to_document(count)) + "\n"
    else:
        make = listing.operation_frame if format == "csv" else listing.people_frame
        text = shared.frames_text([make(count)], format, output, WIDE)
    shared.put_out(text, output, overwrite)


def layers(
    run: Annotated[Path, Parameter(help="A run file whose layers were marked: meter.watch(model, layers=True).")],
    *,
    operations: Annotated[
        str | None,
        Parameter(help="What they compute: MODEL as `joules operations` takes it, or the OPS.json that it wrote."),
    ] = None,
    input: Inputs = (),
    batch: Annotated[int | None, Parameter(help="Samples a batch, where the run's phases do not say.")] = None,
    model: Annotated[str | None, Parameter(help="Only phases of this model; all of them without it.")] = None,
    device: shared.Device = None,
    plot: Annotated[Path | None, Parameter(help="Draw the roofline as well (.png, .pdf, .svg).")] = None,
    format: shared.Format = "text",
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Print joules, and GFLOPS/W, of every layer.

    GFLOPS/W of layers, phases and models need --operations.

    For example:

      joules layers run.h5

      joules layers run.h5 --operations resnet50 --plot roofline.png
    """
    from powerd_analytics.export import to_json_text
    from powerd_analytics.layers import layer_energies, layer_frame
    from powerd_analytics.operations.count import count_named
    from powerd_analytics.operations.counts import CONVENTIONS, read_count
    from powerd_analytics.runs.run import read_run
    from powerd_analytics.table import phase_table

    if plot is not None:
        if operations is None:
            raise ConfigError("--plot draws operations per byte against operations per joule: give --operations too")
        shared.refuse_picture(plot, overwrite)
    shared.refuse_existing(output, overwrite)
    count_of: CountOf | None = None
    if operations is not None and operations.endswith(".json"):
        count = read_count(Path(operations))
        count_of = lambda _batch: count  # noqa: E731
    elif operations is not None:
        count_of = partial(count_named, operations, input)
    with LateProgress() as progress:
        opened = read_run(run, progress=progress.part(0.0, 0.3))
        with shared.naming(run):
            table = phase_table(opened, device, progress=progress.part(0.3, 0.9))
            rows = layer_energies(table, count_of, batch_size=batch, model=model)
        if plot is not None:
            from powerd_analytics.plots import draw_roofline, save

            progress(0.9, "drawing")
            figure = draw_roofline(rows, run.name)
            shared.write(plot, lambda path: save(figure, path), overwrite)
    frame = layer_frame(rows)
    if format == "json":
        text = to_json_text({"conventions": CONVENTIONS, "rows": frame.to_dict("records")}) + "\n"
    else:
        text = shared.frames_text([frame], format, output, WIDE)
    shared.put_out(text, output, overwrite)
