"""Tables of a campaign's cells and runs: what each took, by phase, how good it became, how much runs differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from statistics import fmean, stdev
from typing import Any

from powerd_analytics.campaigns.design import MODEL, Cell, Design, level_text
from powerd_analytics.campaigns.groups import CAP
from powerd_analytics.campaigns.journal import History, Result
from powerd_analytics.campaigns.results import (
    EPOCH,
    TESTBED,
    CellFigures,
    mean_of,
    mean_of_figures,
    mean_ratio,
    measured,
    run_notes,
    same_losses,
)
from powerd_analytics.export import Cell as TableCell
from powerd_analytics.export import Column, Table, make_table
from powerd_analytics.figures import Figure, column
from powerd_analytics.metrics import weighted_mean
from powerd_analytics.text import shortened
from powerd_core.lease import KNOB_OF_OPTION
from powerd_core.settings import UNITS
from powerd_core.text import printable

# -- cells -------------------------------------------------------------------------------------------------------------


def factor_columns(design: Design) -> list[Column]:
    found = []
    for name, levels in design.factors.items():
        is_number = all(isinstance(level, int | float) and not isinstance(level, bool) for level in levels)
        unit = UNITS.get(KNOB_OF_OPTION.get(name, ""), "1" if is_number else "")
        heading = {"power_cap_w": "cap W", "sm_clock_mhz": "SM MHz", "mem_clock_mhz": "memory MHz"}.get(name, "")
        own = column(name, heading)
        found.append(
            Column(name, "number" if is_number else "text", unit, heading=own.heading, missing="–", is_setting=True)
        )
    return found


def cells_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """One row a cell: its means with their U95, and what they are of the reference's, block by block."""
    per = "/sample" if any(f.is_per_sample for f in figures) else ""
    columns = [
        *factor_columns(design),
        Column("runs", "integer", "1", heading="n"),
        Column("time_s", "number", "s", heading=f"s{per}"),
        Column("u95_s", "number", "s", heading="± U95", is_uncertainty=True),
        Column("energy_j", "number", "J", heading=f"J{per}", sign="≥"),
        Column("u95_j", "number", "J", heading="± U95", is_uncertainty=True),
        *([] if design.reference else [Column("power_w", "number", "W", heading="W")]),
    ]
    if design.reference:
        columns += [
            Column("e_ratio", "number", "1", "joules over the reference's, block by block", "E"),
            Column("edp_ratio", "number", "1", "energy-delay product over the reference's", "EDP"),
            Column("u95_edp_ratio", "number", "1", heading="± U95", is_uncertainty=True),
        ]
    # For programs (`joules pick`); people have them in a table of their own.
    results = dict.fromkeys(name for f in figures for name in f.accuracy)
    columns += [Column(name, "number", is_hidden=True) for name in results]
    columns += [Column("provenance", is_hidden=True), Column("verdict"), Column("note")]
    by_id = {f.cell.id: f for f in figures}
    rows = []
    for cell in design.cells():
        f, why = by_id.get(cell.id), history.left.get(cell.id)
        if f is not None:
            rows.append({**cell.levels, **_row_of(f)})
        elif why is not None:
            text = f"no result: {why.reason}{f' ({shortened(why.text, 60)})' if why.text else ''}"
            rows.append({**cell.levels, "runs": 0, "note": text})
    notes = [f"E and EDP: of those at {reference_text(design)}, in the same block"] if design.reference else []
    notes += _quiet_verdicts(rows) + run_notes(design, history)
    return make_table("cells", f"Cells of {design.name}", columns, rows, notes)


def reference_text(design: Design) -> str:
    """The reference in few words."""
    return ", ".join(
        f"each model's own {name}" if isinstance(level, Mapping) else f"{name} {level_text(name, level)}"
        for name, level in design.reference.items()
    )


