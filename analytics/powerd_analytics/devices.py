"""Energies of devices: the sum over the lines that feed them, each once, never over different provenances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges import PhaseEnergies, phase_line_energies
from powerd_analytics.run import Run
from powerd_analytics.signal import Signal, load_signal
from powerd_analytics.stretches import JOIN_SHARE
from powerd_analytics.uncertainty import random_j, systematic_j
from powerd_core.errors import AnalysisError

Values = NDArray[np.float64]
Ints = NDArray[np.int64]
Progress = Callable[[float, str], None]
"""Called with the share done (0 to 1) and what is being done."""


def no_progress(share: float, text: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class Part:
    """The lines of one provenance that feed one device; nearly always all of them."""

    device: str
    provenance: str
    signals: tuple[Signal, ...]

    @property
    def gap_ns(self) -> float:
        """Phases closer together than this have no gap between them that the sensors could tell."""
        return JOIN_SHARE * min((s.resolution_ns for s in self.signals), default=0.0)


@dataclass(frozen=True, slots=True)
class PhaseColumns:
    """Energies of intervals [m] of one part; NaN in ``energy_j`` where ``resolvable`` is False."""

    energy_j: Values
    linear_j: Values
    begin_j: Values
    end_j: Values
    """Edge corrections contained in ``energy_j`` and not in ``linear_j``, the plain integral."""
    u_random_j: Values
    u_inner_j: Values
    """Random too, but cancelling between back-to-back phases of one kind: of single phases, not of their mean."""
    u_systematic_j: Values
    resolvable: NDArray[np.bool_]
    missing_s: Values
    """The most that one of the lines misses."""
    off_by_j: Values
    duration_s: Values

    @property
    def u95_j(self) -> Values:
        """Expanded uncertainty of each single phase."""
        total: Values = 2 * np.sqrt(self.u_random_j**2 + self.u_inner_j**2 + self.u_systematic_j**2)
        return total


def load_parts(run: Run, device: str | None = None, progress: Progress = no_progress) -> tuple[Part, ...]:
    """The parts of one device or of all, with their readings in memory."""
    devices = [run.device(device)] if device is not None else list(run.devices.values())
    total, done, parts = sum(len(d.feeds) for d in devices), 0, []
    for d in devices:
        signals: dict[str, list[Signal]] = {}
        for name in d.feeds:
            progress(done / max(total, 1), f"reading {name}")
            signals.setdefault(run.lines[name].provenance.value, []).append(load_signal(run, name))
            done += 1
        parts += [Part(d.name, provenance, tuple(found)) for provenance, found in signals.items()]
    return tuple(parts)


def interval_energies(part: Part, begin_ns: Ints, end_ns: Ints, label: Ints, process: Ints) -> PhaseColumns:
    """Energies of intervals [m] that fall into classes ``label``."""
    m = len(begin_ns)
    duration = (end_ns - begin_ns).astype(np.float64) * 1e-9
    sums = {name: np.zeros(m) for name in ("energy_j", "linear_j", "begin_j", "end_j", "off_by_j")}
    random, inner, systematic, missing = np.zeros(m), np.zeros(m), np.zeros(m), np.zeros(m)
    resolvable = np.full(m, bool(part.signals))
    for signal in part.signals:
        found: PhaseEnergies = phase_line_energies(signal, begin_ns, end_ns, label, process)
        for name in sums:
            sums[name] += getattr(found, name)
        random += random_j(signal, found) ** 2
        inner += found.u_inner_j**2
        systematic += systematic_j(signal, found, duration) ** 2
        missing = np.maximum(missing, found.missing_s)
        resolvable &= found.resolvable
    return PhaseColumns(
        **sums,
        u_random_j=np.sqrt(random),
        u_inner_j=np.sqrt(inner),
        # Lines that are scanned together miss the same moments: what that does to them adds up, one to one.
        u_systematic_j=np.hypot(np.sqrt(systematic), sums["off_by_j"] / np.sqrt(3)),
        resolvable=resolvable,
        missing_s=missing,
        duration_s=duration,
    )


def part_phase_energies(run: Run, part: Part) -> PhaseColumns:
    """Energies of all phases of a run, in the order of `Run.phases`."""
    p = run.phases
    return interval_energies(part, p.begin_ns, p.end_ns, p.label, p.process)


def phase_energies(run: Run, device: str, provenance: str | None = None) -> PhaseColumns:
    """Energy of every single phase of a run on a device, with its uncertainty.

    ``provenance`` must say which part is meant when the device is fed by lines of different provenance, which are
    never added: else `AnalysisError`.
    """
    parts = load_parts(run, device)
    chosen = [p for p in parts if provenance in (None, p.provenance)]
    if len(chosen) != 1:
        there = ", ".join(p.provenance for p in parts) or "no lines"
        raise AnalysisError(f"device {device!r} is fed by {there}: say which provenance is meant; they are never added")
    return part_phase_energies(run, chosen[0])


def line_energies(signals: Sequence[Signal], begin_ns: int, end_ns: int) -> Values:
    """Plain integral of each signal over one interval, for comparisons between lines."""
    return np.array([float(s.integral().between(begin_ns, end_ns)) for s in signals])
