"""Records: one flat row for each row of a run's table, under one set of columns for all runs; and what is made of them.

Campaigns, indexes, comparisons and pictures are made of records. A record is a dict with every key of `COLUMNS`, in
that order; what is not known is None. What a device was set to is told by `powerd_analytics.settings`.

Records are added up in three ways: repeats of a configuration and GPUs of a run (`powerd_analytics.campaign`), machines
of a job (`powerd_analytics.jobs`). Their uncertainties follow two rules: `mean_figure` and `summed_joules`.
"""

from __future__ import annotations

import json
import re
import shlex
from calendar import timegm
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import dropwhile
from math import hypot, isclose, isfinite, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR, known
from powerd_analytics.export import Cell, Column, to_json_text
from powerd_analytics.metrics import edp_js, gflops_per_w_paper
from powerd_analytics.published import parse_condition
from powerd_analytics.runs.in_force import Enforced
from powerd_analytics.runs.phases import (
    ENFORCED_CAP,
    EXECUTED,
    OPERATIONS,
    PhaseClass,
    is_number_cell,
    kept,
    number,
)
from powerd_analytics.runs.ranks import Ranks, device_identity, ranks_of
from powerd_analytics.runs.run import (
    Progress,
    Run,
    no_progress,
    pick,
    read_run,
    recalibrate,
)
from powerd_analytics.settings import Settings, asked_clock_hz, settings_of
from powerd_analytics.table import (
    LAYER,
    GroupKey,
    JobRow,
    PhaseRow,
    PhaseTable,
    RankRow,
    References,
    Row,
    RunRow,
    TotalRow,
    check_attributes,
    group_key,
    iterations_of,
    merits,
    phase_table,
    stretches_of,
)
from powerd_analytics.wall_clock import wall_clock
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    import pandas as pd

Record = dict[str, Cell]

RECORD_VERSION = 1
"""Rises when a column changes its meaning or goes; new columns do not raise it."""

