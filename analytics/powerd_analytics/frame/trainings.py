"""One training: its GPUs added up, and what was recorded of it scaled to its whole length.

GPUs of a run are added up where the run has as many as it used. Runs of several machines that are parts of one training
are one (`powerd_analytics.frame.machines`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from powerd_analytics.energy.metrics import iterations_of
from powerd_analytics.frame.accuracy_target import check_reached, target_frame
from powerd_analytics.frame.figure import Record, figure_of, joules_column, number_of, sum_of_figures
from powerd_analytics.frame.figures import (
    ATTRIBUTE,
    Frame,
    aggregate,
    attributes_in,
    check_run,
    check_runs,
    concat_frames,
    floats,
    frame_from,
    frame_of_records,
    rows_of,
    run_records,
    with_eds,
    worked_out,
)
from powerd_analytics.frame.index import index_frame, is_index, run_files
from powerd_analytics.frame.machines import merge_machines
from powerd_analytics.frame.repeats import CAP_STEP_W, OF_ALL_BATCHES, gflops_columns, joules_columns
from powerd_analytics.output.text import Cell
from powerd_analytics.runs.accuracy import ResultTarget
from powerd_analytics.runs.nesting import PASSES_OF
from powerd_analytics.runs.phases import LAYER
from powerd_analytics.runs.run import Progress, no_progress
from powerd_core.errors import AnalysisError, ConfigError

# -- many runs ---------------------------------------------------------------------------------------------------------


def read_runs(
    paths: Sequence[Path],
    device: str | None = None,
    calibration: Path | None = None,
    *,
    is_one_job: bool = False,
    target: ResultTarget | None = None,
    progress: Progress = no_progress,
) -> Frame:
    """The frame of all runs in ``paths`` (files, directories, indexes), checked by `check_run` and `check_runs`.

    Rows of indexes are taken from there. With a file of ``calibration``, all run files are read, and the joules of its
    sensors are computed again by it. With a ``target`` all are read, too, and totals end where it is reached
    (`powerd_analytics.frame.accuracy_target.target_frame`).

    Runs that are parts of one training over several machines are one (`merge_machines`); with ``is_one_job`` all are.
    """
    files = run_files(paths)
    indexed: dict[str, list[Record]] = {}
    for path in paths if calibration is None and target is None else ():
        if is_index(path):
            for record in rows_of(index_frame(path, device, progress=progress)):
                indexed.setdefault(str(record["path"]), []).append(record)
    records: list[Mapping[str, Any]] = []
    for i, path in enumerate(files):
        of_file = part_of(progress, i, len(files), path.name)
        rows: Sequence[Mapping[str, Any]] | None = indexed.get(str(path))
        if target is not None:
            rows = rows_of(target_frame(path, target, device, calibration, progress=of_file))
        elif rows is None:
            rows = run_records(path, device, calibration, progress=of_file)
        check_run(path, rows)
        records += rows
    every = frame_of_records(records)
    check_runs(every)
    if target is not None:
        check_reached(every, target)
    return merge_machines(every, by_hand=is_one_job)


def part_of(progress: Progress, i: int, n: int, name: str) -> Progress:
    """The progress of the ``i``-th of ``n`` files."""
    return lambda share, text: progress((i + share) / n, f"{name}: {text}")


# -- whole trainings ---------------------------------------------------------------------------------------------------

MOST = 1e12
"""Of iterations, epochs and samples, of grams and any currency a kilowatt-hour: more than this is a slip."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long a whole training is: iterations, or epochs over a data set of so many samples."""

    iterations: float | None = None
    epochs: float | None = None
    dataset_size: float | None = None

    def __post_init__(self) -> None:
        given = {"--iterations": self.iterations, "--epochs": self.epochs, "--dataset-size": self.dataset_size}
        for name, value in given.items():
            if value is not None and not (isfinite(value) and 0 < value < MOST):
                raise ConfigError(f"{name} {value:g}: it must be more than 0, and less than {MOST:g}")
            if value is not None and name != "--epochs" and not float(value).is_integer():
                raise ConfigError(f"{name} {value:.12g}: it must be a whole number")
        if (self.epochs is None) != (self.dataset_size is None) or None not in (self.iterations, self.epochs):
            raise ConfigError("give either --iterations, or --epochs and --dataset-size together")

    def __bool__(self) -> bool:
        return self.iterations is not None or self.epochs is not None

    def of(self, batch_size: float | None) -> float | None:
        """Iterations of a training at that batch size; None where epochs need a batch size that is not known.

        Raises `AnalysisError` for less than one.
        """
        if self.epochs is None or self.dataset_size is None:
            return self.iterations
        if not batch_size or batch_size < 1:
            return None
        iterations = iterations_of(self.epochs, self.dataset_size, batch_size)
        if not iterations:
            options = f"--epochs {self.epochs:g} --dataset-size {self.dataset_size:g}"
            raise AnalysisError(f"{options}: that is not one batch of {batch_size:g}")
        return iterations


