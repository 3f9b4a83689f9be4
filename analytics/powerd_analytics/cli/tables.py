"""`joules tables`, `joules compare` and `joules operations`.

Their columns, with units, stand in `powerd_analytics.frame.figures`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from powerd_analytics.cli import shared
from powerd_analytics.output.terminal import LateProgress
from powerd_analytics.output.text import parse_number
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_analytics.output.export import Table
    from powerd_analytics.run_tables.layers import CountOf, LayerEnergy
    from powerd_analytics.runs.run import Run
    from powerd_analytics.views.layouts import TableChoice

Form = shared.TableFormat | Literal["paper"]
Which = Literal[
    "time", "energy", "totals", "accuracy", "efficiency", "gain", "ranks", "cards", "wall", "records", "iterations",
    "layers", "uncertainty",
]  # fmt: skip
_FOR_PROGRAMS = ("csv", "json", "parquet")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Printing:
    """How to print the tables of runs, and of what of them."""

    format: shared.Format = None
    paper: Annotated[
        bool,
        Parameter(
            negative="", help="LaTeX for a paper: common settings in the caption, figures with their U95, notes once."
        ),
    ] = False
    output: shared.Output = None
    device: shared.Device = None
    wide: Annotated[bool, Parameter(negative="", help="All columns, wider than most terminals; one run.")] = False
    notes: Annotated[bool, Parameter(negative="", help="All notes, not the first few; one run.")] = False
    calibration: shared.Calibration = None
    above_idle: Annotated[
        bool, Parameter(negative="", help="Show the energy above idle beside the whole; one run, with a baseline.")
    ] = False


Inputs = Annotated[
    tuple[str, ...],
    Parameter(help="Shape of one sample (3x224x224, 128:int64); again for each further argument.", negative=""),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class LayerCounts:
    """What the layers of a run compute."""

    operations: Annotated[
        str | None,
        Parameter(help="Of layers, for GFLOPS/W: MODEL as `joules operations` takes it, or the OPS.json it wrote."),
    ] = None
    input: Inputs = ()
    batch: Annotated[int | None, Parameter(help="Of layers: samples a batch, where phases do not say.")] = None

    def counter(self) -> CountOf | None:
        """Counts operations at a batch size; None where no model is named."""
        if self.operations is None:
            return None
        if self.operations.endswith(".json"):
            from powerd_analytics.operations.counts import read_count

            count = read_count(Path(self.operations))
            return lambda _batch: count
        from powerd_analytics.operations.torch_model import count_named

        return partial(count_named, self.operations, self.input)


UNCOUNTED = LayerCounts()


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which tables to make of several runs, of which of their rows."""

    table: Annotated[
        list[Which] | None,
        Parameter(
            negative="",
            help="Only these. For programs: `records`, a row a figure; `iterations`, a row each. Of one run: `layers`; "
            "`uncertainty`, where it comes from and what shrinks it.",
        ),
    ] = None
    where: Annotated[
        list[str] | None, Parameter(negative="", help="COLUMN=VALUE: only rows that have it. May be repeated.")
    ] = None
    pivot: Annotated[
        str | None, Parameter(help="ROWS:COLUMNS:VALUE, each one or more columns; COLUMNS may be empty.")
    ] = None
    averages: Annotated[bool, Parameter(negative="", help="Averages at the sides of a pivot.")] = False
    ignore: Annotated[
        list[str] | None,
        Parameter(negative="", help="A setting or attribute that does not part repeats. May be repeated."),
    ] = None
    gain: Annotated[str | None, Parameter(help="A,B: figures of product B over those of A; of two by itself.")] = None
    to: Annotated[
        str | None, Parameter(help="NAME=VALUE, as in top1=0.98: seconds and joules up to the first result as good.")
    ] = None
    weights: Annotated[
        str | None, Parameter(help="NAME=WEIGHT,...: adds a weighted average of results to the table `accuracy`.")
    ] = None
    card_spread: Annotated[
        float | None,
        Parameter(help="Relative standard deviation between equal cards, as in 0.03, for the table `cards`."),
    ] = None
    mix: Annotated[
        list[str] | None,
        Parameter(negative="", help="For `cards`: what that many GPUs in all are, as in pascal=2,maxwell=2."),
    ] = None
    job: Annotated[
        bool, Parameter(negative="", help="The runs are one training over several machines, though they do not say so.")
    ] = False
    training: shared.WholeTraining = shared.UNSTATED
    costs: shared.Costs = shared.FREE
    counts: LayerCounts = UNCOUNTED
    co2_by_hour: Annotated[
        Path | None, Parameter(help="CO2 of each hour by this CSV file: a time in UTC first, and g_per_kwh.")
    ] = None
    into: Annotated[
        Path | None, Parameter(help="Also put the tables into /tables of this run file or file of tables (.h5).")
    ] = None

    def choice(self) -> TableChoice:
        """What to make of the frame of the runs. Raises `ConfigError`."""
        from powerd_analytics.frame.accuracy_target import parse_weights
        from powerd_analytics.frame.published import parse_mixes
        from powerd_analytics.runs.accuracy import ResultTarget
        from powerd_analytics.views.cards import Cards
        from powerd_analytics.views.layouts import TableChoice, pair_of
        from powerd_analytics.views.pivots import PivotRequest

        return TableChoice(
            names=tuple(self.table or ()),
            conditions=tuple(self.where or ()),
            pivot=None if self.pivot is None else PivotRequest.parse(self.pivot),
            averages=self.averages,
            length=self.training.length(),
            gain=pair_of(self.gain),
            factors=self.costs.factors(),
            ignore=tuple(self.ignore or ()),
            target=None if self.to is None else ResultTarget.parse(self.to),
            weights=None if self.weights is None else parse_weights(self.weights),
            cards=Cards(self.card_spread, parse_mixes(self.mix or [])),
        )