# name, kind, units, meaning, and where people see the column: its heading, and the sign before a bound
_COLUMNS: tuple[tuple[Any, ...], ...] = (
    ("kind", "text", "", "phase: mean of one kind of phase; total: all phases of a group; run: the recording; "
     "rank: what one rank took; job: all ranks"),
    ("run", "text", "", "file name without suffix"),
    ("path", "text", "", "the run file"),
    ("run_id", "text", "", "the recording's own id"),
    ("created_utc", "text", "", "when it began, wall clock"),
    ("host", "text", "", "the machine that trained"),
    ("program", "text", "", "the command without interpreter, folders, seeds and the run file's own name"),
    ("model", "text", "", "attribute of the phases"),
    ("batch_size", "number", "1", "attribute of the phases", "batch"),
    ("gpus", "integer", "1", "attribute of the phases, else GPUs that processes say they use, else ranks, else 1"),
    ("ranks", "integer", "1", "processes of a job in the run; each with a batch of its own where more than one"),
    ("rank", "integer", "1", "of kind rank: which one"),
    ("sharing", "integer", "1", "ranks that share the device"),
    ("ranks_counted", "integer", "1",
     "of totals: ranks that share the device and whose iterations are counted"),
    ("job", "text", "", "how the launcher names the training"),
    ("world_size", "integer", "1", "ranks of the whole training, as the launcher says"),
    ("rank_numbers", "text", "", "the ranks whose processes are in the run"),
    ("machines", "integer", "1", "of a job's sums: machines whose runs are added up"),
    ("machine", "integer", "1", "of one machine's part of a job: which, by its ranks"),
    ("job_machines", "integer", "1", "machines of the whole training, as the launcher says"),
    ("begin_unix_s", "number", "s", "when a part of a job began, by that machine's wall clock, since 1970"),
    ("device", "text", "", "whose joules they are"),
    ("sensors", "text", "", "of a part of a job: JSON list of the lines, by board and start of its powerd"),
    ("gpu", "text", "", "of a part of a job: JSON list of the GPUs that the device is"),
    ("device_name", "text", "", "product: attribute of the phases, else as the driver names it", "product"),
    ("provenance", "text", "", "measured, modelled or simulated"),
    ("power_cap_w", "number", "W", "what the driver enforced while they ran; where no driver tells, power_cap_asked_w, "
     "else the limit when the driver's source was opened", "cap W"),
    ("power_cap_basis", "text", "", "where that comes from: enforced, stated or requested"),
    ("power_cap_asked_w", "number", "W", "attribute power_cap_w of the phases: a label"),
    ("power_cap_in_run", "text", "", "in a run in which the cap changed: which of its caps; changing: between two"),
    ("clock_hz", "number", "Hz", "attribute of the phases, else median of the SM clock while they ran", "clock MHz"),
    ("clock_set", "flag", "", "clock_hz is an attribute: chosen, not observed"),
    ("attributes", "text", "", "JSON: the phases' other attributes"),
    ("phase", "text", "", "name of the phase"),
    ("phase_path", "text", "", "with the phases around it", "phase"),
    ("timing", "text", "", "host, host-synchronised or device"),
    ("method", "text", "", "how the joules were found, where that is said"),
    ("iterations", "integer", "1", "phases that ended; of totals and runs, batches", "n"),
    ("s_per_batch", "number", "s", "mean duration of one phase; of totals, time_s / iterations", "s/batch"),
    ("u_s_per_batch", "number", "s", "standard uncertainty of that mean by the spread of the phases"),
    ("s_per_batch_min", "number", "s", "of a job's sums: the same of the fastest rank", "fastest rank s"),
    ("s_per_batch_max", "number", "s", "of a job's sums: the same of the slowest rank", "slowest rank s"),
    ("s_by_rank", "text", "", "of a part of a job: JSON, for each rank how many phases and their seconds"),
    ("j_per_batch", "number", "J", "mean joules of one phase; of totals, energy_j / iterations", "J/batch", "≥"),
    ("u95_j", "number", "J", "95 % interval of j_per_batch (phase) or energy_j (total, run)", "± U95 J"),
    ("u_statistical_j", "number", "J", "standard uncertainty of the same, what averages out"),
    ("u_systematic_j", "number", "J", "standard uncertainty of the same, what repeats share"),
    ("sd_s", "number", "s", "spread of the single phases of a run: their standard deviation, no uncertainty", "sd s"),
    ("sd_j", "number", "J", "the same of their joules, noise of the sensor included", "sd J"),
    ("power_w", "number", "W", "joules over seconds", "W", "≥"),
    ("samples_per_s", "number", "1/s", "batch_size over seconds", "samples/s"),
    ("time_s", "number", "s", "duration of the total or the run", "s"),
    ("energy_j", "number", "J", "joules of the total or the run", "J", "≥"),
    ("edp_js", "number", "J s", "energy_j x time_s; of phases, j_per_batch x s_per_batch", "EDP (J s)", "≥"),
    ("operations_per_sample", "number", "1",
     "attribute of the phases: operations of one forward pass, one sample"),
    ("operations_executed_per_sample", "number", "1",
     "attribute of the phases: operations that forward and backward run for one sample"),
    ("gflops_per_w", "number", "1e9/J",
     "operations per joule / 1e9; where GPUs share a batch, of one GPU's share of them", "GFLOPS/W (paper)", "≤"),
    ("u_statistical_gflops_per_w", "number", "1e9/J", "standard uncertainty of that, what averages out"),
    ("u_systematic_gflops_per_w", "number", "1e9/J", "standard uncertainty of that, what repeats share"),
    ("gflops_convention", "text", "", "paper: forward and backward count the operations once each"),
    ("gflops_basis", "text", "", "whose joules it divides by", "over the joules of"),
    ("phases_j", "number", "J", "of runs and ranks: joules in the outermost phases", "phases J"),
    ("rest_j", "number", "J", "joules in no phase", "rest J"),
    ("devices_j", "number", "J", "of kind job: joules of the devices, each once", "devices J"),
    ("residual_j", "number", "J", "what phases and rest leave of the whole", "residual J"),
    ("missing_s", "number", "s", "seconds without readings", "missing s"),
    ("is_lower_bound", "flag", "", "a line stood at full scale: joules are the least they can be"),
    ("note", "text", "", "why a number is missing or weaker"),
)  # fmt: skip
COLUMNS = {c[0]: Column(*c) for c in _COLUMNS}
COLUMNS["is_lower_bound"] = replace(COLUMNS["is_lower_bound"], is_hidden=True)
COLUMNS["u95_j"] = replace(COLUMNS["u95_j"], is_uncertainty=True)

_DERIVED = {
    column.name: column
    for column in (
        Column("runs", "integer", "1", heading="runs"),
        Column("s_per_training", "number", "s", heading="s/training"),
        Column("j_per_training", "number", "J", heading="J/training", sign="≥"),
        Column("co2_g", "number", "g", heading="g CO2e", sign="≥"),
        Column("cost", "number", heading="cost", sign="≥"),
        Column("u95_s_per_batch", "number", "s", heading="± U95 s", is_uncertainty=True),
        Column("u95_j_per_batch", "number", "J", heading="± U95 J", is_uncertainty=True),
        Column("u95_edp_js", "number", "J s", heading="± U95 J s", is_uncertainty=True),
        Column("u95_gflops_per_w", "number", "1e9/J", heading="± U95", is_uncertainty=True),
    )
}
COST = "cost_"
"""What a column of money begins with; its currency follows."""


