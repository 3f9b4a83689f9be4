"""What an iteration's joules consist of: its phases and the rest between them; and which rows can be compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.uncertainty import ROUNDING
from powerd_analytics.frame.figure import Record, number_of
from powerd_analytics.frame.figures import ATTRIBUTE, Frame, factors_in, of_kind, rows_of
from powerd_analytics.frame.repeats import average_repeats, cells_of, of_a_batch, without_gflops
from powerd_analytics.frame.trainings import without_summands
from powerd_analytics.output.text import Cell
from powerd_analytics.run_tables.table import ITERATION
from powerd_analytics.runs.nesting import PASSES_OF, Path, parts_of
from powerd_analytics.runs.phases import LAYER
from powerd_client.energies.phase import BASELINE

# -- which rows can be compared ----------------------------------------------------------------------------------------

_LAYER, _OVERLAPS, _PASSES = (f"{ATTRIBUTE}{name}" for name in (LAYER, "overlaps", PASSES_OF))
_OF_A_PHASE = ("kind", "phase", "phase_path", "timing", "rank")
"""Factors in which the phases of one configuration differ."""
_GROUP = ("model", "batch_size", "gpus", "device", "device_name", "provenance", "power_cap_w", "power_cap_in_run",
          "host")  # fmt: skip


def group_names(frame: Frame) -> list[str]:
    """Columns in which the phases of one configuration on one device agree."""
    return [*_GROUP, *factors_in(frame)]


def of_configurations(frame: Frame) -> Frame:
    """Rows that have a batch size, where any has: a warm-up is one of a kind and would dwarf what is compared."""
    own = frame[frame["batch_size"].notna()]
    return (own if len(own) else frame).reset_index(drop=True)


def is_part(frame: Frame) -> NDArray[np.bool_]:
    """[rows] phases that a group consists of: its parts (`powerd_analytics.runs.nesting.parts_of`), which with the rest
    are all of it. No overlapping ones, no baseline; layers are parts of passes, not phases of their own."""
    names, rows = group_names(frame), rows_of(frame)
    phases = [r["kind"] == "phase" and r.get(_LAYER) is None and r.get(_OVERLAPS) is not True for r in rows]
    places = [tuple(str(r["phase_path"]).split("/")) for r in rows]
    groups: dict[tuple[Cell, ...], list[int]] = {}
    around: dict[tuple[Cell, ...], dict[Path, set[tuple[Cell, ...]]]] = {}
    """By recording and device the paths around phases, each with the groups of these phases."""
    for i in np.flatnonzero(phases).tolist():
        group = tuple(rows[i][n] for n in names)
        groups.setdefault(group, []).append(i)
        of_run = around.setdefault(_recording(rows[i]), {})
        for depth in range(1, len(places[i])):
            of_run.setdefault(places[i][:depth], set()).add(group)
    is_own = np.zeros(len(rows), bool)
    for group, own in groups.items():
        kinds = {places[i]: (rows[i]["is_iteration"] is True, number_of(rows[i], "iterations") or 0.0) for i in own}
        others = {places[i] for i in own if around[_recording(rows[i])].get(places[i], set()) - {group}}
        unresolved = {places[i] for i in own if rows[i]["j_per_batch"] is None}
        parts = parts_of(kinds, others, unresolved)
        is_own[[i for i in own if places[i] in parts and rows[i]["phase"] != BASELINE]] = True
    return is_own


def _recording(row: Record) -> tuple[Cell, ...]:
    return row["path"], row["device"], row["provenance"]


def parts_of_machines(frame: Frame) -> dict[str, str]:
    """By device, which part of the machine it is: ``gpu`` for ``gpu0`` and for ``gpu0+gpu1``. Of recordings that have
    several of one name, not added up, each is a part of its own; all are "" where no recording has several parts.

    A CPU and a GPU that work at one training are no choice between two: that one of them takes less says nothing.
    """
    recordings: dict[tuple[str, str], set[str]] = {}
    for paths, provenance, device in zip(frame["path"], frame["provenance"], frame["device"], strict=True):
        for path in str(paths).split("; "):  # several, where it is a mean of repeats
            recordings.setdefault((path, str(provenance)), set()).add(str(device))

    def name(device: str) -> str:
        """Without its number; of several added up, the first one's."""
        return re.sub(r"\d+$", "", device.partition("+")[0])

    every = {d for devices in recordings.values() for d in devices}
    if all(len(devices) == 1 for devices in recordings.values()):
        return dict.fromkeys(every, "")
    names = [[name(d) for d in devices] for devices in recordings.values()]
    several = {n for of_recording in names for n in of_recording if of_recording.count(n) > 1}
    return {d: d if name(d) in several else name(d) for d in every}


def of_trainings(frame: Frame) -> Frame:
    """Totals that can be chosen between: with a batch size where any has one (a warm-up has none), not of layers, of
    what overlaps, of an evaluation beside a training, or of a baseline, which are parts of a training or none."""
    totals = of_kind(frame, "total")
    parts = (totals["phase"] == BASELINE).fillna(False)
    for name in (_LAYER, _OVERLAPS, _PASSES):
        parts = parts | totals[name].notna() if name in totals else parts
    return of_configurations(totals[~parts])


