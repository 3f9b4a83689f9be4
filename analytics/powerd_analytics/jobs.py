"""Trainings over several machines: the runs of their machines made one, every joule once.

A machine records its own ranks only. Runs are parts of one training when they have the same name from the launcher,
ranks that do not overlap, and times that do. The name alone is not enough: torchrun's is often the same for the next
training on the same machines.

A batch of the training is a batch in every rank: J/batch are the joules of all ranks in their phases of a kind, over
how often a rank had one. Seconds are the mean over the ranks, beside those of the fastest and the slowest: machines
have clocks of their own, and no time of one is compared with a time of another. A board that two recorders read is one
board.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import sqrt

from powerd_analytics.export import Cell
from powerd_analytics.metrics import edp_js, gflops_per_w_paper
from powerd_analytics.records import Record, independent, number_of, summed_joules, total_of
from powerd_analytics.runs.ranks import missing_ranks
from powerd_analytics.text import joined
from powerd_core.errors import AnalysisError

# -- which runs are parts of one training ------------------------------------------------------------------------------

_UNIQUE = ("slurm ", "given ")
"""Names that no other training of the campaign has: times need not agree, as those of machines whose clocks differ."""


@dataclass(frozen=True, slots=True)
class Member:
    """A run that lacks ranks of its training, with its records."""

    path: str
    job: str | None
    world_size: int
    ranks: frozenset[int]
    begin_s: float | None
    """By its machine's wall clock."""
    end_s: float | None
    records: list[Record] = field(repr=False)


def apart(records: Iterable[Record]) -> tuple[list[Record], list[Member]]:
    """Records of whole trainings, and the parts of others. Both in their order."""
    runs: dict[tuple[Cell, Cell], list[Record]] = {}
    for record in records:
        runs.setdefault((record["path"], record["run_id"]), []).append(record)
    alone: list[Record] = []
    members: list[Member] = []
    for of_run in runs.values():
        first = of_run[0]
        world, numbers = first["world_size"], first["rank_numbers"]
        ranks = frozenset(map(int, json.loads(numbers))) if isinstance(numbers, str) else frozenset[int]()
        if not isinstance(world, int) or not 0 < len(ranks) < world:
            alone += of_run
            continue
        begin_s, job = number_of(first, "begin_unix_s"), first["job"]
        length_s = max((number_of(r, "time_s") or 0.0 for r in of_run if r["kind"] == "run"), default=0.0)
        end_s = begin_s + length_s if begin_s is not None else None
        name = None if job is None else str(job)
        members.append(Member(str(first["path"]), name, world, ranks, begin_s, end_s, of_run))
    return alone, members


def jobs_of(members: Sequence[Member], *, strict: bool = True) -> list[list[Member]]:
    """The members of each training, by their ranks; most often a training of which nothing else is there has one.

    Raises `AnalysisError`, if ``strict``, for runs that look like parts of one training and do not say so.
    """
    for _, a, b in _at_once(m for m in members if m.job is None and strict):
        if a.world_size == b.world_size and not a.ranks & b.ranks:
            lacking = " and ".join(f"{m.path} lacks {missing_ranks(m.ranks, m.world_size)}" for m in (a, b))
            raise AnalysisError(
                f"{lacking}, and they ran at the same time, but do not say of which launch they are: `joules tables "
                f"{a.path} {b.path} --job` if they are one training, else look at them one by one (POWERD_JOB in the "
                "environment names the launch when it is recorded)"
            )
    launches: dict[tuple[str | None, int], list[Member]] = {}
    for member in members:
        launches.setdefault((member.job, member.world_size), []).append(member)
    jobs: list[list[Member]] = []
    for (job, _), same in launches.items():
        if job is None:
            jobs += [[m] for m in same]
        elif job.startswith(_UNIQUE) and sum(len(m.ranks) for m in same) == len(_ranks_of(same)):
            jobs.append(same)
        else:
            jobs += _by_time(same)
    return [sorted(job, key=lambda m: min(m.ranks)) for job in jobs]


def _one_job(members: Sequence[Member], others: Sequence[Record]) -> list[Member]:
    """All runs as one training, because somebody says so. Raises `AnalysisError` where they cannot be."""
    if others:
        raise AnalysisError(
            f"{others[0]['path']} is not a part of a training over several machines: all of its ranks are in it"
        )
    for a, b in combinations(members, 2):
        if a.world_size != b.world_size:
            sizes = f"{a.path} is of a training of {a.world_size} ranks, {b.path} of one of {b.world_size}"
            raise AnalysisError(f"{sizes}: not one job")
        if both := a.ranks & b.ranks:
            raise AnalysisError(f"rank {min(both)} is in {a.path} and in {b.path}: they are not of one job")
    return sorted(members, key=lambda m: min(m.ranks))


