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
from itertools import combinations, islice
from math import hypot, sqrt

from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.export import Cell
from powerd_analytics.metrics import edp_js, gflops_per_w_paper
from powerd_analytics.records import Record, number_of
from powerd_analytics.runs.ranks import missing_ranks
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
    runs: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        runs.setdefault((str(record["path"]), str(record["run_id"])), []).append(record)
    alone: list[Record] = []
    members: list[Member] = []
    for (path, _), of_run in runs.items():
        first, job = of_run[0], of_run[0]["job"]
        world, numbers = first["world_size"], first["rank_numbers"]
        ranks = frozenset(map(int, json.loads(numbers))) if isinstance(numbers, str) else frozenset[int]()
        if not isinstance(world, int) or not isinstance(numbers, str) or len(ranks) >= world:
            alone += of_run
            continue
        begin_s = number_of(first, "begin_unix_s")
        length_s = max((number_of(r, "time_s") or 0.0 for r in of_run if r["kind"] == "run"), default=0.0)
        end_s = begin_s + length_s if begin_s is not None else None
        members.append(Member(path, None if job is None else str(job), world, ranks, begin_s, end_s, of_run))
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
            raise AnalysisError(
                f"{a.path} is of a training of {a.world_size} ranks, {b.path} of one of {b.world_size}: not one job"
            )
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
        for other_begin_s, other_end_s, b in islice(timed, i + 1, None):
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

    @property
    def is_lower_bound(self) -> bool:
        return self.runs[self.kept]["is_lower_bound"] is True

    @property
    def ranks(self) -> int:
        return sum(self.sharing.values())

    def share(self, place: Place) -> float:
        """Of the device's power what the ranks of one recording have."""
        return self.sharing[place] / self.ranks


def _place(m: int, record: Record) -> Place:
    return m, str(record["device"]), str(record["provenance"])


def _texts(record: Record, name: str) -> set[str]:
    """A column that holds a JSON list of texts; empty without."""
    value = record[name]
    return set(map(str, json.loads(value))) if isinstance(value, str) and value else set()


class _Devices:
    """All devices of the members of one training, and which of them are added up."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.at: dict[Place, _Device] = {}
        self.sets: dict[tuple[str, ...], list[Place]] = {}
        """What is added: devices that are known to be different GPUs, or those of one name on the machines."""
        for m, member in enumerate(members):
            for record in (r for r in member.records if r["kind"] == "run"):
                self._add(_place(m, record), record)
        for m, member in enumerate(members):
            for record in member.records:
                place = _place(m, record)
                if record["kind"] == "rank" and place in self.at:
                    self.at[place].sharing[place] = int(number_of(record, "sharing") or 1)
            self._add_sets(m, [r for r in member.records if r["kind"] == "job"])

    def _add(self, place: Place, run: Record) -> None:
        """A device that another recorder read too, by the same powerd or as the same GPU, is that one."""
        ids = _texts(run, "sensors") | _texts(run, "gpu")
        for device in self.once(list(self.at)):
            if device.ids & ids and all(p[2] == place[2] and p[0] != place[0] for p in device.runs):
                device.ids |= ids
                device.runs[place] = run
                self.at[place] = device
                return
        self.at[place] = _Device(ids, {place: run})

    def _add_sets(self, m: int, jobs: Sequence[Record]) -> None:
        gpus = 0
        for job in jobs:
            provenance, lines = str(job["provenance"]), _texts(job, "sensors")
            key: tuple[str, ...] = (provenance, str(job["device"]))
            if job["gpu"] is not None:
                key = (provenance, "", str(gpus))
                gpus += 1
            own = [p for p, d in self.at.items() if (p[0], p[2]) == (m, provenance) and p in d.sharing]
            own = [p for p in own if _texts(self.at[p].runs[p], "sensors") <= lines]
            self.sets.setdefault(key, []).extend(own)

    def once(self, places: Sequence[Place]) -> list[_Device]:
        """The devices at some places, each once, in the order of their first recordings."""
        return list({id(self.at[p]): self.at[p] for p in places}.values())

    def name(self, places: Sequence[Place], machines: int | None) -> str:
        """A set's devices in words, for the column ``device``."""
        by_machine: dict[int, list[str]] = {}
        for m, device, _ in places:
            by_machine.setdefault(m, []).append(device)
        names = dict.fromkeys("+".join(devices) for devices in by_machine.values())
        count = len(by_machine)
        of = f"{count} of {machines}" if machines is not None and machines != count else str(count)
        return f"{' and '.join(names)} of {of} machines"