def column(name: str, heading: str = "") -> Column:
    """A column of records, or of what is derived from them: ``u95_`` before a name is its expanded uncertainty."""
    plain = name.removeprefix("u95_")
    if plain.startswith(COST):
        currency = plain.removeprefix(COST).upper()
        found = Column(name, "number", currency, heading=currency, sign="≥")
    else:
        every = COLUMNS | _DERIVED | MERITS
        found = every.get(name) or every.get(plain) or Column(name, "number")
    if plain != name and not found.is_uncertainty:
        found = replace(found, heading=f"± U95 {found.heading or plain}", sign="", is_uncertainty=True)
    return replace(found, name=name, heading=heading or found.heading or name)


def empty_record() -> Record:
    """A record without a value in any column."""
    return dict.fromkeys(COLUMNS)


def number_of(record: Record, name: str) -> float | None:
    """A cell that is a number, else None."""
    value = record[name]
    return float(value) if is_number_cell(value) else None


def text_of(value: Any) -> str | None:
    """An attribute as text, None for nothing."""
    return None if value is None or value == "" else str(value)


# -- looking into records ----------------------------------------------------------------------------------------------

_ALIASES = {
    "batch": "batch_size", "cap": "power_cap_w", "clock": "clock_hz", "generation": "device_name",
    "product": "device_name", "path": "phase_path",
}  # fmt: skip


def attributes_of(record: Record) -> dict[str, Cell]:
    """The phases' attributes that have no column of their own."""
    attributes = json.loads(str(record["attributes"] or "{}"))
    return {k: v if isinstance(v, str | int | float | bool | None) else json.dumps(v) for k, v in attributes.items()}


def dimension(name: str, records: Sequence[Record]) -> str:
    """The column that is meant by a name on the command line: an alias, with dashes, or an attribute of the phases.

    Raises `AnalysisError` with a suggestion for an unknown one.
    """
    meant = name.strip().replace("-", "_")
    meant = _ALIASES.get(meant, meant)
    attributes = dict.fromkeys(k for r in records for k in attributes_of(r))
    return (
        name.strip()
        if meant not in COLUMNS and name.strip() in attributes
        else pick(meant, [*COLUMNS, *attributes], "column")
    )


def value_in(record: Record, name: str) -> Cell:
    """A column of a record, or an attribute of its phases."""
    return record[name] if name in record else attributes_of(record).get(name)


def where(records: Sequence[Record], conditions: Sequence[str]) -> list[Record]:
    """The records for which every ``COLUMN=VALUE`` holds. Raises `AnalysisError` for one that none fulfils."""
    chosen = list(records)
    for text in conditions:
        condition = parse_condition("--where", text)
        name = dimension(condition.column, records)
        values = ["" if (value := value_in(r, name)) is None else str(value) for r in chosen]
        chosen = [r for r, value in zip(chosen, values, strict=True) if condition.holds(value)]
        if not chosen:
            there = ", ".join(dict.fromkeys(filter(None, values))) or "no value"
            raise AnalysisError(f"--where {condition}: no row has it; {name} is {there}")
    return chosen


def to_frame(records: Sequence[Record]) -> pd.DataFrame:
    """The records as a pandas frame: one type a column, missing numbers as NaN and missing integers as <NA>."""
    import pandas as pd

    names = list(dict.fromkeys([*COLUMNS, *(k for r in records for k in r)]))
    frame = pd.DataFrame([[r.get(n) for n in names] for r in records], columns=names, dtype=object)
    types = {"text": "string", "integer": "Int64", "number": "float64", "flag": "boolean"}
    return frame.astype({n: types[COLUMNS[n].kind if n in COLUMNS else "integer"] for n in names})


# -- figures with their uncertainty ------------------------------------------------------------------------------------

_BY_TIME = ("s_per_batch", "samples_per_s", "time_s")
VALUES = (*_BY_TIME, "power_w", "energy_j", "edp_js", "j_per_batch", "gflops_per_w")
"""Columns that are figures: a cell of a pivot can hold them."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with the two parts of its standard uncertainty, in its own unit; None where a part is not known."""

    value: float
    u_statistical: float | None = None
    u_systematic: float | None = None
    is_lower_bound: bool = False
    """Known from one side: joules and what grows with them at least, figures per joule at most."""
    count: int = 1
    """Figures that it is the mean of."""
    interval: float | None = None
    """Half of the 95 % interval, where the shapes of its parts are known: that of a single record's joules."""

    @property
    def u95(self) -> float | None:
        """Expanded uncertainty; None where nothing is known of it or the value is a bound."""
        parts = [u for u in (self.u_statistical, self.u_systematic) if u is not None]
        if self.is_lower_bound or (self.interval is None and not parts):
            return None
        return self.interval if self.interval is not None else COVERAGE_FACTOR * hypot(*parts)

    def inverse(self) -> Figure:
        """One over it, to first order."""
        u = [None if u is None else u / self.value**2 for u in (self.u_statistical, self.u_systematic)]
        return Figure(1 / self.value, u[0], u[1], self.is_lower_bound)


