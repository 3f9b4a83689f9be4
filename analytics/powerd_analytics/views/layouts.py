"""Layouts: the tables that are made of a frame, one function each.

`run_tables` are those of one run as it was recorded, `field_tables` those that papers of the field print: time and
energy by phase, totals, GFLOPS/W with averages and gain. `chosen_tables` makes those that a command asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from powerd_analytics.energy.metrics import J_PER_KWH
from powerd_analytics.frame.accuracy_target import accuracy_table, results_in
from powerd_analytics.frame.costs import Factors, with_costs
from powerd_analytics.frame.figure import Record, figure_of
from powerd_analytics.frame.figures import (
    ATTRIBUTE,
    COLUMNS,
    Frame,
    attributes_in,
    column,
    dimension,
    factors_in,
    of_kind,
    rows_of,
    rows_where,
    shared_notes,
    table_from,
)
from powerd_analytics.frame.repeats import average_repeats
from powerd_analytics.frame.trainings import Length, with_sums, without_summands, without_sums
from powerd_analytics.output.export import Column, Table, make_table, with_provenance
from powerd_analytics.run_tables.table import NOT_OF_SAMPLES
from powerd_analytics.runs.accuracy import ResultTarget
from powerd_analytics.runs.phases import LAYER
from powerd_analytics.runs.settings import ENFORCED
from powerd_analytics.views.pivots import CONVENTION, U95, PivotRequest, gain_table, make_pivot, pivot_table
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.verdict import CLOCK_STEP_MHZ, verdicts_in

if TYPE_CHECKING:
    from powerd_analytics.views.cards import Cards

# -- one run -----------------------------------------------------------------------------------------------------------

_WH = Column("energy_wh", "number", "Wh", heading="Wh", sign="≥")
_OF_ONE_RUN = (
    ("phases", "Phases", ("phase",), ("phase", "device", "n", "s_per_batch", "sd_s", "j_per_batch", "u95_j", "sd_j",
      "power_w", "samples_per_s", "j_per_sample", "samples_per_j", "tokens_per_s", "j_per_token", "tokens_per_j",
      "is_lower_bound", "note")),
    ("totals", "Totals", ("total",), ("device", "iterations", "time_s", "energy_j", "u95_j", "energy_wh", "power_w",
      "edp_js", "ed2p_js2", "eds", "samples_per_s", "j_per_sample", "samples_per_j", "tokens_per_s", "j_per_token",
      "tokens_per_j", "gflops_per_w", "gflops_per_w_executed", "rest_j", "rest_u95_j", "is_lower_bound", "note")),
    ("run", "Run: phases + rest = whole", ("run",), ("device", "time_s", "energy_j", "u95_j", "energy_wh",
      "power_w", "phases_j", "rest_j", "rest_u95_j", "missing_s", "is_lower_bound", "note")),
    ("above_idle", "Above idle, beside the whole", ("phase", "total", "run"), ("what", "device", "joules", "idle_w",
      "idle_j", "above_idle_j", "above_idle_u95_j", "is_lower_bound")),
)  # fmt: skip
"""Name, title, the kinds of rows that are in it, and its columns."""
_WHAT = {"phase": "{} (mean)", "total": "all of the group", "run": "run"}


def run_tables(frame: Frame) -> list[Table]:
    """The tables of one run that have rows. Layers are a matter of `joules tables --table layers`."""
    layer = f"{ATTRIBUTE}{LAYER}"
    own = frame[frame[layer].isna()].reset_index(drop=True) if layer in frame else frame
    settings = ["model", "batch_size", *(n for n in attributes_in(own) if n != layer and own[n].notna().any())]
    settings += ["power_cap_w"] if own["power_cap_w"].nunique() > 1 else []
    tables = []
    for name, title, kinds, shown in _OF_ONE_RUN:
        rows = [_of_one_run(r) for r in rows_of(of_kind(own, *kinds))]
        rows = [r for r in rows if name != "above_idle" or r.get("above_idle_j") is not None]
        if rows:
            of_group = settings if kinds != ("run",) else []
            tables.append(make_table(name, title, [_shown(n) for n in (*of_group, *shown)], rows))
    if tables:
        meaning = "± U95: half of the 95 % interval, in joules; sd: spread of the single phases"
        convention = (CONVENTION,) if own["gflops_per_w"].notna().any() else ()
        last = tables[-1]
        tables[-1] = replace(last, notes=(*last.notes, meaning, *convention))
    return [with_provenance(table, own["provenance"].dropna()) for table in tables]


def _shown(name: str) -> Column:
    own = {"energy_wh": _WH, "what": Column("what", heading="phase"), "device": Column("device", heading="device")}
    own["device"] = replace(own["device"], is_setting=True)
    own["joules"] = Column("joules", "number", "J", heading="J", sign="≥")
    found = own.get(name) or column(name)
    return replace(found, missing="n.r.") if name in ("j_per_batch", "energy_j") else found


def _of_one_run(r: Record) -> Record:
    energy_j, idle_j, above_j = r["energy_j"], r.get("idle_j"), r.get("above_idle_j")
    basis = f"GFLOPS/W over the joules of {r['gflops_basis']}" if r["gflops_basis"] and r["kind"] == "total" else ""
    timing = f"timed {r['timing']}" if r["timing"] not in (None, "", "host") else ""
    return r | {
        "device": f"{r['device']} ({r['provenance']})",
        "what": _WHAT[str(r["kind"])].format(r["phase"]),
        "samples_per_s": None if r["phase"] in NOT_OF_SAMPLES else r["samples_per_s"],
        "joules": idle_j + above_j if isinstance(idle_j, float) and isinstance(above_j, float) else None,
        "energy_wh": energy_j * 1e3 / J_PER_KWH if isinstance(energy_j, float) else None,
        "note": "; ".join(str(text) for text in (basis, r["note"], timing) if text),
    }


# -- what a command asks for -------------------------------------------------------------------------------------------


def pair_of(gain: str | None) -> tuple[str, str] | None:
    """The two products of ``A,B``. Raises `ConfigError`."""
    names = [name.strip() for name in (gain or "").split(",")]
    if gain is not None and (len(names) != 2 or not all(names) or names[0] == names[1]):
        raise ConfigError(f"--gain {gain}: name two products, as in maxwell,pascal")
    return None if gain is None else (names[0], names[1])


@dataclass(frozen=True, slots=True)
class TableChoice:
    """What to make of a frame."""

    names: tuple[str, ...] = ()
    """Tables by name; all that suit the output without."""
    conditions: tuple[str, ...] = ()
    """``COLUMN=VALUE`` that every row must fulfil."""
    pivot: PivotRequest | None = None
    averages: bool = False
    length: Length = field(default_factory=Length)
    gain: tuple[str, str] | None = None
    factors: Factors = field(default_factory=Factors)
    ignore: tuple[str, ...] = ()
    """Settings and attributes that do not part cells."""
    target: ResultTarget | None = None
    """Totals of the frame end where it is reached: `accuracy` is then the only table."""
    weights: Mapping[str, float] | None = None
    """Of results, for a weighted average in `accuracy`."""
    cards: Cards | None = None
    """For the table `cards`, which is made where it is asked for, as `wall` is."""


def chosen_tables(frame: Frame, choice: TableChoice) -> list[Table]:
    """The tables of a frame that are asked for; all of them where none is.

    Raises `AnalysisError` where one cannot be made, saying why.
    """
    if any(condition.startswith("verdict") for condition in choice.conditions):
        notes: tuple[str, ...] = ()
    else:
        frame, notes = without_violated(frame)
    chosen = rows_where(with_sums(frame, choice.length), choice.conditions)
    kinds, shared = set(chosen["provenance"].dropna()), shared_notes(chosen)
    tables = [with_provenance(table, kinds) for table in _tables(chosen, choice)]
    return [replace(t, notes=(*t.notes, *shared, *(notes if i == 0 else ()))) for i, t in enumerate(tables)]


def without_violated(frame: Frame) -> tuple[Frame, tuple[str, ...]]:
    """The frame without runs whose settings were asked for and not honoured, and a note on those that are left out. Of
    a run in which the cap changed, those of its caps.

    Raises `AnalysisError` where nothing is left.
    """
    is_violated = frame["verdict"].fillna("").map(lambda text: any(v.is_violated for v in verdicts_in(text)))
    failed = frame[frame["is_held"].fillna(False).astype(bool) & is_violated.astype(bool)]
    if failed.empty:
        return frame, ()
    keys = ["path", "power_cap_in_run"]
    left_out = frame[keys].fillna("").apply(tuple, axis=1).isin(set(failed[keys].fillna("").apply(tuple, axis=1)))
    reasons = {
        f"{r['run']} {r['device']}: {r['verdict']}{' (' + str(r['verdict_note']) + ')' if r['verdict_note'] else ''}"
        for r in rows_of(failed)
    }
    note = f"left out, since their settings were not honoured: {'; '.join(sorted(reasons))}"
    if left_out.all():
        raise AnalysisError(f"nothing is left of these runs: {note}; `--where verdict=...` shows them")
    return frame[~left_out].reset_index(drop=True), (note,)


def _tables(frame: Frame, choice: TableChoice) -> list[Table]:
    ignore = tuple(dimension(name, frame) for name in choice.ignore)
    if choice.pivot is not None:
        pivot = make_pivot(frame, choice.pivot, ignore)
        tables = [pivot_table(pivot, averages=choice.averages)]
        if choice.gain is not None:
            by = next((n for n in ("device_name", "device") if n in pivot.column_names), None)
            if by is None:
                raise ConfigError("--gain needs device_name or device among the columns of the pivot")
            gain = gain_table(pivot, by, choice.gain)
            if gain is None:
                raise AnalysisError(f"nothing was run on both {' and '.join(choice.gain)} in the same way")
            tables.append(gain)
        return tables
    if choice.target is not None:
        tables = [_accuracy(frame, choice, ignore)]
    else:
        tables = field_tables(frame, choice.gain, choice.factors, ignore)
        tables += [_accuracy(frame, choice, ignore)] if results_in(frame) else []
    makers: dict[str, Callable[[Frame], Table | None]] = {"cards": partial(_cards, cards=choice.cards), "wall": _wall}
    asked = [
        makers[name](average_repeats(without_sums(frame), ignore=ignore)) for name in choice.names if name in makers
    ]
    others = [*rank_tables(frame), *(table for table in asked if table is not None)]
    known = {table.name: table for table in [*tables, *others]}
    if missing := [name for name in choice.names if name not in known]:
        raise AnalysisError(f"no table {missing[0]!r} can be made of these runs: there is {', '.join(known)}")
    return [known[name] for name in choice.names] or tables


def _wall(frame: Frame) -> Table | None:
    from powerd_analytics.views.wall import wall_table

    return wall_table(frame)


def _cards(frame: Frame, *, cards: Cards | None) -> Table | None:
    from powerd_analytics.views.cards import Cards, cards_table

    return cards_table(frame, cards or Cards())


def _accuracy(frame: Frame, choice: TableChoice, ignore: Sequence[str]) -> Table:
    if unknown := [name for name in choice.weights or () if name not in results_in(frame)]:
        there = ", ".join(results_in(frame)) or "none"
        raise AnalysisError(f"--weights {unknown[0]}: no run has such a result; there is {there}")
    own = without_summands(of_kind(frame, "total"))
    return accuracy_table(_in_order(average_repeats(own, ignore=ignore)), own, choice.target, choice.weights)


# -- the tables of the field -------------------------------------------------------------------------------------------

_ALWAYS = ("model", "device", "gpus", "batch_size")
_VARYING = ("host", "program", "device_name", "power_cap_w", "clock_hz", "memory_clock_hz", "timing")
"""Shown only where they tell rows apart, as attributes are."""
_ORDER = ("model", "device_name", "device", "provenance", "host", "power_cap_w", "clock_hz", "memory_clock_hz",
          "gpus", "batch_size")  # fmt: skip
_OF_TRAINING = ["iterations", "time_s", "energy_j", "u95_j", "power_w", "edp_js", "u95_edp_js"]
_OF_A_SAMPLE = ["s_per_sample", "j_per_sample", "u95_j_per_sample", "power_w", "edp_per_sample_js",
                "u95_edp_per_sample_js"]  # fmt: skip


def field_tables(
    frame: Frame, gain: tuple[str, str] | None = None, factors: Factors | None = None, ignore: Sequence[str] = ()
) -> list[Table]:
    """All tables of a frame of `with_sums`: time, energy, totals, GFLOPS/W with averages and gain, and all rows for
    programs. Those for which nothing is known are left out."""
    factors = factors or Factors()
    figures = of_kind(frame, "phase", "total")
    every = average_repeats(frame, ignore=ignore)
    means = with_costs(_in_order(of_kind(every, "phase", "total")), factors)
    is_whole = "s_per_training" in frame
    # Of trainings over several machines seconds are the mean over the ranks, beside the fastest and the slowest.
    spread = ["s_per_batch_min", "s_per_batch_max"] if figures["machines"].notna().any() else []
    clocks = _measured_clocks(means)
    has_tokens = figures["j_per_token"].notna().any()
    rates = ["samples_per_s", "tokens_per_s"] if has_tokens else ["samples_per_s"]
    time = ["s_per_batch", "u95_s_per_batch", *spread, *rates, *clocks]
    of_tokens = ["j_per_token", "u95_j_per_token"] if has_tokens else []
    energy = ["j_per_batch", "u95_j_per_batch", *of_tokens, "power_w", *clocks]
    if is_whole:
        time.append("s_per_training")
        energy += ["j_per_training", "u95_j_per_training", *factors.columns]
    tables = [
        _long("time", "Time by phase", means, time),
        _long("energy", "Energy by phase", means, energy, factors.notes if is_whole else ()),
        _totals(means, factors, is_whole=is_whole),
        *_efficiency_tables(frame, gain, ignore),
        records_table(with_costs(every, factors), factors.notes),
    ]
    return [table for table in tables if len(table)]


def records_table(frame: Frame, notes: Sequence[str] = ()) -> Table:
    """All rows and columns of a frame, for programs."""
    return table_from(frame, "records", "Records", list(frame.columns), notes)


def _totals(means: Frame, factors: Factors, *, is_whole: bool) -> Table:
    """Totals of equal work as a whole; of unequal work, what a sample takes: wholes of other work do not compare."""
    totals = of_kind(means, "total")
    # What a model was trained on: samples, of all ranks, where they are known, else iterations.
    samples = totals["samples_per_s"] * totals["time_s"]
    work = samples.fillna(totals["iterations"].astype("float64")).round()
    compared = totals["batch_size"].notna() | totals["batch_size"].isna().all()
    is_equal = is_whole or bool((work[compared].groupby(totals["model"].fillna("")).nunique() <= 1).all())
    figures = [*_OF_TRAINING, *factors.columns] if is_equal else ["iterations", *_OF_A_SAMPLE]
    if totals["j_per_token"].notna().any():
        figures += ["tokens_per_s", "j_per_token", "u95_j_per_token"]
    figures += ["samples_per_s", "gflops_per_w", "u95_gflops_per_w", "gflops_basis"]
    figures += _measured_clocks(totals) + (["verdict"] if totals["is_held"].fillna(False).any() else [])
    notes = factors.notes
    title = "Totals of the whole training" if is_whole else "Totals of what was recorded"
    if not is_equal:
        title = "Totals by the sample"
        notes = ("rows are of unequal work: figures are of a sample; --iterations or --epochs make trainings of them",)
    bases = list(dict.fromkeys(totals["gflops_basis"].dropna()))
    table = _long("totals", title, totals, figures, notes, phases=False)
    if len(bases) != 1:
        return table
    columns = tuple(replace(c, is_hidden=c.is_hidden or c.name == "gflops_basis") for c in table.columns)
    return replace(table, columns=columns, notes=(*table.notes, f"GFLOPS/W: over the joules of {bases[0]}"))


def _measured_clocks(frame: Frame) -> list[str]:
    """The columns of clocks that were measured beside those that were locked, where a lock was not reached: a cap may
    hold a clock below it."""
    off = {
        name: (frame[f"{name}_basis"] == ENFORCED)
        & ((frame[f"{name}_observed_hz"] - frame[f"{name}_hz"]).abs() > 1e6 * CLOCK_STEP_MHZ)
        for name in ("clock", "memory_clock")
    }
    return [f"{name}_observed_hz" for name, is_off in off.items() if is_off.fillna(False).any()]


def _efficiency_tables(frame: Frame, gain: tuple[str, str] | None, ignore: Sequence[str]) -> list[Table]:
    """GFLOPS/W by model and batch size, device and number of GPUs, with averages; and the gain between two devices."""
    totals = of_kind(frame, "total")
    # Without the single GPUs of those that are there added up.
    totals = without_summands(totals[totals["gflops_per_w"].notna()])
    if totals.empty:
        if gain is not None:
            raise AnalysisError(
                "no GFLOPS/W, so no gain: phases need the attributes batch_size and operations_per_sample"
            )
        return []
    totals["device_name"] = totals["device_name"].fillna(totals["device"])
    pivot = make_pivot(totals, PivotRequest(("model", "batch_size"), ("device_name", "gpus"), "gflops_per_w"), ignore)
    bases = dict.fromkeys(totals["gflops_basis"].dropna())
    title = f"GFLOPS/W, operations by the paper's convention over the joules of {' or '.join(bases)}"
    gained = gain_table(pivot, "device_name", gain)
    return [pivot_table(pivot, name="efficiency", title=title, averages=True), *([] if gained is None else [gained])]


def _long(
    name: str, title: str, frame: Frame, figures: Sequence[str], notes: Sequence[str] = (), *, phases: bool = True
) -> Table:
    """A table with one row a row: what it is of, the figures, how many runs it is the mean of, provenance, note."""
    of_phases = frame[frame["kind"] == "phase"]
    varying = [n for n in _VARYING if (of_phases if n == "timing" else frame)[n].nunique(dropna=False) > 1]
    varying += [n for n in factors_in(frame) if frame[n].nunique(dropna=False) > 1]
    names = [*_ALWAYS, *varying, *(["phase_path" if _path_needed(of_phases) else "phase"] if phases else [])]
    repeats = ["runs"] if (frame["runs"] > 1).any() else []
    names += [*figures, *repeats, "provenance", "is_lower_bound", "note"]
    meanings = [U95]
    meanings += ["± U95 of the seconds of one run: by the spread of its phases"] if "u95_s_per_batch" in names else []
    meanings += [CONVENTION] if "gflops_per_w" in names and frame["gflops_per_w"].notna().any() else []
    columns = [column(n) for n in names]
    if not frame["is_iteration"].fillna(False).any() and frame["batch_size"].isna().all() and phases:
        columns = [replace(c, heading=c.heading.replace("/batch", " each")) for c in columns]
    return make_table(name, title, columns, [_with_u95(r, names) for r in rows_of(frame)], (*meanings, *notes))


def _with_u95(row: Record, names: Sequence[str]) -> Record:
    """A row with what columns of uncertainty ask for, and the name of a total among phases."""
    more: Record = {}
    for name in names:
        if name.startswith("u95_") and name not in row:
            figure = figure_of(row, name.removeprefix("u95_"))
            more[name] = figure.u95 if figure else None
    of_all = {n: "all" for n in ("phase", "phase_path") if row["kind"] == "total"}
    no_samples = {"samples_per_s": None} if row["phase"] in NOT_OF_SAMPLES else {}
    return row | more | of_all | no_samples


def _path_needed(phases: Frame) -> bool:
    """Whether phases of one name at different places are among the rows."""
    keys = [*_ORDER, *factors_in(phases), "phase"]
    return bool((phases.groupby(keys, dropna=False)["phase_path"].nunique() > 1).any())


def _in_order(frame: Frame) -> Frame:
    """By model, device, settings, GPUs and batch size; phases in the order of the runs, totals behind theirs."""
    ranks = {}
    for name in (*_ORDER, "phase_path"):
        values = frame[name]
        is_text = COLUMNS[name].kind == "text"
        order = {value: float(i) for i, value in enumerate(dict.fromkeys(values.dropna()))}
        ranks[name] = (values.map(order) if is_text else values).astype("float64").fillna(-1.0)
    keys = frame[["kind"]].assign(**ranks, last=(frame["kind"] == "total").astype(float))
    ordered = keys.sort_values([*_ORDER, "last", "phase_path"], kind="stable").index
    return frame.loc[ordered].reset_index(drop=True)


# -- ranks -------------------------------------------------------------------------------------------------------------


def rank_tables(frame: Frame) -> list[Table]:
    """The table ``ranks``: seconds of each rank by phase, where a training is over several machines."""
    ranks = of_kind(frame, "rank")
    ranks = ranks[ranks["phase"].notna()]
    names = ("run", "host", "rank", "phase_path", "iterations", "s_per_batch")
    return [table_from(ranks, "ranks", "Seconds of each rank", names)] if len(ranks) else []
