"""On what a run's phases ran: product, power cap and clock as the driver's side channels tell, and how many GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from powerd_analytics.runs.quantities import CodeCounts, GoodReadings, good_pieces
from powerd_analytics.runs.run import Run, RunLine
from powerd_analytics.signals.slices import IN_MEMORY
from powerd_analytics.tables.totals import number
from powerd_core.model import QuantityConversion

SM_CLOCK = "sm_clock"
"""The line, behind the device's name, that holds the clock of the multiprocessors."""


class Setting:
    """What a run's lines beside power and energy say. Each line is read once, or where it is too long to be kept, once
    for each time that is asked for."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._kept: dict[str, list[GoodReadings]] = {}
        self._known: dict[tuple[str, int, int], float | None] = {}

    def device_name(self, device: str) -> str | None:
        """The product, as the driver names it."""
        names = (line.detail.get("name") for line in self._lines(device))
        return next((name for name in names if isinstance(name, str) and name), None)

    def power_cap_w(self, device: str, begin_ns: int, end_ns: int) -> float | None:
        """Median of the enforced limit between two host times, else the limit when the source was opened."""
        for line in self._lines(device):
            if line.quantity == "power_limit_w" and (found := self._median(line, begin_ns, end_ns)) is not None:
                return found
        limits = (number(line.detail, "power_limit_mw") for line in self._lines(device))
        return next((limit / 1e3 for limit in limits if limit), None)

    def clock_hz(self, device: str, begin_ns: int, end_ns: int) -> float | None:
        """Median of the multiprocessors' clock between two host times."""
        for line in self._lines(device):
            is_sm = line.quantity == "clock_hz" and line.name.rpartition(".")[2] == SM_CLOCK
            if is_sm and (found := self._median(line, begin_ns, end_ns)) is not None:
                return found
        return None

    def _lines(self, device: str) -> list[RunLine]:
        return [line for line in self._run.lines.values() if line.device == device]

    def _median(self, line: RunLine, begin_ns: int, end_ns: int) -> float | None:
        c, asked = line.conversion, (line.name, begin_ns, end_ns)
        if isinstance(c, QuantityConversion) and asked not in self._known:
            counts = CodeCounts()
            for piece in self._pieces(line, c.column):
                counts.add(piece.codes[c.column][(piece.t_ns >= begin_ns) & (piece.t_ns <= end_ns)])
            self._known[asked] = counts.median() * c.per_code if len(counts) else None
        return self._known.get(asked)

    def _pieces(self, line: RunLine, column: str) -> Iterable[GoodReadings]:
        if line.name in self._kept:
            return self._kept[line.name]
        pieces = good_pieces(self._run, line.name, column)
        if line.count > IN_MEMORY:
            return pieces
        return self._kept.setdefault(line.name, list(pieces))


def gpus_of(run: Run) -> int:
    """GPUs that took part: distinct ones that the processes say they use, else their ranks, else 1.

    A file holds the processes of one machine; a larger ``world_size`` counts further machines in proportion.
    """
    uuids: set[str] = set()
    ranks: dict[int, bool] = {}
    world = 1
    for process in run.processes:
        known = _uuids(process)
        uuids |= known
        if isinstance(rank := process.get("rank"), int):
            ranks[rank] = bool(known)
        if isinstance(size := process.get("world_size"), int):
            world = max(world, size)
    here = len(uuids) if uuids and all(ranks.values()) else max(len(ranks), 1)
    return max(1, round(here * world / len(ranks))) if ranks else here


def ranks_of(run: Run) -> int:
    """Processes of a job in the run: those that say which rank they are, else 1."""
    return max(1, len({p["rank"] for p in run.processes if isinstance(p.get("rank"), int)}))


def _uuids(process: Mapping[str, Any]) -> set[str]:
    devices = process.get("devices")
    found = [d for d in devices if isinstance(d, dict)] if isinstance(devices, list | tuple) else []
    return {str(name) for d in found if (name := d.get("uuid") or d.get("pci"))}
