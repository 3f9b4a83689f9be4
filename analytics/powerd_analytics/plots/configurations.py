"""Configurations side by side: energy against time with its Pareto front, curves over the power cap, bars by phase.

They are rows of a frame, which comes from run files or from anybody's table. It has two columns more: ``per`` says what
energy and time of a row are of (`PER`), ``part`` which part of the machine it is: a CPU is no alternative to a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import hypot
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from powerd_analytics.energy.metrics import edp_js, eds, pareto_front
from powerd_analytics.frame.figure import Record, figure_of, number_of
from powerd_analytics.frame.figures import (
    ATTRIBUTE,
    Condition,
    Frame,
    concat_frames,
    dimension,
    factors_in,
    is_known,
    of_kind,
    parse_condition,
    rows_of,
)
from powerd_analytics.frame.merits import Merit, merit_of
from powerd_analytics.frame.published import CAPS_W, ENERGY_J, TIME_S, TableFile, published_frame
from powerd_analytics.frame.repeats import average_repeats, of_a_batch, without_gflops
from powerd_analytics.frame.trainings import Length, with_sums, without_summands
from powerd_analytics.output.colours import PALETTE, phase_colour
from powerd_analytics.output.text import digits, parse_number
from powerd_analytics.plots.style import (
    HATCHES,
    Bar,
    Height,
    bar_handles,
    brief,
    draw_bars,
    finish,
    heading,
    interval_note,
    legend_above,
    legend_beside,
    panel_inches,
    panels,
    quantity_axis,
    with_style,
)
from powerd_analytics.views.breakdown import is_part, of_configurations, of_trainings, parts_of_machines
from powerd_core.errors import AnalysisError
from powerd_core.settings import KNOB_AS_OPTION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PER = {
    "": ("energy_j", "time_s"),
    " a batch": ("j_per_batch", "s_per_batch"),
    " a sample": ("j_per_sample", "s_per_sample"),
}
"""The columns of energy and of time that are drawn, by what they are of."""
LARGEST, SMALLEST = 1e60, 1e-60
"""No axis can show numbers whose squares and quotients are none."""


# ---- what is drawn -----------------------------------------------------------------------------------------------


def configurations_of_runs(frame: Frame) -> Frame:
    """Parts of a batch, and totals a sample where batch sizes are known, else a batch; repeats averaged."""
    means = average_repeats(without_gflops(of_a_batch(of_kind(with_sums(frame, Length()), "phase", "total"))))
    phases, totals = of_configurations(means[is_part(means)]), of_trainings(means)
    kept = without_summands(concat_frames([phases, totals[is_known(totals, "j_per_batch")]]))
    has_samples = is_known(kept, "j_per_sample") & np.asarray(kept["kind"] == "total")
    per = np.where(has_samples, " a sample", " a batch")
    return kept.assign(device=_devices(kept), per=per, part=kept["device"].map(parts_of_machines(kept)))


def configurations_of_table(table: TableFile) -> Frame:
    """Rows of a table: phases a batch, where it says that, and all else as a whole, where it says that. Only attributes
    that are called so part configurations; a reference may be found by any column.

    Raises `AnalysisError` with file, row and column.
    """
    drawn = (*ENERGY_J, *TIME_S, *CAPS_W, *PER[" a batch"], "u95_j", "u95_s", "batch", "batch_size", "gpus")
    for name in (name for name in drawn if name in table.columns):
        size = np.abs(table.numbers(name, signed=True))
        for row in np.flatnonzero((size > LARGEST) | ((size > 0) & (size < SMALLEST))):
            raise table.fault(int(row), name, f"{table.cells[name][row]} cannot be drawn")
    frame = published_frame(table)
    frame = frame.drop(columns=[f"{ATTRIBUTE}{name}" for name in table.columns if f"{ATTRIBUTE}{name}" in frame])
    frame = frame.assign(**{name: table.cells[name] for name in table.columns if name not in frame})
    has_whole = _is_said(table, *ENERGY_J) & ~(_is_said(table, "j_per_batch") & np.asarray(frame["kind"] == "phase"))
    return frame.assign(device=_devices(frame), per=np.where(has_whole, "", " a batch"), part="")


def _is_said(table: TableFile, *names: str) -> NDArray[np.bool_]:
    """[rows] whether one of some columns has a text."""
    return np.asarray((table.cells.reindex(columns=list(names), fill_value="") != "").any(axis=1))


def _devices(frame: Frame) -> pd.Series:
    """[rows] devices by their product, with their own name where there are several of it."""
    pairs = frame[["device_name", "device"]].drop_duplicates()["device_name"]
    is_one_of_several = frame["device_name"].isin(pairs[pairs.duplicated(keep=False)])
    names = frame["device_name"] + (" " + frame["device"]).where(is_one_of_several, "").fillna("")
    return names.fillna(frame["device"])


# ---- rows --------------------------------------------------------------------------------------------------------


def _energy(row: Record) -> Height:
    """Joules of a row as they are drawn, with their 95 % half-width."""
    return _height(row, PER[str(row["per"])][0])


def _time(row: Record) -> Height:
    return _height(row, PER[str(row["per"])][1])


def _height(row: Record, name: str) -> Height:
    figure = figure_of(row, name)
    return (figure.value, figure.u95) if figure else (None, None)


def _values(rows: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Energy and time [n] of rows that have both."""
    return np.array([_energy(r)[0] for r in rows], float), np.array([_time(r)[0] for r in rows], float)


