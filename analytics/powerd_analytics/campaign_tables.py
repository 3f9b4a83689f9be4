"""The tables of a campaign: those that papers of the field print, pivots by any columns, gains, jobs and ranks.

`chosen_tables` makes those that are asked for. A pivot never merges what is different: columns in which the records of
one cell still differ are added to its rows. Its cells hold a value with both parts of its uncertainty, and its keys may
be None, which is why it is a dict of cells here and a frame when it leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING

from powerd_analytics.campaign import (
    BASIS,
    CONFIGURATION,
    RUNS,
    WHOLE,
    Factors,
    Length,
    averaged,
    of_a_batch,
    summed_devices,
    whole_trainings,
    with_factors,
    without_summands,
)
from powerd_analytics.export import Cell, Column, cell_text, table_frame
from powerd_analytics.records import (
    COLUMNS,
    VALUES,
    Figure,
    Record,
    column,
    dimension,
    figure_of,
    mean_figure,
    number_of,
    value_in,
    where,
    with_merits,
)
from powerd_analytics.runs.phases import is_number_cell
from powerd_core.errors import AnalysisError, ConfigError

if TYPE_CHECKING:
    import pandas as pd

CONVENTION = "GFLOPS/W (paper): forward and backward count the model's operations once each"
_U95 = "± U95: half of the 95 % interval, of means over runs k = 2"

Key = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class PivotRequest:
    """What lies along the rows, what along the columns, and the figure in the cells."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    value: str

    @staticmethod
    def parse(text: str) -> PivotRequest:
        """``ROWS[,ROWS]:COLUMNS[,COLUMNS]:VALUE``; COLUMNS may be empty. Raises `ConfigError`."""
        parts = text.split(":")
        if len(parts) != 3 or not parts[0] or not parts[2]:
            raise ConfigError(f"--pivot {text}: write ROWS:COLUMNS:VALUE, as in model,batch_size:gpus:j_per_batch")
        rows, columns = (tuple(n for n in part.split(",") if n.strip()) for part in parts[:2])
        return PivotRequest(rows, columns, parts[2])


def request_of(pivot: str | None, rows: str | None, columns: str | None, value: str | None) -> PivotRequest | None:
    """The pivot that is asked for in one option or in three. Raises `ConfigError`."""
    if rows is None and columns is None and value is None:
        return None if pivot is None else PivotRequest.parse(pivot)
    if pivot is not None or not rows or not value:
        raise ConfigError("give --pivot ROWS:COLUMNS:VALUE, or else --rows and --value; --columns may be left out")
    return PivotRequest.parse(f"{rows}:{columns or ''}:{value}")


def pair_of(gain: str | None) -> tuple[str, str] | None:
    """The two products of ``A,B``. Raises `ConfigError`."""
    names = [name.strip() for name in (gain or "").split(",")]
    if gain is not None and (len(names) != 2 or not all(names) or names[0] == names[1]):
        raise ConfigError(f"--gain {gain}: name two products, as in maxwell,pascal")
    return None if gain is None else (names[0], names[1])


@dataclass(frozen=True, slots=True)
class Choice:
    """What to make of a campaign."""

    names: tuple[str, ...] = ()
    """Tables by name; all that suit the output without."""
    conditions: tuple[str, ...] = ()
    """``COLUMN=VALUE`` that every row must fulfil."""
    pivot: PivotRequest | None = None
    averages: bool = False
    length: Length = field(default_factory=Length)
    gain: tuple[str, str] | None = None
    factors: Factors = field(default_factory=Factors)