AS_IT_IS, ALL = Printing(), Asked()


def tables(
    *runs: Annotated[Path, Parameter(help="Run files, and directories and indexes of them.")],
    printing: Printing = AS_IT_IS,
    asked: Asked = ALL,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace a file, or tables in it, that exist.")] = False,
) -> None:
    """Print joules, seconds and watts by phase.

    Of one run as it was, of many as the tables of a paper.

    For example:

      joules tables run.h5

      joules tables run.h5 -o tables.h5

      joules tables runs/ --epochs 90 --dataset-size 1281167

      joules tables run.h5 --epochs 90 --dataset-size 1281167 --co2-g-per-kwh 380 --price-per-kwh 0.30 --currency EUR

      joules tables run.h5 run.node1.h5

      joules tables runs/ --pivot model,batch:gpus:j_per_batch

      joules tables runs/ --to top1=0.98

      joules tables runs/ --paper -o tables.tex

      joules tables run.h5 --table iterations -o iterations.csv

      joules tables run.h5 --table uncertainty --where phase=forward

      joules tables run.h5 --table layers --operations resnet50

      joules tables run.h5 --calibration calibration.toml
    """
    if not runs:
        raise ConfigError("no run to make tables of: give run files, or directories of them")
    is_paper = printing.paper
    form = shared.form_of(printing.format or ("latex" if is_paper else None), printing.output)
    alone = [name for name in asked.table or () if name in _OF_ONE_RUN]
    if alone:
        _refuse(f"--table {alone[0]} is made by itself: leave the other tables out", len(asked.table or ()) > 1)
        _check_of_one_run(alone[0], runs, printing, asked)
        _OF_ONE_RUN[alone[0]](runs[0], printing, asked, form, overwrite=overwrite)
        return
    if asked.co2_by_hour is not None:
        _print_hours(runs, printing, asked, asked.co2_by_hour, form, overwrite=overwrite)
        return
    _refuse(f"--paper is a form of LaTeX: leave --format {form} out", is_paper and form != "latex")
    _refuse("--operations, --input and --batch are for --table layers: choose that", asked.counts != UNCOUNTED)
    _refuse(
        "--card-spread and --mix are for --table cards: choose that",
        bool((asked.card_spread is not None or asked.mix) and "cards" not in (asked.table or ())),
    )
    is_of_several = asked != ALL or is_paper or form in ("latex", "parquet", "hdf5")
    if is_of_several or len(runs) > 1 or runs[0].is_dir() or runs[0].suffix == ".parquet":
        _print_runs(runs, printing, asked, "paper" if is_paper else form, overwrite=overwrite)
    else:
        _print_run(runs[0], printing, form, overwrite=overwrite)


