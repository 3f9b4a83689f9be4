"""What the commands share: options declared once, files written whole or not at all, the terminal, opening a run.

Everything heavy is imported by the function that needs it: `joules --help`, and a board without numpy, need none of it.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO, TypeVar, cast

from cyclopts import Parameter
from rich.console import Console

from powerd_analytics.output.terminal import LateProgress
from powerd_core.errors import AnalysisError, ConfigError, RunFileError
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_analytics.campaigns.design import Design
    from powerd_analytics.campaigns.journal import History
    from powerd_analytics.frame.costs import Factors
    from powerd_analytics.frame.trainings import Length
    from powerd_analytics.output.export import Table
    from powerd_analytics.run_tables.table import PhaseTable
    from powerd_analytics.runs.run import Run

_HDF5 = b"\x89HDF\r\n\x1a\n"
_NEAR_ENDS = 1 << 16
"""Bytes at either end of a page or picture, where its metadata is."""
_MOST_NOTES = 40
T = TypeVar("T")


# ---- options -----------------------------------------------------------------------------------------------------

RunFile = Annotated[Path, Parameter(help="A run file.")]
Device = Annotated[str | None, Parameter(help="Only this device; all of them without it.")]
Calibration = Annotated[
    Path | None,
    Parameter(help="Compute again with this file of `powerd calibrate`; the run file stays as it is."),
]
TableFormat = Literal["text", "csv", "json", "markdown", "latex", "parquet", "hdf5"]
Format = Annotated[
    TableFormat | None, Parameter(help="How to print it; without it by the ending of --output, or text.")
]
Output = Annotated[Path | None, Parameter(alias="-o", help="Write to this file instead of the terminal.")]
Overwrite = Annotated[bool, Parameter(negative="", help="Replace a file that exists.")]
Width = Annotated[
    Literal["column", "page"] | None,
    Parameter(help="As wide as a column (89 mm) or a page (178 mm) of a journal; as wide as it needs without it."),
]
TextOrJson = Annotated[Literal["text", "json"], Parameter(help="How to print it.")]
Keys = Annotated[Path | None, Parameter(help="Directory of keys; $POWERD_KEYS, else ~/.config/powerd without it.")]
Co2 = Annotated[float | None, Parameter(help="Grams of CO2 equivalent of a kWh: adds their columns to totals.")]
Country = Annotated[
    str | None,
    Parameter(help="A country in place of --co2-g-per-kwh: DEU, or world, by a table of yearly means."),
]
Price = Annotated[float | None, Parameter(help="Price of a kWh: adds what totals cost.")]
Currency = Annotated[str | None, Parameter(help="Of the price, in three letters: EUR.")]
_OfFactor = Annotated[float | None, Parameter(help="Standard uncertainty of that.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class WholeTraining:
    """How long the whole training is, of which a part was recorded."""

    iterations: Annotated[float | None, Parameter(help="Iterations of the whole training.")] = None
    epochs: Annotated[float | None, Parameter(help="Epochs of the whole training, with --dataset-size.")] = None
    dataset_size: Annotated[float | None, Parameter(help="Samples of one epoch.")] = None

    def length(self) -> Length:
        from powerd_analytics.frame.trainings import Length

        return Length(self.iterations, self.epochs, self.dataset_size)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Costs:
    """What a kWh emits and costs, and an hour of a GPU."""

    co2_g_per_kwh: Co2 = None
    u_co2_g_per_kwh: _OfFactor = None
    price_per_kwh: Price = None
    u_price_per_kwh: _OfFactor = None
    currency: Currency = None
    price_per_gpu_hour: Annotated[
        float | None, Parameter(help="What a GPU costs an hour beside its energy, in the same currency.")
    ] = None
    country: Country = None

    def factors(self) -> Factors:
        from powerd_analytics.frame.costs import Factors

        return Factors(
            self.co2_g_per_kwh,
            self.u_co2_g_per_kwh,
            self.price_per_kwh,
            self.u_price_per_kwh,
            self.currency,
            self.price_per_gpu_hour,
            self.country,
        )


UNSTATED, FREE = WholeTraining(), Costs()
"""Nothing is said of the training's length, nothing of what a kWh costs."""


# ---- files -------------------------------------------------------------------------------------------------------