def accuracy_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """One row a cell: how good what was trained is, as `Meter.result` said it last, beside the joules."""
    names = list(dict.fromkeys(name for f in figures for name in f.accuracy))
    columns = [*factor_columns(design), Column("runs", "integer", "1", heading="n")]
    for name in names:
        columns.append(Column(name, "number", heading=name))
        columns.append(Column(f"u95_{name}", "number", heading="± U95", is_uncertainty=True))
    columns += [Column("average", "number", "1", "by the weights of the file")] if design.weights else []
    columns.append(Column("energy_j", "number", "J", heading="J", sign="≥"))
    rows: list[dict[str, TableCell]] = []
    for f in figures if names else ():
        row: dict[str, TableCell] = {**f.cell.levels, "runs": f.runs, "energy_j": f.energy_j.value}
        if design.weights and set(design.weights) <= set(f.accuracy):
            values = [f.accuracy[name].value for name in design.weights]
            row["average"] = weighted_mean(values, list(design.weights.values()))
        for name, mean in f.accuracy.items():
            row |= {name: mean.value, f"u95_{name}": mean.u95}
        rows.append(row)
    return make_table("accuracy", f"What {design.name} has trained", columns, rows, same_losses(design, history))


def _row_of(f: CellFigures) -> dict[str, TableCell]:
    row: dict[str, TableCell] = {
        "runs": f.runs, "time_s": f.time_s.value, "u95_s": f.time_s.u95, "energy_j": f.energy_j.value,
        "u95_j": f.energy_j.u95, "power_w": f.power_w, "provenance": f.provenance,
        "verdict": f.verdict or None, "note": f.note or None,
    }  # fmt: skip
    if f.ratios:
        edp = f.ratios["edp"]
        row |= {"e_ratio": f.ratios["e"].value, "edp_ratio": edp.value, "u95_edp_ratio": edp.u95}
    return row | {name: mean.value for name, mean in f.accuracy.items()}


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


def phases_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """One row a cell and phase: seconds and joules of a batch where the sizes are known, else of a run, and what they
    are off the reference's, block by block, as Castro et al. compare two cards. What is not resolvable says so."""
    runs = [m for m in measured(design, history) if m.result.phases or m.result.unresolved]
    has_batches = bool(runs) and all(m.result.samples and _batch(m.item.cell.levels) for m in runs)
    per = "/batch" if has_batches else ""
    columns = [
        *factor_columns(design), Column("phase"),
        Column("time_s", "number", "s", heading=f"s{per}"),
        Column("u95_s", "number", "s", heading="± U95", is_uncertainty=True),
        Column("energy_j", "number", "J", heading=f"J{per}", missing="n.r."),
        Column("u95_j", "number", "J", heading="± U95", is_uncertainty=True),
        *([Column("time_pct", "number", "%", heading="s Δ %"), Column("energy_pct", "number", "%", heading="J Δ %")]
          if design.reference else []),
        Column("note"),
    ]  # fmt: skip
    by_cell: dict[str, dict[int, Result]] = {}
    for m in runs:
        by_cell.setdefault(m.item.cell.id, {})[m.item.block] = m.result
    names = dict.fromkeys(name for m in runs for name in m.result.phases)
    names |= dict.fromkeys(name for m in runs for name in m.result.unresolved)
    rows: list[dict[str, TableCell]] = []
    for cell in design.cells():
        own, reference = by_cell.get(cell.id, {}), design.reference_of(cell)
        beside = by_cell.get(reference.id, {}) if reference is not None else {}
        batches = {id(r): _batches(r, cell.levels) if has_batches else 1.0 for r in own.values()}
        for phase in names:
            joules = [_phase_figure(r, phase).scaled(1 / batches[id(r)]) for r in own.values() if phase in r.phases]
            seconds = [s / batches[id(r)] for r in own.values() if (s := _phase_seconds(r, phase)) is not None]
            if not seconds:
                continue
            time = mean_of(seconds, design)
            row = dict(cell.levels) | {"phase": phase, "time_s": time.value, "u95_s": time.u95}
            reasons = dict.fromkeys(str(r.unresolved[phase][1]) for r in own.values() if phase in r.unresolved)
            if joules:
                energy = mean_of_figures(joules, design)
                row |= {"energy_j": energy.value, "u95_j": energy.u95}
                some = f"joules: mean of {len(joules)} of {len(seconds)} runs; in the others "
            else:
                some = ""
            note = f"{some}not resolvable: {', '.join(reasons)}" if reasons else None
            rows.append(row | {"note": note} | _off(own, beside, phase))
    return make_table("phases", f"Phases of {design.name}", columns, rows)


def _phase_figure(result: Result, phase: str) -> Figure:
    statistical, systematic, rectangle = result.phases_u.get(phase, (None, None, 0.0))
    return Figure(result.phases[phase][0], statistical, systematic, rectangle or 0.0)


