"""The tables that papers of the field print: time, energy, totals with EDP, and GFLOPS/W with averages and gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from powerd_analytics.campaigns.factors import Factors, with_factors
from powerd_analytics.campaigns.figures import figure_of
from powerd_analytics.campaigns.pivot import PivotRequest, make_pivot
from powerd_analytics.campaigns.pivotsheet import CONVENTION, gain_sheet, pivot_sheet
from powerd_analytics.campaigns.repeats import RUNS, WHOLE, averaged, of_a_batch
from powerd_analytics.campaigns.trainings import Length, summed_devices, whole_trainings
from powerd_analytics.exports.sheet import Sheet, sheet_column
from powerd_analytics.records.columns import COLUMNS, Cell, Record, number_of
from powerd_core.errors import AnalysisError

_ALWAYS = ("model", "device", "gpus", "batch_size")
_VARYING = ("host", "device_name", "power_cap_w", "clock_hz", "attributes", "timing")
"""Shown only where they tell rows apart."""
_ORDER = ("model", "device_name", "device", "provenance", "host", "power_cap_w", "clock_hz", "gpus", "batch_size")
ALL_PHASES = "all"
"""Stands in the column ``phase`` of totals."""


def prepared(records: Sequence[Record], length: Length) -> list[Record]:
    """The records scaled to whole trainings where their length is given, and several GPUs of a run added up."""
    scaled = whole_trainings(records, length) if length else list(records)
    return scaled + summed_devices(scaled)


def field_tables(
    records: Sequence[Record], gain: tuple[str, str] | None = None, factors: Factors | None = None
) -> list[Sheet]:
    """All tables of `prepared` records. Those for which nothing is known are left out."""
    factors = factors or Factors()
    parts = [r for r in records if r["kind"] not in WHOLE]
    found = with_factors(_sorted(averaged(parts)), factors)
    # Runs that trained for as long, and so for other numbers of batches, are repeats in what a batch takes.
    batches = found if _is_whole(parts) else _sorted(averaged(of_a_batch(r) for r in parts))
    sheets = [time_table(batches), energy_table(batches, factors), totals_table(found, factors)]
    sheets += efficiency_tables(records, gain)
    return [sheet for sheet in [*sheets, records_sheet(records, factors)] if sheet.rows]


def time_table(records: Sequence[Record]) -> Sheet:
    """Seconds a batch, samples a second and seconds of the whole training, by phase; of trainings over several machines
    seconds are the mean over the ranks, beside those of the fastest and the slowest."""
    spread = ["s_per_batch_min", "s_per_batch_max"] if any(r["machines"] is not None for r in records) else []
    names = ["s_per_batch", "u95_s_per_batch", *spread, "samples_per_s"]
    names += ["s_per_training"] if _is_whole(records) else []
    return _long("time", "Time by phase", records, names)


def energy_table(records: Sequence[Record], factors: Factors | None = None) -> Sheet:
    """Joules a batch, watts and joules of the whole training, by phase, with what these cost."""
    names = ["j_per_batch", "u95_j_per_batch", "power_w"]
    if not _is_whole(records):
        return _long("energy", "Energy by phase", records, names)
    factors = factors or Factors()
    names += ["j_per_training", "u95_j_per_training", *factors.columns]
    return _noted(_long("energy", "Energy by phase", records, names), factors)


def totals_table(records: Sequence[Record], factors: Factors | None = None) -> Sheet:
    """Time, energy and their product for each configuration: of the whole training where its length is given; with CO2
    and money where their ``factors`` are."""
    factors = factors or Factors()
    totals = [r for r in records if r["kind"] == "total"]
    title = "Totals of the whole training" if _is_whole(records) else "Totals of what was recorded"
    names = ["iterations", "time_s", "energy_j", "u95_j", *factors.columns, "power_w", "edp_js", "u95_edp_js"]
    names += ["samples_per_s", "gflops_per_w", "u95_gflops_per_w", "gflops_basis"]
    return _noted(_long("totals", title, totals, names, phases=False), factors)


def _noted(sheet: Sheet, factors: Factors) -> Sheet:
    return replace(sheet, notes=(*sheet.notes, *factors.notes))


def efficiency_tables(records: Sequence[Record], gain: tuple[str, str] | None = None) -> list[Sheet]:
    """GFLOPS/W by model and batch size, device and number of GPUs, with averages; and the gain between two devices."""
    totals = [r for r in _jobs(records) if r["kind"] == "total" and r["gflops_per_w"] is not None]
    if not totals:
        if gain is not None:
            raise AnalysisError(
                "no GFLOPS/W, so no gain: phases need the attributes batch_size and operations_per_sample"
            )
        return []
    named = [{**r, "device_name": r["device_name"] or r["device"]} for r in totals]
    by = "device_name"
    pivot = make_pivot(named, PivotRequest(("model", "batch_size"), (by, "gpus"), "gflops_per_w"))
    bases = list(dict.fromkeys(str(r["gflops_basis"]) for r in totals))
    title = f"GFLOPS/W, operations by the paper's convention over the joules of {' or '.join(bases)}"
    sheets = [pivot_sheet(pivot, name="efficiency", title=title, averages=True)]
    gained = gain_sheet(pivot, by, gain)
    return sheets if gained is None else [*sheets, gained]


def _jobs(records: Sequence[Record]) -> list[Record]:
    """Records without the single GPUs of those that are there added up."""
    whole = {(r["path"], r["run_id"], r["kind"], r["provenance"], d) for r in records for d in _summands(r)}
    return [r for r in records if (r["path"], r["run_id"], r["kind"], r["provenance"], r["device"]) not in whole]


def _summands(record: Record) -> list[str]:
    names = str(record["device"]).split("+")
    return names if len(names) > 1 else []


def records_sheet(records: Sequence[Record], factors: Factors | None = None) -> Sheet:
    """All averaged records with all columns, for programs."""
    factors = factors or Factors()
    found = with_factors(averaged(records), factors)
    names = list(dict.fromkeys([*COLUMNS, *(k for r in found for k in r)]))
    columns = tuple(sheet_column(n) for n in names)
    signed = [k for k, column in enumerate(columns) if column.sign]
    bounds = frozenset((i, k) for i, r in enumerate(found) if r["is_lower_bound"] is True for k in signed)
    rows = tuple(tuple(r.get(n) for n in names) for r in found)
    return Sheet("records", "Records", columns, rows, factors.notes, bounds)


def _is_whole(records: Sequence[Record]) -> bool:
    """Whether the records were scaled to whole trainings."""
    return any("s_per_training" in r for r in records)


def _long(name: str, title: str, records: Sequence[Record], figures: Sequence[str], *, phases: bool = True) -> Sheet:
    """A table with one row a record: what it is of, the figures, how many runs it is the mean of, provenance, note."""
    varying = [n for n in _VARYING if len({r[n] for r in records if n != "timing" or r["kind"] == "phase"}) > 1]
    paths = phases and _path_needed(records)
    names = [*_ALWAYS, *varying, *(["phase_path" if paths else "phase"] if phases else [])]
    repeats = any((number_of(r, RUNS) or 1) > 1 for r in records)
    names += [*figures, *([RUNS] if repeats else []), "provenance", "is_lower_bound", "note"]
    columns = tuple(sheet_column(n, heading="phase" if n == "phase_path" else "") for n in names)
    rows, bounds = [], set()
    for i, r in enumerate(records):
        rows.append(tuple(_cell(r, n) for n in names))
        if r["is_lower_bound"] is True:
            bounds |= {(i, k) for k, column in enumerate(columns) if column.sign}
    return Sheet(name, title, columns, tuple(rows), _meanings(names), frozenset(bounds))


def _meanings(names: Sequence[str]) -> tuple[str, ...]:
    """What a reader of the table alone could not know of its columns."""
    said = []
    if "u95_s_per_batch" in names:
        said.append("± U95: expanded uncertainty, k = 2, by the spread of the phases of a kind")
    elif any(n.startswith("u95_") for n in names):
        said.append("± U95: half of the 95 % interval, of means over runs k = 2")
    if "gflops_per_w" in names:
        said.append(CONVENTION)
    return ("; ".join(said),) if said else ()


def _cell(record: Record, name: str) -> Cell:
    if name in ("phase", "phase_path") and record["kind"] == "total":
        return ALL_PHASES
    if name.startswith("u95_") and name not in record:
        figure = figure_of(record, name.removeprefix("u95_"))
        return figure.u95 if figure else None
    return record[name]


def _path_needed(records: Sequence[Record]) -> bool:
    """Whether phases of one name at different places are among the rows."""
    places: dict[tuple[Cell, ...], set[Cell]] = {}
    for r in records:
        if r["kind"] == "phase":
            key = tuple(r[n] for n in (*_ORDER, "attributes", "phase"))
            places.setdefault(key, set()).add(r["phase_path"])
    return any(len(found) > 1 for found in places.values())


def _sorted(records: Sequence[Record]) -> list[Record]:
    """By model, device, settings, GPUs and batch size; phases in the order of the runs, totals behind theirs."""
    orders = {n: list(dict.fromkeys(r[n] for r in records)) for n in (*_ORDER, "phase_path")}

    def rank(r: Record) -> list[float]:
        place = []
        for n in _ORDER:
            value = number_of(r, n)
            place.append(value if value is not None else float(orders[n].index(r[n])) if n not in COLUMNS or
                         COLUMNS[n].kind == "text" else -1.0)  # fmt: skip
        return [*place, float(r["kind"] == "total"), float(orders["phase_path"].index(r["phase_path"]))]

    return sorted(records, key=rank)