def figure_of(record: Record, name: str) -> Figure | None:
    """The figure ``name`` of a record, None where it has no value. Raises `AnalysisError` for what is no figure.

    Energy and what is proportional to it take the joules' relative uncertainty.
    """
    if name not in VALUES:
        raise AnalysisError(f"{name!r} is no figure of a table: choose one of {', '.join(VALUES)}")
    value = number_of(record, name)
    if value is None:
        return None

    def share(u_name: str, of: str) -> float | None:
        u, whole = number_of(record, u_name), number_of(record, of)
        return u / abs(whole) * abs(value) if u is not None and whole else None

    if name in _BY_TIME:
        return Figure(value, share("u_s_per_batch", "s_per_batch"))
    is_bound = record["is_lower_bound"] is True
    if name == "gflops_per_w":
        parts = (number_of(record, "u_statistical_gflops_per_w"), number_of(record, "u_systematic_gflops_per_w"))
        return Figure(value, *parts, is_bound)
    joules = joules_column(record)
    statistical, systematic, u95 = (share(n, joules) for n in ("u_statistical_j", "u_systematic_j", "u95_j"))
    if statistical is None and systematic is None and u95 is not None:
        # Of a whole recording only the two together are known; nothing of it averages out.
        systematic = u95 / COVERAGE_FACTOR
    return Figure(value, statistical, systematic, is_bound, interval=u95)


def joules_column(record: Record) -> str:
    """The column whose uncertainties a record has."""
    return "j_per_batch" if record["kind"] == "phase" else "energy_j"


def mean_figure(figures: Sequence[Figure], *, are_repeats: bool = True) -> Figure:
    """The mean of repeats, or of cells: what is statistical averages out, what is systematic is shared and does not.

    The statistical part of repeats is the larger of their spread and of what each is known to be unsure of. Differences
    of other cells are no uncertainty; where nothing is known of one cell's, nothing is of the mean's.
    """
    n = len(figures)
    if n == 1:
        return replace(figures[0], count=1)
    values = np.array([f.value for f in figures])
    statistical = [f.u_statistical for f in figures if f.u_statistical is not None]
    systematic = [f.u_systematic for f in figures if f.u_systematic is not None]
    mean, is_bound = float(values.mean()), any(f.is_lower_bound for f in figures)
    u: float | None = hypot(*statistical) / n
    if are_repeats:
        u = max(u or 0.0, known(float(np.std(values, ddof=1) / np.sqrt(n)), mean))
    elif any(f.u95 is None for f in figures):
        u, systematic = None, []
    elif not statistical:
        u = None
    return Figure(mean, u, float(np.mean(systematic)) if systematic else None, is_bound, n)


def independent(parts: Iterable[float | None]) -> float | None:
    """Standard uncertainty of a sum of what is off independently; None where one is not known."""
    known_parts = list(parts)
    return None if None in known_parts else hypot(*(u for u in known_parts if u is not None))


def total_of(values: Iterable[float | None]) -> float | None:
    """A sum; None where one is not known, without which it would pass for the whole."""
    every = list(values)
    return None if None in every else sum(v for v in every if v is not None)


def summed_joules(parts: Sequence[Record], times: Sequence[float], devices: Sequence[Hashable]) -> Record:
    """Joules of records of one kind, each so many ``times``, added up.

    Different ``devices`` are different sensors, off independently of each other; what is of one device is off together.
    """
    name = joules_column(parts[0])
    names = (name, "u_statistical_j", "u_systematic_j", "rest_j", "residual_j")
    by_device: dict[Hashable, dict[str, list[float | None]]] = {}
    for record, n, device in zip(parts, times, devices, strict=True):
        values = by_device.setdefault(device, {column: [] for column in names})
        for column in names:
            value = number_of(record, column)
            values[column].append(None if value is None else value * n)
    sums: Record = dict.fromkeys((*names, "u95_j"))
    of_devices = {column: [total_of(values[column]) for values in by_device.values()] for column in names}
    sums[name] = total_of(of_devices[name])
    u = [independent(of_devices[column]) for column in ("u_statistical_j", "u_systematic_j")]
    if sums[name] is not None and u[0] is not None and u[1] is not None and all(r["u95_j"] is not None for r in parts):
        sums |= {"u_statistical_j": u[0], "u_systematic_j": u[1], "u95_j": COVERAGE_FACTOR * hypot(u[0], u[1])}
    rest = {column: total_of(of_devices[column]) for column in ("rest_j", "residual_j")}
    return sums | (rest if sums[name] is not None and None not in rest.values() else {})


# -- groups of phases, and on what they ran ----------------------------------------------------------------------------

_PROMOTED = ("model", "batch_size", "gpus", "device_name", "power_cap_w", "clock_hz", "clock_mhz", OPERATIONS, EXECUTED)
"""Attributes of phases that have columns of their own."""