def _halves(rows: Sequence[Record]) -> list[float | None]:
    return [u95 for r in rows for u95 in (_energy(r)[1], _time(r)[1])]


def _is_bound(row: Record) -> bool:
    return row["is_lower_bound"] is True


def _provenance(row: Record) -> str:
    return str(row["provenance"] or "")


def _is_measured(row: Record) -> bool:
    return _provenance(row) in ("measured", "")


_SETTINGS = ("model", "batch_size", "gpus", "device", "power_cap_w")


def _names(among: Sequence[Record]) -> list[str]:
    """The columns that part configurations: settings, attributes of the phases, provenance."""
    return [*_SETTINGS, *factors_in(among[0] if among else ()), "provenance"]


def label(row: Record, among: Sequence[Record], leave_out: Sequence[str] = ()) -> str:
    """What tells a row from the others, in few words."""
    differ = [n for n in _names(among) if n not in leave_out and len({other[n] for other in among}) > 1]
    return ", ".join(_word(n, row[n]) for n in differ if row[n] is not None)


def _word(name: str, value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if name == "gpus":
        return f"{text} GPU{'' if text == '1' else 's'}"
    if name.startswith(ATTRIBUTE):
        return f"{name.removeprefix(ATTRIBUTE)} {text}"
    return {"batch_size": "batch {}", "power_cap_w": "{} W"}.get(name, "{}").format(text)


def _heading(row: Record, among: Sequence[Record], leave_out: str) -> str:
    """Of the panel that a row is in."""
    return label(row, among, (leave_out,)) or str(row["model"] or row["device"] or "")


def group_rows(rows: Sequence[Record], by: Sequence[str]) -> list[list[Record]]:
    """Rows that agree in all of these columns, a group a panel, in the order of their first."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return list(groups.values())


def _wanted(reference: str | None, frame: Frame) -> Condition | None:
    """``COLUMN=VALUE`` with the frame's own name of the column. Raises `ConfigError`, `AnalysisError`."""
    if reference is None:
        return None
    wanted = parse_condition("--reference", reference)
    return wanted if wanted.column in frame else replace(wanted, column=dimension(wanted.column, frame))


def _reference(same: Sequence[Record], wanted: Condition | None, fallback: Record) -> Record:
    """The row for which the condition holds. Raises `AnalysisError` unless there is exactly one."""
    if wanted is None:
        return fallback
    match = [r for r in same if r[wanted.column] is not None and wanted.holds(str(r[wanted.column]))]
    if len(match) != 1:
        raise AnalysisError(f"--reference {wanted}: {len(match)} configurations of a panel have it; one must")
    return match[0]


def _wholes(frame: Frame, kind: str) -> list[Record]:
    """Totals with energy and time. Raises `AnalysisError` for none."""
    rows = rows_of(of_kind(frame, "total"))
    if not (kept := [r for r in rows if _energy(r)[0] is not None and _time(r)[0] is not None]):
        raise AnalysisError(
            f"nothing to draw as {kind}: no configuration has energy and time of the whole; a table needs columns "
            "such as energy_j and time_s, a run phases with the attribute batch_size"
        )
    return kept


# ---- energy against time -----------------------------------------------------------------------------------------

_MARKERS = "osD^vP*X"
_MOST_NAMED = 12
"""More points than this get no text beside them, but those of the front do."""
_OF_K = ("#6fa8cf", "#d08770", "#9a8ac0", "#8fb573")
"""Of the lines of equal EDS, by k."""


@with_style
def draw_pareto(frame: Frame, name: str, reference: str | None = None, ks: Sequence[float] = (2.0,)) -> Figure:
    """A panel for each model, kind of power and part of the machine. EDS is relative to ``reference`` (COLUMN=VALUE),
    else to the fastest configuration.

    Raises `AnalysisError` where nothing has energy and time, or the reference is not exactly one.
    """
    kept, wanted = _wholes(frame, "pareto"), _wanted(reference, frame)
    groups = group_rows(kept, ("model", "per", "provenance", "part"))
    figure, axes = panels(len(groups), (8.2, 4.8), most_columns=2)
    for (ax,), same in zip(axes, groups, strict=True):
        _points(ax, same, wanted, ks)
        apart = [n for n in ("part", "provenance") if len({r[n] for r in kept}) > 1]
        heading(ax, ", ".join(str(same[0][n]) for n in ("model", *apart) if same[0][n]))
    hollow = "" if all(map(_is_measured, kept)) else "; hollow: not measured"
    note = f"{interval_note(_halves(kept))}; EDS relative to {reference or 'the fastest'}{hollow}"
    return finish(figure, f"{name}: energy against time", map(_provenance, kept), note)


def _points(ax: Axes, same: Sequence[Record], wanted: Condition | None, ks: Sequence[float]) -> None:
    energy, time = _values(same)
    ref = same.index(_reference(same, wanted, same[int(np.argmin(time))]))
    quantity_axis(ax.xaxis, f"time{same[0]['per']}", "s", time.tolist())
    quantity_axis(ax.yaxis, f"energy{same[0]['per']}", "J", energy.tolist())
    alike = ("batch_size", "power_cap_w", "model")
    names = [label(r, same, alike) or str(r["device"] or "configurations") for r in same]
    series = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(dict.fromkeys(names))}
    for at, (r, name) in enumerate(zip(same, names, strict=True)):
        ax.errorbar(
            time[at], energy[at], xerr=_time(r)[1], yerr=_energy(r)[1], color=series[name],
            marker=_MARKERS[list(series).index(name) % len(_MARKERS)], ms=5.5, capsize=2.5, ls="none", lw=1,
            mfc=series[name] if _is_measured(r) else "white", lolims=_is_bound(r), zorder=3,
            label=brief(name, 40) if names.index(name) == at else None,
        )  # fmt: skip
    ax.margins(0.12)
    _iso_lines(ax, time, energy, ref, ks)
    exact = [i for i, r in enumerate(same) if not _is_bound(r)]
    front = [exact[int(i)] for i in pareto_front(time[exact], energy[exact])] if exact else []
    if front:
        ax.plot(time[front], energy[front], color="#333333", lw=1.2, drawstyle="steps-post", zorder=2,
                marker="o", ms=10, mfc="none", mew=0.8, label="Pareto front")  # fmt: skip
    for at in range(len(same)) if len(same) <= _MOST_NAMED else front:
        name = brief(label(same[at], same, [n for n in _names(same) if n not in ("batch_size", "power_cap_w")]), 30)
        side = -1 if time[at] > sum(ax.get_xlim()) / 2 else 1  # towards the middle: the legend stands at the right
        ax.annotate(name, (time[at], energy[at]), xytext=(7 * side, 6), textcoords="offset points", fontsize=7,
                    color="#333333", ha="left" if side > 0 else "right")  # fmt: skip
    legend_beside(ax)