def configuration(row: Record, among: Sequence[Record], *, without_model: bool = False) -> str:
    """What tells a row from others: model, batch size, GPUs, device, cap; in the order of a sentence.

    ``without_model``: where the sentence has named it.
    """
    words = {
        "model": "{}", "batch_size": "batch {}", "gpus": "GPUs {}", "device": "{}", "device_name": "{}",
        "power_cap_w": "cap {} W",
    }  # fmt: skip
    words |= {name: f"{name.removeprefix(ATTRIBUTE)} {{}}" for name in factors_in(row)}
    parts = []
    for name, word in words.items():
        value = None if without_model and name == "model" else row[name]
        if value is not None and (len({r[name] for r in among}) > 1 or name in ("model", "batch_size")):
            parts.append(word.format(f"{value:g}" if isinstance(value, float) else value))
    return ", ".join(parts) or str(row["run"])


# -- its phases and the rest -------------------------------------------------------------------------------------------

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
        rest_j = (self.energy_j or 0.0) - self.known_j
        return rest_j if rest_j > ROUNDING * self.known_j else 0.0

    @property
    def reach_j(self) -> float:
        """Where its bar ends, its interval included."""
        return max(self.known_j, (self.energy_j or 0.0) + (self.u95_j or 0.0))

    @property
    def rest_name(self) -> str:
        """What the rest is: between the phases, or also in those that are not resolvable."""
        return "rest, n.r." if any(p.energy_j is None for p in self.pieces) else "rest"


def breakdowns(frame: Frame) -> list[list[Breakdown]]:
    """The configurations of each device and model, measured ones first, then those with most joules. Of a frame of
    `powerd_analytics.frame.trainings.with_sums`; repeats are averaged, GPUs that are added up are there once."""
    rows = without_gflops(without_summands(of_a_batch(of_kind(frame, "phase", "total"))))
    if _PASSES in rows:
        rows = rows[rows[_PASSES].isna()].reset_index(drop=True)
    # Not by the names of the runs: those without joules of a phase are left out of its mean, not of the others'.
    rows = rows.assign(configuration=cells_of(rows, ignore=_OF_A_PHASE))
    means = average_repeats(rows, apart=("configuration",))
    names = [*group_names(means), "configuration"]

    def grouped(some: Frame) -> dict[tuple[Cell, ...], list[Record]]:
        groups: dict[tuple[Cell, ...], list[Record]] = {}
        for r in rows_of(some):
            groups.setdefault(tuple(r[n] for n in names), []).append(r)
        return groups

    every, parts = grouped(means), parts_of_machines(means)
    by_figure: dict[tuple[str, ...], list[tuple[list[Record], Record | None]]] = {}
    for key, phases in grouped(of_configurations(means[is_part(means)])).items():
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
    around = tuple(f"{r['phase_path']}/" for r in group if _is_iteration(r))
    return [r for r in phases if f"{r['phase_path']}/".startswith(around)] or phases


def _is_iteration(row: Record) -> bool:
    return row["kind"] == "phase" and (row["is_iteration"] is True or row["phase"] == ITERATION)


def _whole(group: Sequence[Record], phases: Sequence[Record]) -> Record | None:
    """The iteration around all of these, else the phase around them as often as them; else the total of their group."""
    most = max(number_of(r, "iterations") or 0.0 for r in phases)
    around = [
        r for r in group
        if r["kind"] == "phase" and (_is_iteration(r) or number_of(r, "iterations") == most)
        and all(str(p["phase_path"]).startswith(f"{r['phase_path']}/") for p in phases)
    ]  # fmt: skip
    around.sort(key=lambda r: (not _is_iteration(r), -len(str(r["phase_path"]))))
    return next(iter([*around, *(r for r in group if r["kind"] == "total")]), None)


def _each_run(row: Record) -> float | None:
    """Phases of a row in one run: a mean of repeats counts those of all that have joules, which differ by phase."""
    count = number_of(row, "iterations")
    return None if count is None else count / (number_of(row, "runs") or 1.0)


def _breakdown(
    phases: Sequence[Record], whole: Record | None, figure: Sequence[Sequence[Record]], parts: Mapping[str, str]
) -> Breakdown:
    """``figure``: the phases of every configuration that it stands beside; all of them have one order."""
    first = phases[0]
    # As `powerd_analytics.run_tables.table.iterations_of` counts them; a total is of one batch here.
    counts = {str(r["phase"]): _each_run(r) or 0.0 for r in phases}
    n = _each_run(whole) if whole is not None and whole["kind"] == "phase" else None
    n = n or counts.get("forward") or max(counts.values()) or 1.0
    pieces, order = [], list(dict.fromkeys(r["phase"] for own in figure for r in own))
    for r in sorted(phases, key=lambda r: order.index(r["phase"])):
        times = (_each_run(r) or n) / n
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
