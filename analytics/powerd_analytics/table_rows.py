"""The rows of a run's table. Field names are the column names of every output; they carry units and stay.

Where ``is_lower_bound``, a line stood at full scale: joules, watts and what is proportional to them are the least that
they can be, figures per joule the most, and there is no ``u95_j``. The other uncertainties are those of the bound.
Where a line clipped at negative full scale they are no bound, and there is no uncertainty at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from powerd_analytics.export import is_number

INTEGRAL, FOLDED = "integral", "folded"

LAYER = "layer"
"""The phase, and the attribute of phases, by which `Meter.watch(layers=True)` marks a layer."""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """Phases of one kind on one device. Without a number in ``j_per_batch``, ``note`` says why there is none."""

    group: Mapping[str, Any]
    phase: str
    path: str
    device: str
    provenance: str
    timing: str
    iterations: int
    """Phases that ended; those cut off are in the note."""
    s_per_batch: float | None
    j_per_batch: float | None
    u95_j: float | None
    u_statistical_j: float | None
    u_systematic_j: float | None
    power_w: float | None
    samples_per_s: float | None
    missing_s: float
    """Seconds without readings in all its phases together."""
    off_by_j: float
    """The most that missing readings can have moved the mean; part of ``u_systematic_j``. Clipped ones apart."""
    is_lower_bound: bool
    note: str
    ranks: int = 1
    """Ranks that share the device: joules and watts are then the mean of one rank's share."""
    method: str = INTEGRAL
    """How ``j_per_batch`` came about: `INTEGRAL` of the readings of each phase, or `FOLDED` over all of them."""
    folded_parts_j: tuple[tuple[str, float], ...] = ()
    """Of a folded row what ``u_systematic_j`` consists of, by name."""

    @property
    def is_resolvable(self) -> bool:
        return self.j_per_batch is not None


@dataclass(frozen=True, slots=True)
class TotalRow:
    """All phases of one group (such as one model and batch size) on one device, from first to last."""

    group: Mapping[str, Any]
    device: str
    provenance: str
    iterations: int
    time_s: float
    energy_j: float | None
    u95_j: float | None
    u_statistical_j: float | None
    u_systematic_j: float | None
    power_w: float | None
    edp_js: float | None
    samples_per_s: float | None
    gflops_per_w_paper: float | None
    """Forward and backward each count the model's operations once (Castro et al.)."""
    gflops_basis: str
    """Whose joules that figure divides by: ``forward+backward`` or ``iteration``; one for all groups of a device."""
    rest_j: float | None
    """Energy between the group's resolvable innermost phases."""
    residual_j: float | None
    """``energy_j`` less those phases and the rest."""
    missing_s: float
    is_lower_bound: bool
    note: str
    ranks_counted: int = 1
    """Ranks whose iterations ``iterations`` counts: of those that share the device, the ones with such phases."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """The whole recording on one device: the plain integral, and what the outermost phases and the rest make of it."""

    device: str
    provenance: str
    time_s: float
    energy_j: float | None
    """None when a line that feeds the device has no readings in the run."""
    u95_j: float | None
    power_w: float | None
    phases_j: float | None
    rest_j: float | None
    residual_j: float | None
    """``energy_j`` less phases and rest: what straight lines across the edges get wrong."""
    missing_s: float
    is_lower_bound: bool
    note: str


@dataclass(frozen=True, slots=True)
class IdleRow:
    """Idle power of one device by lines of one provenance, from the run's phases called ``baseline``."""

    device: str
    provenance: str
    idle_w: float
    """Mean of what was measured before and after, each once."""
    u_w: float
    """Standard uncertainty, with what idle drifted between the two."""
    before_w: float | None
    after_w: float | None
    seconds: float
    """All its baselines together."""
    note: str


@dataclass(frozen=True, slots=True)
class RankRow:
    """What one rank took of one device over the whole recording: 1/``ranks`` of its power at every moment."""

    rank: int
    device: str
    provenance: str
    ranks: int
    """How many ranks share the device."""
    busy_s: float
    """In its outermost phases, each second once."""
    energy_j: float | None
    """None where the device has none."""
    phases_j: float | None
    """In its outermost phases; those that run beside others are left out."""
    rest_j: float | None
    residual_j: float | None
    """``energy_j`` less phases and rest."""
    is_lower_bound: bool
    note: str


@dataclass(frozen=True, slots=True)
class JobRow:
    """All ranks together against the devices they used."""

    devices: tuple[str, ...]
    provenance: str
    ranks: int
    energy_j: float | None
    """Sum over the ranks; None where one of the devices has no readings."""
    devices_j: float | None
    """Sum over the devices, each once."""
    residual_j: float | None
    is_lower_bound: bool
    note: str


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """Everything that `joules tables` prints."""

    phases: tuple[PhaseRow, ...]
    totals: tuple[TotalRow, ...]
    runs: tuple[RunRow, ...]
    idle: tuple[IdleRow, ...] = ()
    """Where energies above idle are asked for: idle power of each part."""
    ranks: tuple[RankRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    """Both only where there is more than one rank."""


# Groups of phases in words.


def group_text(group: Mapping[str, Any], fallback: str = "run") -> str:
    """A group for an axis: the model's name, the product's, whatever else it has, the batch size."""
    names = sorted(group, key=lambda k: (k != "model", k != "device_name", k == "batch_size"))
    return "\n".join(_part(k, group[k]) for k in names) or fallback


def _part(name: str, value: Any) -> str:
    if name in ("model", "device_name"):
        return str(value)
    if name == "gpus":
        return f"{value} GPU{'' if value == 1 else 's'}"
    return f"batch {value}" if name == "batch_size" else f"{name} {quoted(value)}"


def quoted(value: Any) -> str:
    """An attribute for people; a text that reads like a number is another value than the number, and in quotes."""
    return f'"{value}"' if isinstance(value, str) and is_number(value) else str(value)


def group_line(group: Mapping[str, Any]) -> str:
    """`group_text` in one line, empty for phases without a group."""
    return group_text(group, "").replace("\n", ", ")
