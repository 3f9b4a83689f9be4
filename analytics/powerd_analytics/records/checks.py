"""What would make a table of records wrong: empty runs, phases outside readings, two models under one name, copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isclose
from pathlib import Path

import numpy as np

from powerd_analytics.records.columns import Cell, Record, number_of
from powerd_analytics.records.frame import attributes_of
from powerd_analytics.runs.run import Run
from powerd_core.errors import AnalysisError


def check_run(path: Path, records: Sequence[Record]) -> None:
    """Raises `AnalysisError` for a run that no table of a campaign can be made of, saying why."""
    if not records:
        raise AnalysisError(f"{path}: this run is empty: no line feeds any of its devices")
    if not any(r["kind"] == "phase" for r in records):
        raise AnalysisError(
            f"{path}: this run has no phases: mark them with `meter.phase(...)` (`joules info` has its joules)"
        )
    if all(r["energy_j"] is None for r in records if r["kind"] == "run"):
        raise AnalysisError(
            f"{path}: its lines have fewer than two good readings while it ran: there is no energy "
            "(`joules info` and `joules clock` say what was read, and when)"
        )
    if all(_nothing_inside(r) for r in records if r["kind"] == "total"):
        raise AnalysisError(
            f"{path}: its phases lie outside the readings: clocks or times do not overlap (`joules clock` shows them)"
        )
    for r in records:
        if r["kind"] == "phase" and r["s_per_batch"] == 0:
            raise _no_time(path, str(r["phase"]))


def check_durations(run: Run) -> None:
    """Raises `AnalysisError` for a kind of phase that took no time, as `check_run` does where there are records."""
    p = run.phases
    for label, kind in enumerate(p.classes):
        ended = (p.label == label) & ~p.cut
        if ended.any() and not np.any(p.end_ns[ended] > p.begin_ns[ended]):
            raise _no_time(run.path, kind.name)


def _no_time(path: Path, phase: str) -> AnalysisError:
    return AnalysisError(f"{path}: phases {phase!r} took no time at all: their marks are wrong")


def _nothing_inside(record: Record) -> bool:
    missing, time = number_of(record, "missing_s"), number_of(record, "time_s")
    return missing is not None and time is not None and time > 0 and missing >= (1 - 1e-9) * time


def check_campaign(records: Iterable[Record]) -> None:
    """Raises `AnalysisError` where one model's name stands for two different models, or one recording comes twice."""
    operations: dict[Cell, Record] = {}
    recordings: dict[tuple[Cell, ...], Cell] = {}
    for r in records:
        known = number_of(r, "operations_per_sample")
        # Phases of layers count their own operations.
        if r["model"] is not None and known is not None and "layer" not in attributes_of(r):
            first = operations.setdefault(r["model"], r)
            if not isclose(known, number_of(first, "operations_per_sample") or 0.0, rel_tol=1e-9):
                raise AnalysisError(
                    f"{r['path']}: model {r['model']!r} has {known:g} operations per sample, but "
                    f"{first['operations_per_sample']:g} in {first['path']}: give different models different names"
                )
        if r["kind"] == "run" and r["run_id"]:
            key = (r["run_id"], r["created_utc"], r["host"], r["device"], r["provenance"], r["energy_j"])
            if recordings.setdefault(key, r["path"]) != r["path"]:
                raise AnalysisError(f"{r['path']} is a copy of {recordings[key]}: a run counts once")
