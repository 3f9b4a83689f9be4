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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Any

import numpy as np

from powerd_analytics.energy.metrics import gflops_per_w_paper
from powerd_analytics.frame.figure import Record, figure_of, joules_column, number_of, sum_of_figures
from powerd_analytics.frame.figures import (
    Frame,
    aggregate,
    concat_frames,
    factors_in,
    floats,
    frame_from,
    of_kind,
    rows_of,
    with_eds,
    worked_out,
)
from powerd_analytics.frame.repeats import gflops_columns, joules_columns
from powerd_analytics.output.text import Cell, join_texts
from powerd_analytics.runs.ranks import missing_ranks
from powerd_core.errors import AnalysisError

# -- which runs are parts of one training ------------------------------------------------------------------------------

_UNIQUE = ("slurm ", "given ")
"""Names that no other training has: times need not agree, as those of machines whose clocks differ."""


@dataclass(frozen=True, slots=True)
class Member:
    """A run that lacks ranks of its training, with its frame."""

    path: str
    job: str | None
    world_size: int
    ranks: frozenset[int]
    begin_s: float | None
    """By its machine's wall clock."""
    end_s: float | None
    frame: Frame = field(repr=False)


def split_parts(frame: Frame) -> tuple[Frame, list[Member]]:
    """Rows of whole trainings, and the parts of others. Both in their order."""
    numbers = frame["rank_numbers"].fillna("").str.split().str.len()
    is_part = np.asarray((numbers > 0) & (numbers < frame["world_size"]).fillna(False), bool)
    members = []
    for _, own in frame[is_part].groupby(["path", "run_id"], dropna=False, sort=False):
        first = rows_of(own.iloc[:1])[0]
        begin_s, runs = number_of(first, "begin_unix_s"), floats(of_kind(own, "run"), "time_s")
        end_s = begin_s + float(np.nanmax(runs, initial=0.0)) if begin_s is not None else None
        ranks = frozenset(map(int, str(first["rank_numbers"]).split()))
        name, world = None if first["job"] is None else str(first["job"]), int(number_of(first, "world_size") or 0)
        members.append(Member(str(first["path"]), name, world, ranks, begin_s, end_s, own.reset_index(drop=True)))
    return frame[~is_part].reset_index(drop=True), members


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


