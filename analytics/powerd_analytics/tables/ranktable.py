"""Joules of each rank and of the job: what a rank takes of its devices, and that all of them together are the devices.

A rank's share of a device that n ranks use is 1/n of its power at every moment. Phases that run beside others (DDP's
communication) are in no sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, PhaseColumns, interval_energies, part_phase_energies
from powerd_analytics.energy.reasons import AT_LEAST, digits, not_resolvable
from powerd_analytics.energy.rest import merged, rest_energy_j
from powerd_analytics.energy.uncertainty import Estimate, mean_of
from powerd_analytics.runs.phases import kept
from powerd_analytics.runs.ranks import Ranks, RunRank, device_identity, missing_ranks, present_in
from powerd_analytics.runs.run import Run
from powerd_analytics.tables.rows import JobRow, PhaseTable, RankRow, RunRow

RANK_HEADER = ["rank", "device", "busy s", "J", "phases J", "rest J", "residual J"]
JOB_HEADER = ["device", "ranks", "ranks J", "devices J", "residual J"]


def energies_by_rank(run: Run, part: Part, ranks: Ranks) -> PhaseColumns:
    """Energies of all phases at the device's whole power, each rank's phases by themselves.

    What the edges of a kind of phase have in common is learnt from its repeats; the same phases in another rank, seen
    by the same readings, are no more of them.
    """
    tracks = ranks.tracks(run)
    present = present_in(tracks)
    if len(present) < 2:
        return part_phase_energies(run, part)
    found: dict[str, NDArray[Any]] = {}
    for track in present:
        own = tracks == track
        columns = part_phase_energies(replace(run, phases=kept(run.phases, own)), part)
        for name in PhaseColumns.__dataclass_fields__:
            values = getattr(columns, name)
            found.setdefault(name, np.zeros(len(tracks), values.dtype))[own] = values
    return PhaseColumns(**found)


def mean_by_rank(columns: Sequence[NDArray[np.float64]], tracks: NDArray[np.int32]) -> Estimate:
    """`mean_of` over phases of several ranks, whose ranks are ``tracks``.

    The ranks saw the same readings: their means are off together, and more ranks are no more repeats.
    """
    present = present_in(tracks)
    if len(present) == 1:
        return mean_of(*columns)
    of_ranks = [(mean_of(*(c[tracks == t] for c in columns)), int(np.sum(tracks == t))) for t in present]
    count = sum(n for _, n in of_ranks)
    found = {f.name: sum(getattr(mean, f.name) * n for mean, n in of_ranks) / count for f in fields(Estimate)}
    return Estimate(**found | {"degrees": min(mean.degrees for mean, _ in of_ranks)})


def rank_rows(run: Run, part: Part, ranks: Ranks, whole: RunRow) -> list[RankRow]:
    """The rows of all ranks that take joules from a part's device, none for a training of fewer than two ranks."""
    users = ranks.users(part.device)
    return [_rank_row(run, part, ranks, rank, len(users), whole) for rank in users]


def _rank_row(run: Run, part: Part, ranks: Ranks, rank: RunRank, sharing: int, whole: RunRow) -> RankRow:
    p = run.phases
    overlaps = np.array([c.overlaps for c in p.classes], bool)
    own = (ranks.tracks(run) == rank.rank) & (p.parent < 0)
    own &= ~overlaps[p.label] if len(p) else own
    # Between phases closer together than the sensors can tell there is no rest.
    gap_ns = int(part.gap_ns)
    begin, end = merged(p.begin_ns[own], p.end_ns[own] + gap_ns)
    end = end - gap_ns
    none = np.zeros(len(begin), np.int64)
    busy = merged(p.begin_ns[own], p.end_ns[own])
    cover = interval_energies(part, begin, end, none, none)
    phases_j = rest_j = residual_j = None
    note = f"each of {sharing} ranks has 1/{sharing} of the device's power" if sharing > 1 else ""
    energy_j = whole.energy_j / sharing if whole.energy_j is not None else None
    if energy_j is None:
        note = "; ".join(filter(None, [note, whole.note]))
    elif len(begin) and cover.resolvable.all():
        phases_j = float(cover.energy_j.sum()) / sharing
        edges = np.array([run.begin_ns]), np.array([run.end_ns])
        rest_j = rest_energy_j(part, edges, (begin, end), cover) / sharing
        residual_j = energy_j - phases_j - rest_j
    elif len(begin):
        note = "; ".join(filter(None, [note, not_resolvable(part, cover, np.ones(len(begin), bool))]))
    else:
        note = "; ".join(filter(None, [note, "it marked no phases: all is rest"]))
        phases_j, rest_j, residual_j = 0.0, energy_j, 0.0
    return RankRow(
        rank=rank.rank,
        device=part.device,
        provenance=part.provenance,
        ranks=sharing,
        busy_s=float((busy[1] - busy[0]).sum()) * 1e-9,
        energy_j=energy_j,
        phases_j=phases_j,
        rest_j=rest_j,
        residual_j=residual_j,
        is_lower_bound=whole.is_lower_bound,
        note=note,
    )


