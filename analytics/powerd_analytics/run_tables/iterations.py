"""Single iterations of a run, a row each: when each began, its joules, and how sure they are. For programs.

U95 is that of the single iteration. What a sensor's gain adds to it, all iterations share: it is no scatter of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, load_parts
from powerd_analytics.energy.magnified import energies_with_magnified
from powerd_analytics.energy.reasons import usable
from powerd_analytics.output.export import Column, to_json_text
from powerd_analytics.run_tables.table import family_of, groups, iteration_labels
from powerd_analytics.runs.phases import LAYER, PhaseClass, pieces
from powerd_analytics.runs.ranks import NOBODY, ranks_of
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.runs.wall_clock import begin_unix_s, wall_clock
from powerd_client.energies.phase import BASELINE
from powerd_core.errors import AnalysisError

AT_A_TIME = 1 << 14
"""Rows that are in memory together; of all phases of a device, only the columns are."""
COLUMNS = (
    Column("device"),
    Column("provenance"),
    Column("model"),
    Column("batch_size", "number", "1"),
    Column("attributes"),
    Column("phase_path"),
    Column("rank", "integer", "1"),
    Column("number", "integer", "1", "of its kind and rank, in the order of time, from 0"),
    Column(
        "begin_utc", meaning="wall clock, to the nanosecond as the clock tells it; a run without anchors: to a second"
    ),
    Column("begin_s", "number", "s", "since the recording began"),
    Column("duration_s", "number", "s"),
    Column("energy_j", "number", "J", "of a device that ranks share, the rank's part; empty where not resolvable"),
    Column("u95_j", "number", "J", "95 % interval of energy_j"),
    Column("missing_s", "number", "s", "seconds without readings"),
)


def iteration_rows(
    run: Run, device: str | None = None, *, progress: Progress = no_progress
) -> Iterator[list[dict[str, Any]]]:
    """The rows of all iterations that ended, in pieces. Raises `AnalysisError` for an unknown device, and for a run
    without phases."""
    if not len(run.phases):
        raise AnalysisError(f"{run.path}: this run has no phases: mark them with `meter.phase(...)`")
    return _rows(run, load_parts(run, device, lambda share, text: progress(0.6 * share, text)), progress)


def _rows(whole: Run, parts: Sequence[Part], progress: Progress) -> Iterator[list[dict[str, Any]]]:
    ranks = ranks_of(whole)
    for i, part in enumerate(parts):
        progress(0.6 + 0.4 * i / len(parts), f"iterations on {part.device}")
        run, sharing = ranks.on(whole, part.device)
        p, tracks = run.phases, ranks.tracks(run)
        columns = energies_with_magnified(run, part)
        good, u95_j = usable(columns), columns.u95_j
        families = dict.fromkeys(tuple(family_of(run, labels)) for labels in groups(run).values())
        kinds = [i for family in families for i in iteration_labels(run, family)]
        for label in (i for i in kinds if p.classes[i].name != BASELINE and LAYER not in p.classes[i].attributes):
            for rank in np.unique(tracks[p.label == label]).tolist():
                which = np.flatnonzero((p.label == label) & ~p.cut & (tracks == rank))
                common, share = _common(part, p.classes[label], rank), 1 if rank == NOBODY else sharing
                for some in pieces(len(which), AT_A_TIME):
                    at = which[some]
                    values = {
                        "number": range(some.start, some.start + len(at)),
                        "begin_utc": _utc(run, p.begin_ns[at]),
                        "begin_s": ((p.begin_ns[at] - run.begin_ns) * 1e-9).tolist(),
                        "duration_s": columns.duration_s[at].tolist(),
                        "energy_j": _known(columns.energy_j[at] / share, good[at]),
                        "u95_j": _known(u95_j[at] / share, good[at]),
                        "missing_s": columns.missing_s[at].tolist(),
                    }
                    yield [common | dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _common(part: Part, kind: PhaseClass, rank: int) -> dict[str, Any]:
    """The cells that all iterations of a kind and a rank have."""
    others = dict(kind.group)
    model, batch = others.pop("model", None), others.pop("batch_size", None)
    return {
        "device": part.device,
        "provenance": part.provenance,
        "model": None if model is None else str(model),
        "batch_size": batch,
        "attributes": to_json_text(others, indent=None, sort_keys=True),
        "phase_path": "/".join(kind.path),
        "rank": None if rank == NOBODY else rank,
    }


def _utc(run: Run, t_host_ns: NDArray[np.int64]) -> Sequence[str | None]:
    if (wall := wall_clock(run)) is not None:
        unix_ns = wall.unix_ns(t_host_ns)
    elif (begin_s := begin_unix_s(run)) is not None:
        unix_ns = t_host_ns - run.begin_ns + round(begin_s * 1e9)
    else:
        return [None] * len(t_host_ns)
    return [f"{text}Z" for text in np.datetime_as_string(unix_ns.astype("datetime64[ns]"))]


def _known(values: NDArray[np.float64], is_good: NDArray[np.bool_]) -> list[float | None]:
    is_known = is_good & np.isfinite(values)
    return [value if ok else None for value, ok in zip(values.tolist(), is_known.tolist(), strict=True)]
