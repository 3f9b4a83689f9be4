"""The parts of an energy's uncertainty by name: what shape each has, and what shares it.

Standard uncertainties in joules, for intervals [m]. A part that all intervals of a class share does not shrink when
they are averaged; one that lines share adds up over them one to one, the others in quadrature. What a line's stated
accuracy is made of, a shunt's tolerance for one, its source decides (`powerd_daemon.sources.ina.sensor_accuracy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.lines import Upto
from powerd_analytics.energy.model import Posterior, most_lag_ns
from powerd_analytics.energy.response import place_limit_ns, rounding_u
from powerd_analytics.energy.uncertainty import NORMAL, one_rectangle
from powerd_analytics.runs.phases import pieces
from powerd_client.signals.signal import Signal
from powerd_core.model import CounterConversion, ShuntConversion

Values = NDArray[np.float64]
Ints = NDArray[np.int64]
Numbers = NDArray[np.signedinteger[Any]]
Parts = Callable[[slice], Iterator[tuple[str, Values]]]
"""Tells the parts of a line's uncertainty by name, one after the other, of a slice of the intervals."""


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
        Kind("missing", False, False, "find why readings are missing (`joules info`) and lower the rate or the load"),
        Kind("model", True, False, "record longer, or with a faster sensor, so that phases are told apart"),
        Kind("misfit", True, True, "take a faster sensor: power does what the phases' marks do not say"),
        Kind("place", True, True, "state the sensor's delay better: a shorter cycle, or one that is measured"),
        Kind("clock", True, True, "shorten the way to the board (a wire, a quiet machine): the bound follows delay"),
        Kind(
            "lag", True, True, "read more often, so that it is seen when power moves, or bound the lag (POWERD_LAG_MS)"
        ),
        Kind("gain", True, False, "calibrate the gain against a reference (`powerd calibrate --reference`)"),
        Kind("offset", True, False, "calibrate the zero with nothing connected (shunts: `powerd calibrate --zero`)"),
        Kind("quantisation", True, False, "take a finer range or resolution, or a larger shunt"),
        Kind(
            "device clock", True, True, "record on a quieter host: the tie of device events to its clock gets tighter"
        ),
    )
}
"""Shunt tolerance is a part of the gain: `powerd_core.model.Accuracy` does not keep them apart, and for steady voltages
they act alike."""

LEAST_READINGS = 5
"""Fewer say nothing of how sure an energy is."""
LIMIT = 0.5
"""A class of intervals is resolved when the model's part of U95 is at most this share of its energy."""