def _print_run(path: Path, printing: Printing, form: shared.TableFormat, *, overwrite: bool) -> None:
    """The tables of one run as it was."""
    output = printing.output
    shared.refuse_existing(output, overwrite, (path,))
    with LateProgress() as progress:
        run, of_run = shared.table_of(
            path, printing.device, printing.calibration, progress, above_idle=printing.above_idle
        )
    if form == "text" and not printing.wide:
        from powerd_analytics.run_tables.terminal_table import print_tree

        name, is_chosen, notes = path.name, printing.device is not None, printing.notes
        text = shared.render(
            lambda console: print_tree(of_run, console, name, is_chosen=is_chosen, all_notes=notes), output
        )
        shared.put_out(text, output, overwrite)
    else:
        from powerd_analytics.frame.figures import frame_of
        from powerd_analytics.views.layouts import records_table, run_tables

        frame = frame_of(run, of_run)
        of_frame = [records_table(frame)] if form in _FOR_PROGRAMS else run_tables(frame)
        shared.put_tables(of_frame, form, output, overwrite)


def _print_runs(runs: Sequence[Path], printing: Printing, asked: Asked, form: Form, *, overwrite: bool) -> None:
    """The tables of several runs, as papers print them."""
    from powerd_analytics.frame.trainings import read_runs
    from powerd_analytics.output.export import write_tables
    from powerd_analytics.views.layouts import chosen_tables

    alone = {"--above-idle": printing.above_idle, "--wide": printing.wide, "--notes": printing.notes}
    for name, is_given in alone.items():
        _refuse(f"{name} is for the table of one run: leave the other options out", is_given)
    choice, output, into = asked.choice(), printing.output, asked.into
    _refuse_combinations(choice, form, is_one_job=asked.job)
    shared.check_output(output, form, overwrite, runs)
    shared.refuse_existing(into, True, is_hdf5=True)  # tables are added to a file that exists
    with LateProgress() as progress:
        frame = read_runs(
            runs, printing.device, printing.calibration, is_one_job=asked.job, target=choice.target, progress=progress
        )
        tables = chosen_tables(frame, choice)
    if into is not None:
        write_tables(into, tables, overwrite=overwrite)
        print(f"{into}: /tables/{{{','.join(table.name for table in tables)}}}")
        if output is None and form == "text":
            return
    if not (choice.names or choice.pivot or choice.target):  # all for people, or every row for programs
        tables = [t for t in tables if (t.name == "records") == (form in _FOR_PROGRAMS)]
    shared.put_tables(tables, form, output, overwrite)


def _refuse_combinations(choice: TableChoice, form: Form, *, is_one_job: bool) -> None:
    pivot, several = choice.pivot is not None, len(choice.names) > 1 or (choice.pivot and choice.gain)
    _refuse(f"--format {form} holds one table: choose one", form in _FOR_PROGRAMS and bool(several))
    _refuse(
        "a pivot has neither --table nor CO2 and money: leave these out", pivot and bool(choice.names or choice.factors)
    )
    _refuse("--averages belongs to a pivot: add --pivot ROWS:COLUMNS:VALUE", choice.averages and not pivot)
    is_one_stretch = pivot or is_one_job or bool(choice.length) or any(name != "accuracy" for name in choice.names)
    _refuse(
        "--to is for the table `accuracy` of what was recorded: leave the others out",
        choice.target is not None and is_one_stretch,
    )


