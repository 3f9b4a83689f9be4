"""One instrument, several cards: what all GPUs of a configuration took, where not each of them was measured.

A phase's attribute ``instrumented`` names the card that the instrument sat on; without it, the device does. Cards of
one product are taken for equal up to a spread: the joules of n cards of which m were measured are n times their mean,
with a variance of spread² x n (n - m) / m times the square of that mean. Cards that were measured in different runs, as
an instrument is moved from one to the next, count as if in one run; what they share by one instrument adds up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf, isfinite, sqrt

import numpy as np

from powerd_analytics.energy.uncertainty import NORMAL, student
from powerd_analytics.frame.figure import NODES, Figure, Record, figure_of, number_of, sum_of_figures
from powerd_analytics.frame.figures import ATTRIBUTE, Frame, column, factors_in, of_kind, rows_of
from powerd_analytics.frame.repeats import CAP_STEP_W, of_a_batch
from powerd_analytics.output.export import Column, Table, make_table
from powerd_analytics.output.text import Cell, join_texts
from powerd_analytics.runs.nesting import PASSES_OF
from powerd_analytics.views.breakdown import of_configurations
from powerd_core.errors import ConfigError

INSTRUMENTED = f"{ATTRIBUTE}instrumented"
ALL_GPUS, ONE_SHARE = "all GPUs", "one share"
"""The two ways of dividing GFLOPS/W: the operations of a batch by the joules of all GPUs, or one GPU's share of the
operations by its own joules. Of equal cards the two are one."""
Mixes = Mapping[int, Mapping[str, int]]
"""By their number of GPUs, how many of each product a mixed configuration has."""


@dataclass(frozen=True, slots=True)
class Cards:
    """How cards that were not measured are known."""

    spread: float | None = None
    """Relative standard deviation between cards of one product; None: by the cards that were measured."""
    mixes: Mixes | None = None

    def __post_init__(self) -> None:
        if self.spread is not None and not (isfinite(self.spread) and 0 <= self.spread < 1):
            raise ConfigError(f"--card-spread {self.spread:g}: is a share, as in 0.03: it must be 0 or more, below 1")


def cards_table(means: Frame, cards: Cards) -> Table | None:
    """A row for each measured card, and one for all GPUs of each configuration; joules and seconds are of a batch.

    ``means`` are averaged repeats, without GPUs that are added up already. None where no GPU has joules of a batch.
    """
    of_batches = rows_of(of_a_batch(of_configurations(of_kind(means, "total"))))
    totals = [r for r in of_batches if number_of(r, "j_per_batch") is not None]
    every = [r for r in totals if _is_card(r)]
    if not every:
        return None
    factors = [name for name in factors_in(means) if name != INSTRUMENTED]
    same_work = ("provenance", "program", "model", "batch_size", "gpus", "ranks", *factors)
    nodes = {tuple(r[n] for n in same_work): r for r in totals if r["device"] in NODES}
    groups = _by_work(every, same_work, cards.mixes or {})
    spreads = _spreads(groups)
    rows: list[Record] = []
    for same in groups:
        rows += _beside(nodes.get(tuple(same[0][n] for n in same_work)), _of_group(same, cards, spreads))
    return _table(rows, factors)


def _by_work(cards: Sequence[Record], same_work: Sequence[str], mixes: Mixes) -> list[list[Record]]:
    """Cards that did the same under one cap: of one product, or of those that a mixed machine has."""
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in cards:
        is_mixed = r["device_name"] in mixes.get(int(number_of(r, "gpus") or 0), {})
        cap = None if is_mixed else number_of(r, "power_cap_w")
        step = None if cap is None else round(cap / CAP_STEP_W)
        key = (None if is_mixed else r["device_name"], step, *(r[n] for n in same_work))
        groups.setdefault(key, []).append(r)
    return list(groups.values())


def _of_group(same: Sequence[Record], cards: Cards, spreads: Mapping[str, tuple[float, float]]) -> list[Record]:
    """A row for each card, and one for all of them where there are several."""
    n, product = int(number_of(same[0], "gpus") or 1), str(same[0]["device_name"])
    rows = [_of_card(r, n) for r in same]
    if n > 1:
        mix = (cards.mixes or {}).get(n, {})
        rows.append(_of_all(same, n, mix if product in mix else {product: n}, cards.spread, spreads))
    return rows


def _table(rows: Sequence[Record], factors: Sequence[str]) -> Table:
    settings = [column(name) for name in ("provenance", "model", "batch_size", "gpus", "power_cap_w", *factors)]
    constant = {c.name for c in settings if len({r[c.name] for r in rows}) <= 1}
    columns = [replace(c, is_hidden=c.name in constant) for c in settings]
    columns += [Column("card", heading="card"), Column("measured", heading="measured")]
    columns += [column("s_per_batch"), column("j_per_batch"), column("u95_j_per_batch", "± U95")]
    columns += [column("gflops_per_w", "GFLOPS/W"), Column("basis", heading="over")]
    columns.append(Column("node_share_pct", "number", "%", heading="% of node"))
    columns.append(Column("u95_node_share_pct", "number", "%", heading="± U95", is_uncertainty=True))
    columns.append(column("note"))
    told = [f"{c.heading} {rows[0][c.name]}" for c in settings if c.name in constant and rows[0][c.name] is not None]
    return make_table("cards", "GPUs, measured and in all, by the batch", columns, rows,
                      [f"all rows: {', '.join(told)}"] if told else [])  # fmt: skip


def _beside(node: Record | None, rows: Sequence[Record]) -> list[Record]:
    """Rows of cards with their shares of their machine, and the machine's own row."""
    return [*rows] if node is None else [*(row | _share_of(row, node) for row in rows), _of_node(node)]


