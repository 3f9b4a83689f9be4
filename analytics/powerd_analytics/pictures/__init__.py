"""One picture a module, from configurations, layers or a run; `save` writes any of them."""

from powerd_analytics.pictures.caps import draw_caps
from powerd_analytics.pictures.configurations import (
    Configuration,
    configurations_of_records,
    configurations_of_table,
)
from powerd_analytics.pictures.layers import Layer, draw_layers, layers_of_rows, layers_of_table
from powerd_analytics.pictures.matrix import draw_matrix
from powerd_analytics.pictures.pareto import draw_pareto
from powerd_analytics.pictures.phases import draw_phases
from powerd_analytics.pictures.quality import draw_quality
from powerd_analytics.pictures.style import save
from powerd_analytics.pictures.treemap import draw_treemap, squarify

__all__ = [
    "Configuration",
    "Layer",
    "configurations_of_records",
    "configurations_of_table",
    "draw_caps",
    "draw_layers",
    "draw_matrix",
    "draw_pareto",
    "draw_phases",
    "draw_quality",
    "draw_treemap",
    "layers_of_rows",
    "layers_of_table",
    "save",
    "squarify",
]
