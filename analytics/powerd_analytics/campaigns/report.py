"""One page about a campaign: what comes out of it as sentences, its figures, its tables, its design."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from powerd_analytics.campaigns.design import KNOBS, Design
from powerd_analytics.campaigns.group_tables import LEAST
from powerd_analytics.campaigns.groups import (
    CORE,
    MEMORY,
    Group,
    Scaling,
    chosen,
    groups_of,
    marginals,
    scalings,
    setting_text,
    spans,
)
from powerd_analytics.campaigns.journal import History
from powerd_analytics.campaigns.results import CellFigures, Mean, cell_figures, measured, results_frame, same_losses
from powerd_analytics.campaigns.tables import campaign_tables
from powerd_analytics.plots.configurations import SWEPT, draw_pareto, draw_sweep
from powerd_analytics.plots.style import styled
from powerd_analytics.repeats import averaged
from powerd_analytics.report.page import own_text, script_hash
from powerd_analytics.report.sheets import shown_sheet
from powerd_analytics.runs.accuracy import is_lower_better
from powerd_core.errors import AnalysisError
from powerd_core.text import printable, with_u95

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from powerd_analytics.figures import Frame

NEAR = 0.01
"""A result that is off the best by this share is about as good."""


def write_report(design: Design, history: History, out: Path) -> None:
    """Write the page. Raises `AnalysisError` for a campaign without any result."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    runs = measured(design, history)
    if not runs:
        raise AnalysisError("the campaign has no result yet")
    style, script = own_text("report.css"), own_text("report.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    page = environment.from_string(own_text("sheet.html") + own_text("campaign.html"))
    text = page.render(
        title=printable(f"Campaign {design.name}"),
        subtitle=f"{len(runs)} runs of {len(design.cells())} cells",
        provenances=sorted({m.result.provenance for m in runs}),
        findings=list(map(printable, findings(design, history))),
        figures=[{"title": title, "png": _png(figure)} for title, figure in figures(design, history)],
        tables=[shown_sheet(table) for table in campaign_tables(design, history)],
        about=list(map(printable, about(design, history))),
        command=printable(" ".join(design.command)),
        style=Markup(style),
        style_hash=script_hash(style),
        script=Markup(script),
        script_hash=script_hash(script),
    )
    out.write_text(text, encoding="utf-8")


def _png(figure: Figure) -> str:
    return base64.b64encode(_drawn(figure)).decode()


@styled
def _drawn(figure: Figure) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=140)
    return data.getvalue()


def configurations(design: Design, history: History) -> Frame:
    """The means of the cells as the pictures of configurations take them."""
    place = {cell.id: i for i, cell in enumerate(design.cells())}
    runs = sorted(measured(design, history), key=lambda m: place[m.item.cell.id])
    means = averaged(results_frame(design, runs))
    return means.assign(per="", part="")


def figures(design: Design, history: History) -> Iterator[tuple[str, Figure]]:
    """What can be drawn of the campaign: a title and a picture each."""
    frame = configurations(design, history)
    reference = None
    if len(design.reference) == 1:
        (name, level), *_ = design.reference.items()
        reference = f"{name}={level}"
    for knob, name in SWEPT.items():
        is_alone = sum(other in KNOBS and len(levels) > 1 for other, levels in design.factors.items()) == 1
        if is_alone and len(design.factors.get(knob, ())) > 1:
            picture = draw_sweep(frame, design.name, reference, knob=knob)
            yield f"Energy, time and their products over the {name}", picture
    # Runs of different work are no alternatives to each other.
    if len(frame) > 1 and not any(f.is_per_sample for f in cell_figures(design, history)):
        references = Counter(c.levels.get("model") for c in design.cells() if c == design.reference_of(c))
        is_one = set(references.values()) == {1}
        yield "Energy against time", draw_pareto(frame, design.name, reference if is_one else None)


