"""Grouped bars of joules a batch by phase as SVG within the page; its colours are the style sheet's, light and dark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

from powerd_analytics.campaign import parts_of_machines
from powerd_analytics.export import Cell
from powerd_analytics.records import Record, number_of
from powerd_analytics.report.findings import configuration, figure_text, kind_order
from powerd_core.text import printable

LEFT, TOP, HEIGHT = 62, 14, 210
MOST_BARS = 90
_HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line class="hatching" x1="0" x2="0" y1="0" y2="6"/></pattern></defs>'
)


def phase_bars(records: Sequence[Record], colours: Mapping[str, int]) -> list[tuple[str, str]]:
    """A figure for each device, provenance and model, of averaged innermost phases, measured ones first: markup that is
    safe to stand in the page as it is (none where there is too much to draw), and what it shows in words.

    ``colours`` are 0 to 7 by name.
    """
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in records:
        groups.setdefault((r["device"], r["provenance"], r["model"]), []).append(r)
    several = len({model for _, _, model in groups}) > 1
    parts = parts_of_machines(records)
    highest: Counter[tuple[Cell, ...]] = Counter()
    for r in records:
        top = (number_of(r, "j_per_batch") or 0.0) + (number_of(r, "u95_j") or 0.0)
        scale = r["model"], r["provenance"], parts[str(r["device"])]
        highest[scale] = max(highest[scale], top)  # type: ignore[assignment]

    def order(key: tuple[Cell, ...]) -> tuple[int, float]:
        """Measured joules before others, then where there are more of them: as in the summary."""
        return kind_order(key[1]), -sum(number_of(r, "j_per_batch") or 0.0 for r in groups[key])

    figures = []
    for device, provenance, model in sorted(groups, key=order):
        bars = _bars_by_place(groups[device, provenance, model], without_model=several)
        places, names = (list(dict.fromkeys(key[i] for key in bars)) for i in (0, 1))
        of = f" of {model}" if several and model is not None else ""
        what = f"Joules a batch{of} on {device} ({provenance}) by phase"
        if len(places) * len(names) > MOST_BARS:
            note = f"{what}: {len(places)} configurations are too many to be drawn here (joules plot --kind phases)."
            figures.append(("", printable(note)))
            continue
        # Figures of one model and part of the machine have one scale: they are there to be compared.
        top = highest[model, provenance, parts[str(device)]]
        caption = f"{what}; whiskers are 95 % intervals, an arrow a lower bound, n.r. what the sensors cannot resolve."
        svg = _svg(places, names, bars, colours, top, is_measured=provenance == "measured")
        figures.append((svg, printable(caption)))
    return figures


def _bars_by_place(same: Sequence[Record], *, without_model: bool) -> dict[tuple[str, str], Record]:
    """Records by the name of their place and their phase; those that differ in what no name says have their runs'
    names too."""
    names = [configuration(r, same, without_model=without_model) for r in same]
    count = Counter((name, r["phase"]) for name, r in zip(names, same, strict=True))
    shared = {name for (name, _), n in count.items() if n > 1}
    return {
        (f"{n}, {r['run']}" if n in shared else n, str(r["phase"])): r for n, r in zip(names, same, strict=True)
    }  # fmt: skip


def _svg(
    places: Sequence[str], names: Sequence[str], bars: Mapping[tuple[str, str], Record], colours: Mapping[str, int],
    highest: float, *, is_measured: bool,
) -> str:  # fmt: skip
    bar = max(min(46.0, 900 / (len(places) * (len(names) + 0.8))), 6.0)
    cluster = bar * (len(names) + 0.8)
    width = LEFT + cluster * len(places) + 10
    full = max(width, LEFT + sum(34 + 6.2 * min(len(n), 24) for n in names))
    foot = 16 + 13 * max(len(place.split(", ")) for place in places)
    step = _step(highest if highest > 0 else 1.0)  # of a device that took nothing, or whose shunt let some flow back
    top = step * ceil((highest if highest > 0 else 1.0) * 1.05 / step)
    words = "; ".join(f"{place}, {name}: {_value(r)}" for (place, name), r in bars.items())
    size = f'width="{full:.0f}" height="{TOP + HEIGHT + foot + 14}" viewBox="0 0 {full:.0f} {TOP + HEIGHT + foot + 14}"'
    out = [f'<svg role="img" aria-label="{_text(f"Bars of joules a batch. {words}")}" {size}>{_HATCH}']
    for i in range(round(top / step) + 1):
        y = _y(i * step, top)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{width:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{i * step:.10g}</text>')
    out.append(f'<text transform="translate(12 {TOP + HEIGHT / 2}) rotate(-90)" text-anchor="middle">J a batch</text>')
    for (place, name), record in bars.items():
        x = LEFT + places.index(place) * cluster + (names.index(name) + 0.4) * bar
        out.append(_bar(record, x, bar * 0.9, top, colours.get(name, 6), is_measured=is_measured))
    for i, place in enumerate(places):
        for k, part in enumerate(place.split(", ")):
            x, y = LEFT + (i + 0.5) * cluster, TOP + HEIGHT + 16 + 13 * k
            out.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{_text(_short(part, cluster))}</text>')
    x, y = float(LEFT), TOP + HEIGHT + foot + 6
    for name in names:
        out.append(f'<rect class="c{colours.get(name, 6)}" x="{x:.1f}" y="{y - 9}" width="10" height="10"/>')
        out.append(f'<text x="{x + 14:.1f}" y="{y}">{_text(_short(name, 150))}</text>')
        x += 34 + 6.2 * min(len(name), 24)
    return "".join([*out, "</svg>"])


def _bar(record: Record, x: float, width: float, top: float, colour: int, *, is_measured: bool) -> str:
    j, u = number_of(record, "j_per_batch"), number_of(record, "u95_j")
    title = "<title>" + _text(f"{record['phase']}: {_value(record)}") + "</title>"
    if j is None:
        return f'<g>{title}<text x="{x + width / 2:.1f}" y="{_y(0, top) - 4:.1f}" text-anchor="middle">n.r.</text></g>'
    y = _y(max(j, 0.0), top)
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(_y(0, top) - y, 0.5):.1f}"'
    out = [f'<g>{title}<rect class="c{colour}" {box}/>', "" if is_measured else f'<rect class="unmeasured" {box}/>']
    middle, half = x + width / 2, min(width / 4, 4)
    if record["is_lower_bound"] is True:
        out.append(f'<path class="whisker" d="M{middle:.1f} {y:.1f}v-10m-3 4l3 -4l3 4"/>')
    elif u is not None:
        low, high = _y(max(j - u, 0.0), top), _y(j + u, top)
        ends = f"M{middle - half:.1f} {high:.1f}h{2 * half:.1f}M{middle - half:.1f} {low:.1f}h{2 * half:.1f}"
        out.append(f'<path class="whisker" d="M{middle:.1f} {high:.1f}V{low:.1f}{ends}"/>')
    return "".join([*out, "</g>"])


def _value(record: Record) -> str:
    if number_of(record, "j_per_batch") is None:
        return "not resolvable"
    return figure_text(record).replace(" ± ", " J ± ")


def _y(value: float, top: float) -> float:
    return TOP + HEIGHT * (1 - value / top)


def _step(highest: float) -> float:
    size = 10.0 ** floor(log10(highest / 5))
    return next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= highest / 5)


def _short(text: str, width: float) -> str:
    most = max(int(width / 6), 4)
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(text: str) -> str:
    return escape(printable(text))