# -- records of whole trainings ----------------------------------------------------------------------------------------


def merge_jobs(records: Sequence[Record], *, by_hand: bool = False, strict: bool = True) -> list[Record]:
    """All records, those of runs that are parts of one training replaced by the training's.

    Phases and totals are then of all its ranks and devices together; runs, ranks and jobs stay machine by machine, with
    ``machine`` set, and a job's record without it is the whole. A part of which no other is there stays as it is, with
    a note. ``by_hand``: all of them are parts of one, whatever they say. Raises `AnalysisError` as `jobs_of`, and for
    parts that cannot be of one training.
    """
    alone, members = apart(records)
    jobs = [_one_job(members, alone)] if by_hand else jobs_of(members, strict=strict)
    if not members:
        return list(records)
    merged = [r for job in jobs for r in (_lone_part(job[0]) if len(job) == 1 else job_records(job))]
    places = {record["path"]: i for i, record in reversed(list(enumerate(records)))}
    return sorted([*alone, *merged], key=lambda r: places[r["path"]])


def _lone_part(member: Member) -> list[Record]:
    missing = missing_ranks(member.ranks, member.world_size)
    note = f"without {missing}: no run here has them and was recorded at the same time"
    return [r | {"note": _notes(r["note"], note)} if r["kind"] in ("phase", "total") else r for r in member.records]


def job_records(members: Sequence[Member]) -> list[Record]:
    """The records of one training from those of its machines, in the order of their ranks."""
    devices = _Devices(members)
    columns, machines, note = _whole(members)
    records: list[Record] = []
    for places in devices.sets.values():
        about = columns | {"device": devices.name(places, machines)}
        records += [r | {"note": _notes(r["note"], note)} for r in _phase_sums(devices, places, about)]
    for m, member in enumerate(members):
        records += _of_machine(devices, m, member)
    for places in devices.sets.values():
        about = columns | {"device": devices.name(places, machines), "note": note}
        records.append(_of_training(devices, places, about))
    return records


def _whole(members: Sequence[Member]) -> tuple[Record, int | None, str]:
    """What all records of a training have in common, how many machines it had if that is known, and a note."""
    firsts = [m.records[0] for m in members]
    ranks, world = _ranks_of(members), members[0].world_size
    missing = missing_ranks(ranks, world)
    counts = [int(n) for r in firsts if (n := number_of(r, "job_machines")) is not None]
    machines = len(members) if not missing else max([*counts, len(members)]) if counts else None
    of = f" of {machines}" if machines not in (None, len(members)) else ""
    notes = [f"{len(members)}{of} machines: without {missing}"] if missing else []
    hosts = sorted({str(r["host"]) for r in firsts if r["host"] is not None})
    if len(hosts) < len(members):
        notes.append("machines have the same host name: a device that two of them see unknowingly counts twice")
    gpus = sum((number_of(r, "gpus") or 0.0) * len(m.ranks) / world for r, m in zip(firsts, members, strict=True))
    columns: Record = {name: _joined(firsts, name) for name in ("run", "run_id", "created_utc")}
    columns |= {name: firsts[0][name] for name in ("path", "job", "world_size")}
    columns |= {"host": "; ".join(hosts) or None, "ranks": len(ranks), "rank_numbers": json.dumps(sorted(ranks))}
    columns |= {"machines": len(members), "job_machines": machines, "gpus": max(1, round(gpus))}
    return columns, machines, "; ".join(notes)


