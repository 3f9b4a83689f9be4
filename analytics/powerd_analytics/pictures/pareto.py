"""Energy against time: the Pareto front, and lines of equal EDP and EDS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.energy.reasons import digits
from powerd_analytics.metrics import edp_js, eds, pareto_front
from powerd_analytics.pictures.configurations import Configuration, label, reference_of, wholes
from powerd_analytics.pictures.nametags import NamedPoint, put_names
from powerd_analytics.pictures.style import bars_said, colours, finish, heading, middle, panels, prefixed, shown, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X"
NAMED = 24
"""More points than this get no text, but those of the front do."""
LOG_FROM = 5.0
"""An axis whose largest value is so many times its least is logarithmic: else most points lie in one corner."""
_PANEL = ("model", "per", "provenance", "part")
_LEAST, _REFERENCE = ("-", 0.8), (":", 1.1)
"""Style and width of the lines through the best and through the reference."""


@styled
def draw_pareto(found: Sequence[Configuration], name: str, reference: str | None = None, k: float = 2.0) -> Figure:
    """A panel for each model, kind of power and part of the machine. EDS is relative to ``reference`` (COLUMN=VALUE),
    else to the fastest configuration.

    Raises `AnalysisError` where nothing has energy and time, or the reference is not exactly one.
    """
    kept = wholes(found, "pareto")
    groups: dict[tuple[object, ...], list[Configuration]] = {}
    for c in kept:
        groups.setdefault(tuple(getattr(c, n) for n in _PANEL), []).append(c)
    figure, axes = panels(len(groups), (8.2, 4.8), most_columns=2)
    for (ax,), same in zip(axes, groups.values(), strict=True):
        _panel(ax, same, reference, k)
        apart = {name: {getattr(c, name) for c in kept} for name in _PANEL}
        parts = [same[0].model] + [getattr(same[0], n) for n in ("part", "provenance") if len(apart[n]) > 1]
        heading(ax, ", ".join(filter(None, parts)))
    hollow = "; hollow: not measured" if any(_is_hollow(c) for c in kept) else ""
    said = f"{bars_said(u for c in kept for u in (c.u95_j, c.u95_s))}; EDS relative to {reference or 'the fastest'}"
    return finish(figure, f"{name}: energy against time", (c.provenance for c in kept), said + hollow)


def _is_hollow(c: Configuration) -> bool:
    return c.provenance not in ("measured", "")


def _panel(ax: Axes, same: Sequence[Configuration], condition: str | None, k: float) -> None:
    energy, time = (np.array([getattr(c, n) for c in same], float) for n in ("energy_j", "time_s"))
    ref = reference_of(same, condition, same[int(np.argmin(time))])
    _axis(ax, "x", time, [c.u95_s for c in same], f"time{same[0].per}", "s")
    _axis(ax, "y", energy, [c.u95_j for c in same], f"energy{same[0].per}", "J")
    _iso_lines(ax, time, energy, ref, k)
    series = list(dict.fromkeys(_series(c, same) for c in same))
    chosen, markers = colours(series), {s: MARKERS[i % len(MARKERS)] for i, s in enumerate(series)}
    for name in series:
        at = [i for i, c in enumerate(same) if _series(c, same) == name]
        for i in at:
            face = "white" if _is_hollow(same[i]) else chosen[name]
            ax.errorbar(
                time[i], energy[i], xerr=same[i].u95_s, yerr=same[i].u95_j, color=chosen[name], marker=markers[name],
                ms=5.5, capsize=2.5, ls="none", lw=1, mfc=face, label=shown(middle(name, 40)) if i == at[0] else None,
                lolims=same[i].is_lower_bound, zorder=3,
            )  # fmt: skip
    among = [i for i, c in enumerate(same) if not c.is_lower_bound]
    front = [among[int(i)] for i in pareto_front(time[among], energy[among])] if among else []
    if front:
        ax.plot(time[front], energy[front], color="#333333", lw=1.2, drawstyle="steps-post", zorder=2,
                marker="o", ms=10, mfc="none", mew=0.8, label="Pareto front")  # fmt: skip
    is_named = [len(same) <= NAMED or i in front for i in range(len(same))]
    put_names(ax, [
        NamedPoint(float(time[i]), float(energy[i]), shown(_point(c, same), 30) if is_named[i] else "")
        for i, c in enumerate(same)
    ])  # fmt: skip
    # Beside the panel: within, it would hide points and their names.
    ax.legend(fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _series(c: Configuration, among: Sequence[Configuration]) -> str:
    return label(c, among, ("batch", "power_cap_w", "model")) or c.device or "configurations"


def _point(c: Configuration, among: Sequence[Configuration]) -> str:
    return label(c, among, ("model", "gpus", "device", "others", "provenance"))


def _axis(ax: Axes, of: str, values: np.ndarray, u95: Sequence[float | None], what: str, unit: str) -> None:
    """Ends, scale, ticks and label of one axis, intervals within it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis: Axis = ax.xaxis if of == "x" else ax.yaxis
    reach = np.array([u or 0.0 for u in u95])
    low, high = float((values - reach).min()), float((values + reach).max())
    least = float(values.min())
    is_log = least > 0 and float(values.max()) > LOG_FROM * least
    if is_log:
        low = max(low, least / 2)
        ends = low / (high / low) ** 0.1, high * (high / low) ** 0.1
    else:
        margin = 0.12 * (high - low) or 0.2 * abs(high) or 1.0
        ends = max(low - margin, 0.0) if least >= 0 else low - margin, high + margin
    if is_log:
        (ax.set_xscale if of == "x" else ax.set_yscale)("log")
        few = ends[1] < 1e4 * ends[0]
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axis.set_minor_formatter(NullFormatter())
    (ax.set_xlim if of == "x" else ax.set_ylim)(*ends)
    factor, prefix = prefixed([(ends[0] * ends[1]) ** 0.5 if is_log else ends[1]])
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * factor:.10g}"))
    axis.set_label_text(f"{what} ({prefix}{unit})" + (", logarithmic" if is_log else ""))