def chosen_tables(records: Sequence[Record], choice: Choice) -> list[pd.DataFrame]:
    """The tables of a campaign that are asked for; all of them where none is.

    Raises `AnalysisError` where one cannot be made, saying why.
    """
    records = where(prepared(records, choice.length), choice.conditions)
    if choice.pivot is not None:
        pivot = make_pivot(records, choice.pivot)
        frames = [pivot_frame(pivot, averages=choice.averages)]
        if choice.gain is not None:
            by = next((n for n in ("device_name", "device") if n in pivot.column_names), None)
            if by is None:
                raise ConfigError("--gain needs device_name or device among the columns of the pivot")
            gain = gain_frame(pivot, by, choice.gain)
            if gain is None:
                raise AnalysisError(f"nothing was run on both {' and '.join(choice.gain)} in the same way")
            frames.append(gain)
        return frames
    frames, of_jobs = field_tables(records, choice.gain, choice.factors), job_tables(records)
    known = {frame.attrs["name"]: frame for frame in [*frames, *of_jobs]}
    # Of trainings on one machine they are there for those who ask.
    frames += of_jobs if are_over_machines(records) else []
    if missing := [name for name in choice.names if name not in known]:
        raise AnalysisError(f"no table {missing[0]!r} can be made of these runs: there is {', '.join(known)}")
    return [known[name] for name in choice.names] or frames


# -- pivots ------------------------------------------------------------------------------------------------------------

_APART = ("model", "phase", "batch_size", "gpus", "device_name", "device", "power_cap_w",
          *(n for n in CONFIGURATION if n not in ("kind", "provenance")), "clock_hz", "iterations", "run")  # fmt: skip
"""Columns in which the records of one cell must not differ, most telling first."""
_OF_A_BATCH = ("s_per_batch", "samples_per_s", "j_per_batch", "power_w", "gflops_per_w")
"""Figures in which runs with other numbers of batches are repeats."""
_NO_AXES = ("kind", "u95_j", "u_statistical_j", "u_systematic_j", "note", *VALUES)
_KINDS = ("gflops_basis", "provenance")
"""What differs in these has no average."""
_OF_PHASES = ("phase", "phase_path")
"""Phases contain each other: their mean means nothing."""


@dataclass(frozen=True, slots=True)
class Pivot:
    """The cells of a pivot; ``rows`` and ``columns`` are the keys along its sides, in order."""

    row_names: tuple[str, ...]
    """What lies along the rows; always with ``provenance`` at the end, unless that is among the columns."""
    column_names: tuple[str, ...]
    value: str
    rows: tuple[Key, ...]
    columns: tuple[Key, ...]
    cells: dict[tuple[Key, Key], Figure]
    notes: tuple[str, ...]

    def mean(self, rows: Sequence[Key], columns: Sequence[Key]) -> Figure | None:
        """Mean over cells, None unless all are there: means over different ones do not compare."""
        figures = [f for r in rows for c in columns if (f := self.cells.get((r, c))) is not None]
        is_whole = figures and len(figures) == len(rows) * len(columns)
        return mean_figure(figures, are_repeats=False) if is_whole else None


def make_pivot(records: Sequence[Record], request: PivotRequest) -> Pivot:
    """The pivot of a campaign's records.

    Columns in which the records of one cell still differ are added to the rows, with a note: a mean over batch sizes
    or devices would be a figure of nothing. Raises `AnalysisError` for unknown columns, or when nothing has the figure.
    """
    value = dimension(request.value, records)
    if value not in VALUES:
        raise AnalysisError(f"{value!r} is no figure for the cells of a pivot: choose one of {', '.join(VALUES)}")
    rows, columns = ([dimension(n, records) for n in names] for names in (request.rows, request.columns))
    for name in [*rows, *columns]:
        if name in _NO_AXES or (rows + columns).count(name) > 1:
            raise AnalysisError(f"{name!r} is a figure or named twice: it cannot lie along the side of a pivot")
    rows = [n for n in rows if n != "provenance"]
    axes = [*rows, *columns]
    of_kind = _of_kind(records, value, {*axes})
    if value in _OF_A_BATCH and "iterations" not in axes:
        of_kind = [of_a_batch(r) for r in of_kind]
    # A phase's own figure is over its own joules: the basis of totals is what may differ.
    basis = BASIS if value == "gflops_per_w" and all(r["kind"] == "total" for r in of_kind) else ()
    # A run without the figure is none of those that a cell is the mean of.
    means = averaged([r for r in of_kind if r[value] is not None], apart=(*(n for n in axes if n in COLUMNS), *basis))
    if not means:
        reasons = [str(r["note"]) for r in of_kind if r["note"]]
        raise AnalysisError(f"no run has {value}: {reasons[0] if reasons else 'its rows have no such figure'}")
    added = [n for n in basis if n not in axes and len({r[n] for r in means}) > 1]
    for name in dict.fromkeys(_APART):
        cells_of: dict[Key, set[Cell]] = {}
        for r in means if name not in axes else ():
            cells_of.setdefault(_key(r, [*axes, *added, "provenance"]), set()).add(r[name])
        added += [name] if any(len(values) > 1 for values in cells_of.values()) else []
    notes = [f"{', '.join(added)} added to the rows: figures that differ in it are not averaged"] if added else []
    repeats = sorted({int(number_of(r, RUNS) or 1) for r in means})
    if repeats != [1]:
        notes.append(f"mean of {' to '.join(map(str, sorted({repeats[0], repeats[-1]})))} runs a cell")
    row_names = (*rows, *added, *(("provenance",) if "provenance" not in columns else ()))
    cells = {(_key(r, row_names), _key(r, columns)): f for r in means if (f := figure_of(r, value)) is not None}
    along_rows, along_columns = _sorted([k for k, _ in cells]), _sorted([k for _, k in cells])
    return Pivot(row_names, tuple(columns), value, along_rows, along_columns, cells, tuple(notes))