def _ranks_of(members: Sequence[Member]) -> frozenset[int]:
    return frozenset().union(*(m.ranks for m in members))


def _by_time(members: list[Member]) -> list[list[Member]]:
    """Those that ran together, those that agree best first: ends of one training may overlap the next by a little."""
    jobs = {id(m): [m] for m in members}
    for _, a, b in sorted(_at_once(members), key=lambda pair: -pair[0]):
        first, second = jobs[id(a)], jobs[id(b)]
        if first is not second and not _ranks_of(first) & _ranks_of(second):
            first += second
            jobs |= {id(m): first for m in second}
    return list({id(job): job for job in jobs.values()}.values())


def _at_once(members: Iterable[Member]) -> Iterator[tuple[float, Member, Member]]:
    """Pairs that went on at the same time, with the time that they share of the time that either took."""
    timed = [(m.begin_s, m.end_s, m) for m in members if m.begin_s is not None and m.end_s is not None]
    timed.sort(key=lambda t: t[:2])
    for i, (begin_s, end_s, a) in enumerate(timed):
        for other_begin_s, other_end_s, b in timed[i + 1 :]:
            if other_begin_s >= end_s:
                break
            both = min(end_s, other_end_s) - other_begin_s
            if both > 0:
                yield both / (max(end_s, other_end_s) - begin_s), a, b


# -- their devices -----------------------------------------------------------------------------------------------------

Place = tuple[int, str, str]
"""Machine's number, device, provenance."""


@dataclass(slots=True)
class _Device:
    """One device and the recordings of it."""

    ids: set[str]
    runs: dict[Place, Record]
    """Its whole recordings."""
    sharing: dict[Place, int] = field(default_factory=dict)
    """Ranks that take joules from it, by recording; none that nobody uses."""

    @property
    def kept(self) -> Place:
        """The recording that counts: one that ranks use, the longest."""

        def order(place: Place) -> tuple[bool, bool, float]:
            run = self.runs[place]
            return place in self.sharing, run["energy_j"] is not None, number_of(run, "time_s") or 0.0

        return max(self.runs, key=order)

    @property
    def energy_j(self) -> float | None:
        return number_of(self.runs[self.kept], "energy_j")

    def share(self, place: Place) -> float:
        """Of the device's power what the ranks of one recording have."""
        return self.sharing[place] / sum(self.sharing.values())


def _place(m: int, record: Record) -> Place:
    return m, str(record["device"]), str(record["provenance"])


def _texts(record: Record, name: str) -> set[str]:
    """A column that holds a JSON list of texts; empty without."""
    value = record[name]
    return set(map(str, json.loads(value))) if isinstance(value, str) and value else set()


