"""The devices of a training over several machines, each once: a board that two recorders read is one board."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from powerd_analytics.records.columns import Record, number_of
from powerd_analytics.records.jobmembers import Member

Place = tuple[int, str, str]
"""Machine's number, device, provenance."""
SetKey = tuple[str, ...]


@dataclass(slots=True)
class Device:
    """One device and the recordings of it."""

    ids: set[str]
    runs: dict[Place, Record]
    """Its whole recordings."""
    sharing: dict[Place, int]
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
    def ranks(self) -> int:
        return sum(self.sharing.values())

    def share(self, place: Place) -> float:
        """Of the device's power what the ranks of one recording have."""
        return self.sharing[place] / self.ranks


class JobDevices:
    """All devices of the members of one training, and which of them are added up."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.devices: dict[Place, Device] = {}
        self.sets: dict[SetKey, list[Place]] = {}
        """What is added: devices that are known to be different GPUs, or those of one name on the machines."""
        for m, member in enumerate(members):
            for record in member.records:
                if record["kind"] == "run":
                    self._add((m, str(record["device"]), str(record["provenance"])), record)
        for m, member in enumerate(members):
            for record in member.records:
                place = (m, str(record["device"]), str(record["provenance"]))
                if record["kind"] == "rank" and place in self.devices:
                    self.devices[place].sharing[place] = int(number_of(record, "sharing") or 1)
            self._sets_of(m, [r for r in member.records if r["kind"] == "job"])

    def _add(self, place: Place, run: Record) -> None:
        """A device that another recorder read too, by the same powerd or as the same GPU, is that one."""
        ids = {*texts(run, "sensors"), *texts(run, "gpu")}
        for device in set_of(self.devices):
            if device.ids & ids and all(p[2] == place[2] and p[0] != place[0] for p in device.runs):
                device.ids |= ids
                device.runs[place] = run
                self.devices[place] = device
                return
        self.devices[place] = Device(ids, {place: run}, {})

    def _sets_of(self, m: int, jobs: Sequence[Record]) -> None:
        known = 0
        for job in jobs:
            provenance, lines = str(job["provenance"]), set(texts(job, "sensors"))
            places = [p for p, d in self.devices.items() if p[0] == m and p[2] == provenance and d.sharing
                      and p in d.sharing and set(texts(d.runs[p], "sensors")) <= lines]  # fmt: skip
            if job["gpu"] is not None:
                key: SetKey = (provenance, "", str(known))
                known += 1
            else:
                key = (provenance, str(job["device"]))
            self.sets.setdefault(key, []).extend(places)

    def once(self, places: Sequence[Place]) -> list[Device]:
        """The devices of a set, each once."""
        return set_of({p: self.devices[p] for p in places})

    def name(self, places: Sequence[Place], machines: int | None) -> str:
        """A set's devices in words, for the column ``device``."""
        by_machine: dict[int, list[str]] = {}
        for m, device, _ in places:
            by_machine.setdefault(m, []).append(device)
        names = list(dict.fromkeys("+".join(devices) for devices in by_machine.values()))
        count = len(by_machine)
        of = f"{count} of {machines}" if machines is not None and machines != count else str(count)
        return f"{' and '.join(names)} of {of} machines"


def set_of(devices: dict[Place, Device]) -> list[Device]:
    """Different devices in the order of their first recordings."""
    return list({id(d): d for d in devices.values()}.values())


def texts(record: Record, name: str) -> list[str]:
    """A column that holds a JSON list of texts; empty without."""
    value = record[name]
    return [str(text) for text in json.loads(value)] if isinstance(value, str) and value else []