def job_rows(run: Run, ranks: Ranks, rows: Sequence[RankRow], runs: Sequence[RunRow]) -> list[JobRow]:
    """All ranks together against their devices. Devices that are known to be different GPUs are added; others, which
    may contain them (a wall meter), stand alone, as do those of another provenance."""
    if not ranks.are_many:
        return []
    groups: list[tuple[str, list[RunRow]]] = []
    for row in (r for r in runs if ranks.users(r.device)):
        mine = device_identity(run, row.device)
        for provenance, members in groups:
            others = [device_identity(run, m.device) for m in members]
            if provenance == row.provenance and mine and all(o and not o.overlaps(mine) for o in others):
                members.append(row)
                break
        else:
            groups.append((row.provenance, [row]))
    missing = missing_ranks([r.rank for r in ranks.ranks], ranks.world_size)
    said = f"without what is not in this run: {missing}" if missing else ""
    return [_job_row(provenance, members, rows, said) for provenance, members in groups]


def _job_row(provenance: str, members: list[RunRow], rows: Sequence[RankRow], missing: str) -> JobRow:
    names = {m.device for m in members}
    own = [r for r in rows if r.device in names and r.provenance == provenance]
    # A sum without one of its devices would pass for the whole.
    silent = [m.device for m in members if m.energy_j is None]
    ranks_j = devices_j = None
    if not silent:
        ranks_j, devices_j = float(sum(r.energy_j or 0.0 for r in own)), float(sum(m.energy_j or 0.0 for m in members))
    is_lower_bound = any(m.is_lower_bound for m in members) and not silent
    note = f"not resolvable: no readings of {', '.join(silent)}" if silent else ""
    return JobRow(
        devices=tuple(m.device for m in members),
        provenance=provenance,
        ranks=len({r.rank for r in own}),
        energy_j=ranks_j,
        devices_j=devices_j,
        residual_j=devices_j - ranks_j if devices_j is not None and ranks_j is not None else None,
        is_lower_bound=is_lower_bound,
        note="; ".join(filter(None, [AT_LEAST if is_lower_bound else note, missing])),
    )


def rank_records(table: PhaseTable) -> list[dict[str, Any]]:
    """The same as flat dicts, for CSV and JSON: ``table`` is ``rank`` or ``job``."""
    found = [{"table": "rank", **asdict(row)} for row in table.ranks]
    return found + [{"table": "job", **asdict(row), "devices": " ".join(row.devices)} for row in table.jobs]


def rank_lines(rows: Sequence[RankRow]) -> list[tuple[list[str], list[str]]]:
    """Cells under `RANK_HEADER` and the note of each row."""
    found = []
    for r in rows:
        sign = "≥ " if r.is_lower_bound else ""
        cells = [str(r.rank), f"{r.device} ({r.provenance})", digits(r.busy_s), sign + _joules(r.energy_j)]
        cells += [digits(r.phases_j) if r.phases_j is not None else "n.r.", digits(r.rest_j), digits(r.residual_j, 2)]
        found.append((cells, [r.note]))
    return found


def _joules(value: float | None) -> str:
    return "n.r." if value is None else digits(value)


def job_lines(rows: Sequence[JobRow]) -> list[tuple[list[str], list[str]]]:
    """Cells under `JOB_HEADER` and the note of each row."""
    return [
        (
            [
                f"{' + '.join(r.devices)} ({r.provenance})",
                str(r.ranks),
                ("≥ " if r.is_lower_bound else "") + _joules(r.energy_j),
                ("≥ " if r.is_lower_bound else "") + _joules(r.devices_j),
                digits(r.residual_j, 2),
            ],
            [r.note],
        )
        for r in rows
    ]
