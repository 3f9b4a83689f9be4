"""Grouped bars of joules a batch by phase as SVG within the page; its colours are the style sheet's, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from powerd_analytics.campaigns.components import parts_of_machines
from powerd_analytics.energy.reasons import digits
from powerd_analytics.records.columns import Cell, Record, number_of
from powerd_analytics.report.configurations import configuration, kind_order
from powerd_core.text import printable

LEFT, TOP, HEIGHT = 62, 14, 210
MOST_BARS = 90


@dataclass(frozen=True, slots=True)
class PageFigure:
    """Markup that is safe to stand in the page as it is, none where there is too much to draw, and what it shows in
    words."""

    svg: str
    caption: str


def phase_bars(records: Sequence[Record], colours: Mapping[str, int]) -> list[PageFigure]:
    """One figure for each device, provenance and model, of averaged innermost phases, measured ones first;
    ``colours`` are 0 to 7 by name."""
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in records:
        groups.setdefault((r["device"], r["provenance"], r["model"]), []).append(r)
    several = len({model for _, _, model in groups}) > 1
    parts = parts_of_machines(records)

    def scale(r: Record) -> tuple[Cell, ...]:
        """Figures of one model and part of the machine have one scale: they are there to be compared."""
        return r["model"], r["provenance"], parts[str(r["device"])]

    highest: dict[tuple[Cell, ...], float] = {}
    for r in records:
        top = (number_of(r, "j_per_batch") or 0.0) + (number_of(r, "u95_j") or 0.0)
        highest[scale(r)] = max(highest.get(scale(r), 0.0), top)
    made = []
    for (device, provenance, model), same in sorted(groups.items(), key=_order):
        told = _told_apart(same, without_model=several)
        places = list(dict.fromkeys(place for place, _ in told))
        names = list(dict.fromkeys(str(r["phase"]) for r in same))
        of = f" of {model}" if several and model is not None else ""
        what = f"Joules a batch{of} on {device} ({provenance}) by phase"
        if len(places) * len(names) > MOST_BARS:
            said = f"{what}: {len(places)} configurations are too many to be drawn here (joules plot --kind phases)."
            made.append(PageFigure("", printable(said)))
            continue
        at = {(place, str(r["phase"])): r for place, r in told}
        caption = f"{what}; whiskers are 95 % intervals, an arrow a lower bound, n.r. what the sensors cannot resolve."
        svg = _svg(places, names, at, colours, str(provenance), highest[scale(same[0])])
        made.append(PageFigure(svg, printable(caption)))
    return made


def _order(item: tuple[tuple[Cell, ...], Sequence[Record]]) -> tuple[int, float]:
    """Measured joules before others, then where there are more of them: as in the summary."""
    (_, provenance, _), same = item
    return kind_order(provenance), -sum(number_of(r, "j_per_batch") or 0.0 for r in same)


def _told_apart(same: Sequence[Record], *, without_model: bool) -> list[tuple[str, Record]]:
    """Records with the names of their places; those that differ in what no name says have their runs' names too."""
    names = [configuration(r, same, without_model=without_model) for r in same]
    found: dict[tuple[str, str], int] = {}
    for name, r in zip(names, same, strict=True):
        found[name, str(r["phase"])] = found.get((name, str(r["phase"])), 0) + 1
    shared = {name for (name, _), count in found.items() if count > 1}
    return [(f"{n}, {r['run']}" if n in shared else n, r) for n, r in zip(names, same, strict=True)]