def with_sums(frame: Frame, length: Length) -> Frame:
    """The frame scaled to whole trainings where their length is given, with the GPUs of each run added up as well."""
    scaled = whole_trainings(frame, length) if length else frame
    return with_eds(concat_frames([scaled, summed_devices(scaled)]))


_EVALUATION = f"{ATTRIBUTE}{PASSES_OF}"
_BESIDE = (_EVALUATION, f"{ATTRIBUTE}{LAYER}", f"{ATTRIBUTE}overlaps")


def whole_trainings(frame: Frame, length: Length) -> Frame:
    """The frame with ``s_per_training`` and ``j_per_training``; totals are then those of the whole training.

    A phase that comes several times an iteration, or not in each, counts as often as it did in the run; so does an
    evaluation beside the iterations, where the run has one training. What is systematic grows with the training, what
    is statistical is that of the mean batch: the run measured no more.

    An iteration of the training is one in every rank. Joules of the training are those of all ranks that share the
    device, seconds those of one.
    """
    of_run = ["path", "run_id", "provenance", "power_cap_w", "power_cap_in_run", "device"]
    names = [*of_run, "model", "batch_size", "gpus", *attributes_in(frame)]

    def key(record: Record, names: Sequence[str] = names) -> tuple[Cell, ...]:
        return tuple(record[name] for name in names)

    rows = rows_of(frame)
    totals = {key(r): r for r in rows if r["kind"] == "total"}
    trainings: dict[tuple[Cell, ...], list[Record]] = {}
    for r in totals.values():
        if r["batch_size"] is not None and not any(r.get(name) is not None for name in _BESIDE):
            trainings.setdefault(key(r, of_run), []).append(r)
    scaled = []
    for r in rows:
        total: Record | None = totals.get(key(r), r)
        if r.get(_EVALUATION) is not None:
            beside = trainings.get(key(r, of_run), [])
            total = beside[0] if len(beside) == 1 else None
        scaled.append(r | _scaled(r, total, length))
    return worked_out(frame_from(scaled))


def _scaled(r: Record, total: Record | None, length: Length) -> dict[str, Any]:
    """What changes in a row, of which ``total`` is its training's, where all of that has a ``length``."""
    nothing: dict[str, Any] = {"s_per_training": None, "j_per_training": None}
    if total is None or r["kind"] not in ("phase", "total"):
        return nothing
    batch = number_of(total, "batch_size")
    # Ranks have a batch each, also those that are not in the run; GPUs of one process share theirs.
    ranks = max(number_of(total, name) or 1 for name in ("ranks", "world_size"))
    iterations = length.of(None if batch is None else batch * ranks)
    recorded, is_total = number_of(total, "iterations"), r["kind"] == "total"
    is_own = is_total and r.get(_EVALUATION) is None
    share = 1.0 if is_own else _share_of(number_of(r, "iterations"), recorded)
    s, j = number_of(r, "s_per_batch"), number_of(r, "j_per_batch")
    if iterations is None or share is None or s is None:
        return nothing
    # In the run each rank's iteration counted by itself, and took its part of the device's seconds and joules.
    ranks, times = number_of(total, "ranks_counted") or 1.0, iterations * share
    if not is_total:
        return {"s_per_training": s * times, "j_per_training": None if j is None else j * times * ranks}
    grow = iterations * ranks / recorded if recorded else 0.0
    grown = {name: None if (v := number_of(r, name)) is None else v * grow for name in OF_ALL_BATCHES}
    kept = [text for text in str(r["note"] or "").split("; ") if not text.startswith("n counts the iterations")]
    return grown | {
        "iterations": round(times),
        "s_per_training": grown["time_s"],
        "j_per_training": grown["energy_j"],
        "note": "; ".join(kept),
    }