def _joined(records: Sequence[Record], name: str) -> str | None:
    return "; ".join(dict.fromkeys(str(r[name]) for r in records if r[name])) or None


def _of_machine(devices: _Devices, m: int, member: Member) -> list[Record]:
    """Runs, ranks and jobs of one machine: a device that another's recorder has too is only where it counts."""
    records: list[Record] = []
    for record in member.records:
        place = _place(m, record)
        if record["kind"] == "run" and devices.at[place].kept == place:
            others = [p for p in devices.at[place].runs if p != place]
            names = ", ".join(str(devices.members[p[0]].records[0]["run"]) for p in others)
            note = f"{names} recorded it as well: it counts once" if others else ""
            records.append(record | {"machine": m, "note": _notes(record["note"], note)})
        elif record["kind"] == "rank":
            records.append(_of_rank(devices, place, record) | {"machine": m})
    for places in devices.sets.values():
        here = [p for p in places if p[0] == m]
        records += [_of_part(devices, here, member.records) | {"machine": m}] if here else []
    return records


def _of_rank(devices: _Devices, place: Place, record: Record) -> Record:
    """A rank's share of a device. Where another machine recorded it for longer, that time is rest to the rank."""
    device = devices.at[place]
    if len(device.sharing) < 2:
        return record
    n, energy_j = device.ranks, device.energy_j
    whole_j = None if energy_j is None else energy_j / n
    phases_j, residual_j = (
        None if (value := number_of(record, name)) is None else value * device.share(place)
        for name in ("phases_j", "residual_j")
    )
    is_known = whole_j is not None and phases_j is not None and residual_j is not None
    return record | {
        "sharing": n,
        "energy_j": whole_j,
        "phases_j": phases_j,
        "residual_j": residual_j,
        "rest_j": (whole_j or 0.0) - (phases_j or 0.0) - (residual_j or 0.0) if is_known else None,
        "note": f"each of {n} ranks on {len(device.sharing)} machines has 1/{n} of the device's power",
    }


def _of_part(devices: _Devices, places: Sequence[Place], records: Sequence[Record]) -> Record:
    """Ranks of one machine against what its devices give them."""
    job = next(r for r in records if r["kind"] == "job" and r["provenance"] == places[0][2])
    ranks = [(p, r) for p in places for r in records if (r["kind"], r["device"], r["provenance"]) == ("rank", *p[1:])]
    ranks_j = [number_of(_of_rank(devices, p, r), "energy_j") for p, r in ranks]
    of_places = [(devices.at[p], p) for p in places]
    devices_j = [None if d.energy_j is None else d.energy_j * d.share(p) for d, p in of_places]
    return job | _sums(ranks_j, devices_j) | {
        "device": "+".join(p[1] for p in places),
        "ranks": len({r["rank"] for _, r in ranks}),
        "is_lower_bound": any(d.is_lower_bound for d, _ in of_places),
        "note": "",
    }  # fmt: skip


def _of_training(devices: _Devices, places: Sequence[Place], about: Record) -> Record:
    """The whole training on one set of devices."""
    by_machine = [([p for p in places if p[0] == m], member) for m, member in enumerate(devices.members)]
    parts = [_of_part(devices, here, member.records) for here, member in by_machine if here]
    sums = _sums([number_of(p, "energy_j") for p in parts], [d.energy_j for d in devices.once(places)])
    return parts[0] | about | sums | {
        "ranks": sum(int(number_of(p, "ranks") or 0) for p in parts),
        "is_lower_bound": any(p["is_lower_bound"] is True for p in parts),
        "sensors": None, "gpu": None, "begin_unix_s": None,
    }  # fmt: skip


def _sums(ranks_j: Sequence[float | None], devices_j: Sequence[float | None]) -> Record:
    """None where one has no joules: a sum without it would pass for the whole."""
    ranks = None if None in ranks_j else sum(j for j in ranks_j if j is not None)
    devices = None if None in devices_j else sum(j for j in devices_j if j is not None)
    residual = devices - ranks if ranks is not None and devices is not None else None
    return {"energy_j": ranks, "devices_j": devices, "residual_j": residual}