class _Job:
    """The members of one training, their devices, and which of these are added up."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.at: dict[Place, _Device] = {}
        self.sets: dict[tuple[str, ...], list[Place]] = {}
        """What is added: devices that are known to be different GPUs, or those of one name on the machines."""
        for m, record in self._records("run"):
            self._add(_place(m, record), record)
        for m, record in self._records("rank"):
            if (place := _place(m, record)) in self.at:
                self.at[place].sharing[place] = int(number_of(record, "sharing") or 1)
        gpus = [0] * len(members)
        for m, record in self._records("job"):
            provenance, lines = str(record["provenance"]), _texts(record, "sensors")
            key: tuple[str, ...] = (provenance, str(record["device"]))
            if record["gpu"] is not None:
                key, gpus[m] = (provenance, "", str(gpus[m])), gpus[m] + 1
            own = [p for p, d in self.at.items() if (p[0], p[2]) == (m, provenance) and p in d.sharing]
            own = [p for p in own if _texts(self.at[p].runs[p], "sensors") <= lines]
            self.sets.setdefault(key, []).extend(own)

    def _records(self, kind: str) -> Iterator[tuple[int, Record]]:
        return ((m, r) for m, member in enumerate(self.members) for r in member.records if r["kind"] == kind)

    def _add(self, place: Place, run: Record) -> None:
        """A device that another recorder read too, by the same powerd or as the same GPU, is that one."""
        ids = _texts(run, "sensors") | _texts(run, "gpu")
        for device in self.at.values():
            if device.ids & ids and all(p[2] == place[2] and p[0] != place[0] for p in device.runs):
                device.ids |= ids
                break
        else:
            device = _Device(ids, {})
        device.runs[place] = run
        self.at[place] = device


# -- records of whole trainings ----------------------------------------------------------------------------------------


def merge_jobs(records: Sequence[Record], *, by_hand: bool = False) -> list[Record]:
    """All records, those of runs that are parts of one training replaced by the training's.

    Phases and totals are then of all its ranks and devices together; runs, ranks and jobs stay machine by machine, with
    ``machine`` set, and a job's record without it is the whole. A part of which no other is there stays as it is, with
    a note. ``by_hand``: all of them are parts of one, whatever they say. Raises `AnalysisError` as `jobs_of`, and for
    parts that cannot be of one training.
    """
    alone, members = apart(records)
    jobs = [_one_job(members, alone)] if by_hand else jobs_of(members)
    if not members:
        return list(records)
    merged = [r for job in jobs for r in (_lone_part(job[0]) if len(job) == 1 else job_records(job))]
    places = {record["path"]: i for i, record in reversed(list(enumerate(records)))}
    return sorted([*alone, *merged], key=lambda r: places[r["path"]])


def _lone_part(member: Member) -> list[Record]:
    missing = missing_ranks(member.ranks, member.world_size)
    note = f"without {missing}: no run here has them and was recorded at the same time"
    return [_noted(r, note) if r["kind"] in ("phase", "total") else r for r in member.records]


def _noted(record: Record, note: str) -> Record:
    return record | {"note": joined(record["note"], note)}


def job_records(members: Sequence[Member]) -> list[Record]:
    """The records of one training from those of its machines, in the order of their ranks."""
    job = _Job(members)
    columns, note = _of_all(members)
    phases, machines, wholes = [], [], []
    for places in job.sets.values():
        about = columns | {"device": _name(places, columns["job_machines"])}
        phases += [_noted(r, note) for r in _phase_sums(job, places, about)]
        wholes.append(_of_training(job, places, about | {"note": note}))
    for m, member in enumerate(members):
        for record in member.records:
            place = _place(m, record)
            if record["kind"] == "run" and job.at[place].kept == place:
                others = ", ".join(str(members[p[0]].records[0]["run"]) for p in job.at[place].runs if p != place)
                note_of_run = f"{others} recorded it as well: it counts once" if others else ""
                machines.append(_noted(record, note_of_run) | {"machine": m})
            elif record["kind"] == "rank":
                machines.append(_of_rank(job.at[place], place, record) | {"machine": m})
        here = [[p for p in places if p[0] == m] for places in job.sets.values()]
        machines += [_of_part(job, places, member.records) | {"machine": m} for places in here if places]
    return [*phases, *machines, *wholes]


def _name(places: Sequence[Place], machines: Cell) -> str:
    """A set's devices in words, for the column ``device``."""
    by_machine: dict[int, list[str]] = {}
    for m, device, _ in places:
        by_machine.setdefault(m, []).append(device)
    names, count = dict.fromkeys("+".join(devices) for devices in by_machine.values()), len(by_machine)
    return f"{' and '.join(names)} of {count if machines in (None, count) else f'{count} of {machines}'} machines"


def _of_all(members: Sequence[Member]) -> tuple[Record, str]:
    """What all records of a training have in common, and a note."""
    firsts, ranks, world = [m.records[0] for m in members], _ranks_of(members), members[0].world_size
    missing, counts = missing_ranks(ranks, world), [number_of(m.records[0], "job_machines") for m in members]
    # How many machines it had, if that is known.
    machines = len(members) if not missing else max((int(n) for n in counts if n is not None), default=None)
    machines = machines if machines is None else max(machines, len(members))
    of = f" of {machines}" if machines not in (None, len(members)) else ""
    notes = [f"{len(members)}{of} machines: without {missing}"] if missing else []
    hosts = sorted({str(r["host"]) for r in firsts if r["host"] is not None})
    if len(hosts) < len(members):
        notes.append("machines have the same host name: a device that two of them see unknowingly counts twice")
    gpus = sum((number_of(r, "gpus") or 0.0) * len(m.ranks) / world for r, m in zip(firsts, members, strict=True))
    columns: Record = {name: joined(*(r[name] for r in firsts)) or None for name in ("run", "run_id", "created_utc")}
    columns |= {name: firsts[0][name] for name in ("path", "job", "world_size")}
    columns |= {"host": "; ".join(hosts) or None, "ranks": len(ranks), "rank_numbers": json.dumps(sorted(ranks))}
    columns |= {"machines": len(members), "job_machines": machines, "gpus": max(1, round(gpus))}
    return columns | dict.fromkeys(("sensors", "gpu", "begin_unix_s")), "; ".join(notes)


