"""The frame of figures: one row for each row of a run's table, the same columns for one run, for many, and for sums.

A `Frame` is a pandas frame with one dtype a column. A figure is several columns: its value, the two parts of its
standard uncertainty, the shape of the systematic one and the degrees of freedom of the statistical one. Attributes of
the phases that have no column of their own follow as ``attribute_NAME``.

Rows are put together in two ways, each with a rule a column in `COLUMNS`: repeats are averaged
(`powerd_analytics.frame.repeats`), GPUs and machines of one training are added up (`powerd_analytics.frame.trainings`).
What follows from joules and seconds (power, products, figures of a sample) is worked out again afterwards:
`worked_out`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import dropwhile, pairwise
from math import isclose, isfinite, isnan, nan, sqrt
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from powerd_analytics.energy.metrics import eds, gflops_per_w_paper
from powerd_analytics.energy.uncertainty import beyond_rounding, expanded_uncertainty
from powerd_analytics.frame.figure import Record, number_of
from powerd_analytics.output.export import Column, Kind, Table, encodable, is_number, make_table
from powerd_analytics.output.text import Cell, is_number_cell, join_texts, parse_number
from powerd_analytics.run_tables.table import (
    GroupKey,
    PhaseGroup,
    PhaseRow,
    PhaseTable,
    Row,
    RunRow,
    TotalRow,
    above_idle,
    attribute_text,
    check_rows,
    group_key,
    groups_of,
    iterations_of,
    kept_table,
    labels_of,
    stretches_of,
)
from powerd_analytics.runs.accuracy import BEST, Series, series_of
from powerd_analytics.runs.in_force import ENFORCED_CAP, Enforced
from powerd_analytics.runs.kept import keep, key_of_file, key_of_run, recall
from powerd_analytics.runs.phases import EXECUTED, LAYER, OPERATIONS, PhaseClass, positive_number, select_phases
from powerd_analytics.runs.ranks import Ranks, device_identity, note_of, notes_of_runs, other_programs, ranks_of
from powerd_analytics.runs.run import Progress, Run, no_progress, read_run, recalibrate
from powerd_analytics.runs.settings import AMBIENT, Driver, Setting, settings_of
from powerd_analytics.runs.wall_clock import begin_unix_s
from powerd_client.host.job_identity import SET
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.settings import KNOB_AS_OPTION
from powerd_core.text import printable

Frame: TypeAlias = pd.DataFrame
Values = NDArray[np.float64]

FRAME_VERSION = 3
"""Rises when a column changes its meaning or goes; new columns do not raise it."""

# -- columns -----------------------------------------------------------------------------------------------------------

Rule = Literal["first", "all", "mean", "mean of all", "sum", "least", "greatest", "any", "again", "none"]
"""What rows that are put together have in a column: the first one's value; all texts, each once; the mean of the values
that are known, or where all are; the sum where all are; the least or the greatest; whether any has it; what is worked
out again from the others; or nothing."""


@dataclass(frozen=True, slots=True)
class _Column(Column):
    """With the rules by which rows are put together in it."""

    repeats: Rule = "first"
    parts: Rule = "first"
    """Of a training: its GPUs and machines."""


_COLUMNS = (
    _Column("kind",
            meaning="phase: mean of one kind of phase; total: all phases of a group; run: the recording; rank: "
            "seconds of one rank"),
    _Column("run", repeats="all", meaning="file name without suffix"),
    _Column("path", repeats="all", meaning="the run file"),
    _Column("run_id", repeats="all", meaning="the recording's own id"),
    _Column("created_utc", repeats="all", meaning="when it began, wall clock"),
    _Column("host", is_setting=True, meaning="the machine that trained"),
    _Column("processor", repeats="all", parts="all", meaning="the machine's processor, as the kernel names it"),
    _Column("cores", "integer", "1", repeats="greatest", meaning="its logical cores"),
    _Column("memory_gib", "number", "GiB", repeats="greatest", meaning="its memory"),
    _Column("git_commit", repeats="all", parts="all", meaning="what was checked out where the training's program lies"),
    _Column("torch_version", repeats="all", parts="all", heading="torch", meaning="of torch, where it is installed"),
    _Column("program", is_setting=True,
            meaning="the command without interpreter, folders, seeds, output paths and the run file's own name"),
    _Column("campaign", meaning="which campaign the run was made for"),
    _Column("cell", meaning="of a campaign: the setting of all its factors, as ten letters"),
    _Column("block", "integer", "1", repeats="none", meaning="of a campaign: in which block the run was made"),
    _Column("seed", repeats="all", meaning="attribute of the phases, else the command's option"),
    _Column("model", is_setting=True, meaning="attribute of the phases"),
    _Column("batch_size", "number", "1", heading="batch", is_setting=True, meaning="attribute of the phases"),
    _Column("gpus", "integer", "1", is_setting=True,
            meaning="attribute of the phases, else GPUs that processes say they use, else ranks, else 1"),
    _Column("ranks", "integer", "1", is_setting=True,
            meaning="processes of a job in the run; each with a batch of its own where more than one"),
    _Column("rank", "integer", "1", meaning="of kind rank: which one"),
    _Column("sharing", "integer", "1", parts="none", meaning="ranks that share the device"),
    _Column("ranks_counted", "integer", "1",
            meaning="of totals: ranks that share the device and whose iterations are counted"),
    _Column("job", meaning="how the launcher names the training"),
    _Column("job_id", repeats="all", meaning="of a cluster's job: its number, as the scheduler counts"),
    _Column("job_name", repeats="all", parts="all", meaning="the same: its name"),
    _Column("job_user", repeats="all", parts="all", meaning="the same: who submitted it"),
    _Column("job_account", repeats="all", parts="all", meaning="the same: whom it is charged to"),
    _Column("job_partition", repeats="all", parts="all", meaning="the same: its partition, queue or namespace"),
    _Column("job_step", repeats="all", meaning="the same: its step, or its number in an array"),
    _Column("world_size", "integer", "1", meaning="ranks of the whole training, as the launcher says"),
    _Column("rank_numbers", meaning="the ranks whose processes are in the run"),
    _Column("machines", "integer", "1", meaning="of a training's sums: machines whose runs are added up"),
    _Column("job_machines", "integer", "1", meaning="machines of the whole training, as the launcher says"),
    _Column("begin_unix_s", "number", "s", parts="none",
            meaning="when a part of a training began, by that machine's wall clock, since 1970"),
    _Column("device", is_setting=True, meaning="whose joules they are"),
    _Column("device_ids", parts="none",
            meaning="of a part of a training: the device's lines by board and start of its powerd, and the GPUs "
            "that it is"),
    _Column("device_name", parts="all", heading="product", is_setting=True,
            meaning="product, as the driver names it, else attribute of the phases"),
    _Column("driver_version", repeats="all", parts="all", heading="driver", meaning="of a GPU: that of its driver"),
    _Column("cuda_version", repeats="all", parts="all", heading="CUDA",
            meaning="of a GPU: the newest CUDA that its driver serves"),
    _Column("default_power_limit_w", "number", "W", heading="default limit W",
            meaning="of a GPU: the power limit that its driver begins with"),
    _Column("least_power_limit_w", "number", "W", heading="least limit W",
            meaning="of a GPU: the least that can be set"),
    _Column("greatest_power_limit_w", "number", "W", heading="greatest limit W",
            meaning="of a GPU: the greatest that can be set"),
    _Column("provenance", is_setting=True, meaning="measured, modelled or simulated"),
    _Column("power_cap_w", "number", "W", repeats="mean", parts="mean of all", heading="cap W", is_setting=True,
            meaning="what the driver enforced while they ran; where no driver tells, power_cap_asked_w, else the "
            "limit when the driver's source was opened"),
    _Column("power_cap_basis", meaning="where that comes from: enforced, stated or requested"),
    _Column("power_cap_asked_w", "number", "W", meaning="attribute power_cap_w of the phases: a label"),
    _Column("power_cap_requested_w", "number", "W", meaning="what was requested of the driver"),
    _Column("power_cap_in_run", is_setting=True,
            meaning="in a run in which the cap changed: which of its caps; changing: between two"),
    _Column("clock_hz", "number", "Hz", repeats="mean", parts="none", heading="clock MHz", is_setting=True,
            meaning="SM clock that an event says was enforced, else that phases state; nothing where nobody set it"),
    _Column("clock_basis", meaning="where that comes from: enforced or stated"),
    _Column("clock_asked_hz", "number", "Hz", meaning="SM clock that was asked, by phases or by an event"),
    _Column("clock_requested_hz", "number", "Hz", meaning="SM clock that was requested of the driver"),
    _Column("clock_observed_hz", "number", "Hz", repeats="mean", parts="none", heading="observed MHz",
            meaning="mean of the SM clock while the device worked: an outcome"),
    _Column("memory_clock_hz", "number", "Hz", repeats="mean", parts="none", heading="memory MHz", is_setting=True,
            meaning="memory clock, as clock_hz"),
    _Column("memory_clock_basis", meaning="as clock_basis"),
    _Column("memory_clock_asked_hz", "number", "Hz", meaning="as clock_asked_hz"),
    _Column("memory_clock_requested_hz", "number", "Hz", meaning="as clock_requested_hz"),
    _Column("memory_clock_observed_hz", "number", "Hz", repeats="mean", parts="none", meaning="as clock_observed_hz"),
    _Column("ambient_c", "number", "degC", repeats="mean", parts="mean of all", heading="ambient °C",
            meaning="around the machine: mean of the line that is called ambient, else attribute of the phases"),
    _Column("verdict", repeats="all", parts="all",
            meaning="whether what the device was set to was honoured: honoured, binding; honoured, slack; "
            "overridden; confounded; clock missed; unknown"),
    _Column("verdict_note", repeats="all", parts="all", meaning="why, in a few words"),
    _Column("shared", repeats="all", parts="all",
            meaning="other programs on the device, which the driver listed: seconds, pid, user"),
    _Column("is_held", "flag", repeats="any", parts="any",
            meaning="somebody held a lease of one of the device's knobs"),
    _Column("phase", meaning="name of the phase"),
    _Column("phase_path", heading="phase", meaning="with the phases around it"),
    _Column("is_iteration", "flag", meaning="of phases: they are the iterations of the training"),
    _Column("timing", is_setting=True, meaning="host, host-synchronised or device"),
    _Column("method", repeats="all", parts="all", meaning="how the joules were found, where that is said"),
    _Column("iterations", "integer", "1", repeats="sum", heading="n",
            meaning="phases that ended; of totals and runs, batches"),
    _Column("n", "integer", "1", repeats="sum", heading="n",
            meaning="of phases: how many of them the joules are the mean of"),
    _Column("s_per_batch", "number", "s", repeats="mean", parts="greatest", heading="s/batch",
            meaning="mean duration of one phase; of totals, time_s / iterations"),
    _Column("u_s_per_batch", "number", "s", repeats="again",
            meaning="standard uncertainty of that mean by the spread of the phases, or of repeats; where there is "
            "none, of time_s"),
    _Column("s_per_batch_min", "number", "s", repeats="least", parts="least", heading="fastest rank s",
            meaning="of a training's sums: the same of the fastest rank"),
    _Column("s_per_batch_max", "number", "s", repeats="greatest", parts="greatest", heading="slowest rank s",
            meaning="of a training's sums: the same of the slowest rank"),
    _Column("j_per_batch", "number", "J", repeats="again", parts="again", heading="J/batch", sign="≥",
            meaning="mean joules of one phase; of totals, energy_j / iterations"),
    _Column("batches_per_optimizer_step", "number", "1", repeats="mean",
            meaning="of totals: iterations a step of the optimizer, where gradients of several are accumulated"),
    _Column("j_per_optimizer_step", "number", "J", repeats="again", parts="again", heading="J/step", sign="≥",
            meaning="j_per_batch times that"),
    _Column("u95_j", "number", "J", repeats="again", parts="again", heading="± U95 J", is_uncertainty=True,
            meaning="95 % interval of j_per_batch (phase) or energy_j (total, run)"),
    _Column("u_statistical_j", "number", "J", repeats="again", parts="again",
            meaning="standard uncertainty of the same, what averages out"),
    _Column("u_systematic_j", "number", "J", repeats="again", parts="again",
            meaning="standard uncertainty of the same, what repeats share"),
    _Column("rectangle_j", "number", "J", repeats="again", parts="again",
            meaning="the part of u_systematic_j that is a limit, as the standard uncertainty of one rectangle"),
    _Column("degrees_of_freedom", "number", "1", repeats="again", parts="again",
            meaning="of the statistical uncertainties of joules; nothing where these are known by more than repeats"),
    _Column("degrees_of_freedom_s", "number", "1", repeats="again", parts="least",
            meaning="the same of u_s_per_batch"),
    _Column("sd_s", "number", "s", repeats="none", parts="none", heading="sd s",
            meaning="spread of the single phases of a run: their standard deviation, no uncertainty"),
    _Column("sd_j", "number", "J", repeats="none", parts="none", heading="sd J",
            meaning="the same of their joules, noise of the sensor included"),
    _Column("power_w", "number", "W", repeats="again", parts="again", heading="W", sign="≥",
            meaning="joules over seconds"),
    _Column("samples_per_batch", "number", "1", repeats="mean",
            meaning="mean samples of one phase or iteration, where some had another size than batch_size"),
    _Column("samples_per_s", "number", "1/s", repeats="mean", heading="samples/s", meaning="samples over seconds"),
    _Column("time_s", "number", "s", repeats="mean", parts="greatest", heading="s",
            meaning="duration of the total or the run"),
    _Column("energy_j", "number", "J", repeats="again", parts="again", heading="J", sign="≥",
            meaning="joules of the total or the run"),
    _Column("edp_js", "number", "J s", repeats="again", parts="again", heading="EDP (J s)", sign="≥",
            meaning="energy_j x time_s; of phases, j_per_batch x s_per_batch"),
    _Column("ed2p_js2", "number", "J s2", repeats="again", parts="again", heading="ED2P (J s²)", sign="≥",
            meaning="energy_j x time_s²; of phases, of their means"),
    _Column("j_per_sample", "number", "J", repeats="again", parts="again", heading="J/sample", sign="≥",
            meaning="j_per_batch over the samples of a batch; of ranks that are added up, over all their batches"),
    _Column("samples_per_j", "number", "1/J", repeats="again", parts="again", heading="samples/J", sign="≤",
            meaning="one over that"),
    _Column("tokens_per_sample", "number", "1", repeats="mean", parts="mean of all",
            meaning="attribute of the phases: tokens of one sample"),
    _Column("tokens_per_batch", "number", "1", repeats="mean",
            meaning="mean tokens of one phase or iteration"),
    _Column("tokens_per_s", "number", "1/s", repeats="again", parts="again", heading="tokens/s",
            meaning="tokens over seconds"),
    _Column("j_per_token", "number", "J", repeats="again", parts="again", heading="J/token", sign="≥",
            meaning="j_per_batch over tokens_per_batch, or j_per_sample over tokens_per_sample"),
    _Column("tokens_per_j", "number", "1/J", repeats="again", parts="again", heading="tokens/J", sign="≤",
            meaning="one over that"),
    _Column("s_per_sample", "number", "s", repeats="again", parts="again", heading="s/sample",
            meaning="s_per_batch over the same"),
    _Column("edp_per_sample_js", "number", "J s", repeats="again", parts="again", heading="EDP/sample (J s)", sign="≥",
            meaning="j_per_sample x s_per_sample"),
    _Column("eds", "number", "1", repeats="again", parts="again", heading="EDS", sign="≥",
            meaning="of totals: energy-delay sum of a sample, k = 2, 1 at the first of the same model"),
    _Column("operations_per_sample", "number", "1",
            meaning="attribute of the phases: operations of one forward pass, one sample"),
    _Column("operations_executed_per_sample", "number", "1",
            meaning="attribute of the phases: operations that forward and backward run for one sample"),
    _Column("gflops_per_w", "number", "1e9/J", repeats="again", parts="again", heading="GFLOPS/W (paper)", sign="≤",
            meaning="operations per joule / 1e9; where GPUs share a batch, of one GPU's share of them"),
    _Column("u_statistical_gflops_per_w", "number", "1e9/J", repeats="again", parts="again",
            meaning="standard uncertainty of that, what averages out"),
    _Column("u_systematic_gflops_per_w", "number", "1e9/J", repeats="again", parts="again",
            meaning="standard uncertainty of that, what repeats share"),
    _Column("gflops_per_w_executed", "number", "1e9/J", repeats="again", parts="again",
            heading="GFLOPS/W (executed)", sign="≤",
            meaning="gflops_per_w by the operations that are executed"),
    _Column("gflops_convention", repeats="again", meaning="paper: forward and backward count the operations once each"),
    _Column("gflops_basis", repeats="again", heading="over the joules of", is_setting=True,
            meaning="whose joules it divides by"),
    _Column("phases_j", "number", "J", repeats="mean", parts="none", heading="phases J", sign="≥",
            meaning="of runs: joules in the outermost phases"),
    _Column("rest_j", "number", "J", repeats="mean", parts="sum", heading="rest J", sign="≥",
            meaning="joules in no phase inside"),
    _Column("rest_u95_j", "number", "J", repeats="none", parts="none", heading="± U95 rest", is_uncertainty=True,
            meaning="95 % interval of rest_j in one run"),
    _Column("missing_s", "number", "s", repeats="mean", parts="sum", heading="missing s",
            meaning="seconds without readings"),
    _Column("off_by_j", "number", "J", repeats="mean", parts="sum",
            meaning="the most that missing readings can have done; the 95 % interval holds what they are likely to "
            "have done"),
    _Column("is_lower_bound", "flag", repeats="any", parts="any", is_hidden=True,
            meaning="a line stood at full scale: joules are the least they can be"),
    _Column("note", repeats="all", parts="all", meaning="why a number is missing or weaker"),
    _Column("runs", "integer", "1", repeats="sum", heading="runs", is_setting=True,
            meaning="how many recordings the row is the mean of"),
)  # fmt: skip
COLUMNS: dict[str, _Column] = {c.name: c for c in _COLUMNS}

ATTRIBUTE = "attribute_"
"""What the columns of the phases' other attributes begin with."""
RESULT = "result_"
"""What the columns of results begin with: ``result_top1`` is the last value, ``result_top1_best`` the best one."""
COST = "cost_"
"""What a column of money begins with; its currency follows."""
_DERIVED = {
    column.name: column
    for column in (
        Column("s_per_training", "number", "s", heading="s/training"),
        Column("j_per_training", "number", "J", heading="J/training", sign="≥"),
        Column("co2_g", "number", "g", heading="g CO2e", sign="≥"),
        Column("co2_source", meaning="the grams of a kWh, and where they are from", is_hidden=True),
        Column("cost", "number", heading="cost", sign="≥"),
        Column("u95_s_per_batch", "number", "s", heading="± U95 s", is_uncertainty=True),
        Column("u95_j_per_batch", "number", "J", heading="± U95 J", is_uncertainty=True),
        Column("u95_edp_js", "number", "J s", heading="± U95 J s", is_uncertainty=True),
        Column("u95_gflops_per_w", "number", "1e9/J", heading="± U95", is_uncertainty=True),
        Column("idle_w", "number", "W", "power while idle", "idle W"),
        Column("idle_j", "number", "J", "joules that idling for as long would have taken", "J idle"),
        Column("above_idle_j", "number", "J", "joules above that", "J above idle", "≥"),
        Column("above_idle_u95_j", "number", "J", "", "± U95 above idle", is_uncertainty=True),
    )
}
_DTYPES: dict[Kind, str] = {"text": "string", "integer": "Int64", "number": "float64", "flag": "boolean"}