def _of_kind(records: Sequence[Record], value: str, named: set[str]) -> list[Record]:
    """Phases where phases are asked for, whole recordings where nothing else has the figure, else totals."""
    kinds = ["phase"] if named & {"phase", "phase_path", "timing"} else ["total", "phase", "run"]
    with_value = {r["kind"] for r in records if r[value] is not None}
    chosen = next((kind for kind in kinds if kind in with_value), kinds[0])
    return [r for r in records if r["kind"] == chosen]


def _key(record: Record, names: Sequence[str]) -> Key:
    return tuple(value_in(record, name) for name in names)


def _sorted(keys: Sequence[Key]) -> tuple[Key, ...]:
    """Names in the order in which they came, numbers by size, nothing first."""
    unique = list(dict.fromkeys(keys))
    orders = [list(dict.fromkeys(values)) for values in zip(*unique, strict=True)]

    def rank(value: Cell, order: list[Cell]) -> tuple[int, float]:
        return (1, value) if is_number_cell(value) else (0 if value is None else 2, float(order.index(value)))

    return tuple(sorted(unique, key=lambda key: [rank(v, o) for v, o in zip(key, orders, strict=True)]))


def pivot_frame(
    pivot: Pivot, *, name: str = "pivot", title: str = "", averages: bool = False, value: Column | None = None
) -> pd.DataFrame:
    """The pivot as a table: a column with its uncertainty for each column key, averages at the sides if asked for."""
    value, phases = value or column(pivot.value), {*_OF_PHASES}
    columns = [column(n) if n in COLUMNS else Column(n) for n in pivot.row_names]
    # What lies in each column of figures: the keys that it is over, all of them for the average.
    over = [(_label(pivot.column_names, key) or value.heading, [key]) for key in pivot.columns]
    if averages and len(over) > 1 and not {*_KINDS, *phases} & {*pivot.column_names}:
        over.append(("average", list(pivot.columns)))
    for label, _ in over:
        of_key = value.name if label == value.heading else f"{value.name}[{label}]"
        columns.append(replace(value, name=of_key, heading=label))
        columns.append(Column(f"u95_{of_key}", "number", value.units, heading="± U95", is_uncertainty=True))
    lines: list[tuple[Key, list[Key]]] = [(row, [row]) for row in pivot.rows]
    if averages and "provenance" in pivot.row_names and not phases & {*pivot.row_names}:
        # What an average over rows must have in common.
        by_kind: dict[Key, list[Key]] = {}
        for row in pivot.rows:
            kind = tuple(v if n in _KINDS else None for n, v in zip(pivot.row_names, row, strict=True))
            by_kind.setdefault(kind, []).append(row)
        for kind, rows in by_kind.items():
            if len(rows) > 1:
                is_free = pivot.row_names[0] not in _KINDS
                lines.append((("average", *kind[1:]) if is_free else kind, rows))
                columns[0] = replace(columns[0], kind="text") if is_free else columns[0]
    table, bounds = [], []
    for r, (side, rows) in enumerate(lines):
        figures = [pivot.mean(rows, keys) for _, keys in over]
        table.append((*side, *(cell for f in figures for cell in ((f.value, f.u95) if f else (None, None)))))
        bounds += [(r, len(side) + 2 * k) for k, f in enumerate(figures) if f is not None and f.is_lower_bound]
    notes = [f"{_U95}; {CONVENTION}" if pivot.value == "gflops_per_w" else _U95, *pivot.notes]
    if averages and phases & {*pivot.row_names, *pivot.column_names}:
        notes.append("no averages over phases: some are inside others")
    units = f", {value.units}" if value.units else ""
    return table_frame(name, title or f"{value.heading} ({pivot.value}{units})", columns, table, notes, bounds)


