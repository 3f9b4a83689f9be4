"""Repeats of one configuration made one: their mean, and how sure it is.

Two rows are of one cell where all `FACTORS` agree, and all attributes of the phases but those that name a run (a seed,
an output path). What was merely observed, such as a clock that nobody locked, is an outcome and parts no cells. The
mean of n repeats has n - 1 degrees of freedom for what averages out; what is systematic is shared by all of them, and
does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from powerd_analytics.frame.figure import Figure, Record, figure_of, joules_column, number_of
from powerd_analytics.frame.figures import (
    RESULT,
    Frame,
    aggregate,
    attributes_in,
    factors_in,
    floats,
    rows_of,
    with_eds,
    worked_out,
)
from powerd_analytics.frame.means import mean_of_numbers, mean_of_repeats
from powerd_analytics.output.text import join_texts
from powerd_analytics.runs.accuracy import BEST

FACTORS = (
    "kind", "host", "program", "campaign", "cell", "model", "batch_size", "gpus", "ranks", "rank_numbers", "world_size",
    "machines", "device", "device_name", "provenance", "power_cap_w", "clock_hz", "memory_clock_hz", "phase",
    "phase_path", "timing", "rank", "operations_per_sample",
)  # fmt: skip
"""What must be the same for two rows to be repeats of one cell."""
BASIS = ("gflops_convention", "gflops_basis")
"""What a figure of GFLOPS/W is made of. Repeats have it as they have joules: a run without these is a repeat too."""
GFLOPS = ("gflops_per_w", "u_statistical_gflops_per_w", "u_systematic_gflops_per_w")
CAP_STEP_W = 0.5
"""Limits are set in whole watts and told in milliwatts."""
_STEPS = {"power_cap_w": CAP_STEP_W, "clock_hz": 1e5, "memory_clock_hz": 1e5}
"""By factor, what is rounded away: clocks are whole megahertz."""
OF_ALL_BATCHES = (
    "energy_j", "u95_j", "u_statistical_j", "u_systematic_j", "rectangle_j", "time_s", "rest_j", "rest_u95_j",
    "missing_s", "off_by_j",
)  # fmt: skip
"""Columns of a total that grow with its batches."""
WHOLE = ("run",)
"""Kinds of whole recordings, which are never averaged: how long they last before and behind the training is chance."""


def factors_of(frame: Frame, ignore: Sequence[str] = ()) -> list[str]:
    """The columns that part cells, but for those to ``ignore``."""
    return [name for name in (*FACTORS, *factors_in(frame)) if name not in ignore]


def cells_of(frame: Frame, apart: Sequence[str] = (), ignore: Sequence[str] = ()) -> NDArray[np.int64]:
    """[rows] the number of each row's cell: rows with the same number are repeats. ``apart``: further columns that part
    cells."""
    names = dict.fromkeys([*factors_of(frame, ignore), *apart])
    keys = frame[list(names)].copy()
    for name in _STEPS.keys() & names.keys():
        keys[name] = (floats(frame, name) / _STEPS[name]).round()
    is_whole = frame["kind"].isin(WHOLE)
    for name in ("path", "run_id"):
        keys[f"own {name}"] = frame[name].where(is_whole)
    return np.array(keys.groupby(list(keys.columns), dropna=False, sort=False).ngroup(), np.int64)


def of_a_batch(frame: Frame, which: NDArray[np.bool_] | None = None) -> Frame:
    """The frame with totals as of one of their batches, or only those ``which`` [rows]; others stay as they are."""
    n = floats(frame, "iterations")
    chosen = np.asarray(frame["kind"] == "total") & (n > 0) & np.asarray(frame["s_per_batch"].notna())
    chosen &= which if which is not None else True
    if not (chosen & (n != 1)).any():
        return frame
    frame = frame.copy()
    for name in OF_ALL_BATCHES:
        frame[name] = np.where(chosen, floats(frame, name) / np.where(chosen, n, 1.0), floats(frame, name))
    frame["iterations"] = frame["iterations"].mask(chosen, 1)
    return worked_out(frame)


def average_repeats(frame: Frame, apart: Sequence[str] = (), ignore: Sequence[str] = ()) -> Frame:
    """The frame with repeats made one, in the order of their first; the column ``runs`` says of how many each is the
    mean.

    Totals of other numbers of batches are compared by the batch: their mean is that of one. Where some repeats have no
    joules, the mean is that of the others, and the note says so.
    """
    if frame.empty:
        return frame
    cells = cells_of(frame, apart, ignore)
    if len(np.unique(cells)) == len(frame):  # nothing is repeated
        return with_eds(worked_out(frame.reset_index(drop=True)))
    frame = of_a_batch(frame, _of_unequal_work(frame, cells))
    is_kept, notes = _with_joules(frame, cells)
    frame, cells = frame[is_kept].reset_index(drop=True), cells[is_kept]
    means = aggregate(frame, cells, "repeats")
    for name in set(attributes_in(frame)) - set(factors_in(frame)):
        is_one = (frame[name].groupby(pd.factorize(cells)[0]).nunique(dropna=False) == 1).to_numpy()
        means[name] = means[name].where(is_one)  # a mean over seeds has none
    # Their order is that of the first of each cell.
    numbers = pd.factorize(cells)[0]
    is_total = means["kind"] == "total"
    first = frame["iterations"].groupby(numbers).first().reset_index(drop=True)
    means["iterations"] = means["iterations"].mask(is_total, first)
    counts = np.bincount(numbers)
    rows = rows_of(frame.iloc[np.flatnonzero(counts[numbers] > 1)])
    members: dict[int, list[Record]] = {}
    for number, row in zip(numbers[counts[numbers] > 1].tolist(), rows, strict=True):
        members.setdefault(number, []).append(row)
    told = {int(numbers[np.argmax(cells == cell)]): text for cell, text in notes.items()}
    for number, change in ((number, _mean(same)) for number, same in members.items()):
        told[number] = join_texts(told.get(number), change.pop("note"))
        for name, value in change.items():
            means.loc[number, name] = pd.NA if value is None else value
    for number, text in told.items():
        means.loc[number, "note"] = join_texts(_there(means.loc[number, "note"]), text)
    return with_eds(worked_out(means))


def _there(value: object) -> object:
    return "" if value is pd.NA else value


def _of_unequal_work(frame: Frame, cells: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[rows] totals of a cell whose repeats made different numbers of batches."""
    counts = frame["iterations"].groupby(cells).transform("nunique")
    return np.asarray(counts > 1)


