"""What is compared in a campaign: groups of cells that differ in nothing but knobs, the best of them, how they scale
with the number of GPUs, and what one knob does, all else being equal. Runs are compared block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, log, sqrt
from typing import Any

import numpy as np

from powerd_analytics.campaigns.design import GPUS, KNOBS, Cell, Design, level_text
from powerd_analytics.campaigns.journal import History, Result
from powerd_analytics.campaigns.results import Mean, mean_ratio, measured, ratio
from powerd_analytics.energy.uncertainty import student
from powerd_analytics.export import Cell as TableCell
from powerd_core.lease import KNOB_OF_OPTION
from powerd_core.settings import UNITS

TIE = 0.001
"""A setting is as good as the best where the metric may be this close to it: minima are flat."""
CAP = "power_cap_w"
FITTED_FROM = 5
"""So many caps give a curve."""
CORE, MEMORY = "sm_clock_mhz", "mem_clock_mhz"


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
        if group.reference is not None and len(group.cells) > 1 and isinstance(group.levels.get(GPUS), int):
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
    blocks: Mapping[int, tuple[float, float]]
    """The same ratios of energy and time by block."""


def marginals(design: Design, groups: Sequence[Group], knob: str) -> list[Marginal]:
    """Over some groups, level by level, block by block; the reference level among them. Empty where the reference names
    no level of the knob or the knob has one level alone."""
    if knob not in design.reference:
        return []
    logs: dict[float, dict[int, list[tuple[float, float]]]] = {}
    for group in groups:
        for cell in group.cells:
            reference = design.reference_levels(cell.levels)
            if reference is None:
                continue
            beside = design.cell({**cell.levels, knob: reference[knob]})
            for block, (energy, time) in group.pairs_by_block(cell, beside).items():
                by_block = logs.setdefault(float(cell.levels[knob]), {})
                by_block.setdefault(block, []).append((log(energy), log(time)))
    found = []
    for level, by_block in sorted(logs.items()):
        blocks = {}
        for block, pairs in by_block.items():
            energy, time = np.exp(np.mean(pairs, axis=0))
            blocks[block] = float(energy), float(time)
        energies, times = zip(*blocks.values(), strict=True)
        found.append(Marginal(level, mean_ratio(energies), mean_ratio(times), blocks))
    return found if len(found) > 1 else []


_KNEES, _VOLTAGES = 120, np.geomspace(0.1, 8.0, 40)
_FITTED_FROM, _BETTER = 5, 20.0
"""A knee takes so many levels, and must fit so many times better than a straight line."""


def knee(levels: Sequence[Marginal]) -> Mean | None:
    """The clock above which power rises faster than in proportion, as there the voltage leaves its floor.

    Power over the clock x is fitted as ``a + b x V(x)^2`` with ``V(x) = 1 + kv max(0, x - knee)^2``, block by block
    (`powerd_core.gpu_physics`). None where a straight line does as well, or the knee is at the least level.
    """
    if len(levels) < _FITTED_FROM:
        return None
    x = np.array([m.level for m in levels]) / levels[-1].level
    blocks = [block for block in levels[0].blocks if all(block in m.blocks for m in levels)]
    found = [_knee(x, np.array([e / t for e, t in (m.blocks[block] for m in levels)])) for block in blocks]
    knees = [share for share in found if share is not None]
    if not knees or len(knees) < len(blocks):
        return None
    mean = mean_ratio(knees)
    scale = levels[-1].level
    return Mean(scale * mean.value, None if mean.u95 is None else scale * mean.u95)


def _knee(x: Any, power: Any) -> float | None:
    """As a share of the highest clock."""
    knees = np.linspace(x[0], x[-1], _KNEES, endpoint=False)
    above = np.maximum(0.0, x - knees[:, None, None])  # [knee][kv][level]
    shape = x * (1 + _VOLTAGES[:, None] * above**2) ** 2
    residuals = _off_line(shape, power)
    best = np.unravel_index(int(np.argmin(residuals)), residuals.shape)
    is_bent = _off_line(x[None, None, :], power)[0, 0] > _BETTER * residuals[best]
    return float(knees[best[0]]) if is_bent and knees[best[0]] > x[0] + 1e-9 else None


def _off_line(shape: Any, power: Any) -> Any:
    """Squares that remain of power on a straight line over ``shape``, along its last axis."""
    centred, own = shape - shape.mean(-1, keepdims=True), power - power.mean()
    return (own**2).sum() - (centred @ own) ** 2 / (centred**2).sum(-1)
