"""What is behind the sum of a run's GPUs, so that it can be compared as a single one can."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from powerd_analytics.campaigns.trainings import summed_devices
from powerd_analytics.comparison.samples import Sample
from powerd_analytics.records.columns import Cell, Record

_PLACE = (
    "path", "run_id", "kind", "provenance", "attributes", "batch_size", "model", "power_cap_w", "phase_path", "timing",
)  # fmt: skip


def summed_samples(samples: Sequence[Sample]) -> list[Sample]:
    """A further sample for each row of `summed_devices`: joules of each single phase added up, seconds those of the
    slowest GPU, the sensors of all. Without single phases where the GPUs do not have the same ones."""
    at = {_place(s.record, s.record["device"]): s for s in samples}
    return [
        _sum(record, [at[_place(record, device)] for device in str(record["device"]).split("+")])
        for record in summed_devices([s.record for s in samples])
    ]


def _place(record: Record, device: Cell) -> tuple[Cell, ...]:
    return (device, *(record[name] for name in _PLACE))


def _sum(record: Record, same: Sequence[Sample]) -> Sample:
    joules, seconds = [s.joules for s in same], [s.seconds for s in same]
    none = np.zeros(0)
    return Sample(
        record,
        np.sum(joules, axis=0) if len({len(j) for j in joules}) == 1 else none,
        np.max(seconds, axis=0) if len({len(s) for s in seconds}) == 1 else none,
        tuple(sensor for s in same for sensor in s.sensors),
    )