def _iso_lines(ax: Axes, time: np.ndarray, energy: np.ndarray, ref: Configuration, k: float) -> None:
    """Hyperbolas of equal EDP and straight lines of equal EDS: through the best of each, and through the reference."""
    left, right = ax.get_xlim()
    x = np.geomspace(left, right, 400) if ax.get_xscale() == "log" else np.linspace(left, right, 400)[1:]
    low, high = ax.get_ylim()
    e0, t0 = float(ref.energy_j or 0.0), float(ref.time_s or 0.0)
    for value, style, said in _distinct(float(np.min(edp_js(energy, time))), e0 * t0):
        factor, prefix = prefixed([value])
        ax.plot(x, value / x, color="#999999", lw=style[1], ls=style[0], zorder=1,
                label=f"equal EDP, {said}: {digits(value * factor, 3)} {prefix}J s")  # fmt: skip
    if not (e0 > 0 and t0 > 0):
        return
    for value, style, said in _distinct(float(np.min(eds(energy, time, e0, t0, k))), 1.0) if k > 1 else ():
        y = (value - x / (k * t0)) * k * e0 / (k - 1)
        ax.plot(x, y, color="#0072B2", alpha=0.6, lw=style[1], ls=style[0], zorder=1,
                label=f"equal EDS (k = {k:g}), {said}: {digits(value, 3)}")  # fmt: skip
    ax.set_ylim(low, high)


def _distinct(least: float, of_reference: float) -> list[tuple[float, tuple[str, float], str]]:
    """Values with their lines and names: one line where the reference is the best."""
    if abs(of_reference - least) <= 1e-9 * abs(of_reference):
        return [(least, _LEAST, "least and reference")]
    return [(least, _LEAST, "least"), (of_reference, _REFERENCE, "reference")]