def _phase_seconds(result: Result, phase: str) -> float | None:
    if phase in result.phases:
        return result.phases[phase][1]
    return float(result.unresolved[phase][0]) if phase in result.unresolved else None


def _off(own: Mapping[int, Result], beside: Mapping[int, Result], phase: str) -> dict[str, TableCell]:
    """Per cent that a phase takes more than the reference's, block by block."""
    blocks = [
        b for b in own if b in beside and min(*own[b].phases.get(phase, (0,)), *beside[b].phases.get(phase, (0,))) > 0
    ]  # fmt: skip
    if not blocks:
        return {}
    energy, time = (
        mean_ratio([own[b].phases[phase][i] / beside[b].phases[phase][i] for b in blocks]).value for i in (0, 1)
    )
    return {"energy_pct": 100 * (energy - 1), "time_pct": 100 * (time - 1)}


def _batch(levels: Mapping[str, TableCell]) -> float | None:
    batch = levels.get("batch_size", levels.get("batch"))
    return float(batch) if isinstance(batch, int | float) else None


def _batches(result: Result, levels: Mapping[str, TableCell]) -> float:
    return ceil((result.samples or 0.0) / (_batch(levels) or 1.0)) or 1.0


def spread_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """One row a cell: mean and standard deviation of its runs' seconds and joules, as Koszczal et al. draw them."""
    columns = [*factor_columns(design), Column("runs", "integer", "1", heading="n")]
    for name, unit in (("time", "s"), ("energy", "J")):
        columns += [
            Column(f"{name}_{unit.lower()}", "number", unit, heading=unit),
            Column(f"sd_{unit.lower()}", "number", unit, heading=f"sd {unit}"),
            Column(f"sd_{name}_pct", "number", "%", heading="sd %"),
        ]
    runs: dict[str, list[Result]] = {}
    for m in measured(design, history):
        runs.setdefault(m.item.cell.id, []).append(m.result)
    rows: list[dict[str, TableCell]] = []
    for cell in design.cells():
        if len(own := runs.get(cell.id, [])) > 1:
            row: dict[str, TableCell] = {**cell.levels, "runs": len(own)}
            for name, unit in (("time", "s"), ("energy", "j")):
                values = [float(getattr(r, f"{name}_{unit}")) for r in own]
                mean, sd = fmean(values), stdev(values)
                row |= {f"{name}_{unit}": mean, f"sd_{unit}": sd, f"sd_{name}_pct": 100 * sd / mean}
            rows.append(row)
    return make_table("spread", f"Spread of the runs of {design.name}", columns, rows)


def trainings_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """One row a run that trained to a target: what `joules optimise` reads as a trace."""
    runs = [m for m in measured(design, history) if EPOCH in m.result.accuracy]
    columns = [
        Column("job"), Column("batch_size", "number", "1", heading="batch"),
        Column(CAP, "number", "W", heading="cap W"), Column("epochs", "number", "1"),
        Column("energy_j", "number", "J", heading="J"), Column("time_s", "number", "s", heading="s"),
    ]  # fmt: skip
    every: list[tuple[bool, dict[str, TableCell]]] = []
    for m in runs:
        levels = m.item.cell.levels
        reference = design.reference_levels(levels) or levels
        is_default = _batch(levels) == _batch(reference)
        every.append((not is_default, {
            "job": str(levels.get(MODEL, design.name)), "batch_size": _batch(levels), CAP: levels.get(CAP),
            "epochs": m.result.accuracy[EPOCH], "energy_j": m.result.energy_j, "time_s": m.result.time_s,
        }))  # fmt: skip
    # The first row of a job has its default batch size.
    rows = [row for _, row in sorted(every, key=lambda pair: pair[0])]
    notes = [] if rows else ["no run says the epoch at its target: the training calls meter.result(epoch=..., ...)"]
    return make_table("trainings", f"Trainings of {design.name} to their targets", columns, rows, notes)


# -- operations and kernels --------------------------------------------------------------------------------------------

SGEMM = "sgemm"
"""The model whose cells are what the card can do: a product of two large matrices."""


