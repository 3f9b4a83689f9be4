"""Energy against time: the Pareto front, and lines of equal EDP and EDS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.energy.reasons import digits
from powerd_analytics.metrics import edp_js, eds, pareto_front
from powerd_analytics.pictures.configurations import Configuration, label, reference_of, wholes
from powerd_analytics.pictures.style import bars_of, bars_said, colours, finish, panels, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X"
NAMED = 24
"""More points than this get no text, but those of the front do."""
_PANEL_PT = (390.0, 300.0)
"""About the size of a panel's axes in points: enough to tell whether two names meet."""
_PLACES = ((5, 4), (5, -10), (-5, 4), (-5, -10), (5, 13), (5, -19), (-5, 13), (-5, -19))
"""Where a name may stand beside its point, in points; the first that is free."""


def draw_pareto(found: Sequence[Configuration], name: str, reference: str | None = None, k: float = 2.0) -> Figure:
    """A panel for each model. EDS is relative to ``reference`` (COLUMN=VALUE), else to the fastest configuration.

    Raises `AnalysisError` where nothing has energy and time, or the reference is not exactly one.
    """
    kept = wholes(found, "pareto")
    models = list(dict.fromkeys((c.model, c.per) for c in kept))
    figure, axes = panels(len(models), (8.2, 4.8), most_columns=2)
    for (ax,), (model, per) in zip(axes, models, strict=True):
        _panel(ax, [c for c in kept if (c.model, c.per) == (model, per)], reference, k)
        ax.set_title(shown(model))
        ax.set_xlabel(f"time{per} (s)")
        ax.set_ylabel(f"energy{per} (J)")
    hollow = "; hollow: not measured" if any(_is_hollow(c) for c in kept) else ""
    said = f"{bars_said(u for c in kept for u in (c.u95_j, c.u95_s))}; EDS relative to {reference or 'the fastest'}"
    return finish(figure, f"{name}: energy against time", (c.provenance for c in kept), said + hollow)


def _is_hollow(c: Configuration) -> bool:
    return c.provenance not in ("measured", "")


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
            face = "white" if _is_hollow(same[i]) else chosen[name]
            u_s, u_j = bars_of([same[i].u95_s, same[i].u95_j])
            ax.errorbar(
                time[i], energy[i], xerr=u_s, yerr=u_j, color=chosen[name], marker=markers[name], ms=5.5, capsize=2.5,
                ls="none", lw=1, mfc=face, label=shown(name) if i == at[0] else None,
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
    _name(ax, [
        (float(time[i]), float(energy[i]), shown(_point(c, same), 30))
        for i, c in enumerate(same) if len(same) <= NAMED or i in front
    ])  # fmt: skip
    # Beside the panel: within, it would hide points and their names.
    ax.legend(fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _name(ax: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Names beside their points, each at the first place where it covers no other; where there is none, left out."""
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    taken: list[tuple[float, float, float, float]] = []
    for x, y, text in dict.fromkeys(points):
        at = _PANEL_PT[0] * (x - left) / (right - left), _PANEL_PT[1] * (y - low) / (high - low)
        width, height = 3.9 * max(map(len, text.split("\n"))), 8.5 * (1 + text.count("\n"))
        for dx, dy in _PLACES:
            x0 = at[0] + (dx if dx > 0 else dx - width)
            box = (x0, at[1] + dy, x0 + width, at[1] + dy + height)
            if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
                taken.append(box)
                ax.annotate(text, (x, y), xytext=(dx, dy), textcoords="offset points", fontsize=7, color="#333333",
                            ha="left" if dx > 0 else "right")  # fmt: skip
                break


def _series(c: Configuration, among: Sequence[Configuration]) -> str:
    return label(c, among, ("batch", "power_cap_w", "model")) or c.device or "configurations"


def _point(c: Configuration, among: Sequence[Configuration]) -> str:
    return label(c, among, ("model", "gpus", "device", "others", "provenance"))


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