def _of_node(r: Record) -> Record:
    joules = figure_of(r, "j_per_batch")
    return r | {"card": str(r["device"]), "u95_j_per_batch": joules.u95 if joules else None, "gflops_per_w": None}


def _share_of(row: Record, node: Record) -> Record:
    """What GPUs took of the joules of their machine; the sensors of the two are off independently."""
    whole, joules = figure_of(node, "j_per_batch"), number_of(row, "j_per_batch")
    if whole is None or joules is None or not whole.value:
        return {}
    share, u95_j = 100 * joules / whole.value, number_of(row, "u95_j_per_batch")
    is_known = u95_j is not None and whole.u95 is not None
    u95 = share * hypot((u95_j or 0.0) / joules, (whole.u95 or 0.0) / whole.value) if is_known else None
    return {"node_share_pct": share, "u95_node_share_pct": u95}


def _is_card(r: Record) -> bool:
    if r["device"] in NODES:
        return False
    is_gpu = r["device_name"] is not None or str(r["device"]).startswith("gpu")
    is_single = "+" not in str(r["device"]) and r["machines"] is None and r.get(f"{ATTRIBUTE}{PASSES_OF}") is None
    return is_gpu and is_single


def _card(r: Record) -> str:
    """Which card it is, by what the run says or by its device."""
    return str(r.get(INSTRUMENTED) or r["device"])


def _of_card(r: Record, n: int) -> Record:
    joules = figure_of(r, "j_per_batch")
    shown = {"card": _card(r), "measured": f"1 of {n}", "u95_j_per_batch": joules.u95 if joules else None}
    return r | shown | {"basis": ONE_SHARE if r["gflops_per_w"] is not None else None}


def _of_all(
    same: Sequence[Record], n: int, counts: Mapping[str, int], spread: float | None,
    spreads: Mapping[str, tuple[float, float]],
) -> Record:  # fmt: skip
    """The row of all n GPUs, of which ``counts`` says how many of each product there are."""
    by_product = {name: [r for r in same if name == str(r["device_name"])] for name in counts}
    measured = len({(r["host"], _card(r)) for own in by_product.values() for r in own})
    row: Record = same[0] | {"card": f"all {n}", "measured": f"{measured} of {n}", "basis": None, "gflops_per_w": None}
    row |= {"j_per_batch": None, "u95_j_per_batch": None, "s_per_batch": None}
    if missing := [name for name, own in by_product.items() if not own]:
        return row | {"note": f"no card of {' or '.join(missing)} was measured"}
    if measured < len(same):
        return row | {"note": "a card was measured in several ways, as at two clocks: choose one by --where"}
    figures, sensors, inverse, variance, notes = [], [], [], 0.0, []
    for name, own in by_product.items():
        count, m = counts[name], len(own)
        each = [figure for r in own if (figure := figure_of(r, "j_per_batch")) is not None]
        figures += [figure.scaled(count / m) for figure in each]
        sensors += [(r["host"], r["device"]) for r in own]
        inverse += [count / m / g / n for r in own if (g := number_of(r, "gflops_per_w"))]
        if count > m:
            share = spread if spread is not None else _known_to(*spreads.get(name, (np.nan, inf)))
            mean_j = float(np.mean([figure.value for figure in each]))
            variance += (share * mean_j) ** 2 * count * (count - m) / m
            product = f" {name}" if len(counts) > 1 else ""
            notes.append(f"{count - m} of {count}{product} cards taken for equal to {' and '.join(map(_card, own))}")
    whole = sum_of_figures(figures, sensors)
    if np.isnan(variance):
        notes.append("how far cards differ is not known, and so no U95: --card-spread 0.03 states it")
        whole = Figure(whole.value, is_lower_bound=whole.is_lower_bound)
    elif variance:
        whole = replace(whole, u_systematic=hypot(whole.u_systematic or 0.0, sqrt(variance)))
    seconds = [value for r in same if (value := number_of(r, "s_per_batch")) is not None]
    row |= {"j_per_batch": whole.value, "u95_j_per_batch": whole.u95, "s_per_batch": max(seconds, default=None)}
    if len(inverse) == len(same):
        row |= {"gflops_per_w": 1 / sum(inverse), "basis": ALL_GPUS}
    return row | {"note": join_texts(*(r["note"] for r in same), *notes)}


def _known_to(spread: float, freedom: float) -> float:
    """A spread that so many degrees of freedom tell, wider as 1.96 of it are to be the half of its 95 % interval."""
    return spread if freedom == inf else spread * float(student(freedom)) / NORMAL


def _spreads(groups: Sequence[Sequence[Record]]) -> dict[str, tuple[float, float]]:
    """By product the relative standard deviation between cards that did the same, with its degrees of freedom, pooled
    over all configurations in which several were measured."""
    squares: dict[str, tuple[float, float]] = {}
    for same in groups:
        for name in dict.fromkeys(str(r["device_name"]) for r in same):
            joules = [number_of(r, "j_per_batch") or 0.0 for r in same if str(r["device_name"]) == name]
            if len(joules) > 1:
                away = np.array(joules) / np.mean(joules) - 1
                square, freedom = squares.get(name, (0.0, 0.0))
                squares[name] = square + float(away @ away), freedom + len(joules) - 1
    return {name: (sqrt(square / freedom), freedom) for name, (square, freedom) in squares.items()}
