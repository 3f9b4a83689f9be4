"""The single phases behind a run's records, and whose sensors they come from: what comparisons are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, Progress, load_parts, no_progress, part_phase_energies
from powerd_analytics.energy.reasons import usable
from powerd_analytics.records.columns import Record
from powerd_analytics.records.flat import records_of
from powerd_analytics.records.groups import is_of_class
from powerd_analytics.runs.ranks import ranks_of
from powerd_analytics.runs.run import Run, read_run
from powerd_analytics.signals.slices import IN_MEMORY
from powerd_analytics.tables.table import table_of

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sensor:
    """What one line contributes to a record's joules, and the errors that it brings into every one of them."""

    identity: str
    """Equal for the same line of the same board with the same calibration: its gain and zero are then the same."""
    joules: float
    seconds: float
    u_gain: float
    u_offset_w: float

    @property
    def u_shared_j(self) -> float:
        """Standard uncertainty by gain and zero."""
        return float(np.hypot(self.u_gain * self.joules, self.u_offset_w * self.seconds))


@dataclass(frozen=True, slots=True)
class Sample:
    """A record with its single phases in the order of time: the joules of those that have a figure, the seconds of all
    that ended. Empty for totals."""

    record: Record
    joules: Values
    seconds: Values
    sensors: tuple[Sensor, ...]


def run_samples(
    path: Path, device: str | None = None, *, progress: Progress = no_progress
) -> tuple[list[Sample], list[Record]]:
    """The phases and totals of a run file with what is behind them, and its records of other kinds.

    Errors as `run_records`.
    """
    run = read_run(path, progress=lambda share, text: progress(0.1 * share, text))
    parts = load_parts(run, device, lambda share, text: progress(0.1 + 0.4 * share, text), in_memory=IN_MEMORY)
    table = table_of(run, parts, progress=lambda share, text: progress(0.5 + 0.3 * share, text))
    records = records_of(run, table)
    found = samples_of(run, parts, records, progress=lambda share, text: progress(0.8 + 0.2 * share, text))
    return found, [r for r in records if r["kind"] not in ("phase", "total")]


def samples_of(
    run: Run, parts: Sequence[Part], records: Sequence[Record], *, progress: Progress = no_progress
) -> list[Sample]:
    """The phases and totals among a run's records with what is behind them."""
    found: list[Sample] = []
    for i, part in enumerate(parts):
        progress(i / len(parts), f"phases of {part.device}")
        own = [r for r in records if (r["device"], r["provenance"]) == (part.device, part.provenance)]
        found += _of_part(run, part, own)
    return found


def _of_part(whole: Run, part: Part, records: list[Record]) -> list[Sample]:
    run, sharing = ranks_of(whole).on(whole, part.device)
    # Before all columns of the device are in memory: of a line one is kept. A device's only line is the device.
    several = part.signals if len(part.signals) > 1 else ()
    lines = [(s.line, part_phase_energies(run, replace(part, signals=(s,))).energy_j) for s in several]
    columns = part_phase_energies(run, part)
    lines = lines or [(s.line, columns.energy_j) for s in part.signals]
    good = usable(columns) & ~run.phases.cut
    places: dict[tuple[str, str], list[int]] = {}
    for i, kind in enumerate(run.phases.classes):
        places.setdefault(("/".join(kind.path), kind.timing), []).append(i)
    found = []
    for record in records:
        if record["kind"] not in ("phase", "total"):
            continue
        none = np.zeros(0)
        if record["kind"] == "total":
            found.append(Sample(record, none, none, _sensors(run, lines, record, None, 1)))
            continue
        place = places.get((str(record["phase_path"]), str(record["timing"])), ())
        of_record = run.phases.of([i for i in place if is_of_class(record, run.phases.classes[i])])
        which, ended = np.flatnonzero(of_record & good), np.flatnonzero(of_record & ~run.phases.cut)
        # Without a mean there is nothing to be the spread of; one that was folded is not the mean of the few long ones.
        which = which if record["j_per_batch"] is not None and len(which) >= 0.5 * len(ended) else which[:0]
        sensors = _sensors(run, lines, record, which, sharing)
        found.append(Sample(record, columns.energy_j[which] / sharing, columns.duration_s[ended], sensors))
    return found


def _sensors(
    run: Run, lines: list[tuple[Any, Values]], record: Record, which: NDArray[np.int64] | None, share: int
) -> tuple[Sensor, ...]:
    """Each line's part in a record's joules; of totals in proportion to their phases' parts."""
    total = record["j_per_batch"] if record["kind"] == "phase" else record["energy_j"]
    time = record["s_per_batch"] if record["kind"] == "phase" else record["time_s"]
    if not isinstance(total, float) or not isinstance(time, float):
        return ()
    sums = [float(np.nansum(joules if which is None else joules[which])) for _, joules in lines]
    whole = sum(sums)
    return tuple(
        Sensor(
            _identity(run, line), total * part / whole if whole else 0.0, time / share, line.accuracy.u_gain,
            line.accuracy.u_offset_w,
        )
        for (line, _), part in zip(lines, sums, strict=True)
    )  # fmt: skip


def _identity(run: Run, line: Any) -> str:
    """Host and board, line, conversion with its calibration, and the sensor's own number where it has one."""
    detail: Mapping[str, Any] = line.detail
    own = [detail.get(key) for key in ("uuid", "uid", "serial", "pci_bus_id")]
    host = run.environment.get("host")
    return repr((host, line.board, line.source, line.name, line.conversion, line.accuracy, own))
