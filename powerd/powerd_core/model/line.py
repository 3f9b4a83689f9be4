"""One measured conductor or counter: what its codes mean, where they come from, and how wrong they may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from powerd_core.model.conversion import Conversion, quantity_of


class Provenance(StrEnum):
    """How a line's joules come about. Every table and plot says which."""

    MEASURED = "measured"
    MODELLED = "modelled"
    SIMULATED = "simulated"


LATER = {"later": True}
"""Marks a field that was added later: it is written only where it is not its default, so that who does not know it
reads everything else, and refuses what he would get wrong."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What is known of a line's errors, as standard uncertainties (GUM: half-width / sqrt(3) for limits).

    A reading with timestamp ``t`` is the mean over a window ``window_ns`` wide, behind which there may be a low-pass of
    first order with the time constant ``filter_ns``: of what lies ``a`` before the newest, exp(-a / filter_ns) is left.
    The centre of that weight is within ``t ± centre_ns``. ``update_ns`` is the distance at which new values appear when
    that is longer than the distance of the readings.
    """

    u_gain: float = 0.0
    """Relative standard uncertainty of the power's gain, shared by all readings of the line."""
    u_offset_w: float = 0.0
    """Standard uncertainty of the power's zero in watts, shared by all readings of the line."""
    step_w: float = 0.0
    """Quantisation step in watts at the line's nominal voltage."""
    window_ns: int = 0
    centre_ns: int = 0
    update_ns: int = 0
    origin: str = ""
    """Where these figures come from: a data sheet's section, a calibration, a measurement."""
    filter_ns: int = field(default=0, metadata=LATER)

    @property
    def reach_ns(self) -> int:
        """Width around a timestamp that holds nearly all of a reading's weight: 95 % of what a low-pass adds."""
        return self.window_ns + 4 * self.filter_ns


@dataclass(frozen=True, slots=True)
class Line:
    """One measured conductor or counter, such as ``gpu0.pcie_12v``."""

    name: str
    device: str
    conversion: Conversion
    provenance: Provenance
    accuracy: Accuracy = Accuracy()
    description: str = ""

    @property
    def quantity(self) -> str:
        """``energy_j`` for a counter, ``power_w``, or the name of what is neither."""
        return quantity_of(self.conversion)
