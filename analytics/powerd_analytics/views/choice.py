"""The best of several configurations: by several figures of merit at once, each with what cannot be told from it.

`choose` reads the rows of a table as the frame of figures (`powerd_analytics.frame.published`), so that tables of
papers and those that `joules tables` writes are chosen from alike. Minima are flat: a pick comes with its ties, the
configurations whose difference from it is within U95.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from powerd_analytics.energy import metrics
from powerd_analytics.frame.best import best_of_means
from powerd_analytics.frame.costs import Factors
from powerd_analytics.frame.figure import Figure, Record, figure_of
from powerd_analytics.frame.figures import Condition, Frame, Values, floats, parse_condition, rows_of
from powerd_analytics.frame.merits import Given, Merit, merit_of
from powerd_analytics.frame.published import CAPS_W, ENERGY_J, ROUNDED, TIME_S, TableFile, first_of, published_frame
from powerd_analytics.output.export import Column, Table, make_table
from powerd_analytics.runs.accuracy import is_lower_better
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.text import printable

# -- what is asked for -------------------------------------------------------------------------------------------------


def parse_metrics(text: str, k: float = 2.0) -> list[Merit]:
    """``e,edp,eds:1.5,eds:2``; ``k`` is that of an ``eds`` that states none. Raises `ConfigError`."""
    if not (math.isfinite(k) and k >= 1):
        raise ConfigError(f"--k {k:g}: k must be 1 or more")
    asked = []
    for label in dict.fromkeys(piece.strip() for piece in text.split(",")):
        try:
            asked.append(merit_of(label, k))
        except AnalysisError as error:
            raise ConfigError(f"--metric {error}") from error
    return list(dict.fromkeys(asked))


def parse_reference(text: str) -> list[Condition]:
    """``COLUMN=VALUE,COLUMN=VALUE``; a comma without ``=`` behind it belongs to a value. Raises `ConfigError`."""
    pieces: list[str] = []
    for piece in text.split(","):
        if "=" in piece or not pieces:
            pieces.append(piece)
        else:
            pieces[-1] += f",{piece}"
    return [parse_condition("--reference", piece) for piece in pieces]


# -- choosing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """What to choose from a table, and how."""

    reference: Sequence[Condition]
    metrics: Sequence[Merit]
    where: Sequence[Condition] = ()
    by: Sequence[str] = ()
    eta: float = 0.5
    max_power_w: float | None = None
    """None: the highest power cap of a group."""
    within: float | None = None
    """Only rows whose accuracy ``of`` is at most so far from the best of a group, in its own unit."""
    of: str = ""
    factors: Factors = field(default_factory=Factors)


@dataclass(frozen=True, slots=True)
class Choice:
    """The best row of one group by one figure of merit, by its number from 0 in the table."""

    metric: Merit
    row: int
    energy_j: float
    """Of the whole row."""
    value: float
    u95: float | None
    """None where the table does not say how sure its joules are."""
    energy_saving_pct: float
    performance_loss_pct: float
    saving_minus_loss_pct: float
    u95_saving_pct: float | None
    u95_loss_pct: float | None
    ties: tuple[int, ...] | None
    """Other rows that are as good; None where nothing tells."""
    ties_within_pct: float | None
    """By how much of the value one of these may be worse, at most."""
    rows: tuple[int, ...] = ()
    """All that were compared."""
    is_per_sample: bool = False

    @property
    def column(self) -> str:
        """The column of its value."""
        return self.metric.per_sample if self.is_per_sample else self.metric.column


def choose(table: TableFile, request: Request) -> tuple[list[Choice], list[str]]:
    """The best row by each metric in all that fulfil ``where``, or in each group of equal cells in the columns ``by``;
    and notes.

    Energy and time are those of `published_frame`. Rows of a group that did unequal work, by their iterations or
    samples, are compared by what they took for a sample, and then those of all groups are. Rows without energy or time
    were not run and are passed over; of equally good ones the first is taken. Raises `AnalysisError` for a table
    without these columns or with two that differ, without exactly one reference row in a group, with cells that are no
    numbers, in any row, and for unequal work where samples are not known.
    """
    table.require(*request.by)
    for each, units in (("j_per_batch", ENERGY_J), ("s_per_batch", TIME_S)):
        if first_of(table, (*units, each)) is None:
            table.require(next(iter(units)))
    frame = published_frame(table)
    energy_j, time_s = floats(frame, "energy_j"), floats(frame, "time_s")
    is_run = ~(np.isnan(energy_j) | np.isnan(time_s))
    rows = list(range(len(table)))
    for condition in request.where:
        rows = _rows_with(condition, table, rows)
    groups: dict[tuple[str, ...], list[int]] = {}
    for i in rows:
        groups.setdefault(tuple(table.cells[column][i] for column in request.by), []).append(i)
    notes: list[str] = []
    work = _work(table, frame)
    run = [work.loc[[i for i in group if is_run[i]]] for group in groups.values()]
    unequal = next(filter(_is_unequal, run), None)
    samples = np.asarray(work["samples"])
    if unequal is not None:
        notes.append(_by_the_sample(table, pd.concat(run), unequal))
    scale = samples if unequal is not None else np.ones(len(table))
    records = rows_of(frame)
    choices = []
    for group in groups.values():
        own = [i for i in group if is_run[i]]
        reference = _reference(table, request.reference, group)
        if reference not in own or not energy_j[reference] or not time_s[reference]:
            what = ",".join(map(str, request.reference))
            raise AnalysisError(f"{table.at(reference)}: the reference {what} has no energy or no time")
        notes += [f"{table.at(i)}: no energy or no time: not among the choices" for i in group if i not in own]
        zero = [i for i in own if 0 in (energy_j[i], time_s[i])]
        notes += [f"{table.at(i)}: 0 counts as 0; leave empty what was not measured" for i in zero]
        known = _Known.of([records[i] for i in own], scale[own], notes)
        at, names = own.index(reference), {metric.name for metric in request.metrics}
        given = Given(
            reference=(float(known.joules[at]), float(known.seconds[at])),
            joules=known.joules,
            gflops_per_w=floats(frame, "gflops_per_w")[own],
            samples=samples[own] / scale[own],
            eta=request.eta,
            max_power_w=_most_w(table, own, request, notes) if "cost" in names else 0.0,
            price_per_kwh=request.factors.price_per_kwh or 0.0,
        )
        is_good = _is_good_enough(table, own, request, notes)
        for metric in request.metrics:
            choice = _best_of(table, own, at, known, given, is_good, metric)
            choices.append(replace(choice, energy_j=float(energy_j[choice.row]), is_per_sample=unequal is not None))
    return choices, list(dict.fromkeys(notes))


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """Energy and time of rows [n], and how sure they are."""

    joules: Values
    seconds: Values
    u95_j: Values | None
    """None where of any row nothing is known."""
    u95_s: Values
    own_j: Values | None
    """The same of energy without what all rows share: the gain and zero of one sensor cancel in a difference."""

    @classmethod
    def of(cls, records: Sequence[Record], scale: Values, notes: list[str]) -> _Known:
        joules, seconds = ([figure_of(r, name) for r in records] for name in ("energy_j", "time_s"))
        values = [np.array([f.value if f else np.nan for f in column]) / scale for column in (joules, seconds)]
        u95_s = np.array([(f.u95 if f else None) or 0.0 for f in seconds]) / scale
        u95_j = _all_known(joules, scale)
        is_shared = _is_one_sensor(records)
        if u95_j is not None and is_shared and all((r["runs"] or 1) == 1 for r in records):
            notes.append("rows are of one run each: what differs from run to run is neither in U95 nor in ties")
        chance = [replace(f, u_systematic=None, rectangle=0.0) if f and is_shared else f for f in joules]
        return cls(values[0], values[1], u95_j, u95_s, _all_known(chance, scale))

    def u95(self, value: Callable[[Values, Values], Values], *, is_own: bool = False) -> Values | None:
        """Of what follows from joules and seconds, by the change when each is off by its U95 (GUM 5.1.3, note 2)."""
        u95_j = self.own_j if is_own else self.u95_j
        if u95_j is None:
            return None
        e, t, u_s = self.joules, self.seconds, self.u95_s
        of_joules = value(e + u95_j, t) - value(e - u95_j, t)
        of_seconds = value(e, t + u_s) - value(e, t - u_s)
        return np.asarray(np.hypot(of_joules, of_seconds) / 2)


def _all_known(figures: Sequence[Figure | None], scale: Values) -> Values | None:
    u95 = [f.u95 if f else None for f in figures]
    return None if None in u95 else np.array([u or 0.0 for u in u95]) / scale


def _is_one_sensor(records: Sequence[Record]) -> bool:
    """Whether rows have both parts of their uncertainty, and the systematic one of the same device."""
    places = {tuple(r[name] for name in ("host", "device", "device_name", "provenance")) for r in records}
    parts = ("u_statistical_j", "u_systematic_j")
    has_device = all(r["device"] is not None for r in records)
    return len(places) == 1 and has_device and all(r[name] is not None for r in records for name in parts)


def _best_of(
    table: TableFile, rows: Sequence[int], at: int, known: _Known, given: Given, is_good: NDArray[np.bool_],
    metric: Merit,
) -> Choice:  # fmt: skip
    """The best of ``rows`` by one metric, ``at`` being the reference among them."""
    sign = -1.0 if metric.is_highest else 1.0

    def value(e: Values, t: Values) -> Values:
        return metric.value(e, t, given)

    with np.errstate(all="ignore"):
        values = value(known.joules, known.seconds)
        u95, own = known.u95(value), known.u95(value, is_own=True)
    is_there = is_good & ~np.isnan(values)
    if not is_there.any():
        raise AnalysisError(f"{table.name}: no row has what --metric {metric.name} needs: a column says it")
    if not np.isfinite(values[is_there]).all():
        raise AnalysisError(f"{table.name}: energy and time are too large: their metric is no finite number")
    chosen = np.flatnonzero(is_there)
    found = _of_campaign(table, rows, at, metric, is_there)
    is_known = found is not None or own is not None
    if found is None:
        means = best_of_means(sign * values[chosen], np.zeros(len(chosen)) if own is None else own[chosen])
        found = {int(i): share for i, share in zip(chosen[list(means.as_good)], means.within, strict=True)}
        best = int(chosen[means.row])
    else:
        best = min(found, key=lambda i: found[i])
    ties = tuple(rows[i] for i in found if i != best) if is_known else None
    (e_ref, t_ref), e, t = given.reference, float(known.joules[best]), float(known.seconds[best])
    saving_pct, loss_pct = metrics.energy_saving_pct(e, e_ref), metrics.performance_loss_pct(t, t_ref)
    u_saving, u_loss = (
        None if u is None or known.own_j is None else _u95_ratio_pct(x, u, best, at)
        for x, u in ((known.joules, known.own_j), (known.seconds, known.u95_s))
    )
    if _is_reference_of_campaign(table, rows[at]) and best != at:
        (of_e, u_saving), (of_t, u_loss) = (_off_pct(table, rows[best], name) for name in ("e", "time"))
        saving_pct, loss_pct = -of_e, of_t
    return Choice(
        metric=metric,
        row=rows[best],
        energy_j=e,
        value=float(values[best]),
        u95=None if u95 is None else float(u95[best]),
        energy_saving_pct=saving_pct,
        performance_loss_pct=loss_pct,
        saving_minus_loss_pct=saving_pct - loss_pct,
        u95_saving_pct=u_saving,
        u95_loss_pct=u_loss,
        ties=ties,
        ties_within_pct=100 * max(found.values()) if ties else None,
        rows=tuple(rows),
    )


def _of_campaign(
    table: TableFile, rows: Sequence[int], at: int, metric: Merit, is_there: NDArray[np.bool_]
) -> dict[int, float] | None:
    """Of the table of a campaign's cells the best of ``rows`` and those as good, with by how much they may be worse, as
    the campaign says; it knows its runs. None where that is not in the table, or of other rows or another reference."""
    if metric.within_column not in table.columns:
        return None
    if metric.exponents is None and not _is_reference_of_campaign(table, rows[at]):
        return None
    within = table.numbers(metric.within_column)[list(rows)]
    found = {i: share / 100 for i, share in enumerate(within.tolist()) if not math.isnan(share)}
    is_whole = list(found.values()).count(0.0) == 1 and all(is_there[i] for i in found)
    return found if is_whole else None


def _is_reference_of_campaign(table: TableFile, row: int) -> bool:
    """Whether a row is what a campaign has compared its cells with, block by block."""
    names = [merit_of(name).ratio_column for name in ("e", "time")]
    if not all(name in table.columns and f"u95_{name}" in table.columns for name in names):
        return False
    return all(table.numbers(name)[row] == 1 for name in names)


def _off_pct(table: TableFile, row: int, name: str) -> tuple[float, float | None]:
    """What a campaign says a row is off its reference, in per cent, and its U95."""
    column = merit_of(name).ratio_column
    ratio, u95 = (float(table.numbers(text)[row]) for text in (column, f"u95_{column}"))
    return 100 * (ratio - 1), None if math.isnan(u95) else 100 * u95


def _u95_ratio_pct(x: Values, u95: Values, best: int, at: int) -> float:
    """U95 of the ratio of one row's value to the reference's, in per cent; nothing of a row to itself."""
    if best == at:
        return 0.0
    return float(100 * np.hypot(u95[best] / x[at], x[best] * u95[at] / x[at] ** 2))


def _reference(table: TableFile, conditions: Sequence[Condition], group: Sequence[int]) -> int:
    """The only row of a group for which all conditions hold. Raises `AnalysisError`."""
    rows = list(group)
    for condition in conditions:
        rows = _rows_with(condition, table, rows)
    if len(rows) > 1:
        raise AnalysisError(
            f"{table.name}: {len(rows)} rows are the reference {','.join(map(str, conditions))}: "
            "narrow them down with --where COLUMN=VALUE, or pick one of each with --by COLUMN"
        )
    return rows[0]


def _is_good_enough(table: TableFile, rows: Sequence[int], request: Request, notes: list[str]) -> NDArray[np.bool_]:
    """[n] which rows have an accuracy within so many points of the best one."""
    if request.within is None:
        return np.ones(len(rows), bool)
    names = (request.of, f"result_{request.of}", f"accuracy_{request.of}", f"{request.of}_pct")
    name = first_of(table, names)
    if name is None:
        has = printable(", ".join(table.columns), limit=300)
        raise AnalysisError(f"{table.name}: --of {printable(request.of, limit=60)}: no such column: it has {has}")
    accuracy = table.numbers(name, signed=True)[list(rows)]
    notes += [f"{table.at(rows[int(i)])}: no {name}: not among the choices" for i in np.flatnonzero(np.isnan(accuracy))]
    if np.isnan(accuracy).all():
        raise AnalysisError(f"{table.name}: no row that was run has a {name}")
    away = accuracy - np.nanmin(accuracy) if is_lower_better(request.of) else np.nanmax(accuracy) - accuracy
    slack = 1e-9 * float(np.nanmax(np.abs(accuracy)))  # 76.0 - 75.5 is within 0.5
    is_good = away <= request.within + slack
    left = int(is_good.sum())
    notes.append(f"{left} of {len(rows)} rows have a {name} within {request.within:g} of the best")
    return np.asarray(is_good)


def _most_w(table: TableFile, rows: Sequence[int], request: Request, notes: list[str]) -> float:
    return _max_power_w(table, rows, notes) if request.max_power_w is None else request.max_power_w


_OF_CONFIGURATIONS = (*CAPS_W, "batch_size", "batch", "clock_hz", "clock_mhz", "memory_clock_hz", "gpus", "device",
                      "gpu", "device_name", "model", "program")  # fmt: skip


def labels(table: TableFile, rows: Sequence[int], reference: Sequence[Condition]) -> dict[int, str]:
    """What tells rows apart in a few words: as many settings as it takes, else the row's number as well."""
    names = dict.fromkeys([*_OF_CONFIGURATIONS, *(c.column for c in reference)])
    varying = [n for n in names if n in table.columns and len({table.cells[n][i] for i in rows}) > 1]
    used: list[str] = []
    for name in varying:
        if len({tuple(table.cells[n][i] for n in used) for i in rows}) < len(rows):
            used.append(name)
    is_told = len({tuple(table.cells[n][i] for n in used) for i in rows}) == len(rows)
    texts = {}
    for i in rows:
        words = [f"{n} {table.cells[n][i].removesuffix('.0')}" for n in used if table.cells[n][i]]
        texts[i] = printable(", ".join([*words, *([] if is_told and words else [f"row {i + 1}"])]), limit=120)
    return texts


