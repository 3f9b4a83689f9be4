"""Tables of what a campaign compares: the best settings, where they beat the reference, and how they scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from powerd_analytics.campaigns.cell_tables import factor_columns
from powerd_analytics.campaigns.design import GPUS, KNOBS, MODEL, Cell, Design
from powerd_analytics.campaigns.groups import (
    CORE,
    MEMORY,
    Group,
    Scaled,
    Scaling,
    chosen,
    groups_of,
    marginals,
    scalings,
    setting_text,
    spans,
)
from powerd_analytics.campaigns.journal import History
from powerd_analytics.campaigns.results import METRICS, CellFigures, Mean, measured
from powerd_analytics.export import Cell as TableCell
from powerd_analytics.export import Column, Table, make_table
from powerd_analytics.metrics import edp_js

SML = "SML"
LEAST = {"e": "E", "t": "time", "edp": "EDP", "ed2p": "ED2P", "eds:2": "EDS k=2", "eds:1.5": "EDS k=1.5"}
_OF_MINIMA = ("e", "edp", "eds:2", "eds:1.5")
_BATCH = ("batch_size", "batch")
_SHORT = {"power_cap_w": "cap", "sm_clock_mhz": "SM clock", "mem_clock_mhz": "memory clock", "batch_size": "batch"}


def minima_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """For each group the reference and the best cells by energy, EDP and EDS, as Krzywaniak et al. print them: watts,
    joules and seconds, and what they are off the reference."""
    knobs = [name for name in design.factors if name in KNOBS]
    others = [c for c in factor_columns(design) if c.name not in KNOBS]
    is_thousands = any(f.energy_j.value >= 1e5 for f in figures)
    per = "/sample" if any(f.is_per_sample for f in figures) else ""
    columns = [
        *others, Column("target", heading="least"), *(c for c in factor_columns(design) if c.name in KNOBS),
        Column("power_w", "number", "W", heading="W"),
        Column("energy_j", "number", "J", heading=f"{'kJ' if is_thousands else 'J'}{per}",
               per=1e3 if is_thousands else 1.0),
        Column("energy_pct", "number", "%", heading="Δ %"), Column("time_s", "number", "s", heading=f"s{per}"),
        Column("time_pct", "number", "%", heading="Δ %"),
        Column("gain_pct", "number", "%", "by how much the metric is below the reference's", "gain %"),
        Column("as_good", heading="as good"),
    ]  # fmt: skip
    by_id = {f.cell.id: f for f in figures}
    rows: list[dict[str, TableCell]] = []
    for group in groups_of(design, history) if knobs else ():
        if len(group.cells) < 2:
            continue
        if group.reference is not None:
            rows.append(dict(group.levels) | {"target": "reference"} | _minimum(group, group.reference, by_id, ()))
        for metric in _OF_MINIMA:
            if group.reference is None and metric.startswith("eds"):
                continue
            best = chosen(design, group, metric)
            row = dict(group.levels) | {"target": LEAST[metric]}
            rows.append(row | _minimum(group, best.cell, by_id, best.as_good, knobs))
            if (mean := by_id[best.cell.id].ratios.get(metric)) is not None:
                rows[-1]["gain_pct"] = 100 * (1 - mean.value)
            if metric == "eds:2" and by_id[best.cell.id].ratios:  # the saving minus the loss is twice its gain
                rows.append(rows[-1] | {"target": SML, "gain_pct": 2 * float(str(rows[-1]["gain_pct"]))})
    notes = ["Δ %: off the reference, block by block", "as good: settings that cannot be told from the least"]
    notes += [f"{SML}: saving of energy minus loss of time"] if any(row["target"] == SML for row in rows) else []
    return make_table("minima", f"Best settings of {design.name}", columns, rows, notes if rows else ())


def _minimum(
    group: Group, cell: Cell, by_id: Mapping[str, CellFigures], as_good: Sequence[Cell], knobs: Sequence[str] = ()
) -> dict[str, TableCell]:
    f = by_id[cell.id]
    row: dict[str, TableCell] = {
        **{n: v for n, v in cell.levels.items() if n in KNOBS},
        "power_w": f.power_w, "energy_j": f.energy_j.value, "time_s": f.time_s.value,
    }  # fmt: skip
    if f.ratios:
        row |= {"energy_pct": 100 * (f.ratios["e"].value - 1), "time_pct": 100 * (f.ratios["t"].value - 1)}
    texts = [spans(as_good, (*group.cells, *as_good), knob) for knob in knobs]
    row["as_good"] = "; ".join(texts).replace(" to ", "–")
    return row


def ranges_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """For each group and metric the levels at which it is better than at the reference, and those at which that cannot
    be told. One knob only."""
    knobs = [name for name in design.factors if name in KNOBS]
    others = [c for c in factor_columns(design) if c.name not in KNOBS]
    columns = [*others, Column("metric"), Column("better", heading="better"), Column("maybe", heading="cannot be told")]
    rows: list[dict[str, TableCell]] = []
    by_id = {f.cell.id: f for f in figures}
    for group in groups_of(design, history) if len(knobs) == 1 and design.reference else ():
        for metric in METRICS:
            ratios = {cell: by_id[cell.id].ratios.get(metric) for cell in group.cells if cell != group.reference}
            better = [cell for cell, m in ratios.items() if m is not None and _is_below(m)]
            maybe = [c for c, m in ratios.items() if m is not None and c not in better and m.value - (m.u95 or inf) < 1]
            texts = {"better": spans(better, group.cells, knobs[0]), "maybe": spans(maybe, group.cells, knobs[0])}
            rows.append(
                dict(group.levels) | {"metric": LEAST[metric]} | {n: text or "none" for n, text in texts.items()}
            )
    return make_table("ranges", f"Where {design.name} beats its reference", columns, rows)


def _is_below(mean: Mean) -> bool:
    return mean.value + (mean.u95 if mean.u95 is not None else inf) < 1


# -- several GPUs ------------------------------------------------------------------------------------------------------


def scaling_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """For each number of GPUs its speed-up and efficiency, at the reference and at one other setting, and the most
    energy that a setting saves, as Koszczal et al. compare them."""
    others = [c for c in factor_columns(design) if c.name not in (*KNOBS, GPUS)]
    columns = [
        *others, Column(GPUS, "integer", "1", heading="GPUs"), Column("time_s", "number", "s", heading="s"),
        Column("speed_up", "number", "1", heading="speed-up"),
        Column("u95_speed_up", "number", "1", heading="± U95", is_uncertainty=True),
        Column("efficiency_pct", "number", "%", heading="efficiency %"),
        Column("speed_up_set", "number", "1", "speed-up at the setting that the note names", "speed-up, set"),
        *(c for c in factor_columns(design) if c.name in KNOBS),
        Column("saving_pct", "number", "%", heading="saves %"),
        Column("u95_saving_pct", "number", "%", heading="± U95", is_uncertainty=True),
        Column("time_pct", "number", "%", heading="time Δ %"),
    ]  # fmt: skip
    rows: list[dict[str, TableCell]] = []
    notes = []
    for scaling in scalings(design, history):
        rows += [_scaled(row, scaling) for row in scaling.rows]
        notes.append(f"set: at {setting_text(scaling.at)}, the least EDP on {scaling.rows[-1].gpus} GPUs")
    notes += ["saves: the most energy that a setting saves against the reference on as many GPUs"] if rows else []
    return make_table("scaling", f"GPUs of {design.name}", columns, rows, list(dict.fromkeys(notes)))


def _scaled(row: Scaled, scaling: Scaling) -> dict[str, TableCell]:
    return {
        **scaling.levels, **{n: level for n, level in row.best.levels.items() if n in KNOBS},
        GPUS: row.gpus, "time_s": row.time_s, "speed_up": row.speed_up.value, "u95_speed_up": row.speed_up.u95,
        "efficiency_pct": 100 * row.speed_up.value * scaling.rows[0].gpus / row.gpus,
        "speed_up_set": row.speed_up_set.value, "time_pct": 100 * (row.time.value - 1),
        "saving_pct": 100 * (1 - row.energy.value),
        "u95_saving_pct": None if row.energy.u95 is None else 100 * row.energy.u95,
    }  # fmt: skip


# -- clocks ------------------------------------------------------------------------------------------------------------


def marginals_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """What each clock does to speed, power and energy, as Tang et al. average them: the geometric mean over all other
    factors."""
    columns = [
        Column("knob"), Column("level_mhz", "number", "MHz", heading="MHz"),
        Column("speed_ratio", "number", "1", heading="speed"), Column("power_ratio", "number", "1", heading="power"),
        Column("e_ratio", "number", "1", heading="E"),
        Column("u95_e_ratio", "number", "1", heading="± U95", is_uncertainty=True),
    ]  # fmt: skip
    groups = groups_of(design, history)
    rows: list[dict[str, TableCell]] = [
        {
            "knob": name, "level_mhz": m.level, "speed_ratio": 1 / m.time.value,
            "power_ratio": m.energy.value / m.time.value, "e_ratio": m.energy.value, "u95_e_ratio": m.energy.u95,
        }
        for knob, name in ((CORE, "SM clock"), (MEMORY, "memory clock"))
        for m in marginals(design, groups, knob)
    ]  # fmt: skip
    notes = ["of those at the reference clock: the geometric mean over all other factors"] if rows else []
    return make_table("marginals", f"Clocks of {design.name}", columns, rows, notes)


def optimum_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """For each model, and for all together, the SM clock of the least energy and what it saves, as tables III and IV of
    Tang et al.: the geometric mean over batch sizes and memory clocks."""
    others = [c for c in factor_columns(design) if c.name not in (*KNOBS, MODEL, *_BATCH)]
    columns = [
        *others, Column("model"), Column(CORE, "number", "MHz", heading="SM MHz"),
        Column("saving_pct", "number", "%", heading="saves %"),
        Column("u95_saving_pct", "number", "%", heading="± U95", is_uncertainty=True),
        Column("time_pct", "number", "%", heading="time Δ %"),
    ]  # fmt: skip
    alike: dict[tuple[TableCell, ...], list[Group]] = {}
    for group in groups_of(design, history):
        alike.setdefault(tuple(group.levels.get(c.name) for c in others), []).append(group)
    rows: list[dict[str, TableCell]] = []
    for levels, groups in alike.items():
        models = list(dict.fromkeys(group.levels.get(MODEL) for group in groups))
        for model in [*models, *(["all"] if len(models) > 1 else [])]:
            own = [group for group in groups if model in (group.levels.get(MODEL), "all")]
            if found := marginals(design, own, CORE):
                best = min(found, key=lambda m: m.energy.value)
                rows.append({
                    **dict(zip((c.name for c in others), levels, strict=True)), "model": model, CORE: best.level,
                    "saving_pct": 100 * (1 - best.energy.value),
                    "u95_saving_pct": None if best.energy.u95 is None else 100 * best.energy.u95,
                    "time_pct": 100 * (best.time.value - 1),
                })  # fmt: skip
    return make_table("optimum", f"Best SM clocks of {design.name}", columns, rows)


# -- knobs that are chosen together ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Saving:
    """The most that is saved against the reference where only some factors may change."""

    model: str
    free: tuple[str, ...]
    cell: Cell
    energy: Mean
    time: Mean


def savings(design: Design, figures: Sequence[CellFigures]) -> list[Saving]:
    """By model: what each factor of the reference saves alone, and what all of them save together. None where the
    reference names knobs alone, or one factor."""
    names = tuple(design.reference)
    by_model: dict[str, list[CellFigures]] = {}
    for f in figures:
        if f.ratios:
            by_model.setdefault(str(f.cell.levels.get(MODEL, "")), []).append(f)
    found = []
    if len(names) < 2 or set(names) <= set(KNOBS):
        return []
    for model, own in by_model.items():
        for free in (*((name,) for name in names), names):
            fixed = [name for name in names if name not in free]
            may = [f for f in own if all(f.cell.levels[n] == _reference(design, f.cell)[n] for n in fixed)]
            best = min(may, key=lambda f: f.ratios["e"].value)
            found.append(Saving(model, free, best.cell, best.ratios["e"], best.ratios["t"]))
    return found


def _reference(design: Design, cell: Cell) -> Mapping[str, TableCell]:
    return design.reference_levels(cell.levels) or {}


def savings_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """What choosing one knob saves, and what choosing all of them does, as the evaluation of Zeus has it."""
    columns = [
        Column("model"), Column("chosen"),
        *(c for c in factor_columns(design) if c.name in design.reference),
        Column("saving_pct", "number", "%", heading="saves %"),
        Column("u95_saving_pct", "number", "%", heading="± U95", is_uncertainty=True),
        Column("time_pct", "number", "%", heading="time Δ %"),
    ]  # fmt: skip
    rows: list[dict[str, TableCell]] = [
        {
            "model": s.model or None, "chosen": " and ".join(_SHORT.get(name, name) for name in s.free),
            **{name: s.cell.levels[name] for name in design.reference},
            "saving_pct": 100 * (1 - s.energy.value),
            "u95_saving_pct": None if s.energy.u95 is None else 100 * s.energy.u95,
            "time_pct": 100 * (s.time.value - 1),
        }
        for s in savings(design, figures)
    ]  # fmt: skip
    return make_table("savings", f"What each knob of {design.name} saves", columns, rows)


# -- one instrument, several cards -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Whole:
    """A machine of several cards of which one of each kind was measured."""

    levels: Mapping[str, TableCell]
    """Without the factor that the instrument is moved over."""
    cards: Mapping[str, int]
    time_s: Mean
    """Of the slowest kind: all wait for it."""
    energy_j: Mean
    edp_js: float


def wholes(design: Design, figures: Sequence[CellFigures]) -> list[Whole]:
    """Machines by what one card of each kind took: joules times cards. The cards that were not measured may differ from
    their like by `Instrument.spread`."""
    of, found = design.instrument, []
    together: dict[tuple[tuple[str, TableCell], ...], dict[str, CellFigures]] = {}
    for f in figures:
        rest = tuple((n, v) for n, v in f.cell.levels.items() if n != of.moved_over)
        together.setdefault(rest, {})[str(f.cell.levels.get(of.moved_over))] = f
    for levels, kinds in together.items() if of.moved_over else ():
        gpus = dict(levels).get(GPUS, 1)
        is_mixed = of.mixed and gpus == sum(of.mixed.values())
        if is_mixed and set(of.mixed) <= set(kinds):
            found.append(_whole(of.spread, dict(levels), kinds, of.mixed))
        elif not is_mixed:
            found += [_whole(of.spread, dict(levels), kinds, {kind: int(str(gpus))}) for kind in kinds]
    return found


def _whole(
    spread: float, levels: Mapping[str, TableCell], kinds: Mapping[str, CellFigures], cards: Mapping[str, int]
) -> Whole:
    own = {kind: kinds[kind] for kind in cards}
    slowest = max(own.values(), key=lambda f: f.time_s.value)
    energy = sum(n * own[kind].energy_j.value for kind, n in cards.items())
    # A card stands for n: its own deviation counts n - 1 times, those of the others once each.
    of_spread = [spread * own[kind].energy_j.value * sqrt(n * (n - 1)) for kind, n in cards.items()]
    of_runs = [n * (own[kind].energy_j.u95 or 0.0) for kind, n in cards.items()]
    u95 = sqrt(sum(u * u for u in of_runs) + sum((2 * u) ** 2 for u in of_spread))
    time = slowest.time_s
    return Whole(levels, cards, time, Mean(energy, u95), edp_js(energy, time.value))


def machines_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """Batches, seconds, joules and EDP of whole machines, as tables 3 and 6 of Castro et al."""
    others = [c for c in factor_columns(design) if c.name not in (design.instrument.moved_over, GPUS)]
    columns = [
        *others, Column("cards"), Column("batches", "integer", "1"), Column("time_s", "number", "s", heading="s"),
        Column("energy_j", "number", "J", heading="kJ", per=1e3),
        Column("u95_j", "number", "J", heading="± U95", per=1e3, is_uncertainty=True),
        Column("edp_js", "number", "J s", heading="EDP (MJ s)", per=1e6),
    ]  # fmt: skip
    batches: dict[tuple[TableCell, ...], int] = {}
    for m in measured(design, history):
        levels = m.item.cell.levels
        batch = next((levels[name] for name in _BATCH if name in levels), None)
        if m.result.samples and isinstance(batch, int | float):
            batches[tuple(levels.get(c.name) for c in others)] = round(m.result.samples / batch)
    rows: list[dict[str, TableCell]] = [
        {
            **{c.name: w.levels[c.name] for c in others},
            "cards": " + ".join(f"{n} {kind}" for kind, n in w.cards.items()), "time_s": w.time_s.value,
            "batches": batches.get(tuple(w.levels.get(c.name) for c in others)),
            "energy_j": w.energy_j.value, "u95_j": w.energy_j.u95, "edp_js": w.edp_js,
        }
        for w in wholes(design, figures)
    ]  # fmt: skip
    notes = ["joules of one card of each kind, times the cards"] if rows else []
    return make_table("machines", f"Machines of {design.name}", columns, rows, notes)


# -- what idles --------------------------------------------------------------------------------------------------------


def floor_table(design: Design, history: History, figures: Sequence[CellFigures]) -> Table:
    """Joules of a cell, and how many of them the machine would have drawn while it idled for as long: at the reference
    and where the least energy is. What idles is paid for longer at a low cap."""
    columns = [
        *(c for c in factor_columns(design) if c.name not in KNOBS), Column("at"),
        *(c for c in factor_columns(design) if c.name in KNOBS), Column("time_s", "number", "s", heading="s"),
        Column("energy_j", "number", "J", heading="kJ", per=1e3),
        Column("floor_j", "number", "J", heading="idle floor kJ", per=1e3),
        Column("rest_j", "number", "J", heading="above it kJ", per=1e3),
        Column("floor_pct", "number", "%", heading="floor %"),
    ]  # fmt: skip
    by_id = {f.cell.id: f for f in figures}
    rows: list[dict[str, TableCell]] = []
    for group in groups_of(design, history) if design.idle_w is not None else ():
        if group.reference is None:
            continue
        for name, cell in (("reference", group.reference), ("least E", chosen(design, group, "e").cell)):
            energy, floor = by_id[cell.id].energy_j.value, floor_j(design, by_id[cell.id])
            rows.append({
                **cell.levels, "at": name, "time_s": by_id[cell.id].time_s.value, "energy_j": energy,
                "floor_j": floor, "rest_j": energy - floor, "floor_pct": 100 * floor / energy,
            })  # fmt: skip
    return make_table("floor", f"Idle floor of {design.name}", columns, rows)


def floor_j(design: Design, f: CellFigures) -> float:
    """Joules that idling for as long as a run of a cell would have taken."""
    return (design.idle_w or 0.0) * f.time_s.value
