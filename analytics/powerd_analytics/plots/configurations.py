"""Configurations side by side: energy against time with its Pareto front, curves over the power cap, bars by phase.

They come from records of run files, or from anybody's table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot
from typing import TYPE_CHECKING, Any

import numpy as np

from powerd_analytics.campaign import (
    Length,
    averaged,
    innermost,
    of_a_batch,
    of_configurations,
    of_trainings,
    parts_of_machines,
    without_gflops,
    without_summands,
)
from powerd_analytics.campaign_tables import prepared
from powerd_analytics.colours import PALETTE, phase_colour
from powerd_analytics.metrics import edp_js, eds, pareto_front
from powerd_analytics.plots.style import (
    HATCHES,
    Bar,
    Height,
    bar_handles,
    draw_bars,
    engineering_ticks,
    finish,
    heading,
    interval_note,
    legend_above,
    legend_beside,
    panels,
    shown,
    styled,
)
from powerd_analytics.published import CAPS_W, ENERGY_J, TIME_S, TableFile, column_in, parse_condition
from powerd_analytics.records import Record, attributes_of, figure_of, number_of, text_of
from powerd_analytics.table import group_line
from powerd_analytics.text import digits
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LARGEST, SMALLEST = 1e60, 1e-60
"""No axis can show numbers whose squares and quotients are none."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Energy and time of one configuration, or of one phase in it. What is not known is None or an empty text."""

    model: str = ""
    batch: float | None = None
    gpus: float | None = None
    device: str = ""
    provenance: str = ""
    power_cap_w: float | None = None
    phase: str = ""
    energy_j: float | None = None
    u95_j: float | None = None
    time_s: float | None = None
    u95_s: float | None = None
    is_lower_bound: bool = False
    others: str = ""
    """Attributes of the phases that differ within the picture."""
    part: str = ""
    """Which part of the machine it is of, where recordings have several: a CPU is no alternative to a GPU."""
    per: str = ""
    """What energy and time are of: the whole, ``" a batch"`` or ``" a sample"``."""
    cells: Mapping[str, str] = field(default_factory=dict)
    """Texts by column, to find a reference by."""

    @property
    def is_whole(self) -> bool:
        """Whether it is of a training, not of one of its phases."""
        return self.phase in ("", "all", "total")

    @property
    def is_measured(self) -> bool:
        return self.provenance in ("measured", "")


def label(c: Configuration, among: Sequence[Configuration], leave_out: Sequence[str] = ()) -> str:
    """What tells a configuration from the others, in few words."""
    parts = {
        "model": c.model,
        "batch": f"batch {c.batch:g}" if c.batch is not None else "",
        "gpus": f"{c.gpus:g} GPU{'s' if c.gpus != 1 else ''}" if c.gpus is not None else "",
        "device": c.device,
        "power_cap_w": f"{c.power_cap_w:g} W" if c.power_cap_w is not None else "",
        "others": c.others,
        "provenance": c.provenance,
    }
    differ = [n for n in parts if n not in leave_out and len({getattr(other, n) for other in among}) > 1]
    return ", ".join(parts[n] for n in differ if parts[n])


def grouped(configurations: Iterable[Configuration], by: Sequence[str]) -> list[list[Configuration]]:
    """Those that agree in all of these fields, a group a panel, in the order of their first."""
    groups: dict[tuple[object, ...], list[Configuration]] = {}
    for c in configurations:
        groups.setdefault(tuple(getattr(c, name) for name in by), []).append(c)
    return list(groups.values())


def _reference(same: Sequence[Configuration], condition: str | None, fallback: Configuration) -> Configuration:
    """The one for which ``COLUMN=VALUE`` holds. Raises `AnalysisError` unless there is exactly one, `ConfigError`."""
    if condition is None:
        return fallback
    wanted = parse_condition("--reference", condition)
    match = [c for c in same if wanted.column in c.cells and wanted.holds(c.cells[wanted.column])]
    if len(match) != 1:
        raise AnalysisError(f"--reference {condition}: {len(match)} configurations of a panel have it; one must")
    return match[0]