# -- what is printed ---------------------------------------------------------------------------------------------------


def picked_rows(table: TableFile, request: Request, choices: Sequence[Choice]) -> pd.DataFrame:
    """A row for each choice: the cells of the table and what was worked out; None where nothing is known.

    The value of a metric is in a column of its own; of several metrics in ``value`` and ``u95_value``.
    """
    rows = []
    for c in choices:
        name = c.column if len(request.metrics) == 1 else "value"
        row: dict[str, object] = {} if name == c.column else {"metric": c.metric.name}
        row |= {name: c.value, f"u95_{name}": c.u95}
        row |= {"energy_saving_pct": c.energy_saving_pct, "u95_energy_saving_pct": c.u95_saving_pct}
        row |= {"performance_loss_pct": c.performance_loss_pct, "u95_performance_loss_pct": c.u95_loss_pct}
        row |= {"saving_minus_loss_pct": c.saving_minus_loss_pct, "ties": _ties_text(table, request, c)}
        row |= {"ties_within_pct": c.ties_within_pct}
        rows.append(row | _without_u95(request.factors.of(c.energy_j, None)))
    computed = pd.DataFrame(rows, dtype=object)
    picked = table.cells.iloc[[c.row for c in choices]].reset_index(drop=True)
    return picked.drop(columns=list(computed), errors="ignore").join(computed)


