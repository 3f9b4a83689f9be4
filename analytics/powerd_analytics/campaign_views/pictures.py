"""Pictures of a campaign: energy against time beside the metrics' lines, what clocks do, how GPUs scale, two kinds of
cards beside each other, what each knob saves, a card that was fitted. Sweeps and fronts of single runs are in
`plots.configurations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import fsum
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from powerd_analytics.campaign_views.campaign_figures import CAP, Campaign, CellRow, KnobGroup
from powerd_analytics.campaign_views.cell_tables import phase_rows
from powerd_analytics.campaign_views.group_tables import Saving, savings
from powerd_analytics.campaign_views.groups import BATCH, CORE, WORDS, batch_of, scalings, turned_alone
from powerd_analytics.campaigns.design import GPUS, KNOBS, MODEL, Cell
from powerd_analytics.frame.figure import Figure
from powerd_analytics.output.colours import PALETTE
from powerd_analytics.output.text import Cell as TableCell
from powerd_analytics.plots.style import (
    HATCHES,
    Bar,
    bar_handles,
    brief,
    draw_bars,
    finish,
    heading,
    legend_above,
    legend_beside,
    panels,
    quantity_axis,
    with_style,
)
from powerd_core.gpu_physics import operate
from powerd_core.settings import unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

    from powerd_analytics.campaigns.card_fit import CardFit

_MARKERS = "osD^vP*X"
_SERIES = (*PALETTE[:6], "#777777", "#000000")
_NAMES = WORDS | {"batch_size": "batch"}
_LEAST_SPAN = 0.3
"""An axis spans at least this share of what it shows: what hardly moves must look so."""
K = 1.5, 2.0


def _text(levels: Sequence[tuple[str, TableCell]]) -> str:
    return ", ".join(f"{v}" if isinstance(v, str) else f"{v:g} {_NAMES.get(n, n)}" for n, v in levels if v is not None)


# -- energy against time, of the reference -----------------------------------------------------------------------------


@with_style
def draw_normalised(campaigns: Sequence[Campaign]) -> Picture:
    """Energy over time, both of the reference's, every setting a point, as figure 1 of Krzywaniak et al.: a panel for
    each campaign, as for each GPU, with the lines on which a metric equals the reference's."""
    figure, axes = panels(len(campaigns), (6.4, 4.6), most_columns=2)
    for (ax,), campaign in zip(axes, campaigns, strict=True):
        points: dict[str, list[tuple[float, float]]] = {}
        for group in campaign.groups:
            name = str(group.levels.get(MODEL) or _text(list(group.levels.items())) or "all")
            cells = group.cells if group.reference is not None else ()
            found = [ratios for cell in cells if (ratios := campaign.by_id[cell.id].ratios)]
            points.setdefault(name, []).extend((off["time"].value, off["e"].value) for off in found)
        for i, (name, own) in enumerate(points.items()):
            fill = None if campaign.provenances == ["measured"] else "none"
            ax.plot(*zip(*own, strict=True), ls="none", marker=_MARKERS[i % len(_MARKERS)], ms=3.5, mfc=fill,
                    color=_SERIES[i % len(_SERIES)], label=brief(name, 24))  # fmt: skip
        _metric_lines(ax, [pair for own in points.values() for pair in own])
        heading(ax, campaign.design.name)
        ax.set(xlabel="time, of the reference's (1)", ylabel="energy, of the reference's (1)")
        legend_beside(ax)
    kinds = [kind for campaign in campaigns for kind in campaign.provenances]
    names = ", ".join(campaign.design.name for campaign in campaigns)
    note = "below a line a setting is better than the reference by that metric; hollow: not measured"
    others = sum(len(group.cells) for c in campaigns for group in c.groups if group.reference is None)
    note += f"; {others} cells of another kind than the reference are left out" if others else ""
    return finish(figure, f"{names}: energy against time", kinds, note)


