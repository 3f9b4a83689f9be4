"""Tables of what a campaign compares: the best settings, where they beat the reference, and how they scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, log

from powerd_analytics.campaign_views.campaign_figures import (
    CAP,
    Campaign,
    CellRow,
    KnobGroup,
    figure_columns,
    is_knob,
)
from powerd_analytics.campaign_views.groups import (
    BATCH,
    CORE,
    MEMORY,
    WORDS,
    Scaled,
    Scaling,
    batch_of,
    marginals,
    scalings,
    setting_text,
    spans,
    turned_alone,
)
from powerd_analytics.campaigns.design import GPUS, KNOBS, MODEL, Cell, Design
from powerd_analytics.energy.metrics import edp_js
from powerd_analytics.frame.best import NEAR, best_of_pairs
from powerd_analytics.frame.figure import Figure
from powerd_analytics.frame.merits import OF_A_SWEEP, merit_of
from powerd_analytics.output.export import Column, Table, make_table
from powerd_analytics.output.text import Cell as TableCell
from powerd_core.settings import KNOB_AS_OPTION

_OF_MINIMA = ("e", "edp", "eds:2")
_OF_MERITS = ("e", "edp", "ed2p", "eds:2", "sml", "eds:1.5")
"""Those on request."""
_SHORT = {option: knob.heading for option, knob in KNOB_AS_OPTION.items()} | {"batch_size": "batch"}


def per_cent(name: str, ratio: Figure, *, saved: bool = False) -> dict[str, TableCell]:
    """What a ratio is off 1, in per cent with its U95: more than the reference, or what is ``saved`` of it."""
    off = ratio.shifted(-1.0).scaled(-100.0 if saved else 100.0)
    return {name: off.value + 0.0, f"u95_{name}": off.u95}  # no -0


_OF_AS_GOOD = [
    Column("as_good", heading="as good"),
    Column("worst_pct", "number", "%", "by how much one of those as good may be worse", is_hidden=True),
]


def _as_good(texts: Sequence[str], worst: float) -> dict[str, TableCell]:
    """Settings that are as good, with by how much one may be worse."""
    text = "; ".join(texts).replace(" to ", "–")
    return {"as_good": f"{text}, ≤ {100 * worst:.2g} %" if worst else text, "worst_pct": 100 * worst}


def minima_table(campaign: Campaign) -> Table:
    """For each group the reference and the best cells by energy, EDP and EDS (k = 2): watts, joules and seconds, and
    what they are off the reference."""
    return _minima_of(campaign, "minima", _OF_MINIMA)


def merits_table(campaign: Campaign) -> Table:
    """The same by all figures of merit, as Krzywaniak et al. print them."""
    return _minima_of(campaign, "merits", _OF_MERITS)


def _minima_of(campaign: Campaign, table: str, of: Sequence[str]) -> Table:
    knobs = [name for name in campaign.design.factors if name in KNOBS]
    is_thousands = any(f.energy_j.value >= 1e5 for f in campaign.cells)
    per = "/sample" if campaign.is_per_sample else ""
    columns = [
        *(c for c in campaign.factor_columns if not is_knob(c.name)), Column("target", heading="least"),
        *(c for c in campaign.factor_columns if is_knob(c.name)), Column("power_w", "number", "W", heading="W"),
        Column("energy_j", "number", "J", heading=f"{'kJ' if is_thousands else 'J'}{per}",
               per=1e3 if is_thousands else 1.0),
        *figure_columns("energy_pct", "%", "Δ %"), Column("time_s", "number", "s", heading=f"s{per}"),
        *figure_columns("time_pct", "%", "Δ %"),
        *figure_columns("gain_pct", "%", "gain %", meaning="by how much the merit is below the reference's"),
        *_OF_AS_GOOD, Column("open", heading="undecided"),
    ]  # fmt: skip
    rows: list[dict[str, TableCell]] = []
    unsure = 0
    for group in campaign.groups if knobs else ():
        if len(group.cells) < 2:
            continue
        if group.reference is not None:
            rows.append(dict(group.levels) | {"target": "reference"} | _minimum(campaign, group.reference))
        for name in of:
            if group.reference is None and name.startswith(("eds", "sml")):
                continue
            of_eds = "eds:2" if name == "sml" else name  # the saving minus the loss is twice its gain
            best, merit = campaign.best(group, of_eds), merit_of(name)
            row = dict(group.levels) | {"target": merit.heading} | _minimum(campaign, best.cell)
            texts = [spans(campaign, best.as_good, (*group.cells, *best.as_good), knob) for knob in knobs]
            row |= _as_good(texts, best.worst)
            row["open"] = "; ".join(spans(campaign, best.open, group.cells, knob) for knob in knobs if best.open)
            if (ratio := campaign.by_id[best.cell.id].ratios.get(of_eds)) is not None:
                ratio = ratio.shifted(-1.0).scaled(2.0).shifted(1.0) if name == "sml" else ratio
                row |= per_cent("gain_pct", ratio, saved=True)
            rows.append(row)
            unsure += len(best.open)
    notes = ["Δ %: off the reference, block by block"]
    notes += [
        f"as good: settings that cannot be told from the least and are at most {100 * NEAR:g} % worse; ≤: by how much "
        "one may be worse"
    ]
    if any(campaign.is_fitted(group) for group in campaign.groups):
        notes.append("told by a curve through all caps, which knows more than the runs of two of them alone")
    notes += ["SML: saving of energy minus loss of time"] if any(row["target"] == "SML" for row in rows) else []
    notes += [open_note()] if unsure else []
    return make_table(table, f"Best settings of {campaign.design.name}", columns, rows, notes if rows else ())


def open_note() -> str:
    """What is said where a set of settings as good could be larger than what is known."""
    return f"undecided: cannot be told from the least either, and may be over {100 * NEAR:g} % worse: more runs tell"


def _minimum(campaign: Campaign, cell: Cell) -> dict[str, TableCell]:
    f = campaign.by_id[cell.id]
    row: dict[str, TableCell] = {
        **{n: v for n, v in campaign.levels(cell).items() if is_knob(n)},
        "power_w": f.power_w, "energy_j": f.energy_j.value, "time_s": f.time_s.value,
    }  # fmt: skip
    if f.ratios and f.cell != campaign.design.reference_of(f.cell):
        row |= per_cent("energy_pct", f.ratios["e"]) | per_cent("time_pct", f.ratios["time"])
    elif f.ratios:
        row |= {"energy_pct": 0.0, "time_pct": 0.0}
    return row


def ranges_table(campaign: Campaign) -> Table:
    """For each group and merit the levels at which it is better than at the reference, and those at which that cannot
    be told. One knob only."""
    knobs = [name for name in campaign.design.factors if name in KNOBS]
    others = [c for c in campaign.factor_columns if not is_knob(c.name)]
    columns = [*others, Column("metric"), Column("better", heading="better"), Column("maybe", heading="cannot be told")]
    rows: list[dict[str, TableCell]] = []
    for group in campaign.groups if len(knobs) == 1 and campaign.design.reference else ():
        for name in OF_A_SWEEP:
            every = {cell: campaign.by_id[cell.id].ratios.get(name) for cell in group.cells if cell != group.reference}
            ratios = {cell: ratio for cell, ratio in every.items() if ratio is not None}
            better = [cell for cell, ratio in ratios.items() if is_below(ratio)]
            maybe = [cell for cell, r in ratios.items() if cell not in better and r.value - (r.u95 or inf) < 1]
            texts = {"better": spans(campaign, better, group.cells, knobs[0])}
            texts |= {"maybe": spans(campaign, maybe, group.cells, knobs[0])}
            row: dict[str, TableCell] = dict(group.levels) | {"metric": merit_of(name).heading}
            rows.append(row | {n: text or "none" for n, text in texts.items()})
    return make_table("ranges", f"Where {campaign.design.name} beats its reference", columns, rows)


def is_below(ratio: Figure, than: float = 1.0) -> bool:
    """Whether a figure is surely below a number; one run alone never is."""
    return ratio.value + (ratio.u95 if ratio.u95 is not None else inf) < than


# -- several GPUs ------------------------------------------------------------------------------------------------------


def scaling_table(campaign: Campaign) -> Table:
    """For each number of GPUs its speed-up and efficiency, at the reference and at one other setting, and the most
    energy that a setting saves, as Koszczal et al. compare them."""
    others = [c for c in campaign.factor_columns if not is_knob(c.name) and c.name != GPUS]
    columns = [
        *others, Column(GPUS, "integer", "1", heading="GPUs"), Column("time_s", "number", "s", heading="s"),
        *figure_columns("speed_up", "1", "speed-up"),
        Column("efficiency_pct", "number", "%", heading="efficiency %"),
        Column("speed_up_set", "number", "1", "speed-up at the setting that the note names", "speed-up, set"),
        *(c for c in campaign.factor_columns if is_knob(c.name)),
        *figure_columns("saving_pct", "%", "saves %"), *figure_columns("time_pct", "%", "time Δ %"),
    ]  # fmt: skip
    rows: list[dict[str, TableCell]] = []
    notes = []
    for scaling in scalings(campaign):
        rows += [_scaled(campaign, row, scaling) for row in scaling.rows]
        notes.append(f"set: at {setting_text(campaign, scaling.at)}, the least EDP on {scaling.rows[-1].gpus} GPUs")
    notes += ["saves: the most energy that a setting saves against the reference on as many GPUs"] if rows else []
    return make_table("scaling", f"GPUs of {campaign.design.name}", columns, rows, list(dict.fromkeys(notes)))


def _scaled(campaign: Campaign, row: Scaled, scaling: Scaling) -> dict[str, TableCell]:
    return {
        **scaling.levels, **{n: level for n, level in campaign.levels(row.best).items() if is_knob(n)},
        GPUS: row.gpus, "time_s": row.time_s, "speed_up": row.speed_up.value, "u95_speed_up": row.speed_up.u95,
        "efficiency_pct": 100 * row.speed_up.value * scaling.rows[0].gpus / row.gpus,
        "speed_up_set": row.speed_up_set.value,
        **per_cent("time_pct", row.time), **per_cent("saving_pct", row.energy, saved=True),
    }  # fmt: skip


# -- clocks ------------------------------------------------------------------------------------------------------------


def marginals_table(campaign: Campaign) -> Table:
    """What each clock does to speed, power and energy, as Tang et al. average them: the geometric mean over all other
    factors."""
    columns = [
        Column("knob"), Column("level_mhz", "number", "MHz", heading="MHz"),
        Column("speed_ratio", "number", "1", heading="speed"), Column("power_ratio", "number", "1", heading="power"),
        *figure_columns("e_ratio", "1", "E"),
    ]  # fmt: skip
    rows: list[dict[str, TableCell]] = [
        {
            "knob": WORDS[knob], "level_mhz": m.level, "speed_ratio": 1 / m.time.value,
            "power_ratio": m.energy.value / m.time.value, "e_ratio": m.energy.value, "u95_e_ratio": m.energy.u95,
        }
        for knob in (CORE, MEMORY)
        for m in marginals(campaign.design, campaign.groups, knob)
    ]  # fmt: skip
    notes = ["of those at the reference clock: the geometric mean over all other factors"] if rows else []
    return make_table("marginals", f"Clocks of {campaign.design.name}", columns, rows, notes)


def optimum_table(campaign: Campaign) -> Table:
    """For each model, and for all together, the SM clock of the least energy and what it saves, as tables III and IV of
    Tang et al.: the geometric mean over batch sizes and memory clocks."""
    others = [c for c in campaign.factor_columns if not is_knob(c.name) and c.name not in (MODEL, *BATCH)]
    columns = [
        *others, Column("model"), Column(CORE, "number", "MHz", heading="SM MHz"),
        *figure_columns("saving_pct", "%", "saves %"), *figure_columns("time_pct", "%", "time Δ %"),
    ]  # fmt: skip
    columns += _OF_AS_GOOD
    alike: dict[tuple[TableCell, ...], list[KnobGroup]] = {}
    for group in campaign.groups:
        alike.setdefault(tuple(group.levels.get(c.name) for c in others), []).append(group)
    rows: list[dict[str, TableCell]] = []
    for levels, groups in alike.items():
        models = list(dict.fromkeys(group.levels.get(MODEL) for group in groups))
        for model in [*models, *(["all"] if len(models) > 1 else [])]:
            own = [group for group in groups if model in (group.levels.get(MODEL), "all")]
            if found := marginals(campaign.design, own, CORE):
                chosen = best_of_pairs([{block: log(e) for block, (e, _) in m.blocks.items()} for m in found])
                best, as_good = found[chosen.row], [found[row].level for row in chosen.as_good]
                rows.append({
                    **dict(zip((c.name for c in others), levels, strict=True)), "model": model, CORE: best.level,
                    **per_cent("saving_pct", best.energy, saved=True), **per_cent("time_pct", best.time),
                    **_as_good([", ".join(f"{level:g}" for level in as_good)], chosen.worst),
                })  # fmt: skip
    return make_table("optimum", f"Best SM clocks of {campaign.design.name}", columns, rows)


# -- cap against clock ------------------------------------------------------------------------------------------------

SLOWDOWNS = (0.01, 0.02, 0.05, 0.1)
"""Shares by which a training may take longer."""


def slowdown_table(campaign: Campaign) -> Table:
    """For each group the most that is saved at equal slowdown by caps alone, by SM clocks alone and by both. Only of a
    campaign that has both knobs."""
    columns = [
        *(c for c in campaign.factor_columns if not is_knob(c.name)),
        Column("slower_pct", "number", "%", "by how much at most", "slower ≤ %"), Column("turned"),
        *(c for c in campaign.factor_columns if is_knob(c.name)),
        *figure_columns("saving_pct", "%", "saves %"), *figure_columns("time_pct", "%", "time Δ %"),
    ]  # fmt: skip
    has_both = all(len(campaign.design.factors.get(name, ())) > 1 for name in (CAP, CORE))
    rows: list[dict[str, TableCell]] = []
    for group in campaign.groups if has_both else ():
        for slower, knobs in product(SLOWDOWNS, ((CAP,), (CORE,), (CAP, CORE))):
            every = [campaign.by_id[cell.id] for cell in turned_alone(group, knobs)]
            may = [f for f in every if f.ratios and f.ratios["time"].value <= 1 + slower]
            if may:
                best = campaign.by_id[campaign.least(may, relative=True).cell.id]
                turned = " and ".join(WORDS[knob] for knob in knobs)
                rows.append({
                    **campaign.levels(best.cell), "slower_pct": 100 * slower, "turned": turned,
                    **per_cent("saving_pct", best.ratios["e"], saved=True), **per_cent("time_pct", best.ratios["time"]),
                })  # fmt: skip
    return make_table("slowdown", f"Cap against clock in {campaign.design.name}", columns, rows)


# -- knobs that are chosen together ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Saving:
    """The most that is saved against the reference where only some factors may change."""

    model: str
    free: tuple[str, ...]
    cell: Cell
    energy: Figure
    time: Figure


def savings(campaign: Campaign) -> list[Saving]:
    """By model: what each factor of the reference saves alone, and what all of them save together. None where the
    reference names knobs alone, or one factor."""
    names = tuple(campaign.design.reference)
    by_model: dict[str, list[CellRow]] = {}
    for f in campaign.cells:
        if f.ratios:
            by_model.setdefault(str(f.cell.levels.get(MODEL, "")), []).append(f)
    found = []
    if len(names) < 2 or set(names) <= set(KNOBS):
        return []
    for model, own in by_model.items():
        for free in (*((name,) for name in names), names):
            fixed = [name for name in names if name not in free]
            may = [f for f in own if all(f.cell.levels[n] == _reference(campaign, f.cell)[n] for n in fixed)]
            best = campaign.by_id[campaign.least(may, relative=True).cell.id]
            found.append(Saving(model, free, best.cell, best.ratios["e"], best.ratios["time"]))
    return found


def _reference(campaign: Campaign, cell: Cell) -> Mapping[str, TableCell]:
    return campaign.design.reference_levels(cell.levels) or {}


def savings_table(campaign: Campaign) -> Table:
    """What choosing one knob saves, and what choosing all of them does, as the evaluation of Zeus has it."""
    factors = [c for c in campaign.factor_columns if c.name.removesuffix("_asked") in campaign.design.reference]
    columns = [
        Column("model"), Column("chosen"), *factors,
        *figure_columns("saving_pct", "%", "saves %"), *figure_columns("time_pct", "%", "time Δ %"),
    ]  # fmt: skip
    rows: list[dict[str, TableCell]] = []
    for s in savings(campaign):
        levels = campaign.levels(s.cell)
        row: dict[str, TableCell] = {c.name: levels[c.name] for c in factors if c.name in levels}
        row |= {"model": s.model or None, "chosen": " and ".join(_SHORT.get(name, name) for name in s.free)}
        rows.append(row | per_cent("saving_pct", s.energy, saved=True) | per_cent("time_pct", s.time))
    return make_table("savings", f"What each knob of {campaign.design.name} saves", columns, rows)


# -- one instrument, several cards -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MixedMachine:
    """A machine of several cards of which one of each kind was measured."""

    levels: Mapping[str, TableCell]
    """Without the factor that the instrument is moved over."""
    cards: Mapping[str, int]
    time_s: Figure
    """Of the slowest kind: all wait for it."""
    energy_j: Figure

    @property
    def edp_js(self) -> float:
        return edp_js(self.energy_j.value, self.time_s.value)


def mixed_machines(campaign: Campaign) -> list[MixedMachine]:
    """Machines by what one card of each kind took: the same one may have several cells, as one of each kind."""
    moved_over, found = campaign.design.analysis.instrument.moved_over, dict[object, MixedMachine]()
    for f in campaign.cells if moved_over else ():
        levels, cards = {n: v for n, v in f.cell.levels.items() if n != moved_over}, campaign.cards(f.cell)
        key = (tuple(levels.items()), tuple(cards))
        before = found.get(key)
        time = max((f.time_s, *([before.time_s] if before is not None else [])), key=lambda figure: figure.value)
        found[key] = MixedMachine(levels, cards, time, f.energy_j)
    return list(found.values())


def machines_table(campaign: Campaign) -> Table:
    """Batches, seconds, joules and EDP of whole machines, as tables 3 and 6 of Castro et al."""
    others = [
        c for c in campaign.factor_columns if c.name not in (campaign.design.analysis.instrument.moved_over, GPUS)
    ]
    columns = [
        *others, Column("cards"), Column("batches", "integer", "1"), Column("time_s", "number", "s", heading="s"),
        *figure_columns("energy_j", "J", "kJ", u95="u95_j", per=1e3),
        Column("edp_js", "number", "J s", heading="EDP (MJ s)", per=1e6),
    ]  # fmt: skip
    batches: dict[tuple[TableCell, ...], int] = {}
    for m in campaign.runs:
        levels, samples = m.item.cell.levels, campaign.samples(m.result)
        if samples and (batch := batch_of(levels)) is not None:
            batches[tuple(levels.get(c.name) for c in others)] = round(samples / batch)
    rows: list[dict[str, TableCell]] = [
        {
            **{c.name: w.levels.get(c.name) for c in others},
            "cards": " + ".join(f"{n} {kind}" for kind, n in w.cards.items()), "time_s": w.time_s.value,
            "batches": batches.get(tuple(w.levels.get(c.name) for c in others)),
            "energy_j": w.energy_j.value, "u95_j": w.energy_j.u95, "edp_js": w.edp_js,
        }
        for w in mixed_machines(campaign)
    ]  # fmt: skip
    notes = ["joules of one card of each kind, times the cards"] if rows else []
    return make_table("machines", f"Machines of {campaign.design.name}", columns, rows, notes)


# -- what idles --------------------------------------------------------------------------------------------------------


def floor_table(campaign: Campaign) -> Table:
    """Joules of a cell, and how many of them the machine would have drawn while it idled for as long: at the reference
    and where the least energy is. What idles is paid for longer at a low cap."""
    columns = [
        *(c for c in campaign.factor_columns if not is_knob(c.name)), Column("at"),
        *(c for c in campaign.factor_columns if is_knob(c.name)), Column("time_s", "number", "s", heading="s"),
        Column("energy_j", "number", "J", heading="kJ", per=1e3),
        Column("floor_j", "number", "J", heading="idle floor kJ", per=1e3),
        Column("rest_j", "number", "J", heading="above it kJ", per=1e3),
        Column("floor_pct", "number", "%", heading="floor %"),
    ]  # fmt: skip
    rows: list[dict[str, TableCell]] = []
    for group in campaign.groups if campaign.design.analysis.idle_w is not None else ():
        if group.reference is None:
            continue
        for name, cell in (("reference", group.reference), ("least E", campaign.best(group, "e").cell)):
            f = campaign.by_id[cell.id]
            energy, floor = f.energy_j.value, floor_j(campaign.design, f)
            rows.append({
                **campaign.levels(cell), "at": name, "time_s": f.time_s.value, "energy_j": energy,
                "floor_j": floor, "rest_j": energy - floor, "floor_pct": 100 * floor / energy,
            })  # fmt: skip
    return make_table("floor", f"Idle floor of {campaign.design.name}", columns, rows)


def floor_j(design: Design, f: CellRow) -> float:
    """Joules that idling for as long as a run of a cell would have taken."""
    return (design.analysis.idle_w or 0.0) * f.time_s.value
