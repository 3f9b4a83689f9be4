"""Software counters against the wall: which share of a machine's joules its GPUs and processors account for, by phase.

The rest is what no counter sees: the loss of the power supplies, fans, drives, the board, and memory where no counter
has it. Counters and the meter at the wall are different sensors, off independently of each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import hypot

from powerd_analytics.frame.figure import (
    NODES,
    Figure,
    Record,
    figure_of,
    joules_column,
    number_of,
    sum_of_figures,
)
from powerd_analytics.frame.figures import Frame, column, factors_in, of_kind, rows_of
from powerd_analytics.output.export import Column, Table, make_table
from powerd_analytics.output.text import Cell, join_texts

_SAME_WORK = ("program", "model", "batch_size", "gpus", "power_cap_w", "power_cap_in_run", "phase_path")
_GPUS, _PROCESSORS = re.compile(r"gpu\d+"), re.compile(r"cpu\d+")
"""Processors are counted with their memory, where the kernel counts that."""


def wall_table(means: Frame) -> Table | None:
    """A row for each phase, and for all phases of a group. ``means`` are averaged repeats, without GPUs that are added
    up already. None where no machine was measured as a whole."""
    every = [r for r in rows_of(of_kind(means, "phase", "total")) if number_of(r, joules_column(r)) is not None]
    same_work = (*_SAME_WORK, *factors_in(means))
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in every:
        groups.setdefault((r["kind"], *(r[name] for name in same_work)), []).append(r)
    rows = [row for same in groups.values() if (row := _row(same)) is not None]
    if not rows:
        return None
    settings = [column(name) for name in ("model", "batch_size", "gpus", "power_cap_w", *factors_in(means))]
    settings = [replace(c, is_hidden=len({r[c.name] for r in rows}) <= 1) for c in settings]
    columns = [
        *settings, column("phase_path"),
        Column("wall_j", "number", "J", heading="wall J"), *_u95("wall_j", "J"),
        Column("gpus_pct", "number", "%", "GPUs, by their drivers", "GPUs %"), *_u95("gpus_pct", "%"),
        Column("processors_pct", "number", "%", "processors and memory, by RAPL", "CPU + memory %"),
        *_u95("processors_pct", "%"),
        Column("counted_pct", "number", "%", "both together", "counted %"), *_u95("counted_pct", "%"),
        Column("overhead_w", "number", "W", "what no counter sees", "overhead W"), *_u95("overhead_w", "W"),
        column("note"),
    ]  # fmt: skip
    notes = ["counted: the share of the joules at the wall that software counters account for; overhead: all else"]
    return make_table("wall", "Software counters against the wall", columns, rows, notes)


def _u95(name: str, unit: str) -> list[Column]:
    return [Column(f"u95_{name}", "number", unit, heading="± U95", is_uncertainty=True)]


def _row(same: Sequence[Record]) -> Record | None:
    node = next((r for r in same if r["device"] in NODES), None)
    whole = None if node is None else figure_of(node, joules_column(node))
    seconds = None if node is None else number_of(node, "s_per_batch" if node["kind"] == "phase" else "time_s")
    if node is None or whole is None or not whole.value or not seconds:
        return None
    counters = [r for r in same if r["provenance"] == node["provenance"]]
    gpus, processors = _sum(counters, _GPUS), _sum(counters, _PROCESSORS)
    parts = [part for part in (gpus, processors) if part is not None]
    if not parts:
        return None
    counted = sum_of_figures(parts, range(len(parts)))
    rest_u95 = None if None in (whole.u95, counted.u95) else hypot(whole.u95 or 0.0, counted.u95 or 0.0)
    others = [f"{r['device']} is {r['provenance']}: not counted" for r in same if r not in counters]
    return {
        **node, "phase_path": node["phase_path"] or "all", "wall_j": whole.value, "u95_wall_j": whole.u95,
        **_share("gpus_pct", gpus, whole), **_share("processors_pct", processors, whole),
        **_share("counted_pct", counted, whole),
        "overhead_w": (whole.value - counted.value) / seconds,
        "u95_overhead_w": None if rest_u95 is None else rest_u95 / seconds,
        "note": join_texts(node["note"], *others),
    }  # fmt: skip


def _sum(rows: Iterable[Record], devices: re.Pattern[str]) -> Figure | None:
    own = [r for r in rows if devices.fullmatch(str(r["device"]))]
    figures = [figure for r in own if (figure := figure_of(r, joules_column(r))) is not None]
    return sum_of_figures(figures, [r["device"] for r in own]) if figures else None


def _share(name: str, part: Figure | None, whole: Figure) -> Record:
    if part is None:
        return {}
    share = 100 * part.value / whole.value
    is_known = part.u95 is not None and whole.u95 is not None
    u95 = hypot(100 * (part.u95 or 0.0), share * (whole.u95 or 0.0)) / whole.value if is_known else None
    return {name: share, f"u95_{name}": u95}
