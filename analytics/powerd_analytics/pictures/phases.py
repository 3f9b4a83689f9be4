"""Energy and time of each phase by batch size: grouped bars as in figures 5 to 8 of Castro et al."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerd_analytics.energy.reasons import digits
from powerd_analytics.pictures.bars import HATCHES
from powerd_analytics.pictures.configurations import Configuration, label
from powerd_analytics.pictures.style import bars_said, colours, finish, only_model, panels, shown
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = ("model", "gpus", "device", "provenance", "power_cap_w", "others")
MOST_NUMBERS = 24
"""Panels with more bars than this have no numbers above them."""


def draw_phases(found: Sequence[Configuration], name: str) -> Figure:
    """Bars in groups of one batch size, one bar a phase, energy above time; a panel for each model, device and number
    of GPUs. Raises `AnalysisError` where there are no phases."""
    kept = [c for c in found if c.phase not in ("", "all", "total")]
    if not kept:
        raise AnalysisError("no phases to draw: a table needs the column phase, with j_per_batch and s_per_batch")
    if all(c.energy_j is None and not c.provenance for c in kept):
        raise AnalysisError("no energy to draw: a table of phases needs the column j_per_batch")
    groups: dict[tuple[object, ...], list[Configuration]] = {}
    bars: set[tuple[object, ...]] = set()
    for c in kept:
        place = (*(getattr(c, n) for n in _PANEL), c.batch, c.phase)
        if place in bars:
            where = ", ".join(filter(None, (label(c, kept) or c.model, c.phase)))
            raise AnalysisError(f"two rows for one bar of the picture: {where}: leave one of them out")
        bars.add(place)
        groups.setdefault(tuple(getattr(c, n) for n in _PANEL), []).append(c)
    chosen = colours(c.phase for c in kept)
    figure, axes = panels(len(groups), (5.2, 2.7), rows=2)
    highest: dict[tuple[str, str, str], float] = {}
    for c in kept:
        for of in ("energy", "time"):
            key = c.model, c.provenance, of
            highest[key] = max(highest.get(key, 0.0), sum(v or 0.0 for v in _value(c, of)))
    for (upper, lower), same in zip(axes, groups.values(), strict=True):
        # One scale for a model and kind of power: panels side by side are there to be compared.
        for ax, of in ((upper, "energy"), (lower, "time")):
            _bars(ax, same, chosen, of, highest[same[0].model, same[0].provenance, of] or 1.0)
        upper.set_title(shown(label(same[0], kept, ("batch",)) or same[0].model or same[0].device, 70))
        upper.set_ylabel("energy a batch (J)")
        lower.set_ylabel("time a batch (s)")
        lower.set_xlabel("batch size")
    _legend(figure, kept, chosen)
    said = bars_said(u for c in kept for u in (c.u95_j, c.u95_s))
    title = f"{name}: energy and time by phase{only_model(c.model for c in kept)}"
    return finish(figure, title, (c.provenance for c in kept), said)


def _value(c: Configuration, name: str) -> tuple[float | None, float | None]:
    return (c.energy_j, c.u95_j) if name == "energy" else (c.time_s, c.u95_s)


def _bars(ax: Axes, same: Sequence[Configuration], chosen: dict[str, str], name: str, highest: float) -> None:
    batches = sorted({c.batch for c in same}, key=lambda b: (b is None, b or 0.0))
    names = [n for n in chosen if any(c.phase == n for c in same)]
    width = 0.84 / len(names)
    for c in same:
        x = batches.index(c.batch) + (names.index(c.phase) - (len(names) - 1) / 2) * width
        height, u = _value(c, name)
        if height is None:
            ax.bar(x, 0.035 * highest, 0.92 * width, facecolor="none", edgecolor=chosen[c.phase], hatch="xxxx", lw=0.8)
            ax.annotate("n.r.", (x, 0.045 * highest), ha="center", va="bottom", fontsize=6.5, color="#444444")
            continue
        # Time is the host's own, however the power came about.
        hatch = HATCHES.get(c.provenance, "") if name == "energy" else ""
        ax.bar(x, height, 0.92 * width, color=chosen[c.phase], hatch=hatch, edgecolor="white", lw=0)
        bound = c.is_lower_bound and name == "energy"
        reach = 0.05 * highest if bound else u or 0.0
        if bound or u:
            ax.errorbar(x, height, yerr=reach, lolims=bound, color="black", capsize=2.5, lw=1, ls="none")
        if len(batches) * len(names) <= MOST_NUMBERS:
            text = ("≥ " if bound else "") + digits(height, 3)
            ax.annotate(text, (x, height + reach), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom",
                        fontsize=6.5)  # fmt: skip
    ax.set_xticks(range(len(batches)), ["all" if b is None else f"{b:g}" for b in batches])
    ax.set_xlim(-0.6, len(batches) - 0.4)
    ax.set_ylim(0, 1.14 * highest)


def _legend(figure: Figure, kept: Sequence[Configuration], chosen: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=shown(name, 30)) for name, colour in chosen.items()]
    kinds = sorted({c.provenance for c in kept if HATCHES.get(c.provenance)})
    handles += [Patch(facecolor="#bbbbbb", hatch=2 * HATCHES[k], edgecolor="white", label=k) for k in kinds]
    if any(c.energy_j is None for c in kept):
        why = "not resolvable" if any(c.provenance for c in kept) else "no figure"
        handles.append(Patch(facecolor="none", edgecolor="#444444", hatch="xxxx", label=f"n.r.: {why}"))
    if any(c.is_lower_bound for c in kept):
        handles.append(Patch(facecolor="none", label="↑ ≥: lower bound, clipped readings"))
    figure.legend(handles=handles, fontsize=7.5, frameon=False, loc="outside right upper")
