"""What a run file gives a campaign: the frame's rows that count, and why it does not count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerd_analytics.campaigns.design import GPUS, KNOBS, Design, Levels
from powerd_analytics.campaigns.journal import History, Result
from powerd_analytics.frame.figure import Record
from powerd_analytics.frame.figures import (
    ATTRIBUTE,
    COLUMNS,
    RESULT,
    Frame,
    attribute_cell,
    frame_from,
    rows_of,
    worked_out,
)
from powerd_analytics.output.text import is_number_cell
from powerd_analytics.runs.run import Run
from powerd_core.errors import AnalysisError, PowerdError
from powerd_core.lease import State
from powerd_core.settings import SETTING
from powerd_core.verdict import verdicts_in, worst

if TYPE_CHECKING:
    from powerd_analytics.run_tables.table import PhaseTable

WORK_SHARE = 0.005
"""Work that differs by less than this is the same: the last batch of an epoch may be smaller."""
KERNELS = "kernels"
"""The event of `Meter.record_kernels`."""
_LOST = (State.YIELDED.value, State.LOST.value)


def result_of(file: Path, design: Design, asked: Levels) -> Result:
    """What a run took: all groups of its phases, on the devices that count. Its phases are held against the levels that
    were ``asked``. Raises `RunFileError`, and `AnalysisError` for a run without joules."""
    from powerd_analytics.frame.figures import frame_of
    from powerd_analytics.run_tables.table import kept_table
    from powerd_analytics.runs.ranks import note_of, other_programs
    from powerd_analytics.runs.run import read_run
    from powerd_analytics.views.breakdown import is_part

    run = read_run(file)
    if not run.is_complete:
        raise AnalysisError(f"{file} was cut off")
    table = kept_table(run)
    frame, trained = frame_of(run, table), trained_of(run)
    rows = _rows_that_count(rows_of(frame), design.device, file)
    devices = list(dict.fromkeys(str(row["device"]) for row in rows))
    parts = [r for r in rows_of(frame[is_part(frame)]) if r["kind"] == "phase" and r["device"] in devices]
    said: Record = {f"{RESULT}{name}": float(value) for name, value in run.result.items() if is_number_cell(value)}
    verdict, why = _verdict(rows) if any(name in KNOBS for name in design.factors) else ("", "")
    lost = next((e for e in run.events if e.name == SETTING and e.values.get("state") in _LOST), None)
    return Result(
        tuple(
            {name: value for name, value in row.items() if value is not None and name != "path"}
            for row in [*(row | said for row in rows), *parts]
        ),
        iterations=sum(n for _, n in trained),
        contradiction=contradiction(asked, trained, _parts_of_a_batch(run, table, asked)),
        verdict=verdict,
        note=f"lease lost: {lost.values.get('why')}" if lost is not None else why,
        shared="; ".join(
            note_of(device, text)
            for device in devices
            if (text := other_programs(run, device, run.begin_ns, run.end_ns))
        ),
        kernels=_kernels(run),
        file_bytes=file.stat().st_size,
    )


Trained = Sequence[tuple[Mapping[str, Any], int]]
"""Attributes of groups of phases, with how many iterations each has."""


def trained_of(run: Run) -> Trained:
    """The groups that were trained: evaluations and layers are no work that was asked for. Where some have iterations
    that are called so, or forward passes, those that have none are beside the training."""
    from powerd_analytics.run_tables.table import ITERATION, group_key, iterations_of
    from powerd_analytics.runs.nesting import EVALUATIONS, FORWARD
    from powerd_analytics.runs.phases import LAYER
    from powerd_client.energies.phase import WHOLE

    classes, groups = run.phases.classes, dict[Any, list[int]]()
    for label, kind in enumerate(classes):
        if not kind.is_magnified and kind.name not in (*EVALUATIONS, WHOLE) and LAYER not in dict(kind.group):
            groups.setdefault(group_key(dict(kind.group)), []).append(label)
    named = {
        key: labels for key, labels in groups.items()
        if any(classes[i].is_iteration or classes[i].name in (ITERATION, FORWARD) for i in labels)
    }  # fmt: skip
    return [(dict(classes[labels[0]].group), iterations_of(run, labels)) for labels in (named or groups).values()]


def contradiction(asked: Levels, trained: Trained, parts: Iterable[float] = ()) -> str:
    """What most iterations say of a factor, where that is not the number that was asked; empty where they agree, or say
    nothing. Names are not compared: a model has several. A batch may be marked as one of its ``parts``: a rank's
    share, or one of several before a step."""
    for name, level in asked.items():
        if name in KNOBS or not is_number_cell(level):
            continue
        key = "batch_size" if name == "batch" else name
        counts: dict[float, int] = {}
        for attributes, iterations in trained:
            if is_number_cell(value := attributes.get(key)):
                counts[value] = counts.get(value, 0) + iterations
        if not any(counts.values()):
            continue
        most = max(counts, key=lambda value: counts[value])
        factors = (1.0, *parts) if key == "batch_size" else (1.0,)
        if not any(abs(most * factor - level) <= WORK_SHARE * abs(level) for factor in factors):
            return f"{name} {level:g} was asked, and {most:g} trained"
    return ""


def _parts_of_a_batch(run: Run, table: PhaseTable, asked: Levels) -> list[float]:
    from powerd_analytics.runs.ranks import ranks_of

    ranks = [float(max(1, len(ranks_of(run).ranks)))]
    ranks += [float(n)] if isinstance(n := asked.get(GPUS), int) else []
    steps = {1.0, *(t.batches_per_optimizer_step or 1.0 for t in table.totals)}
    return [rank * step for rank in ranks for step in steps]


def with_rows(history: History, design: Design, folder: Path) -> History:
    """The history with the rows of runs whose journal had none, where their files are as they were."""
    for key, record in history.records.items():
        result, item = record.result, design.item_of(key)
        if result is None or not result.is_old or not result.file or item is None:
            continue
        file = folder / result.file
        if not file.is_file() or file.stat().st_size != result.file_bytes:
            continue
        with suppress(PowerdError):
            record.result = replace(result, rows=result_of(file, design, item.cell.levels).rows, is_old=False)
    return history


_CLOCKS = {"sm_clock_mhz": "clock_hz", "mem_clock_mhz": "memory_clock_hz"}


def frame_of_results(history: History, design: Design) -> Frame:
    """The frame of the totals of all runs that count, a row for each device, with the levels of their cells where the
    runs do not say them."""
    rows = []
    for key, result in history.results().items():
        item = design.item_of(key)
        levels = _columns_of(item.cell.levels) if item is not None else {}
        rows += [{**levels, **row, "kind": "total", "path": key, "run": key} for row in result.wholes]
    return worked_out(frame_from(rows))


def _columns_of(levels: Levels) -> dict[str, Any]:
    """Levels by the frame's columns; those that it does not know are attributes."""
    found: dict[str, Any] = {}
    for name, level in levels.items():
        if name in _CLOCKS:
            found[_CLOCKS[name]] = 1e6 * float(level) if is_number_cell(level) else None
        else:
            found[name if name in COLUMNS else f"{ATTRIBUTE}{name}"] = (
                level if name in COLUMNS else attribute_cell(level)
            )
    return found