def column(name: str, heading: str = "") -> Column:
    """A column of a frame, or of what is derived from it: ``u95_`` before a name is its expanded uncertainty."""
    plain = name.removeprefix("u95_")
    if plain.startswith(COST):
        currency = plain.removeprefix(COST).upper()
        found = Column(name, "number", currency, heading=currency, sign="≥")
    elif name.startswith(ATTRIBUTE):
        found = Column(name, "text", heading=name.removeprefix(ATTRIBUTE), missing="", is_setting=True)
    elif plain.startswith(RESULT):
        result, best = plain.removeprefix(RESULT).removesuffix(BEST), plain.endswith(BEST)
        found = Column(name, "number", heading=f"best {result}" if best else result)
    else:
        every = COLUMNS | _DERIVED
        found = every.get(name) or every.get(plain) or Column(name, "number")
    if plain != name and not found.is_uncertainty:
        found = replace(found, heading=f"± U95 {found.heading or plain}", sign="", is_uncertainty=True)
    return replace(found, name=name, heading=heading or found.heading or name)


def frame_from(records: Iterable[Mapping[str, Any]]) -> Frame:
    """A frame of rows by name: every column of `COLUMNS` in order, then those that rows have beside them."""
    rows = list(records)
    names = dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)])
    return pd.DataFrame({name: _cells(name, [row.get(name) for row in rows]) for name in names})