def _wholes(configurations: Sequence[Configuration], kind: str) -> list[Configuration]:
    """Configurations without a phase, with energy and time. Raises `AnalysisError` for none."""
    kept = [c for c in configurations if c.is_whole and c.energy_j is not None and c.time_s is not None]
    if not kept:
        raise AnalysisError(
            f"nothing to draw as {kind}: no configuration has energy and time of the whole; a table needs columns "
            "such as energy_j and time_s, a run phases with the attribute batch_size"
        )
    return kept


# ---- from records and tables -------------------------------------------------------------------------------------


def configurations_of_records(records: Sequence[Record]) -> list[Configuration]:
    """Innermost phases a batch, and totals a sample where batch sizes are known, else a batch; repeats averaged."""
    each_batch = (of_a_batch(r) for r in prepared(records, Length()) if r["kind"] in ("phase", "total"))
    means = averaged(map(without_gflops, each_batch))
    totals = of_trainings([r for r in means if r["kind"] == "total"])
    kept = without_summands([*of_configurations(innermost(means)), *totals])
    parts = parts_of_machines(kept)
    attributes = [attributes_of(r) for r in kept]
    names = dict.fromkeys(n for a in attributes for n in a)
    varying = [n for n in names if len({str(a.get(n)) for a in attributes}) > 1]
    # A product alone does not tell apart several of its devices that are not added up.
    pairs = {(r["device_name"], r["device"]) for r in kept}
    products = [name for name, _ in pairs]
    configurations = []
    for r, own in zip(kept, attributes, strict=True):
        product, device = text_of(r["device_name"]) or "", text_of(r["device"]) or ""
        name = f"{product} {device}" if product and products.count(r["device_name"]) > 1 else product or device
        others = group_line({n: own[n] for n in varying if n in own})
        configurations.append(replace(_of_record(r), device=name, others=others, part=parts[device]))
    return configurations


def _of_record(r: Record) -> Configuration:
    time, seconds = figure_of(r, "s_per_batch"), number_of(r, "s_per_batch")
    rate, joules, u95_j, n = (number_of(r, name) for name in ("samples_per_s", "j_per_batch", "u95_j", "iterations"))
    scale, per = 1.0, " a batch"
    if r["kind"] == "total":
        u95_j = u95_j / n if u95_j is not None and n else None  # a record has it of a batch for phases alone
        if rate and seconds:
            scale, per = 1 / (rate * seconds), " a sample"

    def scaled(value: float | None) -> float | None:
        return None if value is None else value * scale

    return Configuration(
        model=text_of(r["model"]) or "", batch=number_of(r, "batch_size"), gpus=number_of(r, "gpus"),
        provenance=text_of(r["provenance"]) or "", power_cap_w=number_of(r, "power_cap_w"),
        phase=text_of(r["phase"]) or "", energy_j=scaled(joules), u95_j=scaled(u95_j), time_s=scaled(seconds),
        u95_s=scaled(time.u95 if time else None), is_lower_bound=r["is_lower_bound"] is True, per=per,
        cells={k: "" if v is None else str(v) for k, v in r.items()},
    )  # fmt: skip