def _iso_lines(ax: Axes, time: np.ndarray, energy: np.ndarray, ref: int, ks: Sequence[float]) -> None:
    """Hyperbolas of equal EDP and straight lines of equal EDS: solid through the best, dotted through the reference,
    which is point ``ref``."""
    from matplotlib.ticker import EngFormatter

    (left, right), ends = ax.get_xlim(), ax.get_ylim()
    x = np.geomspace(left, right, 400) if ax.get_xscale() == "log" else np.linspace(left, right, 400)[1:]
    e0, t0 = float(energy[ref]), float(time[ref])
    for which, style, value in (("least", "-", float(np.min(edp_js(energy, time)))), ("reference", ":", e0 * t0)):
        text = f"equal EDP, {which}: {EngFormatter('J s', places=2)(value)}"
        ax.plot(x, value / x, color="#999999", lw=0.9, ls=style, zorder=1, label=text)
    for k, colour in zip(ks, _OF_K, strict=False):
        if min(e0, t0) <= 0 or k <= 1:
            continue
        for which, style, value in (("least", "-", float(np.min(eds(energy, time, e0, t0, k)))), ("reference", ":", 1)):
            text = f"equal EDS (k = {k:g}), {which}: {digits(value, 3)}"
            of_eds = (value - x / (k * t0)) * k * e0 / (k - 1)
            ax.plot(x, of_eds, color=colour, lw=0.9, ls=style, zorder=1, label=text)
    ax.set(xlim=(left, right), ylim=ends)


