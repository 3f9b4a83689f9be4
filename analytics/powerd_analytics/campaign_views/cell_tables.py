"""Tables of a campaign's cells and runs: what each took, by phase, how good it became, how much runs differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean, stdev
from typing import Any

from powerd_analytics.campaign_views.campaign_figures import (
    CAP,
    EPOCH,
    Campaign,
    RunFigures,
    figure_columns,
    run_notes,
    same_losses,
)
from powerd_analytics.campaign_views.groups import BATCH, batch_of
from powerd_analytics.campaigns.design import GPUS, MODEL, Cell, Design, level_text
from powerd_analytics.campaigns.journal import Result
from powerd_analytics.energy.metrics import weighted_mean
from powerd_analytics.frame.costs import Factors
from powerd_analytics.frame.figure import Figure, Record, figure_of, number_of, sum_of_figures
from powerd_analytics.frame.figures import ATTRIBUTE, COLUMNS, RESULT, column, frame_from, rows_of
from powerd_analytics.frame.means import mean_of_ratios
from powerd_analytics.output.export import Column, Table, make_table
from powerd_analytics.output.text import Cell as TableCell
from powerd_analytics.output.text import shorten
from powerd_analytics.views import pivots
from powerd_core.text import printable

TESTBED = (
    "host", "processor", "cores", "memory_gib", "device_name", "driver_version", "cuda_version", "torch_version",
    "least_power_limit_w", "default_power_limit_w", "greatest_power_limit_w", "clock_hz", "memory_clock_hz",
)  # fmt: skip
"""Columns of the frame that say on what a run was made."""
_OF_TESTBED = {
    "device_name": "device", "memory_gib": "GiB", "least_power_limit_w": "least W",
    "default_power_limit_w": "default W", "greatest_power_limit_w": "greatest W", "clock_hz": "SM MHz set",
    "memory_clock_hz": "memory MHz set",
}  # fmt: skip
"""Their headings, where they are not those of the frame."""
KNOB_OF_CLOCK = {"clock_hz": "sm_clock_mhz", "memory_clock_hz": "mem_clock_mhz"}

# -- cells -------------------------------------------------------------------------------------------------------------


def cells_table(campaign: Campaign) -> Table:
    """One row a cell: its means with their U95, and what they are of the reference's, block by block."""
    design, history = campaign.design, campaign.history
    per = "/sample" if campaign.is_per_sample else ""
    of_device = f" of {design.device}" if design.device else ""
    columns = [
        *campaign.factor_columns,
        Column("runs", "integer", "1", heading="n"),
        *figure_columns("time_s", "s", f"s{per}", u95="u95_s"),
        *figure_columns("energy_j", "J", f"J{per}{of_device}", u95="u95_j", sign="≥"),
    ]
    columns += figure_columns("one_card_j", "J", "J of one card") if design.analysis.instrument.moved_over else []
    if design.reference:
        columns += figure_columns("e_ratio", "1", "E/E ref", meaning="joules over the reference's, block by block")
        columns += figure_columns("edp_ratio", "1", "EDP/EDP ref", meaning="energy-delay product over the reference's")
    else:
        columns.append(Column("power_w", "number", "W", heading="W"))
    factors = _prices(design)
    columns += [column(name) for name in factors.columns]
    # For programs (`joules published pick`, pictures); people have them in tables of their own.
    known = {c.name for c in columns}
    of_frame = sorted(filter(_FOR_PROGRAMS.search, campaign.frame.columns), key=lambda name: name.startswith(RESULT))
    hidden = {name: name.removeprefix(RESULT) for name in of_frame}
    columns += [Column(name, "number", is_hidden=True) for name in hidden.values() if name not in known]
    columns += [column("is_lower_bound")] if campaign.frame["is_lower_bound"].any() else []
    columns += [Column("provenance", is_hidden=True), Column("verdict"), Column("note")]
    by_id = {
        row["cell"]: {new: row[name] for name, new in hidden.items()} | row | {"u95_s": row["u95_time_s"]}
        for row in rows_of(campaign.frame)
    }
    rows: list[dict[str, TableCell]] = []
    for cell in design.cells():
        why = history.left.get(cell.id)
        if cell.id in by_id:
            f = campaign.by_id[cell.id]
            gpu_s = float(str(cell.levels.get(GPUS, 1))) * f.time_s.value
            costs = factors.of(f.energy_j.value, f.energy_j.u95, gpu_s)
            rows.append({**by_id[cell.id], **campaign.levels(cell), **costs})
        elif why is not None:
            text = f"no result: {why.reason}{f' ({shorten(why.text, 60)})' if why.text else ''}"
            rows.append({**cell.levels, "runs": 0, "note": text})
    notes = [f"ref: at {reference_text(design)}, in the same block"] if design.reference else []
    notes += ["joules of all cards, by what one of each kind took"] if design.analysis.instrument.moved_over else []
    notes += [f"{factors.stated}; of {'a sample' if per else 'a run'}"] if factors else []
    notes += _quiet_verdicts(rows) + campaign.asked_notes + run_notes(design, history)
    return make_table("cells", f"Cells of {design.name}", columns, rows, notes)


