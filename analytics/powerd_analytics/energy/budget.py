"""The parts of an energy's uncertainty by name: what shape each has, and what shares it.

Standard uncertainties in joules, for phases [m]. A part that all phases of a kind share does not shrink when they are
averaged; one that lines share adds up over them one to one, the others in quadrature. What a line's stated accuracy is
made of, a shunt's tolerance for one, its source decides (`powerd_daemon.sources.ina.sensor.accuracy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.lines import PhaseEnergies
from powerd_analytics.energy.uncertainty import CONFIDENCE, one_rectangle
from powerd_analytics.signals.signal import Signal
from powerd_core.model import CounterConversion, ShuntConversion

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of a part whatever its size. ``remedy`` says what makes it smaller."""

    name: str
    of_repeats: bool
    """Whether all phases of a kind share it; else it differs from phase to phase."""
    of_lines: bool
    """Whether all lines of a device share it."""
    remedy: str


KINDS = {
    k.name: k
    for k in (
        Kind("sampling", False, False, "read more often, or average more phases of the kind"),
        Kind("inner edges", False, False, "nothing is needed for means: it cancels between back-to-back phases"),
        Kind("gain", True, False, "calibrate the gain against a reference (shunts: `powerd calibrate --reference-w`)"),
        Kind("offset", True, False, "calibrate the zero with nothing connected (shunts: `powerd calibrate --zero`)"),
        Kind("quantisation", True, False, "take a finer range or resolution, or a larger shunt"),
        Kind("edges", True, True, "read more often or with shorter averaging, so that edges are seen"),
        Kind("left over", True, False, "average more phases of the kind, so that edges are seen at more moments"),
        Kind("place", True, False, "state the sensor's delay better: a shorter cycle, or one that is measured"),
        Kind("clock", True, True, "shorten the way to the board (a wire, a quiet machine): the bound follows delay"),
        Kind(
            "device clock", True, True, "record on a quieter host: the tie of device events to its clock gets tighter"
        ),
        Kind(
            "lag", True, True, "read more often, so that it is seen when power moves, or bound the lag (POWERD_LAG_MS)"
        ),
        Kind("missing", True, True, "find why readings are missing (`joules info`) and lower the rate or the load"),
    )
}
"""Shunt tolerance is a part of the gain: `powerd_core.model.Accuracy` does not keep them apart, and for steady voltages
they act alike."""

AT_A_TIME = 1 << 20
"""Phases whose shapes are combined together."""
RANDOM = ("sampling",)
INNER = "inner edges"
MISSING = "missing"


def distribution(name: str, signal: Signal) -> str:
    """``rectangular`` for a limit that stands alone, ``normal`` for what has several sources.

    A shunt's gain and zero are the sum of limits of amplifier, voltage and shunt, or a calibration's (of the first,
    `_even_share`); another line's are one limit that its maker states. Clock bounds, a sensor's delay and missing
    readings are limits too. What edges leave open is a model's error, of no known shape.
    """
    if name in ("place", "clock", "device clock", MISSING, "quantisation"):
        return "rectangular"
    if name in ("gain", "offset"):
        return "normal" if isinstance(signal.line.conversion, ShuntConversion) else "rectangular"
    return "normal"


def _even_share(name: str, signal: Signal) -> float:
    """How much of a part that has several sources is the one limit of a shunt's tolerance: 0 to 1, of its standard
    uncertainty. A gain that is known better than the tolerance has been calibrated."""
    if name != "gain" or not isinstance(signal.line.conversion, ShuntConversion):
        return 0.0
    tolerance = signal.line.sensor.get("shunt_tolerance", 0.0)
    limit, u = (
        (float(tolerance) if isinstance(tolerance, (int, float)) else 0.0) / np.sqrt(3),
        signal.line.accuracy.u_gain,
    )
    return limit / u if 0 < limit <= u * (1 + 1e-9) else 0.0


def line_parts(
    signal: Signal, energies: PhaseEnergies, duration_s: Values, edge_bound_ns: Values | None = None
) -> dict[str, Values]:
    """Parts [m] of one line, missing readings apart. ``edge_bound_ns`` [m] is how far a device's clock can have put the
    phases' edges."""
    a, conversion = signal.line.accuracy, signal.line.conversion
    # The difference of two readings of a counter, each rounded down to a code.
    code = conversion.j_per_code / np.sqrt(6) if isinstance(conversion, CounterConversion) else 0.0
    parts = {
        "sampling": np.hypot(energies.u_random_j, code),
        INNER: energies.u_inner_j,
        # The limit of what is not counted is a power that the line showed: it is as wrong as the rest.
        "gain": a.u_gain * (np.abs(energies.energy_j) + energies.beyond_j),
        "offset": a.u_offset_w * duration_s,
        # A steady power without noise is rounded the same way in every reading: the error does not average out.
        "quantisation": energies.u_round_w * duration_s,
        "edges": energies.u_edge_j,
        "left over": energies.u_residual_j,
        "place": energies.u_instant_j,
        "clock": energies.u_clock_j,
    }
    if edge_bound_ns is not None:
        parts["device clock"] = edge_bound_ns * 1e-9 / np.sqrt(3) * energies.u_shift_w
    return parts