# ---- over the power cap ------------------------------------------------------------------------------------------

_CURVES = {"energy": PALETTE[0], "time": PALETTE[1], "EDP": PALETTE[2], "power": "#777777"}
_EDS = (PALETTE[4], PALETTE[5], PALETTE[6], PALETTE[3])
"""EDP and EDS run side by side, and deuteranopes see thin lines in green and purple as much the same grey."""
_K = 2.0, 1.5
"""Of the energy-delay sums that are drawn."""
_FEW_LEVELS = 12
"""More levels than this have no error bars: they would cover each other."""
SWEPT = {option: knob.words for option, knob in KNOB_AS_OPTION.items()}
"""What energy is drawn over."""


@with_style
def draw_sweep(
    frame: Frame, name: str, reference: str | None = None, ks: Sequence[float] = _K, *, knob: str = "power_cap_w"
) -> Figure:
    """A panel for each model, batch size and device, as figures 2 and 3 of Krzywaniak et al.: average power, energy,
    time, EDP, and an EDS for each k; 1 is ``reference`` (COLUMN=VALUE), else the highest level of the knob, one of
    `SWEPT`.

    Raises `AnalysisError` where no configuration has the knob, two of different energy or time have the same level, or
    the reference is not exactly one in a panel.
    """
    of_knob = knob if knob in frame else f"{ATTRIBUTE}{knob}"
    capped = [r for r in _wholes(frame, "caps") if r.get(of_knob) is not None]
    same_settings = [n for n in _names(capped) if n != of_knob]
    groups = [
        same for same in group_rows(capped, (*same_settings, "per")) if len({number_of(r, of_knob) for r in same}) > 1
    ]
    what = SWEPT[knob]
    if not groups:
        raise AnalysisError(f"no {what}s to compare: no model and device has two configurations that differ in it")
    every, wanted = [r for same in groups for r in same], _wanted(reference, frame)
    figure, axes = panels(len(groups), (4.6, 3.4))
    for (ax,), same in zip(axes, groups, strict=True):
        rising = sorted(same, key=lambda r: number_of(r, of_knob) or 0.0)
        # A table may have one level twice, as the best by two metrics.
        by_level = list({(number_of(r, of_knob), _energy(r)[0], _time(r)[0]): r for r in rising}.values())
        _curves(ax, by_level, _reference(same, wanted, by_level[-1]), ks, of_knob, what)
        heading(ax, _heading(same[0], every, of_knob))
    # Beside the panels: curves go wherever a legend within one could stand.
    legend_above(figure, axes[0][0].get_legend_handles_labels()[0])
    has_bars = max(len(same) for same in groups) <= _FEW_LEVELS
    bars = interval_note(_halves(every)) if has_bars else "intervals: see the table"
    note = f"relative to {reference or f'the highest {what}'}; {bars}; ringed: the best"
    return finish(figure, f"{name}: over the {what}", map(_provenance, every), note)