def _prices(design: Design) -> Factors:
    of = design.analysis
    is_priced = of.price_per_kwh is not None or of.price_per_gpu_hour is not None
    return Factors(
        price_per_kwh=of.price_per_kwh,
        price_per_gpu_hour=of.price_per_gpu_hour,
        currency=of.currency if is_priced else None,
    )


_FOR_PROGRAMS = re.compile(rf"_ratio$|_within_pct$|^{RESULT}")


def reference_text(design: Design) -> str:
    """The reference in few words."""
    return ", ".join(
        f"each model's own {name}" if isinstance(level, Mapping) else f"{name} {level_text(name, level)}"
        for name, level in design.reference.items()
    )


def accuracy_table(campaign: Campaign) -> Table:
    """One row a cell: how good what was trained is, as `Meter.result` said it last, beside the joules."""
    design, by_cell = campaign.design, [(f, f.results) for f in campaign.cells]
    names = list(dict.fromkeys(name for _, results in by_cell for name in results))
    columns = [*campaign.factor_columns, Column("runs", "integer", "1", heading="n")]
    for name in names:
        columns += figure_columns(name, "", name)
    columns += [Column("average", "number", "1", "by the weights of the file")] if design.analysis.weights else []
    columns.append(Column("energy_j", "number", "J", heading="J", sign="≥"))
    rows: list[dict[str, TableCell]] = []
    for f, results in by_cell if names else ():
        row = campaign.levels(f.cell) | {name: f.row[name] for name in ("runs", "energy_j")}
        if design.analysis.weights and set(design.analysis.weights) <= set(results):
            values = [results[name].value for name in design.analysis.weights]
            row["average"] = weighted_mean(values, list(design.analysis.weights.values()))
        for name, mean in results.items():
            row |= {name: mean.value, f"u95_{name}": mean.u95}
        rows.append(row)
    return make_table("accuracy", f"What {design.name} has trained", columns, rows, same_losses(campaign))


def _quiet_verdicts(rows: Sequence[dict[str, TableCell]]) -> list[str]:
    """Where every setting was honoured, one line says so instead of a column."""
    verdicts = [str(row["verdict"]) for row in rows if row.get("verdict")]
    if verdicts and all(text.startswith("honoured") for text in verdicts):
        binding = sum("binding" in text for text in verdicts)
        for row in rows:
            row["verdict"] = None
        return [f"all settings were honoured, {binding} of {len(verdicts)} of them binding"]
    return []


# -- phases, spread, runs ----------------------------------------------------------------------------------------------


def phases_table(campaign: Campaign) -> Table:
    """One row a cell and phase: seconds and joules of a batch where the sizes are known, else of a run, and what they
    are off the reference's, block by block, as Castro et al. compare two cards. What is not resolvable says so."""
    design = campaign.design
    per = "/batch" if _has_batches(campaign) else ""
    of_card = (
        " of one card" if design.analysis.instrument.moved_over else f" of {design.device}" if design.device else ""
    )
    columns = [
        *campaign.factor_columns, Column("phase"),
        *figure_columns("time_s", "s", f"s{per}", u95="u95_s"),
        *figure_columns("energy_j", "J", f"J{per}{of_card}", u95="u95_j", missing="n.r."),
        Column("power_w", "number", "W", heading="W"),
    ]  # fmt: skip
    if per:
        columns += [
            Column("samples_per_s", "number", "1/s", is_hidden=True),
            Column("run_s", "number", "s", "of all batches of a run", is_hidden=True),
            Column("run_j", "number", "J", "of all batches of a run", is_hidden=True),
        ]
    for name, unit in (("time", "s"), ("energy", "J")) if design.reference else ():
        columns += figure_columns(f"{name}_pct", "%", f"{unit} Δ %")
    columns.append(Column("note"))
    rows = [campaign.levels(cell) | row for cell, row in phase_rows(campaign)]
    notes = ["CSV and JSON have samples/s, and seconds and joules of all batches of a run, too"] if per else []
    return make_table("phases", f"Phases of {design.name}", columns, rows, campaign.asked_notes + notes)