def _metric_lines(ax: Axes, points: Sequence[tuple[float, float]]) -> None:
    times, energies = zip(*points, strict=True)
    x = np.linspace(min(1.0, *times) * 0.98, max(1.0, *times) * 1.02, 200)
    ax.axhline(1.0, color="#999999", lw=0.9, ls="-", label="E of the reference")
    ax.plot(x, 1 / x, color="#999999", lw=0.9, ls="--", label="its EDP")
    for k, style in zip(K, (":", "-."), strict=True):
        ax.plot(x, (1 - x / k) * k / (k - 1), color="#6fa8cf", lw=1.1, ls=style, label=f"its EDS, k = {k:g}")
    low, high = min(1.0, *energies), max(1.0, *energies)
    ax.set_ylim(low - 0.06 * (high - low), high + 0.1 * (high - low))


# -- clocks ------------------------------------------------------------------------------------------------------------


def clock_pictures(campaign: Campaign, knob: str) -> Iterator[tuple[str, Callable[[], Picture]]]:
    """For each kind of training what draws speed, power and energy over a clock, as most figures of Tang et al.: panels
    for each model, a line for each batch size, all other knobs at their reference."""
    alike: dict[tuple[tuple[str, TableCell], ...], list[KnobGroup]] = {}
    for group in campaign.groups:
        if group.reference is not None:
            kind = tuple((n, v) for n, v in group.levels.items() if n not in (MODEL, *BATCH))
            alike.setdefault(kind, []).append(group)
    for kind, groups in alike.items():
        yield _text(kind), partial(_draw_clocks, campaign, knob, _text(kind), groups)


@with_style
def _draw_clocks(campaign: Campaign, knob: str, kind: str, groups: Sequence[KnobGroup]) -> Picture:
    models = list(dict.fromkeys(str(group.levels.get(MODEL, "")) for group in groups))
    figure, axes = panels(len(models), (4.9, 2.3), rows=len(_OVER_CLOCKS), most_columns=2)
    for column, model in zip(axes, models, strict=True):
        own = [group for group in groups if str(group.levels.get(MODEL, "")) == model]
        for i, group in enumerate(own):
            batch = batch_of(group.levels)
            name, colour = f"batch {batch:g}" if batch else model, _SERIES[i % len(_SERIES)]
            points = _over(campaign, group, knob)
            for ax, value in zip(column, _OVER_CLOCKS.values(), strict=True):
                heights = [value(f) for _, f in points]
                ax.plot([clock for clock, _ in points], heights, color=colour, marker="o", ms=3.5, lw=1.2, label=name)
        for ax, name in zip(column, _OVER_CLOCKS, strict=True):
            ax.set_ylabel(name)
            _widen(ax)
        column[-1].set_xlabel(f"{_NAMES[knob]} (MHz)")
        column[0].legend(fontsize=7, frameon=False, ncols=3, loc="upper left")
        heading(column[0], model)
    title = f"{campaign.design.name}: speed, power and energy over the {_NAMES[knob]}{f', {kind}' if kind else ''}"
    return finish(figure, title, campaign.provenances, "speed and energy: of the reference's")


_OVER_CLOCKS: dict[str, Callable[[CellRow], float]] = {
    "speed (1)": lambda f: 1 / f.ratios["time"].value,
    "power (W)": lambda f: f.power_w,
    "energy (1)": lambda f: f.ratios["e"].value,
}


def _widen(ax: Axes) -> None:
    low, high = ax.get_ylim()
    wider = max(0.0, _LEAST_SPAN * (low + high) / 2 - (high - low)) / 2
    ax.set_ylim(low - wider, high + wider + 0.2 * (high - low))


def _over(campaign: Campaign, group: KnobGroup, knob: str) -> list[tuple[float, CellRow]]:
    """The cells by the levels of a knob, other knobs at their reference."""
    own = (campaign.by_id[cell.id] for cell in turned_alone(group, (knob,)))
    return sorted(((float(str(campaign.levels(f.cell)[knob])), f) for f in own if f.ratios), key=itemgetter(0))