def _without_u95(columns: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in columns.items() if not name.startswith("u95_")}


def _ties_text(table: TableFile, request: Request, choice: Choice) -> str | None:
    if choice.ties is None:
        return None
    texts = labels(table, choice.rows, request.reference)
    return "; ".join(texts[i] for i in choice.ties) or "none"


def pick_table(table: TableFile, request: Request, choices: Sequence[Choice]) -> Table:
    """A line for each choice by several metrics, for people."""
    columns = [
        *(Column(name) for name in request.by),
        Column("metric", heading="best by"),
        Column("pick", heading="is"),
        Column("value", "number"),
        Column("u95_value", "number", heading="± U95", is_uncertainty=True),
        Column("energy_saving_pct", "number", "%", heading="saves %"),
        Column("performance_loss_pct", "number", "%", heading="slower %"),
        Column("tied", "integer", heading="ties", missing="?"),
    ]
    rows, notes = [], []
    for c, shown in zip(choices, picked_rows(table, request, choices).to_dict("records"), strict=True):
        of_group = {name: shown[name] for name in request.by}
        unit = c.metric.unit
        pick = labels(table, c.rows, request.reference)[c.row]
        tied = None if c.ties is None else len(c.ties)
        figures = {"value": c.value, "u95_value": c.u95, "energy_saving_pct": c.energy_saving_pct,
                   "performance_loss_pct": c.performance_loss_pct}  # fmt: skip
        rows.append(
            of_group
            | {"metric": f"{c.metric.name} ({unit})" if unit else c.metric.name, "pick": pick, "tied": tied}
            | figures
        )
        if c.ties:
            place = " ".join([*map(str, of_group.values()), c.metric.name])
            most = "" if c.ties_within_pct is None else f", at most {c.ties_within_pct:.2g} % worse"
            notes.append(f"{place}: not to be told from {shown['ties']}{most}")
    if any(c.ties is None for c in choices):
        notes.append("ties are not known: the table does not say how sure all joules are (u95_j)")
    return make_table("pick", f"Best of {table.name}", columns, rows, notes)


