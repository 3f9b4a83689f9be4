"""Which totals of a campaign are alternatives of one another, and which are parts of one machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from powerd_analytics.campaigns.innermost import of_configurations
from powerd_analytics.layers.rows import LAYER
from powerd_analytics.records.columns import Cell, Record
from powerd_analytics.records.frame import attributes_of
from powerd_client.baseline import BASELINE

_OF_GFLOPS = (
    "gflops_per_w", "u_statistical_gflops_per_w", "u_systematic_gflops_per_w", "gflops_convention", "gflops_basis",
)  # fmt: skip


def paths_of(record: Record) -> list[str]:
    """The run files that a record is made of: several, where it is a mean of repeats."""
    return str(record["path"]).split("; ")


def parts_of_machines(records: Iterable[Record]) -> dict[str, str]:
    """By device, which part of the machine it is: ``gpu`` for ``gpu0`` and for ``gpu0+gpu1``. Of recordings that have
    several of one name, not added up, each is a part of its own; all are "" where no recording has several parts.

    A CPU and a GPU that work at one training are no choice between two: that one of them takes less says nothing.
    """
    found: dict[tuple[Cell, ...], set[str]] = {}
    for r in records:
        for path in paths_of(r):
            found.setdefault((path, r["provenance"]), set()).add(str(r["device"]))
    if all(len(devices) == 1 for devices in found.values()):
        return {d: "" for devices in found.values() for d in devices}
    alike = {
        _name(d)
        for devices in found.values()
        for d in devices
        if sum(_name(other) == _name(d) for other in devices) > 1
    }
    return {d: d if _name(d) in alike else _name(d) for devices in found.values() for d in devices}


def _name(device: str) -> str:
    """Without its number; of several added up, the first one's."""
    return re.sub(r"\d+$", "", device.partition("+")[0])


def of_trainings(totals: Sequence[Record]) -> list[Record]:
    """Totals that can be chosen between: with a batch size where any has one (a warm-up has none), not of layers,
    of what overlaps, or of a baseline, which are parts of a training or none."""
    kept = [r for r in totals if r["phase"] != BASELINE and not {LAYER, "overlaps"} & set(attributes_of(r))]
    return of_configurations(kept)


def without_summands(records: Sequence[Record]) -> list[Record]:
    """Without the GPUs of a run that are also there added up: they are no configurations of their own."""
    summed = {(r["path"], d) for r in records for d in str(r["device"]).split("+") if "+" in str(r["device"])}
    return [r for r in records if (r["path"], r["device"]) not in summed]


def without_gflops(record: Record) -> Record:
    """For figures of energy and time: runs whose GFLOPS/W are of different phases are repeats in these."""
    return {**record, **dict.fromkeys(_OF_GFLOPS)}
