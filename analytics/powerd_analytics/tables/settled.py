"""Totals of groups made ready: uncertainties that are rounding count as 0, and whose iterations are counted is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from powerd_analytics.energy.negligible import known
from powerd_analytics.runs.ranks import NOBODY, present_in
from powerd_analytics.runs.run import Run
from powerd_analytics.tables.rows import TotalRow
from powerd_analytics.tables.totals import Sharing

_OF_ALL = "n counts the iterations of all {ranks} ranks"


def settled(row: TotalRow, run: Run, labels: Sequence[int], sharing: Sharing) -> TotalRow:
    """The total of the classes ``labels``, with the number of ranks that have such phases among those that share the
    device: one that marks nothing has no part in ``iterations``."""
    tracks, ranks = sharing
    if ranks > 1:
        marking = present_in(tracks[run.phases.of(labels)])
        counted = max(1, int((marking != NOBODY).sum()))
        note = row.note
        if counted < ranks:
            note = note.replace(_OF_ALL.format(ranks=ranks), f"n counts the iterations of {counted} of {ranks} ranks")
        row = replace(row, ranks_counted=counted, note=note)
    if row.energy_j is None:
        return row
    return replace(
        row,
        u95_j=_known(row.u95_j, row.energy_j),
        u_statistical_j=_known(row.u_statistical_j, row.energy_j),
        u_systematic_j=_known(row.u_systematic_j, row.energy_j),
    )


def _known(u_j: float | None, energy_j: float) -> float | None:
    return None if u_j is None else known(u_j, energy_j)