def configurations_of_table(table: TableFile) -> list[Configuration]:
    """Rows of a table with energy and time (any of `ENERGY_J`, `TIME_S`; ``j_per_batch`` and ``s_per_batch``).

    Rows of a phase take the figures of a batch, others the whole where the table has both. Rows that are of whole
    recordings in a table of ours are left out. Raises `AnalysisError` with file, row and column.
    """

    def first(*names: str) -> str:
        return next((name for name in names if name in table.columns), "")

    def texts(*names: str) -> Sequence[str]:
        return table.cells[first(*names)] if first(*names) else [""] * len(table)

    def whole(names: Mapping[str, float]) -> list[float | None]:
        for name in names:
            numbers_to_draw(table, name)
        return column_in(table, names) if first(*names) else [None] * len(table)

    columns = {
        "model": texts("model"), "device": texts("device_name", "device", "gpu"), "phase": texts("phase"),
        "provenance": texts("provenance"), "kind": texts("table", "kind"), "bound": texts("is_lower_bound"),
        "batch": numbers_to_draw(table, first("batch", "batch_size")), "gpus": numbers_to_draw(table, "gpus"),
        "caps": numbers_to_draw(table, first(*CAPS_W)), "j": whole(ENERGY_J), "s": whole(TIME_S),
        "batch_j": numbers_to_draw(table, "j_per_batch", signed=True), "u95_j": numbers_to_draw(table, "u95_j"),
        "batch_s": numbers_to_draw(table, "s_per_batch"), "u95_s": numbers_to_draw(table, "u95_s"),
    }  # fmt: skip
    configurations = []
    for i in range(len(table)):
        row: dict[str, Any] = {name: values[i] for name, values in columns.items()}
        if row["kind"] == "run":
            continue
        is_batch = bool(row["phase"] and row["batch_j"] is not None) or row["j"] is None
        configurations.append(Configuration(
            **{name: row[name] for name in ("model", "device", "phase", "provenance", "batch", "gpus")},
            power_cap_w=row["caps"], energy_j=row["batch_j" if is_batch else "j"], u95_j=row["u95_j"],
            time_s=row["batch_s" if is_batch else "s"], u95_s=row["u95_s"],
            is_lower_bound=row["bound"].lower() == "true", per=" a batch" if is_batch else "",
            cells={name: table.cells[name][i] for name in table.columns if name},
        ))  # fmt: skip
    return configurations


def numbers_to_draw(table: TableFile, name: str, *, signed: bool = False) -> list[float | None]:
    """A column's numbers [n], None throughout where the table does not have it. Raises `AnalysisError` for what is no
    number, or beyond what an axis can show."""
    if name not in table.columns:
        return [None] * len(table)
    numbers = table.numbers(name, signed=signed)
    for row, value in enumerate(numbers):
        if value and not SMALLEST <= abs(value) <= LARGEST:
            raise table.fault(row, name, f"{table.cells[name][row]} cannot be drawn")
    return numbers


# ---- energy against time -----------------------------------------------------------------------------------------

_MARKERS = "osD^vP*X"
_MOST_NAMED = 12
"""More points than this get no text beside them, but those of the front do."""
_LOG_FROM = 5.0
"""An axis whose largest value is so many times its least is logarithmic: else most points lie in one corner."""


@styled
def draw_pareto(
    configurations: Sequence[Configuration], name: str, reference: str | None = None, k: float = 2.0
) -> Figure:
    """A panel for each model, kind of power and part of the machine. EDS is relative to ``reference`` (COLUMN=VALUE),
    else to the fastest configuration.

    Raises `AnalysisError` where nothing has energy and time, or the reference is not exactly one.
    """
    kept = _wholes(configurations, "pareto")
    groups = grouped(kept, ("model", "per", "provenance", "part"))
    figure, axes = panels(len(groups), (8.2, 4.8), most_columns=2)
    for (ax,), same in zip(axes, groups, strict=True):
        _points(ax, same, reference, k)
        apart = [n for n in ("part", "provenance") if len({getattr(c, n) for c in kept}) > 1]
        heading(ax, ", ".join(filter(None, [same[0].model, *(getattr(same[0], n) for n in apart)])))
    hollow = "" if all(c.is_measured for c in kept) else "; hollow: not measured"
    intervals = interval_note(u for c in kept for u in (c.u95_j, c.u95_s))
    note = f"{intervals}; EDS relative to {reference or 'the fastest'}{hollow}"
    return finish(figure, f"{name}: energy against time", (c.provenance for c in kept), note)


