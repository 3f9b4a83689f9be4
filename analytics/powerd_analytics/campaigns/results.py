"""What a campaign gave: the result of a run file, the frame of all results, the cells' means beside their reference.

Within a block the ratio of a cell to its reference does not know what drifts from block to block, nor the gain of a
sensor that both share. So ratios are taken block by block, and averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from powerd_analytics.campaigns.design import GPUS, KNOBS, MODEL, Cell, Design, Item, Levels
from powerd_analytics.campaigns.journal import Discard, History, Result
from powerd_analytics.campaigns.journal import Record as RunRecord
from powerd_analytics.campaigns.stopping import QUANTILE_AFTER_LOOKS
from powerd_analytics.energy.uncertainty import expanded, student
from powerd_analytics.figures import (
    ATTRIBUTE,
    COLUMNS,
    Figure,
    Frame,
    Record,
    attribute_cell,
    figure_of,
    frame_from,
    rows_of,
    sum_of_figures,
    worked_out,
)
from powerd_analytics.metrics import ed2p_js2, edp_js, eds
from powerd_analytics.repeats import mean_of_repeats
from powerd_analytics.runs.phases import is_number_cell
from powerd_analytics.runs.run import Run
from powerd_core.errors import AnalysisError
from powerd_core.lease import State
from powerd_core.settings import SETTING
from powerd_core.text import printable
from powerd_core.verdict import Verdict, worst

if TYPE_CHECKING:
    from powerd_analytics.table import PhaseTable

CONTRADICTED = "contradicted"
"""Why a run does not count whose phases say something else than its cell."""
EPOCH = "epoch"
"""The result that says when, not how good."""
WORK_SHARE = 0.005
"""Work that differs by less than this is the same: the last batch of an epoch may be smaller."""
TESTBED = (
    "host", "processor", "cores", "memory_gib", "device_name", "driver_version", "least_power_limit_w",
    "default_power_limit_w", "greatest_power_limit_w",
)  # fmt: skip
"""Columns of the frame that say on what a run was made."""
KERNELS = "kernels"
"""The event of `Meter.record_kernels`."""
_ROUNDING = 1e-12
"""Values that differ by less are the same."""
_REASON = {Verdict.OVERRIDDEN: "overridden", Verdict.CONFOUNDED: "thermal", Verdict.CLOCK_MISSED: "clock-missed"}
_LOST = (State.YIELDED.value, State.LOST.value)


def result_of(file: Path, design: Design, asked: Levels) -> Result:
    """What a run took: all groups of its phases, on the devices that count. Its phases are held against the levels that
    were ``asked``. Raises `RunFileError`, and `AnalysisError` for a run without joules."""
    from powerd_analytics.breakdown import is_part
    from powerd_analytics.figures import frame_of
    from powerd_analytics.runs.ranks import note_of, other_programs
    from powerd_analytics.runs.run import read_run
    from powerd_analytics.table import phase_table

    run = read_run(file)
    if not run.is_complete:
        raise AnalysisError(f"{file} was cut off")
    table = phase_table(run)
    frame, trained = frame_of(run, table), trained_of(run)
    rows = _rows_that_count(rows_of(frame), design.device, file)
    devices = list(dict.fromkeys(str(row["device"]) for row in rows))
    first = [row for row in rows if row["device"] == devices[0]]
    verdict, why = _verdict(rows) if any(name in KNOBS for name in design.factors) else ("", "")
    lost = next((e for e in run.events if e.name == SETTING and e.values.get("state") in _LOST), None)
    return Result(
        energy_j=sum(_of(row, "energy_j") for row in rows),
        time_s=sum(_of(row, "time_s") for row in first),
        u_statistical_j=sqrt(sum(_of(row, "u_statistical_j") ** 2 for row in rows)),
        u_systematic_j=sum(_of(row, "u_systematic_j") for row in rows),
        samples=_samples(first) or design.samples,
        iterations=sum(n for _, n in trained),
        contradiction=contradiction(asked, trained, _parts_of_a_batch(run, table, asked)),
        verdict=verdict,
        note=f"lease lost: {lost.values.get('why')}" if lost is not None else why,
        shared="; ".join(
            note_of(device, text)
            for device in devices
            if (text := other_programs(run, device, run.begin_ns, run.end_ns))
        ),
        provenance=str(rows[0]["provenance"]),
        device=",".join(devices),
        is_lower_bound=any(bool(row["is_lower_bound"]) for row in rows),
        accuracy={n: float(v) for n, v in run.result.items() if is_number_cell(v)},
        **_phases(rows_of(frame[is_part(frame)]), devices),
        operations=_operations(first, "operations_per_sample", 2),
        operations_executed=_operations(first, "operations_executed_per_sample", 1),
        kernels=_kernels(run),
        testbed={name: value for name in TESTBED if (value := first[0].get(name)) is not None},
        file_bytes=file.stat().st_size,
    )


Trained = Sequence[tuple[Mapping[str, Any], int]]
"""Attributes of groups of phases, with how many iterations each has."""


def trained_of(run: Run) -> Trained:
    """The groups that were trained: evaluations and layers are no work that was asked for. Where some have iterations
    that are called so, or forward passes, those that have none are beside the training."""
    from powerd_analytics.runs.nesting import EVALUATIONS, FORWARD
    from powerd_analytics.runs.phases import LAYER
    from powerd_analytics.table import ITERATION, group_key, iterations_of
    from powerd_client.phase import WHOLE

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
    told = [(Verdict(text), str(row["verdict_note"] or "")) for row in rows for text in _verdicts(row)]
    verdict, why = worst(told)
    return (verdict.value, why) if told else ("", "")


def _devices(rows: Sequence[Mapping[str, Any]], wanted: str) -> list[str]:
    every = list(dict.fromkeys(str(row["device"]) for row in rows))
    if wanted:
        return [device for device in wanted.split(",") if device in every]
    return [device for device in every if device.startswith("gpu")] or every


def _verdicts(row: Mapping[str, Any]) -> list[str]:
    known = {verdict.value for verdict in Verdict}
    return [text for text in str(row["verdict"] or "").split("; ") if text in known]


def _of(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _samples(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """That the training went through: batches times their size; None where the marks do not say it."""
    counts = [_of(row, "iterations") * (_of(row, "samples_per_batch") or _of(row, "batch_size")) for row in rows]
    return sum(counts) if counts and all(counts) else None


def _phases(rows: Sequence[Record], devices: Sequence[str]) -> dict[str, Any]:
    """Joules of all devices, with their uncertainty, and seconds of each part of an iteration; of one whose joules are
    not known the seconds and why: ``phases``, ``phases_u`` and ``unresolved`` of a `Result`."""
    by_name: dict[str, list[Record]] = {}
    for row in rows:
        if row["kind"] == "phase" and row["device"] in devices:
            by_name.setdefault(str(row["phase"]), []).append(row)
    phases: dict[str, tuple[float, float]] = {}
    uncertainties: dict[str, tuple[float, float, float]] = {}
    unresolved: dict[str, tuple[float, str]] = {}
    for name, own in by_name.items():
        seconds = sum(_of(r, "iterations") * _of(r, "s_per_batch") for r in own if r["device"] == devices[0])
        figures = [(figure_of(r, "j_per_batch"), _of(r, "iterations")) for r in own]
        whole = [figure.scaled(n) for figure, n in figures if figure is not None]
        if len(whole) < len(own):
            why = next(str(r["note"] or "") for r in own if r["j_per_batch"] is None)
            unresolved[name] = seconds, why.removeprefix("not resolvable: ")
            continue
        total = sum_of_figures(whole, [str(r["device"]) for r in own])
        phases[name] = total.value, seconds
        uncertainties[name] = total.u_statistical or 0.0, total.u_systematic or 0.0, total.rectangle
    return {"phases": phases, "phases_u": uncertainties, "unresolved": unresolved}


def _kernels(run: Run) -> dict[str, Any]:
    of = next((event.values for event in run.events if event.name == KERNELS), None)
    names = of.get("names") if of is not None else None
    if of is None or not isinstance(names, Mapping) or not names:
        return {}
    return {"digest": of.get("digest"), "distinct": of.get("distinct"), "first": max(names, key=lambda n: names[n])}


def _operations(rows: Sequence[Record], name: str, passes: int) -> float | None:
    """Of all samples; None where the marks do not say them."""
    counts = [passes * _of(row, name) * (_samples([row]) or 0.0) for row in rows]
    return sum(counts) if counts and all(counts) else None


def spoiled(result: Result, file: Path, reasons: Iterable[str]) -> Discard | None:
    """Why a run does not count by its phases, or by the guard's ``reasons``; None where it does."""
    if result.contradiction:
        return Discard(CONTRADICTED, result.contradiction)
    if result.note.startswith("lease lost") and "lease-lost" in reasons:
        return Discard("lease-lost", result.note)
    if result.shared and "shared" in reasons:
        return Discard("shared", result.shared)
    reason = _REASON.get(Verdict(result.verdict)) if result.verdict else None
    return Discard(reason, result.note) if reason in tuple(reasons) and reason is not None else None


