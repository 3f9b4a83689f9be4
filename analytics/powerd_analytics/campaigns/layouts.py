"""The tables of a campaign: its cells, the best of them, and the ranges in which a metric beats the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, log, sqrt

import numpy as np

from powerd_analytics.campaigns.design import GPUS, KNOBS, Cell, Design, level_text
from powerd_analytics.campaigns.journal import History, Result
from powerd_analytics.campaigns.results import (
    METRICS,
    CellFigures,
    Mean,
    cell_figures,
    mean_ratio,
    measured,
    ratio,
    same_losses,
)
from powerd_analytics.energy.uncertainty import student
from powerd_analytics.export import Cell as TableCell
from powerd_analytics.export import Column, Table, make_table
from powerd_analytics.figures import column
from powerd_core.lease import KNOB_OF_OPTION
from powerd_core.settings import UNITS

TIE = 0.001
"""A setting is as good as the best where the metric may be this close to it: minima are flat."""
CAP = "power_cap_w"
FITTED_FROM = 5
"""So many caps give a curve."""
CORE, MEMORY = "sm_clock_mhz", "mem_clock_mhz"
LEAST = {"e": "E", "t": "time", "edp": "EDP", "ed2p": "ED2P", "eds:2": "EDS k=2", "eds:1.5": "EDS k=1.5"}
_OF_MINIMA = ("e", "edp", "eds:2", "eds:1.5")


def campaign_tables(design: Design, history: History, names: Sequence[str] = ()) -> list[Table]:
    """The tables that are asked for, by default all that the campaign has."""
    figures = cell_figures(design, history)
    tables = [_MAKERS[name](design, history, figures) for name in names or _MAKERS]
    return [table for table in tables if len(table) or table.name in names]


# -- cells -------------------------------------------------------------------------------------------------------------


def _factor_columns(design: Design) -> list[Column]:
    found = []
    for name, levels in design.factors.items():
        is_number = all(isinstance(level, int | float) and not isinstance(level, bool) for level in levels)
        unit = UNITS.get(KNOB_OF_OPTION.get(name, ""), "1" if is_number else "")
        heading = {"power_cap_w": "cap W", "sm_clock_mhz": "SM MHz", "mem_clock_mhz": "memory MHz"}.get(name, "")
        own = column(name, heading)
        found.append(Column(name, "number" if is_number else "text", unit, heading=own.heading, missing="–"))
    return found


def cells_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """One row a cell: its means with their U95, and what they are of the reference's, block by block."""
    per = "/sample" if any(f.is_per_sample for f in figures) else ""
    columns = [
        *_factor_columns(design),
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
            rows.append({**cell.levels, "runs": 0, "note": f"no result: {why.reason}"})
    kinds = sorted({f.provenance for f in figures} - {"measured"})
    notes = [f"joules are {' and '.join(kinds)}" for _ in kinds[:1]]
    if design.reference:
        what = ", ".join(f"{name} {level_text(name, level)}" for name, level in design.reference.items())
        notes.append(f"E and EDP: of those at {what}, in the same block")
    notes += _quiet_verdicts(rows)
    return make_table("cells", f"Cells of {design.name}", columns, rows, notes)


def accuracy_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """One row a cell: how good what was trained is, as `Meter.result` said it last, beside the joules."""
    names = list(dict.fromkeys(name for f in figures for name in f.accuracy))
    columns = [*_factor_columns(design), Column("runs", "integer", "1", heading="n")]
    for name in names:
        columns.append(Column(name, "number", heading=name))
        columns.append(Column(f"u95_{name}", "number", heading="± U95", is_uncertainty=True))
    columns.append(Column("energy_j", "number", "J", heading="J", sign="≥"))
    rows: list[dict[str, TableCell]] = []
    for f in figures if names else ():
        row: dict[str, TableCell] = {**f.cell.levels, "runs": f.runs, "energy_j": f.energy_j.value}
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


# -- groups: what is compared ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Cells that differ in nothing but knobs, and their runs by cell and block."""

    levels: Mapping[str, TableCell]
    """Those of the other factors."""
    cells: tuple[Cell, ...]
    reference: Cell | None
    runs: Mapping[str, Mapping[int, Result]]

    def off_reference(self, cell: Cell) -> tuple[float, float] | None:
        """Joules and seconds of a cell over the reference's: the mean over the blocks."""
        pairs = self.pairs(cell, self.reference) if self.reference is not None else []
        if not pairs:
            return None
        energy, time = np.exp(np.mean(np.log(pairs), axis=0))
        return float(energy), float(time)

    def pairs(self, a: Cell, b: Cell) -> list[tuple[float, float]]:
        """Joules and seconds of one cell over another's, a pair a block."""
        return list(self.pairs_by_block(a, b).values())

    def pairs_by_block(self, a: Cell, b: Cell) -> dict[int, tuple[float, float]]:
        """Joules and seconds of one cell over another's, by block."""
        beside = self.runs.get(b.id, {})
        return {
            block: (r.energy_j / beside[block].energy_j, r.time_s / beside[block].time_s)
            for block, r in self.runs.get(a.id, {}).items()
            if block in beside
        }


def groups_of(design: Design, history: History) -> list[Group]:
    """The groups that have runs."""
    runs: dict[str, dict[int, Result]] = {}
    for m in measured(design, history):
        runs.setdefault(m.item.cell.id, {})[m.item.block] = m.result
    groups: dict[tuple[tuple[str, TableCell], ...], list[Cell]] = {}
    for cell in design.cells():
        if cell.id in runs:
            groups.setdefault(tuple((n, v) for n, v in cell.levels.items() if n not in KNOBS), []).append(cell)
    found = []
    for levels, cells in groups.items():
        reference = design.reference_of(cells[0])
        is_inside = reference is not None and reference.id in {cell.id for cell in cells}
        found.append(Group(dict(levels), tuple(cells), reference if is_inside else None, runs))
    return found


@dataclass(frozen=True, slots=True)
class Best:
    """The best cell of a group by a metric, and those that cannot be told from it."""

    cell: Cell
    as_good: tuple[Cell, ...]


def best_of(group: Group, metric: str) -> Best:
    """By the means of the runs, each beside the reference in its block, or beside the first cell."""
    beside = group.reference or group.cells[0]
    means = {cell.id: _mean_log(metric, group.pairs(cell, beside))[0] for cell in group.cells}
    known = [cell for cell in group.cells if means[cell.id] < inf]
    best = min(known, key=lambda cell: means[cell.id])
    as_good = []
    for cell in known:
        mean, half = _mean_log(metric, group.pairs(cell, best))
        if cell is best or mean - half <= TIE:
            as_good.append(cell)
    return Best(best, tuple(as_good))


def _mean_log(metric: str, pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean of the logarithm of a metric, and half of its 95 % interval."""
    logs = [log(ratio(metric, e, t)) for e, t in pairs]
    if not logs:
        return inf, inf
    n = len(logs)
    half = float(student(n - 1.0)) * float(np.std(logs, ddof=1)) / sqrt(n) if n > 1 else inf
    return float(np.mean(logs)), half


def _numbers(cells: Iterable[Cell], knob: str) -> list[float]:
    levels = (cell.levels[knob] for cell in cells)
    return sorted({float(level) for level in levels if isinstance(level, int | float)})


def spans(cells: Iterable[Cell], among: Iterable[Cell], knob: str) -> str:
    """The levels of some cells as text; of neighbours among all the first and the last."""
    every, own = _numbers(among, knob), set(_numbers(cells, knob))
    runs = [list(run) for is_own, run in groupby(every, own.__contains__) if is_own]
    texts = [f"{run[0]:g} to {run[-1]:g}" if len(run) > 1 else f"{run[0]:g}" for run in runs]
    unit = UNITS.get(KNOB_OF_OPTION.get(knob, ""), "")
    return f"{', '.join(texts)} {unit}".strip() if texts else ""


def minima_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """For each group the reference and the best cells by energy, EDP and EDS, as Krzywaniak et al. print them: watts,
    joules and seconds, and what they are off the reference."""
    knobs = [name for name in design.factors if name in KNOBS]
    others = [c for c in _factor_columns(design) if c.name not in KNOBS]
    is_thousands = any(f.energy_j.value >= 1e5 for f in figures)
    per = "/sample" if any(f.is_per_sample for f in figures) else ""
    columns = [
        *others, Column("target", heading="least"), *(c for c in _factor_columns(design) if c.name in KNOBS),
        Column("power_w", "number", "W", heading="W"),
        Column("energy_j", "number", "J", heading=f"{'kJ' if is_thousands else 'J'}{per}",
               per=1e3 if is_thousands else 1.0),
        Column("energy_pct", "number", "%", heading="Δ %"), Column("time_s", "number", "s", heading=f"s{per}"),
        Column("time_pct", "number", "%", heading="Δ %"), Column("as_good", heading="as good"),
    ]  # fmt: skip
    by_id = {f.cell.id: f for f in figures}
    rows: list[dict[str, TableCell]] = []
    for group in groups_of(design, history) if knobs else ():
        if len(group.cells) < 2:
            continue
        if group.reference is not None:
            rows.append(dict(group.levels) | {"target": "reference"} | _minimum(group, group.reference, by_id, ()))
        for metric in _OF_MINIMA:
            if group.reference is None and metric.startswith("eds"):
                continue
            best = chosen(design, group, metric)
            row = dict(group.levels) | {"target": LEAST[metric]}
            rows.append(row | _minimum(group, best.cell, by_id, best.as_good, knobs))
    notes = ["Δ %: off the reference, block by block", "as good: settings that cannot be told from the least"]
    return make_table("minima", f"Best settings of {design.name}", columns, rows, notes if rows else ())


def chosen(design: Design, group: Group, metric: str) -> Best:
    """The best cell: read from a fitted curve where there are five caps or more and nothing else is turned, as the
    least of so many means is often not the least; else from the means."""
    knobs = [name for name in design.factors if name in KNOBS]
    if knobs == [CAP] and group.reference is not None and len(group.cells) >= FITTED_FROM:
        return _fitted(design, group, group.reference, metric)
    return best_of(group, metric)


def _fitted(design: Design, group: Group, reference: Cell, metric: str) -> Best:
    """By the curve through all caps of the design. Of caps that were not run only the set of the best can speak."""
    from powerd_analytics.campaigns.curve import Runs, fit

    own = {n: v for n, v in reference.levels.items() if n != CAP}
    by_cap = {float(c.levels[CAP]): c for c in design.cells() if own == {n: v for n, v in c.levels.items() if n != CAP}}
    runs = [
        (cap, r.energy_j, r.time_s, block)
        for cap, cell in by_cap.items()
        for block, r in group.runs.get(cell.id, {}).items()
    ]
    caps, joules, seconds, blocks = zip(*runs, strict=True)
    curve = fit(Runs(caps, joules, seconds, blocks), sorted(by_cap), float(reference.levels[CAP]))
    levels, ratios, _ = curve.values(metric)
    best = min(set(caps), key=lambda cap: ratios[levels == cap][0])
    return Best(by_cap[best], tuple(by_cap[cap] for cap in curve.best(metric).as_good))


def _minimum(
    group: Group, cell: Cell, by_id: Mapping[str, CellFigures], as_good: Sequence[Cell], knobs: Sequence[str] = ()
) -> dict[str, TableCell]:
    f = by_id[cell.id]
    row: dict[str, TableCell] = {
        **{n: v for n, v in cell.levels.items() if n in KNOBS},
        "power_w": f.power_w, "energy_j": f.energy_j.value, "time_s": f.time_s.value,
    }  # fmt: skip
    if f.ratios:
        row |= {"energy_pct": 100 * (f.ratios["e"].value - 1), "time_pct": 100 * (f.ratios["t"].value - 1)}
    row["as_good"] = "; ".join(spans(as_good, (*group.cells, *as_good), knob) for knob in knobs)
    return row


def ranges_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """For each group and metric the levels at which it is better than at the reference, and those at which that cannot
    be told. One knob only."""
    knobs = [name for name in design.factors if name in KNOBS]
    others = [c for c in _factor_columns(design) if c.name not in KNOBS]
    columns = [*others, Column("metric"), Column("better", heading="better"), Column("maybe", heading="cannot be told")]
    rows: list[dict[str, TableCell]] = []
    by_id = {f.cell.id: f for f in figures}
    for group in groups_of(design, history) if len(knobs) == 1 and design.reference else ():
        for metric in METRICS:
            ratios = {cell: by_id[cell.id].ratios.get(metric) for cell in group.cells if cell != group.reference}
            better = [cell for cell, m in ratios.items() if m is not None and _is_below(m)]
            maybe = [c for c, m in ratios.items() if m is not None and c not in better and m.value - (m.u95 or inf) < 1]
            texts = {"better": spans(better, group.cells, knobs[0]), "maybe": spans(maybe, group.cells, knobs[0])}
            rows.append(
                dict(group.levels) | {"metric": LEAST[metric]} | {n: text or "none" for n, text in texts.items()}
            )
    return make_table("ranges", f"Where {design.name} beats its reference", columns, rows)


def _is_below(mean: Mean) -> bool:
    return mean.value + (mean.u95 if mean.u95 is not None else inf) < 1


# -- several GPUs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scaled:
    """A number of GPUs beside the least number, and what a setting saves there."""

    gpus: int
    group: Group
    time_s: float
    """At the reference."""
    speed_up: Mean
    """At the reference, over the least number of GPUs."""
    speed_up_set: Mean
    """The same at `Scaling.at`."""
    best: Cell
    """Of the least energy."""
    energy: Mean
    """Of the best over the reference's."""
    time: Mean


@dataclass(frozen=True, slots=True)
class Scaling:
    """How trainings that differ in nothing but GPUs and knobs get faster, and what is saved."""

    levels: Mapping[str, TableCell]
    at: Cell
    """Of the least EDP on most GPUs."""
    rows: tuple[Scaled, ...]


def scalings(design: Design, history: History) -> list[Scaling]:
    """Of those groups that have a reference and two numbers of GPUs or more, runs compared block by block."""
    together: dict[tuple[tuple[str, TableCell], ...], list[Group]] = {}
    for group in groups_of(design, history):
        if group.reference is not None and isinstance(group.levels.get(GPUS), int):
            key = tuple((n, level) for n, level in group.levels.items() if n != GPUS)
            together.setdefault(key, []).append(group)
    found = []
    for levels, groups in together.items():
        if len(groups) > 1:
            groups.sort(key=lambda group: float(str(group.levels[GPUS])))
            found.append(_scaling(design, dict(levels), groups))
    return found


def _scaling(design: Design, levels: Mapping[str, TableCell], groups: Sequence[Group]) -> Scaling:
    at = chosen(design, groups[-1], "edp").cell
    set_to = {name: level for name, level in at.levels.items() if name in KNOBS}
    rows = []
    for group in groups:
        reference, least = group.reference, groups[0].reference
        if reference is None or least is None:
            continue
        best = chosen(design, group, "e").cell
        pairs = group.pairs(best, reference)
        set_here, set_least = (design.cell({**cell.levels, **set_to}) for cell in (reference, least))
        rows.append(
            Scaled(
                int(str(group.levels[GPUS])),
                group,
                float(np.mean([r.time_s for r in group.runs[reference.id].values()])),
                mean_ratio([time for _, time in group.pairs(least, reference)]),
                mean_ratio([time for _, time in group.pairs(set_least, set_here)]),
                best,
                mean_ratio([energy for energy, _ in pairs]),
                mean_ratio([time for _, time in pairs]),
            )
        )
    return Scaling(levels, at, tuple(rows))


def scaling_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """For each number of GPUs its speed-up and efficiency, at the reference and at one other setting, and the most
    energy that a setting saves, as Koszczal et al. compare them."""
    others = [c for c in _factor_columns(design) if c.name not in (*KNOBS, GPUS)]
    columns = [
        *others, Column(GPUS, "integer", "1", heading="GPUs"), Column("time_s", "number", "s", heading="s"),
        Column("speed_up", "number", "1", heading="speed-up"),
        Column("u95_speed_up", "number", "1", heading="± U95", is_uncertainty=True),
        Column("efficiency_pct", "number", "%", heading="efficiency %"),
        Column("speed_up_set", "number", "1", "speed-up at the setting that the note names", "speed-up, set"),
        *(c for c in _factor_columns(design) if c.name in KNOBS),
        Column("saving_pct", "number", "%", heading="saves %"),
        Column("u95_saving_pct", "number", "%", heading="± U95", is_uncertainty=True),
        Column("time_pct", "number", "%", heading="time Δ %"),
    ]  # fmt: skip
    rows: list[dict[str, TableCell]] = []
    notes = []
    for scaling in scalings(design, history):
        rows += [_scaled(row, scaling) for row in scaling.rows]
        notes.append(f"set: at {setting_text(scaling.at)}, the least EDP on {scaling.rows[-1].gpus} GPUs")
    notes += ["saves: the most energy that a setting saves against the reference on as many GPUs"] if rows else []
    return make_table("scaling", f"GPUs of {design.name}", columns, rows, list(dict.fromkeys(notes)))


def _scaled(row: Scaled, scaling: Scaling) -> dict[str, TableCell]:
    return {
        **scaling.levels, **{n: level for n, level in row.best.levels.items() if n in KNOBS},
        GPUS: row.gpus, "time_s": row.time_s, "speed_up": row.speed_up.value, "u95_speed_up": row.speed_up.u95,
        "efficiency_pct": 100 * row.speed_up.value * scaling.rows[0].gpus / row.gpus,
        "speed_up_set": row.speed_up_set.value, "time_pct": 100 * (row.time.value - 1),
        "saving_pct": 100 * (1 - row.energy.value),
        "u95_saving_pct": None if row.energy.u95 is None else 100 * row.energy.u95,
    }  # fmt: skip


def setting_text(cell: Cell) -> str:
    """The knobs of a cell."""
    return ", ".join(level_text(name, level) for name, level in cell.levels.items() if name in KNOBS)


# -- clocks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marginal:
    """Joules and seconds at a level of one knob over those at its reference level, all else being equal: the geometric
    mean over all else."""

    level: float
    energy: Mean
    time: Mean


def marginals(design: Design, groups: Sequence[Group], knob: str) -> list[Marginal]:
    """Over some groups, level by level, block by block; the reference level among them. Empty where the reference names
    no level of the knob or the knob has one level alone."""
    if knob not in design.reference:
        return []
    logs: dict[float, dict[int, list[tuple[float, float]]]] = {}
    for group in groups:
        for cell in group.cells:
            beside = design.cell({**cell.levels, knob: design.reference[knob]})
            for block, (energy, time) in group.pairs_by_block(cell, beside).items():
                by_block = logs.setdefault(float(cell.levels[knob]), {})
                by_block.setdefault(block, []).append((log(energy), log(time)))
    found = []
    for level, by_block in sorted(logs.items()):
        energies, times = zip(*(np.exp(np.mean(pairs, axis=0)) for pairs in by_block.values()), strict=True)
        found.append(Marginal(level, mean_ratio(energies), mean_ratio(times)))
    return found if len(found) > 1 else []


def marginals_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """What each clock does to speed, power and energy, as Tang et al. average them: the geometric mean over all other
    factors."""
    columns = [
        Column("knob"), Column("level_mhz", "number", "MHz", heading="MHz"),
        Column("speed_ratio", "number", "1", heading="speed"), Column("power_ratio", "number", "1", heading="power"),
        Column("e_ratio", "number", "1", heading="E"),
        Column("u95_e_ratio", "number", "1", heading="± U95", is_uncertainty=True),
    ]  # fmt: skip
    groups = groups_of(design, history)
    rows: list[dict[str, TableCell]] = [
        {
            "knob": name, "level_mhz": m.level, "speed_ratio": 1 / m.time.value,
            "power_ratio": m.energy.value / m.time.value, "e_ratio": m.energy.value, "u95_e_ratio": m.energy.u95,
        }
        for knob, name in ((CORE, "SM clock"), (MEMORY, "memory clock"))
        for m in marginals(design, groups, knob)
    ]  # fmt: skip
    notes = ["of those at the reference clock: the geometric mean over all other factors"] if rows else []
    return make_table("marginals", f"Clocks of {design.name}", columns, rows, notes)


def optimum_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """For each model the SM clock of the least energy and what it saves, as table III of Tang et al.: the geometric
    mean over all other factors."""
    columns = [
        Column("model"), Column(CORE, "number", "MHz", heading="SM MHz"),
        Column("saving_pct", "number", "%", heading="saves %"),
        Column("u95_saving_pct", "number", "%", heading="± U95", is_uncertainty=True),
        Column("time_pct", "number", "%", heading="time Δ %"),
    ]  # fmt: skip
    by_model: dict[TableCell, list[Group]] = {}
    for group in groups_of(design, history):
        by_model.setdefault(group.levels.get("model"), []).append(group)
    rows: list[dict[str, TableCell]] = []
    for model, groups in by_model.items():
        if levels := marginals(design, groups, CORE):
            best = min(levels, key=lambda m: m.energy.value)
            rows.append({
                "model": model, CORE: best.level, "saving_pct": 100 * (1 - best.energy.value),
                "u95_saving_pct": None if best.energy.u95 is None else 100 * best.energy.u95,
                "time_pct": 100 * (best.time.value - 1),
            })  # fmt: skip
    return make_table("optimum", f"Best SM clocks of {design.name}", columns, rows)


_MAKERS: dict[str, Callable[[Design, History, Sequence[CellFigures]], Table]] = {
    "cells": cells_table,
    "accuracy": accuracy_table,
    "minima": minima_table,
    "ranges": ranges_table,
    "scaling": scaling_table,
    "marginals": marginals_table,
    "optimum": optimum_table,
}
"""By name, in the order of the page."""