def _has_batches(campaign: Campaign) -> bool:
    """Whether all runs say of how many batches their phases are."""
    runs = [m for m in campaign.runs if _phases(m.result)]
    return bool(runs) and all(campaign.samples(m.result) and batch_of(m.item.cell.levels) for m in runs)


def phase_rows(campaign: Campaign) -> Iterator[tuple[Cell, dict[str, TableCell]]]:
    """By cell and phase the figures of the table of phases."""
    design, has_batches = campaign.design, _has_batches(campaign)
    by_cell = {id: {b: _phases(r) for b, r in own.items()} for id, own in campaign.results.items()}
    names = dict.fromkeys(name for m in campaign.runs for name in by_cell[m.item.cell.id][m.item.block])
    for cell in design.cells():
        results, reference = campaign.results.get(cell.id, {}), design.reference_of(cell)
        own, beside = by_cell.get(cell.id, {}), by_cell.get(reference.id, {}) if reference is not None else {}
        by = {b: 1 / _batches(campaign.samples(r), cell.levels) if has_batches else 1.0 for b, r in results.items()}
        for phase in names:
            at = {block: phases[phase] for block, phases in own.items() if phase in phases}
            if not at:
                continue
            time = campaign.mean_of_numbers([by[b] * one.time_s for b, one in at.items()])
            row: dict[str, TableCell] = {"phase": phase, "time_s": time.value, "u95_s": time.u95}
            if has_batches:
                row |= {"samples_per_s": (batch_of(cell.levels) or 0.0) / time.value} if time.value else {}
                row["run_s"] = campaign.mean_of_numbers([one.time_s for one in at.values()]).value
            joules = [one.energy.scaled(by[b]) for b, one in at.items() if one.energy is not None]
            whole = [one.energy for one in at.values() if one.energy is not None]
            reasons = dict.fromkeys(one.why for one in at.values() if one.energy is None)
            some = ""
            if joules:
                energy = campaign.mean(joules)
                row |= {"energy_j": energy.value, "u95_j": energy.u95 or None}
                row["power_w"] = energy.value / time.value if time.value else None
                row |= {"run_j": campaign.mean(whole).value} if has_batches else {}
                some = f"joules: mean of {len(joules)} of {len(at)} runs; in the others "
            row["note"] = f"{some}not resolvable: {', '.join(reasons)}" if reasons else None
            of_reference = {block: phases[phase] for block, phases in beside.items() if phase in phases}
            yield cell, row | _off(at, of_reference)


@dataclass(frozen=True, slots=True)
class _Phase:
    """All phases of one name in a run."""

    energy: Figure | None
    """Of all devices."""
    time_s: float
    why: str
    """There are no joules."""


def phase_names(result: Result) -> list[str]:
    """Of the phases whose joules are known."""
    return [name for name, phase in _phases(result).items() if phase.energy is not None]


def _phases(result: Result) -> dict[str, _Phase]:
    by_name: dict[str, list[Record]] = {}
    for row in result.rows:
        if row["kind"] == "phase":
            by_name.setdefault(str(row["phase"]), []).append(row)
    found = {}
    for name, rows in by_name.items():
        first = rows[0].get("device")
        counts = [number_of(row, "iterations") or 0.0 for row in rows]
        seconds = [n * (number_of(row, "s_per_batch") or 0.0) for n, row in zip(counts, rows, strict=True)]
        figures = [(figure_of(row, "j_per_batch"), n) for n, row in zip(counts, rows, strict=True)]
        whole = [figure.scaled(n) for figure, n in figures if figure is not None]
        is_known = len(whole) == len(rows)
        why = next((str(row.get("note", "")) for row in rows if row.get("j_per_batch") is None), "")
        found[name] = _Phase(
            sum_of_figures(whole, [str(row.get("device")) for row in rows]) if is_known else None,
            sum(s for s, row in zip(seconds, rows, strict=True) if row.get("device") == first),
            why.removeprefix("not resolvable: "),
        )
    return found


