"""Pictures of a run, of configurations, of phases or of layers. Each `draw_...` gives a figure, `save` writes it."""

from powerd_analytics.plots.configurations import (
    configurations_of_runs,
    configurations_of_table,
    draw_pareto,
    draw_phases,
    draw_sweep,
)
from powerd_analytics.plots.power import draw_clocks, draw_quality, draw_run
from powerd_analytics.plots.roofline import draw_roofline
from powerd_analytics.plots.savings import draw_front, draw_savings
from powerd_analytics.plots.style import printed_at, save

__all__ = [
    "configurations_of_runs",
    "configurations_of_table",
    "draw_clocks",
    "draw_front",
    "draw_pareto",
    "draw_phases",
    "draw_quality",
    "draw_roofline",
    "draw_run",
    "draw_savings",
    "draw_sweep",
    "printed_at",
    "save",
]
