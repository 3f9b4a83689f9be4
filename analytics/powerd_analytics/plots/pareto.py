"""Energy against time: the Pareto front, and lines of equal EDP and EDS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.metrics import edp_js, eds, pareto_front
from powerd_analytics.plots.configurations import Configuration, grouped, label, reference_of, wholes
from powerd_analytics.plots.style import (
    colours,
    engineering_ticks,
    finish,
    heading,
    interval_note,
    legend_beside,
    panels,
    shown,
    styled,
)
from powerd_analytics.text import digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Curve = Callable[[float], np.ndarray]
MARKERS = "osD^vP*X"
MOST_NAMED = 12
"""More points than this get no text beside them, but those of the front do."""
LOG_FROM = 5.0
"""An axis whose largest value is so many times its least is logarithmic: else most points lie in one corner."""
_PANEL = ("model", "per", "provenance", "part")


@styled
def draw_pareto(
    configurations: Sequence[Configuration], name: str, reference: str | None = None, k: float = 2.0
) -> Figure:
    """A panel for each model, kind of power and part of the machine. EDS is relative to ``reference`` (COLUMN=VALUE),
    else to the fastest configuration.

    Raises `AnalysisError` where nothing has energy and time, or the reference is not exactly one.
    """
    kept = wholes(configurations, "pareto")
    groups = grouped(kept, _PANEL)
    figure, axes = panels(len(groups), (8.2, 4.8), most_columns=2)
    for (ax,), same in zip(axes, groups, strict=True):
        _panel(ax, same, reference, k)
        apart = [n for n in ("part", "provenance") if len({getattr(c, n) for c in kept}) > 1]
        heading(ax, ", ".join(filter(None, [same[0].model, *(getattr(same[0], n) for n in apart)])))
    hollow = "; hollow: not measured" if any(_is_hollow(c) for c in kept) else ""
    intervals = interval_note(u for c in kept for u in (c.u95_j, c.u95_s))
    note = f"{intervals}; EDS relative to {reference or 'the fastest'}{hollow}"
    return finish(figure, f"{name}: energy against time", (c.provenance for c in kept), note)


def _is_hollow(c: Configuration) -> bool:
    return c.provenance not in ("measured", "")


def _panel(ax: Axes, same: Sequence[Configuration], condition: str | None, k: float) -> None:
    energy, time = (np.array([getattr(c, n) for c in same], float) for n in ("energy_j", "time_s"))
    ref = reference_of(same, condition, same[int(np.argmin(time))])
    for of, values, what, unit in (("x", time, "time", "s"), ("y", energy, "energy", "J")):
        is_log = values.min() > 0 and values.max() > LOG_FROM * values.min()
        ax.set(**{f"{of}scale": "log" if is_log else "linear"})
        engineering_ticks(ax.xaxis if of == "x" else ax.yaxis, unit)
        ax.set(**{f"{of}label": f"{what}{same[0].per} ({unit})" + (", logarithmic" if is_log else "")})
    names = [label(c, same, ("batch", "power_cap_w", "model")) or c.device or "configurations" for c in same]
    series = colours(names)
    for at, (c, name) in enumerate(zip(same, names, strict=True)):
        ax.errorbar(
            time[at], energy[at], xerr=c.u95_s, yerr=c.u95_j, color=series[name],
            marker=MARKERS[list(series).index(name) % len(MARKERS)], ms=5.5, capsize=2.5, ls="none", lw=1,
            mfc="white" if _is_hollow(c) else series[name], lolims=c.is_lower_bound, zorder=3,
            label=shown(name, 40) if names.index(name) == at else None,
        )  # fmt: skip
    ax.margins(0.12)
    _iso_lines(ax, time, energy, ref, k)
    exact = [i for i, c in enumerate(same) if not c.is_lower_bound]
    front = [exact[int(i)] for i in pareto_front(time[exact], energy[exact])] if exact else []
    if front:
        ax.plot(time[front], energy[front], color="#333333", lw=1.2, drawstyle="steps-post", zorder=2,
                marker="o", ms=10, mfc="none", mew=0.8, label="Pareto front")  # fmt: skip
    for at in range(len(same)) if len(same) <= MOST_NAMED else front:
        name = shown(label(same[at], same, ("model", "gpus", "device", "others", "provenance")), 30)
        ax.annotate(
            name, (time[at], energy[at]), xytext=(7, 6), textcoords="offset points", fontsize=7, color="#333333"
        )
    legend_beside(ax)


def _iso_lines(ax: Axes, time: np.ndarray, energy: np.ndarray, ref: Configuration, k: float) -> None:
    """Hyperbolas of equal EDP and straight lines of equal EDS: through the best of each, and through the reference."""
    from matplotlib.ticker import EngFormatter

    left, right = ax.get_xlim()
    ends = ax.get_ylim()
    x = np.geomspace(left, right, 400) if ax.get_xscale() == "log" else np.linspace(left, right, 400)[1:]
    e0, t0 = float(ref.energy_j or 0.0), float(ref.time_s or 0.0)

    def draw(name: str, colour: str, values: tuple[float, float], texts: Sequence[str], energy_of: _Curve) -> None:
        is_same = abs(values[1] - values[0]) <= 1e-9 * abs(values[1])
        whose = ["least and reference"] if is_same else ["least", "reference"]
        for value, text, which, style in zip(values, texts, whose, "-:", strict=False):
            label = f"equal {name}, {which}: {text}"
            ax.plot(x, energy_of(value), color=colour, lw=0.9, ls=style, zorder=1, label=label)

    products = float(np.min(edp_js(energy, time))), e0 * t0
    texts = [EngFormatter("J s", places=2)(value) for value in products]
    draw("EDP", "#999999", products, texts, lambda value: value / x)
    if e0 > 0 and t0 > 0 and k > 1:
        sums = float(np.min(eds(energy, time, e0, t0, k))), 1.0
        texts = [digits(value, 3) for value in sums]
        draw(f"EDS (k = {k:g})", "#6fa8cf", sums, texts, lambda value: (value - x / (k * t0)) * k * e0 / (k - 1))
    ax.set(xlim=(left, right), ylim=ends)
