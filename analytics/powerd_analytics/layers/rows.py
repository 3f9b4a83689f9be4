"""The rows of `joules layers`: energy and efficiency of layers, passes and models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from powerd_analytics.energy.uncertainty import Estimate
from powerd_analytics.operations.counts import EXECUTED, PAPER

LAYER = "layer"
PASSES = ("forward", "backward")
BOTH = "forward+backward"


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Operations of one batch by one convention over the joules that they took. None: not counted, or no joules."""

    operations: int | None = None
    moved_bytes: int | None = None
    gflops_per_w: float | None = None
    u95_gflops_per_w: float | None = None
    """From the joules' uncertainty; operations are exact."""

    @property
    def operations_per_byte(self) -> float | None:
        return self.operations / self.moved_bytes if self.operations and self.moved_bytes else None


@dataclass(frozen=True, slots=True)
class LayerEnergy:
    """One layer, phase or model in one pass or both, for one batch on one device.

    Without a number in ``j_per_batch``, ``note`` says why. Where ``is_lower_bound``, GFLOPS/W are upper bounds.
    """

    level: str
    """``layer``, ``phase`` (a whole pass) or ``model`` (forward and backward)."""
    group: Mapping[str, Any]
    layer: str
    kind: str
    passes: str
    device: str
    provenance: str
    calls: float
    """Phases a batch: a module that is called twice has two."""
    s_per_batch: float | None
    energy: Estimate | None
    is_lower_bound: bool
    paper: Efficiency
    executed: Efficiency
    note: str

    @property
    def j_per_batch(self) -> float | None:
        return self.energy.energy_j if self.energy else None

    @property
    def u95_j(self) -> float | None:
        return self.energy.u95_j if self.energy and not self.is_lower_bound else None

    def by(self, convention: str) -> Efficiency:
        """The efficiency by ``paper`` or ``executed``."""
        return {PAPER: self.paper, EXECUTED: self.executed}[convention]