# -- all results -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """A run that counts."""

    item: Item
    result: Result


def measured(design: Design, history: History) -> list[Measured]:
    """The runs that count, block by block."""
    found = [
        Measured(item, result) for key, result in history.results().items()
        if (item := item_of(design, key)) is not None
    ]  # fmt: skip
    return sorted(found, key=lambda m: m.item.block)


def item_of(design: Design, key: str) -> Item | None:
    """The run that a journal calls so; None where the design has no such cell."""
    cell, _, block = key.rpartition("-")
    found = design.cells_by_id.get(cell)
    return None if found is None else Item(found, int(block), design.seed_in(int(block)))


SINGLE = "one repeat: nothing can be compared; min = 3"
"""What is said of a campaign whose cells have one run each, instead of what is best."""
_MOST_NOTES = 8


def is_single(history: History) -> bool:
    """Whether no cell has a second run, which would tell how far runs are apart."""
    repeats = history.repeats()
    return bool(repeats) and max(repeats.values()) < 2


def run_notes(design: Design, history: History) -> list[str]:
    """What a reader has to know of runs that are not there, one sentence each."""
    notes = [SINGLE] if is_single(history) else []
    missing = [_of_missing(design, key, record) for key, record in history.given_up().items()]
    counted = history.results()
    missing += [
        f"{_named(design, key)}: it had no iteration, and others had, so it does not count"
        for key, record in history.records.items() if record.result is not None and key not in counted
    ]  # fmt: skip
    missing += [f"{_named(design, key)}: {result.shared}" for key, result in counted.items() if result.shared]
    notes += missing[:_MOST_NOTES] + [f"and {len(missing) - _MOST_NOTES} more runs" for _ in missing[_MOST_NOTES:][:1]]
    notes += ["given-up runs are made again by `joules campaign resume --retry`"] if history.given_up() else []
    return notes + history.changes


