"""Accuracy beside energy: the table of results, seconds and joules up to a target, and whether equal seeds agree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isclose, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from powerd_analytics.energy.devices import Part, load_parts, whole_of
from powerd_analytics.energy.metrics import weighted_mean
from powerd_analytics.energy.reasons import find_clipping, without_readings
from powerd_analytics.energy.uncertainty import without_rounding
from powerd_analytics.frame.figure import Figure, Record, figure_of, number_of
from powerd_analytics.frame.figures import (
    ATTRIBUTE,
    COLUMNS,
    RESULT,
    Frame,
    column,
    factors_in,
    frame_from,
    frame_of,
    of_kind,
    rows_of,
    worked_out,
)
from powerd_analytics.output.export import Column, Table, make_table
from powerd_analytics.output.text import Cell, digits, join_texts, parse_number
from powerd_analytics.run_tables.table import TotalRow, labels_of, table_of
from powerd_analytics.runs.accuracy import BEST, ResultTarget, series_of
from powerd_analytics.runs.in_force import knob_of
from powerd_analytics.runs.nesting import PASSES_OF
from powerd_analytics.runs.phases import LAYER, without
from powerd_analytics.runs.ranks import ranks_of
from powerd_analytics.runs.run import Progress, Run, no_progress, read_run, recalibrate
from powerd_client.energies.phase import BASELINE
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.text import printable

# -- seconds and joules up to a target ---------------------------------------------------------------------------------

_OF_ALL = (
    "iterations", "s_per_batch", "u_s_per_batch", "samples_per_batch", "samples_per_s", "tokens_per_batch",
    "batches_per_optimizer_step", "energy_j", "u_statistical_j", "u_systematic_j", "rectangle_j", "time_s", "rest_j",
    "gflops_per_w", "u_statistical_gflops_per_w", "u_systematic_gflops_per_w", "gflops_per_w_executed", "gflops_basis",
)  # fmt: skip
"""Columns of a total that say nothing of the stretch up to a target, before that is worked out."""


def target_frame(
    path: Path, target: ResultTarget, device: str | None = None, calibration: Path | None = None, *,
    progress: Progress = no_progress,
) -> Frame:  # fmt: skip
    """The frame of a run whose totals begin with their first phase and end with the first result that meets a target.

    All that happened in between counts: evaluations, too. Where the target is never met, a total has neither seconds
    nor joules, and the note says how near it came. Raises as `powerd_analytics.frame.figures.run_frame`, and
    `AnalysisError` for a part of a training over several machines, whose clocks differ.
    """
    run = read_run(path, progress=lambda share, text: progress(0.1 * share, text))
    if calibration is not None:
        run, _ = recalibrate(run, calibration)
    ranks = ranks_of(run)
    if 0 < len(ranks.ranks) < ranks.world_size:
        raise AnalysisError(f"{path} is a part of a training over several machines: --to takes trainings of one")
    parts = load_parts(run, device, lambda share, text: progress(0.1 + 0.5 * share, text))
    table = table_of(run, parts, progress=lambda share, text: progress(0.6 + 0.4 * share, text))
    records = rows_of(frame_of(run, table))
    of_part = {(part.device, part.provenance): part for part in parts}
    for i, total in zip((i for i, r in enumerate(records) if r["kind"] == "total"), table.totals, strict=True):
        part = of_part[total.device, total.provenance]
        records[i] |= dict.fromkeys(_OF_ALL) | _up_to(run, part, total, target)
    return worked_out(frame_from(records))


def _up_to(whole: Run, part: Part, total: TotalRow, target: ResultTarget) -> dict[str, Any]:
    """The columns of a total of what its phases began, up to the first result that meets the target."""
    run, _ = ranks_of(whole).on(whole, part.device)
    p, labels = run.phases, labels_of(run, total)
    own = p.of([i for i in labels if p.classes[i].name != BASELINE])
    if not own.any():
        return {"note": "no phases but a baseline"}
    begin_ns = int(p.begin_ns[own].min())
    series = next((s for s in series_of(run) if s.name == target.name), None)
    series = series.of(begin_ns, int(p.end_ns[own].max())) if series is not None else None
    if series is None or not len(series):
        return {"note": f"has no result {target.name}"}
    if p.classes[labels[0]].setting is not None:
        return {"note": "a setting changed during the training: what it took up to a target is of no single setting"}
    reached_ns = target.reached_ns(series)
    if reached_ns is None:
        return {"note": f"never reaches {target}: its best is {digits(series.best)}"}
    stretches = without(np.array([begin_ns]), np.array([reached_ns]), p.begin_ns[p.magnify], p.end_ns[p.magnify])
    energy, clip = whole_of(part, *stretches), find_clipping(part, *stretches)
    missing_s = energy.missing_s
    notes = [without_readings(missing_s, energy.off_by_j, clip)] if missing_s > 1e-3 * energy.duration_s else []
    is_known = isfinite(energy.energy.energy_j) and missing_s < energy.duration_s * (1 - 1e-9)
    notes.append(clip.note(has_number=is_known))
    columns = {
        "time_s": energy.duration_s,
        "missing_s": missing_s,
        "off_by_j": energy.off_by_j,
        "note": join_texts(*notes),
    }
    if not is_known:
        return columns
    joules = without_rounding(energy.energy)
    parts = {} if clip.low else {
        "u_statistical_j": joules.u_statistical_j, "u_systematic_j": joules.u_systematic_j,
        "rectangle_j": joules.rectangle_j,
    }  # fmt: skip
    return columns | parts | {"energy_j": joules.energy_j, "is_lower_bound": clip.is_lower_bound}


def check_reached(frame: Frame, target: ResultTarget) -> None:
    """Raises `AnalysisError` where no run has such a result, naming those that there are."""
    names = results_in(frame)
    if target.name not in names:
        there = f"there is {', '.join(names)}" if names else "give it by meter.result(...)"
        raise AnalysisError(f"--to {target.name}: no run has such a result: {printable(there, limit=300)}")


# -- the table ---------------------------------------------------------------------------------------------------------

_SETTINGS = (
    "model",
    "device",
    "gpus",
    "batch_size",
    "host",
    "program",
    "device_name",
    "power_cap_w",
    "clock_hz",
    "memory_clock_hz",
    "provenance",
)
_BESIDE = tuple(f"{ATTRIBUTE}{name}" for name in (PASSES_OF, LAYER, "overlaps"))
_FOR_PROGRAMS = ("iterations", "s_per_batch", "u_s_per_batch", "u_statistical_j", "u_systematic_j", "rectangle_j",
                 "degrees_of_freedom", "gflops_per_w", "is_lower_bound")  # fmt: skip


def results_in(frame: Frame) -> list[str]:
    """The names of the results that rows have, without those of their best values."""
    names = [name for name in frame.columns if name.startswith(RESULT) and not name.endswith(BEST)]
    return [name.removeprefix(RESULT) for name in names if frame[name].notna().any()]


def accuracy_table(
    means: Frame, every: Frame, target: ResultTarget | None = None, weights: Mapping[str, float] | None = None
) -> Table:
    """Results of each configuration beside its seconds and joules, of the whole or up to a target.

    ``means`` are averaged repeats, ``every`` the same rows before, of which equal seeds are compared. A result is the
    mean of the last values, with the U95 of repeats. To fit a terminal, what is one in all rows stands in a note, and
    best values beside several results or a target are for programs.
    """
    totals = of_kind(means, "total")
    for name in _BESIDE:
        totals = totals[totals[name].isna()] if name in totals else totals
    names = results_in(totals)
    has_result = totals[[f"{RESULT}{name}" for name in names]].notna().any(axis=1) if names else totals["kind"].isna()
    rows = [r | _more(r, names, weights) for r in rows_of(totals[has_result].reset_index(drop=True))]
    settings = [column(name) for name in (*_SETTINGS, *factors_in(totals))]
    constant = {c.name for c in settings if len({r[c.name] for r in rows}) <= 1}
    columns = [replace(c, is_hidden=c.name in constant) for c in settings]
    for name in names:
        result = f"{RESULT}{name}"
        is_best_shown = target is None and len(names) == 1 and any(r[result] != r[f"{result}{BEST}"] for r in rows)
        columns += [column(result), _u95(f"u95_{result}", rows)]
        columns.append(replace(column(f"{result}{BEST}"), is_hidden=not is_best_shown))
    if weights is not None:
        columns.append(Column(_WEIGHTED, "number", heading="weighted"))
    heading = f" to {target}" if target is not None else ""
    for name, u95 in (("time_s", "u95_time_s"), ("energy_j", "u95_j")):
        columns += [column(name), _u95(u95, rows)]
    columns += [Column("runs", "integer", "1", heading="runs", is_hidden=all(r["runs"] == 1 for r in rows))]
    columns += [replace(COLUMNS[name], is_hidden=True) for name in _FOR_PROGRAMS]
    columns.append(column("note"))
    notes = [*_told_once(settings, constant, rows), *seed_notes(every)]
    if target is not None:
        notes.insert(0, "from the first phase to the first result that meets the target")
    if weights is not None:
        notes.append(f"weighted: {', '.join(f'{name} x {digits(weight, 6)}' for name, weight in weights.items())}")
    title = f"Accuracy, with seconds and joules{heading}"
    return make_table("accuracy", title, columns, rows, notes)


def _u95(name: str, rows: Sequence[Record]) -> Column:
    """The uncertainty of the column before; for programs alone where no row has any."""
    return replace(column(name, "± U95"), is_hidden=not any(r[name] for r in rows))


_WEIGHTED = f"{RESULT}weighted"


def _more(r: Record, names: Sequence[str], weights: Mapping[str, float] | None) -> Record:
    """The columns of a row that follow from the others."""
    runs, time = number_of(r, "runs") or 1.0, figure_of(r, "time_s")
    more: Record = {"u95_time_s": time.u95 if time is not None and runs > 1 else None}
    for name in names:
        u = number_of(r, f"u_{RESULT}{name}")
        more[f"u95_{RESULT}{name}"] = None if u is None else Figure(0.0, u, degrees_of_freedom=runs - 1.0).u95
    if weights is not None:
        values = [number_of(r, f"{RESULT}{name}") for name in weights]
        known = [value for value in values if value is not None]
        more[_WEIGHTED] = weighted_mean(known, list(weights.values())) if len(known) == len(values) else None
    return more


def _told_once(settings: Sequence[Column], constant: Iterable[str], rows: Sequence[Record]) -> list[str]:
    """A note on what all rows have in common."""
    texts = [f"{c.heading} {rows[0][c.name]}" for c in settings if c.name in constant and rows and rows[0][c.name]]
    return [f"all rows: {', '.join(texts)}"] if texts else []


def parse_weights(text: str) -> dict[str, float]:
    """``NAME=WEIGHT,NAME=WEIGHT``. Raises `ConfigError`."""
    weights: dict[str, float] = {}
    for piece in text.split(","):
        name, _, number = (part.strip() for part in piece.partition("="))
        weight = parse_number(number)
        if not name or name in weights or weight is None or weight <= 0:
            raise ConfigError(f"--weights {printable(text, limit=120)}: is not NAME=WEIGHT,... as in N=155,TN=16")
        weights[name] = weight
    return weights


# -- equal seeds -------------------------------------------------------------------------------------------------------

_AGREES = 1e-9
_KNOB_OPTION = re.compile(
    r" --?(?:[a-z]+[-_])*(?:cap|power[-_]limit|clock)(?:[-_](?:w|mhz|hz))?(?:=\S+| (?!-)\S+)", re.IGNORECASE
)
_OF_EQUAL_WORK = ("model", "batch_size", "gpus", "ranks", "world_size", "iterations", "seed")


def seed_notes(frame: Frame) -> list[str]:
    """Whether equal trainings with equal seeds gave equal results, whatever cap and clocks they ran at.

    Trainings are equal where program, model, batch size, GPUs, product, iterations and all attributes are; a cap and
    clocks slow down a computation, and do not change it. What else differs is work of another kind.
    """
    names = results_in(frame)
    every = [r for r in rows_of(of_kind(frame, "total")) if r["seed"] is not None and r["power_cap_in_run"] is None]
    attributes = [n for n in factors_in(frame) if not knob_of(n.removeprefix(ATTRIBUTE))[0] and n != f"{ATTRIBUTE}seed"]
    trainings: dict[tuple[Cell, ...], dict[Cell, Record]] = {}
    for r in every:
        if any(r.get(name) is not None for name in _BESIDE) or all(r[f"{RESULT}{n}"] is None for n in names):
            continue
        program = _KNOB_OPTION.sub("", str(r["program"] or ""))
        key = (program, r["device_name"], *(r[n] for n in (*_OF_EQUAL_WORK, *attributes)))
        trainings.setdefault(key, {}).setdefault(r["path"], r)
    compared = [list(runs.values()) for runs in trainings.values() if len(runs) > 1]
    notes = [_seed_note(runs, name) for runs in compared for name in names if _differ(runs, name)]
    if compared and not notes:
        runs, seeds = sum(map(len, compared)), len({runs[0]["seed"] for runs in compared})
        notes = [f"equal seeds gave equal results at every cap and clock ({runs} runs, {seeds} seeds)"]
    return notes


def _differ(runs: Sequence[Record], name: str) -> bool:
    values = [value for r in runs if (value := number_of(r, f"{RESULT}{name}")) is not None]
    return any(not isclose(value, values[0], rel_tol=_AGREES) for value in values)


def _seed_note(runs: Sequence[Record], name: str) -> str:
    cells: dict[str, list[str]] = {}
    for r in runs:
        value = number_of(r, f"{RESULT}{name}")
        if value is not None:
            cap, clock = number_of(r, "power_cap_w"), number_of(r, "clock_hz")
            at = [f"{cap:g} W"] if cap is not None else []
            at += [f"{clock / 1e6:g} MHz"] if clock is not None else []
            cells.setdefault(f"{value:.9g}", []).append(f"{r['run']}{f' at {join_texts(*at)}' if at else ''}")
    each = "; ".join(f"{value} in {', '.join(own)}" for value, own in cells.items())
    about = " ".join(f"{n} {runs[0][n]}" for n in ("model", "batch_size") if runs[0][n] is not None)
    return f"seed {runs[0]['seed']} gave different {name}{f' ({about})' if about else ''}: {each}"