def _check_of_one_run(name: str, runs: Sequence[Path], printing: Printing, asked: Asked) -> None:
    """Raises `ConfigError` for what a table of one run alone does not take."""
    _refuse(f"--table {name} takes one run file", len(runs) > 1)
    column = _WHERE.get(name)
    known = Asked(
        table=asked.table,
        where=asked.where if column else None,
        counts=asked.counts if name == "layers" else UNCOUNTED,
    )
    takes = [f"--where {column}=NAME"] * bool(column) + ["--operations, --input, --batch"] * (name == "layers")
    options = ", ".join(("--device", *takes, "--format", "--output"))
    is_more = asked != known or printing.paper or printing.wide or printing.notes or printing.above_idle
    _refuse(f"--table {name} takes one run file, and of the options {options}", is_more)
    wrong = [text for text in asked.where or () if text.partition("=")[0] != column]
    _refuse(f"--table {name} knows --where {column}=NAME alone", bool(wrong) or len(asked.where or ()) > 1)


_WHERE = {"layers": "model", "uncertainty": "phase"}
"""The column by which rows of such a table can be chosen."""


def _named(asked: Asked) -> str | None:
    return asked.where[0].partition("=")[2] if asked.where else None


def _print_iterations(
    path: Path, printing: Printing, asked: Asked, form: shared.TableFormat, *, overwrite: bool
) -> None:
    """Every iteration of one run, for programs."""
    from powerd_analytics.output.export import write_rows
    from powerd_analytics.run_tables.iterations import COLUMNS, iteration_rows

    output = printing.output
    if form not in ("csv", "json", "parquet"):
        raise ConfigError("iterations are rows for programs: choose --format csv, json or parquet")
    shared.refuse_existing(output, overwrite, [path])
    with LateProgress() as progress:
        opened = shared.open_run(path, printing.calibration, progress, is_checked=True)
        rows = iteration_rows(opened, printing.device, progress=progress)
        if output is None:
            write_rows(COLUMNS, rows, form, shared.harmless_output())
        else:
            shared.write(output, lambda partial: write_rows(COLUMNS, rows, form, partial), overwrite)


def _print_uncertainty(
    path: Path, printing: Printing, asked: Asked, form: shared.TableFormat, *, overwrite: bool
) -> None:
    """What the uncertainty of each energy of one run comes from, as shares of the variance, largest first."""
    from powerd_analytics.run_tables import uncertainty_table
    from powerd_analytics.runs.ranks import notes_of_run

    device, output, phase = printing.device, printing.output, _named(asked)
    shared.check_output(output, form, overwrite, [path])
    with LateProgress() as progress:
        opened = shared.open_run(path, printing.calibration, progress, is_checked=True)
        rows = uncertainty_table.kept_budget(opened, device, phase, progress=progress)
        beside = notes_of_run(opened, device)
    if not any(row.table == "phase" for row in rows):
        what = (
            "has no phases: mark them with `meter.phase(...)`" if rows else "is empty: no line feeds any of its devices"
        )
        raise AnalysisError(f"{path}: this run {what}")
    if phase is None and not any(row.energy_j for row in rows if row.table != "run"):
        raise AnalysisError(f"{path}: there is no energy whose uncertainty could be told: {rows[0].words}")
    if form == "json":
        shared.warn(beside)
        shared.put_out(uncertainty_table.to_json(rows), output, overwrite)
    else:
        is_table = form in ("csv", "parquet", "hdf5")
        of_rows = [uncertainty_table.parts_table(rows)] if is_table else uncertainty_table.budget_tables(rows)
        shared.put_tables(_with_notes(of_rows, beside, form), form, output, overwrite)