@dataclass(frozen=True, slots=True)
class Group:
    """What the phases of one group have in common: their attributes and when they ran (host's clock)."""

    attributes: Mapping[str, Any]
    begin_ns: int
    end_ns: int
    setting: Enforced | None = None
    """In a run in which that changed."""


def groups_of(run: Run) -> dict[GroupKey, Group]:
    """The groups by their attributes but for the operations. Raises `AnalysisError` where one model's name stands for
    two numbers of operations, and as `check_attributes`."""
    check_attributes(run)
    p = run.phases
    first = np.full(len(p.classes), np.iinfo(np.int64).max)
    last = np.full(len(p.classes), np.iinfo(np.int64).min)
    np.minimum.at(first, p.label, p.begin_ns)
    np.maximum.at(last, p.label, p.end_ns)
    groups: dict[GroupKey, Group] = {}
    for kind, begin, end in zip(p.classes, first.tolist(), last.tolist(), strict=True):
        if kind.is_magnified:
            continue
        key = group_key(dict(kind.group))
        before = groups.get(key, Group({}, begin, end))
        both = {**kind.attributes, **before.attributes}
        operations = {v for a in (kind.attributes, both) if (v := a.get(OPERATIONS)) is not None}
        if len(operations) > 1 or any(isinstance(v, tuple) for v in operations):
            model = f"model {both['model']!r}" if both.get("model") is not None else "one model"
            raise AnalysisError(f"{run.path}: phases of {model} have different {OPERATIONS}: give each model its name")
        groups[key] = Group(both, min(begin, before.begin_ns), max(end, before.end_ns), kind.setting)
    return groups


def _stated(attributes: Mapping[str, Any], setting: Enforced | None = None) -> Record:
    """Columns that the attributes of phases give, and what of their setting no column of a device can hold."""
    batch, gpus = number(attributes, "batch_size"), number(attributes, "gpus")
    others = {k: v for k, v in attributes.items() if k not in _PROMOTED}
    cap = setting.value if setting is not None else None
    if isinstance(cap, str):  # no one cap, by which rows would be apart
        others[ENFORCED_CAP] = cap
    return {
        "model": text_of(attributes.get("model")),
        "batch_size": int(batch) if batch and batch.is_integer() else batch,
        "gpus": round(gpus) if gpus else None,
        "power_cap_asked_w": number(attributes, "power_cap_w"),
        "power_cap_in_run": None if cap is None else str(cap),
        "attributes": to_json_text(others, indent=None, sort_keys=True),
    }


def is_of_class(record: Record, kind: PhaseClass) -> bool:
    """Whether a record of phases is that of a class of its run."""
    if (record["phase_path"], record["timing"]) != ("/".join(kind.path), kind.timing):
        return False
    stated, attributes = _stated(kind.attributes, kind.setting), kind.attributes
    # What is not stated, something else may tell.
    told = {"gpus": stated.pop("gpus"), "device_name": text_of(attributes.get("device_name"))}
    told["clock_hz"] = asked_clock_hz(attributes)
    stated |= {name: value for name, value in told.items() if value is not None}
    return all(record[name] == value for name, value in stated.items())


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


# -- a run as a part of its training: enough to find and add up the parts of other machines ----------------------------


def _is_part(ranks: Ranks) -> bool:
    """Whether ranks of the training are missing in a run: on other machines, or unrecorded."""
    return 0 < len(ranks.ranks) < ranks.world_size


def _of_training(run: Run, ranks: Ranks) -> Record:
    if not ranks.ranks:
        return {"ranks": 1}
    machines = (text_of(run.environment.get("machines")) or "")[:9]
    return {
        "ranks": len(ranks.ranks),
        "job": text_of(run.environment.get("job")),
        "world_size": ranks.world_size,
        "rank_numbers": json.dumps([r.rank for r in ranks.ranks]),
        "job_machines": int(machines) if machines.isascii() and machines.isdigit() else None,
        "begin_unix_s": begin_unix_s(run) if _is_part(ranks) else None,
    }


def _of_devices(run: Run, ranks: Ranks, devices: Sequence[str]) -> Record:
    """What devices of a part are, whoever reads them: no GPU where one of them is not known to be any."""
    if not _is_part(ranks):
        return {}
    lines = [run.lines[name] for d in devices for name in run.devices[d].feeds]
    host, each = run.environment.get("host"), [device_identity(run, d) for d in devices]
    # An address on the bus is the same on every machine.
    gpus = [sorted(i.uuids) or sorted(f"{host} {p}" for p in i.pcis) for i in each]
    return {
        "sensors": json.dumps(sorted({f"{line.clock}/{line.name}" for line in lines})),
        "gpu": json.dumps([g for names in gpus for g in names]) if all(gpus) else None,
    }