def findings(design: Design, history: History) -> list[str]:
    """What comes out, as sentences with figures."""
    knobs = [name for name in design.factors if name in KNOBS]
    sentences = _of_cells(cell_figures(design, history)) if not knobs else []
    for group in groups_of(design, history) if knobs else ():
        if group.reference is None or len(group.cells) < 2:
            continue
        name = ", ".join(f"{level}" if n == "model" else f"{n} {level}" for n, level in group.levels.items())
        for metric in ("e", "edp"):
            best = chosen(design, group, metric)
            sentence = f"{name + ': ' if name else ''}the least {LEAST[metric]} is at {setting_text(best.cell)}"
            off = group.off_reference(best.cell)
            if off is not None:
                energy, time = off
                sentence += f", with {_per_cent(energy, 'energy')} and {_per_cent(time, 'time')} than at the reference"
            if len(best.as_good) > 1:
                others = "; ".join(spans(best.as_good, group.cells, knob) for knob in knobs)
                sentence += f"; {others} cannot be told from it"
            if metric == "e" and len(knobs) == 1:
                sentence += f"; within 1 % of the least energy lie {_valley(group, knobs[0])}"
            sentences.append(f"{sentence}.")
    groups = groups_of(design, history)
    sentences += [text for scaling in scalings(design, history) for text in _of_scaling(scaling)]
    sentences += _of_clocks(design, groups) + _of_batches(design, history)
    return [*sentences, *(f"{text[:1].upper()}{text[1:]}." for text in same_losses(design, history))]


def _of_cells(figures: Sequence[CellFigures]) -> list[str]:
    """The cell of least energy, and of those that are about as accurate as the best one."""
    if len(figures) < 2:
        return []
    unit = "J a sample" if figures[0].is_per_sample else "J"
    best = min(figures, key=lambda f: f.energy_j.value)
    sentences = [f"The least energy is at {best.cell}: {_text(best.energy_j)} {unit}."]
    for name in best.accuracy:
        known = [f for f in figures if name in f.accuracy]
        if is_lower_better(name) or not known:
            continue
        most = max(f.accuracy[name].value for f in known)
        good = [f for f in known if f.accuracy[name].value >= most * (1 - NEAR)]
        cheapest = min(good, key=lambda f: f.energy_j.value)
        among = f"{len(good)} of {len(known)} cells {'have' if len(good) > 1 else 'has'} a {name}"
        near = f"{among} within {100 * NEAR:g} % of the best ({most:.4g})"
        what = f"{_text(cheapest.energy_j)} {unit}, at a {name} of {_text(cheapest.accuracy[name])}"
        sentences.append(f"{near}; of these the least energy is at {cheapest.cell}: {what}.")
    return sentences


def _text(mean: Mean) -> str:
    return with_u95(mean.value, mean.u95)


VALLEY = 1.01
"""Settings that cost so many times the least energy are in its valley."""
HARDLY = 0.03
"""A change of speed below this is hardly one."""


def _valley(group: Group, knob: str) -> str:
    """The levels whose mean energy is near the least mean."""
    off = {cell: found[0] for cell in group.cells if (found := group.off_reference(cell)) is not None}
    near = [cell for cell, energy in off.items() if energy <= VALLEY * min(off.values())]
    return spans(near, group.cells, knob)


def _of_scaling(scaling: Scaling) -> list[str]:
    """How the saving goes with the number of GPUs, and how the speed does."""
    rows, name = scaling.rows, ", ".join(str(level) for level in scaling.levels.values())
    prefix = f"{name}: " if name else ""
    savings = [1 - row.energy.value for row in rows]
    numbers = _listed([f"{row.gpus}" for row in rows])
    verb = "grows" if savings == sorted(savings) else "does not simply grow"
    values = _listed([_with_u95(Mean(1 - row.energy.value, row.energy.u95), 100) for row in rows])
    what = f"{prefix}{'the' if prefix else 'The'} most energy that a setting saves"
    sentences = [f"{what} {verb} with the number of GPUs: {values} % with {numbers}."]
    most, set_to = rows[-1], setting_text(scaling.at)
    better = "better" if most.speed_up_set.value > most.speed_up.value else "no better"
    at_both = f"{_with_u95(most.speed_up)} times as fast as {rows[0].gpus} at the reference, and "
    at_both += f"{_with_u95(most.speed_up_set)} times at {set_to}"
    sentences.append(f"{prefix}{most.gpus} GPUs are {at_both}: there they scale {better}.")
    return sentences