class Budget:
    """Parts of the energies of a device [m], summed over its lines.

    Without ``details`` only what the combined figures need is kept: `parts` are then not told apart.
    """

    def __init__(self, m: int, *, details: bool = False) -> None:
        self._m, self._details = m, details
        self._squares: dict[str, Values] = {}
        self._shared: dict[str, Values] = {}
        self._rectangle = np.zeros(m)
        self.shapes: dict[str, set[str]] = {}

    def add(self, which: slice | NDArray[np.intp], signal: Signal, parts: Mapping[str, Values]) -> None:
        """A line's parts for the phases ``which``."""
        for name, u in parts.items():
            shape = distribution(name, signal)
            if not np.any(u):
                continue  # of a column that stays 0, no memory is ever used
            if np.any(u > 0):
                self.shapes.setdefault(name, set()).add(shape)
            if KINDS[name].of_lines:
                self._of(self._shared, name)[which] += u
                continue
            self._of(self._squares, name if self._details else self._group(name))[which] += u**2
            if (even := 1.0 if shape == "rectangular" else _even_share(name, signal)) > 0:
                self._rectangle[which] = one_rectangle(self._rectangle[which], even * u)

    def add_missing(self, off_by_j: Values, beyond_j: Values) -> None:
        """What missing readings can have done, by all lines together [m]: they are scanned, and missed, together. The
        last of the parts.

        ``beyond_j`` of it is of time in which nothing is counted. All joules are missing there: the energy is off to
        one side, and with steady power by the whole limit. So U95 reaches to that limit, and beyond it as far as all
        else is unsure.
        """
        if np.any(off_by_j):
            self._of(self._shared, MISSING)[:] += off_by_j / np.sqrt(3)
        if np.any(off_by_j > 0):
            self.shapes[MISSING] = {"rectangular"}
        for i in range(0, self._m if np.any(beyond_j) else 0, AT_A_TIME):
            at = i + np.flatnonzero(beyond_j[i : i + AT_A_TIME])
            inside2, all_else2 = (off_by_j[at] - beyond_j[at]) ** 2 / 3, self._without_missing2(at)
            u = beyond_j[at] / (CONFIDENCE * np.sqrt(3)) + np.sqrt(inside2 + all_else2)
            self._shared[MISSING][at] = np.sqrt(np.maximum(u**2 - all_else2, 0))

    def _without_missing2(self, at: NDArray[np.intp]) -> Values:
        """Variance of the phases ``at`` by all parts but `MISSING`; what is not known counts as none."""
        total = np.zeros(len(at))
        for square in self._squares.values():
            total += np.nan_to_num(square[at])
        for name, u in self._shared.items():
            if name != MISSING:
                total += np.nan_to_num(u[at]) ** 2
        return total

    @property
    def parts(self) -> dict[str, Values]:
        """By name, in the order of `KINDS`."""
        return {name: u for name in KINDS if (u := self.part(name)) is not None}

    def part(self, name: str, which: slice | NDArray[Any] = slice(None)) -> Values | None:
        """One of them for the phases ``which``, None where no phase has it."""
        if name in self._squares:
            return np.sqrt(self._squares[name][which])
        return self._shared[name][which] if name in self._shared else None

    def taken(self) -> tuple[Values, Values, Values, Values]:
        """``u_random_j``, ``u_inner_j``, ``u_systematic_j`` and ``rectangle_j`` made out of the parts, where these are:
        of many phases there is no room for both. Nothing can be asked for afterwards."""
        limits = [u for name, u in self._shared.items() if "rectangular" in self.shapes.get(name, ())]
        random, inner = (self._squares.pop(name, np.zeros(self._m)) for name in (*RANDOM, INNER))
        total = self._squares.pop("gain", np.zeros(self._m))
        for i in range(0, self._m, AT_A_TIME):
            some = slice(i, i + AT_A_TIME)
            self._rectangle[some] = one_rectangle(self._rectangle[some], *(u[some] for u in limits))
            for square in self._squares.values():
                total[some] += square[some]
            for u in self._shared.values():
                total[some] += u[some] ** 2
            for square in (random, inner, total):
                np.sqrt(square[some], out=square[some])
        self._squares.clear()
        self._shared.clear()
        return random, inner, total, self._rectangle

    def _of(self, columns: dict[str, Values], name: str) -> Values:
        return columns.setdefault(name, np.zeros(self._m))

    @staticmethod
    def _group(name: str) -> str:
        return name if name in (*RANDOM, INNER) else "gain"