def _seconds_by_rank(run: Run, ranks: Ranks, row: PhaseRow | TotalRow, labels: Sequence[int]) -> str:
    """JSON: of each rank that has any, how many phases (of totals, iterations) and the seconds of all together."""
    run, _ = ranks.on(run, row.device)
    tracks = ranks.tracks(run)
    of_ranks: dict[str, tuple[int, float]] = {}
    for rank in np.unique(tracks[np.isin(run.phases.label, labels)]).tolist():
        own = replace(run, phases=kept(run.phases, tracks == rank))
        p = own.phases
        if isinstance(row, TotalRow):
            begin, end = stretches_of(own, labels)
            count, length_s = iterations_of(own, labels), float((end - begin).sum()) * 1e-9
        else:
            ended = np.isin(p.label, labels) & ~p.cut
            count, length_s = int(ended.sum()), float(p.duration_s[ended].sum())
        if count:
            of_ranks[str(rank)] = (count, length_s)
    return json.dumps(of_ranks)


def begin_unix_s(run: Run) -> float | None:
    """By the anchors of the wall clock, else by the second in which the recording was begun."""
    if (wall := wall_clock(run)) is not None:
        return float(wall.unix_ns(np.array([run.begin_ns]))[0]) * 1e-9
    try:
        return float(timegm(datetime.fromisoformat(str(run.attributes.get("created_utc"))).utctimetuple()))
    except ValueError:
        return None


_INTERPRETER = re.compile(r"python[\d.]*(\.exe)?|-.*")
_SEED = re.compile(r" \S*seed[= ]\S+", re.IGNORECASE)


def program_of(command: Sequence[str], path: Path) -> str | None:
    """Program and arguments, by which runs are repeats: the same whether `joules record` or a Meter wrote them down.

    Without what differs between repeats: a seed, the name of the run file, the file by which a notebook is reached.
    """
    words = list(dropwhile(lambda word: _INTERPRETER.fullmatch(Path(word).name), command))
    if not words:
        return None
    program = Path(words[0]).name.removesuffix(".py").rpartition(".")[2]
    arguments = [word for word in words[1:] if Path(word.rpartition("=")[2]).stem != path.stem]
    is_notebook = program == "ipykernel_launcher"
    return "notebook" if is_notebook else _SEED.sub("", shlex.join([program, *arguments]))


# -- records of a run --------------------------------------------------------------------------------------------------


def run_records(
    path: str | Path, device: str | None = None, calibration: Path | None = None, *, progress: Progress = no_progress
) -> list[Record]:
    """The records of a run file: phases, totals and runs, for one device or all.

    A run without phases has only the records of kind ``run``, one without lines none. Raises `RunFileError` for a file
    that cannot be read, `AnalysisError` for an unknown device.
    """
    run = read_run(path, progress=lambda share, text: progress(0.1 * share, text))
    if calibration is not None:
        run, _ = recalibrate(run, calibration)
    table = phase_table(run, device, progress=lambda share, text: progress(0.1 + 0.9 * share, text))
    return records_of(run, table)


def records_of(run: Run, table: PhaseTable) -> list[Record]:
    """The records of a run whose table is at hand."""
    groups, settings, ranks = groups_of(run), settings_of(run), ranks_of(run)
    # The recording has the attributes that all its groups have in common.
    every = [g.attributes for g in groups.values()]
    shared = {k: v for k, v in every[0].items() if all(a.get(k) == v for a in every)} if every else {}
    whole = Group(shared, run.begin_ns, run.end_ns)
    common = empty_record() | {
        "run": run.path.stem,
        "path": str(run.path),
        "run_id": text_of(run.attributes.get("run_id")),
        "created_utc": text_of(run.attributes.get("created_utc")),
        "host": text_of(run.environment.get("host")),
        "program": program_of(run.command, run.path),
        **_of_training(run, ranks),
    }
    rows: list[Row] = [*table.phases, *table.totals, *table.runs]
    records = []
    for row in rows:
        group = whole if isinstance(row, RunRow) else groups[group_key(row.group)]
        record = common | _what_ran(run, settings, row.device, group) | _figures(row, group)
        if ranks.ranks and row.device in run.devices:
            record |= {"sharing": max(1, len(ranks.users(row.device)))} | _of_devices(run, ranks, [row.device])
        if not isinstance(row, RunRow):
            labels = labels_of(run, row)
            if isinstance(row, PhaseRow):
                record["u_s_per_batch"] = _u_mean_s(run, labels)
            if _is_part(ranks):
                record["s_by_rank"] = _seconds_by_rank(run, ranks, row, labels)
        gflops, gpus = record["gflops_per_w"], record["gpus"]
        is_alone = record["ranks"] == 1 and (record["world_size"] or 1) == 1
        if is_alone and isinstance(gflops, float) and isinstance(gpus, int):
            # GPUs that one process uses share its batches (Castro et al.): each did its part of the operations.
            record["gflops_per_w"] = gflops / gpus
        record |= _u_gflops(record, row, table)
        for name in ("s_per_batch", "j_per_batch", "energy_j", "u95_j"):
            if not isfinite(number_of(record, name) or 0.0):
                raise AnalysisError(
                    f"{run.path}: {name} of {row.device} is {record[name]}: a calibration or accuracy of its lines is "
                    "not a number (`joules verify` says which)"
                )
        records.append(record)
    about = common | _what_ran(run, settings, "", whole)
    for rank in table.ranks:
        own = _same_names(rank) | _of_devices(run, ranks, [rank.device])
        own |= {"kind": "rank", "rank": rank.rank, "sharing": rank.ranks, "time_s": rank.busy_s, "device": rank.device}
        records.append(about | own)
    for job in table.jobs:
        own = _same_names(job) | _of_devices(run, ranks, job.devices) | {"kind": "job", "device": "+".join(job.devices)}
        records.append(about | own | {"ranks": job.ranks, "devices_j": job.devices_j})
    return [{n: None if isinstance(v, float) and not isfinite(v) else v for n, v in r.items()} for r in records]