def _off(own: Mapping[int, _Phase], beside: Mapping[int, _Phase]) -> dict[str, TableCell]:
    """Per cent that a phase takes more than the reference's, block by block."""
    pairs = [(one, beside[block]) for block, one in own.items() if block in beside]
    joules = [(a.energy.value, b.energy.value) for a, b in pairs if a.energy is not None and b.energy is not None]
    seconds = [(a.time_s, b.time_s) for a, b in pairs if a.energy is not None and b.energy is not None]
    if not joules or min(x for pair in (*joules, *seconds) for x in pair) <= 0:
        return {}
    row: dict[str, TableCell] = {}
    for name, values in (("energy", joules), ("time", seconds)):
        off = mean_of_ratios([a / b for a, b in values]).shifted(-1.0).scaled(100.0)
        row |= {f"{name}_pct": off.value, f"u95_{name}_pct": off.u95}
    return row


def _batches(samples: float | None, levels: Mapping[str, TableCell]) -> float:
    return ceil((samples or 0.0) / (batch_of(levels) or 1.0)) or 1.0


def spread_table(campaign: Campaign) -> Table:
    """One row a cell: mean and standard deviation of its runs' seconds and joules, as Koszczal et al. draw them."""
    columns = [*campaign.factor_columns, Column("runs", "integer", "1", heading="n")]
    for name, unit in (("time", "s"), ("energy", "J")):
        columns += [
            Column(f"{name}_{unit.lower()}", "number", unit, heading=unit),
            Column(f"sd_{unit.lower()}", "number", unit, heading=f"sd {unit}"),
            Column(f"sd_{name}_pct", "number", "%", heading="sd %"),
        ]
    rows: list[dict[str, TableCell]] = []
    for f in campaign.cells:
        runs = campaign.run_figures[f.cell.id].values()
        if len(runs) < 2:
            continue
        row: dict[str, TableCell] = {**campaign.levels(f.cell), "runs": len(runs)}
        for name, unit, values in (
            ("time", "s", [r.result.time_s for r in runs]), ("energy", "j", [r.whole_j for r in runs]),
        ):  # fmt: skip
            mean, sd = fmean(values), stdev(values)
            row |= {f"{name}_{unit}": mean, f"sd_{unit}": sd, f"sd_{name}_pct": 100 * sd / mean}
        rows.append(row)
    return make_table("spread", f"Spread of the runs of {campaign.design.name}", columns, rows)


def trainings_table(campaign: Campaign) -> Table:
    """One row a run that trained to a target: what `joules optimise` reads as a trace."""
    design = campaign.design
    runs = [m for m in campaign.runs if EPOCH in m.result.accuracy and m.item.cell.id in campaign.run_figures]
    columns = [
        Column("job"), Column("batch_size", "number", "1", heading="batch"),
        Column(CAP, "number", "W", heading="cap W"), Column("epochs", "number", "1"),
        Column("energy_j", "number", "J", heading="J"), Column("time_s", "number", "s", heading="s"),
    ]  # fmt: skip
    every: list[tuple[bool, dict[str, TableCell]]] = []
    for m in runs:
        levels, taken = campaign.levels(m.item.cell), campaign.run_figures[m.item.cell.id].get(m.item.block)
        joules = None if taken is None else taken.whole_j
        reference = design.reference_levels(m.item.cell.levels) or levels
        is_default = batch_of(levels) == batch_of(reference)
        every.append((not is_default, {
            "job": str(levels.get(MODEL, design.name)), "batch_size": batch_of(levels), CAP: levels.get(CAP),
            "epochs": m.result.accuracy[EPOCH], "energy_j": joules, "time_s": m.result.time_s,
        }))  # fmt: skip
    # The first row of a job has its default batch size.
    rows = [row for _, row in sorted(every, key=lambda pair: pair[0])]
    notes = [] if rows else ["no run says the epoch at its target: the training calls meter.result(epoch=..., ...)"]
    return make_table("trainings", f"Trainings of {design.name} to their targets", columns, rows, notes)