@with_style
def draw_slowdown(campaign: Campaign) -> Picture:
    """Energy saved over time lost, by caps alone and by SM clocks alone: which saves more at equal slowdown. A panel
    for each group that has both."""
    groups = [group for group in campaign.groups if group.reference is not None]
    figure, axes = panels(len(groups), (4.9, 3.2), most_columns=2)
    for (ax,), group in zip(axes, groups, strict=True):
        for knob, colour, marker in ((CAP, PALETTE[0], "o"), (CORE, PALETTE[1], "s")):
            ratios = [f.ratios for _, f in _over(campaign, group, knob)]
            points = sorted((100 * (r["time"].value - 1), 100 * (1 - r["e"].value)) for r in ratios)
            ax.plot(
                *zip(*points, strict=True), color=colour, marker=marker, ms=3.5, lw=1.2, label=f"{_NAMES[knob]} alone"
            )
        ax.axhline(0.0, color="#999999", lw=0.8, ls=":")
        ax.set(xlabel="more time (%)", ylabel="energy saved (%)")
        heading(ax, _text(list(group.levels.items())))
    legend_above(figure, axes[0][0].get_legend_handles_labels()[0])
    return finish(figure, f"{campaign.design.name}: cap against clock", campaign.provenances, "both of the reference's")


# -- several GPUs ------------------------------------------------------------------------------------------------------

_OF_GPUS: dict[str, Callable[[CellRow], Figure]] = {
    "energy saved (%)": lambda f: f.ratios["e"].shifted(-1.0).scaled(-100.0),
    "more time (%)": lambda f: f.ratios["time"].shifted(-1.0).scaled(100.0),
    "saved minus more time (%)": lambda f: f.ratios["eds:2"].shifted(-1.0).scaled(-200.0),
    "EDP (1)": lambda f: f.ratios["edp"],
    "EDS, k = 1.5 (1)": lambda f: f.ratios["eds:1.5"],
    "EDS, k = 2 (1)": lambda f: f.ratios["eds:2"],
}


@with_style
def draw_gpus(campaign: Campaign) -> Picture:
    """What a cap does by number of GPUs, as figures 2 to 6 of Koszczal et al.: a panel for each metric, against the
    reference on as many GPUs."""
    figure, axes = panels(len(_OF_GPUS), (4.6, 3.0), most_columns=3)
    every = [f for f in campaign.cells if f.ratios]
    lines: dict[tuple[tuple[str, TableCell], ...], list[CellRow]] = {}
    for f in every:
        lines.setdefault(tuple((n, v) for n, v in f.cell.levels.items() if n not in KNOBS), []).append(f)
    for (ax,), (name, value) in zip(axes, _OF_GPUS.items(), strict=True):
        for i, (levels, own) in enumerate(lines.items()):
            own.sort(key=lambda f: float(f.cell.levels[CAP]))
            means, caps = [value(f) for f in own], [float(str(campaign.levels(f.cell)[CAP])) for f in own]
            ax.errorbar(caps, [m.value for m in means], yerr=[m.u95 or 0.0 for m in means], lw=1.1, ms=3, capsize=1.5,
                        color=_SERIES[i % len(_SERIES)], marker=_MARKERS[i % len(_MARKERS)], elinewidth=0.7,
                        label=_gpus_text(levels))  # fmt: skip
        ax.axhline(1.0 if "(1)" in name else 0.0, color="#999999", lw=0.8, ls=":")
        ax.set(xlabel="power cap (W)", ylabel=name)
    legend_above(figure, axes[0][0].get_legend_handles_labels()[0])
    return finish(figure, f"{campaign.design.name}: caps by number of GPUs", campaign.provenances)


def _gpus_text(levels: Sequence[tuple[str, TableCell]]) -> str:
    return ", ".join(f"{v} GPU{'' if v == 1 else 's'}" if n == GPUS else str(v) for n, v in levels)