def refuse_existing(path: Path | None, overwrite: bool, inputs: Sequence[Path] = (), *, is_hdf5: bool = False) -> None:
    """Raises `RunFileError` where no file can be written, before anything is read or computed.

    What is there and counts among the ``inputs`` is never replaced, nor is an HDF5 file but by what ``is_hdf5``.
    """
    if path is None:
        return
    from powerd_client.host.ownership import led_to
    from powerd_client.journals.journal import check_replaceable

    try:
        check_replaceable(path)
        if any(path.exists() and given.exists() and path.samefile(given) for given in inputs):
            raise RunFileError(f"{path} is read by this command: give its output another name")
        if path.exists() and not overwrite:
            raise RunFileError(f"{path} exists: give another name or --overwrite")
        if not is_hdf5:
            _check_no_run(path)
        folder = led_to(path).absolute().parent
        if not folder.is_dir():
            raise RunFileError(f"{folder if path.is_symlink() else path.parent} is no directory: make it first")
    except PermissionError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror or error}") from error


def check_output(path: Path | None, form: str, overwrite: bool, inputs: Sequence[Path] = ()) -> None:
    """The same of tables in a format; HDF5 may go into a file of tables, but not into a run."""
    refuse_existing(path, overwrite, inputs, is_hdf5=form == "hdf5")
    if form == "hdf5" and path is not None and path.exists():
        from powerd_analytics.output.export import is_run

        if is_run(path):
            raise RunFileError(f"{path} is a run file: give the tables another name, or `joules tables --into`")


def read_text(name: str) -> str:
    """The text of a small file. Raises `OSError`, and `UnicodeDecodeError` for what is no text."""
    return Path(name).read_text(encoding="utf-8")


def refuse_by_hand(path: Path, overwrite: bool) -> None:
    """Raises `RunFileError` where a command would give its output a name that a person's file has."""
    if path.exists() and not (overwrite or is_made_by_us(path)):
        raise RunFileError(f"{path} was not made by this command: name another file with -o, or give --overwrite")


def is_made_by_us(path: Path) -> bool:
    """Whether a page or picture says that powerd made it."""
    from powerd_analytics.output.text import MADE_BY

    with contextlib.suppress(OSError), path.open("rb") as file:
        begin = file.read(_NEAR_ENDS)
        file.seek(max(0, path.stat().st_size - _NEAR_ENDS))
        return MADE_BY.encode() in begin + b"\0" + file.read(_NEAR_ENDS)
    return False


def refuse_picture(path: Path, overwrite: bool) -> None:
    """The same of a picture, which has an ending of its own."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise RunFileError(f"{path}: a picture is written as .png, .pdf or .svg")
    refuse_existing(path, overwrite)


def _check_no_run(path: Path) -> None:
    """No text or picture takes the place of a recording, not even with --overwrite."""
    begin = b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        begin = file.read(len(_HDF5))
    if begin == _HDF5:
        raise RunFileError(f"{path} is an HDF5 file, as runs are: give the output another name")


def write(path: Path, make: Callable[[Path], T], overwrite: bool) -> T:
    """Make a file under another name and move it into place when it is whole. Returns what ``make`` does; raises
    `RunFileError`."""
    from powerd_analytics.output.export import whole_file
    from powerd_client.journals.journal import check_replaceable

    check_replaceable(path)
    _check_no_run(path)
    with whole_file(path, overwrite=overwrite) as partial:
        return make(partial)


@contextlib.contextmanager
def naming(path: Path | None) -> Iterator[None]:
    """Errors of an analysis that do not name the file that they are about do so; of several, None."""
    try:
        yield
    except AnalysisError as error:
        if path is None or path.name in str(error):
            raise
        raise AnalysisError(f"{path}: {error}") from error


# ---- streams -----------------------------------------------------------------------------------------------------


class Styled(str):
    """What a console has printed: names in it are harmless already, and its escapes are the console's own."""

    __slots__ = ()


def put_out(text: str, output: Path | None, overwrite: bool) -> None:
    """Write a text to its file, or to standard output where no file is named and somebody listens."""
    if output is not None:
        from powerd_client.host.ownership import write_new

        write(output, lambda partial: write_new(partial, text, 0o666), overwrite)
    elif sys.stdout is not None:
        out = sys.stdout if isinstance(text, Styled) else harmless_output()
        out.write(text)
        out.flush()


