"""Energy and time of each phase by batch size: grouped bars as in figures 5 to 8 of Castro et al."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerd_analytics.pictures.bar import HATCHES, Bar, Scale, put_bars, scale_of
from powerd_analytics.pictures.configurations import Configuration, label
from powerd_analytics.pictures.style import (
    bars_said,
    colours,
    finish,
    heading,
    middle,
    only_model,
    panels,
    shown,
    styled,
)
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = ("model", "gpus", "device", "provenance", "power_cap_w", "others")
_SIZE, _AXES = (5.2, 2.7), (4.5, 2.2)
"""Inches of a panel, and about of the axes in it."""
_ROWS = {"energy": "energy a batch (J)", "time": "time a batch (s)"}


@styled
def draw_phases(found: Sequence[Configuration], name: str) -> Figure:
    """Bars in groups of one batch size, one bar a phase, energy above time; a panel for each model, device and number
    of GPUs, those of a model side by side. Without any time, energy alone.

    Raises `AnalysisError` where there are no phases.
    """
    kept = [c for c in found if c.phase not in ("", "all", "total")]
    if not kept:
        raise AnalysisError("no phases to draw: a table needs the column phase, with j_per_batch and s_per_batch")
    if all(c.energy_j is None and not c.provenance for c in kept):
        raise AnalysisError("no energy to draw: a table of phases needs the column j_per_batch")
    groups = _groups(kept)
    chosen = colours(c.phase for c in kept)
    rows = [of for of in _ROWS if of == "energy" or any(c.time_s is not None for c in kept)]
    figure, axes = panels(len(groups), _SIZE, rows=len(rows))
    unknown = "n.r." if any(c.provenance for c in kept) else "–"
    for column, same in zip(axes, groups, strict=True):
        # One scale for a model and kind of power: panels side by side are there to be compared.
        alike = [c for c in kept if (c.model, c.provenance) == (same[0].model, same[0].provenance)]
        for ax, of in zip(column, rows, strict=True):
            _panel(ax, same, chosen, of, scale_of(_value(c, of) for c in alike), unknown)
        heading(column[0], label(same[0], kept, ("batch",)) or same[0].model or same[0].device)
        column[-1].set_xlabel("batch size")
    _legend(figure, kept, chosen, unknown)
    said = bars_said(u for c in kept for u in (c.u95_j, c.u95_s))
    title = f"{name}: {' and '.join(rows)} by phase{only_model(c.model for c in kept)}"
    return finish(figure, title, (c.provenance for c in kept), said)


def _groups(kept: Sequence[Configuration]) -> list[list[Configuration]]:
    """The panels, those of one model behind one another. Raises `AnalysisError` where two rows are one bar."""
    groups: dict[tuple[object, ...], list[Configuration]] = {}
    bars: set[tuple[object, ...]] = set()
    for c in kept:
        place = (*(getattr(c, n) for n in _PANEL), c.batch, c.phase)
        if place in bars:
            where = ", ".join(filter(None, (label(c, kept) or c.model, c.phase)))
            raise AnalysisError(f"two rows for one bar of the picture: {where}: leave one of them out")
        bars.add(place)
        groups.setdefault(tuple(getattr(c, n) for n in _PANEL), []).append(c)
    models = list(dict.fromkeys(c.model for c in kept))
    return sorted(groups.values(), key=lambda same: models.index(same[0].model))


def _value(c: Configuration, name: str) -> tuple[float | None, float | None]:
    return (c.energy_j, c.u95_j) if name == "energy" else (c.time_s, c.u95_s)


def _panel(
    ax: Axes, same: Sequence[Configuration], chosen: dict[str, str], name: str, scale: Scale, unknown: str
) -> None:
    batches = sorted({c.batch for c in same}, key=lambda b: (b is None, b or 0.0))
    names = [n for n in chosen if any(c.phase == n for c in same)]
    width = 0.84 / len(names)
    is_energy = name == "energy"
    bars = [
        Bar(
            batches.index(c.batch) + (names.index(c.phase) - (len(names) - 1) / 2) * width, width, *_value(c, name),
            chosen[c.phase],
            # Time is the host's own, however the power came about.
            HATCHES.get(c.provenance, "") if is_energy else "",
            c.is_lower_bound and is_energy,
        )
        for c in same
    ]  # fmt: skip
    put_bars(ax, bars, scale, _AXES, len(batches) + 0.2, unknown=unknown)
    few = len(batches) <= 8
    ax.set_xticks(range(len(batches)), ["all" if b is None else f"{b:g}" for b in batches], fontsize=9 if few else 7)
    ax.set_xlim(-0.6, len(batches) - 0.4)
    ax.set_ylabel(_ROWS[name] + (", logarithmic" if scale.is_log else ""))


def _legend(figure: Figure, kept: Sequence[Configuration], chosen: dict[str, str], unknown: str) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=shown(middle(name, 30))) for name, colour in chosen.items()]
    kinds = sorted({c.provenance for c in kept if HATCHES.get(c.provenance)})
    handles += [Patch(facecolor="#bbbbbb", hatch=2 * HATCHES[k], edgecolor="white", label=k) for k in kinds]
    if any(c.energy_j is None for c in kept):
        why = "not resolvable" if unknown == "n.r." else "no figure"
        handles.append(Patch(facecolor="none", edgecolor="#444444", hatch="xxxx", label=f"{unknown}: {why}"))
    if any(c.is_lower_bound for c in kept):
        handles.append(Patch(facecolor="none", label="↑ ≥: lower bound, clipped readings"))
    figure.legend(handles=handles, fontsize=7.5, frameon=False, loc="outside right upper")