def _notes(*texts: Cell) -> str:
    return "; ".join(str(t) for t in texts if t)


# -- phases and totals of all ranks ------------------------------------------------------------------------------------

_KIND = ("kind", "model", "batch_size", "attributes", "operations_per_sample", "phase", "phase_path", "timing")
_OF_A_PART = ("mean per rank:", "n counts the iterations of", "joules are the device's")
"""Notes on how ranks share a machine's device, which do not hold for sums over all ranks."""

Parts = list[tuple[Place, Record]]


def _phase_sums(devices: _Devices, places: Sequence[Place], about: Record) -> list[Record]:
    """Records of kind ``phase`` and ``total`` of one set of devices; ``about`` is what they have in common."""
    groups: dict[tuple[Cell, ...], Parts] = {}
    for place in places:
        for record in devices.members[place[0]].records:
            if record["kind"] in ("phase", "total") and _place(place[0], record) == place:
                groups.setdefault(tuple(record[name] for name in _KIND), []).append((place, record))
    records = [_sum(devices, parts, about) for parts in groups.values()]
    return [_with_gflops(record, records) for record in records]


def _sum(devices: _Devices, parts: Parts, about: Record) -> Record:
    every = [r for _, r in parts]
    is_total = every[0]["kind"] == "total"
    # A batch is one in every rank: how many ranks share a device does not count.
    record = (
        every[0] | about | dict.fromkeys(("sensors", "gpu", "begin_unix_s", "s_by_rank", "sharing", "ranks_counted"))
    )
    record |= {"device_name": _joined(every, "device_name"), "method": _joined(every, "method")}
    for name in ("power_cap_w", "clock_hz"):
        values = [v for r in every if (v := number_of(r, name)) is not None]
        record[name] = sum(values) / len(values) if len(values) == len(every) else None
    record["is_lower_bound"] = any(r["is_lower_bound"] is True for r in every)
    record["missing_s"] = sum(number_of(r, "missing_s") or 0.0 for r in every)
    # Of each rank how many phases and their seconds: the same on each device that it uses.
    of_ranks: dict[str, tuple[int, float]] = {}
    for r in every:
        of_ranks |= json.loads(str(r["s_by_rank"] or "{}"))
    n_ranks, counts = len(of_ranks), [int(n) for n, _ in of_ranks.values()]
    lengths_s = [float(s) for _, s in of_ranks.values()]
    mean_n = sum(counts) / n_ranks if n_ranks else 0.0
    notes = [text for r in every for text in str(r["note"] or "").split("; ")]
    notes = [text for text in notes if text and not text.startswith(_OF_A_PART)]
    record["iterations"] = round(mean_n) if n_ranks else None
    if n_ranks:
        s = [length_s / n for length_s, n in zip(lengths_s, counts, strict=True)]
        record |= {"s_per_batch": sum(s) / n_ranks, "s_per_batch_min": min(s), "s_per_batch_max": max(s)}
        if len(set(counts)) > 1:
            notes.append(f"ranks have {min(counts)} to {max(counts)} of them: n is their mean")
        if n_ranks < (number_of(about, "ranks") or 0):
            notes.append(f"{n_ranks} of {about['ranks']} ranks have such phases")
    record["u_s_per_batch"] = _u_seconds(every)
    record |= _joules(devices, parts, mean_n, is_total=is_total)
    name = "energy_j" if is_total else "j_per_batch"
    joules = number_of(record, name)
    if joules is None:
        silent = [f"{place[1]} of {r['run']}" for place, r in parts if r[name] is None]
        notes.append(f"no joules of {', '.join(silent)}")
    if is_total:
        record["time_s"] = sum(lengths_s) / n_ranks if n_ranks else None
        record["j_per_batch"] = joules / mean_n if joules is not None and mean_n else None
    seconds, s_batch = number_of(record, "time_s" if is_total else "s_per_batch"), number_of(record, "s_per_batch")
    record["power_w"] = joules / seconds if joules is not None and seconds else None
    record["edp_js"] = edp_js(joules, seconds) if joules is not None and seconds is not None else None
    batch, has_rate = number_of(record, "batch_size"), any(r["samples_per_s"] is not None for r in every)
    record["samples_per_s"] = n_ranks * batch / s_batch if has_rate and batch and s_batch else None
    return record | {"note": "; ".join(dict.fromkeys(notes))}