def _of_rank(device: _Device, place: Place, record: Record) -> Record:
    """A rank's share of a device. Where another machine recorded it for longer, that time is rest to the rank."""
    if len(device.sharing) < 2:
        return record
    n = sum(device.sharing.values())
    whole_j = None if device.energy_j is None else device.energy_j / n
    phases_j, residual_j = (
        None if (joules := number_of(record, name)) is None else joules * device.share(place)
        for name in ("phases_j", "residual_j")
    )
    rest_j = None
    if whole_j is not None and phases_j is not None and residual_j is not None:
        rest_j = whole_j - phases_j - residual_j
    note = f"each of {n} ranks on {len(device.sharing)} machines has 1/{n} of the device's power"
    joules_of_rank = {"energy_j": whole_j, "phases_j": phases_j, "rest_j": rest_j, "residual_j": residual_j}
    return record | joules_of_rank | {"sharing": n, "note": note}


def _of_part(job: _Job, places: Sequence[Place], records: Sequence[Record]) -> Record:
    """Ranks of one machine against what its devices give them."""
    whole = next(r for r in records if r["kind"] == "job" and r["provenance"] == places[0][2])
    ranks = [(p, r) for p in places for r in records if (r["kind"], r["device"], r["provenance"]) == ("rank", *p[1:])]
    of_places = [(job.at[p], p) for p in places]
    ranks_j = total_of(number_of(_of_rank(job.at[p], p, r), "energy_j") for p, r in ranks)
    devices_j = total_of(None if d.energy_j is None else d.energy_j * d.share(p) for d, p in of_places)
    return whole | _balance(ranks_j, devices_j) | {
        "device": "+".join(p[1] for p in places),
        "ranks": len({r["rank"] for _, r in ranks}),
        "is_lower_bound": any(d.runs[d.kept]["is_lower_bound"] is True for d, _ in of_places),
        "note": "",
    }  # fmt: skip


def _of_training(job: _Job, places: Sequence[Place], about: Record) -> Record:
    """The whole training on one set of devices."""
    by_machine = [([p for p in places if p[0] == m], member.records) for m, member in enumerate(job.members)]
    parts = [_of_part(job, here, records) for here, records in by_machine if here]
    devices = {id(job.at[p]): job.at[p] for p in places}.values()
    ranks_j, devices_j = total_of(number_of(p, "energy_j") for p in parts), total_of(d.energy_j for d in devices)
    return parts[0] | about | _balance(ranks_j, devices_j) | {
        "ranks": sum(int(number_of(p, "ranks") or 0) for p in parts),
        "is_lower_bound": any(p["is_lower_bound"] is True for p in parts),
    }  # fmt: skip


def _balance(ranks_j: float | None, devices_j: float | None) -> Record:
    residual_j = devices_j - ranks_j if ranks_j is not None and devices_j is not None else None
    return {"energy_j": ranks_j, "devices_j": devices_j, "residual_j": residual_j}


# -- phases and totals of all ranks ------------------------------------------------------------------------------------

_GROUP = ("model", "batch_size", "attributes", "power_cap_asked_w", "power_cap_in_run")
_KIND = ("kind", *_GROUP, "operations_per_sample", "phase", "phase_path", "timing")
_OF_A_PART = ("mean per rank:", "n counts the iterations of", "joules are the device's")
"""Notes on how ranks share a machine's device, which do not hold for sums over all ranks."""

Parts = list[tuple[Place, Record]]


def _phase_sums(job: _Job, places: Sequence[Place], about: Record) -> list[Record]:
    """Records of kind ``phase`` and ``total`` of one set of devices; ``about`` is what they have in common."""
    groups: dict[tuple[Cell, ...], Parts] = {}
    for place in places:
        for record in job.members[place[0]].records:
            if record["kind"] in ("phase", "total") and _place(place[0], record) == place:
                groups.setdefault(tuple(record[name] for name in _KIND), []).append((place, record))
    records = [_sum(job, parts, about) for parts in groups.values()]
    return [_with_gflops(record, records) for record in records]