def _label(names: Sequence[str], key: Key) -> str:
    texts = []
    for name, value in zip(names, key, strict=True):
        text = cell_text(name, value) if is_number_cell(value) else str(value)
        is_plain = name in ("model", "device", "device_name", "phase")
        texts.append(text if is_plain else f"{column(name).heading} {text}")
    return ", ".join(texts)


def gain_frame(pivot: Pivot, by: str, pair: tuple[str, str] | None = None) -> pd.DataFrame | None:
    """How many times the figure of one ``by`` (such as a device) is that of another, cell by cell.

    None unless there are exactly two, or ``pair`` (first, second) names two: then second over first. Different devices
    are different sensors: their uncertainties are independent. Raises `AnalysisError` for a name that is not there.
    """
    if by not in pivot.column_names:
        return None
    at = pivot.column_names.index(by)
    names = list(dict.fromkeys(str(k[at]) for k in pivot.columns))
    if pair is not None and (unknown := [n for n in pair if n not in names]):
        raise AnalysisError(f"no {by} {unknown[0]!r} to compare: there is {', '.join(names)}")
    if pair is None and len(names) != 2:
        return None
    first, second = pair or names
    cells: dict[tuple[Key, Key], Figure] = {}
    for row, key in product(pivot.rows, pivot.columns):
        a, b = pivot.cells.get((row, key)), pivot.cells.get((row, (*key[:at], second, *key[at + 1 :])))
        if str(key[at]) == first and a and b and not (a.is_lower_bound or b.is_lower_bound) and a.value and b.value:
            cells[row, (*key[:at], *key[at + 1 :])] = _ratio(b, a)
    if not cells:
        return None
    rows, columns = (tuple(dict.fromkeys(keys)) for keys in zip(*cells, strict=True))
    rest = (*pivot.column_names[:at], *pivot.column_names[at + 1 :])
    ratios = Pivot(pivot.row_names, rest, pivot.value, rows, columns, cells, ())
    title = f"Gain in {column(pivot.value).heading}: {second} over {first}"
    return pivot_frame(ratios, name="gain", title=title, value=Column("gain", "number", "1", heading="gain"))


def _ratio(b: Figure, a: Figure) -> Figure:
    ratio = b.value / a.value

    def part(of_b: float | None, of_a: float | None) -> float | None:
        return None if of_a is None or of_b is None else ratio * ((of_a / a.value) ** 2 + (of_b / b.value) ** 2) ** 0.5

    return Figure(ratio, part(b.u_statistical, a.u_statistical), part(b.u_systematic, a.u_systematic))


# -- the tables of the field -------------------------------------------------------------------------------------------

_ALWAYS = ("model", "device", "gpus", "batch_size")
_VARYING = ("host", "program", "device_name", "power_cap_w", "clock_hz", "attributes", "timing")
"""Shown only where they tell rows apart."""
_ORDER = ("model", "device_name", "device", "provenance", "host", "power_cap_w", "clock_hz", "gpus", "batch_size")