def _u_seconds(records: Sequence[Record]) -> float | None:
    """Of the mean over all phases, each device's by its number of them."""
    parts = [(number_of(r, "u_s_per_batch"), number_of(r, "iterations") or 0.0) for r in records]
    count = sum(n for _, n in parts)
    if not count or any(u is None for u, _ in parts):
        return None
    return sqrt(sum((u * n / count) ** 2 for u, n in parts if u is not None))


def _joules(devices: _Devices, parts: Parts, mean_n: float, *, is_total: bool) -> Record:
    """Joules of all parts. Different devices are different sensors, off independently of each other; what several
    machines recorded of one device is off together."""
    name = "energy_j" if is_total else "j_per_batch"
    names = (name, "u_statistical_j", "u_systematic_j")
    sums: Record = dict.fromkeys((*names, "u95_j", "rest_j", "residual_j"))
    by_device: dict[int, list[float]] = {}
    rest: dict[str, list[float | None]] = {"rest_j": [], "residual_j": []}
    is_known = True
    for place, record in parts:
        device = devices.at[place]
        # A phase's figures are the mean of a rank's share; a total's are the device's.
        n = 1.0 if is_total else (number_of(record, "iterations") or 0.0) / mean_n if mean_n else 0.0
        times = device.share(place) * n
        values = [number_of(record, column) for column in names]
        if values[0] is None:
            return sums
        is_known = is_known and None not in values and record["u95_j"] is not None
        before = by_device.get(id(device), [0.0, 0.0, 0.0])
        by_device[id(device)] = [b + (v or 0.0) * times for b, v in zip(before, values, strict=True)]
        for column, of_parts in rest.items():
            value = number_of(record, column)
            of_parts.append(None if value is None else value * times)
    sums[name] = sum(of_device[0] for of_device in by_device.values())
    if is_known:
        u = [sqrt(sum(of_device[i] ** 2 for of_device in by_device.values())) for i in (1, 2)]
        sums |= {"u_statistical_j": u[0], "u_systematic_j": u[1], "u95_j": COVERAGE_FACTOR * hypot(*u)}
    if is_total and not any(None in of_parts for of_parts in rest.values()):
        sums |= {column: sum(v for v in of_parts if v is not None) for column, of_parts in rest.items()}
    return sums


def _with_gflops(record: Record, every: Sequence[Record]) -> Record:
    """Operations of all ranks over the joules of all; of totals over those of the phases that their parts divide by."""
    names = ("gflops_per_w", "u_statistical_gflops_per_w", "u_systematic_gflops_per_w")
    basis = str(record["gflops_basis"] or "")
    group = [r for r in every if r["kind"] == "phase" and all(r[n] == record[n] for n in _KIND[1:4])]
    over = [r for r in group if r["phase"] in basis.split("+")]
    operations, batch, ranks = (number_of(record, n) for n in ("operations_per_sample", "batch_size", "ranks"))
    joules = [number_of(r, "j_per_batch") for r in over]
    if not basis or not (operations and batch and ranks) or not joules or not all(joules):
        return record | dict.fromkeys(names)
    passes = 1 if record["kind"] == "phase" else len({r["phase"] for r in group} & {"forward", "backward"})
    total_j = sum(j for j in joules if j is not None)
    figure = gflops_per_w_paper(operations, batch * ranks, passes, total_j)
    u = [sqrt(sum((number_of(r, n) or 0.0) ** 2 for r in over)) for n in ("u_statistical_j", "u_systematic_j")]
    return record | dict(zip(names, (figure, *(figure * part / total_j for part in u)), strict=True))
