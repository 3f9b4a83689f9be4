"""What comes out of a campaign, as sentences with figures and their 95 % intervals.

Each function looks for one thing that published studies have found, and says what it is here, whichever way it goes;
where the figures do not say which way, it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import exp, hypot, log
from statistics import fmean

from powerd_analytics.campaign_views.campaign_figures import (
    SINGLE,
    Campaign,
    CellRow,
    Chosen,
    KnobGroup,
    is_single,
    same_losses,
)
from powerd_analytics.campaign_views.cell_tables import kernels_of
from powerd_analytics.campaign_views.group_tables import floor_j, is_below, mixed_machines, savings
from powerd_analytics.campaign_views.groups import (
    BATCH,
    CORE,
    MEMORY,
    WORDS,
    Scaling,
    batch_of,
    knee,
    marginals,
    scalings,
    setting_text,
    spans,
)
from powerd_analytics.campaigns.design import GPUS, KNOBS, MODEL, Design, level_text
from powerd_analytics.frame.figure import Figure, mean_of_cells
from powerd_analytics.frame.means import mean_of_ratios
from powerd_analytics.frame.merits import merit_of
from powerd_analytics.output.text import Cell as TableCell
from powerd_analytics.runs.accuracy import is_lower_better
from powerd_core.text import with_u95

NEAR = 0.01
"""A result that is off the best by this share is about as good."""
VALLEY = 1.01
"""Settings that cost so many times the least energy are in its valley."""
HARDLY = 0.03
"""A change of speed below this is hardly one."""
ONE_BY_ONE = 8
"""More groups than this share a sentence."""


def findings(campaign: Campaign) -> list[str]:
    """The sentences, in the order of the page."""
    if is_single(campaign.history):
        return [f"{SINGLE[:1].upper()}{SINGLE[1:]}."]
    design, figures = campaign.design, campaign.cells
    knobs = [name for name in design.factors if name in KNOBS]
    compared = [g for g in campaign.groups if g.reference is not None and len(g.cells) > 1] if knobs else []
    sentences = [] if knobs else _of_cells(campaign)
    sentences += _of_groups(campaign, compared, knobs)
    sentences += _of_least_loss(campaign, compared, knobs)
    sentences += _of_savings(campaign)
    sentences += [text for scaling in scalings(campaign) for text in _of_scaling(campaign, scaling)]
    sentences += _of_floor(design, figures)
    sentences += _of_clocks(campaign)
    sentences += _of_batches(campaign)
    sentences += _of_mixed_cards(campaign)
    sentences += _of_accuracy(figures)
    sentences += _of_kernels(campaign)
    sentences += same_losses(campaign)
    return [f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in sentences]


def surely_less(a: Figure, b: Figure) -> bool:
    """Whether one figure is below another by more than both are unsure of; where one is not known, nobody knows."""
    if a.u95 is None or b.u95 is None:
        return False
    return b.value - a.value > hypot(a.u95, b.u95)


def falls(figures: Sequence[Figure]) -> bool:
    """Whether figures fall from the first to the last, and no step rises by more than is unsure."""
    return surely_less(figures[-1], figures[0]) and not any(surely_less(a, b) for a, b in pairwise(figures))


def rises(figures: Sequence[Figure]) -> bool:
    return falls(list(reversed(figures)))


def does_neither(figures: Sequence[Figure]) -> bool:
    """Whether some step surely falls and another one surely rises."""
    steps = list(pairwise(figures))
    return any(surely_less(a, b) for a, b in steps) and any(surely_less(b, a) for a, b in steps)


def _of_cells(campaign: Campaign) -> list[str]:
    """The cell of least energy, and of those that are about as accurate as the best one. Silent where some other cell
    may have the least as well."""
    figures = campaign.cells
    if len(figures) < 2:
        return []
    unit = "J a sample" if campaign.is_per_sample else "J"
    best, is_found = _least(campaign, figures)
    sentences = []
    if is_found:
        sentences.append(f"the least energy is at {_cell(campaign, best)}: {_text(best.energy_j)} {unit}")
    for name in list(best.results)[:1]:
        known = [f for f in figures if name in f.results]
        if is_lower_better(name) or not known:
            continue
        most = max(f.results[name].value for f in known)
        good = [f for f in known if f.results[name].value >= most * (1 - NEAR)]
        cheapest, is_found = _least(campaign, good)
        if not is_found:
            continue
        among = f"in {len(good)} of {len(known)} cells {name} is"
        near = f"{among} within {100 * NEAR:g} % of the best ({most:.4g})"
        what = f"{_text(cheapest.energy_j)} {unit}, with {name} {_text(cheapest.results[name])}"
        sentences.append(f"{near}; of these the least energy is at {_cell(campaign, cheapest)}: {what}")
    return sentences


def _cell(campaign: Campaign, f: CellRow) -> str:
    """A cell of a machine with cards of several kinds is that machine, whichever card was measured."""
    return ", ".join(f"{name} {level_text(name, level)}" for name, level in campaign.machine(f.cell).items())


def _least(campaign: Campaign, among: Sequence[CellRow]) -> tuple[CellRow, bool]:
    """The cell of the least energy, and whether no other machine may have it as well."""
    best = campaign.least(among)
    alike = {tuple(campaign.machine(cell).items()) for cell in (*best.as_good, *best.open)}
    return campaign.by_id[best.cell.id], len(alike) == 1


# -- the best setting --------------------------------------------------------------------------------------------------


def _of_groups(campaign: Campaign, groups: Sequence[KnobGroup], knobs: Sequence[str]) -> Iterator[str]:
    """Where the least energy and the least EDP are, what they save, and how wide the valley is."""
    for metric in ("e", "edp"):
        best = [(group, campaign.best(group, metric)) for group in groups]
        if len(groups) <= ONE_BY_ONE:
            yield from (_of_group(campaign, *pair, metric, knobs) for pair in best if _is_found(*pair))
        else:
            yield _of_many(campaign, best, metric, knobs)


def _is_found(group: KnobGroup, best: Chosen) -> bool:
    """Whether some cell is surely worse than the best."""
    return len(best.as_good) + len(best.open) < len(group.cells)


def _of_group(campaign: Campaign, group: KnobGroup, best: Chosen, metric: str, knobs: Sequence[str]) -> str:
    name = _name(group.levels)
    where = setting_text(campaign, best.cell)
    sentence = f"{name + ': ' if name else ''}the least {merit_of(metric).heading} is at {where}"
    off = campaign.by_id[best.cell.id].ratios
    if off and best.cell != group.reference:
        sentence += f", with {_per_cent(off['e'], 'energy')} and {_per_cent(off['time'], 'time')} than at the reference"
    if len(best.as_good) > 1:
        every = (*group.cells, *best.as_good)
        others = "; ".join(spans(campaign, best.as_good, every, knob) for knob in knobs)
        sentence += f"; {others} cannot be told from it, and may be {100 * best.worst:.2g} % worse at most"
    if metric == "e" and len(knobs) == 1:
        sentence += f"; the valley, within 1 % of the least energy, is {_valley(campaign, group, knobs[0])}"
    return sentence


def _of_many(campaign: Campaign, best: Sequence[tuple[KnobGroup, Chosen]], metric: str, knobs: Sequence[str]) -> str:
    cells = [of.cell for _, of in best]
    offs = [off for cell in cells if (off := campaign.by_id[cell.id].ratios)]
    where = "; ".join(spans(campaign, cells, cells, knob) for knob in knobs)
    return (
        f"in {len(best)} kinds of training the least {merit_of(metric).heading} is at {where}; off the reference, "
        f"energy is {_range([off['e'] for off in offs])} % and time {_range([off['time'] for off in offs])} %"
    )


def _range(figures: Sequence[Figure]) -> str:
    ratios = [figure.value for figure in figures]
    return f"{100 * (min(ratios) - 1):+.3g} to {100 * (max(ratios) - 1):+.3g}"


def _valley(campaign: Campaign, group: KnobGroup, knob: str) -> str:
    """The levels whose mean energy is near the least mean."""
    every = {cell: campaign.by_id[cell.id].ratios for cell in group.cells}
    off = {cell: ratios["e"].value for cell, ratios in every.items() if ratios}
    near = [cell for cell, energy in off.items() if energy <= VALLEY * min(off.values())]
    levels = [float(str(campaign.levels(cell)[knob])) for cell in near]
    width = f" ({max(levels) - min(levels):g} wide)" if len(levels) > 1 else ""
    return spans(campaign, near, group.cells, knob) + width


def _of_least_loss(campaign: Campaign, groups: Sequence[KnobGroup], knobs: Sequence[str]) -> Iterator[str]:
    """Which model loses least time at the lowest level of the knob. Silent where the models cannot be told apart."""
    if len(knobs) != 1 or len(groups) < 2 or len({g.levels.get(MODEL) for g in groups}) < len(groups):
        return
    slower: dict[str, Figure] = {}
    for group in groups:
        lowest = min(group.cells, key=lambda cell: float(cell.levels[knobs[0]]))
        if off := campaign.by_id[lowest.id].ratios:
            slower[str(group.levels[MODEL])] = off["time"].shifted(-1.0).scaled(100.0)
    if len(slower) < 2:
        return
    least, most = min(slower, key=lambda n: slower[n].value), max(slower, key=lambda n: slower[n].value)
    if surely_less(slower[least], slower[most]):
        at = setting_text(campaign, min(groups[0].cells, key=lambda cell: float(cell.levels[knobs[0]])))
        yield (
            f"at {at} {least} loses least time ({_with_u95(slower[least])} %), and {most} most "
            f"({_with_u95(slower[most])} %) of {len(slower)} models"
        )


def _of_savings(campaign: Campaign) -> Iterator[str]:
    """What each factor of the reference saves alone, and all of them together; of these that surely save something."""
    by_model: dict[str, list[str]] = {}
    for s in savings(campaign):
        if is_below(s.energy):
            name = " and ".join(WORDS.get(n, n) for n in s.free)
            by_model.setdefault(s.model, []).append(f"{name} {_with_u95(_saved(s.energy))} %")
    for model, texts in by_model.items():
        yield f"{model + ': ' if model else ''}the most energy that is saved by choosing {_listed(texts)}"


def _saved(ratio: Figure) -> Figure:
    """Per cent that a ratio is below 1."""
    return ratio.shifted(-1.0).scaled(-100.0)


# -- several GPUs ------------------------------------------------------------------------------------------------------


def _of_scaling(campaign: Campaign, scaling: Scaling) -> list[str]:
    """How the saving goes with the number of GPUs, and how the speed does. Silent where that cannot be told."""
    rows, name = scaling.rows, ", ".join(str(level) for level in scaling.levels.values())
    prefix, sentences = f"{name}: " if name else "", []
    saved = [_saved(row.energy) for row in rows]
    verb = "grows" if rises(saved) else "falls" if falls(saved) else ""
    verb = "does not simply grow" if does_neither(saved) else verb
    if verb:
        numbers, values = _listed([f"{row.gpus}" for row in rows]), _listed([_with_u95(figure) for figure in saved])
        sentences.append(
            f"{prefix}the most energy that a setting saves {verb} with the number of GPUs: {values} % with {numbers}"
        )
    most, set_to = rows[-1], setting_text(campaign, scaling.at)
    better = "better" if surely_less(most.speed_up, most.speed_up_set) else ""
    better = "worse" if surely_less(most.speed_up_set, most.speed_up) else better
    if better:
        at_both = f"{_with_u95(most.speed_up)} times as fast as {rows[0].gpus} at the reference, and "
        at_both += f"{_with_u95(most.speed_up_set)} times at {set_to}"
        sentences.append(f"{prefix}{most.gpus} GPUs are {at_both}: so set, they scale {better}")
    return sentences


def _of_floor(design: Design, figures: Sequence[CellRow]) -> Iterator[str]:
    """How much of the joules at the reference idling would have drawn, by number of GPUs: why few of them save less."""
    if design.analysis.idle_w is None:
        return
    at = {f.cell.levels.get(GPUS, 1): f for f in figures if f.cell == design.reference_of(f.cell)}
    shares = {gpus: 100 * floor_j(design, f) / f.energy_j.value for gpus, f in at.items()}
    if len(shares) > 1:
        texts, numbers = _listed([f"{share:.3g}" for share in shares.values()]), _listed([str(n) for n in shares])
        yield (
            f"the idle floor of {design.analysis.idle_w:g} W is {texts} % of the joules at the reference with "
            f"{numbers} GPUs: what idles is paid for longer at a low cap, and no cap lowers it"
        )


# -- clocks ------------------------------------------------------------------------------------------------------------


def _of_clocks(campaign: Campaign) -> Iterator[str]:
    """What each clock does from its least to its greatest level, all else being equal, and where power bends."""
    for knob in (CORE, MEMORY):
        name, levels = WORDS[knob], marginals(campaign.design, campaign.groups, knob)
        if not levels:
            continue
        first, last = levels[0], levels[-1]
        speed, energy = first.time.value / last.time.value, last.energy.value / first.energy.value
        hardly = "hardly moves the speed" if abs(speed - 1) < HARDLY else "moves the speed"
        change = f"from {first.level:g} to {last.level:g} MHz it changes by {100 * (speed - 1):+.3g} %, "
        change += f"and energy by {100 * (energy - 1):+.3g} %"
        yield f"the {name} {hardly}: {change}, in the geometric mean over all else"
        if knob == CORE and (bend := knee(levels)) is not None:
            yield (
                f"power over the {name} has a knee at {_with_u95(bend)} MHz: above it power rises faster than the "
                "clock, as where a voltage leaves its floor"
            )


# -- batch sizes and cards ---------------------------------------------------------------------------------------------


def _of_batches(campaign: Campaign) -> Iterator[str]:
    """What a sample costs by batch size, all else being equal, other knobs at their reference."""
    by_others: dict[tuple[tuple[str, TableCell], ...], dict[float, Figure]] = {}
    design, figures = campaign.design, campaign.cells
    if set(BATCH) & set(design.reference):  # chosen, and compared with its reference
        return
    for f in figures:
        batch = batch_of(f.cell.levels)
        reference = design.reference_levels(f.cell.levels) or {}
        is_reference = all(f.cell.levels[n] == reference.get(n) for n in design.reference if n in KNOBS)
        if is_reference and batch is not None:
            own = tuple((n, v) for n, v in campaign.machine(f.cell).items() if n not in (*BATCH, *KNOBS))
            by_others.setdefault(own, {})[batch] = f.energy_j
    several = {others: means for others, means in by_others.items() if len(means) > 1}
    unit = "J a sample" if campaign.is_per_sample else "J"
    if len(several) <= ONE_BY_ONE:
        for others, means in several.items():
            joules = [means[batch] for batch in sorted(means)]
            if not (falls(joules) or rises(joules) or does_neither(joules)):
                continue
            verb = "cost less" if falls(joules) else "cost more" if rises(joules) else "do not always cost less"
            values, sizes = _listed([_with_u95(mean) for mean in joules]), _listed([f"{b:g}" for b in sorted(means)])
            name = _name(dict(others))
            yield f"{name + ': ' if name else ''}larger batches {verb} per sample: {values} {unit} at {sizes}"
        return
    ratios = {others: means[max(means)].value / means[min(means)].value for others, means in several.items()}
    fewer = sum(ratio < 1 for ratio in ratios.values())
    mean = exp(fmean(map(log, ratios.values())))
    yield (
        f"larger batches cost less per sample in {fewer} of {len(ratios)} kinds of training: from the smallest to the "
        f"largest batch energy changes by {100 * (mean - 1):+.3g} % in the geometric mean "
        f"({100 * (min(ratios.values()) - 1):+.3g} to {100 * (max(ratios.values()) - 1):+.3g} %)"
    )


def _of_mixed_cards(campaign: Campaign) -> Iterator[str]:
    """How long a batch takes on cards of several kinds, beside the same share of it on each kind alone. Silent where
    all together take another time than the slower kind alone: then waiting for it is not all that there is.

    With as many cards of each kind, and batches of a share of the size, a run of the same work has more batches.
    """
    alone: dict[tuple[TableCell, float], dict[str, float]] = {}
    mixed: dict[tuple[TableCell, float], float] = {}
    for w in mixed_machines(campaign):
        batch = batch_of(w.levels) or 0.0
        model, kinds = w.levels.get(MODEL), len(w.cards)
        if kinds > 1:
            mixed[model, batch / kinds] = w.time_s.value * batch
        else:
            ((kind, n),) = w.cards.items()
            if n == campaign.design.analysis.instrument.mixed.get(kind):
                alone.setdefault((model, batch), {})[kind] = w.time_s.value * batch
    both = [(time, alone[key].values()) for key, time in mixed.items() if len(alone.get(key, ())) > 1]
    if not both:
        return
    slow = mean_of_ratios([time / max(others) for time, others in both])
    fast = mean_of_ratios([time / min(others) for time, others in both])
    one = Figure(1.0, 0.0)
    is_so = slow.u95 is not None and abs(slow.value - 1) <= max(slow.u95, HARDLY) and surely_less(one, fast)
    if is_so and slow.value + (slow.u95 or 0.0) < fast.value:
        yield (
            "mixed cards wait for the slower kind: with the same share of a batch each, all together take "
            f"{_with_u95(slow)} times as long as the slower kind alone, and {_with_u95(fast)} times as long as the "
            "faster"
        )


def _of_accuracy(figures: Sequence[CellRow]) -> Iterator[str]:
    """How what was trained gets better or worse with the batch size, by model."""
    found: dict[tuple[str, str], dict[float, list[Figure]]] = {}
    for f in figures:
        batch = batch_of(f.cell.levels)
        better = {name: mean for name, mean in f.results.items() if not is_lower_better(name)}
        for name, mean in list(better.items())[:1]:
            if batch is not None:
                found.setdefault((str(f.cell.levels.get(MODEL, "")), name), {}).setdefault(batch, []).append(mean)
    for (model, name), by_batch in found.items():
        if len(by_batch) < 2:
            continue
        means = {batch: mean_of_cells(by_batch[batch]) for batch in sorted(by_batch)}
        values = list(means.values())
        verb = "falls" if falls(values) else "rises" if rises(values) else ""
        verb = "neither falls nor rises" if does_neither(values) else verb
        if not verb:
            continue
        texts = _listed([f"{figure.value:.4g}" for figure in values])
        sizes = _listed([f"{batch:g}" for batch in means])
        yield f"{model + ': ' if model else ''}{name} {verb} with the batch size: {texts} at {sizes}"


def _of_kernels(campaign: Campaign) -> Iterator[str]:
    """Cells that ran other kernels than the one that they are compared with."""
    kernels, design = kernels_of(campaign), campaign.design
    other = [
        str(cell)
        for cell, of in kernels.items()
        if (reference := design.reference_of(cell)) in kernels and kernels[reference]["digest"] != of["digest"]
    ]
    if other:
        more = f" and {len(other) - 3} more" if len(other) > 3 else ""
        yield (
            f"{len(other)} {'cells' if len(other) > 1 else 'cell'} ran other kernels than what they are compared with "
            f"({'; '.join(other[:3])}{more}): there another algorithm may explain the energy"
        )


# -- words -------------------------------------------------------------------------------------------------------------


def _name(levels: Mapping[str, TableCell]) -> str:
    return ", ".join(_level(name, level) for name, level in levels.items())


def _level(name: str, level: TableCell) -> str:
    if name == GPUS:
        return f"{level} GPU{'' if level == 1 else 's'}"
    return f"{level}" if isinstance(level, str) else f"{name.removesuffix('_size')} {level}"


def _text(mean: Figure) -> str:
    return with_u95(mean.value, mean.u95)


def _listed(texts: Sequence[str]) -> str:
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else "".join(texts)


def _with_u95(mean: Figure) -> str:
    """Three digits, with the 95 % half-width where there is one."""
    text = f"{mean.value:.3g}" if mean.value < 1000 else f"{mean.value:,.0f}"
    return f"{text} ± {mean.u95:.2g}" if mean.u95 else text


def _per_cent(ratio: Figure, what: str) -> str:
    """What a ratio is off 1, with its U95."""
    text = _with_u95(ratio.shifted(-1.0).scaled(100.0 if ratio.value > 1 else -100.0))
    return f"{text} % {'less' if ratio.value < 1 else 'more'} {what}"
