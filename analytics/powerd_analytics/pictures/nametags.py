"""Names beside the points of a picture, none over another, over a point or beyond the axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL_PT = (390.0, 300.0)
"""About the size of a panel's axes in points: enough to tell whether two names meet."""
_STEPS = (4.0, 14.0, 24.0, 36.0, 50.0, 66.0)
"""How far from its point a name may stand, in points; from the second on a line leads to it."""
_POINT_PT = 4.0
_Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class NamedPoint:
    """A point in the units of the axes; an empty text only keeps its place free."""

    x: float
    y: float
    text: str


def put_names(ax: Axes, points: Sequence[NamedPoint]) -> None:
    """Each name at the first free place around its point; one that has none is left out."""
    to_axes = ax.transScale + ax.transLimits
    places = [tuple(to_axes.transform((p.x, p.y)) * _PANEL_PT) for p in points]
    taken: list[_Box] = [(x - _POINT_PT, y - _POINT_PT, x + _POINT_PT, y + _POINT_PT) for x, y in places]
    for point, (x, y) in dict(zip(points, places, strict=True)).items():
        if not point.text:
            continue
        width, height = 3.9 * max(map(len, point.text.split("\n"))), 8.5 * (1 + point.text.count("\n"))
        for step in _STEPS:
            found = next((o for o in _around(step) if _is_free(_box(x, y, o, width, height), taken)), None)
            if found is None:
                continue
            taken.append(_box(x, y, found, width, height))
            leader = {"arrowstyle": "-", "color": "#999999", "lw": 0.5, "shrinkA": 0, "shrinkB": 3}
            ax.annotate(
                point.text, (point.x, point.y), xytext=found, textcoords="offset points", fontsize=7, color="#333333",
                ha="left" if found[0] > 0 else "right", va="bottom",
                arrowprops=leader if step > _STEPS[0] else None,
            )  # fmt: skip
            break


def _around(step: float) -> list[tuple[float, float]]:
    """Offsets of a name's lower corner from its point: right before left, above before below."""
    beside = [(step + 1, step), (step + 1, -step - 6), (-step - 1, step), (-step - 1, -step - 6)]
    return [*beside, (step + 6, -4), (-step - 6, -4)]


def _box(x: float, y: float, offset: tuple[float, float], width: float, height: float) -> _Box:
    left = x + (offset[0] if offset[0] > 0 else offset[0] - width)
    return left, y + offset[1], left + width, y + offset[1] + height


def _is_free(box: _Box, taken: Sequence[_Box]) -> bool:
    if box[0] < 0 or box[1] < 0 or box[2] > _PANEL_PT[0] or box[3] > _PANEL_PT[1]:
        return False
    return not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken)
