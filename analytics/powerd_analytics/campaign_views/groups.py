"""What is compared in a campaign beside single cells: how trainings scale with the number of GPUs, and what one knob
does, all else being equal. Runs are compared block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import log
from typing import Any

import numpy as np

from powerd_analytics.campaign_views.campaign_figures import Campaign, KnobGroup
from powerd_analytics.campaigns.design import GPUS, KNOBS, Cell, Design, level_text
from powerd_analytics.frame.figure import Figure
from powerd_analytics.frame.means import mean_of_ratios
from powerd_analytics.output.text import Cell as TableCell
from powerd_core.settings import KNOB_AS_OPTION, unit_of

CORE, MEMORY = "sm_clock_mhz", "mem_clock_mhz"
WORDS = {option: knob.words for option, knob in KNOB_AS_OPTION.items()} | {"batch_size": "batch size"}
"""What factors are called in a sentence."""

BATCH = ("batch_size", "batch")
"""The factors that are a batch size."""


def batch_of(levels: Mapping[str, TableCell]) -> float | None:
    batch = next((levels[name] for name in BATCH if name in levels), None)
    return float(batch) if isinstance(batch, int | float) else None


def _numbers(campaign: Campaign, cells: Iterable[Cell], knob: str) -> list[float]:
    levels = (campaign.levels(cell)[knob] for cell in cells)
    return sorted({float(level) for level in levels if isinstance(level, int | float)})


def spans(campaign: Campaign, cells: Iterable[Cell], among: Iterable[Cell], knob: str) -> str:
    """The levels of some cells as text; of neighbours among all the first and the last."""
    every, own = _numbers(campaign, among, knob), set(_numbers(campaign, cells, knob))
    runs = [list(run) for is_own, run in groupby(every, own.__contains__) if is_own]
    texts = [f"{run[0]:g} to {run[-1]:g}" if len(run) > 1 else f"{run[0]:g}" for run in runs]
    return f"{', '.join(texts)} {unit_of(knob)}".strip() if texts else ""


def turned_alone(group: KnobGroup, knobs: Iterable[str]) -> list[Cell]:
    """Its cells whose other knobs are as at the reference."""
    at = {} if group.reference is None else group.reference.levels
    others = [name for name in KNOBS if name in at and name not in knobs]
    return [cell for cell in group.cells if all(cell.levels[name] == at[name] for name in others)]


# -- several GPUs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scaled:
    """A number of GPUs beside the least number, and what a setting saves there."""

    gpus: int
    group: KnobGroup
    time_s: float
    """At the reference."""
    speed_up: Figure
    """At the reference, over the least number of GPUs."""
    speed_up_set: Figure
    """The same at `Scaling.at`."""
    best: Cell
    """Of the least energy."""
    energy: Figure
    """Of the best over the reference's."""
    time: Figure


@dataclass(frozen=True, slots=True)
class Scaling:
    """How trainings that differ in nothing but GPUs and knobs get faster, and what is saved."""

    levels: Mapping[str, TableCell]
    at: Cell
    """Of the least EDP on most GPUs."""
    rows: tuple[Scaled, ...]


def scalings(campaign: Campaign) -> list[Scaling]:
    """Of those groups that have a reference and two numbers of GPUs or more, runs compared block by block."""
    together: dict[tuple[tuple[str, TableCell], ...], list[KnobGroup]] = {}
    for group in campaign.groups:
        if group.reference is not None and len(group.cells) > 1 and isinstance(group.levels.get(GPUS), int):
            key = tuple((n, level) for n, level in group.levels.items() if n != GPUS)
            together.setdefault(key, []).append(group)
    found = []
    for levels, groups in together.items():
        if len(groups) > 1:
            groups.sort(key=lambda group: float(str(group.levels[GPUS])))
            found.append(_scaling(campaign, dict(levels), groups))
    return found


def _scaling(campaign: Campaign, levels: Mapping[str, TableCell], groups: Sequence[KnobGroup]) -> Scaling:
    at = campaign.best(groups[-1], "edp").cell
    set_to = {name: level for name, level in at.levels.items() if name in KNOBS}
    rows = []
    for group in groups:
        reference, least = group.reference, groups[0].reference
        if reference is None or least is None:
            continue
        best = campaign.best(group, "e").cell
        off = campaign.by_id[best.id].ratios
        set_here, set_least = (campaign.design.cell({**cell.levels, **set_to}) for cell in (reference, least))
        rows.append(
            Scaled(
                int(str(group.levels[GPUS])),
                group,
                campaign.by_id[reference.id].time_s.value,
                mean_of_ratios([time for _, time in group.pairs_by_block(least, reference).values()]),
                mean_of_ratios([time for _, time in group.pairs_by_block(set_least, set_here).values()]),
                best,
                off["e"],
                off["time"],
            )
        )
    return Scaling(levels, at, tuple(rows))


def setting_text(campaign: Campaign, cell: Cell) -> str:
    """The knobs of a cell."""
    levels = campaign.levels(cell)
    return ", ".join(level_text(name, levels[name] or "") for name in cell.levels if name in KNOBS)


# -- clocks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marginal:
    """Joules and seconds at a level of one knob over those at its reference level, all else being equal: the geometric
    mean over all else."""

    level: float
    energy: Figure
    time: Figure
    blocks: Mapping[int, tuple[float, float]]
    """The same ratios of energy and time by block."""


def marginals(design: Design, groups: Sequence[KnobGroup], knob: str) -> list[Marginal]:
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
        found.append(Marginal(level, mean_of_ratios(energies), mean_of_ratios(times), blocks))
    return found if len(found) > 1 else []


_KNEES, _VOLTAGES = 120, np.geomspace(0.1, 8.0, 40)
_FITTED_FROM, _BETTER = 5, 20.0
"""A knee takes so many levels, and must fit so many times better than a straight line."""


def knee(levels: Sequence[Marginal]) -> Figure | None:
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
    return mean_of_ratios(knees).scaled(levels[-1].level)


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