def prepared(records: Sequence[Record], length: Length) -> list[Record]:
    """The records scaled to whole trainings where their length is given, and several GPUs of a run added up."""
    scaled = whole_trainings(records, length) if length else list(records)
    return scaled + summed_devices(scaled)


def field_tables(
    records: Sequence[Record], gain: tuple[str, str] | None = None, factors: Factors | None = None
) -> list[pd.DataFrame]:
    """All tables of `prepared` records: time, energy, totals, GFLOPS/W with averages and gain, and all records for
    programs. Those for which nothing is known are left out."""
    factors = factors or Factors()
    parts = [r for r in records if r["kind"] not in WHOLE]
    means = with_factors(_in_order(averaged(parts)), factors)
    is_whole = any("s_per_training" in r for r in parts)
    # Runs that trained for as long, and so for other numbers of batches, are repeats in what a batch takes.
    batches = means if is_whole else _in_order(averaged(of_a_batch(r) for r in parts))
    # Of trainings over several machines seconds are the mean over the ranks, beside the fastest and the slowest.
    spread = ["s_per_batch_min", "s_per_batch_max"] if any(r["machines"] is not None for r in parts) else []
    time = ["s_per_batch", "u95_s_per_batch", *spread, "samples_per_s"]
    energy = ["j_per_batch", "u95_j_per_batch", "power_w"]
    if is_whole:
        time.append("s_per_training")
        energy += ["j_per_training", "u95_j_per_training", *factors.columns]
    totals = ["iterations", "time_s", "energy_j", "u95_j", *factors.columns, "power_w", "edp_js", "u95_edp_js",
              "samples_per_s", "gflops_per_w", "u95_gflops_per_w", "gflops_basis"]  # fmt: skip
    title = "Totals of the whole training" if is_whole else "Totals of what was recorded"
    of_totals = [r for r in means if r["kind"] == "total"]
    every = with_merits(with_factors(averaged(records), factors))
    names = list(dict.fromkeys([*COLUMNS, *(k for r in every for k in r)]))
    frames = [
        _long("time", "Time by phase", batches, time),
        _long("energy", "Energy by phase", batches, energy, factors.notes if is_whole else ()),
        _long("totals", title, of_totals, totals, factors.notes, phases=False),
        *_efficiency_frames(records, gain),
        _frame("records", "Records", names, every, {}, factors.notes),
    ]
    return [frame for frame in frames if len(frame)]


def _efficiency_frames(records: Sequence[Record], gain: tuple[str, str] | None) -> list[pd.DataFrame]:
    """GFLOPS/W by model and batch size, device and number of GPUs, with averages; and the gain between two devices."""
    totals = [r for r in records if r["kind"] == "total" and r["gflops_per_w"] is not None]
    # Without the single GPUs of those that are there added up.
    totals = without_summands(totals)
    if not totals:
        if gain is not None:
            raise AnalysisError(
                "no GFLOPS/W, so no gain: phases need the attributes batch_size and operations_per_sample"
            )
        return []
    named = [{**r, "device_name": r["device_name"] or r["device"]} for r in totals]
    pivot = make_pivot(named, PivotRequest(("model", "batch_size"), ("device_name", "gpus"), "gflops_per_w"))
    bases = dict.fromkeys(str(r["gflops_basis"]) for r in totals)
    title = f"GFLOPS/W, operations by the paper's convention over the joules of {' or '.join(bases)}"
    gained = gain_frame(pivot, "device_name", gain)
    return [pivot_frame(pivot, name="efficiency", title=title, averages=True), *([] if gained is None else [gained])]


