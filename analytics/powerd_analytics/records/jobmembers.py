"""Which runs are parts of one training: recordings of its machines, found in their records.

Parts of one training have the same name from the launcher, ranks that do not overlap, and times that do. The name alone
is not enough: torchrun's is often the same for the next training on the same machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

from powerd_analytics.records.columns import Record, number_of
from powerd_analytics.runs.ranks import missing_ranks
from powerd_core.errors import AnalysisError

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
        member = _member(path, of_run)
        if member is None:
            alone += of_run
        else:
            members.append(member)
    return alone, members


def _member(path: str, records: list[Record]) -> Member | None:
    first = records[0]
    world, numbers = first["world_size"], first["rank_numbers"]
    if not isinstance(world, int) or not isinstance(numbers, str):
        return None
    ranks = frozenset(int(n) for n in json.loads(numbers))
    if len(ranks) >= world:
        return None
    begin_s = number_of(first, "begin_unix_s")
    lengths = [s for r in records if r["kind"] == "run" and (s := number_of(r, "time_s")) is not None]
    end_s = begin_s + max(lengths, default=0.0) if begin_s is not None else None
    return Member(path, None if first["job"] is None else str(first["job"]), world, ranks, begin_s, end_s, records)


def jobs_of(members: Sequence[Member], *, strict: bool = True) -> list[list[Member]]:
    """The members of each training, by their ranks; most often a training of which nothing else is there has one.

    Raises `AnalysisError`, if ``strict``, for runs that look like parts of one training and do not say so.
    """
    if strict:
        _check_nameless(members)
    buckets: dict[tuple[str | None, int], list[Member]] = {}
    for member in members:
        buckets.setdefault((member.job, member.world_size), []).append(member)
    found: list[list[Member]] = []
    for (job, _), same in buckets.items():
        if job is None:
            found += [[m] for m in same]
        elif job.startswith(_UNIQUE) and sum(len(m.ranks) for m in same) == len(frozenset().union(*_ranks(same))):
            found.append(same)
        else:
            found += _by_time(same)
    return [sorted(job, key=lambda m: min(m.ranks)) for job in found]


def one_job(members: Sequence[Member], others: Sequence[Record]) -> list[Member]:
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


def _ranks(members: Sequence[Member]) -> list[frozenset[int]]:
    return [m.ranks for m in members]


def _by_time(members: list[Member]) -> list[list[Member]]:
    """Those that ran together, those that agree best first: ends of one training may overlap the next by a little."""
    jobs = {id(m): [m] for m in members}
    for _, a, b in sorted(_at_once(members), key=lambda pair: -pair[0]):
        first, second = jobs[id(a)], jobs[id(b)]
        if first is not second and not frozenset().union(*_ranks(first)) & frozenset().union(*_ranks(second)):
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


def _check_nameless(members: Sequence[Member]) -> None:
    for _, a, b in _at_once(m for m in members if m.job is None):
        if a.world_size == b.world_size and not a.ranks & b.ranks:
            held = " and ".join(f"{m.path} lacks {missing_ranks(m.ranks, m.world_size)}" for m in (a, b))
            raise AnalysisError(
                f"{held}, and they ran at the same time, but do not say of which launch they are: `joules tables "
                f"{a.path} {b.path} --job` if they are one training, else look at them one by one (POWERD_JOB in the "
                "environment names the launch when it is recorded)"
            )
