"""The tables of a campaign: its cells, the best of them, and the ranges in which a metric beats the reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, log, sqrt

import numpy as np

from powerd_analytics.campaigns.design import KNOBS, Cell, Design, level_text
from powerd_analytics.campaigns.journal import History, Result
from powerd_analytics.campaigns.results import (
    METRICS,
    CellFigures,
    Mean,
    cell_figures,
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
NAMES = ("cells", "accuracy", "minima", "ranges")
LEAST = {"e": "E", "t": "time", "edp": "EDP", "ed2p": "ED2P", "eds:2": "EDS k=2", "eds:1.5": "EDS k=1.5"}
_OF_MINIMA = ("e", "edp", "eds:2", "eds:1.5")


def campaign_tables(design: Design, history: History, names: Sequence[str] = ()) -> list[Table]:
    """The tables that are asked for, by default all that the campaign has."""
    figures = cell_figures(design, history)
    makers = {"cells": cells_table, "accuracy": accuracy_table, "minima": minima_table, "ranges": ranges_table}
    tables = [makers[name](design, history, figures) for name in names or NAMES]
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
    columns += [Column("verdict"), Column("note")]
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
        "u95_j": f.energy_j.u95, "power_w": f.power_w, "verdict": f.verdict or None, "note": f.note or None,
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
        """Joules and seconds of one cell over another's, by block."""
        beside = self.runs.get(b.id, {})
        return [
            (r.energy_j / beside[block].energy_j, r.time_s / beside[block].time_s)
            for block, r in self.runs.get(a.id, {}).items()
            if block in beside
        ]


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
    columns = [
        *others, Column("target", heading="least"), *(c for c in _factor_columns(design) if c.name in KNOBS),
        Column("power_w", "number", "W", heading="W"),
        Column("energy_j", "number", "J", heading="kJ" if is_thousands else "J", per=1e3 if is_thousands else 1.0),
        Column("energy_pct", "number", "%", heading="Δ %"), Column("time_s", "number", "s", heading="s"),
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