def _rows_with(condition: Condition, table: TableFile, among: Sequence[int]) -> list[int]:
    """The rows for which it holds. Raises `AnalysisError` for a column that is not there, and for none."""
    table.require(condition.column)
    cells = table.cells[condition.column]
    rows = [i for i in among if condition.holds(cells[i])]
    if not rows:
        values = printable(", ".join(dict.fromkeys(filter(None, cells))), limit=300)
        raise AnalysisError(f"{table.name}: no row has {condition}; {condition.column} is {values}")
    return rows


def _work(table: TableFile, frame: Frame) -> pd.DataFrame:
    """``iterations``, ``batch_size`` and ``samples`` of each row; NaN where the table does not say."""
    iterations, batch_size = floats(frame, "iterations"), floats(frame, "batch_size")
    samples = table.numbers("samples", positive=True) if "samples" in table.columns else np.full(len(table), np.nan)
    samples = np.where(np.isnan(samples), iterations * batch_size, samples)
    samples = np.where(samples > 0, samples, np.nan)
    return pd.DataFrame({"iterations": iterations, "batch_size": batch_size, "samples": samples})


def _is_unequal(work: pd.DataFrame) -> bool:
    """Whether rows did unequal work, as far as the table says what they did.

    At one batch size, iterations must be the same. At several, samples may differ by `ROUNDED`: the last batch of an
    epoch is smaller.
    """
    counts = work[["iterations", "samples"]]
    if counts.isna().all(axis=None):
        return False
    of_one_size = counts.groupby(work["batch_size"], dropna=False).nunique(dropna=False)
    samples = work["samples"]
    is_said_of_some = samples.isna().nunique() > 1
    return bool((of_one_size > 1).any(axis=None) or is_said_of_some or samples.max() > (1 + ROUNDED) * samples.min())


