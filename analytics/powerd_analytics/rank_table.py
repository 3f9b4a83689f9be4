"""Joules of each rank and of the job: what a rank takes of its devices, and that all of them together are the devices.

A rank's share of a device that n ranks use is 1/n of its power at every moment. Phases that run beside others (DDP's
communication) are in no sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, PhaseColumns, interval_energies, part_phase_energies
from powerd_analytics.energy.reasons import AT_LEAST, not_resolvable
from powerd_analytics.energy.rest import merged, rest_energy_j
from powerd_analytics.energy.uncertainty import Estimate, mean_of
from powerd_analytics.runs.phases import kept
from powerd_analytics.runs.ranks import Ranks, RunRank, device_identity, missing_ranks, present_in
from powerd_analytics.runs.run import Run
from powerd_analytics.table_rows import JobRow, RankRow, RunRow


def energies_by_rank(run: Run, part: Part, ranks: Ranks) -> PhaseColumns:
    """Energies of all phases at the device's whole power, each rank's phases by themselves.

    What the edges of a kind of phase have in common is learnt from its repeats; the same phases in another rank, seen
    by the same readings, are no more of them.
    """
    tracks = ranks.tracks(run)
    present = present_in(tracks)
    if len(present) < 2:
        return part_phase_energies(run, part)
    values: dict[str, NDArray[Any]] = {}
    for track in present:
        own = tracks == track
        columns = part_phase_energies(replace(run, phases=kept(run.phases, own)), part)
        for f in fields(PhaseColumns):
            of_rank = getattr(columns, f.name)
            values.setdefault(f.name, np.zeros(len(tracks), of_rank.dtype))[own] = of_rank
    return PhaseColumns(**values)


def mean_by_rank(columns: Sequence[NDArray[np.float64]], tracks: NDArray[np.int32]) -> Estimate:
    """`mean_of` over phases of several ranks, whose ranks are ``tracks``.

    The ranks saw the same readings: their means are off together, and more ranks are no more repeats.
    """
    present = present_in(tracks)
    if len(present) == 1:
        return mean_of(*columns)
    means = [(mean_of(*(c[tracks == t] for c in columns)), int(np.sum(tracks == t))) for t in present]
    count = sum(n for _, n in means)
    together = {f.name: sum(getattr(mean, f.name) * n for mean, n in means) / count for f in fields(Estimate)}
    return Estimate(**together | {"degrees": min(mean.degrees for mean, _ in means)})


def rank_rows(run: Run, part: Part, ranks: Ranks, whole: RunRow) -> list[RankRow]:
    """The rows of all ranks that take joules from a part's device, none for a training of fewer than two ranks."""
    users = ranks.users(part.device)
    return [_rank_row(run, part, ranks, rank, len(users), whole) for rank in users]


def _rank_row(run: Run, part: Part, ranks: Ranks, rank: RunRank, sharing: int, whole: RunRow) -> RankRow:
    p = run.phases
    own = (ranks.tracks(run) == rank.rank) & (p.parent < 0)
    if len(p):
        own &= ~np.array([c.overlaps for c in p.classes], bool)[p.label]
    # Between phases closer together than the sensors can tell there is no rest.
    gap_ns = int(part.gap_ns)
    begin, end = merged(p.begin_ns[own], p.end_ns[own] + gap_ns)
    end = end - gap_ns
    busy_begin, busy_end = merged(p.begin_ns[own], p.end_ns[own])
    none = np.zeros(len(begin), np.int64)
    cover = interval_energies(part, begin, end, none, none)
    phases_j = rest_j = residual_j = None
    notes = [f"each of {sharing} ranks has 1/{sharing} of the device's power" if sharing > 1 else ""]
    energy_j = whole.energy_j / sharing if whole.energy_j is not None else None
    if energy_j is None:
        notes.append(whole.note)
    elif not len(begin):
        notes.append("it marked no phases: all is rest")
        phases_j, rest_j, residual_j = 0.0, energy_j, 0.0
    elif cover.resolvable.all():
        phases_j = float(cover.energy_j.sum()) / sharing
        edges = np.array([run.begin_ns]), np.array([run.end_ns])
        rest_j = rest_energy_j(part, edges, (begin, end), cover) / sharing
        residual_j = energy_j - phases_j - rest_j
    else:
        notes.append(not_resolvable(part, cover, np.ones(len(begin), bool)))
    return RankRow(
        rank=rank.rank,
        device=part.device,
        provenance=part.provenance,
        ranks=sharing,
        busy_s=float((busy_end - busy_begin).sum()) * 1e-9,
        energy_j=energy_j,
        phases_j=phases_j,
        rest_j=rest_j,
        residual_j=residual_j,
        is_lower_bound=whole.is_lower_bound,
        note="; ".join(filter(None, notes)),
    )


def job_rows(run: Run, ranks: Ranks, rows: Sequence[RankRow], runs: Sequence[RunRow]) -> list[JobRow]:
    """All ranks together against their devices. Devices that are known to be different GPUs are added; others, which
    may contain them (a wall meter), stand alone, as do those of another provenance."""
    if not ranks.are_many:
        return []
    groups: list[tuple[str, list[RunRow]]] = []
    for row in (r for r in runs if ranks.users(r.device)):
        identity = device_identity(run, row.device)
        for provenance, members in groups:
            others = [device_identity(run, m.device) for m in members]
            if provenance == row.provenance and identity and all(o and not o.overlaps(identity) for o in others):
                members.append(row)
                break
        else:
            groups.append((row.provenance, [row]))
    missing = missing_ranks([r.rank for r in ranks.ranks], ranks.world_size)
    note = f"without what is not in this run: {missing}" if missing else ""
    return [_job_row(provenance, members, rows, note) for provenance, members in groups]


def _job_row(provenance: str, members: list[RunRow], rows: Sequence[RankRow], missing: str) -> JobRow:
    names = {m.device for m in members}
    own = [r for r in rows if r.device in names and r.provenance == provenance]
    # A sum without one of its devices would pass for the whole.
    silent = [m.device for m in members if m.energy_j is None]
    ranks_j = None if silent else float(sum(r.energy_j or 0.0 for r in own))
    devices_j = None if silent else float(sum(m.energy_j or 0.0 for m in members))
    is_lower_bound = any(m.is_lower_bound for m in members) and not silent
    note = f"not resolvable: no readings of {', '.join(silent)}" if silent else AT_LEAST if is_lower_bound else ""
    return JobRow(
        devices=tuple(m.device for m in members),
        provenance=provenance,
        ranks=len({r.rank for r in own}),
        energy_j=ranks_j,
        devices_j=devices_j,
        residual_j=devices_j - ranks_j if devices_j is not None and ranks_j is not None else None,
        is_lower_bound=is_lower_bound,
        note="; ".join(filter(None, [note, missing])),
    )