def efficiency_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """One row a cell: operations a second and a joule, by both conventions, and the share of what a matrix product
    reaches on the same card at the same settings."""
    columns = [
        *factor_columns(design), Column("gflops", "number", "1e9/s", "executed", heading="GFLOPS"),
        Column("gflops_per_w", "number", "1e9/J", heading="GFLOPS/W (paper)"),
        Column("sgemm_pct", "number", "%", heading="of SGEMM %"),
        Column("gflops_per_w_executed", "number", "1e9/J", heading="GFLOPS/W (executed)"),
        Column("sgemm_executed_pct", "number", "%", heading="of SGEMM %"),
    ]  # fmt: skip
    runs: dict[str, list[Result]] = {}
    for m in measured(design, history):
        if m.result.operations:
            runs.setdefault(m.item.cell.id, []).append(m.result)
    cells = [cell for cell in design.cells() if cell.id in runs]
    best = {_settings(c.levels): _per_joule(runs[c.id]) for c in cells if c.levels.get(MODEL) == SGEMM}
    rows: list[dict[str, TableCell]] = []
    for cell in cells:
        paper, executed = _per_joule(runs[cell.id])
        of_paper, of_executed = best.get(_settings(cell.levels), (None, None))
        watts = sum(r.energy_j for r in runs[cell.id]) / sum(r.time_s for r in runs[cell.id])
        rows.append({
            **cell.levels, "gflops": executed and executed * watts, "gflops_per_w": paper,
            "gflops_per_w_executed": executed, "sgemm_pct": paper and of_paper and 100 * paper / of_paper,
            "sgemm_executed_pct": executed and of_executed and 100 * executed / of_executed,
        })  # fmt: skip
    notes = ["(paper): a multiply-add is one operation, and each pass counts alike; (executed): two, and all that runs"]
    return make_table("efficiency", f"Operations of {design.name}", columns, rows, notes if rows else ())


def _per_joule(runs: Sequence[Result]) -> tuple[float | None, float | None]:
    """1e9 operations a joule, by both conventions."""
    joules = sum(r.energy_j for r in runs)
    paper, executed = [r.operations for r in runs], [r.operations_executed for r in runs]
    return _share(paper, joules), _share(executed, joules)


def _share(operations: Sequence[float | None], joules: float) -> float | None:
    return sum(n or 0.0 for n in operations) / joules / 1e9 if all(operations) else None


def _settings(levels: Mapping[str, TableCell]) -> tuple[tuple[str, TableCell], ...]:
    return tuple((n, v) for n, v in sorted(levels.items()) if n not in (MODEL, "batch_size", "batch"))


def testbed_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """The machines and devices on which the runs were made, as table 1 of Krzywaniak et al."""
    runs = measured(design, history)
    headings = {"device_name": "device", "memory_gib": "GiB", "least_power_limit_w": "least W",
                "default_power_limit_w": "default W", "greatest_power_limit_w": "greatest W"}  # fmt: skip
    own = [name for name in TESTBED if any(name in m.result.testbed for m in runs)]
    columns = [replace(column(name, headings.get(name, "")), is_setting=False) for name in own]
    counts = Counter(tuple(m.result.testbed.get(name) for name in own) for m in runs if m.result.testbed)
    rows: list[dict[str, TableCell]] = [
        {**dict(zip(own, values, strict=True)), "runs": count} for values, count in counts.items()
    ]
    columns.append(Column("runs", "integer", "1", heading="runs"))
    return make_table("testbed", f"Test bed of {design.name}", columns, rows)


def kernels_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """Which cells ran the same kernels in ten iterations. Where these change, another algorithm explains the energy."""
    columns = [
        *factor_columns(design),
        Column("set", heading="kernels"),
        Column("kernels", "integer", "1", heading="n"),
        Column("first", heading="most often"),
    ]
    sets: dict[str, str] = {}
    rows: list[dict[str, TableCell]] = []
    for cell, of in kernels_of(design, history).items():
        own = sets.setdefault(str(of["digest"]), f"set {len(sets) + 1}")
        first = shortened(printable(str(of["first"])), _LONGEST)
        rows.append({**cell.levels, "set": own, "kernels": of["distinct"], "first": first})
    return make_table("kernels", f"Kernels of {design.name}", columns, rows)


_LONGEST = 28
"""Characters of a kernel's name."""


def kernels_of(design: Design, history: History) -> dict[Cell, Mapping[str, Any]]:
    """By cell, of its first run that says them."""
    cells = {cell.id: cell for cell in design.cells()}
    found: dict[Cell, Mapping[str, Any]] = {}
    for m in measured(design, history):
        if m.result.kernels:
            found.setdefault(cells[m.item.cell.id], m.result.kernels)
    return {cell: found[cell] for cell in cells.values() if cell in found}