def _with_joules(frame: Frame, cells: NDArray[np.int64]) -> tuple[NDArray[np.bool_], dict[int, str]]:
    """[rows] which repeats count, and a note by cell: joules of some runs beside the seconds of all would be a row of
    two populations."""
    is_phase = np.asarray(frame["kind"] == "phase", bool)
    has = ~np.isnan(np.where(is_phase, floats(frame, "j_per_batch"), floats(frame, "energy_j")))
    known_rows = pd.Series(has.astype(int)).groupby(cells).transform("sum").to_numpy()
    count = pd.Series(has).groupby(cells).transform("size").to_numpy()
    is_mixed = (known_rows > 0) & (known_rows < count)
    notes = {}
    for cell, i in zip(*np.unique(np.where(is_mixed, cells, -1), return_index=True), strict=True):
        if cell >= 0:
            reasons = join_texts(*frame["note"][(cells == cell) & ~has].dropna()).replace("; ", ", ")
            text = f"mean of {known_rows[i]} of {count[i]} runs, the others have no joules"
            notes[int(cell)] = f"{text}: {reasons}" if reasons else text
    return has | ~is_mixed, notes


def _mean(same: Sequence[Record]) -> dict[str, object]:
    """The columns of the mean of a cell's rows that no rule a column gives, and what to note."""
    first, name = same[0], joules_column(same[0])
    mean: dict[str, object] = {"note": ""}
    seconds = _mean_of(same, "s_per_batch") or _mean_of(same, "time_s")
    joules = _mean_of(same, name)
    mean["u_s_per_batch"] = seconds.u_statistical if seconds else None
    rated = next((r for r in same if number_of(r, "samples_per_s") and number_of(r, "s_per_batch")), None)
    if rated is not None and seconds is not None and seconds.value:
        samples = (number_of(rated, "samples_per_s") or 0.0) * (number_of(rated, "s_per_batch") or 0.0)
        mean["samples_per_s"] = samples / seconds.value
    mean |= joules_columns(name, joules)
    for column, of in (("degrees_of_freedom", joules), ("degrees_of_freedom_s", seconds)):
        mean[column] = None if of is None or of.degrees_of_freedom == inf else of.degrees_of_freedom
    # Operations per mean joule, so that the figure belongs to the mean energy; on one basis only.
    figures = [(f, tuple(r[c] for c in BASIS)) for r in same if (f := figure_of(r, "gflops_per_w")) is not None]
    bases = list(dict.fromkeys(basis for _, basis in figures))
    mean |= dict.fromkeys((*GFLOPS, *BASIS))
    if len(bases) > 1:
        mean["note"] = f"no GFLOPS/W: over the joules of {' or '.join(str(basis) for _, basis in bases)}, by run"
    elif bases:
        figure = mean_of_repeats([f.inverse() for f, _ in figures]).inverse()
        mean |= gflops_columns(figure) | dict(zip(BASIS, bases[0], strict=True))
    mean |= _u_of_results(same)
    return mean | ({"s_per_batch": seconds.value} if seconds and first["kind"] == "phase" else {})


def _u_of_results(same: Sequence[Record]) -> dict[str, object]:
    """``u_result_NAME``: the standard uncertainty of the mean result of n repeats, all of which have it."""
    u: dict[str, object] = {}
    for name in (name for name in same[0] if name.startswith(RESULT) and not name.endswith(BEST)):
        values = [value for r in same if (value := number_of(r, name)) is not None]
        if len(values) == len(same):
            u[f"u_{name}"] = mean_of_numbers(values).u_statistical
    return u


def _mean_of(same: Sequence[Record], name: str) -> Figure | None:
    figures = [f for r in same if (f := figure_of(r, name)) is not None]
    return mean_of_repeats(figures) if figures else None


def joules_columns(name: str, joules: Figure | None) -> dict[str, object]:
    """A figure of joules as columns; ``name`` is the one of its value."""
    if joules is None:
        return dict.fromkeys((name, "u_statistical_j", "u_systematic_j", "rectangle_j"))
    return {
        name: joules.value,
        "u_statistical_j": joules.u_statistical,
        "u_systematic_j": joules.u_systematic,
        "rectangle_j": joules.rectangle,
    }


def gflops_columns(figure: Figure | None) -> dict[str, object]:
    """A figure of GFLOPS/W as columns."""
    parts = (figure.value, figure.u_statistical, figure.u_systematic) if figure else (None, None, None)
    return dict(zip(GFLOPS, parts, strict=True))


def without_gflops(frame: Frame) -> Frame:
    """For figures of energy and time: runs whose GFLOPS/W are of different phases are repeats in these."""
    frame = frame.copy()
    for name in (*GFLOPS, *BASIS):
        frame[name] = pd.Series([None] * len(frame), dtype=object).astype(frame[name].dtype)
    return frame
