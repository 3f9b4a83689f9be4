"""One page about a campaign: what comes out of it as sentences, its figures, its tables, its design."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from powerd_analytics.campaigns.design import KNOBS, Design, level_text
from powerd_analytics.campaigns.journal import History
from powerd_analytics.campaigns.layouts import LEAST, campaign_tables, chosen, groups_of, spans
from powerd_analytics.campaigns.results import CellFigures, Mean, cell_figures, measured, results_frame, same_losses
from powerd_analytics.plots.configurations import draw_pareto, draw_sweep
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
    means = averaged(results_frame(design, measured(design, history)))
    return means.assign(per="", part="")


def figures(design: Design, history: History) -> Iterator[tuple[str, Figure]]:
    """What can be drawn of the campaign: a title and a picture each."""
    frame = configurations(design, history)
    reference = None
    if len(design.reference) == 1:
        (name, level), *_ = design.reference.items()
        reference = f"{name}={level}"
    if "power_cap_w" in design.factors and len(design.factors["power_cap_w"]) > 1:
        yield "Energy, time and their products over the power cap", _drawn_with(draw_sweep, frame, design, reference)
    if len(frame) > 1:
        yield "Energy against time", _drawn_with(draw_pareto, frame, design, reference)


def _drawn_with(draw: Callable[..., Figure], frame: Frame, design: Design, reference: str | None) -> Figure:
    """A picture whose panels have the design's reference, where each has one; else with its own."""
    try:
        return draw(frame, design.name, reference)
    except AnalysisError:
        return draw(frame, design.name)


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
            where = ", ".join(level_text(knob, best.cell.levels[knob]) for knob in knobs)
            sentence = f"{name + ': ' if name else ''}the least {LEAST[metric]} is at {where}"
            off = group.off_reference(best.cell)
            if off is not None:
                energy, time = off
                sentence += f", with {_per_cent(energy, 'energy')} and {_per_cent(time, 'time')} than at the reference"
            if len(best.as_good) > 1:
                others = "; ".join(spans(best.as_good, group.cells, knob) for knob in knobs)
                sentence += f"; {others} cannot be told from it"
            sentences.append(f"{sentence}.")
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
        sentences.append(
            f"Of the {len(good)} of {len(known)} cells whose {name} is within {100 * NEAR:g} % of the best "
            f"({most:.4g}), the least energy is at {cheapest.cell}: {_text(cheapest.energy_j)} {unit}, at a {name} of "
            f"{_text(cheapest.accuracy[name])}."
        )
    return sentences


def _text(mean: Mean) -> str:
    return with_u95(mean.value, mean.u95)


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
