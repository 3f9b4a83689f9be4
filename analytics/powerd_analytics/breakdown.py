"""What an iteration's joules consist of: its phases, and the rest between them; for bars in pictures and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerd_analytics.campaign import (
    averaged,
    group_of,
    innermost,
    of_a_batch,
    of_configurations,
    parts_of_machines,
    without_gflops,
    without_summands,
)
from powerd_analytics.export import Cell
from powerd_analytics.records import Record, attributes_of, number_of
from powerd_analytics.table import ITERATION

KINDS = ("measured", "simulated", "modelled")
"""In the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Piece:
    """All phases of a kind within one iteration. Without joules the sensor could not resolve them."""

    phase: str
    energy_j: float | None
    u95_j: float | None
    is_lower_bound: bool


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One iteration of one configuration on one device: means."""

    place: str
    """The configuration in words."""
    device: str
    provenance: str
    model: str
    panel: tuple[str, str, str]
    """Part of the machine, provenance and model: what agrees in these has one scale, and nothing else has."""
    energy_j: float | None
    u95_j: float | None
    pieces: tuple[Piece, ...]
    is_lower_bound: bool

    @property
    def known_j(self) -> float:
        return sum(max(p.energy_j or 0.0, 0.0) for p in self.pieces)

    @property
    def rest_j(self) -> float:
        """What no resolvable phase has; an overlap of some intervals is none."""
        return max((self.energy_j or 0.0) - self.known_j, 0.0)

    @property
    def reach_j(self) -> float:
        """Where its bar ends, its interval included."""
        return max(self.known_j, (self.energy_j or 0.0) + (self.u95_j or 0.0))

    @property
    def rest_name(self) -> str:
        """What the rest is: between the phases, or also in those that are not resolvable."""
        return "rest, n.r." if any(p.energy_j is None for p in self.pieces) else "rest"


def breakdowns(records: Sequence[Record]) -> list[list[Breakdown]]:
    """The configurations of each device and model, measured ones first, then those with most joules. Of `prepared`
    records (`powerd_analytics.campaign_tables`); repeats are averaged, and GPUs that are added up are there once."""
    parts_and_totals = [of_a_batch(r) for r in records if r["kind"] in ("phase", "total")]
    means = without_summands(averaged(map(without_gflops, parts_and_totals)))

    def grouped(some: Sequence[Record]) -> dict[tuple[Cell, ...], list[Record]]:
        groups: dict[tuple[Cell, ...], list[Record]] = {}
        for r in some:
            groups.setdefault((*group_of(r), r["run"]), []).append(r)
        return groups

    every = grouped(means)
    parts = parts_of_machines(means)
    by_figure: dict[tuple[str, ...], list[tuple[list[Record], Record | None]]] = {}
    for key, phases in grouped(of_configurations(innermost(means))).items():
        figure = tuple(str(phases[0][name] or "") for name in ("device", "provenance", "model"))
        own = _of_iteration(every[key], phases)
        by_figure.setdefault(figure, []).append((own, _whole(every[key], own)))
    for same in by_figure.values():
        same.sort(key=lambda own: number_of(own[0][0], "batch_size") or 0.0)
    figures = [
        [_breakdown(phases, whole, [others for others, _ in same], parts) for phases, whole in same]
        for same in by_figure.values()
    ]
    return sorted(figures, key=lambda own: (KINDS.index(own[0].provenance), -sum(b.reach_j for b in own)))


def _of_iteration(group: Sequence[Record], phases: list[Record]) -> list[Record]:
    """The phases that lie in an iteration, where a group has some: an evaluation beside it is no part of it."""
    around = tuple(f"{r['phase_path']}/" for r in group if r["kind"] == "phase" and r["phase"] == ITERATION)
    return [r for r in phases if f"{r['phase_path']}/".startswith(around)] or phases


def _whole(group: Sequence[Record], phases: Sequence[Record]) -> Record | None:
    """The phase around all of these as often as them, such as an iteration; else the total of their group."""
    most = max(number_of(r, "iterations") or 0.0 for r in phases)
    around = [
        r for r in group
        if r["kind"] == "phase" and number_of(r, "iterations") == most
        and all(str(p["phase_path"]).startswith(f"{r['phase_path']}/") for p in phases)
    ]  # fmt: skip
    around.sort(key=lambda r: -len(str(r["phase_path"])))
    return next(iter([*around, *(r for r in group if r["kind"] == "total")]), None)


def _breakdown(
    phases: Sequence[Record], whole: Record | None, figure: Sequence[Sequence[Record]], parts: dict[str, str]
) -> Breakdown:
    """``figure``: the phases of every configuration that it stands beside; all of them have one order."""
    first = phases[0]
    # As `powerd_analytics.table.iterations_of` counts them; a total is of one batch here.
    counts = {str(r["phase"]): number_of(r, "iterations") or 0.0 for r in phases}
    n = number_of(whole, "iterations") if whole is not None and whole["kind"] == "phase" else None
    n = n or counts.get("forward") or max(counts.values()) or 1.0
    pieces, order = [], list(dict.fromkeys(r["phase"] for own in figure for r in own))
    for r in sorted(phases, key=lambda r: order.index(r["phase"])):
        times = (number_of(r, "iterations") or n) / n
        j, u95 = (None if (v := number_of(r, name)) is None else v * times for name in ("j_per_batch", "u95_j"))
        pieces.append(Piece(str(r["phase"]), j, u95, r["is_lower_bound"] is True))
    provenance, model = str(first["provenance"]), str(first["model"] or "")
    return Breakdown(
        place=configuration(first, [own[0] for own in figure]),
        device=str(first["device"]),
        provenance=provenance,
        model=model,
        panel=(parts[str(first["device"])], provenance, model),
        energy_j=number_of(whole, "j_per_batch") if whole is not None else None,
        u95_j=number_of(whole, "u95_j") if whole is not None else None,
        pieces=tuple(pieces),
        is_lower_bound=whole is not None and whole["is_lower_bound"] is True,
    )


def configuration(record: Record, among: Sequence[Record], *, without_model: bool = False) -> str:
    """What tells a record from others: model, batch size, GPUs, device, cap; in the order of a sentence.

    ``without_model``: where the sentence has named it.
    """
    words = {
        "model": "{}", "batch_size": "batch {}", "gpus": "GPUs {}", "device": "{}", "device_name": "{}",
        "power_cap_w": "cap {} W",
    }  # fmt: skip
    parts = []
    for name, word in words.items():
        value = None if without_model and name == "model" else record[name]
        if value is not None and (len({r[name] for r in among}) > 1 or name in ("model", "batch_size")):
            parts.append(word.format(f"{value:g}" if isinstance(value, float) else value))
    others = attributes_of(record)
    parts += [f"{k} {v}" for k, v in others.items() if len({str(attributes_of(r).get(k)) for r in among}) > 1]
    return ", ".join(parts) or str(record["run"])
