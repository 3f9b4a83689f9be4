"""When devices passed marks, on the host's clock: what `powerd_client.device` wrote, put together when a run ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from powerd_client.device import EVENT_NS
from powerd_core.clock import ClockPiece, map_clock, piece_at
from powerd_core.errors import ClockError
from powerd_core.marks import RECORD, Edges, Mark, Marks
from powerd_core.model import ClockExchange

DEVICE = "device"
"""The timing of phases whose edges are events on a device's stream."""


@dataclass(slots=True)
class DeviceTimes:
    """Edges of all processes, and the clocks of their devices."""

    clocks: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By epoch: what `device-clock` says."""
    edges: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By process and number of the mark: epoch of the clock and the device's time."""
    unresolved: int = 0
    """Marks of device-timed phases that only the host's time is known of."""
    pieces: dict[int, tuple[ClockPiece, ...]] = field(default_factory=dict)
    """By epoch: the mapping, once `map_all` has made it."""

    def add_clock(self, epoch: int, body: Mapping[str, Any]) -> None:
        """Raises KeyError or ValueError for what describes no clock."""
        if int(body["clock"]) != epoch:
            raise ValueError("its frame has another epoch")
        self.clocks.setdefault(epoch, _clock_of(body))

    def devices_of(self, process: int) -> list[dict[str, Any]]:
        """The devices that a process timed its phases on: ``index``, ``uuid`` and ``pci``."""
        own = [c for c in self.clocks.values() if c["process"] == process]
        return [{key: clock[key] for key in ("index", "uuid", "pci")} for clock in own]

    def add_edges(self, event: Edges) -> None:
        known = self.edges.setdefault(event.process, {})
        for number, t_ns in event:
            known[number] = event.clock, t_ns

    def map_all(self, exchanges: Mapping[int, list[ClockExchange]]) -> None:
        """Map each device's clock; one without a usable anchor stays unmapped."""
        for epoch in self.clocks:
            try:
                self.pieces[epoch] = map_clock(exchanges.get(epoch, []))
            except ClockError:
                continue

    def marks(self, process: int, records: Mapping[int, bytes], timings: Mapping[int, str]) -> Iterator[Mark]:
        """The marks of a process in order, each with its device's time where it is timed by one and that is known.

        ``records``: raw records by the number of the first; what two pieces both hold is taken once. ``timings``: by
        kind in that process.
        """
        edges, behind = self.edges.get(process, {}), 0
        for first in sorted(records):
            skip = max(0, behind - first)
            piece = Marks(process, first + skip, records[first][skip * RECORD.size :])
            behind = max(behind, first + len(records[first]) // RECORD.size)
            for number, mark in enumerate(piece, piece.first):
                if timings.get(mark.kind) != DEVICE:
                    yield mark
                    continue
                edge = self._host_ns(edges.get(number))
                self.unresolved += edge is None
                t_ns, bound_ns = edge or (mark.t_host_ns, -1)
                yield replace(mark, t_host_ns=t_ns, bound_ns=bound_ns)

    def _host_ns(self, edge: tuple[int, int] | None) -> tuple[int, int] | None:
        """An edge's host time and how far it may be from that: what the anchors guarantee, and the event's own
        resolution."""
        if edge is None:
            return None
        epoch, t_ns = edge
        try:
            piece = piece_at(self.pieces.get(epoch, ()), t_ns)
        except ClockError:
            return None
        if piece is None:
            return None
        offset, low, high = piece.at(t_ns)
        # One more nanosecond: both the event's time and the offset were rounded to whole ones.
        return t_ns + round(offset), ceil(max(high - offset, offset - low)) + EVENT_NS + 1


def _clock_of(body: Mapping[str, Any]) -> dict[str, Any]:
    process = body.get("process")
    return {
        "name": str(body["name"]),
        "index": int(body["index"]),
        "process": process if isinstance(process, int) else None,
        **{key: str(body.get(key, "")) for key in ("uuid", "pci")},
    }