def _points(ax: Axes, same: Sequence[Configuration], condition: str | None, k: float) -> None:
    energy, time = (np.array([getattr(c, n) for c in same], float) for n in ("energy_j", "time_s"))
    ref = _reference(same, condition, same[int(np.argmin(time))])
    for of, axis, values, what, unit in (("x", ax.xaxis, time, "time", "s"), ("y", ax.yaxis, energy, "energy", "J")):
        is_log = values.min() > 0 and values.max() > _LOG_FROM * values.min()
        text = f"{what}{same[0].per} ({unit})" + (", logarithmic" if is_log else "")
        ax.set(**{f"{of}scale": "log" if is_log else "linear", f"{of}label": text})
        engineering_ticks(axis, unit)
    names = [label(c, same, ("batch", "power_cap_w", "model")) or c.device or "configurations" for c in same]
    series = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(dict.fromkeys(names))}
    for at, (c, name) in enumerate(zip(same, names, strict=True)):
        ax.errorbar(
            time[at], energy[at], xerr=c.u95_s, yerr=c.u95_j, color=series[name],
            marker=_MARKERS[list(series).index(name) % len(_MARKERS)], ms=5.5, capsize=2.5, ls="none", lw=1,
            mfc=series[name] if c.is_measured else "white", lolims=c.is_lower_bound, zorder=3,
            label=shown(name, 40) if names.index(name) == at else None,
        )  # fmt: skip
    ax.margins(0.12)
    _iso_lines(ax, time, energy, ref, k)
    exact = [i for i, c in enumerate(same) if not c.is_lower_bound]
    front = [exact[int(i)] for i in pareto_front(time[exact], energy[exact])] if exact else []
    if front:
        ax.plot(time[front], energy[front], color="#333333", lw=1.2, drawstyle="steps-post", zorder=2,
                marker="o", ms=10, mfc="none", mew=0.8, label="Pareto front")  # fmt: skip
    for at in range(len(same)) if len(same) <= _MOST_NAMED else front:
        name = shown(label(same[at], same, ("model", "gpus", "device", "others", "provenance")), 30)
        side = -1 if time[at] > sum(ax.get_xlim()) / 2 else 1  # towards the middle: the legend stands at the right
        ax.annotate(name, (time[at], energy[at]), xytext=(7 * side, 6), textcoords="offset points", fontsize=7,
                    color="#333333", ha="left" if side > 0 else "right")  # fmt: skip
    legend_beside(ax)


def _iso_lines(ax: Axes, time: np.ndarray, energy: np.ndarray, ref: Configuration, k: float) -> None:
    """Hyperbolas of equal EDP and straight lines of equal EDS: solid through the best, dotted through the reference."""
    from matplotlib.ticker import EngFormatter

    (left, right), ends = ax.get_xlim(), ax.get_ylim()
    x = np.geomspace(left, right, 400) if ax.get_xscale() == "log" else np.linspace(left, right, 400)[1:]
    e0, t0 = float(ref.energy_j or 0.0), float(ref.time_s or 0.0)
    for which, style, value in (("least", "-", float(np.min(edp_js(energy, time)))), ("reference", ":", e0 * t0)):
        text = f"equal EDP, {which}: {EngFormatter('J s', places=2)(value)}"
        ax.plot(x, value / x, color="#999999", lw=0.9, ls=style, zorder=1, label=text)
    if e0 > 0 and t0 > 0 and k > 1:
        for which, style, value in (("least", "-", float(np.min(eds(energy, time, e0, t0, k)))), ("reference", ":", 1)):
            text = f"equal EDS (k = {k:g}), {which}: {digits(value, 3)}"
            of_eds = (value - x / (k * t0)) * k * e0 / (k - 1)
            ax.plot(x, of_eds, color="#6fa8cf", lw=0.9, ls=style, zorder=1, label=text)
    ax.set(xlim=(left, right), ylim=ends)


# ---- over the power cap ------------------------------------------------------------------------------------------

_CURVES = {"energy": PALETTE[0], "time": PALETTE[1], "EDP": PALETTE[2], "EDS": PALETTE[4]}
"""EDP and EDS run side by side, and deuteranopes see thin lines in green and purple as much the same grey."""