def _rows_that_count(every: Sequence[Record], wanted: str, file: Path) -> list[Record]:
    """The totals of the devices that count, or the whole recording where there is no total. Raises `AnalysisError`
    where they have no joules."""
    rows = [row for row in every if row["kind"] == "total"] or [row for row in every if row["kind"] == "run"]
    devices = _devices(rows, wanted)
    rows = [row for row in rows if row["device"] in devices]
    if not rows or any(row["energy_j"] is None for row in rows):
        why = "; ".join(str(row["note"]) for row in rows if row["note"])
        raise AnalysisError(f"{file} has no joules of {', '.join(devices) or 'any device'}{f': {why}' if why else ''}")
    return rows


def _verdict(rows: Sequence[Record]) -> tuple[str, str]:
    """The worst of the rows, with why; empty where nothing was judged."""
    told = [(own, str(row["verdict_note"] or "")) for row in rows for own in verdicts_in(row["verdict"])]
    verdict, why = worst(told)
    return (verdict.value, why) if told else ("", "")


def _devices(rows: Sequence[Mapping[str, Any]], wanted: str) -> list[str]:
    every = list(dict.fromkeys(str(row["device"]) for row in rows))
    if wanted:
        return [device for device in wanted.split(",") if device in every]
    return [device for device in every if device.startswith("gpu")] or every


def _kernels(run: Run) -> dict[str, Any]:
    of = next((event.values for event in run.events if event.name == KERNELS), None)
    names = of.get("names") if of is not None else None
    if of is None or not isinstance(names, Mapping) or not names:
        return {}
    return {"digest": of.get("digest"), "distinct": of.get("distinct"), "first": max(names, key=lambda n: names[n])}