def _print_layers(path: Path, printing: Printing, asked: Asked, form: shared.TableFormat, *, overwrite: bool) -> None:
    """Joules of every layer of one run, and GFLOPS/W where operations are named."""
    from powerd_analytics.operations.counts import CONVENTIONS
    from powerd_analytics.output.export import to_json_text
    from powerd_analytics.run_tables.layers import layer_table
    from powerd_analytics.runs.ranks import notes_of_run

    device, output = printing.device, printing.output
    shared.check_output(output, form, overwrite, [path])
    with LateProgress() as progress:
        run, rows = layers_of(path, device, asked.counts, _named(asked), progress)
    table, notes = layer_table(rows), notes_of_run(run, device)
    if form == "json":
        shared.warn(notes)
        shared.put_out(to_json_text({"conventions": CONVENTIONS, "rows": table.records()}) + "\n", output, overwrite)
    else:
        shared.put_tables(_with_notes([table], notes, form), form, output, overwrite)


def layers_of(
    path: Path, device: str | None, counts: LayerCounts, model: str | None, progress: LateProgress
) -> tuple[Run, tuple[LayerEnergy, ...]]:
    """A run and the energies of its layers, of one ``model`` where it is named.

    Raises `AnalysisError` for a run without layers, and what reading and counting raise.
    """
    from powerd_analytics.run_tables.layers import described_layers, layer_energies
    from powerd_analytics.run_tables.table import kept_table
    from powerd_analytics.runs.run import read_run

    counter = counts.counter()
    run = read_run(path, progress=progress.part(0.0, 0.3))
    with shared.naming(path):
        table = kept_table(run, device, progress=progress.part(0.3, 0.9))
        described = described_layers(run.events)
        rows = layer_energies(table, counter, batch_size=counts.batch, model=model, described=described)
    return run, rows


def _with_notes(tables: Sequence[Table], notes: Sequence[str], form: str) -> list[Table]:
    """The tables with notes under the last; for programs they go to the error stream."""
    if form in ("csv", "parquet") or not tables:
        shared.warn(notes)
        return list(tables)
    return [*tables[:-1], replace(tables[-1], notes=(*tables[-1].notes, *notes))]


_OF_ONE_RUN = {"iterations": _print_iterations, "layers": _print_layers, "uncertainty": _print_uncertainty}


def _print_hours(
    runs: Sequence[Path], printing: Printing, asked: Asked, hours: Path, form: shared.TableFormat, *, overwrite: bool
) -> None:
    """Joules and CO2 of each hour of the wall clock."""
    from powerd_analytics.frame.index import run_files
    from powerd_analytics.run_tables.carbon_hours import hours_table
    from powerd_client.energies.carbon import read_hourly_intensity

    _refuse(
        "--co2-by-hour goes with the options --device, --calibration, --format and --output alone",
        asked != Asked(co2_by_hour=hours) or any((printing.paper, printing.wide, printing.notes, printing.above_idle)),
    )
    shared.check_output(printing.output, form, overwrite, [*runs, hours])
    intensity = read_hourly_intensity(hours)
    with LateProgress() as progress:
        opened = [shared.open_run(path, printing.calibration, progress) for path in run_files(runs)]
        table = hours_table(opened, intensity, printing.device, progress=progress)
    shared.put_tables([table], form, printing.output, overwrite)


def _refuse(text: str, is_wrong: bool) -> None:
    if is_wrong:
        raise ConfigError(text)