# -- operations and kernels --------------------------------------------------------------------------------------------

SGEMM = "sgemm"
"""The model whose cells are what the card can do: a product of two large matrices."""


def efficiency_table(campaign: Campaign) -> Table:
    """One row a cell: operations a second and a joule, by both conventions, and the share of what a matrix product
    reaches on the same card at the same settings."""
    columns = [
        *campaign.factor_columns, Column("gflops", "number", "1e9/s", "executed", heading="GFLOPS"),
        Column("gflops_per_w", "number", "1e9/J", heading="GFLOPS/W (paper)"),
        Column("sgemm_pct", "number", "%", heading="of SGEMM %"),
        Column("gflops_per_w_executed", "number", "1e9/J", heading="GFLOPS/W (executed)"),
        Column("sgemm_executed_pct", "number", "%", heading="of SGEMM %"),
    ]  # fmt: skip
    runs = {id: list(own.values()) for id, own in campaign.run_figures.items()}
    cells = [f for f in campaign.cells if any(_operations(r.result)[0] for r in runs[f.cell.id])]
    figures = {f.cell.id: _per_joule(runs[f.cell.id]) for f in cells}
    best = {_settings(f.cell.levels): figures[f.cell.id] for f in cells if f.cell.levels.get(MODEL) == SGEMM}
    rows: list[dict[str, TableCell]] = []
    for f in cells:
        paper, executed = figures[f.cell.id]
        of_paper, of_executed = best.get(_settings(f.cell.levels), (None, None))
        rows.append({
            **campaign.levels(f.cell), "gflops": executed and executed * f.power_w, "gflops_per_w": paper,
            "gflops_per_w_executed": executed, "sgemm_pct": paper and of_paper and 100 * paper / of_paper,
            "sgemm_executed_pct": executed and of_executed and 100 * executed / of_executed,
        })  # fmt: skip
    notes = ["(paper): a multiply-add is one operation, and each pass counts alike; (executed): two, and all that runs"]
    notes += ["GFLOPS and W are those of all GPUs"] if any(f.cell.levels.get(GPUS, 1) != 1 for f in cells) else []
    return make_table("efficiency", f"Operations of {campaign.design.name}", columns, rows, notes if rows else ())


_KIND = f"{ATTRIBUTE}cards"
_PARTS = ("statistical", "systematic")


def averages_table(campaign: Campaign) -> Table:
    """GFLOPS/W (paper) by model and batch size along the rows and by cards along the columns, with the averages of
    rows, of columns and of all, as Castro et al. print them. An average is there only where all of its cells are."""
    pivot, title = _efficiencies(campaign), f"GFLOPS/W of {campaign.design.name}, with averages"
    return (
        pivots.pivot_table(pivot, name="averages", title=title, averages=True) if pivot else _without_rows("averages")
    )


def gain_table(campaign: Campaign) -> Table:
    """How many times the GFLOPS/W of one kind of card are those of another, cell by cell, with averages. Two kinds
    only; the second over the first, or over the reference."""
    moved_over, pivot = campaign.design.analysis.instrument.moved_over, _efficiencies(campaign)
    kinds = [str(kind) for kind in campaign.design.factors.get(moved_over, ())]
    if pivot is None or len(kinds) != 2:
        return _without_rows("gain")
    first = str(campaign.design.reference.get(moved_over, kinds[0]))
    second = next(kind for kind in kinds if kind != first)
    table = pivots.gain_table(pivot, _KIND, (first, second), averages=True)
    return table or _without_rows("gain")


def _without_rows(name: str) -> Table:
    return make_table(name, "", [Column("note")], [])