def _share_of(phases: float | None, iterations: float | None) -> float | None:
    """Phases an iteration; one that was cut off at the end of a run is no smaller share."""
    if not phases or not iterations:
        return None
    share = phases / iterations
    return float(round(share)) if round(share) >= 1 and abs(phases - round(share) * iterations) <= share + 1 else share


# -- several GPUs of a run ---------------------------------------------------------------------------------------------

_OF_A_RUN = ("path", "run_id", "model", "batch_size", "gpus", "provenance", "kind", "phase", "phase_path", "timing",
             "power_cap_asked_w", "power_cap_in_run")  # fmt: skip


def summed_devices(frame: Frame) -> Frame:
    """A row for each one of a run that used several GPUs: their joules added up, ``device`` = gpu0+gpu1.

    Only where the run has as many GPU devices as it used GPUs. Different GPUs are different sensors: their
    uncertainties are independent. Time is that of the slowest.
    """
    is_gpu = frame["device_name"].notna() | frame["device"].str.startswith("gpu").fillna(False)
    gpus = frame[frame["kind"].isin(("phase", "total")) & is_gpu & frame["machines"].isna()].reset_index(drop=True)
    if gpus.empty:
        return gpus
    keys = gpus[[*_OF_A_RUN, *attributes_in(gpus)]].copy()
    keys["cap"] = (floats(gpus, "power_cap_w") / CAP_STEP_W).round()
    group = keys.groupby(list(keys.columns), dropna=False, sort=False).ngroup()
    size = group.groupby(group).transform("size")
    is_whole = np.asarray((size > 1) & (size == gpus["gpus"]).fillna(False), bool)
    gpus, group = gpus[is_whole].reset_index(drop=True), group[is_whole].reset_index(drop=True)
    if gpus.empty:
        return gpus
    summed = rows_of(aggregate(gpus, group.to_numpy(), "parts"))
    members = [same for _, same in pd.Series(rows_of(gpus)).groupby(pd.factorize(group)[0])]
    rows = [row | _sum_of_gpus(list(same)) for row, same in zip(summed, members, strict=True)]
    return worked_out(frame_from(rows))


def _sum_of_gpus(same: Sequence[Record]) -> dict[str, Any]:
    """The columns of the sum over a run's GPUs that no rule a column gives."""
    first = same[0]
    total: dict[str, Any] = {
        "device": "+".join(str(r["device"]) for r in same),
        "device_name": " + ".join(dict.fromkeys(str(r["device_name"]) for r in same if r["device_name"])) or None,
    }
    if first["ranks"] != 1:
        # Each rank has its own batch. A phase's rate is that of one rank, a total's that of all on its GPU.
        counted = sum(1 if first["kind"] == "phase" else number_of(r, "ranks_counted") or 1 for r in same)
        rates = [number_of(r, "samples_per_s") for r in same]
        is_known = first["ranks"] == counted and None not in rates
        total["samples_per_s"] = sum(rate or 0.0 for rate in rates) if is_known else None
    joules = [figure_of(r, joules_column(r)) for r in same]
    whole = None if None in joules else sum_of_figures([f for f in joules if f], range(len(same)))
    total |= joules_columns(joules_column(first), whole)
    # Every GPU did as many operations, so that the joules an operation are the mean.
    inverse = [f.inverse() for r in same if (f := figure_of(r, "gflops_per_w")) is not None and f.value]
    is_known = len(inverse) == len(same)
    mean = sum_of_figures(inverse, range(len(same))).scaled(1 / len(same)).inverse() if is_known else None
    return total | gflops_columns(mean)


def without_sums(frame: Frame) -> Frame:
    """Without the rows of GPUs that are added up."""
    return frame[~frame["device"].str.contains("+", regex=False).fillna(False)].reset_index(drop=True)


def without_summands(frame: Frame) -> Frame:
    """Without the GPUs of a run that are also there added up: they are no configurations of their own."""
    pairs = list(zip(frame["path"], frame["device"].fillna(""), strict=True))
    summed = {(path, d) for path, device in pairs for d in str(device).split("+") if "+" in str(device)}
    return frame[[pair not in summed for pair in pairs]].reset_index(drop=True)
