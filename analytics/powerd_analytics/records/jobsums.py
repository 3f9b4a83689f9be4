"""Parts of one training made one: records of the whole job in place of those of its machines, every joule once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from powerd_analytics.records.columns import Cell, Record, number_of
from powerd_analytics.records.jobdevices import JobDevices, Place
from powerd_analytics.records.jobmembers import Member, apart, jobs_of, one_job
from powerd_analytics.records.jobphases import phase_sums
from powerd_analytics.runs.ranks import missing_ranks


def merge_jobs(records: Sequence[Record], *, by_hand: bool = False, strict: bool = True) -> list[Record]:
    """All records, those of runs that are parts of one training replaced by the training's.

    Phases and totals are then of all its ranks and devices together; runs, ranks and jobs stay machine by machine, with
    ``machine`` set, and a job's record without it is the whole. A part of which no other is there stays as it is, with
    a note. ``by_hand``: all of them are parts of one, whatever they say. Raises `AnalysisError` as `jobs_of` and
    `one_job`.
    """
    alone, members = apart(records)
    jobs = [one_job(members, alone)] if by_hand else jobs_of(members, strict=strict)
    if not members:
        return list(records)
    made = [r for job in jobs for r in (_noted(job[0]) if len(job) == 1 else job_records(job))]
    places = {record["path"]: i for i, record in reversed(list(enumerate(records)))}
    return sorted([*alone, *made], key=lambda r: places[r["path"]])


def _noted(member: Member) -> list[Record]:
    missing = missing_ranks(member.ranks, member.world_size)
    said = f"without {missing}: no run here has them and was recorded at the same time"
    is_said = ("phase", "total")
    return [r | {"note": _notes(r["note"], said)} if r["kind"] in is_said else r for r in member.records]


def job_records(members: Sequence[Member]) -> list[Record]:
    """The records of one training from those of its machines, in the order of their ranks."""
    devices = JobDevices(members)
    whole = _whole(members)
    found: list[Record] = []
    for places in devices.sets.values():
        found += phase_sums(devices, places, whole.columns | {"device": devices.name(places, whole.machines)})
    found = [r | {"note": _notes(r["note"], whole.note)} for r in found]
    for m, member in enumerate(members):
        found += _machine(devices, m, member)
    for places in devices.sets.values():
        found += _of_job(devices, places, whole)
    return found


@dataclass(frozen=True, slots=True)
class _Whole:
    columns: Record
    machines: int | None
    """Of the whole training, where that is known."""
    note: str


def _whole(members: Sequence[Member]) -> _Whole:
    firsts = [m.records[0] for m in members]
    ranks = frozenset().union(*(m.ranks for m in members))
    world = members[0].world_size
    missing = missing_ranks(ranks, world)
    said = [int(n) for r in firsts if (n := number_of(r, "job_machines")) is not None]
    machines = max([*said, len(members)]) if missing and said else None if missing else len(members)
    of = f" of {machines}" if machines not in (None, len(members)) else ""
    hosts = sorted({str(r["host"]) for r in firsts if r["host"] is not None})
    notes = [f"{len(members)}{of} machines: without {missing}"] if missing else []
    if len(hosts) < len(members):
        notes.append("machines have the same host name: a device that two of them see unknowingly counts twice")
    gpus = sum((number_of(r, "gpus") or 0.0) * len(m.ranks) / world for r, m in zip(firsts, members, strict=True))
    columns: Record = {name: _joined([r[name] for r in firsts]) for name in ("run", "run_id", "created_utc")}
    columns |= {name: firsts[0][name] for name in ("path", "job", "world_size")}
    columns |= {"host": "; ".join(hosts) or None, "ranks": len(ranks), "rank_numbers": json.dumps(sorted(ranks))}
    columns |= {"machines": len(members), "job_machines": machines, "gpus": max(1, round(gpus))}
    return _Whole(columns, machines, "; ".join(notes))


def _joined(values: Sequence[Cell]) -> str | None:
    return "; ".join(dict.fromkeys(str(v) for v in values if v is not None)) or None


def _machine(devices: JobDevices, m: int, member: Member) -> list[Record]:
    """Runs, ranks and jobs of one machine: a device that another's recorder has too is only where it counts."""
    found: list[Record] = []
    for record in member.records:
        place = (m, str(record["device"]), str(record["provenance"]))
        if record["kind"] == "run":
            if devices.devices[place].kept == place:
                others = [p for p in devices.devices[place].runs if p != place]
                names = ", ".join(str(devices.members[p[0]].records[0]["run"]) for p in others)
                said = f"{names} recorded it as well: it counts once" if others else ""
                found.append(record | {"machine": m, "note": _notes(record["note"], said)})
        elif record["kind"] == "rank":
            found.append(_rank(devices, place, record) | {"machine": m})
    for places in devices.sets.values():
        here = [p for p in places if p[0] == m]
        if here:
            found.append(_job(devices, here, member.records) | {"machine": m})
    return found