def with_column_types(frame: Frame) -> Frame:
    """The same with one dtype a column. Attributes are numbers or flags where all of them are, else texts as
    `attribute_cell` says, so that what they are follows from the rows alone, however often these were put together."""
    columns = {}
    for name in frame.columns:
        values = frame[name]
        kind = _kind_of(name)
        if values.dtype == object:
            columns[name] = _cells(name, values.tolist())
        elif name.startswith(ATTRIBUTE) or str(values.dtype) == _DTYPES[kind]:
            columns[name] = values.array
        else:
            columns[name] = values.astype(_DTYPES[kind]).array
    return pd.DataFrame(columns)


def _kind_of(name: str) -> Kind:
    known = COLUMNS.get(name) or _DERIVED.get(name)
    return known.kind if known else "number"


def _cells(name: str, values: Sequence[Any]) -> Any:
    """The cells of a column as an array of its dtype. By way of a frame of objects it takes longer."""
    kind = _kind_of(name)
    if name.startswith(ATTRIBUTE) or kind == "text":
        cells = [None if _is_missing(v) else v for v in values]
        return (_attribute(cells) if name.startswith(ATTRIBUTE) else _texts(cells)).array
    return pd.array(values, dtype=_DTYPES[kind])


def _is_missing(value: Any) -> bool:
    # Not pandas' own question, which of a list would be one for each element.
    return value is None or value is pd.NA or (isinstance(value, float) and isnan(value))


def _texts(cells: Sequence[Cell]) -> pd.Series:
    return pd.Series([None if v is None else encodable(str(v)) for v in cells], dtype="string")


_FLAGS = {"True": True, "False": False}