@styled
def draw_sweep(
    configurations: Sequence[Configuration], name: str, reference: str | None = None, k: float = 2.0
) -> Figure:
    """A panel for each model, batch size and device; 1 is ``reference`` (COLUMN=VALUE), else the highest cap.

    Raises `AnalysisError` where no configuration has a power cap, two of different energy or time have the same, or
    the reference is not exactly one in a panel.
    """
    capped = [c for c in _wholes(configurations, "caps") if c.power_cap_w is not None]
    groups = grouped(capped, ("model", "batch", "gpus", "device", "provenance", "others", "per"))
    groups = [same for same in groups if len({c.power_cap_w for c in same}) > 1]
    if not groups:
        raise AnalysisError("no power caps to compare: no model and device has two configurations that differ in it")
    every = [c for same in groups for c in same]
    figure, axes = panels(len(groups), (4.6, 3.4))
    for (ax,), same in zip(axes, groups, strict=True):
        # A table may have one cap twice, as the best by two metrics.
        by_cap = list({(_cap(c), c.energy_j, c.time_s): c for c in sorted(same, key=_cap)}.values())
        _curves(ax, by_cap, _reference(same, reference, by_cap[-1]), k)
        heading(ax, label(same[0], every, ("power_cap_w",)) or same[0].model or same[0].device)
    # Beside the panels: curves go wherever a legend within one could stand.
    legend_above(figure, axes[0][0].get_legend_handles_labels()[0])
    bars = interval_note(u for c in every for u in (c.u95_j, c.u95_s))
    note = f"relative to {reference or 'the highest cap'}; EDS with k = {k:g}; {bars}; ringed: least"
    return finish(figure, f"{name}: over the power cap", (c.provenance for c in every), note)


def _cap(c: Configuration) -> float:
    return c.power_cap_w or 0.0


def _curves(ax: Axes, same: Sequence[Configuration], ref: Configuration, k: float) -> None:
    caps = list(map(_cap, same))
    if twice := [cap for cap in caps if caps.count(cap) > 1]:
        raise AnalysisError(f"two configurations have the power cap {twice[0]:g} W: leave one of them out")
    if not (ref.energy_j and ref.time_s and min(ref.energy_j, ref.time_s) > 0):
        raise AnalysisError("the reference has an energy or a time of 0: nothing compares with it")
    for (curve, colour), marker in zip(_CURVES.items(), "osD^", strict=True):
        values, u95 = zip(*(_relative(c, ref, curve, k) for c in same), strict=True)
        ax.errorbar(caps, values, yerr=u95 if any(u95) else None, color=colour, marker=marker, ms=4, lw=1.2,
                    capsize=2, label=f"{curve} (k = {k:g})" if curve == "EDS" else curve)  # fmt: skip
        least = int(np.argmin(values))
        ax.plot(caps[least], values[least], marker="o", ms=10, mfc="none", mec=colour, ls="none")
    ax.axhline(1.0, color="#999999", lw=0.8, ls=":")
    ax.set_xlabel("power cap (W)")
    ax.set_ylabel("relative to the reference (1)")


def _relative(c: Configuration, ref: Configuration, curve: str, k: float) -> tuple[float, float]:
    """A figure over the reference's with its 95 % half-width: errors of both taken as independent, none for the
    reference itself."""
    e, t, e0, t0 = c.energy_j or 0.0, c.time_s or 0.0, ref.energy_j or 1.0, ref.time_s or 1.0
    of_e = of_t = 0.0
    if c.power_cap_w != ref.power_cap_w:
        of_e = hypot((c.u95_j or 0.0) / (e or 1.0), (ref.u95_j or 0.0) / e0)
        of_t = hypot((c.u95_s or 0.0) / (t or 1.0), (ref.u95_s or 0.0) / t0)
    if curve == "EDS":
        return eds(e, t, e0, t0, k), hypot(of_e * e / e0 * (k - 1) / k, of_t * t / t0 / k)
    value, relative = {
        "energy": (e / e0, of_e), "time": (t / t0, of_t), "EDP": (edp_js(e, t) / edp_js(e0, t0), hypot(of_e, of_t)),
    }[curve]  # fmt: skip
    return value, value * relative


# ---- phases by batch size --------------------------------------------------------------------------------------------

