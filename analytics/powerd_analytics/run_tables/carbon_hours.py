"""CO2 equivalents of runs hour by hour: the joules of each hour of the wall clock times that hour's intensity.

Hours in UTC. An hour of which the file says nothing has joules and no grams, and the sum is then a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, interval_energies, load_parts
from powerd_analytics.energy.metrics import J_PER_KWH
from powerd_analytics.energy.reasons import find_clipping
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, sum_of
from powerd_analytics.output.export import Column, Table, make_table, with_provenance
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.runs.wall_clock import begin_unix_s, wall_clock
from powerd_client.energies.carbon import S_PER_HOUR, HourlyIntensity
from powerd_core.errors import AnalysisError

COLUMNS = (
    Column("run", is_setting=True),
    Column("device", is_setting=True),
    Column("provenance", is_setting=True),
    Column("hour_utc", meaning="when the hour began; all: the recording"),
    Column("time_s", "number", "s"),
    Column("energy_j", "number", "J", heading="J", sign="≥"),
    Column("u95_j", "number", "J", heading="± U95 J", is_uncertainty=True),
    Column("missing_s", "number", "s", "seconds without readings", is_hidden=True),
    Column("g_per_kwh", "number", "g/kWh", "of all: the mean of the hours that have one, by joules", heading="g/kWh"),
    Column("co2_g", "number", "g", "CO2 equivalents", heading="g CO2e", sign="≥"),
    Column("u95_co2_g", "number", "g", "of the joules: that of the intensity is not known", "± U95 g",
           is_uncertainty=True),
    Column("co2_source", meaning="the file of the intensities", is_hidden=True),
    Column("is_lower_bound", "flag", is_hidden=True),
    Column("note"),
)  # fmt: skip


def hours_table(
    runs: Sequence[Run], intensity: HourlyIntensity, device: str | None = None, *, progress: Progress = no_progress
) -> Table:
    """A row for each hour of each run and device, and one of all of them. Raises `AnalysisError` for an unknown device,
    and for a run that does not say when it began."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        bounds = _bounds_ns(run)
        for part in load_parts(run, device, progress):
            rows += _rows(run, part, bounds, intensity)
    shown = [row | {"co2_source": intensity.source} for row in rows]
    notes = (f"g/kWh of each hour from {intensity.source}; hours without a value are in no grams",)
    table = make_table("hours", "CO2 equivalents by the hour", COLUMNS, shown, notes)
    return with_provenance(table, {str(row["provenance"]) for row in rows})


def _bounds_ns(run: Run) -> list[tuple[int, int, int]]:
    """Of each hour its number, and its begin and end on the host's clock, as far as the run reaches."""
    begin_s, wall = begin_unix_s(run), wall_clock(run)
    if begin_s is None:
        raise AnalysisError(f"{run.path} does not say when it began: it has no hours")

    def host_ns(hour: int) -> int:
        unix_ns = hour * S_PER_HOUR * 10**9
        return run.begin_ns + unix_ns - round(begin_s * 1e9) if wall is None else wall.host_ns(unix_ns)

    hour, bounds, at_ns = int(begin_s // S_PER_HOUR), list[tuple[int, int, int]](), run.begin_ns
    while at_ns < run.end_ns:
        end_ns = min(host_ns(hour + 1), run.end_ns)
        if end_ns > at_ns:
            bounds.append((hour, at_ns, end_ns))
            at_ns = end_ns
        hour += 1
    return bounds


def _rows(
    run: Run, part: Part, bounds: Sequence[tuple[int, int, int]], intensity: HourlyIntensity
) -> Iterator[dict[str, Any]]:
    hours, begin_ns, end_ns = (np.array(values, np.int64) for values in zip(*bounds, strict=True))
    columns = interval_energies(part, begin_ns, end_ns, is_whole=True)
    known = np.array([intensity.g_per_kwh.get(hour, np.nan) for hour in hours.tolist()])
    sums = [getattr(columns, name) for name in MEAN_COLUMNS]
    common = {"run": run.path.stem, "device": part.device, "provenance": part.provenance}
    for i, hour in enumerate(hours.tolist()):
        one = slice(i, i + 1)
        yield common | {
            "hour_utc": f"{datetime.fromtimestamp(hour * S_PER_HOUR, UTC):%Y-%m-%dT%H:%MZ}",
            "time_s": float(columns.duration_s[i]),
            "missing_s": float(columns.missing_s[i]),
            "is_lower_bound": find_clipping(part, begin_ns[one], end_ns[one]).is_lower_bound,
            **_grams([x[one] for x in sums], known[one]),
            "note": "" if isfinite(known[i]) else "no intensity of this hour",
        }
    if len(hours) > 1:
        lacking = int(np.isnan(known).sum())
        without = (
            f"{float(sums[0][np.isnan(known)].sum()):.4g} J of {lacking} hours without an intensity are in no grams"
        )
        yield common | {
            "hour_utc": "all",
            "time_s": float(columns.duration_s.sum()),
            "missing_s": float(columns.missing_s.sum()),
            "is_lower_bound": find_clipping(part, begin_ns, end_ns).is_lower_bound or lacking > 0,
            **_grams(sums, known),
            "note": without if lacking else "",
        }


def _grams(sums: Sequence[NDArray[np.float64]], g_per_kwh: NDArray[np.float64]) -> dict[str, float | None]:
    """Joules of hours [h] added up, and the grams of those whose intensity is known, each with U95."""
    energy = sum_of(*sums)
    figures: dict[str, float | None] = {"energy_j": energy.energy_j, "u95_j": energy.u95_j}
    has_value = np.isfinite(g_per_kwh)
    if has_value.any():
        kg = sum_of(*(x[has_value] * g_per_kwh[has_value] / J_PER_KWH for x in sums))
        joules = float(sums[0][has_value].sum())
        mean = kg.energy_j * J_PER_KWH / joules if joules else None
        figures |= {"g_per_kwh": mean, "co2_g": kg.energy_j, "u95_co2_g": kg.u95_j}
    return {name: value if value is not None and isfinite(value) else None for name, value in figures.items()}