@with_style
def draw_scaling(campaign: Campaign) -> Picture:
    """Seconds over the number of GPUs at the reference and at the setting of the least EDP on most of them, with
    speed-ups, as figure 7 of Koszczal et al."""
    found = scalings(campaign)
    figure, axes = panels(len(found), (6.4, 3.4), most_columns=2)
    for (ax,), scaling in zip(axes, found, strict=True):
        set_to = {n: v for n, v in scaling.at.levels.items() if n in KNOBS}
        bars, names = [], [str(row.gpus) for row in scaling.rows]
        colours = {"reference": PALETTE[0], _text([(n, f"{v} {unit_of(n)}") for n, v in set_to.items()]): PALETTE[1]}
        for place, row in enumerate(scaling.rows):
            at_set = campaign.design.cell({**row.best.levels, **set_to})
            seconds = [row.time_s, campaign.by_id[at_set.id].time_s.value]
            ups = [row.speed_up, row.speed_up_set]
            for i, (value, up, colour) in enumerate(zip(seconds, ups, colours.values(), strict=True)):
                hatch = HATCHES.get(campaign.provenances[0], "")
                bars.append(Bar(place + (i - 0.5) * 0.4, 0.4, (value, None), colour, hatch))
                ax.annotate(f"x {up.value:.2f}", (place + (i - 0.5) * 0.4, value), xytext=(0, 11), fontsize=6.5,
                            textcoords="offset points", ha="center", color="#444444")  # fmt: skip
        draw_bars(ax, bars, [bar.height for bar in bars], 5.0, unknown="")
        ax.set_xticks(range(len(names)), names)
        ax.set_ylim(top=1.08 * ax.get_ylim()[1])
        ax.set(xlabel="GPUs", ylabel="time (s)")
        heading(ax, _text(list(scaling.levels.items())))
        legend_above(figure, bar_handles(colours, campaign.provenances))
    note = "x: times as fast as the least number of GPUs at the same setting"
    return finish(figure, f"{campaign.design.name}: time by number of GPUs", campaign.provenances, note)


# -- two kinds of cards ------------------------------------------------------------------------------------------------


@with_style
def draw_kinds(campaign: Campaign, phases: Sequence[str]) -> Picture:
    """Joules and seconds of a batch by batch size and GPUs, the kinds of cards beside each other in one axis: a panel
    for each model, as figures 5 to 8 of Castro et al. Of several ``phases`` the bars are of all of them together."""
    by = campaign.design.analysis.instrument.moved_over
    of_cell: dict[str, list[dict[str, TableCell]]] = {}
    for cell, figures in phase_rows(campaign):
        if figures["phase"] in phases and figures.get("energy_j") is not None:
            of_cell.setdefault(cell.id, []).append(figures)
    sums = {
        id: [fsum(float(str(one[name])) for one in own) for name in ("energy_j", "time_s")]
        for id, own in of_cell.items()
        if len(own) == len(phases)
    }
    cells = [cell for cell in campaign.design.cells() if cell.id in sums]
    models = list(dict.fromkeys(str(cell.levels.get(MODEL, "")) for cell in cells))
    kinds = dict(zip(dict.fromkeys(str(cell.levels[by]) for cell in cells), PALETTE, strict=False))
    figure, axes = panels(len(models), (4.9, 2.5), rows=2, most_columns=2)
    for column, model in zip(axes, models, strict=True):
        own = [cell for cell in cells if str(cell.levels.get(MODEL, "")) == model]
        names = list(dict.fromkeys(_name(cell) for cell in own))
        for row, (ax, unit) in enumerate(zip(column, ("J a batch", "s a batch"), strict=True)):
            bars = []
            for cell in own:
                value = sums[cell.id][row]
                side = (list(kinds).index(str(cell.levels[by])) - (len(kinds) - 1) / 2) * 0.84 / len(kinds)
                hatch = HATCHES.get(campaign.provenances[0], "") if row == 0 else ""
                colour = kinds[str(cell.levels[by])]
                bars.append(Bar(names.index(_name(cell)) + side, 0.84 / len(kinds), (value, None), colour, hatch))
            draw_bars(ax, bars, [bar.height for bar in bars], 3.4, unknown="")
            ax.set_xticks(range(len(names)), names, fontsize=7)
            ax.set_ylabel(unit)
        column[-1].set_xlabel("batch size - GPUs")
        heading(column[0], model)
    legend_above(figure, bar_handles(kinds, campaign.provenances))
    note = "joules are those of one card"
    return finish(
        figure, f"{campaign.design.name}: {' + '.join(phases)} by batch size and GPUs", campaign.provenances, note
    )