_PANEL = ("model", "gpus", "device", "provenance", "power_cap_w", "others")
_ROWS = {"energy": "energy a batch (J)", "time": "time a batch (s)"}


@styled
def draw_phases(configurations: Sequence[Configuration], name: str) -> Figure:
    """Bars in groups of one batch size, as in figures 5 to 8 of Castro et al., one bar a phase, energy above time.

    A panel for each model, device and number of GPUs, those of a model side by side. Without any time, energy alone.
    Raises `AnalysisError` where there are no phases.
    """
    kept = [c for c in configurations if not c.is_whole]
    if all(c.energy_j is None and not c.provenance for c in kept):
        raise AnalysisError("no phases to draw: a table needs the columns phase and j_per_batch")
    for same in grouped(kept, (*_PANEL, "batch", "phase")):
        if len(same) > 1:
            raise AnalysisError(f"two rows for one bar of the picture: {label(same[0], kept)}: leave one of them out")
    models = list(dict.fromkeys(c.model for c in kept))
    groups = sorted(grouped(kept, _PANEL), key=lambda same: models.index(same[0].model))
    of_phases = {c.phase: phase_colour(c.phase) for c in kept}
    rows = [row for row in _ROWS if row == "energy" or any(c.time_s is not None for c in kept)]
    figure, axes = panels(len(groups), (5.2, 2.7), rows=len(rows))
    unknown = "n.r." if any(c.provenance for c in kept) else "–"
    for column, same in zip(axes, groups, strict=True):
        # One scale for a model, kind of power and part of the machine: panels side by side are there to be compared.
        alike = [c for c in kept if all(getattr(c, n) == getattr(same[0], n) for n in ("model", "provenance", "part"))]
        for ax, row in zip(column, rows, strict=True):
            _panel(ax, same, of_phases, row, [_height(c, row) for c in alike], unknown)
        heading(column[0], label(same[0], kept, ("batch",)) or same[0].model or same[0].device)
        column[-1].set_xlabel("batch size")
    why = f"{unknown}: {'not resolvable' if unknown == 'n.r.' else 'no figure'}"
    why = why if any(c.energy_j is None for c in kept) else ""
    kinds, has_bounds = [c.provenance for c in kept], any(c.is_lower_bound for c in kept)
    legend_above(figure, bar_handles(of_phases, kinds, why, has_bounds=has_bounds))
    of_model = f" of {models[0]}" if len(models) == 1 and models[0] else ""
    note = interval_note(u for c in kept for u in (c.u95_j, c.u95_s))
    return finish(figure, f"{name}: {' and '.join(rows)} by phase{of_model}", kinds, note)


def _height(c: Configuration, row: str) -> Height:
    return (c.energy_j, c.u95_j) if row == "energy" else (c.time_s, c.u95_s)


def _panel(
    ax: Axes, same: Sequence[Configuration], of_phases: dict[str, str], row: str, among: Sequence[Height], unknown: str
) -> None:
    batches = sorted({c.batch for c in same}, key=lambda b: (b is None, b or 0.0))
    names = [n for n in of_phases if any(c.phase == n for c in same)]
    width = 0.84 / len(names)
    is_energy = row == "energy"
    bars = [
        Bar(
            batches.index(c.batch) + (names.index(c.phase) - (len(names) - 1) / 2) * width, width, _height(c, row),
            of_phases[c.phase],
            # Time is the host's own, however the power came about.
            HATCHES.get(c.provenance, "") if is_energy else "",
            c.is_lower_bound and is_energy,
        )
        for c in same
    ]  # fmt: skip
    draw_bars(ax, bars, among, 4.5, unknown=unknown)
    ticks = ["all" if b is None else f"{b:g}" for b in batches]
    ax.set_xticks(range(len(batches)), ticks, fontsize=9 if len(batches) <= 8 else 7)
    ax.set_xlim(-0.6, len(batches) - 0.4)
    ax.set_ylabel(_ROWS[row] + (", logarithmic" if ax.get_yscale() == "log" else ""))