def _curves(ax: Axes, same: Sequence[Record], ref: Record, ks: Sequence[float], of_knob: str, what: str) -> None:
    caps, unit = [number_of(r, of_knob) or 0.0 for r in same], KNOB_AS_OPTION[of_knob.removeprefix(ATTRIBUTE)].unit
    if twice := [cap for cap in caps if caps.count(cap) > 1]:
        raise AnalysisError(f"two configurations have the {what} {twice[0]:g} {unit}: leave one of them out")
    if min(_energy(ref)[0] or 0.0, _time(ref)[0] or 0.0) <= 0:
        raise AnalysisError("the reference has an energy or a time of 0: nothing compares with it")
    few = len(caps) <= _FEW_LEVELS
    of_eds = {f"EDS (k = {k:g})": (colour, k) for k, colour in zip(ks, _EDS, strict=False)}
    curves = {name: (colour, 2.0) for name, colour in _CURVES.items()} | of_eds
    for (curve, (colour, k)), marker in zip(curves.items(), "osDx^v<>", strict=False):
        merit = merit_of(f"eds:{k:g}" if curve.startswith("EDS") else _MERIT_OF.get(curve, "e"))
        values, u95 = zip(*(_relative(r, ref, curve.partition(" ")[0], merit) for r in same), strict=True)
        ax.errorbar(caps, values, yerr=u95 if any(u95) and few else None, color=colour, marker=marker, lw=1.2,
                    ms=4 if few else 2.5, capsize=2, label=curve)  # fmt: skip
        if curve != "power":
            least = _best_of(same, merit, values)
            ax.plot(caps[least], values[least], marker="o", ms=10, mfc="none", mec=colour, ls="none")
    ax.axhline(1.0, color="#999999", lw=0.8, ls=":")
    ax.set_xlabel(f"{what} ({unit})")
    ax.set_ylabel(f"relative to {number_of(ref, of_knob):g} {unit} (1)")


_MERIT_OF = {"energy": "e", "time": "time", "EDP": "edp"}


def _best_of(same: Sequence[Record], merit: Merit, values: Sequence[float]) -> int:
    """The row that its campaign calls the best, else the least one."""
    marked = [i for i, row in enumerate(same) if _said(row, merit.within_column) == 0]
    return marked[0] if len(marked) == 1 else int(np.argmin(values))


def _said(row: Record, name: str) -> float | None:
    """A number of a column that a frame has as number or, from a table, as text."""
    value = row.get(name)
    return parse_number(value) if isinstance(value, str) else number_of(row, name)


def _relative(row: Record, ref: Record, curve: str, merit: Merit) -> tuple[float, float]:
    """A figure over the reference's with its 95 % half-width: as its campaign says, by blocks; else errors of both
    taken as independent, none for the reference itself."""
    ratio = _said(row, merit.ratio_column)
    if curve != "power" and ratio is not None and _said(ref, merit.ratio_column) == 1:
        return ratio, _said(row, f"u95_{merit.ratio_column}") or 0.0
    k = merit.k or 2.0
    ((e, u_e), (t, u_t)), ((e0, u_e0), (t0, u_t0)) = (
        [(value or 0.0, u95 or 0.0) for value, u95 in (_energy(r), _time(r))] for r in (row, ref)
    )
    of_e = of_t = 0.0
    if row is not ref:
        of_e, of_t = hypot(u_e / (e or 1.0), u_e0 / e0), hypot(u_t / (t or 1.0), u_t0 / t0)
    if curve == "EDS":
        return eds(e, t, e0, t0, k), hypot(of_e * e / e0 * (k - 1) / k, of_t * t / t0 / k)
    value, relative = {
        "power": (e / e0 / (t / t0), hypot(of_e, of_t)),
        "energy": (e / e0, of_e), "time": (t / t0, of_t), "EDP": (edp_js(e, t) / edp_js(e0, t0), hypot(of_e, of_t)),
    }[curve]  # fmt: skip
    return value, value * relative


# ---- phases by batch size --------------------------------------------------------------------------------------------

_ROWS = {"energy": (_energy, "J"), "time": (_time, "s")}