def labels_of(run: Run, row: PhaseRow | TotalRow) -> list[int]:
    """The classes of phases that a row is about."""
    key = group_key(row.group)
    kinds = ((i, kind) for i, kind in enumerate(run.phases.classes) if not kind.is_magnified)
    own = [(i, kind) for i, kind in kinds if group_key(dict(kind.group)) == key]
    if isinstance(row, PhaseRow):
        own = [(i, kind) for i, kind in own if ("/".join(kind.path), kind.timing) == (row.path, row.timing)]
    return [i for i, _ in own]


def _what_ran(run: Run, settings: Settings, device: str, group: Group) -> Record:
    """What was run on what, and what that was set to."""
    stated = _stated(group.attributes, group.setting)
    setting = settings.of(device, group.begin_ns, group.end_ns, group.attributes, group.setting)
    return stated | {
        "device": device,
        "gpus": stated["gpus"] or gpus_of(run),
        "device_name": setting.product,
        "power_cap_w": setting.power_cap_w.value,
        "power_cap_basis": setting.power_cap_w.basis,
        "clock_hz": setting.clock_hz.value,
        "clock_set": setting.clock_hz.is_set,
        "operations_per_sample": number(group.attributes, OPERATIONS),
        "operations_executed_per_sample": number(group.attributes, EXECUTED),
    }


_SAME_NAMES = (
    "phase", "timing", "method", "iterations", "s_per_batch", "j_per_batch", "u95_j", "u_statistical_j",
    "u_systematic_j", "power_w", "samples_per_s", "time_s", "energy_j", "edp_js", "phases_j", "rest_j", "residual_j",
    "missing_s", "ranks_counted", "is_lower_bound", "note", "provenance", "sd_s", "sd_j",
)  # fmt: skip
"""Columns that a row of the table has under the same name."""


def _same_names(row: Row | RankRow | JobRow) -> Record:
    return {name: getattr(row, name) for name in _SAME_NAMES if hasattr(row, name)}


def _figures(row: Row, group: Group) -> Record:
    """What a row of the table says, by the names of columns, and what follows from it."""
    record = _same_names(row)
    if isinstance(row, PhaseRow):
        s, j = row.s_per_batch, row.j_per_batch
        record |= {"kind": "phase", "phase_path": row.path}
        record["edp_js"] = edp_js(j, s) if j is not None and s is not None else None
        operations, batch = number(group.attributes, OPERATIONS), number(group.attributes, "batch_size")
        if operations and batch and j and row.phase in ("forward", "backward"):
            record |= {"gflops_convention": "paper", "gflops_basis": row.phase}
            record["gflops_per_w"] = gflops_per_w_paper(operations, batch, 1, j)
        return record
    energy = row.energy_j
    if isinstance(row, RunRow):
        return record | {"kind": "run", "edp_js": edp_js(energy, row.time_s) if energy is not None else None}
    n, gflops = 0 if row.is_mixed else row.iterations, row.gflops_per_w_paper
    return record | {
        "kind": "total",
        "s_per_batch": row.time_s / n if n else None,
        "j_per_batch": energy / n if n and energy is not None else None,
        "gflops_per_w": gflops,
        "gflops_convention": "paper" if gflops else None,
        "gflops_basis": row.gflops_basis or None,
    }