def compare(
    a: Annotated[Path, Parameter(help="A run file, or a directory or an index of them.")],
    b: Annotated[Path, Parameter(help="What to compare it with: the same.")],
    *others: Annotated[Path, Parameter(help="More of them; each is compared with the first.")],
    format: shared.Format = None,
    output: shared.Output = None,
    device: shared.Device = None,
    ignore: Annotated[
        list[str] | None,
        Parameter(negative="", help="A setting or attribute in which rows need not agree. May be repeated."),
    ] = None,
    fail_above: Annotated[
        str, Parameter(help="End with status 1 where joules rose by more than that, as 3%, and by more than U95.")
    ] = "",
    overwrite: shared.Overwrite = False,
) -> int:
    """Say what differs between runs by more than chance.

    That is joules and seconds a batch, of two runs or two folders of them; of a
    sample, with the energy-delay product, where batches differ in size. Of more
    than two, each is compared with the first.

    Run files are opened also where an index names them: what tells chance from a
    difference are the single phases and whose sensors measured them, and an index
    holds neither.

    For example:

      joules compare before.h5 after.h5

      joules compare runs/260W runs/140W --format markdown -o caps.md

      joules compare runs/32 runs/64 runs/128

      joules compare runs/sgd runs/adam --ignore batch_size

      joules compare main/ change/ --fail-above 3%
    """
    from powerd_analytics.frame.index import run_files
    from powerd_analytics.views import compare as comparing

    percent = _per_cent(fail_above)
    sides = (a, b, *others)
    if len(sides) > len(comparing.LETTERS):
        raise ConfigError(f"{len(sides)} sides: at most {len(comparing.LETTERS)} can be compared")
    form = shared.form_of(format, output)
    shared.check_output(output, form, overwrite, sides)
    files = [run_files([side]) for side in sides]
    side_of: dict[Path, Path] = {}
    for side, of_side in zip(sides, files, strict=True):
        for path in {path.resolve() for path in of_side}:
            if path in side_of:
                raise AnalysisError(f"{path} is on both sides: a run cannot be compared with itself")
            side_of[path] = side
    with LateProgress() as progress:
        samples = [
            comparing.read_samples(paths, device, progress=progress.part(k / len(sides), (k + 1) / len(sides)))
            for k, paths in enumerate(files)
        ]
        comparison = comparing.compare(samples[0], samples[1], ignore or (), *samples[2:])
        table = comparing.comparison_table(comparison, *map(str, sides))
    shared.put_tables([table], form, output, overwrite)
    risen = comparing.gate_failures(comparison, percent) if percent is not None else []
    for text in risen:
        print(printable(f"joules compare: {text}"), file=sys.stderr)
    return 1 if risen else 0


def _per_cent(text: str) -> float | None:
    """Of ``3%``; None without one. Raises `ConfigError`."""
    if not text:
        return None
    number = parse_number(text.strip().removesuffix("%"))
    if number is None or not 0 <= number < MOST_PER_CENT:
        raise ConfigError(f"--fail-above {printable(text, limit=40)}: write per cent, as in 3%")
    return number


MOST_PER_CENT = 1000.0


def operations(
    model: Annotated[str, Parameter(help="A model of ours (resnet50, caffenet, ...), or FILE.py:FUNCTION.")],
    /,
    *,
    input: Inputs = (),
    batch: Annotated[int, Parameter(help="Samples a batch.")] = 1,
    forward_only: Annotated[bool, Parameter(negative="", help="Leave backward out.")] = False,
    format: shared.Format = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Count a model's operations by layer.

    They are counted by the paper's equations, and as torch executes them.

    For example:

      joules operations caffenet

      joules operations train.py:make_model --input 3x224x224 --batch 256 -o operations.json
    """
    from powerd_analytics.operations.counts import operation_table, to_document
    from powerd_analytics.operations.torch_model import count_named
    from powerd_analytics.output.export import to_json_text

    form = shared.form_of(format, output)
    shared.check_output(output, form, overwrite)
    count = count_named(model, input, batch, backward=not forward_only)
    if form == "json":
        shared.put_out(to_json_text(to_document(count)) + "\n", output, overwrite)
    else:
        shared.put_tables([operation_table(count, with_notes=form == "csv")], form, output, overwrite)