def _efficiencies(campaign: Campaign) -> pivots.Pivot | None:
    """None without operations. A machine with cards of several kinds has a cell for each of them, and is one here."""
    factors, moved_over = campaign.design.factors, campaign.design.analysis.instrument.moved_over
    rows: dict[tuple[object, ...], Record] = {}
    for f in campaign.cells:
        paper, _ = _per_joule(list(campaign.run_figures[f.cell.id].values()))
        cards = campaign.cards(f.cell)
        kind = " + ".join(f"{n} {name}" for name, n in cards.items()) if len(cards) > 1 else "".join(cards)
        if paper:
            known = {n: v for n, v in f.row.items() if n in COLUMNS or n.startswith(ATTRIBUTE)}
            by = paper / f.energy_j.value
            unsure = {f"u_{part}_gflops_per_w": by * (number_of(f.row, f"u_{part}_j") or 0.0) for part in _PARTS}
            own: Record = {"gflops_per_w": paper, "gflops_basis": "all phases", _KIND: kind or None}
            rows.setdefault((*campaign.machine(f.cell).items(), kind), known | unsure | own)
    if not rows:
        return None
    along = [*([_KIND] if moved_over else []), *([GPUS] if GPUS in factors else [])]
    side = tuple(name for name in (MODEL, *BATCH) if name in factors) or (MODEL,)
    request = pivots.PivotRequest(side, tuple(name.removeprefix(ATTRIBUTE) for name in along), "gflops_per_w")
    return pivots.make_pivot(frame_from(rows.values()), request, (f"{ATTRIBUTE}{moved_over}",))


def _operations(result: Result) -> tuple[float | None, float | None]:
    """Of forward and backward, by both conventions: a multiply-add is one, and each pass counts alike (Castro et al.);
    or two, and all that runs."""
    return result.operations("operations_per_sample", 2), result.operations("operations_executed_per_sample", 1)


def _per_joule(runs: Sequence[RunFigures]) -> tuple[float | None, float | None]:
    """1e9 operations a joule of all cards, by both conventions."""
    joules = sum(r.whole_j for r in runs)
    paper, executed = zip(*(_operations(r.result) for r in runs), strict=True)
    return _share(paper, joules), _share(executed, joules)


def _share(operations: Sequence[float | None], joules: float) -> float | None:
    return sum(n or 0.0 for n in operations) / joules / 1e9 if all(operations) else None


def _settings(levels: Mapping[str, TableCell]) -> tuple[tuple[str, TableCell], ...]:
    return tuple((n, v) for n, v in sorted(levels.items()) if n not in (MODEL, *BATCH))


def testbed_table(campaign: Campaign) -> Table:
    """The machines and devices on which the runs were made, as table 1 of Krzywaniak et al.; with the clocks that were
    set, where these are no factor of the campaign."""
    names = [name for name in TESTBED if KNOB_OF_CLOCK.get(name) not in campaign.design.factors]
    beds = (bed for m in campaign.runs for bed in {tuple(map(row.get, names)) for row in m.result.wholes})
    counts = Counter(bed for bed in beds if any(cell is not None for cell in bed))
    rows: list[dict[str, TableCell]] = [dict(zip(names, bed, strict=True)) | {"runs": n} for bed, n in counts.items()]
    shown = [name for name in names if any(row[name] is not None for row in rows)]
    columns = [replace(column(name, _OF_TESTBED.get(name, "")), is_setting=False) for name in shown]
    columns.append(Column("runs", "integer", "1", heading="runs"))
    return make_table("testbed", f"Test bed of {campaign.design.name}", columns, rows)


def kernels_table(campaign: Campaign) -> Table:
    """Which cells ran the same kernels in ten iterations. Where these change, another algorithm explains the energy."""
    columns = [
        *campaign.factor_columns,
        Column("set", heading="kernels"),
        Column("kernels", "integer", "1", heading="n"),
        Column("first", heading="most often"),
    ]
    sets: dict[str, str] = {}
    rows: list[dict[str, TableCell]] = []
    for cell, of in kernels_of(campaign).items():
        own = sets.setdefault(str(of["digest"]), f"set {len(sets) + 1}")
        first = shorten(printable(str(of["first"])), _LONGEST)
        rows.append({**campaign.levels(cell), "set": own, "kernels": of["distinct"], "first": first})
    return make_table("kernels", f"Kernels of {campaign.design.name}", columns, rows)


_LONGEST = 28
"""Characters of a kernel's name."""


def kernels_of(campaign: Campaign) -> dict[Cell, Mapping[str, Any]]:
    """By cell, of its first run that says them."""
    found: dict[Cell, Mapping[str, Any]] = {}
    for m in campaign.runs:
        if m.result.kernels:
            found.setdefault(m.item.cell, m.result.kernels)
    return {cell: found[cell] for cell in campaign.design.cells() if cell in found}