def _name(cell: Cell) -> str:
    return f"{batch_of(cell.levels) or 0:g}-{cell.levels.get(GPUS, 1)}"


# -- what each knob saves ----------------------------------------------------------------------------------------------


@with_style
def draw_knob_savings(campaign: Campaign) -> Picture:
    """Bars of what choosing each factor of the reference saves alone, and what choosing all of them saves."""
    found: list[Saving] = savings(campaign)
    models = list(dict.fromkeys(s.model for s in found))
    names = list(dict.fromkeys(" and ".join(_NAMES.get(n, n) for n in s.free) for s in found))
    colours = dict(zip(names, PALETTE, strict=False))
    inches = max(5.0, 1.5 * len(models) + 1.2)
    figure, (((ax,),)) = panels(1, (inches, 3.2))
    bars = []
    for s in found:
        name = " and ".join(_NAMES.get(n, n) for n in s.free)
        u95 = None if s.energy.u95 is None else 100 * s.energy.u95
        x = models.index(s.model) + (names.index(name) - (len(names) - 1) / 2) * 0.27
        hatch = HATCHES.get(campaign.provenances[0], "")
        bars.append(Bar(x, 0.27, (100 * (1 - s.energy.value), u95), colours[name], hatch))
    draw_bars(ax, bars, [bar.height for bar in bars], inches, unknown="")
    ax.set_xticks(range(len(models)), [brief(model, 20) for model in models])
    ax.set_ylabel("energy saved (%)")
    legend_above(figure, bar_handles(colours, campaign.provenances))
    return finish(figure, f"{campaign.design.name}: what each knob saves", campaign.provenances)


# -- a card that was fitted --------------------------------------------------------------------------------------------

_HOLLOW = "osD^v<>h"
"""Markers whose inside is seen when they are small."""


@with_style
def draw_card(fit: CardFit, provenances: Sequence[str]) -> Picture:
    """The points of a sweep and the card that was fitted to them: watts and seconds over the cap, a colour for each
    training."""
    from matplotlib.lines import Line2D

    figure, (watts, seconds) = panels(2, (4.0, 3.0))
    caps_w = np.linspace(fit.card.limits_w[0], fit.card.limits_w[2], 200)
    is_measured = set(provenances) <= {"measured"}
    quantity_axis(seconds[0].yaxis, "time", "s", [point.time_s for own in fit.points.values() for point in own])
    handles = []
    for i, (name, own) in enumerate(fit.points.items()):
        curve = [operate(fit.card, fit.networks[name], float(cap_w)) for cap_w in caps_w]
        line: dict[str, Any] = {"color": _SERIES[i % len(_SERIES)], "lw": 1.2}
        marks = line | {"marker": _HOLLOW[i % len(_HOLLOW)], "ms": 4, "mfc": None if is_measured else "white"}
        handles.append(Line2D([], [], label=brief(name, 28), **marks))
        for (ax,), quantity in ((watts, "power_w"), (seconds, "time_s")):
            ax.plot(caps_w, [getattr(at, quantity) for at in curve], **line)
            ax.plot([p.cap_w for p in own], [getattr(p, quantity) for p in own], **marks | {"ls": "none"})
            ax.set_xlabel("power cap (W)")
    watts[0].set_ylabel("mean power (W)")
    legend_above(figure, handles)
    note = f"lines: the fitted card; points: means of runs{'' if is_measured else '; hollow: not measured'}"
    return finish(figure, f"{fit.card.name}: over the power cap", provenances or [""], note)