def _rank(devices: JobDevices, place: Place, record: Record) -> Record:
    """A rank's share of a device. Where another machine recorded it for longer, that time is rest to the rank."""
    device = devices.devices[place]
    if len(device.sharing) < 2:
        return record
    share, energy = device.share(place), device.energy_j
    made = dict(record)
    for name in ("phases_j", "residual_j"):
        value = number_of(record, name)
        made[name] = None if value is None else value * share
    made |= {"sharing": device.ranks, "rest_j": None}
    made["energy_j"] = energy / device.ranks if energy is not None else None
    whole, phases, residual = (number_of(made, name) for name in ("energy_j", "phases_j", "residual_j"))
    if whole is not None and phases is not None and residual is not None:
        made["rest_j"] = whole - phases - residual
    n = device.ranks
    return made | {"note": f"each of {n} ranks on {len(device.sharing)} machines has 1/{n} of the device's power"}


def _job(devices: JobDevices, places: Sequence[Place], records: Sequence[Record]) -> Record:
    """Ranks of one machine against what its devices give them."""
    first = next(r for r in records if r["kind"] == "job" and r["provenance"] == places[0][2])
    ranks_j = [number_of(_rank(devices, p, r), "energy_j") for p in places for r in records
               if (r["kind"], r["device"], r["provenance"]) == ("rank", *p[1:])]  # fmt: skip
    of_devices = [(devices.devices[p].energy_j, devices.devices[p].share(p)) for p in places]
    devices_j = [None if energy is None else energy * share for energy, share in of_devices]
    numbers = {r["rank"] for p in places for r in records
               if (r["kind"], r["device"], r["provenance"]) == ("rank", *p[1:])}  # fmt: skip
    made = first | {"device": "+".join(p[1] for p in places), "ranks": len(numbers), "note": ""}
    made["is_lower_bound"] = any(_kept(devices, p)["is_lower_bound"] is True for p in places)
    return made | _sums(ranks_j, devices_j)


def _of_job(devices: JobDevices, places: Sequence[Place], whole: _Whole) -> list[Record]:
    """The whole training on one set of devices."""
    parts = []
    for m, member in enumerate(devices.members):
        here = [p for p in places if p[0] == m]
        if here:
            parts.append(_job(devices, here, member.records))
    devices_j = [device.energy_j for device in devices.once(places)]
    made = parts[0] | whole.columns | {"device": devices.name(places, whole.machines), "note": whole.note}
    made |= {"ranks": sum(int(number_of(p, "ranks") or 0) for p in parts), "sensors": None, "gpu": None}
    made |= {"begin_unix_s": None, "is_lower_bound": any(p["is_lower_bound"] is True for p in parts)}
    return [made | _sums([number_of(p, "energy_j") for p in parts], devices_j)]


def _kept(devices: JobDevices, place: Place) -> Record:
    device = devices.devices[place]
    return device.runs[device.kept]


def _sums(ranks_j: Sequence[float | None], devices_j: Sequence[float | None]) -> Record:
    """None where one has no joules: a sum without it would pass for the whole."""
    ranks = None if None in ranks_j else sum(j for j in ranks_j if j is not None)
    devices = None if None in devices_j else sum(j for j in devices_j if j is not None)
    residual = devices - ranks if ranks is not None and devices is not None else None
    return {"energy_j": ranks, "devices_j": devices, "residual_j": residual}


def _notes(*texts: Cell) -> str:
    return "; ".join(str(t) for t in texts if t)
