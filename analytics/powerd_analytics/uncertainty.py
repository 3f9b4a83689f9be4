"""How sure an energy is, after the GUM: a statistical and a systematic part, kept apart and combined.

Statistical: what differs from one phase to the next and averages out. Systematic: gain and zero of the sensor, its
quantisation, what the edges leave open, the clocks, missing readings; it is shared by all phases of a kind, so that
repeating does not shrink it. Different lines are different chips: their systematic parts are independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges import PhaseEnergies
from powerd_analytics.signal import Signal
from powerd_core.model import CounterConversion

COVERAGE_FACTOR = 2.0
"""k of the expanded uncertainty: about 95 % for a normal distribution (GUM 6.2)."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """An energy with the two parts of its standard uncertainty, all in joules."""

    energy_j: float
    u_statistical_j: float
    u_systematic_j: float

    @property
    def u_j(self) -> float:
        """Combined standard uncertainty."""
        return float(np.hypot(self.u_statistical_j, self.u_systematic_j))

    @property
    def u95_j(self) -> float:
        """Expanded uncertainty: the energy lies within ± this with about 95 % confidence."""
        return COVERAGE_FACTOR * self.u_j

    def scaled(self, factor: float) -> Estimate:
        """The same with everything multiplied by a factor that is known exactly."""
        return Estimate(self.energy_j * factor, self.u_statistical_j * factor, self.u_systematic_j * factor)


def systematic_j(signal: Signal, found: PhaseEnergies, duration_s: Values) -> Values:
    """Systematic standard uncertainty of each phase's energy [m] from one line, missing readings apart."""
    a = signal.line.accuracy
    parts = (
        a.u_gain * found.energy_j,
        a.u_offset_w * duration_s,
        # A steady power is rounded the same way in every reading: the error does not average out.
        a.step_w / np.sqrt(12) * duration_s,
        found.u_edge_j,
        found.u_clock_j,
    )
    total: Values = np.sqrt(np.sum(np.square(parts), axis=0))
    return total


def random_j(signal: Signal, found: PhaseEnergies) -> Values:
    """Random standard uncertainty of each phase's energy [m] from one line."""
    conversion = signal.line.conversion
    # The difference of two readings of a counter, each rounded down to a code.
    code = conversion.j_per_code / np.sqrt(6) if isinstance(conversion, CounterConversion) else 0.0
    total: Values = np.hypot(found.u_random_j, code)
    return total


def mean_of(energy_j: Values, u_random_j: Values, u_systematic_j: Values) -> Estimate:
    """Mean energy of repeats [n >= 1].

    The spread of the repeats is their statistical uncertainty; where it is smaller than what single phases are known
    to be unsure of (few repeats, or errors that repeat), that counts.
    """
    n = len(energy_j)
    of_singles = float(np.sqrt(np.sum(u_random_j**2)) / n)
    of_spread = float(np.std(energy_j, ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return Estimate(float(np.mean(energy_j)), max(of_singles, of_spread), float(np.mean(u_systematic_j)))


def sum_of(energy_j: Values, u_random_j: Values, u_systematic_j: Values) -> Estimate:
    """Sum of energies: random parts in quadrature, shared ones one to one."""
    return Estimate(float(np.sum(energy_j)), float(np.sqrt(np.sum(u_random_j**2))), float(np.sum(u_systematic_j)))