class _Harmless(io.TextIOBase):
    """A terminal, which gets what would move its cursor spelled out, in whole lines."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, text: str) -> int:
        self._terminal.write("\n".join(map(printable, text.split("\n"))))
        return len(text)

    def flush(self) -> None:
        self._terminal.flush()


def harmless_output() -> TextIO:
    """Standard output for text that carries names as they are, as CSV does: a terminal would obey them."""
    return cast("TextIO", _Harmless(sys.stdout)) if sys.stdout.isatty() else sys.stdout


def goes_to_terminal(output: Path | None) -> bool:
    """Whether `put_out` shows the text to a person."""
    return output is None and sys.stdout is not None and sys.stdout.isatty()


WIDTH = 80
"""Characters a line of text, where neither a terminal nor $COLUMNS says how many."""


def render(show: Callable[[Console], None], output: Path | None) -> str:
    """What a console prints, as wide as the terminal, and with its styles where it goes there."""
    on_terminal = goes_to_terminal(output)
    text = io.StringIO()
    width = Console().width if on_terminal else _columns()
    show(Console(file=text, width=width, force_terminal=on_terminal or None))
    return Styled(text.getvalue())


def _columns() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isascii() and columns.isdecimal() and int(columns) else WIDTH


def warn(notes: Sequence[str], what: str = "notes") -> None:
    """Lines for the error stream; of very many, the first."""
    for note in notes[:_MOST_NOTES]:
        sys.stderr.write(f"joules: {printable(' '.join(note.split()), limit=3000)}\n")
    if len(notes) > _MOST_NOTES:
        sys.stderr.write(f"joules: and {len(notes) - _MOST_NOTES} more such {what}\n")


class HelpConsole(Console):
    """Of `--help`, which knows that its reader (`head`) has gone: rich itself would end the process with status 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


FORM_OF: dict[str, TableFormat] = {
    "": "text", ".txt": "text", ".csv": "csv", ".json": "json", ".md": "markdown", ".tex": "latex",
    ".parquet": "parquet", ".h5": "hdf5", ".hdf5": "hdf5",
}  # fmt: skip
"""What a table is written as, by the ending of its file."""
_NO_TEXT = {"parquet": "Parquet", "hdf5": "HDF5"}


def form_of(format: TableFormat | None, output: Path | None) -> TableFormat:
    """The format that was asked, or that a file's ending says. Raises `ConfigError` where there is none."""
    ending = output.suffix.lower() if output is not None else ""
    by_ending = FORM_OF.get(ending)
    form = format or by_ending
    if form is None:
        raise ConfigError(f"{output}: no table is written as {ending}: take {', '.join(filter(None, FORM_OF))}")
    if form in _NO_TEXT and output is None:
        raise ConfigError(f"{_NO_TEXT[form]} is no text: say where to write it with -o FILE{ending_of(form)}")
    if output is not None and ending and form != by_ending and {form, by_ending} & set(_NO_TEXT):
        raise ConfigError(f"{output}: {form} does not go into {ending}: name it {output.stem}{ending_of(form)}")
    return form


def ending_of(form: str) -> str:
    """The first ending of a format's files."""
    return next(ending for ending, name in FORM_OF.items() if name == form)


def put_tables(
    tables: Sequence[Table], form: TableFormat | Literal["paper"], output: Path | None, overwrite: bool
) -> None:
    """Write tables to their file, or print them; in HDF5 each is /tables/NAME. Raises `ConfigError` for several where
    a format holds one."""
    from powerd_analytics.output import export

    if form in ("csv", "json", "parquet") and len(tables) > 1:
        names = ", ".join(table.name for table in tables)
        raise ConfigError(f"{form} holds one table, and these are {names}: choose one, or another format")
    if form == "hdf5" and output is not None:
        export.write_tables(output, tables, overwrite=overwrite)
        print(f"{output}: /tables/{{{','.join(table.name for table in tables)}}}")
    elif form == "parquet" and output is not None:
        write(output, lambda partial: export.write_parquet(tables[0], partial), overwrite)
    else:
        put_out(tables_text(tables, form, output), output, overwrite)


