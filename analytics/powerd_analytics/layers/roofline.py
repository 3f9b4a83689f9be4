"""An energy roofline: operations a byte against operations a joule, of layers and whole models.

After Choi, Bedard, Fowler and Vuduc, "A roofline model of energy" (2013). The roofs drawn are the best that the run's
own layers reached: no figure of a data sheet is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerd_analytics.layers.rows import LayerEnergy
from powerd_core.errors import AnalysisError


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One layer, phase or model by one convention."""

    name: str
    level: str
    passes: str
    device: str
    provenance: str
    convention: str
    operations_per_byte: float
    gflops_per_w: float
    """10^9 operations a joule."""
    u95_gflops_per_w: float | None
    is_upper_bound: bool
    energy_j: float


@dataclass(frozen=True, slots=True)
class Roof:
    """The most that any of some points reached. ``gflops_per_w`` bounds all, ``gb_per_j`` those with few operations."""

    gflops_per_w: float
    gb_per_j: float

    def at(self, operations_per_byte: float) -> float:
        """GFLOPS/W that the roof allows at an intensity."""
        return min(self.gflops_per_w, self.gb_per_j * operations_per_byte)


def roofline(rows: Sequence[LayerEnergy], convention: str) -> tuple[RooflinePoint, ...]:
    """Points of all rows that have joules, operations and bytes by that convention; the others have none."""
    points = []
    for row in rows:
        figure = row.by(convention)
        intensity = figure.operations_per_byte
        if intensity is None or figure.gflops_per_w is None or row.j_per_batch is None:
            continue
        points.append(
            RooflinePoint(
                row.layer or row.level,
                row.level,
                row.passes,
                row.device,
                row.provenance,
                convention,
                intensity,
                figure.gflops_per_w,
                figure.u95_gflops_per_w,
                row.is_lower_bound,
                row.j_per_batch,
            )
        )
    return tuple(points)


def roof_of(points: Sequence[RooflinePoint]) -> Roof:
    """The roof over some points. Raises `AnalysisError` when there are none."""
    if not points:
        raise AnalysisError("no layer has joules and operations: nothing to draw a roofline of")
    return Roof(max(p.gflops_per_w for p in points), max(p.gflops_per_w / p.operations_per_byte for p in points))
