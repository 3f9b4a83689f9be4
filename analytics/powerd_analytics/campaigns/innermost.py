"""Which phases of a campaign have no phases inside: the ones that add up to what they belong to."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_analytics.layers.rows import LAYER
from powerd_analytics.records.columns import Cell, Record
from powerd_analytics.records.frame import attributes_of
from powerd_client.baseline import BASELINE

_GROUP = ("model", "batch_size", "gpus", "device", "device_name", "provenance", "power_cap_w", "attributes", "host")


def group_of(record: Record) -> tuple[Cell, ...]:
    """What phases of one configuration on one device have in common."""
    return tuple(record[name] for name in _GROUP)


def of_configurations(phases: Sequence[Record]) -> list[Record]:
    """Phases that have a batch size, where any has: a warm-up is one of a kind and would dwarf what is compared."""
    kept = [r for r in phases if r["batch_size"] is not None]
    return kept or list(phases)


def innermost(records: Sequence[Record]) -> list[Record]:
    """Phases without phases inside that belong to the sum of their group: no overlapping ones, no baseline. Layers are
    parts of passes, not phases of their own."""
    outer: dict[tuple[Cell, ...], set[str]] = {}
    for r in records:
        if r["kind"] == "phase" and LAYER not in attributes_of(r):
            names = str(r["phase_path"]).split("/")
            outer.setdefault(group_of(r), set()).update("/".join(names[:i]) for i in range(1, len(names)))
    return [
        r
        for r in records
        if r["kind"] == "phase"
        and r["phase"] != BASELINE
        and attributes_of(r).get("overlaps") is not True
        and LAYER not in attributes_of(r)
        and str(r["phase_path"]) not in outer[group_of(r)]
    ]