def _u_gflops(record: Record, row: Row, table: PhaseTable) -> Record:
    """Uncertainty of a figure per joule: relative, that of the joules of the phases which it divides by."""
    gflops, basis = record["gflops_per_w"], str(record["gflops_basis"]).split("+")
    if not isinstance(gflops, float) or isinstance(row, RunRow):
        return {}
    same = (row.device, row.provenance, group_key(row.group))
    phases = [r for r in table.phases if r.phase in basis and (r.device, r.provenance, group_key(r.group)) == same]
    joules = sum(r.j_per_batch or 0.0 for r in phases)
    if not joules:
        return {}
    return {
        "u_statistical_gflops_per_w": float(
            gflops * sqrt(sum((r.u_statistical_j or 0.0) ** 2 for r in phases)) / joules
        ),
        "u_systematic_gflops_per_w": float(gflops * sum(r.u_systematic_j or 0.0 for r in phases) / joules),
    }


MERITS = {
    c.name: c
    for c in (
        Column("j_per_sample", "number", "J", "j_per_batch over batch_size"),
        Column("samples_per_j", "number", "1/J", "one over that"),
        Column("ed2p_js2", "number", "J s2", "energy_j x time_s²; of phases, of their means"),
        Column(
            "eds", "number", "1", "of totals: energy-delay sum of a sample, k = 2, 1 at the first of the same model"
        ),
        Column("gflops_per_w_executed", "number", "1e9/J", "gflops_per_w by the operations that are executed"),
    )
}
"""What `with_merits` adds."""


def with_merits(records: Sequence[Record]) -> list[Record]:
    """Records with the figures of merit that follow from their joules and seconds, however they were added up; of what
    was added up there is no spread of single phases."""
    references: References = {}
    rows = []
    for r in records:
        is_total, n = r["kind"] == "total", number_of(r, "iterations") or 0.0
        per_batch = ("j_per_batch", "s_per_batch") if r["kind"] == "phase" else ("energy_j", "time_s")
        joules, length_s = (number_of(r, name) for name in per_batch)
        samples = (number_of(r, "batch_size") or 0.0) * (n if is_total else 1) if r["j_per_batch"] is not None else None
        key = (r["model"], r["device"], r["provenance"]) if is_total else ()
        own: Record = {**merits(joules, length_s, samples, key, references), "gflops_per_w_executed": None}
        gflops, paper, executed = (
            number_of(r, name) for name in ("gflops_per_w", "operations_per_sample", "operations_executed_per_sample")
        )
        if gflops and paper and executed and is_total:
            own["gflops_per_w_executed"] = gflops * executed / (2 * paper)  # the paper counts two passes
        if r.get("runs", 1) != 1 or r["machines"] is not None or "+" in str(r["device"]):
            own |= {"sd_s": None, "sd_j": None}
        rows.append(r | own)
    return rows


def _u_mean_s(run: Run, labels: Sequence[int]) -> float | None:
    """Standard uncertainty of the mean duration by the spread of the phases that ended; None for fewer than two."""
    p = run.phases
    ended = p.of(labels) & ~p.cut
    seconds = (p.end_ns[ended] - p.begin_ns[ended]).astype(np.float64) * 1e-9
    if len(seconds) < 2:
        return None
    return known(float(np.std(seconds, ddof=1) / np.sqrt(len(seconds))), float(np.mean(seconds)))


# -- what would make a table wrong -------------------------------------------------------------------------------------


def check_run(path: Path, records: Sequence[Record]) -> None:
    """Raises `AnalysisError` for a run that no table of a campaign can be made of, saying why."""
    phases = [r for r in records if r["kind"] == "phase"]
    if not records:
        raise AnalysisError(f"{path}: this run is empty: no line feeds any of its devices")
    if not phases:
        raise AnalysisError(
            f"{path}: this run has no phases: mark them with `meter.phase(...)` (`joules info` has its joules)"
        )
    if all(r["energy_j"] is None for r in records if r["kind"] == "run"):
        raise AnalysisError(
            f"{path}: its lines have fewer than two good readings while it ran: there is no energy "
            "(`joules info` and `joules clock` say what was read, and when)"
        )
    if all(_is_outside(r) for r in records if r["kind"] == "total"):
        raise AnalysisError(
            f"{path}: its phases lie outside the readings: clocks or times do not overlap (`joules clock` shows them)"
        )
    if without_time := [r["phase"] for r in phases if r["s_per_batch"] == 0]:
        raise AnalysisError(f"{path}: phases {without_time[0]!r} took no time at all: their marks are wrong")


def _is_outside(record: Record) -> bool:
    missing, time = number_of(record, "missing_s"), number_of(record, "time_s")
    return missing is not None and time is not None and time > 0 and missing >= (1 - 1e-9) * time


def check_campaign(records: Iterable[Record]) -> None:
    """Raises `AnalysisError` where one model's name stands for two different models, or one recording comes twice."""
    operations: dict[Cell, Record] = {}
    recordings: dict[tuple[Cell, ...], Cell] = {}
    for r in records:
        count = number_of(r, "operations_per_sample")
        # Phases of layers count their own operations.
        if r["model"] is not None and count is not None and LAYER not in attributes_of(r):
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
