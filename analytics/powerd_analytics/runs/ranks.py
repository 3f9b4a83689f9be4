"""Ranks of a run and the devices they take joules from, so that every joule is counted once; programs beside them.

A process is mapped to devices by the UUID of its GPU, then by its PCI address. Mapped, it takes joules of these devices
only. One that says no GPU takes from every device that no mapped rank has; one whose GPU is none of the devices, from
those of which nobody says which GPU they are. A device that could be anyone's (a wall meter, the processor) and that
nobody takes so belongs to all ranks. A device of n ranks is divided among them equally at every moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.output.text import seconds
from powerd_analytics.runs.phases import distinct, pieces, select_phases
from powerd_analytics.runs.run import Run
from powerd_core.marks import OTHERS
from powerd_core.model import pci_key, uuid_key

NOBODY = -1
"""The rank of a process that is none, such as `joules record` itself with its baseline."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The GPUs that something is or uses, by the keys of `powerd_core.model`."""

    uuids: frozenset[str] = frozenset()
    pcis: frozenset[str] = frozenset()

    @classmethod
    def of(cls, uuids: Iterable[Any], pcis: Iterable[Any]) -> Identity:
        """Of addresses as somebody wrote them; what is none is left out."""
        return cls(frozenset(filter(None, map(uuid_key, uuids))), frozenset(filter(None, map(pci_key, pcis))))

    def __bool__(self) -> bool:
        return bool(self.uuids or self.pcis)

    def overlaps(self, other: Identity) -> bool:
        return bool(self.uuids & other.uuids or self.pcis & other.pcis)


@dataclass(frozen=True, slots=True)
class RunRank:
    """One rank: usually one process, more where it was started anew."""

    rank: int
    pids: tuple[int, ...]
    gpus: tuple[Identity, ...]
    devices: tuple[str, ...] = ()
    """The devices that it takes joules from."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a run in order. In a training of fewer than two every phase has the whole of every device."""

    ranks: tuple[RunRank, ...]
    of_process: NDArray[np.int32]
    """[p] rank of each of the run's processes, `NOBODY` for none."""
    world_size: int = 1
    """Ranks of the whole training, of which those of other machines are not in the run."""

    @property
    def are_many(self) -> bool:
        """Whether the training has several ranks, of which at least one is in the run."""
        return len(self.ranks) > 1 or (bool(self.ranks) and self.world_size > 1)

    def users(self, device: str) -> tuple[RunRank, ...]:
        """The ranks that take joules from a device."""
        return tuple(r for r in self.ranks if device in r.devices) if self.are_many else ()

    def on(self, run: Run, device: str) -> tuple[Run, int]:
        """The run with the phases of those who take joules from the device (and of processes that are no ranks), and
        how many ranks share it: 1 where there are no ranks, or none takes from it."""
        if not self.are_many:
            return run, 1
        users = [r.rank for r in self.users(device)]
        keep = np.isin(self.of_process, [*users, NOBODY])[run.phases.process]
        return (run if keep.all() else replace(run, phases=select_phases(run.phases, keep))), max(1, len(users))

    def tracks(self, run: Run) -> NDArray[np.int32]:
        """[m] rank of each phase of ``run``, which may be one that `on` made."""
        process = run.phases.process
        if np.all(self.of_process == self.of_process[:1]):
            return np.broadcast_to(self.of_process[:1], process.shape)  # of many phases there is not one more column
        return self.of_process[process]


def present_in(tracks: NDArray[np.int32]) -> NDArray[np.int32]:
    """The ranks among those of phases [m], in order."""
    return distinct(np.concatenate([tracks[:0], *(distinct(tracks[some]) for some in pieces(len(tracks)))]))


def ranks_of(run: Run) -> Ranks:
    """The ranks that the run's processes say they are, with the devices they take joules from."""
    count = max(len(run.processes), int(run.phases.process.max(initial=-1)) + 1)
    of_process = np.full(count, NOBODY, np.int32)
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for i, process in enumerate(run.processes):
        for rank in _numbers([process], "rank"):
            of_process[i] = rank
            by_rank.setdefault(rank, []).append(process)
    ranks = [_rank(number, by_rank[number]) for number in sorted(by_rank)]
    return Ranks(tuple(_with_devices(run, ranks)), of_process, max([1, *_numbers(run.processes, "world_size")]))


def _numbers(processes: Iterable[Mapping[str, Any]], key: str) -> list[int]:
    values = [process.get(key) for process in processes]
    return [value for value in values if isinstance(value, int) and 0 <= value < 1 << 31]


def _rank(number: int, processes: list[Mapping[str, Any]]) -> RunRank:
    lists = [devices for p in processes if isinstance(devices := p.get("devices"), list)]
    devices = [device for several in lists for device in several if isinstance(device, dict)]
    gpus = dict.fromkeys(Identity.of([device.get("uuid")], [device.get("pci")]) for device in devices)
    return RunRank(number, tuple(_numbers(processes, "pid")), tuple(filter(None, gpus)))


def device_identity(run: Run, device: str) -> Identity:
    """Which GPU a device is, as the configuration says, else as the sources of its lines do; several GPUs where lines
    of several feed it."""
    configured = run.device(device)
    feeds = [run.lines[name] for name in configured.feeds]
    identity = Identity.of([configured.uuid], [configured.pci])
    for lines in (feeds, [line for line in run.lines.values() if line.device == configured.name]):
        details = [line.detail for line in lines]
        identity = identity or Identity.of((d.get("uuid") for d in details), (d.get("pci_bus_id") for d in details))
    return identity