def distribution(name: str, signal: Signal) -> str:
    """``rectangular`` for a limit that stands alone, ``normal`` for what has several sources.

    A shunt's gain and zero are the sum of limits of amplifier, voltage and shunt, or a calibration's (of the first,
    `_even_share`); another line's are one limit that its maker states. What readings have told of is a posterior's.
    """
    if name in ("device clock", "quantisation"):
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
    posterior: Posterior,
    intervals: tuple[Ints, Ints],
    label: Numbers,
    energy_j: Values,
    between: Callable[[slice], Upto],
    edge_bound_ns: Numbers | None,
) -> tuple[Parts, NDArray[np.bool_]]:
    """What tells the parts of one line by name, one after the other, of a slice of the intervals [m]; and which
    intervals are of classes that the line resolves.

    ``between`` tells what the line has of a slice of them, with the variances of the residual between readings.
    """
    model = posterior.model
    signal, a = model.signal, model.signal.line.accuracy
    begin, end = intervals
    conversion = signal.line.conversion
    # The difference of two readings of a counter, each rounded down to a code.
    code = conversion.j_per_code / np.sqrt(6) if isinstance(conversion, CounterConversion) else 0.0
    # Coarse steps may go along with the phases, so that what each end is rounded down by does not average out: an
    # energy is off by one step at most.
    stepped = a.step_j / np.sqrt(3)
    # What all intervals of a class share is that of their mean: what is wrong with the power for each as long as it is,
    # what is wrong with the timing for each alike, as it is at its edges.
    labels = int(label.max(initial=-1)) + 1
    leverage, restless = posterior.leverage(begin, end, label)
    together_s, together_j, count, jumps_j, jumps_j2 = np.zeros((5, labels))
    for own in pieces(len(begin)):
        of = label[own]
        count += np.bincount(of, minlength=labels)
        together_s += np.bincount(of, weights=(end[own] - begin[own]) * 1e-9, minlength=labels)
        together_j += np.bincount(of, weights=energy_j[own], minlength=labels)
        jump_j = between(own).jump_j
        jumps_j += np.bincount(of, weights=jump_j, minlength=labels)
        jumps_j2 += np.bincount(of, weights=jump_j**2, minlength=labels)
    power2, response2, misfit2 = posterior.variance(leverage[:, :-1], together_s / np.maximum(count, 1))
    # Residuals that jump alike where intervals of a class begin or end, as where power depends on what was before: what
    # a straight line makes of that does not average out. What they do by chance does.
    alike2 = np.maximum(jumps_j**2 - jumps_j2, 0.0) / 3
    power2, misfit2 = power2 + alike2, misfit2 + alike2
    told = NORMAL * np.sqrt(power2 + response2) <= LIMIT * np.abs(together_j)
    told &= ~posterior.is_lumped(begin, end, label, labels)
    clock_ns = float(np.max(signal.clock.bound_ns(signal.t_ns[[0, -1]]))) if signal.clock is not None else 0.0
    causes = {"place": place_limit_ns(signal) ** 2 / 3, "clock": clock_ns**2 / 3, "lag": most_lag_ns() ** 2 / 6}
    every = max(sum(causes.values()), 1e-9)
    count = np.maximum(count, 1)
    is_known = posterior.readings >= LEAST_READINGS

    def parts(own: slice) -> Iterator[tuple[str, Values]]:
        of, joules = label[own], energy_j[own]
        length_s = np.asarray((end[own] - begin[own]) * 1e-9, np.float64)
        share = length_s / np.maximum(together_s, 1e-12)[of]
        here = between(own)
        between2, missing2 = np.maximum(here.variance_j2, 0), np.maximum(here.missing_j2, 0)
        square = np.maximum(between2 - missing2, 0) + model.residual.of_interval(length_s, model.response)
        square = square * restless[of] + model.from_elsewhere(begin[own], end[own], length_s) + code**2
        yield "sampling", np.sqrt(square) if is_known else np.full(len(square), np.nan)
        yield "missing", np.sqrt(missing2)
        yield "model", np.sqrt(power2 - misfit2)[of] * share
        yield "misfit", np.sqrt(misfit2)[of] * share
        yield "gain", a.u_gain * np.abs(joules)
        yield "offset", a.u_offset_w * length_s
        in_step = np.minimum(length_s / model.residual.spacing_s, 1.0)
        yield "quantisation", rounding_u(a.step_w, model.residual.all2) * length_s + stepped * in_step
        for name, part in causes.items():
            if part:
                yield name, (np.sqrt(response2 * part / every) / count)[of]
        if edge_bound_ns is not None:
            yield "device clock", edge_bound_ns[own] * 1e-9 / np.sqrt(3) * (np.abs(leverage[:, -1]) / count)[of]

    return parts, told[label] & is_known


class Budget:
    """Parts of the energies of a device [m], summed over its lines."""

    def __init__(self, m: int) -> None:
        self._m = m
        self._squares: dict[str, Values] = {}
        self._shared: dict[str, Values] = {}
        self._rectangle = np.zeros(m)
        self.shapes: dict[str, set[str]] = {}

    def add(self, signal: Signal, parts: Iterable[tuple[str, Values]], own: slice = slice(None)) -> None:
        """A line's parts of some of the intervals."""
        for name, u in parts:
            if not np.any(u):
                continue  # of a column that stays 0, no memory is ever used
            shape = distribution(name, signal)
            self.shapes.setdefault(name, set()).add(shape)
            if KINDS[name].of_lines:
                self._of(self._shared, name)[own] += u
            else:
                self._of(self._squares, name)[own] += u**2
                if (even := 1.0 if shape == "rectangular" else _even_share(name, signal)) > 0:
                    self._rectangle[own] = one_rectangle(self._rectangle[own], even * u)

    @property
    def parts(self) -> dict[str, Values]:
        """By name, in the order of `KINDS`."""
        return {name: u for name in KINDS if (u := self.part(name)) is not None}

    def part(self, name: str, which: slice | NDArray[Any] = slice(None)) -> Values | None:
        """One of them for the intervals ``which``, None where none has it."""
        if name in self._squares:
            return np.sqrt(self._squares[name][which])
        return self._shared[name][which] if name in self._shared else None

    def together(self) -> tuple[Values, Values, Values]:
        """[m] random and systematic standard uncertainty, and the one rectangle within the latter."""
        random2, total2, rectangle = np.zeros(self._m), np.zeros(self._m), self._rectangle
        for name, square in self._squares.items():
            (total2 if KINDS[name].of_repeats else random2)[:] += square
        for name, u in self._shared.items():
            total2 += u**2
            if "rectangular" in self.shapes[name]:
                rectangle = one_rectangle(rectangle, u)
        return np.sqrt(random2), np.sqrt(total2), rectangle

    def _of(self, columns: dict[str, Values], name: str) -> Values:
        return columns.setdefault(name, np.zeros(self._m))