def _svg(
    places: Sequence[str], names: Sequence[str], at: Mapping[tuple[str, str], Record], colours: Mapping[str, int],
    provenance: str, highest: float,
) -> str:  # fmt: skip
    bar = max(min(46.0, 900 / (len(places) * (len(names) + 0.8))), 6.0)
    cluster = bar * (len(names) + 0.8)
    width = LEFT + cluster * len(places) + 10
    if highest <= 0:
        highest = 1.0  # a device that took nothing, or whose shunt let some flow back
    step = _step(highest)
    top = step * ceil(highest * 1.05 / step)
    out = [_open(width, places, names, at)]
    for i in range(round(top / step) + 1):
        y = _y(i * step, top)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{width:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{i * step:.10g}</text>')
    out.append(f'<text transform="translate(12 {TOP + HEIGHT / 2}) rotate(-90)" text-anchor="middle">J a batch</text>')
    for i, place in enumerate(places):
        for k, name in enumerate(names):
            if (place, name) in at:
                x = LEFT + i * cluster + (k + 0.4) * bar
                out.append(_bar(at[place, name], x, bar * 0.9, top, colours.get(name, 6), provenance))
        middle = LEFT + (i + 0.5) * cluster
        for k, part in enumerate(place.split(", ")):
            said = _text(_short(part, cluster))
            out.append(f'<text x="{middle:.1f}" y="{TOP + HEIGHT + 16 + 13 * k}" text-anchor="middle">{said}</text>')
    foot = _foot(places)
    x = float(LEFT)
    for name in names:
        y = TOP + HEIGHT + foot + 6
        out.append(f'<rect class="c{colours.get(name, 6)}" x="{x:.1f}" y="{y - 9}" width="10" height="10"/>')
        out.append(f'<text x="{x + 14:.1f}" y="{y}">{_text(_short(name, 150))}</text>')
        x += 34 + 6.2 * min(len(name), 24)
    return "".join([*out, "</svg>"])


def _open(width: float, places: Sequence[str], names: Sequence[str], at: Mapping[tuple[str, str], Record]) -> str:
    """The element with its text for those who do not see it."""
    said = "; ".join(
        f"{place}, {name}: {_label(at[place, name])}" for place in places for name in names if (place, name) in at
    )
    hatch = (
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<line class="hatching" x1="0" x2="0" y1="0" y2="6"/></pattern></defs>'
    )
    label = _text(f"Bars of joules a batch. {said}")
    height = TOP + HEIGHT + _foot(places) + 14
    legend = LEFT + sum(34 + 6.2 * min(len(n), 24) for n in names)
    full = f"{max(width, legend):.0f}"
    size = f'width="{full}" height="{height}" viewBox="0 0 {full} {height}"'
    return f'<svg role="img" aria-label="{label}" {size}>{hatch}'


def _bar(record: Record, x: float, width: float, top: float, colour: int, provenance: str) -> str:
    j, u = number_of(record, "j_per_batch"), number_of(record, "u95_j")
    title = "<title>" + _text(f"{record['phase']}: {_label(record)}") + "</title>"
    if j is None:
        return f'<g>{title}<text x="{x + width / 2:.1f}" y="{_y(0, top) - 4:.1f}" text-anchor="middle">n.r.</text></g>'
    y, bottom = _y(max(j, 0.0), top), _y(0, top)
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(bottom - y, 0.5):.1f}"'
    out = [f'<g>{title}<rect class="c{colour}" {box}/>']
    if provenance != "measured":
        out.append(f'<rect class="unmeasured" {box}/>')
    middle, half = x + width / 2, min(width / 4, 4)
    if record["is_lower_bound"] is True:
        out.append(f'<path class="whisker" d="M{middle:.1f} {y:.1f}v-10m-3 4l3 -4l3 4"/>')
    elif u is not None:
        low, high = _y(max(j - u, 0.0), top), _y(j + u, top)
        ends = f"M{middle - half:.1f} {high:.1f}h{2 * half:.1f}M{middle - half:.1f} {low:.1f}h{2 * half:.1f}"
        out.append(f'<path class="whisker" d="M{middle:.1f} {high:.1f}V{low:.1f}{ends}"/>')
    return "".join([*out, "</g>"])


def _label(record: Record) -> str:
    j, u = number_of(record, "j_per_batch"), number_of(record, "u95_j")
    if j is None:
        return "not resolvable"
    least = "at least " if record["is_lower_bound"] is True else ""
    return f"{least}{digits(j)} J" + (f" ± {digits(u, 2)} J" if u is not None else "")


def _y(value: float, top: float) -> float:
    return TOP + HEIGHT * (1 - value / top)


def _foot(places: Sequence[str]) -> int:
    """Room for the names below the bars, a line for each part."""
    return 16 + 13 * max(len(place.split(", ")) for place in places)


def _step(highest: float) -> float:
    size = 10.0 ** floor(log10(highest / 5))
    return next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= highest / 5)


def _short(text: str, width: float) -> str:
    most = max(int(width / 6), 4)
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(text: str) -> str:
    return escape(printable(text))
