"""Curves over a knob of the device, today its power cap: energy, time, EDP and EDS relative to a reference."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import TYPE_CHECKING

from powerd_analytics.metrics import edp_js, eds
from powerd_analytics.plots.configurations import Configuration, grouped, label, reference_of, wholes
from powerd_analytics.plots.style import PALETTE, finish, heading, interval_note, panels, styled
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = ("model", "batch", "gpus", "device", "provenance", "others", "per")
CURVES = ("energy", "time", "EDP", "EDS")
_COLOURS = (*PALETTE[:3], PALETTE[4])
"""EDP and EDS run side by side, and deuteranopes see thin lines in green and purple as much the same grey."""


@styled
def draw_sweep(
    configurations: Sequence[Configuration], name: str, reference: str | None = None, k: float = 2.0
) -> Figure:
    """A panel for each model, batch size and device; 1 is ``reference`` (COLUMN=VALUE), else the highest cap.

    Raises `AnalysisError` where no configuration has a power cap, two of different energy or time have the same, or
    the reference is not exactly one in a panel.
    """
    capped = [c for c in wholes(configurations, "caps") if c.power_cap_w is not None]
    groups = [same for same in grouped(capped, _PANEL) if len({c.power_cap_w for c in same}) > 1]
    if not groups:
        raise AnalysisError(
            "no power caps to compare: no model and device has two configurations with different power_cap_w"
        )
    every = [c for same in groups for c in same]
    figure, axes = panels(len(groups), (4.6, 3.4))
    for (ax,), same in zip(axes, groups, strict=True):
        what = label(same[0], every, ("power_cap_w",)) or same[0].model or same[0].device
        _panel(ax, _by_cap(same, what), reference_of(same, reference, max(same, key=_cap)), k)
        heading(ax, what)
    # Beside the panels: curves go wherever a legend within one could stand.
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=7.5, frameon=False, loc="outside right upper")
    bars = interval_note(u for c in every for u in (c.u95_j, c.u95_s))
    note = f"relative to {reference or 'the highest cap'}; EDS with k = {k:g}; {bars}; ringed: least"
    return finish(figure, f"{name}: over the power cap", (c.provenance for c in every), note)


def _cap(c: Configuration) -> float:
    return c.power_cap_w or 0.0


def _by_cap(same: Sequence[Configuration], what: str) -> list[Configuration]:
    """Sorted by cap. A table may have a cap twice, as the best by two metrics."""
    by_cap: dict[float, Configuration] = {}
    for c in same:
        first = by_cap.setdefault(_cap(c), c)
        if (first.energy_j, first.time_s) != (c.energy_j, c.time_s):
            where = f" of {what}" if what else ""
            raise AnalysisError(
                f"two configurations{where} have the power cap {c.power_cap_w:g} W: leave one of them out"
            )
    return sorted(by_cap.values(), key=_cap)


def _panel(ax: Axes, same: Sequence[Configuration], ref: Configuration, k: float) -> None:
    e0, t0 = ref.energy_j or 0.0, ref.time_s or 0.0
    if not (e0 > 0 and t0 > 0):
        raise AnalysisError("the reference has an energy or a time of 0: nothing compares with it")
    caps = list(map(_cap, same))
    for i, curve in enumerate(CURVES):
        values, u95 = zip(*(_relative(c, ref, curve, k) for c in same), strict=True)
        ax.errorbar(caps, values, yerr=u95 if any(u95) else None, color=_COLOURS[i], marker="osD^"[i], ms=4,
                    lw=1.2, capsize=2, label=f"{curve} (k = {k:g})" if curve == "EDS" else curve)  # fmt: skip
        least = min(range(len(values)), key=values.__getitem__)
        ax.plot(caps[least], values[least], marker="o", ms=10, mfc="none", mec=_COLOURS[i], ls="none")
    ax.axhline(1.0, color="#999999", lw=0.8, ls=":")
    ax.set_xlabel("power cap (W)")
    ax.set_ylabel("relative to the reference (1)")


def _relative(c: Configuration, ref: Configuration, curve: str, k: float) -> tuple[float, float]:
    """A figure over the reference's with its 95 % half-width: errors of both taken as independent, none for the
    reference itself."""
    e, t, e0, t0 = c.energy_j or 0.0, c.time_s or 0.0, ref.energy_j or 0.0, ref.time_s or 0.0
    of_e = of_t = 0.0
    if c.power_cap_w != ref.power_cap_w:
        of_e = hypot((c.u95_j or 0.0) / (e or 1.0), (ref.u95_j or 0.0) / e0)
        of_t = hypot((c.u95_s or 0.0) / (t or 1.0), (ref.u95_s or 0.0) / t0)
    if curve == "EDS":
        return eds(e, t, e0, t0, k), hypot(of_e * e / e0 * (k - 1) / k, of_t * t / t0 / k)
    if curve == "EDP":
        value = edp_js(e, t) / edp_js(e0, t0)
        return value, value * hypot(of_e, of_t)
    return (e / e0, of_e * e / e0) if curve == "energy" else (t / t0, of_t * t / t0)