@with_style
def draw_phases(frame: Frame, name: str) -> Figure:
    """Bars in groups of one batch size, as in figures 5 to 8 of Castro et al., one bar a phase, energy above time.

    A panel for each model, device and number of GPUs, those of a model side by side. Without any time, energy alone.
    Raises `AnalysisError` where there are no phases.
    """
    kept = rows_of(of_kind(frame, "phase"))
    if all(_energy(r)[0] is None and not r["provenance"] for r in kept):
        raise AnalysisError("no phases to draw: a table needs the columns phase and j_per_batch")
    names = _names(kept)
    for same in group_rows(kept, (*names, "phase")):
        if len(same) > 1:
            raise AnalysisError(f"two rows for one bar of the picture: {label(same[0], kept)}: leave one of them out")
    models = list(dict.fromkeys(r["model"] for r in kept))
    groups = group_rows(kept, [*(n for n in names if n != "batch_size"), "per"])
    groups.sort(key=lambda same: (models.index(same[0]["model"]), _place(same[0], names, kept)))
    of_phases = {phase: phase_colour(phase) for phase in dict.fromkeys(str(r["phase"]) for r in kept)}
    has_time = any(_time(r)[0] is not None for r in kept)
    rows = ["energy", "time"] if has_time else ["energy"]
    figure, axes = panels(len(groups), (5.2, 2.7), rows=len(rows))
    unknown = "n.r." if any(r["provenance"] for r in kept) else "–"
    scales: dict[tuple[object, ...], list[Axes]] = {}
    for column, same in zip(axes, groups, strict=True):
        # One scale for a model, kind of power and part of the machine: panels side by side are there to be compared.
        alike = [r for r in kept if all(r[n] == same[0][n] for n in ("model", "provenance", "part", "per"))]
        for ax, row in zip(column, rows, strict=True):
            _panel(ax, same, of_phases, row, alike, unknown)
            scales.setdefault((row, *(same[0][n] for n in ("model", "provenance", "part", "per"))), []).append(ax)
        heading(column[0], _heading(same[0], kept, "batch_size"))
        column[-1].set_xlabel("batch size")
    for panels_alike in scales.values():
        reaches = [ax.get_ylim() for ax in panels_alike]
        for ax in panels_alike:
            ax.set_ylim(min(low for low, _ in reaches), max(high for _, high in reaches))
    why = f"{unknown}: {'not resolvable' if unknown == 'n.r.' else 'no figure'}"
    why = why if any(_energy(r)[0] is None for r in kept) else ""
    kinds, has_bounds = list(map(_provenance, kept)), any(map(_is_bound, kept))
    legend_above(figure, bar_handles(of_phases, kinds, why, has_bounds=has_bounds))
    of_model = f" of {models[0]}" if len(models) == 1 and models[0] else ""
    return finish(figure, f"{name}: {' and '.join(rows)} by phase{of_model}", kinds, interval_note(_halves(kept)))


def _place(row: Record, names: Sequence[str], among: Sequence[Record]) -> list[float]:
    """Where a panel stands among those of its model: by numbers from the least, by words as they come."""
    place = []
    for name in names:
        if name != "batch_size":
            number, words = number_of(row, name), list(dict.fromkeys(str(r[name]) for r in among))
            place.append(float(words.index(str(row[name]))) if number is None else number)
    return place


def _panel(
    ax: Axes, same: Sequence[Record], of_phases: dict[str, str], row: str, among: Sequence[Record], unknown: str
) -> None:
    (height, unit), is_energy = _ROWS[row], row == "energy"
    batches = sorted({number_of(r, "batch_size") for r in same}, key=lambda b: (b is None, b or 0.0))
    names = [n for n in of_phases if any(r["phase"] == n for r in same)]
    width = 0.84 / len(names)
    bars = [
        Bar(
            batches.index(number_of(r, "batch_size")) + (names.index(str(r["phase"])) - (len(names) - 1) / 2) * width,
            width,
            height(r),
            of_phases[str(r["phase"])],
            # Time is the host's own, however the power came about.
            HATCHES.get(_provenance(r), "") if is_energy else "",
            _is_bound(r) and is_energy,
        )
        for r in same
    ]
    draw_bars(ax, bars, list(map(height, among)), min(4.5, 0.8 * panel_inches(ax)), unknown=unknown)
    ticks = ["all" if b is None else f"{b:g}" for b in batches]
    ax.set_xticks(range(len(batches)), ticks, fontsize=9 if len(batches) <= 8 else 7)
    ax.set_xlim(-0.6, len(batches) - 0.4)
    text = f"{row}{same[0]['per']} ({unit})"
    ax.set_ylabel(text + (", logarithmic" if ax.get_yscale() == "log" else ""))
