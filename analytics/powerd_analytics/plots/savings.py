"""What each knob of a recurring training could save, as bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from powerd_analytics.colours import PALETTE
from powerd_analytics.optimise.simulate import Savings, potential_savings
from powerd_analytics.optimise.traces import JobTrace
from powerd_analytics.plots.style import Bar, bar_handles, draw_bars, finish, legend_above, panels, shown, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KNOBS: dict[str, Callable[[Savings], float]] = {
    "power limit alone": lambda savings: savings.power_cap_pct,
    "batch size alone": lambda savings: savings.batch_size_pct,
    "both": lambda savings: savings.both_pct,
}
_WIDTH = 0.27


@styled
def draw_savings(traces: Sequence[JobTrace], name: str) -> Figure:
    """Three bars for each job, in per cent of the energy with its default settings."""
    inches = max(4.5, 1.3 * len(traces) + 1.2)
    figure, (((ax,),)) = panels(1, (inches, 3.0))
    savings: list[Savings] = [potential_savings(trace) for trace in traces]
    colours = dict(zip(_KNOBS, PALETTE, strict=False))
    bars = [
        Bar(place + (k - 1) * _WIDTH, _WIDTH, (share(of_job), None), colours[knob])
        for place, of_job in enumerate(savings)
        for k, (knob, share) in enumerate(_KNOBS.items())
    ]
    draw_bars(ax, bars, [bar.height for bar in bars], inches, unknown="")
    ax.set_xticks(range(len(traces)), [f"{shown(t.job.name, 20)}\n{t.job.default.batch_size}" for t in traces])
    ax.set_xlabel("job, and its default batch size")
    ax.set_ylabel("energy saved in %")
    legend_above(figure, bar_handles(colours, ()))
    return finish(figure, f"Potential savings: {name}", ["measured"], "of the mean energy to the target, from traces")