def _of_clocks(design: Design, groups: Sequence[Group]) -> list[str]:
    """What each clock does from its least to its greatest level, all else being equal."""
    sentences = []
    for knob, name in ((CORE, "SM clock"), (MEMORY, "memory clock")):
        if levels := marginals(design, groups, knob):
            first, last = levels[0], levels[-1]
            speed, energy = first.time.value / last.time.value, last.energy.value / first.energy.value
            hardly = "hardly moves the speed" if abs(speed - 1) < HARDLY else "moves the speed"
            change = f"from {first.level:g} to {last.level:g} MHz it changes by {100 * (speed - 1):+.3g} %, "
            change += f"and energy by {100 * (energy - 1):+.3g} %"
            sentences.append(f"The {name} {hardly}: {change}, in the geometric mean over all else.")
    return sentences


def _of_batches(design: Design, history: History) -> list[str]:
    """What a sample costs by batch size at the reference, where runs of different batch sizes are compared by it."""
    by_others: dict[tuple[object, ...], dict[float, Mean]] = {}
    for f in cell_figures(design, history):
        batch = f.cell.levels.get("batch_size")
        is_reference = not design.reference or f.cell == design.reference_of(f.cell)
        if f.is_per_sample and is_reference and isinstance(batch, int | float):
            others = tuple(v for n, v in f.cell.levels.items() if n not in ("batch_size", *design.reference))
            by_others.setdefault(others, {})[float(batch)] = f.energy_j
    sentences = []
    for alike, means in by_others.items():
        joules = [means[batch] for batch in sorted(means)]
        if len(joules) > 1:
            is_less = all(a.value > b.value for a, b in pairwise(joules))
            name = f"{', '.join(map(str, alike))}: " if alike else ""
            sentences.append(
                f"{name}larger batches {'cost less' if is_less else 'do not always cost less'} per sample: "
                f"{_listed([_with_u95(mean) for mean in joules])} J at {_listed([f'{b:g}' for b in sorted(means)])}."
            )
    return sentences


def _listed(texts: Sequence[str]) -> str:
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else "".join(texts)


def _with_u95(mean: Mean, per: float = 1.0) -> str:
    """Three digits, with the 95 % half-width where there is one."""
    text = f"{per * mean.value:.3g}"
    return f"{text} ± {per * mean.u95:.2g}" if mean.u95 else text


def _per_cent(ratio: float, what: str) -> str:
    return f"{abs(100 * (ratio - 1)):.3g} % {'less' if ratio < 1 else 'more'} {what}"


def about(design: Design, history: History) -> Sequence[str]:
    """How the campaign was made."""
    repeats = design.repeats
    until, text = repeats.until, f"{repeats.max} repeats"
    if until is not None:
        width = f"the 95 % interval of {until.metric} is ± {100 * until.half_width:g} % of the mean"
        text = f"{repeats.min} to {repeats.max} repeats, until {width}"
    lines = [f"{text}, in {design.order.replace('-', ' ')} (seed {design.seed})."]
    if design.samples:
        lines.append(f"Each run does the same work: {design.samples:g} samples.")
    reasons: dict[str, int] = {}
    for record in history.records.values():
        for discard in record.discards:
            reasons[discard.reason] = reasons.get(discard.reason, 0) + 1
    if reasons:
        told = ", ".join(f"{count} as {reason}" for reason, count in reasons.items())
        lines.append(f"Runs that do not count: {told}. They were made again, as far as the guard allows.")
    ended = sum(1 for cell in design.cells() if _repeats_of(cell.id, history) == repeats.max)
    if until is not None:
        lines.append(f"{ended} of {len(design.cells())} cells ended at {repeats.max} repeats, narrow enough or not.")
    return lines


def _repeats_of(cell: str, history: History) -> int:
    return sum(1 for key, record in history.records.items() if key.startswith(f"{cell}-") and record.result)
