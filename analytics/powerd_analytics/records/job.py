"""What a run file says of the training that it is a part of: enough to find and add up the parts of other machines."""

from __future__ import annotations

import json
from calendar import timegm
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.chrome.clock import wall_clock
from powerd_analytics.energy.rest import merged
from powerd_analytics.records.columns import Record
from powerd_analytics.records.groups import group_key, text_of
from powerd_analytics.runs.phases import kept
from powerd_analytics.runs.ranks import device_identity, ranks_of
from powerd_analytics.runs.run import Run
from powerd_analytics.tables.rows import PhaseRow, TotalRow
from powerd_analytics.tables.totals import iterations_of, outermost


class JobPart:
    """A run as a part of its training: columns of its records. Without ranks there are none."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._ranks = ranks_of(run)
        self.is_part = 0 < len(self._ranks.ranks) < self._ranks.world_size
        """Whether ranks of the training are missing in it: on other machines, or unrecorded."""

    def columns(self) -> Record:
        """The same in all records of the run."""
        if not self._ranks.ranks:
            return {}
        machines = (text_of(self._run.environment.get("machines")) or "")[:9]
        found: Record = {
            "job": text_of(self._run.environment.get("job")),
            "world_size": self._ranks.world_size,
            "rank_numbers": json.dumps([r.rank for r in self._ranks.ranks]),
            "job_machines": int(machines) if machines.isascii() and machines.isdigit() else None,
        }
        return found | ({"begin_unix_s": _begin_unix_s(self._run)} if self.is_part else {})

    def of_device(self, device: str) -> Record:
        """What a device of a run is, whoever reads it."""
        if not self._ranks.ranks or device not in self._run.devices:
            return {}
        found: Record = {"sharing": max(1, len(self._ranks.users(device)))}
        return found | (self.of_devices([device]) if self.is_part else {})

    def of_devices(self, devices: Sequence[str]) -> Record:
        """The same of several together: no GPU where one of them is not known to be any."""
        if not self.is_part:
            return {}
        lines = [self._run.lines[name] for d in devices for name in self._run.devices[d].feeds]
        each = [device_identity(self._run, d) for d in devices]
        host = self._run.environment.get("host")
        # An address on the bus is the same on every machine.
        gpus = [sorted(i.uuids) or sorted(f"{host} {p}" for p in i.pcis) for i in each]
        return {
            "sensors": json.dumps(sorted({f"{line.clock}/{line.name}" for line in lines})),
            "gpu": json.dumps([g for names in gpus for g in names]) if all(gpus) else None,
        }

    def seconds(self, row: PhaseRow | TotalRow) -> Record:
        """Of a part of a job, phases (iterations) and their seconds (of all together) of each rank that has any."""
        if not self.is_part:
            return {}
        run, _ = self._ranks.on(self._run, row.device)
        labels = [
            i
            for i, kind in enumerate(run.phases.classes)
            if group_key(dict(kind.group)) == group_key(row.group)
            and (isinstance(row, TotalRow) or ("/".join(kind.path) == row.path and kind.timing == row.timing))
        ]
        tracks = self._ranks.tracks(run)
        found: dict[str, tuple[int, float]] = {}
        for rank in np.unique(tracks[np.isin(run.phases.label, labels)]).tolist():
            own = replace(run, phases=kept(run.phases, tracks == rank))
            count, length_s = _of_rank(own, labels, is_total=isinstance(row, TotalRow))
            if count:
                found[str(rank)] = (count, length_s)
        return {"s_by_rank": json.dumps(found)}


def _of_rank(run: Run, labels: Sequence[int], *, is_total: bool) -> tuple[int, float]:
    p = run.phases
    if is_total:
        outer: NDArray[np.bool_] = outermost(run, labels)
        begin, end = merged(p.begin_ns[outer], p.end_ns[outer])
        return iterations_of(run, labels), float((end - begin).sum()) * 1e-9
    ended = np.isin(p.label, labels) & ~p.cut
    return int(ended.sum()), float(p.duration_s[ended].sum())


def _begin_unix_s(run: Run) -> float | None:
    """By the anchors of the wall clock, else by the second in which the recording was begun."""
    if (wall := wall_clock(run)) is not None:
        return float(wall.unix_ns(np.array([run.begin_ns]))[0]) * 1e-9
    try:
        said = datetime.fromisoformat(str(run.attributes.get("created_utc")))
    except ValueError:
        return None
    return float(timegm(said.utctimetuple()))