def _sum(job: _Job, parts: Parts, about: Record) -> Record:
    every = [r for _, r in parts]
    is_total = every[0]["kind"] == "total"
    # A batch is one in every rank: how many ranks share a device does not count.
    record = every[0] | about | dict.fromkeys(("s_by_rank", "sharing", "ranks_counted"))
    record |= {name: joined(*(r[name] for r in every)) or None for name in ("device_name", "method")}
    for name in ("power_cap_w", "clock_hz"):
        whole = total_of(number_of(r, name) for r in every)
        record[name] = None if whole is None else whole / len(every)
    record["is_lower_bound"] = any(r["is_lower_bound"] is True for r in every)
    record["missing_s"] = sum(number_of(r, "missing_s") or 0.0 for r in every)
    notes = [text for r in every for text in str(r["note"] or "").split("; ") if not text.startswith(_OF_A_PART)]
    # Of each rank how many phases and their seconds: the same on each device that it uses.
    of_ranks: dict[str, tuple[int, float]] = {}
    for r in every:
        of_ranks |= json.loads(str(r["s_by_rank"] or "{}"))
    n_ranks, counts, lengths_s = len(of_ranks), [n for n, _ in of_ranks.values()], [s for _, s in of_ranks.values()]
    mean_n = sum(counts) / n_ranks if n_ranks else 0.0
    record["iterations"] = round(mean_n) if n_ranks else None
    if n_ranks:
        each_s = [length_s / n for length_s, n in zip(lengths_s, counts, strict=True)]
        record |= {"s_per_batch": sum(each_s) / n_ranks, "s_per_batch_min": min(each_s), "s_per_batch_max": max(each_s)}
        if len(set(counts)) > 1:
            notes.append(f"ranks have {min(counts)} to {max(counts)} of them: n is their mean")
        if n_ranks < (number_of(about, "ranks") or 0):
            notes.append(f"{n_ranks} of {about['ranks']} ranks have such phases")
    record["u_s_per_batch"] = _u_seconds(every)
    # A phase's figures are the mean of a rank's share; a total's are the device's.
    times = [1.0 if is_total else (number_of(r, "iterations") or 0.0) / mean_n if mean_n else 0.0 for r in every]
    devices = [(job.at[place], place) for place, _ in parts]
    shares = [device.share(place) * n for (device, place), n in zip(devices, times, strict=True)]
    record |= summed_joules(every, shares, [id(device) for device, _ in devices])
    name = "energy_j" if is_total else "j_per_batch"
    joules, seconds = number_of(record, name), number_of(record, "s_per_batch")
    if joules is None:
        silent = [f"{place[1]} of {r['run']}" for place, r in parts if r[name] is None]
        notes.append(f"no joules of {', '.join(silent)}")
    batch, has_rate = number_of(record, "batch_size"), any(r["samples_per_s"] is not None for r in every)
    record["samples_per_s"] = n_ranks * batch / seconds if has_rate and batch and seconds else None
    if is_total:
        record["time_s"] = seconds = sum(lengths_s) / n_ranks if n_ranks else None
        record["j_per_batch"] = joules / mean_n if joules is not None and mean_n else None
    record["power_w"] = joules / seconds if joules is not None and seconds else None
    record["edp_js"] = edp_js(joules, seconds) if joules is not None and seconds is not None else None
    return record | {"note": joined(*notes)}


def _u_seconds(records: Sequence[Record]) -> float | None:
    """Of the mean over all phases, each device's by its number of them."""
    parts = [(number_of(r, "u_s_per_batch"), number_of(r, "iterations") or 0.0) for r in records]
    count = sum(n for _, n in parts)
    return independent(None if u is None else u * n / count for u, n in parts) if count else None


def _with_gflops(record: Record, every: Sequence[Record]) -> Record:
    """Operations of all ranks over the joules of all; of totals over those of the phases that their parts divide by."""
    names = ("gflops_per_w", "u_statistical_gflops_per_w", "u_systematic_gflops_per_w")
    basis = str(record["gflops_basis"] or "").split("+")
    group = [r for r in every if r["kind"] == "phase" and all(r[n] == record[n] for n in _GROUP)]
    over = [r for r in group if r["phase"] in basis]
    operations, batch, ranks = (number_of(record, n) for n in ("operations_per_sample", "batch_size", "ranks"))
    joules = total_of(number_of(r, "j_per_batch") for r in over)
    if not (operations and batch and ranks and joules):
        return record | dict.fromkeys(names)
    passes = 1 if record["kind"] == "phase" else len({r["phase"] for r in group} & {"forward", "backward"})
    figure = gflops_per_w_paper(operations, batch * ranks, passes, joules)
    u = [sqrt(sum((number_of(r, n) or 0.0) ** 2 for r in over)) for n in ("u_statistical_j", "u_systematic_j")]
    return record | dict(zip(names, (figure, *(figure * part / joules for part in u)), strict=True))
