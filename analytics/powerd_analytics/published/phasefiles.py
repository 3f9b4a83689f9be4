"""Published tables of phases: rows of one or several files joined, and what each phase took for a whole training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from powerd_analytics.published.tablefile import TableFile, read_table
from powerd_core.errors import AnalysisError
from powerd_core.text import printable

KEYS = ("device", "gpus", "model", "phase", "batch")
"""Columns that say which row it is: a file has every combination at most once."""
FIGURES = ("iterations", "s_per_batch", "j_per_batch", "s_per_training", "j_per_training")
"""Columns with figures, each optional."""
_WHOLE = ("gpus", "batch")
APART = 0.1
"""A training that differs by more than this share from its batches x iterations is worth a word: tables are rounded."""


class Key(NamedTuple):
    """Which phase of which configuration; phases without regard to case."""

    device: str
    gpus: int
    model: str
    phase: str
    batch: int


@dataclass(slots=True)
class PhaseFigures:
    """What the files say of one phase; where each figure and the first row stand, for messages."""

    values: dict[str, float] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    place: str = "the table"

    def per_training(self, unit: str) -> float | None:
        """Seconds (``s``) or joules (``j``) of the whole training: as given, else of a batch x iterations."""
        given, batch, iterations = (
            self.values.get(n) for n in (f"{unit}_per_training", f"{unit}_per_batch", FIGURES[0])
        )
        if given is not None:
            return given
        return batch * iterations if batch is not None and iterations is not None else None

    def lacks(self, unit: str) -> str:
        """What is not there for `per_training`."""
        return "no iterations" if f"{unit}_per_batch" in self.values else "none"

    def largest(self) -> tuple[float, str]:
        """The largest figure, and where it stands."""
        return max(
            ((v, f"{self.places.get(n, self.place)}, column {n}") for n, v in self.values.items()),
            default=(0.0, self.place),
        )

    def j_per_batch(self) -> float | None:
        """Joules of one batch on the measured card: as given, else of the training over iterations."""
        given, training, iterations = (self.values.get(n) for n in ("j_per_batch", "j_per_training", "iterations"))
        if given is not None:
            return given
        return training / iterations if training is not None and iterations is not None else None


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """Joined rows in the order in which the files give them, and what a reader should know of them."""

    rows: Mapping[Key, PhaseFigures]
    notes: tuple[str, ...]


def read_phases(paths: Sequence[Path], progress: Callable[[float, str], None] = lambda share, text: None) -> PhaseTable:
    """Read and join files by `KEYS`.

    A file without some of these columns may give ``iterations`` for every row that agrees in those it has (a table of
    iterations by model and batch). Raises `AnalysisError` for rows that say different things, and for files that
    together have no column of time or none of energy.
    """
    tables = [read_table(path, lambda share, text: progress(0.6 * share, text)) for path in paths]
    if all(map(_is_of_iterations, tables)):
        tables[0].require(*KEYS)
    rows: dict[Key, PhaseFigures] = {}
    for table in tables:
        if not _is_of_iterations(table):
            _add(rows, table)
    for table in tables:
        if _is_of_iterations(table):
            _add_iterations(rows, table)
    _check_columns(tables)
    return PhaseTable(rows, tuple(_notes(rows)))


def _is_of_iterations(table: TableFile) -> bool:
    figures = [name for name in FIGURES if name in table.columns]
    return figures == ["iterations"] and not all(key in table.columns for key in KEYS) and "model" in table.columns


def _check_columns(tables: Sequence[TableFile]) -> None:
    """The files must have a way to a training's time and to its energy, or every total would be empty."""
    have = {column for table in tables for column in table.columns}
    for unit, what in (("s", "time"), ("j", "energy")):
        if f"{unit}_per_training" in have or {f"{unit}_per_batch", "iterations"} <= have:
            continue
        names = ", ".join(table.name for table in tables)
        missing = "iterations" if f"{unit}_per_batch" in have else f"{unit}_per_batch"
        raise AnalysisError(
            f"{names}{', line 1' if len(tables) == 1 else ''}: no column {missing!r}: for the {what} of a training "
            f"give {unit}_per_training, or {unit}_per_batch and iterations; another file may have them"
        )


def _keys(table: TableFile, names: Sequence[str]) -> list[tuple[str | int, ...]]:
    columns: list[Sequence[str | int]] = []
    for name in names:
        if name in _WHOLE:
            numbers = table.numbers(name, positive=True, whole=True, full=True)
            columns.append([int(number) for number in numbers if number is not None])
        else:
            texts = table.texts(name)
            columns.append([text.casefold() for text in texts] if name == "phase" else texts)
    keys = list(zip(*columns, strict=True))
    first: dict[tuple[str | int, ...], int] = {}
    for row, key in enumerate(keys):
        if key in first:
            said = ", ".join(f"{name} {printable(str(part), limit=60)}" for name, part in zip(names, key, strict=True))
            raise table.fault(
                row, names[-1], f"a second row of {said}; the first is {table.line_word} {table.lines[first[key]]}"
            )
        first[key] = row
    return keys


def _figures(table: TableFile, name: str) -> list[float | None]:
    if name == "iterations":
        return table.numbers(name, positive=True, whole=True)
    return table.numbers(name)


def _add(rows: dict[Key, PhaseFigures], table: TableFile) -> None:
    table.require(*KEYS)
    keys = [Key(*key) for key in _keys(table, KEYS)]  # type: ignore[arg-type]
    for row, key in enumerate(keys):
        rows.setdefault(key, PhaseFigures(place=table.at(row)))
    for name in FIGURES:
        if name in table.columns:
            for row, value in enumerate(_figures(table, name)):
                if value is not None:
                    _put(rows[keys[row]], table, row, name, value)


def _add_iterations(rows: dict[Key, PhaseFigures], table: TableFile) -> None:
    names = [key for key in KEYS if key in table.columns]
    found = {key: row for row, key in enumerate(_keys(table, names))}
    values = _figures(table, "iterations")
    for key, figures in rows.items():
        row = found.get(tuple(getattr(key, name) for name in names))
        if row is not None and (value := values[row]) is not None:
            _put(figures, table, row, "iterations", value)


def _put(figures: PhaseFigures, table: TableFile, row: int, name: str, value: float) -> None:
    old = figures.values.setdefault(name, value)
    place = figures.places.setdefault(name, table.at(row))
    if old != value:
        raise table.fault(row, name, f"{value:.12g} here, {old:.12g} in {place} for the same phase")


def _notes(rows: Mapping[Key, PhaseFigures]) -> list[str]:
    notes = []
    for figures in rows.values():
        values, places = figures.values, figures.places
        notes += [
            f"{places[name]}, column {name}: 0 counts as 0; leave it empty if it was not measured"
            for name in FIGURES
            if values.get(name) == 0
        ]
        for unit in ("s", "j"):
            name = f"{unit}_per_training"
            given, batch, iterations = values.get(name), values.get(f"{unit}_per_batch"), values.get("iterations")
            if not given or batch is None or iterations is None or abs(batch * iterations - given) <= APART * given:
                continue
            notes.append(
                f"{places[name]}, column {name}: {given:.6g} is taken, but {unit}_per_batch x iterations is "
                f"{batch * iterations:.6g}"
            )
    return notes