def tables_text(tables: Sequence[Table], format: str, output: Path | None) -> str:
    """Tables in a format of text; CSV and JSON hold the first."""
    from powerd_analytics.output import export

    formats: dict[str, Callable[[], str]] = {
        "text": lambda: render(lambda console: export.print_tables(tables, console), output),
        "csv": lambda: export.to_csv(tables[0]),
        "json": lambda: export.to_json(tables[0]),
        "markdown": lambda: export.to_markdown(tables),
        "latex": lambda: export.to_latex(tables),
        "paper": lambda: export.to_paper(tables),
    }
    return formats[format]()


# ---- runs --------------------------------------------------------------------------------------------------------


def open_run(path: Path, calibration: Path | None, progress: LateProgress, *, is_checked: bool = False) -> Run:
    """The run, by its own calibrations or by later ones; which lines those change goes to the error stream.

    Raises `AnalysisError`, where it ``is_checked``, for attributes that contradict each other and phases without time.
    """
    from powerd_analytics.runs.run import read_run, recalibrate

    run = read_run(path, progress=progress)
    if calibration is not None:
        run, lines = recalibrate(run, calibration)
        sys.stderr.write(f"joules: computed again with {calibration}: {', '.join(lines)}\n")
    if is_checked:
        from powerd_analytics.run_tables.table import groups_of

        groups_of(run)
        p = run.phases
        for label, kind in enumerate(p.classes):
            ended = (p.label == label) & ~p.cut
            if ended.any() and not (p.end_ns > p.begin_ns)[ended].any():
                raise AnalysisError(f"{path}: phases {kind.name!r} took no time at all: their marks are wrong")
    return run


def table_of(
    path: Path, device: str | None, calibration: Path | None, progress: LateProgress, *, above_idle: bool = False
) -> tuple[Run, PhaseTable]:
    """One run and its table. Lines on the error stream say where forward passes stand for iterations, as in files of
    0.1.0, which attribute of phases has very many values, which is dropped because it is no number, and what of the
    training could not be marked.

    Raises `AnalysisError` for a run that no table can be made of.
    """
    from powerd_analytics.run_tables.table import check_table, kept_table, phase_table
    from powerd_analytics.runs.phases import crowded_classes
    from powerd_client.energies.phase import WATCH

    run = open_run(path, calibration, progress, is_checked=True)
    warn([f"{path}: {text}" for text in (*run.dropped, *crowded_classes(run.phases.classes))])
    texts = dict.fromkeys(str(message.get("text")) for message in run.messages)
    warn([f"{path}: {text.removeprefix(WATCH)}" for text in texts if text.startswith(WATCH)])
    if above_idle:
        table = phase_table(run, device, above_idle=True, progress=progress)
    else:
        table = kept_table(run, device, progress=progress)
    check_table(path, table)
    p = run.phases
    is_forward_counted = "forward" in {kind.name for kind in p.classes} and not p.is_unstepped
    if is_forward_counted and not any(kind.is_iteration for kind in p.classes):
        warn([f"{path}: no iterations are marked in it: forward passes are counted as such"])
    return run, table


def campaign_of(path: Path) -> tuple[History, Design] | None:
    """The journal of a campaign's folder (one that `joules campaign caps` has made, too), and a design of its cells;
    None where it is no such folder."""
    from powerd_analytics.campaigns.campaign_file import design_of
    from powerd_analytics.campaigns.journal import NAME, read_history

    if not (path / NAME).is_file():
        return None
    history = read_history(path)
    known = history.levels
    factors = known.get("factors", {})
    document = {
        "campaign": {"name": "x", "command": ["x", *(f"{{{name}}}" for name in factors)]},
        "factors": factors, "exclude": known.get("exclude", []), "cell": known.get("more_cells", []),
    }  # fmt: skip
    return history, design_of(document)


def runs_of(path: Path) -> list[Mapping[str, object]] | None:
    """The whole runs of a campaign's folder or of an index; None where it is neither."""
    from powerd_analytics.frame.figures import rows_of
    from powerd_analytics.frame.index import index_frame, is_index

    if (campaign := campaign_of(path)) is not None:
        history, design = campaign
        runs = [(design.item_of(key), result) for key, result in history.results().items()]
        return [
            {**item.cell.levels, "energy_j": result.energy_j, "time_s": result.time_s} for item, result in runs if item
        ]
    if is_index(path):
        return [row for row in rows_of(index_frame(path)) if row.get("kind") == "total"]
    return None
