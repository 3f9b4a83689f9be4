"""Energy against time: the Pareto front, and lines of equal EDP and EDS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.energy.reasons import digits
from powerd_analytics.metrics import edp_js, eds, pareto_front
from powerd_analytics.pictures.configurations import Configuration, label, reference_of, wholes
from powerd_analytics.pictures.style import bars_of, colours, finish, panels, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X"
NAMED = 24
"""More points than this get no text, but those of the front do."""


def draw_pareto(found: Sequence[Configuration], name: str, reference: str | None = None, k: float = 2.0) -> Figure:
    """A panel for each model. EDS is relative to ``reference`` (COLUMN=VALUE), else to the fastest configuration.

    Raises `AnalysisError` where nothing has energy and time, or the reference is not exactly one.
    """
    kept = wholes(found, "pareto")
    models = list(dict.fromkeys((c.model, c.per) for c in kept))
    figure, axes = panels(len(models), (6.2, 4.8), most_columns=2)
    for (ax,), (model, per) in zip(axes, models, strict=True):
        _panel(ax, [c for c in kept if (c.model, c.per) == (model, per)], reference, k)
        ax.set_title(shown(model))
        ax.set_xlabel(f"time{per} (s)")
        ax.set_ylabel(f"energy{per} (J)")
    return finish(figure, f"{name}: energy against time", (c.provenance for c in kept),
                  "error bars: 95 % interval; hollow: not measured")  # fmt: skip


def _panel(ax: Axes, same: Sequence[Configuration], condition: str | None, k: float) -> None:
    energy, time = (np.array([getattr(c, n) for c in same], float) for n in ("energy_j", "time_s"))
    ref = reference_of(same, condition, same[int(np.argmin(time))])
    _limits(ax, time, energy)
    _iso_lines(ax, time, energy, ref, k)
    series = list(dict.fromkeys(_series(c, same) for c in same))
    chosen, markers = colours(series), {s: MARKERS[i % len(MARKERS)] for i, s in enumerate(series)}
    for name in series:
        at = [i for i, c in enumerate(same) if _series(c, same) == name]
        for i in at:
            hollow = same[i].provenance not in ("measured", "")
            u_s, u_j = bars_of([same[i].u95_s, same[i].u95_j])
            ax.errorbar(
                time[i], energy[i], xerr=u_s, yerr=u_j, color=chosen[name], marker=markers[name], ms=5.5, capsize=2.5,
                ls="none", lw=1, mfc="white" if hollow else chosen[name], label=shown(name) if i == at[0] else None,
                lolims=same[i].is_lower_bound, zorder=3,
            )  # fmt: skip
    front: set[int] = set()
    for provenance in dict.fromkeys(c.provenance for c in same):
        among = [i for i, c in enumerate(same) if c.provenance == provenance and not c.is_lower_bound]
        if among:
            order = [among[int(i)] for i in pareto_front(time[among], energy[among])]
            front |= set(order)
            ax.plot(time[order], energy[order], color="#333333", lw=1.2, drawstyle="steps-post", zorder=2,
                    label="Pareto front" if provenance == same[0].provenance else None)  # fmt: skip
    for i, c in enumerate(same):
        if len(same) <= NAMED or i in front:
            text = shown(_point(c, same), 30)
            ax.annotate(
                text, (time[i], energy[i]), xytext=(4, 4), textcoords="offset points", fontsize=7, color="#333333"
            )
    ax.legend(fontsize=7.5, framealpha=0.85, loc="best")


def _series(c: Configuration, among: Sequence[Configuration]) -> str:
    return label(c, among, ("batch", "power_cap_w", "model")) or c.device or "configurations"


def _point(c: Configuration, among: Sequence[Configuration]) -> str:
    return label(c, among, ("model", "gpus", "device", "provenance"))


def _limits(ax: Axes, time: np.ndarray, energy: np.ndarray) -> None:
    for values, put in ((time, ax.set_xlim), (energy, ax.set_ylim)):
        low, high = float(values.min()), float(values.max())
        margin = 0.15 * (high - low) or 0.2 * abs(high) or 1.0
        put(max(low - margin, 0.0), high + margin)


def _iso_lines(ax: Axes, time: np.ndarray, energy: np.ndarray, ref: Configuration, k: float) -> None:
    """Hyperbolas of equal EDP and straight lines of equal EDS: through the best of each, and through the reference."""
    x = np.linspace(*ax.get_xlim(), 300)[1:]
    e0, t0 = float(ref.energy_j or 0.0), float(ref.time_s or 0.0)
    products = sorted({float(np.min(edp_js(energy, time))), e0 * t0})
    for i, value in enumerate(products):
        ax.plot(x, value / x, color="#999999", lw=0.9, ls=":", zorder=1,
                label=f"equal EDP: {', '.join(digits(v, 3) for v in products)} J s" if i == 0 else None)  # fmt: skip
    if not (e0 > 0 and t0 > 0):
        return
    best = float(np.min(eds(energy, time, e0, t0, k)))
    values = sorted({round(best, 12), 1.0})
    said = ", ".join(digits(v, 3) for v in values)
    for i, value in enumerate(values if k > 1 else []):
        y = (value - x / (k * t0)) * k * e0 / (k - 1)
        ax.plot(x, y, color="#56B4E9", lw=0.9, ls="-.", zorder=1,
                label=f"equal EDS (k = {k:g}): {said}" if i == 0 else None)  # fmt: skip
