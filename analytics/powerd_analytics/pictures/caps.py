"""Curves over the power cap: energy, time, EDP and EDS relative to a reference."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import TYPE_CHECKING

from powerd_analytics.metrics import edp_js, eds
from powerd_analytics.pictures.configurations import Configuration, label, reference_of, wholes
from powerd_analytics.pictures.style import PALETTE, bars_said, finish, heading, panels, styled
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = ("model", "batch", "gpus", "device", "provenance", "others", "per")
CURVES = ("energy", "time", "EDP", "EDS")
_COLOURS = (*PALETTE[:3], PALETTE[4])
"""EDP and EDS run side by side, and deuteranopes see thin lines in green and purple as much the same grey."""


@styled
def draw_caps(found: Sequence[Configuration], name: str, reference: str | None = None, k: float = 2.0) -> Figure:
    """A panel for each model, batch size and device; 1 is ``reference`` (COLUMN=VALUE), else the highest cap.

    Raises `AnalysisError` where no configuration has a power cap, two of different energy or time have the same, or
    the reference is not exactly one in a panel.
    """
    kept = [c for c in wholes(found, "caps") if c.power_cap_w is not None]
    groups: dict[tuple[object, ...], list[Configuration]] = {}
    for c in kept:
        groups.setdefault(tuple(getattr(c, n) for n in _PANEL), []).append(c)
    groups = {key: same for key, same in groups.items() if len({c.power_cap_w for c in same}) > 1}
    if not groups:
        raise AnalysisError(
            "no power caps to compare: no model and device has two configurations with different power_cap_w"
        )
    shown_all = [c for same in groups.values() for c in same]
    figure, axes = panels(len(groups), (4.6, 3.4))
    for (ax,), same in zip(axes, groups.values(), strict=True):
        what = label(same[0], shown_all, ("power_cap_w",)) or same[0].model or same[0].device
        _panel(ax, _by_cap(same, what), reference_of(same, reference, _highest(same)), k)
        heading(ax, what)
    # Beside the panels: curves go wherever a legend within one could stand.
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=7.5, frameon=False, loc="outside right upper")
    bars = bars_said(u for c in shown_all for u in (c.u95_j, c.u95_s))
    said = f"relative to {reference or 'the highest cap'}; EDS with k = {k:g}; {bars}; ringed: least"
    return finish(figure, f"{name}: over the power cap", (c.provenance for c in shown_all), said)


def _by_cap(same: Sequence[Configuration], what: str) -> list[Configuration]:
    """Sorted by cap. A table may say a cap twice, as the best by two metrics."""
    found: dict[float, Configuration] = {}
    for c in same:
        before = found.setdefault(c.power_cap_w or 0.0, c)
        if (before.energy_j, before.time_s) != (c.energy_j, c.time_s):
            where = f" of {what}" if what else ""
            raise AnalysisError(
                f"two configurations{where} have the power cap {c.power_cap_w:g} W: leave one of them out"
            )
    return sorted(found.values(), key=lambda c: c.power_cap_w or 0.0)


def _highest(same: Sequence[Configuration]) -> Configuration:
    return max(same, key=lambda c: c.power_cap_w or 0.0)


def _panel(ax: Axes, same: Sequence[Configuration], ref: Configuration, k: float) -> None:
    e0, t0 = ref.energy_j or 0.0, ref.time_s or 0.0
    if not (e0 > 0 and t0 > 0):
        raise AnalysisError("the reference has an energy or a time of 0: nothing compares with it")
    caps = [float(c.power_cap_w or 0.0) for c in same]
    for i, curve in enumerate(CURVES):
        values = [_relative(c, curve, e0, t0, k) for c in same]
        errors = [_error(c, ref, curve, v, k) for c, v in zip(same, values, strict=True)]
        ax.errorbar(caps, values, yerr=errors if any(errors) else None, color=_COLOURS[i], marker="osD^"[i], ms=4,
                    lw=1.2, capsize=2, label=f"{curve} (k = {k:g})" if curve == "EDS" else curve)  # fmt: skip
        least = min(range(len(values)), key=values.__getitem__)
        ax.plot(caps[least], values[least], marker="o", ms=10, mfc="none", mec=_COLOURS[i], ls="none")
    ax.axhline(1.0, color="#999999", lw=0.8, ls=":")
    ax.set_xlabel("power cap (W)")
    ax.set_ylabel("relative to the reference (1)")


def _relative(c: Configuration, curve: str, e0: float, t0: float, k: float) -> float:
    e, t = c.energy_j or 0.0, c.time_s or 0.0
    if curve == "EDS":
        return eds(e, t, e0, t0, k)
    return {"energy": e / e0, "time": t / t0, "EDP": edp_js(e, t) / edp_js(e0, t0)}[curve]


def _error(c: Configuration, ref: Configuration, curve: str, value: float, k: float) -> float:
    """Half-width; of the ratio, errors of both taken as independent, none for the reference itself."""
    if c.power_cap_w == ref.power_cap_w:
        return 0.0
    relative = []
    for u95, own in (("u95_j", "energy_j"), ("u95_s", "time_s")):
        parts = [(getattr(x, u95) or 0.0) / (getattr(x, own) or 1.0) for x in (c, ref)]
        relative.append(hypot(*parts))
    of_e, of_t = relative
    if curve == "EDS":
        e, t = (c.energy_j or 0.0) / (ref.energy_j or 1.0), (c.time_s or 0.0) / (ref.time_s or 1.0)
        return hypot(of_e * e * (k - 1) / k, of_t * t / k)
    return value * {"energy": of_e, "time": of_t, "EDP": hypot(of_e, of_t)}[curve]