def _with_devices(run: Run, ranks: list[RunRank]) -> list[RunRank]:
    known = {name: device_identity(run, name) for name in run.devices}
    mapped = [_mapped(rank, known) for rank in ranks]
    claimed: set[str] = set().union(*mapped)
    nameless = {name for name, identity in known.items() if not identity}
    taken = [own or (nameless if rank.gpus else set(known) - claimed) for rank, own in zip(ranks, mapped, strict=True)]
    common = nameless.difference(*taken)
    return [
        replace(rank, devices=tuple(name for name in known if name in own | common))
        for rank, own in zip(ranks, taken, strict=True)
    ]


def _mapped(rank: RunRank, known: Mapping[str, Identity]) -> set[str]:
    devices: set[str] = set()
    for gpu in rank.gpus:
        by_uuid = {name for name, identity in known.items() if identity.uuids & gpu.uuids}
        devices |= by_uuid or {name for name, identity in known.items() if identity.pcis & gpu.pcis}
    return devices


def missing_ranks(numbers: Collection[int], world_size: int) -> str:
    """Ranks of a training that are not among ``numbers``, in words; empty where none is missing."""
    edges = [-1, *sorted(n for n in set(numbers) if n < world_size), world_size]
    spans = [(a + 1, b - 1) for a, b in pairwise(edges) if b - a > 1]
    shown = [str(a) if a == b else f"{a} to {b}" for a, b in spans[:8]] + (["…"] if len(spans) > 8 else [])
    word = "rank" if sum(b - a + 1 for a, b in spans) == 1 else "ranks"
    return f"{word} {', '.join(shown)} of {world_size}" if spans else ""


def describe_ranks(run: Run) -> list[str]:
    """Lines for `joules info`: each rank, its GPUs and its devices; none for a training of fewer than two ranks."""
    ranks = ranks_of(run)
    if not ranks.are_many:
        return []
    lines = []
    for rank in ranks.ranks:
        on = ", ".join(" at ".join([*(f"GPU-{u}" for u in g.uuids), *g.pcis]) for g in rank.gpus)
        shared = {device: len(ranks.users(device)) for device in rank.devices}
        shares = ", ".join(device if n == 1 else f"1/{n} of {device}" for device, n in shared.items()) or "no device"
        pids = ", ".join(map(str, rank.pids))
        lines.append(f"rank {rank.rank} (process {pids}){f' on {on}' if on else ''}: {shares}")
    if missing := missing_ranks([r.rank for r in ranks.ranks], ranks.world_size):
        lines.append(f"not in this run: {missing}")
    if unused := [name for name in run.devices if not ranks.users(name)]:
        lines.append(f"used by no rank: {', '.join(unused)}")
    return lines


def other_programs(run: Run, device: str, begin_ns: int, end_ns: int) -> str:
    """Who was on a device between two host times, and for how long: ``7.1 s: pid 4242, alice``; empty for nobody, and
    where no driver was asked. The driver was asked once a second."""
    own = {process.get("pid") for process in run.processes}
    taken_s: dict[str, float] = {}
    for first_ns, last_ns, others in _stretches(run, device):
        overlap_s = (min(last_ns, end_ns) - max(first_ns, begin_ns)) * 1e-9
        for pid, user in others if overlap_s > 0 else ():
            if pid not in own:
                who = f"pid {pid}, {user}" if user else f"pid {pid}"
                taken_s[who] = taken_s.get(who, 0.0) + overlap_s
    return "; ".join(f"{seconds(time_s)}: {who}" for who, time_s in taken_s.items())


def note_of(device: str, others: str) -> str:
    """The sentence on what `other_programs` says; empty for nothing."""
    return f"another program was on {device} for {others}: its joules are in these" if others else ""


def notes_of_run(run: Run, device: str | None = None) -> tuple[str, ...]:
    """The sentence of each device of a run, or of one, that another program was on."""
    names = [device] if device is not None else list(run.devices)
    return tuple(text for name in names if (text := note_of(name, other_programs(run, name, run.begin_ns, run.end_ns))))


_MOST_SHARED = 5


def notes_of_runs(texts: Iterable[str]) -> tuple[str, ...]:
    """The sentences of several runs, each once; of many the first, and how many more there are."""
    every = list(dict.fromkeys(texts))
    more = len(every) - _MOST_SHARED
    return (*every[:_MOST_SHARED], *([f"another program was on the device in {more} more runs"] * (more > 0)))


def _stretches(run: Run, device: str) -> Iterator[tuple[int, int, list[tuple[int, str]]]]:
    """Beginning, end and the processes of each stretch in which the driver listed the same."""
    events = [(e.t_ns, e.values) for e in run.events if e.name == OTHERS and e.values.get("device") == device]
    for (begin_ns, values), (end_ns, _) in pairwise([*events, (run.end_ns, {})]):
        yield begin_ns, end_ns, list(_processes(values))


def _processes(values: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    others = values.get("others")
    for process in others if isinstance(others, list) else ():
        if isinstance(process, dict) and isinstance(process.get("pid"), int):
            yield process["pid"], str(process.get("user") or "")