def _named(design: Design, key: str) -> str:
    item = item_of(design, key)
    return f"{item.cell}, block {item.block + 1}" if item is not None else key


def _of_missing(design: Design, key: str, record: RunRecord) -> str:
    last = record.discards[-1] if record.discards else Discard("")
    why = f"{last.reason}{f': {printable(last.text, limit=120)}' if last.text else ''}"
    return f"{_named(design, key)}: given up after {len(record.discards)} attempts, the last one {why}"


def results_frame(design: Design, runs: Sequence[Measured]) -> Frame:
    """The frame of figures of a campaign: a row of kind ``total`` for each run."""
    records = []
    for m in runs:
        factors = {n: level for n, level in m.item.cell.levels.items() if n in COLUMNS}
        others = {f"{ATTRIBUTE}{n}": attribute_cell(v) for n, v in m.item.cell.levels.items() if n not in COLUMNS}
        records.append({
            "kind": "total", "run": m.item.key, "path": m.result.file, "program": " ".join(design.command),
            "device": m.result.device, "provenance": m.result.provenance, "energy_j": m.result.energy_j,
            "time_s": m.result.time_s, "u_statistical_j": m.result.u_statistical_j,
            "u_systematic_j": m.result.u_systematic_j, "iterations": 1, "s_per_batch": m.result.time_s,
            "verdict": m.result.verdict or None, "note": m.result.note, "is_lower_bound": m.result.is_lower_bound,
            "shared": m.result.shared or None,
            "campaign": design.name, "cell": m.item.cell.id, "block": m.item.block, "runs": 1, **factors, **others,
        })  # fmt: skip
    return worked_out(frame_from(records))


