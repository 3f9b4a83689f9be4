"""Parts of one training made one sample a row: what comparisons make of runs over several machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from powerd_analytics.comparison.samples import Sample
from powerd_analytics.records.columns import Record
from powerd_analytics.records.jobsums import merge_jobs

_ROW = ("path", "run_id", "kind", "model", "batch_size", "attributes", "operations_per_sample", "phase_path", "timing",
        "device", "provenance")  # fmt: skip
"""What tells the rows of a campaign's runs apart."""


def merge_samples(samples: Sequence[Sample], others: Sequence[Record]) -> list[Sample]:
    """The samples of a campaign, those of parts of one training replaced by the training's.

    ``others`` are the runs' records of other kinds. A training has no series of single phases: the machines' are not on
    one clock. Several trainings are each other's repeats. Raises as `merge_jobs`.
    """
    alone = {tuple(s.record[name] for name in _ROW): s for s in samples}
    none = np.zeros(0)
    merged = merge_jobs([*(s.record for s in samples), *others])
    rows = [r for r in merged if r["kind"] in ("phase", "total")]
    return [
        replace(alone[tuple(r[name] for name in _ROW)], record=r)
        if r["machines"] is None
        else Sample(r, none, none, ())
        for r in rows
    ]
