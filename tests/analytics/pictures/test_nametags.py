"""Names beside points: none over another, over a point, or beyond the axes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from powerd_analytics.pictures.nametags import _PANEL_PT, NamedPoint, put_names
from powerd_analytics.pictures.style import middle

POINTS = st.lists(
    st.tuples(st.floats(1, 100), st.floats(1, 100), st.sampled_from(["", "batch 64", "batch 1024\n150 W"])),
    min_size=1, max_size=12,
)  # fmt: skip


def boxes(ax):
    """Of each name in points, as `put_names` reckons."""
    to_axes = ax.transScale + ax.transLimits
    for text in ax.texts:
        (x, y), (dx, dy) = to_axes.transform(text.xy) * _PANEL_PT, text.get_position()
        lines = text.get_text().split("\n")
        width, height = 3.9 * max(map(len, lines)), 8.5 * len(lines)
        left = x + dx - (width if text.get_horizontalalignment() == "right" else 0.0)
        yield left, y + dy, left + width, y + dy + height


@settings(max_examples=25, deadline=None)
@given(POINTS, st.sampled_from(["linear", "log"]))
def test_names_cover_nothing(points, scale):
    ax = Figure().subplots()
    ax.set_xscale(scale)
    ax.set_xlim(0.9, 110)
    ax.set_ylim(0, 110)
    put_names(ax, [NamedPoint(*p) for p in points])
    found = list(boxes(ax))
    for i, a in enumerate(found):
        assert a[0] >= 0
        assert a[1] >= 0
        assert a[2] <= _PANEL_PT[0] + 1e-6
        assert a[3] <= _PANEL_PT[1] + 1e-6
        for b in found[:i]:
            assert a[0] >= b[2] - 1e-6 or b[0] >= a[2] - 1e-6 or a[1] >= b[3] - 1e-6 or b[1] >= a[3] - 1e-6


def test_points_in_a_heap_have_names_all_the_same():
    ax = Figure().subplots()
    ax.set_xlim(0, 10)
    ax.set_ylim(0, 10)
    put_names(ax, [NamedPoint(5 + 0.01 * i, 5.0, f"batch {2**i}") for i in range(12)])
    assert len(ax.texts) == 12


@given(st.text(max_size=80), st.integers(3, 40))
def test_long_names_keep_both_ends(text, most):
    short = middle(text, most)
    assert len(short) <= max(most, 0) or short == text
    if short != text:
        head, tail = short.split("…")[0] or "", short[-1]
        assert text.startswith(head)
        assert text.endswith(tail)
