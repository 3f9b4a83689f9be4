"""One page about a campaign: what comes out of it as sentences, its figures, its tables, its design."""

from __future__ import annotations

import base64
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from powerd_analytics.campaign_views.all_tables import campaign_tables
from powerd_analytics.campaign_views.campaign_figures import CAP, Campaign, run_notes
from powerd_analytics.campaign_views.cell_tables import phase_names
from powerd_analytics.campaign_views.findings import findings
from powerd_analytics.campaign_views.group_tables import savings
from powerd_analytics.campaign_views.groups import CORE, MEMORY
from powerd_analytics.campaign_views.pictures import (
    K,
    clock_pictures,
    draw_gpus,
    draw_kinds,
    draw_knob_savings,
    draw_normalised,
    draw_scaling,
    draw_slowdown,
)
from powerd_analytics.campaigns.design import GPUS, KNOBS, MODEL, Cell
from powerd_analytics.frame.merits import merit_of
from powerd_analytics.output.text import MADE_BY
from powerd_analytics.plots.configurations import SWEPT, draw_pareto, draw_sweep
from powerd_analytics.plots.style import with_style
from powerd_analytics.report.page import own_text, script_hash
from powerd_analytics.report.sheets import shown_sheet
from powerd_client.host.ownership import write_new
from powerd_core.errors import AnalysisError
from powerd_core.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PASSES = ("forward", "backward")
_MOST_PANELS = 12
"""A picture of more panels cannot be read."""


def write_report(campaign: Campaign, out: Path) -> None:
    """Write the page, a new file. Raises `AnalysisError` for a campaign without any result."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    design = campaign.design
    if not campaign.runs:
        raise AnalysisError("the campaign has no result yet")
    style, script = own_text("report.css"), own_text("report.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    page = environment.from_string(own_text("sheet.html") + own_text("campaign.html"))
    text = page.render(
        made_by=MADE_BY,
        title=printable(f"Campaign {design.name}"),
        subtitle=f"{len(campaign.runs)} runs of {len(design.cells())} cells",
        provenances=campaign.provenances,
        findings=list(map(printable, findings(campaign))),
        figures=[{"title": p.title, "png": _png(p.draw())} for p in pictures(campaign)],
        tables=[shown_sheet(table) for table in campaign_tables(campaign)],
        about=list(map(printable, describe_campaign(campaign))),
        command=printable(" ".join(design.command)),
        style=Markup(style),
        style_hash=script_hash(style),
        script=Markup(script),
        script_hash=script_hash(script),
    )
    write_new(out, text, 0o666)


def _png(figure: Figure) -> str:
    return base64.b64encode(_drawn(figure)).decode()


@with_style
def _drawn(figure: Figure) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=140)
    return data.getvalue()


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    """Of its file, without ending."""
    title: str
    draw: Callable[[], Figure]


def pictures(campaign: Campaign, beside: Sequence[Campaign] = ()) -> Iterator[Picture]:
    """What can be drawn of the campaign. ``beside`` are campaigns whose panels stand beside its own where that is
    normalised."""
    design, figures = campaign.design, campaign.cells
    swept = [knob for knob in KNOBS if len(design.factors.get(knob, ())) > 1]
    has_reference = any(f.ratios for f in figures)
    if len(set(map(_others, design.cells()))) <= _MOST_PANELS:
        yield from _configurations(campaign, swept)
    if has_reference and swept:
        title = "Energy against time, both of the reference's"
        yield Picture("normalised", title, partial(draw_normalised, [campaign, *beside]))
    for knob in (CORE, MEMORY):
        if knob in swept and has_reference:
            for kind, draw in clock_pictures(campaign, knob):
                title = f"Speed, power and energy over the {SWEPT[knob]}{f', {kind}' if kind else ''}"
                yield Picture("-".join([knob.removesuffix("_mhz"), *re.findall(r"\w+", kind)]), title, draw)
    if {CAP, CORE} <= set(swept) and has_reference:
        yield Picture("slowdown", "Cap against clock at equal slowdown", partial(draw_slowdown, campaign))
    if CAP in swept and len(design.factors.get(GPUS, ())) > 1 and has_reference:
        yield Picture("gpus", "Caps by number of GPUs", partial(draw_gpus, campaign))
        yield Picture("scaling", "Time by number of GPUs", partial(draw_scaling, campaign))
    if design.analysis.instrument.moved_over:
        own = list(dict.fromkeys(name for m in campaign.runs for name in phase_names(m.result)))
        both = [PASSES] if set(PASSES) <= set(own) else []
        for phases in [*((name,) for name in own), *both]:
            title = f"{' + '.join(phases)} by batch size and GPUs"
            drawn = partial(draw_kinds, campaign, phases)
            yield Picture(f"kinds-{'-'.join(phases)}", title[:1].upper() + title[1:], drawn)
    if savings(campaign):
        yield Picture("savings", "What each knob saves", partial(draw_knob_savings, campaign))


def _configurations(campaign: Campaign, swept: Sequence[str]) -> Iterator[Picture]:
    """Curves over the one knob that is swept, and all configurations with their front."""
    design = campaign.design
    frame = campaign.frame
    one = next(iter(design.reference.items())) if len(design.reference) == 1 else None
    reference = f"{one[0]}={one[1]}" if one is not None and not isinstance(one[1], Mapping) else None
    if len(swept) == 1:
        title = f"Power, energy, time and their products over the {SWEPT[swept[0]]}"
        yield Picture("sweep", title, partial(draw_sweep, frame, design.name, reference, knob=swept[0]))
    # Runs of different work are no alternatives to each other.
    if len(frame) > 1 and not campaign.is_per_sample:
        references = Counter(c.levels.get(MODEL) for c in design.cells() if c == design.reference_of(c))
        own = reference if set(references.values()) == {1} else None
        yield Picture("pareto", "Energy against time", partial(draw_pareto, frame, design.name, own, K))


def _others(cell: Cell) -> tuple[object, ...]:
    return tuple(level for name, level in cell.levels.items() if name not in KNOBS)


def describe_campaign(campaign: Campaign) -> Sequence[str]:
    """How the campaign was made."""
    design, history = campaign.design, campaign.history
    repeats = design.repeats
    until, text = repeats.until, f"{repeats.max} repeats"
    if until is not None:
        width = f"the 95 % interval of {merit_of(until.metric).heading} is ± {100 * until.half_width:g} % of the mean"
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
    lines += [f"{note[:1].upper()}{note[1:]}." for note in run_notes(design, history)]
    counts = history.repeats()
    ended = sum(counts.get(cell.id) == repeats.max for cell in design.cells())
    if until is not None:
        lines.append(f"{ended} of {len(design.cells())} cells ended at {repeats.max} repeats, narrow enough or not.")
    return lines