# -- cells -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with the half of its 95 % interval, None where one run says nothing of it."""

    value: float
    u95: float | None = None


@dataclass(frozen=True, slots=True)
class CellFigures:
    """What a cell took in the mean of its runs. Ratios are to its reference, block by block."""

    cell: Cell
    runs: int
    energy_j: Mean
    time_s: Mean
    power_w: float
    verdict: str
    provenance: str
    note: str
    ratios: Mapping[str, Mean]
    """By metric: e, t, edp, ed2p, eds:2, eds:1.5."""
    accuracy: Mapping[str, Mean]
    is_per_sample: bool = False


METRICS = ("e", "t", "edp", "ed2p", "eds:2", "eds:1.5")


def ratio(metric: str, energy: float, time: float) -> float:
    """A metric of a run whose joules and seconds are relative to the reference's. Raises `AnalysisError`."""
    name, _, k = metric.partition(":")
    if name == "eds":
        return eds(energy, time, 1.0, 1.0, float(k or 2))
    if name in ("e", "t"):
        return energy if name == "e" else time
    if name not in ("edp", "ed2p"):
        raise AnalysisError(f"there is no metric {metric!r}: {', '.join(METRICS)}")
    return edp_js(energy, time) if name == "edp" else ed2p_js2(energy, time)


def cell_figures(design: Design, history: History) -> list[CellFigures]:
    """The cells that have a result, in the order of the design.

    Cells whose runs did other work than the rest are compared by the sample, and so are all others then.
    """
    runs = measured(design, history)
    per_sample = is_per_sample(runs)
    by_cell: dict[str, dict[int, Result]] = {}
    for m in runs:
        by_cell.setdefault(m.item.cell.id, {})[m.item.block] = m.result
    figures = []
    for cell in design.cells():
        if own := by_cell.get(cell.id):
            reference = design.reference_of(cell)
            beside = by_cell.get(reference.id, {}) if reference is not None else {}
            figures.append(_figures(design, cell, own, beside, per_sample))
    return figures


def is_per_sample(runs: Sequence[Measured]) -> bool:
    """Whether runs of one model went through different numbers of samples. Trainings to a target do so on purpose: they
    are compared as they are."""
    counts: dict[object, list[float]] = {}
    for m in runs:
        if not m.result.samples or EPOCH in m.result.accuracy:
            return False
        counts.setdefault(m.item.cell.levels.get(MODEL), []).append(m.result.samples)
    return any(max(own) > min(own) * (1 + WORK_SHARE) for own in counts.values())


def _figures(
    design: Design, cell: Cell, own: Mapping[int, Result], beside: Mapping[int, Result], per_sample: bool
) -> CellFigures:
    results = list(own.values())
    divisors = [r.samples or 1.0 if per_sample else 1.0 for r in results]
    energy = np.array([r.energy_j / d for r, d in zip(results, divisors, strict=True)])
    time = np.array([r.time_s / d for r, d in zip(results, divisors, strict=True)])
    u_systematic = float(np.mean([(r.u_systematic_j or 0.0) / d for r, d in zip(results, divisors, strict=True)]))
    u_one = (results[0].u_statistical_j or 0.0) / divisors[0] if len(results) == 1 else None
    pairs = [(_per(r, per_sample), _per(beside[block], per_sample)) for block, r in own.items() if block in beside]
    relative = [(e / ref_e, t / ref_t) for (e, t), (ref_e, ref_t) in pairs if ref_e and ref_t]
    names = dict.fromkeys(name for r in results for name in r.accuracy if name != EPOCH)
    notes = dict.fromkeys(printable(r.note) for r in results if r.note)
    return CellFigures(
        cell,
        len(results),
        _mean(energy, u_systematic, u_one, design),
        _mean(time, 0.0, None, design),
        float(energy.sum() / time.sum()),
        _worst_of(results) if any(name in KNOBS for name in design.factors) else "",
        results[0].provenance,
        "; ".join(notes),
        {metric: mean_ratio([ratio(metric, e, t) for e, t in relative]) for metric in METRICS} if relative else {},
        {name: _mean(np.array([r.accuracy[name] for r in results if name in r.accuracy]), 0.0, None, design)
         for name in names},
        per_sample,
    )  # fmt: skip