def attribute_cell(value: Any) -> Cell:
    """An attribute of phases as a cell: a list as JSON; a text that reads like a number or a flag in quotes, as it is
    another value than these, which stand without quotes beside texts."""
    if isinstance(value, list | tuple | dict):
        return json.dumps(value)
    if isinstance(value, str):
        return f'"{value}"' if value in _FLAGS else attribute_text(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _attribute(cells: Sequence[Cell]) -> pd.Series:
    plain = [_unquoted(v) if isinstance(v, str) else v for v in cells]
    there = [v for v in plain if v is not None]
    if all(isinstance(v, bool) for v in there):
        return pd.Series(plain, dtype="boolean")
    if all(is_number_cell(v) for v in there):
        return pd.Series(plain, dtype="float64")
    return _texts([repr(float(v)).removesuffix(".0") if is_number_cell(v) else v for v in plain])


def _unquoted(text: str) -> Cell:
    """The number or the flag that stands as a text beside other texts."""
    return float(text) if is_number(text) else _FLAGS.get(text, text)


def concat_frames(frames: Sequence[Frame]) -> Frame:
    """Frames one below the other."""
    some = [frame for frame in frames if len(frame)] or list(frames[:1])
    if len(some) == 1:
        return some[0].reset_index(drop=True)
    dtypes: dict[Any, list[str]] = {}
    for frame in some:
        for name, dtype in frame.dtypes.items():
            dtypes.setdefault(name, []).append(str(dtype))
    alike = [name for name, own in dtypes.items() if len(own) == len(some) and len(set(own)) == 1]
    every = pd.concat([frame[alike] for frame in some], ignore_index=True)
    columns = {name: every[name] if name in every else _of_several_types(some, name) for name in dtypes}
    return with_column_types(pd.DataFrame(columns))


def _of_several_types(frames: Sequence[Frame], name: str) -> pd.Series:
    parts = (frame[name].tolist() if name in frame else [None] * len(frame) for frame in frames)
    return pd.Series([value for part in parts for value in part], dtype=object)


def rows_of(frame: Frame) -> list[Record]:
    """The rows, to read; None where there is no value, and whole batch sizes as whole numbers."""
    # Column by column: of a frame with so many types, pandas' own way takes two to three times as long.
    columns: dict[str, list[Cell]] = {}
    for name in frame.columns:
        values = frame[name]
        if values.dtype == np.float64:
            cells = [None if isnan(v) else v for v in values.to_numpy().tolist()]
        else:
            cells = values.to_numpy(object, na_value=None).tolist()
        is_setting = name == "batch_size" or name.startswith(ATTRIBUTE)
        columns[name] = [int(v) if is_setting and isinstance(v, float) and v.is_integer() else v for v in cells]
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def attributes_in(frame: Frame) -> list[str]:
    """The columns of attributes."""
    return [name for name in frame.columns if name.startswith(ATTRIBUTE)]


def factors_in(names: Iterable[str]) -> list[str]:
    """Of some columns, those of attributes that part cells: a seed or an output path never does."""
    attributes = [name for name in names if name.startswith(ATTRIBUTE)]
    return [name for name in attributes if not NO_FACTOR.fullmatch(name.removeprefix(ATTRIBUTE))]


def is_known(frame: Frame, name: str) -> NDArray[np.bool_]:
    """[rows] where a column has a value; nowhere where the frame has no such column."""
    return np.asarray(frame[name].notna()) if name in frame else np.zeros(len(frame), bool)


def floats(frame: Frame, name: str) -> Values:
    """[rows] a column of numbers; NaN where there is none."""
    return np.asarray(frame[name].astype("float64")) if name in frame else np.full(len(frame), np.nan)


def of_kind(frame: Frame, *kinds: str) -> Frame:
    """The rows of these kinds."""
    return frame[frame["kind"].isin(kinds)].reset_index(drop=True)


def table_from(
    frame: Frame, name: str, title: str, names: Sequence[str], notes: Sequence[str] = (),
    headings: Mapping[str, str] | None = None,
) -> Table:  # fmt: skip
    """A table of some columns of a frame."""
    columns = [column(n, heading=(headings or {}).get(n, "")) for n in names]
    return make_table(name, title, columns, rows_of(frame), notes)


# -- looking into a frame ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    """``COLUMN=VALUE``: numbers compare as numbers, other cells as text."""

    column: str
    value: str

    def holds(self, cell: str) -> bool:
        """Whether a cell is that value."""
        value, wanted = parse_number(cell), parse_number(self.value)
        is_number = value is not None and wanted is not None and isclose(value, wanted, rel_tol=1e-9)
        return is_number or cell == self.value

    def __str__(self) -> str:
        return printable(f"{self.column}={self.value}", limit=120)


def parse_condition(option: str, text: str) -> Condition:
    """``COLUMN=VALUE``, at the first ``=``. Raises `ConfigError`."""
    column, equals, value = (piece.strip() for piece in text.partition("="))
    if not (column and equals):
        raise ConfigError(f"{option} {printable(text)}: is not COLUMN=VALUE, as in power_cap_w=260")
    return Condition(column, value)


_ALIASES = {
    "batch": "batch_size", "cap": "power_cap_w", "clock": "clock_hz", "generation": "device_name",
    "product": "device_name", "path": "phase_path",
}  # fmt: skip


def dimension(name: str, frame: Frame) -> str:
    """The column that is meant by a name on the command line: an alias, with dashes, or an attribute of the phases.

    Raises `AnalysisError` with a suggestion for an unknown one.
    """
    meant = name.strip().replace("-", "_")
    meant = _ALIASES.get(meant, meant)
    attributes = {n.removeprefix(ATTRIBUTE): n for n in attributes_in(frame)}
    if meant not in COLUMNS and name.strip() in attributes:
        return attributes[name.strip()]
    names = [*COLUMNS, *attributes]
    if meant not in names:
        # All of them would be a screen full: those that people type, and the run's own.
        near = get_close_matches(meant, names, n=1)
        own = ", ".join(map(repr, [*_ALIASES, "phase", "model", *list(attributes)[:8]]))
        raise AnalysisError(f"no column {meant!r}: " + (f"did you mean {near[0]!r}?" if near else f"{own} and others"))
    return meant if meant in COLUMNS else attributes[meant]


def rows_where(frame: Frame, conditions: Sequence[str]) -> Frame:
    """The rows for which every ``COLUMN=VALUE`` holds. Raises `AnalysisError` for one that none fulfils."""
    for text in conditions:
        condition = parse_condition("--where", text)
        name = dimension(condition.column, frame)
        values = ["" if row[name] is None else str(row[name]) for row in rows_of(frame[[name]])]
        frame = frame[[condition.holds(value) for value in values]].reset_index(drop=True)
        if frame.empty:
            there = ", ".join(dict.fromkeys(filter(None, values))) or "no value"
            raise AnalysisError(f"--where {condition}: no row has it; {name.removeprefix(ATTRIBUTE)} is {there}")
    return frame


# -- what follows from joules and seconds ------------------------------------------------------------------------------


def worked_out(frame: Frame) -> Frame:
    """The frame with everything that follows from its joules and seconds worked out again, however these came about."""
    frame = frame.copy()
    is_phase, is_total = (np.asarray(frame["kind"] == kind, bool) for kind in ("phase", "total"))
    n, seen = floats(frame, "iterations"), floats(frame, "samples_per_batch")
    batch = np.where(np.isnan(seen), floats(frame, "batch_size"), seen)
    has_batches = is_total & is_known(frame, "s_per_batch") & (n > 0)
    for each, whole in (("s_per_batch", "time_s"), ("j_per_batch", "energy_j")):
        mean = np.divide(floats(frame, whole), n, where=n > 0, out=np.full(len(frame), np.nan))
        frame[each] = np.where(is_total, np.where(has_batches, mean, np.nan), floats(frame, each))
    frame["j_per_optimizer_step"] = floats(frame, "j_per_batch") * floats(frame, "batches_per_optimizer_step")
    joules = np.where(is_phase, floats(frame, "j_per_batch"), floats(frame, "energy_j"))
    seconds = np.where(is_phase, floats(frame, "s_per_batch"), floats(frame, "time_s"))
    has_time = seconds > 0
    frame["power_w"] = np.divide(joules, seconds, where=has_time, out=np.full(len(frame), np.nan))
    frame["edp_js"], frame["ed2p_js2"] = joules * seconds, np.where(has_time, joules * seconds**2, np.nan)
    # Ranks that are added up have a batch each: their rate together says how many.
    with np.errstate(divide="ignore", invalid="ignore"):
        at_once = floats(frame, "samples_per_s") * floats(frame, "s_per_batch") / batch
    samples = batch * np.fmax(np.fmin(at_once.round(), np.nan_to_num(floats(frame, "ranks"), nan=1.0)), 1.0)
    has_samples = (batch > 0) & (is_phase | has_batches)
    for each, of_batch in (("j_per_sample", "j_per_batch"), ("s_per_sample", "s_per_batch")):
        frame[each] = np.divide(floats(frame, of_batch), samples, where=has_samples, out=np.full(len(frame), np.nan))
    j, s = floats(frame, "j_per_sample"), floats(frame, "s_per_sample")
    frame["edp_per_sample_js"] = j * s
    frame["samples_per_j"] = np.divide(1.0, j, where=j > 0, out=np.full(len(frame), np.nan))
    _work_out_tokens(frame, ranks=np.where(has_samples, samples / batch, 1.0))
    parts = [floats(frame, f"u_{part}_j") for part in ("statistical", "systematic")]
    is_unknown = np.isnan(parts[0]) & np.isnan(parts[1])
    freedom = np.nan_to_num(floats(frame, "degrees_of_freedom"), nan=np.inf)
    rectangle = np.nan_to_num(floats(frame, "rectangle_j"))
    u95 = expanded_uncertainty(np.nan_to_num(parts[0]), np.nan_to_num(parts[1]), rectangle, freedom)
    is_bound = np.asarray(frame["is_lower_bound"].fillna(False), bool)
    frame["u95_j"] = np.where(is_unknown | is_bound | np.isnan(joules), np.nan, u95)
    paper, executed = floats(frame, "operations_per_sample"), floats(frame, "operations_executed_per_sample")
    with np.errstate(divide="ignore", invalid="ignore"):  # the paper counts two passes
        of_executed = floats(frame, "gflops_per_w") * executed / (2 * paper)
    of_executed = np.where(np.isnan(of_executed), floats(frame, "gflops_per_w_executed"), of_executed)
    frame["gflops_per_w_executed"] = np.where(is_total, of_executed, np.nan)
    return frame


def _work_out_tokens(frame: Frame, ranks: Values) -> None:
    """Figures of a token: of those that phases say, else of ``tokens_per_sample``. ``ranks`` [rows] are added up."""
    of_sample, of_batch = floats(frame, "tokens_per_sample"), floats(frame, "tokens_per_batch") * ranks
    j, s = floats(frame, "j_per_batch"), floats(frame, "s_per_batch")
    with np.errstate(divide="ignore", invalid="ignore"):
        figures = {
            "tokens_per_s": (of_batch / s, floats(frame, "samples_per_s") * of_sample),
            "j_per_token": (j / of_batch, floats(frame, "j_per_sample") / of_sample),
            "tokens_per_j": (of_batch / j, floats(frame, "samples_per_j") * of_sample),
        }
    for name, (said, by_sample) in figures.items():
        value = np.where(of_batch > 0, said, by_sample)
        frame[name] = np.where(np.isfinite(value), value, np.nan)


def with_eds(frame: Frame, *, of_runs: bool = False) -> Frame:
    """The frame with the energy-delay sum (k = 2) of a sample, against the first total of the same model on the same
    device, or ``of_runs`` in the same run; nothing without a sample."""
    frame, first = frame.copy(), dict[tuple[Any, ...], tuple[float, float]]()
    values: list[float | None] = []
    for r in rows_of(frame[["kind", "model", "device", "provenance", "path", "j_per_sample", "s_per_sample"]]):
        each = number_of(r, "j_per_sample"), number_of(r, "s_per_sample")
        if r["kind"] != "total" or not each[0] or not each[1] or each[0] < 0:
            values.append(None)
            continue
        of_one = r["model"], r["device"], r["provenance"], r["path"] if of_runs else None
        reference = first.setdefault(of_one, (each[0], each[1]))
        values.append(eds(each[0], each[1], *reference))
    frame["eds"] = pd.Series(values, frame.index, "float64")
    return frame


# -- rows put together -------------------------------------------------------------------------------------------------


def aggregate(frame: Frame, group: Sequence[int] | NDArray[np.int64], how: Literal["repeats", "parts"]) -> Frame:
    """One row for each group of rows, in the order of their first, each column by its rule.

    ``group`` [rows] numbers the groups. Columns that are worked out again are those of the first row: who puts together
    sets the figures, and calls `worked_out`.
    """
    ids = pd.factorize(np.asarray(group))[0]
    grouped = frame.groupby(ids, sort=True)
    first = frame.iloc[pd.Series(np.arange(len(frame))).groupby(ids).first()].reset_index(drop=True)
    if len(first) == len(frame):
        return first
    is_alone = np.asarray(grouped.size() == 1)
    columns = {}
    for name in frame.columns:
        rule = _rule_of(name, how)
        if rule in ("first", "again"):
            columns[name] = first[name]
            continue
        values = _by_rule(frame[name], grouped[name], rule)
        dtype = first[name].dtype
        values = values.round() if str(dtype) == "Int64" and rule == "mean" else values
        columns[name] = values.reset_index(drop=True).astype(dtype).mask(is_alone, first[name])
    return pd.DataFrame(columns)


def _rule_of(name: str, how: Literal["repeats", "parts"]) -> Rule:
    if (of_frame := COLUMNS.get(name)) is not None:
        return of_frame.repeats if how == "repeats" else of_frame.parts
    if name.startswith(ATTRIBUTE):
        return "first"
    if how == "repeats":
        return "mean"
    return "first" if name.startswith(RESULT) else "sum"


def _by_rule(values: pd.Series, grouped: Any, rule: Rule) -> pd.Series:
    if rule == "none":
        return pd.Series([None] * grouped.ngroups, dtype=object).astype(values.dtype)
    if rule == "all":
        return _texts_of(grouped)
    if rule == "any":
        return grouped.any()
    if rule in ("sum", "mean of all"):  # of what is not all known, neither: it would pass for the whole
        whole = grouped.sum(min_count=1) if rule == "sum" else grouped.mean()
        return whole.where(grouped.count() == grouped.size())
    return {"mean": grouped.mean, "least": grouped.min, "greatest": grouped.max}[rule]()


def _texts_of(grouped: Any) -> pd.Series:
    """All texts of each group, each once. Where pandas calls a function for each group, it takes ten times as long."""
    texts: list[list[object]] = [[] for _ in range(grouped.ngroups)]
    numbers = grouped.ngroup().tolist()
    for group, text in zip(numbers, grouped.obj.to_numpy(object, na_value=None), strict=True):
        if not _is_missing(text):
            texts[group].append(text)
    return pd.Series([join_texts(*own) or None for own in texts], dtype=object)


# -- on what phases ran ----------------------------------------------------------------------------

_PROMOTED = ("model", "batch_size", "gpus", "device_name", "power_cap_w", "clock_hz", "clock_mhz", AMBIENT,
             OPERATIONS, EXECUTED)  # fmt: skip
"""Attributes of phases that have columns of their own."""


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def gpus_of(run: Run) -> int:
    """GPUs that took part: distinct ones that the processes say they use, else their ranks, else 1.

    A file holds the processes of one machine; a larger ``world_size`` counts further machines in proportion.
    """
    names: set[str] = set()
    ranks: dict[int, bool] = {}
    for process in run.processes:
        devices = process.get("devices")
        own = [d for d in devices if isinstance(d, dict)] if isinstance(devices, list | tuple) else []
        own_names = {str(name) for d in own if (name := d.get("uuid") or d.get("pci"))}
        names |= own_names
        if isinstance(rank := process.get("rank"), int):
            ranks[rank] = bool(own_names)
    here = len(names) if names and all(ranks.values()) else max(len(ranks), 1)
    return max(1, round(here * ranks_of(run).world_size / len(ranks))) if ranks else here


_INTERPRETER = re.compile(r"python[\d.]*(\.exe)?|-.*")
_NAMING = "(?:out|output|save|logs?|run|repeat)"
NO_FACTOR = re.compile(
    rf"(?:\w+[-_])?seed(?:[-_]\w+)?|{AMBIENT}|{_NAMING}|(?:\w+[-_])?{_NAMING}[-_](?:dir|path|file|name|id|to)",
    re.IGNORECASE,
)
"""Names of attributes and options that never part cells: seeds, repeats, the temperature around, names of runs and
files, output paths."""
_MAY_BE_FLAGS = re.compile("save|logs?", re.IGNORECASE)
"""Of these, options that have a value only where a path or a number follows."""
_OPTION = re.compile(r"(?P<dashes>-{0,2})\+*(?P<name>[A-Za-z][\w.-]*)(?P<value>=.*)?", re.DOTALL)
_SEED_OPTION = re.compile(r"--?(?:\w+[-_])?seed", re.IGNORECASE)


def program_of(command: Sequence[str], path: Path) -> str | None:
    """Program and arguments, by which runs are repeats: the same whether `joules record` or a Meter wrote them down.

    Without what differs between repeats: a seed, output paths, the name of the run file, the file by which a notebook
    is reached. An option goes with its value, and a flag stays. An import is that of any log.
    """
    words = list(dropwhile(lambda word: _INTERPRETER.fullmatch(Path(word).name), command))
    if not words:
        return None
    program = Path(words[0]).name.removesuffix(".py").rpartition(".")[2]
    if program == "ipykernel_launcher":
        return "notebook"
    if (program, words[1:2]) == ("joules", ["import"]):
        return "joules import"
    factors = (word for word in _without_names(words[1:]) if Path(word.rpartition("=")[2]).name != path.name)
    return shlex.join([program, *factors])


def _without_names(words: Sequence[str]) -> Iterator[str]:
    """A command's arguments without the options, as ``--out x``, ``-o x``, ``--seed=1`` or ``run.dir=x``, that part no
    cells."""
    is_value = False
    for word, following in zip(words, [*words, "-"][1:], strict=True):
        if is_value:
            is_value = False
            continue
        option = _OPTION.fullmatch(word)
        if option is None or not _parts_nothing(option["dashes"], option["name"].replace(".", "_"), option["value"]):
            yield word
        elif option["value"] is None:
            is_value = not following.startswith("-") or parse_number(following) is not None
            if not is_value or (_MAY_BE_FLAGS.fullmatch(option["name"]) and not re.search(r"[./\d]", following)):
                is_value = False
                yield word  # a flag


def _parts_nothing(dashes: str, name: str, value: str | None) -> bool:
    is_option = bool(dashes) or value is not None
    return is_option and (NO_FACTOR.fullmatch(name) is not None or (dashes, name) == ("-", "o"))


def seed_of(attributes: Mapping[str, Any], command: Sequence[str]) -> str | None:
    """The seed that the phases state, else that of the command: ``--seed 1``, ``--random-seed=1``."""
    stated = [value for name, value in attributes.items() if _SEED_OPTION.fullmatch(f"-{name}")]
    words = [part for word in command for part in word.split("=", 1)]
    options = [value for name, value in pairwise(words) if _SEED_OPTION.fullmatch(name)]
    return next((str(value) for value in [*stated, *options]), None)


# -- the frame of a run ------------------------------------------------------------------------------------------------


def run_frame(
    path: str | Path, device: str | None = None, calibration: Path | None = None, *, progress: Progress = no_progress
) -> Frame:
    """The frame of a run file: phases, totals and runs, for one device or all.

    A run without phases has only rows of kind ``run``, one without lines none. Raises `RunFileError` for a file that
    cannot be read, `AnalysisError` for an unknown device.
    """
    return frame_of_records(run_records(Path(path), device, calibration, progress=progress))


def frame_of_records(records: Iterable[Mapping[str, Any]]) -> Frame:
    """The frame of one run or many by `run_records`, with what follows from them; `with_eds` of each run by itself."""
    return with_eds(worked_out(frame_from(records)), of_runs=True)


def run_records(
    path: Path,
    device: str | None = None,
    calibration: Path | None = None,
    *,
    is_anew: bool = False,
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """The rows of a run file's frame, from the user's cache where they are known; then the file is not opened. With
    ``is_anew`` they are worked out in any case. Raises as `run_frame`."""
    records = None if is_anew or device is not None else known_records(path, calibration)
    if records is None:
        run = read_run(path, progress=lambda share, text: progress(0.1 * share, text))
        if calibration is not None:
            run, _ = recalibrate(run, calibration)
        later: Progress = lambda share, text: progress(0.1 + 0.9 * share, text)  # noqa: E731
        records = records_of(run, kept_table(run, device, is_anew=is_anew, progress=later))
        if device is None:
            keep_records(run, records)
    return [record | {"path": str(path)} for record in records]


def known_records(path: Path, calibration: Path | None = None) -> list[dict[str, Any]] | None:
    """The kept rows of a run file's frame; None where nobody has worked them out."""
    records: list[dict[str, Any]] | None = recall(key_of_file(path, calibration), _kept_as(path), ())
    return None if records is None else [record | {"path": str(path)} for record in records]


def keep_records(run: Run, records: Sequence[Mapping[str, Any]]) -> None:
    """Keep the rows of the frame of a run as it was read, of all its devices."""
    keep(key_of_run(run), _kept_as(run.path), records)


def _kept_as(path: Path) -> str:
    """Its rows name the run, and tell its program by that."""
    return f"rows {path.name}"


def frame_of(run: Run, table: PhaseTable) -> Frame:
    """The frame of a run whose table is at hand."""
    return frame_of_records(records_of(run, table))


def records_of(run: Run, table: PhaseTable) -> list[dict[str, Any]]:
    """The rows of a run's frame: one for each of its phases, totals and runs in that order, and behind them, for a part
    of a training over several machines, the seconds of each rank. What follows from others is left out."""
    groups, settings, ranks, results = groups_of(run), settings_of(run), ranks_of(run), series_of(run)
    # The recording has the attributes that all its groups have in common.
    every = [g.attributes for g in groups.values()]
    shared = {k: v for k, v in every[0].items() if all(a.get(k) == v for a in every)} if every else {}
    whole = PhaseGroup(shared, run.begin_ns, run.end_ns)
    common = {
        "run": run.path.stem,
        "path": str(run.path),
        "run_id": _text(run.attributes.get("run_id")),
        "created_utc": _text(run.attributes.get("created_utc")),
        "host": _text(run.environment.get("host")),
        **_of_machine(run.environment),
        "program": program_of(run.command, run.path),
        "runs": 1,
        **_of_campaign(run.campaign),
        **{name: _text(run.environment.get(name)) for name in ("job", *_OF_JOB)},
        **_of_training(run, ranks),
    }
    rows: list[Row] = [*table.phases, *table.totals, *table.runs]
    records: list[dict[str, Any]] = []
    for row in rows:
        group = whole if isinstance(row, RunRow) else groups[group_key(row.group)]
        stated = _with_factors(_stated(group.attributes, group.setting), run.campaign)
        stated, is_of_device = _with_said(stated, run.environment.get(SET)), row.device in run.devices
        setting = settings.of(row.device, group.begin_ns, group.end_ns, group.attributes, group.setting)
        record = common | stated | _figures(row) | {
            "seed": seed_of(group.attributes, run.command),
            AMBIENT: settings.ambient_c(group.begin_ns, group.end_ns, group.attributes),
            "device": row.device,
            "gpus": stated["gpus"] or gpus_of(run),
            "device_name": setting.product,
            **_of_driver(settings.driver(row.device)),
            "power_cap_w": setting.power_cap_w.value,
            "power_cap_basis": setting.power_cap_w.basis,
            "power_cap_requested_w": setting.power_cap_w.requested,
            **_clock("clock", setting.clock_hz),
            **_clock("memory_clock", setting.memory_clock_hz),
            "verdict": setting.verdict or None,
            "verdict_note": setting.verdict_note or None,
            "is_held": setting.is_held,
            "shared": other_programs(run, row.device, group.begin_ns, group.end_ns) or None,
            "note": row.note,
        }  # fmt: skip
        if ranks.ranks and is_of_device:
            record["sharing"] = max(1, len(ranks.users(row.device)))
        if _is_part(ranks) and is_of_device:
            record["device_ids"] = " ".join(_device_ids(run, row.device))
        if not isinstance(row, RunRow):
            record |= _efficiency(record, row, table)
        if isinstance(row, PhaseRow):
            record["u_s_per_batch"] = _u_mean_s(run, labels_of(run, row))
        if not isinstance(row, PhaseRow):
            for series in results:
                record |= _result(series.of(group.begin_ns, group.end_ns))
        if table.idle:
            record |= {k: v for k, v in above_idle(row, table.idle).items() if k != "idle_note"}
        _check_finite(run, record)
        records.append(record)
    return records + ([common | r for r in _seconds_of_ranks(run, ranks)] if _is_part(ranks) else [])


def _of_machine(environment: Mapping[str, Any]) -> dict[str, Any]:
    cores, memory = (str(environment.get(name) or "") for name in ("cores", "memory"))
    return {
        "processor": _text(environment.get("processor")),
        "cores": int(cores) if cores.isascii() and cores.isdigit() and len(cores) < 9 else None,
        "memory_gib": parse_number(memory.removesuffix(" GiB")),
        "git_commit": _text(environment.get("git_commit")),
        "torch_version": _text(environment.get("torch")),
    }


def _of_driver(driver: Driver) -> dict[str, Any]:
    return {
        "driver_version": driver.version,
        "cuda_version": driver.cuda,
        "default_power_limit_w": driver.default_power_limit_w,
        "least_power_limit_w": driver.least_power_limit_w,
        "greatest_power_limit_w": driver.greatest_power_limit_w,
    }


def _of_campaign(campaign: Mapping[str, Any]) -> dict[str, Any]:
    """Which run of a campaign it is. Its program is the campaign's, with the factors' names for their levels."""
    if not campaign:
        return {}
    block = campaign.get("block")
    return {
        "program": _text(campaign.get("program")),
        "campaign": _text(campaign.get("campaign")),
        "cell": _text(campaign.get("cell")),
        "block": block if isinstance(block, int) else None,
    }


def _with_factors(stated: dict[str, Any], campaign: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that phases state, and those factors of a campaign that they do not."""
    factors = campaign.get("factors")
    if not isinstance(factors, Mapping):
        return stated
    for name, level in factors.items():
        if name in ("model", "batch_size", "gpus"):
            own = _text(level) if name == "model" else positive_number(factors, name)
            stated[name] = own if stated[name] is None else stated[name]
        elif name not in KNOB_AS_OPTION or not KNOB_AS_OPTION[name].is_of_gpu:  # a GPU's are what its driver enforced
            stated.setdefault(f"{ATTRIBUTE}{name}", attribute_cell(level))
    return stated


def _result(series: Series) -> dict[str, Any]:
    name = f"{RESULT}{series.name}"
    return {name: float(series.values[-1]), f"{name}{BEST}": series.best} if len(series) else {}


_OF_JOB = ("job_id", "job_name", "job_user", "job_account", "job_partition", "job_step")


def _with_said(stated: dict[str, Any], said: object) -> dict[str, Any]:
    """Columns that phases state, and what the run says of itself and they do not."""
    own = said if isinstance(said, Mapping) else {}
    return {f"{ATTRIBUTE}{name}": attribute_cell(value) for name, value in own.items()} | stated


_OBSERVED_FROM = 5
"""So many readings tell a clock that nobody has set: of fewer some are of the way from idling and back."""


def _clock(name: str, setting: Setting) -> dict[str, Any]:
    return {
        f"{name}_hz": setting.value,
        f"{name}_basis": setting.basis,
        f"{name}_asked_hz": setting.asked,
        f"{name}_requested_hz": setting.requested,
        f"{name}_observed_hz": setting.observed if setting.readings >= _OBSERVED_FROM else None,
    }


def _check_finite(run: Run, record: Mapping[str, Any]) -> None:
    for name in ("s_per_batch", "j_per_batch", "energy_j", "u_statistical_j", "u_systematic_j"):
        if not isfinite(number_of(record, name) or 0.0):
            raise AnalysisError(
                f"{run.path}: {name} of {record['device']} is {record[name]}: a calibration or accuracy of its lines "
                "is not a number (`joules info --check` says which)"
            )


def _stated(attributes: Mapping[str, Any], setting: Enforced | None = None) -> dict[str, Any]:
    """Columns that the attributes of phases give, and what of their setting no column of a device can hold."""
    cap = setting.group.get(ENFORCED_CAP) if setting is not None else None
    batch, gpus = positive_number(attributes, "batch_size"), positive_number(attributes, "gpus")
    others = {f"{ATTRIBUTE}{k}": attribute_cell(v) for k, v in attributes.items() if k not in _PROMOTED}
    for name, value in setting.group.items() if setting is not None else ():
        if name != ENFORCED_CAP or isinstance(value, str):  # a number has a column, by which rows are apart
            others[f"{ATTRIBUTE}{name}"] = attribute_cell(value)
    return {
        "model": _text(attributes.get("model")),
        "batch_size": batch,
        "gpus": round(gpus) if gpus else None,
        "power_cap_asked_w": positive_number(attributes, "power_cap_w"),
        "power_cap_in_run": None if cap is None else str(cap),
        "tokens_per_sample": positive_number(attributes, "tokens_per_sample"),
        "operations_per_sample": positive_number(attributes, OPERATIONS),
        "operations_executed_per_sample": positive_number(attributes, EXECUTED),
        **others,
    }


_SAME_NAMES = (
    "phase", "timing", "method", "iterations", "n", "s_per_batch", "j_per_batch", "u_statistical_j", "u_systematic_j",
    "rectangle_j", "samples_per_batch", "samples_per_s", "tokens_per_batch", "time_s", "energy_j", "phases_j",
    "rest_j", "rest_u95_j",
    "missing_s", "off_by_j", "ranks_counted", "is_lower_bound", "provenance", "sd_s", "sd_j", "is_iteration",
    "batches_per_optimizer_step",
)  # fmt: skip
"""Columns that a row of the table has under the same name."""


def _figures(row: Row) -> dict[str, Any]:
    """What a row of the table says, by the names of columns."""
    record: dict[str, Any] = {name: getattr(row, name) for name in _SAME_NAMES if hasattr(row, name)}
    if isinstance(row, PhaseRow):
        return record | {"kind": "phase", "phase_path": row.path}
    if isinstance(row, RunRow):
        return record | {"kind": "run"}
    n = 0 if row.is_mixed else row.iterations
    return record | {"kind": "total", "s_per_batch": row.time_s / n if n else None}


def _efficiency(record: Mapping[str, Any], row: PhaseRow | TotalRow, table: PhaseTable) -> dict[str, Any]:
    """GFLOPS/W of a phase or a total; its uncertainty is relatively that of the joules which it divides by."""
    operations, batch = record["operations_per_sample"], record["batch_size"]
    if isinstance(row, TotalRow):
        gflops, basis = row.gflops_per_w_paper, row.gflops_basis
    else:
        is_pass = operations and batch and row.j_per_batch and row.phase in ("forward", "backward")
        gflops, basis = (
            gflops_per_w_paper(operations, batch, 1, row.j_per_batch) if is_pass and row.j_per_batch else None,
            row.phase if is_pass else "",
        )
    # GPUs that one process uses share its batches (Castro et al.): each did its part of the operations.
    is_alone = record["ranks"] == 1 and (record.get("world_size") or 1) == 1
    share = 1 / record["gpus"] if is_alone else 1.0
    figures: dict[str, Any] = {"gflops_basis": basis or None}
    if isinstance(row, TotalRow) and row.gflops_per_w_executed:
        figures["gflops_per_w_executed"] = row.gflops_per_w_executed * share
    if not gflops:
        return figures
    gflops *= share
    figures |= {"gflops_per_w": gflops, "gflops_convention": "paper"}
    same = (row.device, row.provenance, group_key(row.group))
    phases = [r for r in table.phases if (r.device, r.provenance, group_key(r.group)) == same]
    phases = [r for r in phases if r.phase in basis.split("+")]
    joules = sum(r.j_per_batch or 0.0 for r in phases)
    if joules:
        statistical = sqrt(sum((r.u_statistical_j or 0.0) ** 2 for r in phases))
        systematic = sum(r.u_systematic_j or 0.0 for r in phases)
        figures["u_statistical_gflops_per_w"] = float(gflops * statistical / joules)
        figures["u_systematic_gflops_per_w"] = float(gflops * systematic / joules)
    return figures


def _u_mean_s(run: Run, labels: Sequence[int]) -> float | None:
    """Standard uncertainty of the mean duration by the spread of the phases that ended; None for fewer than two."""
    p = run.phases
    ended = p.of(labels) & ~p.cut
    seconds = (p.end_ns[ended] - p.begin_ns[ended]).astype(np.float64) * 1e-9
    if len(seconds) < 2:
        return None
    return beyond_rounding(float(np.std(seconds, ddof=1) / np.sqrt(len(seconds))), float(np.mean(seconds)))


# -- a run as a part of a training over several machines: enough to find and add up the others --


def _is_part(ranks: Ranks) -> bool:
    """Whether ranks of the training are missing in a run: on other machines, or unrecorded."""
    return 0 < len(ranks.ranks) < ranks.world_size


def _of_training(run: Run, ranks: Ranks) -> dict[str, Any]:
    if not ranks.ranks:
        return {"ranks": 1}
    machines = (_text(run.environment.get("machines")) or "")[:9]
    return {
        "ranks": len(ranks.ranks),
        "world_size": ranks.world_size,
        "rank_numbers": " ".join(str(r.rank) for r in ranks.ranks),
        "job_machines": int(machines) if machines.isascii() and machines.isdigit() else None,
        "begin_unix_s": begin_unix_s(run) if _is_part(ranks) else None,
    }


def _device_ids(run: Run, device: str) -> list[str]:
    """Its lines by their clock, and the GPUs that it is known to be; an address on the bus is the same on every
    machine, so that it goes with the host's name."""
    lines = {f"line:{run.lines[name].clock}/{name}" for name in run.devices[device].feeds}
    identity, host = device_identity(run, device), run.environment.get("host")
    gpus = sorted(identity.uuids) or [f"{host}/{pci}" for pci in sorted(identity.pcis)]
    return [*sorted(lines), *(f"gpu:{name}" for name in gpus)]


def _seconds_of_ranks(run: Run, ranks: Ranks) -> Iterable[dict[str, Any]]:
    """Rows of kind ``rank``: of each rank and kind of phase how many ended and how long they took on average; and of
    each group how many iterations in how many seconds, without a phase."""
    tracks = ranks.tracks(run)
    for rank in np.unique(tracks[tracks >= 0]).tolist():
        own = replace(run, phases=select_phases(run.phases, tracks == rank))
        p = own.phases
        groups: dict[GroupKey, list[int]] = {}
        for label in np.unique(p.label).tolist():
            kind = p.classes[label]
            if kind.is_magnified:
                continue
            groups.setdefault(group_key(dict(kind.group)), []).append(label)
            ended = (p.label == label) & ~p.cut
            about = {"phase": kind.name, "phase_path": "/".join(kind.shown), "timing": kind.timing}
            yield _of_rank(rank, kind, int(ended.sum()), float(p.duration_s[ended].sum())) | about
        for labels in groups.values():
            begin, end = stretches_of(own, labels)
            length_s = float((end - begin).sum()) * 1e-9
            yield _of_rank(rank, p.classes[labels[0]], iterations_of(own, labels), length_s)


def _of_rank(rank: int, kind: PhaseClass, count: int, length_s: float) -> dict[str, Any]:
    each_s = length_s / count if count else None
    return _stated(kind.attributes, kind.setting) | {
        "kind": "rank", "rank": rank, "iterations": count, "s_per_batch": each_s, "time_s": length_s,
    }  # fmt: skip


def shared_notes(frame: Frame) -> tuple[str, ...]:
    """A note on each run of a frame in which another program was on the device. It is one under every table: whatever
    is made of these runs has that program's joules in it."""
    if "shared" not in frame:
        return ()
    rows = frame[frame["shared"].notna() & (frame["shared"] != "")]
    # A recording says more than a part of it.
    whole = rows[rows["kind"] == "run"]
    rows = whole if len(whole) else rows
    return notes_of_runs(f"{r['run']}: {note_of(str(r['device']), str(r['shared']))}" for r in rows_of(rows))


# -- what would make a table wrong -------------------------------------------------------------------------------------


def check_run(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Raises `AnalysisError` for a run that no table can be made of, saying why."""
    phases, totals, runs = ([r for r in records if r["kind"] == kind] for kind in ("phase", "total", "run"))
    check_rows(
        path,
        [(r["phase"], r["s_per_batch"]) for r in phases],
        [(nan if r["time_s"] is None else r["time_s"], r["missing_s"] or 0.0) for r in totals],
        [r["energy_j"] is not None for r in runs],
        [str(r["note"]) for r in runs],
    )


def check_runs(frame: Frame) -> None:
    """Raises `AnalysisError` where one model's name stands for two different models, or one recording comes twice."""
    operations: dict[Hashable, Record] = {}
    recordings: dict[Hashable, Cell] = {}
    layer = f"{ATTRIBUTE}{LAYER}"
    for r in rows_of(frame):
        count = number_of(r, "operations_per_sample")
        # Phases of layers count their own operations.
        if r["model"] is not None and count is not None and r.get(layer) is None:
            first = operations.setdefault(r["model"], r)
            if not isclose(count, number_of(first, "operations_per_sample") or 0.0, rel_tol=1e-9):
                raise AnalysisError(
                    f"{r['path']}: model {r['model']!r} has {count:g} operations per sample, but "
                    f"{first['operations_per_sample']:g} in {first['path']}: give different models different names"
                )
        if r["kind"] == "run" and r["run_id"]:
            key = (r["run_id"], r["created_utc"], r["host"], r["device"], r["provenance"], r["energy_j"])
            if recordings.setdefault(key, r["path"]) != r["path"]:
                raise AnalysisError(f"{r['path']} is a copy of {recordings[key]}: a run counts once")