def _long(
    name: str, title: str, records: Sequence[Record], figures: Sequence[str], notes: Sequence[str] = (), *,
    phases: bool = True,
) -> pd.DataFrame:  # fmt: skip
    """A table with one row a record: what it is of, the figures, how many runs it is the mean of, provenance, note."""
    varying = [n for n in _VARYING if len({r[n] for r in records if n != "timing" or r["kind"] == "phase"}) > 1]
    names = [*_ALWAYS, *varying, *(["phase_path" if _path_needed(records) else "phase"] if phases else [])]
    repeats = [RUNS] if any((number_of(r, RUNS) or 1) > 1 for r in records) else []
    names += [*figures, *repeats, "provenance", "is_lower_bound", "note"]
    is_of_time = "u95_s_per_batch" in names
    meaning = "± U95: expanded uncertainty, k = 2, by the spread of the phases of a kind" if is_of_time else _U95
    meaning += f"; {CONVENTION}" if "gflops_per_w" in names else ""
    return _frame(name, title, names, [{n: _cell(r, n) for n in names} for r in records], {}, (meaning, *notes))


def _cell(record: Record, name: str) -> Cell:
    if name in _OF_PHASES and record["kind"] == "total":
        return "all"
    if name.startswith("u95_") and name not in record:
        figure = figure_of(record, name.removeprefix("u95_"))
        return figure.u95 if figure else None
    return record[name]


def _path_needed(records: Sequence[Record]) -> bool:
    """Whether phases of one name at different places are among the rows."""
    paths: dict[Key, set[Cell]] = {}
    for r in records:
        if r["kind"] == "phase":
            paths.setdefault(tuple(r[n] for n in (*_ORDER, "attributes", "phase")), set()).add(r["phase_path"])
    return any(len(of_phase) > 1 for of_phase in paths.values())


def _in_order(records: Sequence[Record]) -> list[Record]:
    """By model, device, settings, GPUs and batch size; phases in the order of the runs, totals behind theirs."""
    orders = {n: list(dict.fromkeys(r[n] for r in records)) for n in (*_ORDER, "phase_path")}

    def rank(r: Record) -> list[float]:
        place = [orders[n].index(r[n]) if COLUMNS[n].kind == "text" else number_of(r, n) for n in _ORDER]
        last = float(r["kind"] == "total"), float(orders["phase_path"].index(r["phase_path"]))
        return [*(-1.0 if value is None else float(value) for value in place), *last]

    return sorted(records, key=rank)


# -- jobs and ranks ----------------------------------------------------------------------------------------------------

_JOBS = ("run", "machine", "host", "device", "provenance", "ranks", "energy_j", "devices_j", "residual_j",
         "is_lower_bound", "note")  # fmt: skip
_RANKS = ("run", "machine", "rank", "device", "provenance", "sharing", "time_s", "energy_j", "phases_j", "rest_j",
          "residual_j", "is_lower_bound", "note")  # fmt: skip


def job_tables(records: Sequence[Record]) -> list[pd.DataFrame]:
    """The tables ``jobs`` (machine by machine, the whole of each training behind its machines) and ``ranks``; none
    where no run has ranks."""
    jobs, ranks = ([r for r in records if r["kind"] == kind] for kind in ("job", "rank"))
    wholes = [r for r in jobs if r["machines"] is not None]
    order = {run_id: i for i, r in enumerate(wholes) for run_id in str(r["run_id"]).split("; ")}
    jobs.sort(key=lambda r: (order.get(str(r["run_id"]).split("; ", maxsplit=1)[0], -1), r["machines"] is not None))
    title = "Jobs: ranks = devices" + (", machine by machine" if wholes else "")
    frames = [
        _frame("jobs", title, _JOBS, jobs, {"energy_j": "ranks J"}),
        _frame("ranks", "Ranks", _RANKS, ranks, {"time_s": "busy s"}),
    ]
    return [frame for frame in frames if len(frame)]


def are_over_machines(records: Sequence[Record]) -> bool:
    """Whether any training was over several machines."""
    return any(r["kind"] == "job" and r["machines"] is not None for r in records)


def _frame(
    name: str, title: str, names: Sequence[str], records: Sequence[Record], headings: dict[str, str],
    notes: Sequence[str] = (),
) -> pd.DataFrame:  # fmt: skip
    columns = [column(n, heading=headings.get(n, "")) for n in names]
    return table_frame(name, title, columns, [[r.get(n) for n in names] for r in records], notes)
