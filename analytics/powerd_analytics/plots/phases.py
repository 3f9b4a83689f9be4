"""Energy and time of each phase by batch size: grouped bars as in figures 5 to 8 of Castro et al."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerd_analytics.plots.configurations import Configuration, grouped, label
from powerd_analytics.plots.style import (
    HATCHES,
    Bar,
    Scale,
    bar_handles,
    colours,
    draw_bars,
    finish,
    heading,
    interval_note,
    panels,
    scale_of,
    styled,
)
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = ("model", "gpus", "device", "provenance", "power_cap_w", "others")
_SIZE, _WIDTH = (5.2, 2.7), 4.5
"""Inches of a panel, and about the width of the axes in it."""
_ROWS = {"energy": "energy a batch (J)", "time": "time a batch (s)"}


@styled
def draw_phases(configurations: Sequence[Configuration], name: str) -> Figure:
    """Bars in groups of one batch size, one bar a phase, energy above time; a panel for each model, device and number
    of GPUs, those of a model side by side. Without any time, energy alone.

    Raises `AnalysisError` where there are no phases.
    """
    kept = [c for c in configurations if not c.is_whole]
    if not kept:
        raise AnalysisError("no phases to draw: a table needs the column phase, with j_per_batch and s_per_batch")
    if all(c.energy_j is None and not c.provenance for c in kept):
        raise AnalysisError("no energy to draw: a table of phases needs the column j_per_batch")
    for same in grouped(kept, (*_PANEL, "batch", "phase")):
        if len(same) > 1:
            where = ", ".join(filter(None, (label(same[0], kept) or same[0].model, same[0].phase)))
            raise AnalysisError(f"two rows for one bar of the picture: {where}: leave one of them out")
    models = list(dict.fromkeys(c.model for c in kept))
    groups = sorted(grouped(kept, _PANEL), key=lambda same: models.index(same[0].model))
    phase_colours = colours(c.phase for c in kept)
    rows = [row for row in _ROWS if row == "energy" or any(c.time_s is not None for c in kept)]
    figure, axes = panels(len(groups), _SIZE, rows=len(rows))
    unknown = "n.r." if any(c.provenance for c in kept) else "–"
    for column, same in zip(axes, groups, strict=True):
        # One scale for a model and kind of power: panels side by side are there to be compared.
        alike = [c for c in kept if (c.model, c.provenance) == (same[0].model, same[0].provenance)]
        for ax, row in zip(column, rows, strict=True):
            _panel(ax, same, phase_colours, row, scale_of(_value(c, row) for c in alike), unknown)
        heading(column[0], label(same[0], kept, ("batch",)) or same[0].model or same[0].device)
        column[-1].set_xlabel("batch size")
    why = f"{unknown}: {'not resolvable' if unknown == 'n.r.' else 'no figure'}"
    handles = bar_handles(
        phase_colours,
        (c.provenance for c in kept),
        why if any(c.energy_j is None for c in kept) else "",
        has_bounds=any(c.is_lower_bound for c in kept),
    )
    figure.legend(handles=handles, fontsize=7.5, frameon=False, loc="outside right upper")
    of_model = f" of {models[0]}" if len(models) == 1 and models[0] else ""
    note = interval_note(u for c in kept for u in (c.u95_j, c.u95_s))
    return finish(figure, f"{name}: {' and '.join(rows)} by phase{of_model}", (c.provenance for c in kept), note)


def _value(c: Configuration, row: str) -> tuple[float | None, float | None]:
    return (c.energy_j, c.u95_j) if row == "energy" else (c.time_s, c.u95_s)


def _panel(
    ax: Axes, same: Sequence[Configuration], phase_colours: dict[str, str], row: str, scale: Scale, unknown: str
) -> None:
    batches = sorted({c.batch for c in same}, key=lambda b: (b is None, b or 0.0))
    names = [n for n in phase_colours if any(c.phase == n for c in same)]
    width = 0.84 / len(names)
    is_energy = row == "energy"
    bars = [
        Bar(
            batches.index(c.batch) + (names.index(c.phase) - (len(names) - 1) / 2) * width, width, *_value(c, row),
            phase_colours[c.phase],
            # Time is the host's own, however the power came about.
            HATCHES.get(c.provenance, "") if is_energy else "",
            c.is_lower_bound and is_energy,
        )
        for c in same
    ]  # fmt: skip
    draw_bars(ax, bars, scale, _WIDTH, unknown=unknown)
    ticks = ["all" if b is None else f"{b:g}" for b in batches]
    ax.set_xticks(range(len(batches)), ticks, fontsize=9 if len(batches) <= 8 else 7)
    ax.set_xlim(-0.6, len(batches) - 0.4)
    ax.set_ylabel(_ROWS[row] + (", logarithmic" if scale.is_log else ""))
