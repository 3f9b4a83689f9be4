"""Many runs as one campaign: their records, checked for what would make a table of them wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING

from powerd_analytics.devices import Progress, no_progress
from powerd_analytics.figures import number_of
from powerd_analytics.index import index_files, index_records, is_index
from powerd_analytics.names import pick
from powerd_analytics.recordcolumns import COLUMNS, Cell, Record
from powerd_analytics.records import run_records
from powerd_core.errors import AnalysisError, RunFileError

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".h5", ".hdf5")
ALIASES = {
    "batch": "batch_size", "cap": "power_cap_w", "clock": "clock_hz", "generation": "device_name",
    "product": "device_name", "path": "phase_path",
}  # fmt: skip


def run_files(paths: Sequence[Path]) -> list[Path]:
    """The run files that are meant: files as they are, all below directories, sorted by name, and those of indexes.

    Raises `RunFileError` for a directory without any, and for a file that is given twice.
    """
    found: list[Path] = []
    for path in paths:
        if is_index(path):
            found += index_files(path)
            continue
        if not path.is_dir():
            found.append(path)
            continue
        below = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file() and _is_whole(p))
        if not below:
            raise RunFileError(f"{path}: there are no run files in this directory (names ending in .h5)")
        found += below
    seen: set[Path] = set()
    for path in found:
        if path.resolve() in seen:
            raise RunFileError(f"{path} is given twice: a run counts once")
        seen.add(path.resolve())
    return found


def _is_whole(path: Path) -> bool:
    """Neither a file that is being written nor inside a journal."""
    hidden = any(part.startswith(".") for part in path.parts[-2:] if part not in (".", ".."))
    return not hidden and not any(part.endswith(".journal") for part in path.parts)


def read_campaign(
    paths: Sequence[Path],
    device: str | None = None,
    calibration: Path | None = None,
    *,
    progress: Progress = no_progress,
) -> list[Record]:
    """The records of all runs in ``paths`` (files, directories, indexes), checked by `check_run` and `check_campaign`.

    Those of indexes are taken from there. With a file of ``calibration``, all run files are read, and the joules of its
    sensors are computed again by it.
    """
    files = run_files(paths)
    indexed: dict[Cell, list[Record]] = {}
    for path in paths if calibration is None else ():
        for record in index_records(path, device, progress=progress) if is_index(path) else ():
            indexed.setdefault(record["path"], []).append(record)
    records: list[Record] = []
    for i, path in enumerate(files):
        of_run = indexed.get(str(path)) or run_records(
            path, device, calibration, progress=part_of(progress, i, len(files), path.name)
        )
        check_run(path, of_run)
        records += of_run
    check_campaign(records)
    return records


def part_of(progress: Progress, i: int, n: int, name: str) -> Progress:
    """The progress of the ``i``-th of ``n`` files."""
    return lambda share, text: progress((i + share) / n, f"{name}: {text}")


def check_run(path: Path, records: Sequence[Record]) -> None:
    """Raises `AnalysisError` for a run that no table of a campaign can be made of, saying why."""
    if not records:
        raise AnalysisError(f"{path}: this run is empty: no line feeds any of its devices")
    if not any(r["kind"] == "phase" for r in records):
        raise AnalysisError(f"{path}: this run has no phases: mark them with `meter.phase(...)` and record again")
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
            raise AnalysisError(f"{path}: phases {r['phase']!r} took no time at all: their marks are wrong")


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


def attributes_of(record: Record) -> dict[str, Cell]:
    """The phases' attributes that have no column of their own."""
    found = json.loads(str(record["attributes"] or "{}"))
    return {str(k): v if isinstance(v, str | int | float | bool | None) else json.dumps(v) for k, v in found.items()}


def dimension(name: str, records: Sequence[Record]) -> str:
    """The column that is meant by a name on the command line: an alias, with dashes, or an attribute of the phases.

    Raises `AnalysisError` with a suggestion for an unknown one.
    """
    meant = name.strip().replace("-", "_")
    meant = ALIASES.get(meant, meant)
    if meant in COLUMNS:
        return meant
    known = list(dict.fromkeys(k for r in records for k in attributes_of(r)))
    if name.strip() in known:
        return name.strip()
    return pick(meant, [*COLUMNS, *known], "column")


def value_in(record: Record, name: str) -> Cell:
    """A column of a record, or an attribute of its phases."""
    return record[name] if name in record else attributes_of(record).get(name)


def where(records: Sequence[Record], conditions: Sequence[str]) -> list[Record]:
    """The records for which every ``COLUMN=VALUE`` holds. Raises `AnalysisError` for one that none fulfils."""
    left = list(records)
    for condition in conditions:
        column, is_given, wanted = condition.partition("=")
        if not is_given:
            raise AnalysisError(f"--where {condition}: write it as COLUMN=VALUE, as in batch_size=64")
        name = dimension(column, records)
        kept = [r for r in left if _equals(value_in(r, name), wanted)]
        if not kept:
            there = ", ".join(dict.fromkeys(str(v) for r in left if (v := value_in(r, name)) is not None)) or "no value"
            raise AnalysisError(f"--where {condition}: no row has it; {name} is {there}")
        left = kept
    return left


def _equals(value: Cell, wanted: str) -> bool:
    if value is None:
        return wanted == ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return isclose(float(wanted), value, rel_tol=1e-9)
        except ValueError:
            return False
    return str(value) == wanted


def to_frame(records: Sequence[Record]) -> pd.DataFrame:
    """The records as a pandas frame: one type a column, missing numbers as NaN and missing integers as <NA>."""
    import pandas as pd

    names = list(dict.fromkeys([*COLUMNS, *(k for r in records for k in r)]))
    frame = pd.DataFrame([[r.get(n) for n in names] for r in records], columns=names, dtype=object)
    types = {"text": "string", "integer": "Int64", "number": "float64", "flag": "boolean"}
    for name in names:
        kind = COLUMNS[name].kind if name in COLUMNS else "integer"
        frame[name] = frame[name].astype(types[kind])
    return frame