def _one_job(members: Sequence[Member], others: Frame) -> list[Member]:
    """All runs as one training, because somebody says so. Raises `AnalysisError` where they cannot be."""
    if len(others):
        raise AnalysisError(
            f"{others['path'].iloc[0]} is not a part of a training over several machines: all of its ranks are in it"
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


# -- the sum over machines ---------------------------------------------------------------------------------------------

Place = tuple[int, str, str]
"""Machine's number, device, provenance."""


def merge_machines(frame: Frame, *, by_hand: bool = False) -> Frame:
    """The frame with the phases and totals of runs that are parts of one training replaced by the training's.

    Whole recordings stay machine by machine. A part of which no other is there stays as it is, with a note.
    ``by_hand``: all of them are parts of one, whatever they say. Raises `AnalysisError` as `jobs_of`, and for parts
    that cannot be of one training.
    """
    alone, members = split_parts(frame)
    jobs = [_one_job(members, alone)] if by_hand else jobs_of(members)
    if not members:
        return frame
    merged = [_lone_part(job[0]) if len(job) == 1 else of_machines(job) for job in jobs]
    places = {path: i for i, path in reversed(list(enumerate(frame["path"])))}
    every = concat_frames([alone, *merged])
    order = every["path"].map(places).to_numpy()
    return with_eds(every.iloc[np.argsort(order, kind="stable")].reset_index(drop=True))


def _lone_part(member: Member) -> Frame:
    missing = missing_ranks(member.ranks, member.world_size)
    note = f"without {missing}: no run here has them and was recorded at the same time"
    frame = member.frame.copy()
    is_figure = frame["kind"].isin(("phase", "total"))
    frame["note"] = [join_texts(text, note) if own else text for text, own in
                     zip(frame["note"].fillna(""), is_figure, strict=True)]  # fmt: skip
    return frame


@dataclass(slots=True)
class _Device:
    """One device and the recordings of it."""

    ids: set[str]
    runs: dict[Place, Record]
    """Its whole recordings."""

    @property
    def kept(self) -> Place:
        """The recording that counts: one that ranks use, the longest."""

        def order(place: Place) -> tuple[bool, bool, float]:
            run = self.runs[place]
            return bool(self._users(place)), run["energy_j"] is not None, number_of(run, "time_s") or 0.0

        return max(self.runs, key=order)

    def _users(self, place: Place) -> float:
        return number_of(self.runs[place], "sharing") or 0.0

    def share(self, place: Place) -> float:
        """Of the device's power what the ranks of one recording have."""
        return self._users(place) / sum(map(self._users, self.runs))


def _devices_of(members: Sequence[Member]) -> dict[Place, _Device]:
    """The devices of a training; one that another recorder read too, by the same powerd or as the same GPU, is one."""
    at: dict[Place, _Device] = {}
    for m, member in enumerate(members):
        for run in rows_of(of_kind(member.frame, "run")):
            place, ids = (m, str(run["device"]), str(run["provenance"])), set(str(run["device_ids"] or "").split())
            same = (d for d in at.values() if d.ids & ids and all(p[2] == place[2] and p[0] != m for p in d.runs))
            device = next(same, None) or _Device(set(), {})
            device.ids |= ids
            device.runs[place] = run
            at[place] = device
    return at


def _sets_of(at: Mapping[Place, _Device]) -> list[list[Place]]:
    """What is added up: devices that are known to be different GPUs, else those of one name on the machines, which may
    contain each other (a wall meter)."""
    sets: dict[tuple[str, ...], list[Place]] = {}
    for place, device in at.items():
        gpus = {name for name in device.ids if name.startswith("gpu:")}
        key: tuple[str, ...] = (place[2], place[1])
        if gpus:
            taken = [k for k, own in sets.items() if k[0] == place[2] and k[1] == "" and
                     any(at[p] is not device and at[p].ids & gpus for p in own)]  # fmt: skip
            key = (place[2], "", str(len(taken)))
        sets.setdefault(key, []).append(place)
    return list(sets.values())


def of_machines(members: Sequence[Member]) -> Frame:
    """The frame of one training from those of its machines, in the order of their ranks."""
    at = _devices_of(members)
    about, note = _of_all(members)
    rows: list[dict[str, Any]] = []
    for places in _sets_of(at):
        used = [p for p in places if number_of(at[p].runs[p], "sharing")]
        rows += _sums(members, at, used, about | {"device": _name(used, about["job_machines"])}, note) if used else []
    for m, member in enumerate(members):
        for record in rows_of(of_kind(member.frame, "run")):
            place = (m, str(record["device"]), str(record["provenance"]))
            if at[place].kept == place:
                others = ", ".join(str(_first(members[p[0]])["run"]) for p in at[place].runs if p != place)
                note_of_run = f"{others} recorded it as well: it counts once" if others else ""
                rows.append(record | {"note": join_texts(record["note"], note_of_run)})
        rows += rows_of(of_kind(member.frame, "rank"))
    return worked_out(frame_from(rows))


def _first(member: Member) -> Record:
    return rows_of(member.frame.iloc[:1])[0]


def _name(places: Sequence[Place], machines: Cell) -> str:
    """A set's devices in words, for the column ``device``."""
    by_machine: dict[int, list[str]] = {}
    for m, device, _ in places:
        by_machine.setdefault(m, []).append(device)
    names, count = dict.fromkeys("+".join(devices) for devices in by_machine.values()), len(by_machine)
    return f"{' and '.join(names)} of {count if machines in (None, count) else f'{count} of {machines}'} machines"


def _of_all(members: Sequence[Member]) -> tuple[dict[str, Any], str]:
    """What all rows of a training have in common, and a note."""
    firsts, ranks, world = [_first(m) for m in members], _ranks_of(members), members[0].world_size
    missing, counts = missing_ranks(ranks, world), [number_of(r, "job_machines") for r in firsts]
    # How many machines it had, if that is known.
    machines = len(members) if not missing else max((int(n) for n in counts if n is not None), default=None)
    machines = machines if machines is None else max(machines, len(members))
    of = f" of {machines}" if machines not in (None, len(members)) else ""
    notes = [f"{len(members)}{of} machines: without {missing}"] if missing else []
    hosts = sorted({str(r["host"]) for r in firsts if r["host"] is not None})
    if len(hosts) < len(members):
        notes.append("machines have the same host name: a device that two of them see unknowingly counts twice")
    gpus = sum((number_of(r, "gpus") or 0.0) * len(m.ranks) / world for r, m in zip(firsts, members, strict=True))
    columns: dict[str, Any] = {n: join_texts(*(r[n] for r in firsts)) or None for n in ("run", "run_id", "created_utc")}
    columns |= {name: firsts[0][name] for name in ("path", "job", "world_size")}
    columns |= {"host": "; ".join(hosts) or None, "ranks": len(ranks), "gpus": max(1, round(gpus))}
    columns |= {"rank_numbers": " ".join(map(str, sorted(ranks))), "machines": len(members), "job_machines": machines}
    columns |= {"cores": _sum_of(firsts, "cores"), "memory_gib": _sum_of(firsts, "memory_gib")}
    return columns | dict.fromkeys(_OF_NONE), "; ".join(notes)


_OF_NONE = ("device_ids", "begin_unix_s", "sharing", "ranks_counted", "clock_hz", "memory_clock_hz")
"""Columns that a sum over machines does not have, also where it has one part alone."""


def _sum_of(records: Sequence[Record], name: str) -> float | None:
    values = [number_of(r, name) for r in records]
    return None if None in values else sum(v or 0.0 for v in values)


_OF_A_PART = ("mean per rank:", "n counts the iterations of", "joules are the device's")
"""Notes on how ranks share a machine's device, which do not hold for sums over all ranks."""


def _sums(
    members: Sequence[Member], at: Mapping[Place, _Device], places: Sequence[Place], about: Mapping[str, Any], note: str
) -> list[dict[str, Any]]:
    """Rows of kind ``phase`` and ``total`` of one set of devices; ``about`` is what they have in common."""
    every = concat_frames([m.frame for m in members])
    names = ["kind", "model", "batch_size", "power_cap_asked_w", "power_cap_in_run", "operations_per_sample", "phase",
             "phase_path", "timing"]  # fmt: skip
    names += factors_in(every)
    groups: dict[tuple[Cell, ...], list[int]] = {}
    ranks: dict[tuple[Cell, ...], list[Record]] = {}
    records = rows_of(every)
    number_of_path = {member.path: m for m, member in enumerate(members)}
    at_row = [(number_of_path[str(r["path"])], str(r["device"]), str(r["provenance"])) for r in records]
    for i, record in enumerate(records):
        key = tuple(record.get(name) for name in names)
        if record["kind"] in ("phase", "total") and at_row[i] in places:
            groups.setdefault(key, []).append(i)
        elif record["kind"] == "rank":
            ranks.setdefault(("total" if record["phase"] is None else "phase", *key[1:]), []).append(record)
    if not groups:
        return []
    of_groups = every.iloc[[*chain(*groups.values())]].reset_index(drop=True)
    number = np.repeat(np.arange(len(groups)), [*map(len, groups.values())])
    by_rule = rows_of(aggregate(of_groups, number, "parts"))
    rows = [
        _sum_of_machines(at, {**row, **about}, [(at_row[i], records[i]) for i in own], ranks.get(key, []), note)
        for row, (key, own) in zip(by_rule, groups.items(), strict=True)
    ]
    return [row | _gflops(row, rows, names) for row in rows]


def _sum_of_machines(
    at: Mapping[Place, _Device], row: dict[str, Any], parts: Sequence[tuple[Place, Record]],
    of_ranks: Sequence[Record], note: str,
) -> dict[str, Any]:  # fmt: skip
    """``row`` has each column by its rule. What the ranks and the devices' shares have to do with follows here."""
    every, counted = [r for _, r in parts], [r for r in of_ranks if number_of(r, "iterations")]
    texts = (text for r in every for text in str(r["note"] or "").split("; "))
    notes = [text for text in texts if not text.startswith(_OF_A_PART)]
    of_time, notes_of_time = _times(counted, row)
    of_joules, notes_of_joules = _joules(at, parts, counted)
    row |= of_time | of_joules | {"u_s_per_batch": _u_seconds(every)}
    batch, seconds = number_of(row, "batch_size"), row["s_per_batch"]
    has_rate = any(r["samples_per_s"] is not None for r in every)
    # A batch is one in every rank: how many ranks share a device does not count.
    row["samples_per_s"] = len(counted) * batch / seconds if has_rate and batch and seconds else None
    return row | {"note": join_texts(*notes, *notes_of_time, *notes_of_joules, note)}


def _times(counted: Sequence[Record], row: Record) -> tuple[dict[str, Any], list[str]]:
    """Seconds of one rank, the mean over those that have such phases, and what is to be said of them."""
    if not counted:
        return dict.fromkeys(("iterations", "s_per_batch", "time_s")), []
    counts, each_s, times_s = (
        [number_of(r, name) or 0.0 for r in counted] for name in ("iterations", "s_per_batch", "time_s")
    )
    n, of_all = len(counted), number_of(row, "ranks") or 0.0
    notes = [f"ranks have {min(counts):g} to {max(counts):g} of them: n is their mean"] if len(set(counts)) > 1 else []
    notes += [f"{n} of {of_all:g} ranks have such phases"] if n < of_all else []
    return {
        "iterations": round(sum(counts) / n),
        "s_per_batch": sum(each_s) / n,
        "s_per_batch_min": min(each_s),
        "s_per_batch_max": max(each_s),
        "time_s": sum(times_s) / n if row["kind"] == "total" else None,
    }, notes


def _joules(
    at: Mapping[Place, _Device], parts: Sequence[tuple[Place, Record]], counted: Sequence[Record]
) -> tuple[dict[str, Any], list[str]]:
    """Joules of all devices, each its ranks' share, and which have none."""
    name = joules_column(parts[0][1])
    figures, rests = [figure_of(r, name) for _, r in parts], [number_of(r, "rest_j") for _, r in parts]
    nothing = {"rest_j": None, "rest_u95_j": None, "j_per_batch": None}
    if None in figures:
        silent = [f"{place[1]} of {r['run']}" for place, r in parts if r[name] is None]
        return nothing | joules_columns(name, None), [f"no joules of {', '.join(silent)}"]
    if (own := _weights(at, parts, counted)) is None:
        return nothing | joules_columns(name, None), ["not resolvable: no rank says how often it had such phases"]
    scaled = [f.scaled(share) for f, share in zip(figures, own, strict=True) if f is not None]
    whole = sum_of_figures(scaled, [id(at[place]) for place, _ in parts])
    rest_j = None if None in rests else sum((j or 0.0) * share for j, share in zip(rests, own, strict=True))
    return nothing | joules_columns(name, whole) | {"rest_j": rest_j}, []


def _weights(
    at: Mapping[Place, _Device], parts: Sequence[tuple[Place, Record]], counted: Sequence[Record]
) -> list[float] | None:
    """Of each device what the ranks have of its figure. A total's are the device's joules; a phase's are the mean of a
    rank's share, which counts as often as the device had the phase for each that a rank had; None where no rank says
    how often it had it."""
    shares = [at[place].share(place) for place, _ in parts]
    if parts[0][1]["kind"] == "total":
        return shares
    if not counted:
        return None
    mean_n = sum(number_of(r, "iterations") or 0.0 for r in counted) / len(counted)
    return [share * (number_of(r, "iterations") or 0.0) / mean_n for share, (_, r) in zip(shares, parts, strict=True)]


def _u_seconds(records: Sequence[Record]) -> float | None:
    """Of the mean over all phases, each device's by its number of them."""
    counts = [number_of(r, "iterations") or 0.0 for r in records]
    u = [number_of(r, "u_s_per_batch") for r in records]
    if not sum(counts) or None in u:
        return None
    return float(np.hypot.reduce([(x or 0.0) * n / sum(counts) for x, n in zip(u, counts, strict=True)]))


def _gflops(row: Record, every: Sequence[Record], names: Sequence[str]) -> dict[str, Any]:
    """Operations of all ranks over the joules of all; of totals over those of the phases that their parts divide by."""
    basis = str(row["gflops_basis"] or "").split("+")
    about = [name for name in names if name not in ("kind", "phase", "phase_path", "timing")]
    group = [r for r in every if r["kind"] == "phase" and all(r.get(n) == row.get(n) for n in about)]
    over = [r for r in group if r["phase"] in basis]
    operations, batch, ranks = (number_of(row, n) for n in ("operations_per_sample", "batch_size", "ranks"))
    figures = [figure_of(r, "j_per_batch") for r in over]
    if not (operations and batch and ranks and figures) or None in figures:
        return gflops_columns(None)
    joules = sum_of_figures([f for f in figures if f], range(len(figures)))
    passes = 1 if row["kind"] == "phase" else len({r["phase"] for r in group} & {"forward", "backward"})
    figure = gflops_per_w_paper(operations, batch * ranks, passes, joules.value)
    return gflops_columns(replace(joules.scaled(figure / joules.value), value=figure))