def _by_the_sample(table: TableFile, work: pd.DataFrame, unequal: pd.DataFrame) -> str:
    """The note on rows that are compared by the sample. Raises `AnalysisError` where one has no number of samples."""
    ranges = [
        f"{unequal[name].min():g} to {unequal[name].max():g} {name}"
        for name in ("iterations", "samples")
        if unequal[name].nunique() > 1
    ]
    what = f"the rows did unequal work ({ranges[0] if ranges else 'as far as some say'})"
    for row in work.index[work["samples"].isna()]:
        raise AnalysisError(
            f"{table.at(row)}: {what}, and this one does not say of how many samples: "
            "give columns iterations and batch, or samples"
        )
    return f"{table.name}: {what}: energy and time are compared by the sample"


def _max_power_w(table: TableFile, rows: Sequence[int], notes: list[str]) -> float:
    name = first_of(table, CAPS_W)
    caps_w = table.numbers(name)[list(rows)] if name is not None else np.zeros(0)
    highest_w = float(np.nanmax(caps_w, initial=0.0))
    if not highest_w:
        raise ConfigError(f"the cost needs the maximum power of the GPU: give --max-power W, or a column {CAPS_W[1]}")
    notes.append(f"maximum power {highest_w:g} W is the highest {name}; --max-power W gives another")
    return highest_w