def _worst_of(results: Sequence[Result]) -> str:
    verdicts = [(Verdict(r.verdict), "") for r in results if r.verdict]
    return worst(verdicts)[0].value if verdicts else ""


def _per(result: Result, per_sample: bool) -> tuple[float, float]:
    by = result.samples or 1.0 if per_sample else 1.0
    return result.energy_j / by, result.time_s / by


def _mean(values: Any, u_systematic: float, u_one: float | None, design: Design) -> Mean:
    """With what all runs share. Where runs are repeated until an interval is narrow, the interval is the one of
    `stopping`, which still covers 95 % after such looks."""
    n = len(values)
    if n == 1:
        return Mean(float(values[0]), float(expanded(u_one or 0.0, u_systematic)) if u_one or u_systematic else None)
    u = float(np.std(values, ddof=1) / sqrt(n))
    u = u if u > _ROUNDING * abs(float(np.mean(values))) else 0.0
    if design.repeats.until is not None:
        u *= _after_looks(n)
    return Mean(float(np.mean(values)), float(expanded(u, u_systematic, 0.0, n - 1.0 if u else inf)))


def _after_looks(n: int) -> float:
    """How much wider an interval is after `stopping` looked at it."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1.0, QUANTILE_AFTER_LOOKS) / student(n - 1.0))


def mean_of_figures(figures: Sequence[Figure], design: Design) -> Mean:
    """The mean of what runs took, with the half of its 95 % interval as `joules tables` has it; after looks
    the one that still covers 95 %."""
    mean, n = mean_of_repeats(figures), len(figures)
    if design.repeats.until is not None and n > 1 and mean.u_statistical is not None:
        mean = replace(mean, u_statistical=mean.u_statistical * _after_looks(n))
    return Mean(mean.value, mean.u95 or None)


def mean_of(values: Sequence[float], design: Design) -> Mean:
    """The mean of what runs took, with the half of its 95 % interval by their spread."""
    return _mean(np.array(values), 0.0, None, design)


def mean_ratio(ratios: Sequence[float]) -> Mean:
    """The geometric mean of ratios, one a block, with the half of its 95 % interval."""
    logs = np.log(ratios)
    value, n = exp(float(np.mean(logs))), len(logs)
    if n < 2:
        return Mean(value)
    return Mean(value, value * float(student(n - 1.0)) * float(np.std(logs, ddof=1)) / sqrt(n))


def same_losses(design: Design, history: History) -> list[str]:
    """Sentences on runs of one seed whose loss is not the same at every cap and clock: neither changes arithmetic.

    Runs are compared that differ in nothing but knobs.
    """
    groups: dict[tuple[Any, ...], dict[float, list[str]]] = {}
    for m in measured(design, history):
        loss = m.result.accuracy.get("loss")
        if loss is None:
            continue
        others = tuple((n, level) for n, level in m.item.cell.levels.items() if n not in KNOBS)
        groups.setdefault((m.item.seed, others), {}).setdefault(round(loss, 12), []).append(str(m.item.cell))
    return [
        f"seed {seed}{''.join(f', {n} {level}' for n, level in others)}: the loss is {low:.6g} to {high:.6g} at "
        "settings that should not change it"
        for (seed, others), losses in groups.items()
        if (high := max(losses)) != (low := min(losses))
    ]
