"""Many runs as one campaign: their records, repeats averaged, scaled to whole trainings, several GPUs added up.

Two runs are repeats where everything in `CONFIGURATION` agrees and their clocks do within `CLOCK_SHARE`. Their mean
keeps what is statistical apart from what is systematic: the first averages out, the second does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from pathlib import Path

import numpy as np

from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR, known
from powerd_analytics.export import Cell
from powerd_analytics.index import index_records, is_index, run_files
from powerd_analytics.jobs import merge_jobs
from powerd_analytics.metrics import edp_js, iterations_of
from powerd_analytics.records import Record, attributes_of, check_campaign, check_run, number_of, run_records
from powerd_analytics.runs.run import Progress, no_progress
from powerd_analytics.table_rows import LAYER
from powerd_client.phase import BASELINE
from powerd_core.errors import AnalysisError, ConfigError


def read_campaign(
    paths: Sequence[Path],
    device: str | None = None,
    calibration: Path | None = None,
    *,
    is_one_job: bool = False,
    progress: Progress = no_progress,
) -> list[Record]:
    """The records of all runs in ``paths`` (files, directories, indexes), checked by `check_run` and `check_campaign`.

    Those of indexes are taken from there. With a file of ``calibration``, all run files are read, and the joules of its
    sensors are computed again by it.

    Runs that are parts of one training over several machines are one (`merge_jobs`); with ``is_one_job`` all are.
    """
    files = run_files(paths)
    indexed: dict[Cell, list[Record]] = {}
    for path in paths if calibration is None else ():
        for record in index_records(path, device, progress=progress) if is_index(path) else ():
            indexed.setdefault(record["path"], []).append(record)
    records: list[Record] = []
    for i, path in enumerate(files):
        of_run = indexed.get(str(path)) or run_records(
            path, device, calibration, progress=part_of(progress, i, len(files), path.name)
        )
        check_run(path, of_run)
        records += of_run
    check_campaign(records)
    return merge_jobs(records, by_hand=is_one_job)


def part_of(progress: Progress, i: int, n: int, name: str) -> Progress:
    """The progress of the ``i``-th of ``n`` files."""
    return lambda share, text: progress((i + share) / n, f"{name}: {text}")


# -- figures with their uncertainty ------------------------------------------------------------------------------------

_BY_TIME = ("s_per_batch", "samples_per_s", "time_s")
VALUES = (*_BY_TIME, "power_w", "energy_j", "edp_js", "j_per_batch", "gflops_per_w")
"""Columns of a record that a cell of a pivot can hold."""


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
        return self.interval if self.interval is not None else COVERAGE_FACTOR * sqrt(sum(u**2 for u in parts))


def figure_of(record: Record, name: str) -> Figure | None:
    """The figure ``name`` of a record, None where it has no value. Raises `AnalysisError` for what is no figure.

    Energy and what is proportional to it take the joules' relative uncertainty, with the seconds' where both count.
    """
    if name not in VALUES:
        raise AnalysisError(f"{name!r} is no figure of a table: choose one of {', '.join(VALUES)}")
    value = number_of(record, name)
    if value is None:
        return None
    if name in _BY_TIME:
        return Figure(value, _share(record, "u_s_per_batch", "s_per_batch", value))
    is_bound = record["is_lower_bound"] is True
    if name == "gflops_per_w":
        parts = (number_of(record, "u_statistical_gflops_per_w"), number_of(record, "u_systematic_gflops_per_w"))
        return Figure(value, *parts, is_bound)
    joules = _joules_column(record)
    u = [_share(record, n, joules, value) for n in ("u_statistical_j", "u_systematic_j", "u95_j")]
    if u[0] is None and u[1] is None and u[2] is not None:
        # Of a whole recording only the two together are known; nothing of it averages out.
        u[1] = u[2] / COVERAGE_FACTOR
    return Figure(value, u[0], u[1], is_bound, interval=u[2])


def _joules_column(record: Record) -> str:
    """The column whose uncertainties a record has."""
    return "j_per_batch" if record["kind"] == "phase" else "energy_j"


def _share(record: Record, u_name: str, of: str, value: float) -> float | None:
    """An uncertainty of the column ``of`` as that of a figure proportional to it."""
    u, whole = number_of(record, u_name), number_of(record, of)
    return u / abs(whole) * abs(value) if u is not None and whole else None


def mean_figure(figures: Sequence[Figure]) -> Figure:
    """The mean of repeats, or of cells: what is statistical averages out, what is systematic does not.

    As for phases of a kind (`mean_of`): the larger of the repeats' spread and of what each is known to be unsure of.
    """
    n = len(figures)
    if n == 1:
        return replace(figures[0], count=1)
    values = np.array([f.value for f in figures])
    statistical = [f.u_statistical for f in figures if f.u_statistical is not None]
    systematic = [f.u_systematic for f in figures if f.u_systematic is not None]
    of_singles = sqrt(sum(u**2 for u in statistical)) / n
    of_spread = known(float(np.std(values, ddof=1) / np.sqrt(n)), float(values.mean()))
    return Figure(
        float(values.mean()),
        max(of_singles, of_spread),
        float(np.mean(systematic)) if systematic else None,
        any(f.is_lower_bound for f in figures),
        n,
    )


def mean_of_cells(figures: Sequence[Figure]) -> Figure:
    """The mean of cells of different configurations: their differences are no uncertainty.

    Systematic parts are taken as shared by all cells, so that the mean has their mean. Where nothing is known of one
    cell's uncertainty, nothing is of the mean's.
    """
    n, mean = len(figures), mean_figure(figures)
    if n < 2:
        return mean
    if any(f.u95 is None for f in figures):
        return replace(mean, u_statistical=None, u_systematic=None)
    statistical = [f.u_statistical for f in figures if f.u_statistical is not None]
    systematic = [f.u_systematic for f in figures if f.u_systematic is not None]
    return replace(
        mean,
        u_statistical=sqrt(sum(u**2 for u in statistical)) / n if statistical else None,
        u_systematic=sum(systematic) / n if systematic else None,
    )


def _inverse(f: Figure) -> Figure:
    statistical, systematic = (None if u is None else u / f.value**2 for u in (f.u_statistical, f.u_systematic))
    return Figure(1 / f.value, statistical, systematic, f.is_lower_bound)


# -- repeats -----------------------------------------------------------------------------------------------------------

CONFIGURATION = (
    "kind", "host", "model", "batch_size", "gpus", "ranks", "rank_numbers", "world_size", "machines", "device",
    "device_name", "provenance", "power_cap_w", "attributes", "phase", "phase_path", "timing", "operations_per_sample",
)  # fmt: skip
"""What must be the same for two runs to be repeats of one configuration; the clock is compared by `CLOCK_SHARE`."""
BASIS = ("gflops_convention", "gflops_basis")
"""What a figure of GFLOPS/W is made of. Repeats have it as they have joules: a run without these is a repeat too."""
_GFLOPS = ("gflops_per_w", "u_statistical_gflops_per_w", "u_systematic_gflops_per_w")
CLOCK_SHARE = 0.03
"""Observed clocks that differ by no more than this are one setting; clocks that were set must be the same."""
CAP_STEP_W = 0.5
"""Limits are set in whole watts and told in milliwatts."""
_OF_ALL_BATCHES = (
    "energy_j", "u95_j", "u_statistical_j", "u_systematic_j", "time_s", "rest_j", "residual_j", "missing_s",
)  # fmt: skip
"""Columns of a total that grow with its batches."""
WHOLE = ("run", "rank", "job")
"""Kinds of whole recordings."""
RUNS = "runs"
"""Column of averaged records: how many runs each is made of."""


def averaged(records: Iterable[Record], apart: Sequence[str] = ()) -> list[Record]:
    """Records with repeats made one, in the order of their first; `RUNS` says of how many each is the mean.

    Records that differ in a column named in ``apart`` are no repeats either.

    Totals are repeats when they have the same number of batches; `of_a_batch` makes them so. Whole recordings, and what
    ranks took of them, are never averaged: how long they lasted before and behind the training is chance.
    """
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in records:
        cap = number_of(r, "power_cap_w")
        key = [r[name] for name in (*CONFIGURATION, *apart) if name != "power_cap_w"]
        key += [None if cap is None else round(cap / CAP_STEP_W), r["iterations"] if r["kind"] == "total" else None]
        key += [r[name] for name in ("path", "run_id", "rank", "machine")] if r["kind"] in WHOLE else []
        groups.setdefault(tuple(key), []).append(r)
    return [_mean_record(same) for group in groups.values() for same in _by_clock(group)]


def of_a_batch(record: Record) -> Record:
    """A total as of one of its batches, so that runs of different numbers of batches are repeats (`averaged`)."""
    n = number_of(record, "iterations")
    if record["kind"] != "total" or not n:
        return record
    values = {name: None if (v := number_of(record, name)) is None else v / n for name in _OF_ALL_BATCHES}
    energy, time = values["energy_j"], values["time_s"]
    product = None if energy is None or time is None else edp_js(energy, time)
    return {**record, **values, "edp_js": product, "iterations": 1}


def _by_clock(group: Sequence[Record]) -> list[list[Record]]:
    """Repeats apart by the clock; those of unknown clock are a setting of their own."""
    clocks = [(number_of(r, "clock_hz"), i) for i, r in enumerate(group)]
    unknown = [i for hz, i in clocks if hz is None]
    settings: list[list[int]] = [unknown] if unknown else []
    lowest_hz, was_set = 0.0, None
    for hz, i in sorted((hz, i) for hz, i in clocks if hz is not None):
        is_set = group[i]["clock_set"]
        if hz <= lowest_hz * (1 + (1e-6 if is_set is True else CLOCK_SHARE)) and is_set == was_set:
            settings[-1].append(i)
        else:
            settings.append([i])
            lowest_hz, was_set = hz, is_set
    return [[group[i] for i in sorted(same)] for same in sorted(map(sorted, settings))]


def _mean_record(same: Sequence[Record]) -> Record:
    n = len(same)
    record: Record = {**same[0], RUNS: n}
    if n == 1:
        return record
    for name in ("run", "path", "run_id", "created_utc", "method", "note"):
        texts = dict.fromkeys(str(r[name]) for r in same if r[name])
        record[name] = "; ".join(texts) or ("" if name == "note" else None)
    for name in ("clock_hz", "power_cap_w", "rest_j", "residual_j", "time_s", "s_per_batch", "missing_s",
                 "s_per_training", "j_per_training"):  # fmt: skip
        if name in record:
            record[name] = _mean(same, name)
    iterations = [int(v) for v in _numbers(same, "iterations")]
    record["iterations"] = sum(iterations) if record["kind"] == "phase" else next(iter(iterations), None)
    record["s_per_batch_min"] = min(_numbers(same, "s_per_batch_min"), default=None)
    record["s_per_batch_max"] = max(_numbers(same, "s_per_batch_max"), default=None)
    record["is_lower_bound"] = any(r["is_lower_bound"] is True for r in same)
    seconds, batch = _mean_of(same, "s_per_batch"), number_of(record, "batch_size")
    record["u_s_per_batch"] = seconds.u_statistical if seconds else None
    has_rate = batch and seconds and seconds.value and any(r["samples_per_s"] is not None for r in same)
    record["samples_per_s"] = batch / seconds.value if has_rate and batch and seconds else None
    _add_mean_joules(record, same)
    _add_mean_gflops(record, same)
    if "u95_j_per_training" in record:
        whole, u95 = number_of(record, "j_per_training"), number_of(record, "u95_j")
        joules = number_of(record, _joules_column(record))
        record["u95_j_per_training"] = u95 * whole / joules if whole and joules and u95 is not None else None
    return record


def _numbers(records: Iterable[Record], name: str) -> list[float]:
    return [v for r in records if (v := number_of(r, name)) is not None]


def _mean(same: Sequence[Record], name: str) -> float | None:
    values = _numbers(same, name)
    return sum(values) / len(values) if values else None


def _mean_of(same: Sequence[Record], name: str) -> Figure | None:
    figures = [f for r in same if (f := figure_of(r, name)) is not None]
    return mean_figure(figures) if figures else None


def _add_note(record: Record, text: str) -> None:
    record["note"] = "; ".join(t for t in (str(record["note"] or ""), text) if t)


def _add_mean_joules(record: Record, same: Sequence[Record]) -> None:
    name, time = _joules_column(record), "s_per_batch" if record["kind"] == "phase" else "time_s"
    joules = _mean_of(same, name)
    record |= dict.fromkeys(
        ("j_per_batch", "energy_j", "power_w", "edp_js", "u95_j", "u_statistical_j", "u_systematic_j")
    )
    if joules is None:
        return
    if joules.count < len(same):
        _add_note(record, f"mean of {joules.count} of {len(same)} runs, the others have no figure")
    record |= {name: joules.value, "u95_j": joules.u95}
    record |= {"u_statistical_j": joules.u_statistical, "u_systematic_j": joules.u_systematic}
    n = number_of(record, "iterations")
    if record["kind"] != "phase" and n:
        record["j_per_batch"] = joules.value / n
    # Runs without joules must not bring their seconds into the power.
    if seconds := _mean([r for r in same if r[name] is not None], time):
        record |= {"power_w": joules.value / seconds, "edp_js": edp_js(joules.value, seconds)}


def _add_mean_gflops(record: Record, same: Sequence[Record]) -> None:
    """Operations per mean joule, so that the figure belongs to the mean energy; on one basis only."""
    record |= dict.fromkeys((*_GFLOPS, *BASIS))
    figures = [f for r in same if (f := figure_of(r, "gflops_per_w")) is not None]
    bases = list(dict.fromkeys(tuple(r[name] for name in BASIS) for r in same if r["gflops_per_w"] is not None))
    if len(bases) > 1:
        _add_note(record, f"no GFLOPS/W: over the joules of {' or '.join(str(basis) for _, basis in bases)}, by run")
    if len(bases) == 1:
        mean = _inverse(mean_figure([_inverse(f) for f in figures]))
        record |= dict(zip(BASIS, bases[0], strict=True))
        record |= dict(zip(_GFLOPS, (mean.value, mean.u_statistical, mean.u_systematic), strict=True))


# -- whole trainings ---------------------------------------------------------------------------------------------------

_SAME = ("path", "run_id", "model", "batch_size", "gpus", "provenance", "attributes", "power_cap_w")
MOST = 1e12
"""Of iterations, epochs and samples: more than this is a slip."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long a whole training is: iterations, or epochs over a data set of so many samples."""

    iterations: float | None = None
    epochs: float | None = None
    dataset_size: float | None = None

    def __post_init__(self) -> None:
        given = {"--iterations": self.iterations, "--epochs": self.epochs, "--dataset-size": self.dataset_size}
        for name, value in given.items():
            if value is not None and not (isfinite(value) and 0 < value < MOST):
                raise ConfigError(f"{name} {value:g}: it must be more than 0, and less than {MOST:g}")
            if value is not None and name != "--epochs" and not float(value).is_integer():
                raise ConfigError(f"{name} {value:.12g}: it must be a whole number")
        if (self.epochs is None) != (self.dataset_size is None):
            raise ConfigError(
                "--epochs and --dataset-size go together: iterations = epochs x dataset size / batch size"
            )
        if self.iterations is not None and self.epochs is not None:
            raise ConfigError("give either --iterations or --epochs with --dataset-size: they say the same")

    def __bool__(self) -> bool:
        return self.iterations is not None or self.epochs is not None

    def of(self, batch_size: float | None) -> float | None:
        """Iterations of a training at that batch size; None where epochs need a batch size that is not known.

        Raises `AnalysisError` for less than one.
        """
        if self.iterations is not None:
            return self.iterations
        if self.epochs is None or self.dataset_size is None or not batch_size or batch_size < 1:
            return None
        iterations = iterations_of(self.epochs, self.dataset_size, batch_size)
        if not iterations:
            options = f"--epochs {self.epochs:g} --dataset-size {self.dataset_size:g}"
            raise AnalysisError(f"{options}: that is not one batch of {batch_size:g}")
        return iterations


def whole_trainings(records: Sequence[Record], length: Length) -> list[Record]:
    """All records with ``s_per_training`` and ``j_per_training``; totals are then those of the whole training.

    A phase that comes several times an iteration, or not in each, counts as often as it did in the run. What is
    systematic grows with the training, what is statistical is that of the mean batch: the run measured no more.

    An iteration of the training is one in every rank. Joules of the training are those of all ranks that share the
    device, seconds those of one.
    """
    totals = {_key(r, *_SAME, "device"): r for r in records if r["kind"] == "total"}
    scaled = []
    for r in records:
        batch = number_of(r, "batch_size")
        # Ranks have a batch each, also those that are not in the run; GPUs of one process share theirs.
        ranks = max(number_of(r, name) or 1 for name in ("ranks", "world_size"))
        n = length.of(None if batch is None else batch * ranks) if r["kind"] in ("phase", "total") else None
        total = totals.get(_key(r, *_SAME, "device"), r)
        is_phase = r["kind"] == "phase"
        share = _share_of(number_of(r, "iterations"), number_of(total, "iterations")) if is_phase else 1.0
        scaled.append(_scaled(r, n, share, number_of(total, "ranks_counted") or 1.0))
    return scaled


def _share_of(phases: float | None, iterations: float | None) -> float | None:
    """Phases an iteration; one that was cut off at the end of a run is no smaller share."""
    if not phases or not iterations:
        return None
    share = phases / iterations
    return float(round(share)) if round(share) >= 1 and abs(phases - round(share) * iterations) <= share + 1 else share


def _scaled(record: Record, iterations: float | None, share: float | None, ranks: float) -> Record:
    """A record of the training; ``ranks`` share the device."""
    whole = {**record, "s_per_training": None, "j_per_training": None, "u95_j_per_training": None}
    s, j, u95 = (number_of(record, name) for name in ("s_per_batch", "j_per_batch", "u95_j"))
    if iterations is None or share is None or s is None:
        return whole
    times, is_total = iterations * share, record["kind"] == "total"
    if is_total and ranks > 1:
        # In the run each rank's iteration counted by itself, and took its part of the device's seconds and joules.
        s, j = s * ranks, None if j is None else j * ranks
        notes = [
            text for text in str(record["note"] or "").split("; ") if not text.startswith("n counts the iterations")
        ]
        whole |= {"s_per_batch": s, "j_per_batch": j, "note": "; ".join(notes)}
    in_training = times if is_total else times * ranks
    recorded = number_of(record, "iterations")
    grow = times * ranks / recorded if is_total and recorded else in_training
    whole["s_per_training"] = s * times
    if j is not None:
        whole["j_per_training"] = j * in_training
        whole["u95_j_per_training"] = None if u95 is None else u95 * grow
    if is_total:
        joules = None if j is None else j * times
        whole |= {"iterations": round(iterations), "time_s": s * times, "energy_j": joules}
        whole["edp_js"] = None if joules is None else edp_js(joules, s * times)
        for name in ("u95_j", "u_statistical_j", "u_systematic_j", "rest_j", "residual_j"):
            value = number_of(record, name)
            whole[name] = None if value is None else value * grow
    return whole


def summed_devices(records: Sequence[Record]) -> list[Record]:
    """A further record for each row of a run that used several GPUs: their joules added up, ``device`` = gpu0+gpu1.

    Only where the run has as many GPU devices as it used GPUs. Different GPUs are different sensors: their
    uncertainties are independent. Time is that of the slowest.
    """
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in records:
        is_gpu = r["device_name"] is not None or str(r["device"]).startswith("gpu")
        if r["kind"] in ("phase", "total") and is_gpu and r["machines"] is None:
            groups.setdefault(_key(r, *_SAME, "kind", "phase", "phase_path", "timing"), []).append(r)
    return [_sum(same) for same in groups.values() if len(same) > 1 and len(same) == same[0]["gpus"]]


def _sum(same: Sequence[Record]) -> Record:
    total = dict(same[0]) | {"device": "+".join(str(r["device"]) for r in same), "clock_hz": None}
    total["device_name"] = " + ".join(dict.fromkeys(str(r["device_name"]) for r in same if r["device_name"])) or None
    total["note"] = "; ".join(dict.fromkeys(str(r["note"]) for r in same if r["note"]))
    total["is_lower_bound"] = any(r["is_lower_bound"] is True for r in same)
    if total["ranks"] != 1:
        # Each rank has its own batch. A phase's rate is that of one rank, a total's that of all on its GPU.
        counted = sum((number_of(r, "ranks_counted") or 1) if r["kind"] == "total" else 1 for r in same)
        total["samples_per_s"] = _total_of(same, "samples_per_s") if total["ranks"] == counted else None
    for name in ("time_s", "s_per_batch"):
        total[name] = max(_numbers(same, name), default=None)
    for name in ("j_per_batch", "energy_j", "power_w", "rest_j", "residual_j"):
        total[name] = _total_of(same, name)
    u = {n: sqrt(sum((number_of(r, n) or 0.0) ** 2 for r in same)) for n in ("u_statistical_j", "u_systematic_j")}
    is_known = total["is_lower_bound"] is not True and all(r["u95_j"] is not None for r in same)
    u95 = COVERAGE_FACTOR * sqrt(sum(v**2 for v in u.values())) if is_known else None
    total |= {**u, "u95_j": u95}
    energy = number_of(total, _joules_column(total))
    time = number_of(total, "s_per_batch" if total["kind"] == "phase" else "time_s")
    if "j_per_training" in total:
        whole = _total_of(same, "j_per_training")
        u95_whole = u95 * whole / energy if u95 is not None and whole and energy else None
        total |= {"j_per_training": whole, "u95_j_per_training": u95_whole}
    total["edp_js"] = edp_js(energy, time) if energy is not None and time is not None else None
    # Every GPU did as many operations, so that the joules an operation are the mean.
    figures = [f for r in same if (f := figure_of(r, "gflops_per_w")) is not None and f.value]
    total |= dict.fromkeys(_GFLOPS)
    if len(figures) == len(same):
        inverse = [_inverse(f) for f in figures]
        mean = len(same) / sum(f.value for f in inverse)
        u_inverse = (sqrt(sum((getattr(f, n) or 0.0) ** 2 for f in inverse)) for n in ("u_statistical", "u_systematic"))
        total |= dict(zip(_GFLOPS, (mean, *(mean**2 / len(same) * v for v in u_inverse)), strict=True))
    return total


def _total_of(same: Sequence[Record], name: str) -> float | None:
    """A sum, None where one lacks the figure."""
    values = _numbers(same, name)
    return sum(values) if len(values) == len(same) else None


def _key(record: Record, *names: str) -> tuple[Cell, ...]:
    return tuple(record[name] for name in names)


# -- which records can be compared -------------------------------------------------------------------------------------


def group_of(record: Record) -> tuple[Cell, ...]:
    """What phases of one configuration on one device have in common."""
    return _key(record, "model", "batch_size", "gpus", "device", "device_name", "provenance", "power_cap_w",
                "attributes", "host")  # fmt: skip


def of_configurations(phases: Sequence[Record]) -> list[Record]:
    """Phases that have a batch size, where any has: a warm-up is one of a kind and would dwarf what is compared."""
    return [r for r in phases if r["batch_size"] is not None] or list(phases)


def innermost(records: Sequence[Record]) -> list[Record]:
    """Phases without phases inside that belong to the sum of their group: no overlapping ones, no baseline. Layers are
    parts of passes, not phases of their own."""
    phases = [(r, attributes_of(r)) for r in records if r["kind"] == "phase"]
    phases = [(r, a) for r, a in phases if LAYER not in a]
    outer: dict[tuple[Cell, ...], set[str]] = {}
    for r, _ in phases:
        names = str(r["phase_path"]).split("/")
        outer.setdefault(group_of(r), set()).update("/".join(names[:i]) for i in range(1, len(names)))
    return [
        r
        for r, attributes in phases
        if r["phase"] != BASELINE and attributes.get("overlaps") is not True
        and str(r["phase_path"]) not in outer[group_of(r)]
    ]  # fmt: skip


def paths_of(record: Record) -> list[str]:
    """The run files that a record is made of: several, where it is a mean of repeats."""
    return str(record["path"]).split("; ")


def parts_of_machines(records: Iterable[Record]) -> dict[str, str]:
    """By device, which part of the machine it is: ``gpu`` for ``gpu0`` and for ``gpu0+gpu1``. Of recordings that have
    several of one name, not added up, each is a part of its own; all are "" where no recording has several parts.

    A CPU and a GPU that work at one training are no choice between two: that one of them takes less says nothing.
    """
    recordings: dict[tuple[Cell, ...], set[str]] = {}
    for r in records:
        for path in paths_of(r):
            recordings.setdefault((path, r["provenance"]), set()).add(str(r["device"]))

    def name(device: str) -> str:
        """Without its number; of several added up, the first one's."""
        return re.sub(r"\d+$", "", device.partition("+")[0])

    every = {d for devices in recordings.values() for d in devices}
    if all(len(devices) == 1 for devices in recordings.values()):
        return dict.fromkeys(every, "")
    names = [[name(d) for d in devices] for devices in recordings.values()]
    several = {n for of_recording in names for n in of_recording if of_recording.count(n) > 1}
    return {d: d if name(d) in several else name(d) for d in every}


def of_trainings(totals: Sequence[Record]) -> list[Record]:
    """Totals that can be chosen between: with a batch size where any has one (a warm-up has none), not of layers,
    of what overlaps, or of a baseline, which are parts of a training or none."""
    kept = [r for r in totals if r["phase"] != BASELINE and not {LAYER, "overlaps"} & set(attributes_of(r))]
    return of_configurations(kept)


def without_summands(records: Sequence[Record]) -> list[Record]:
    """Without the GPUs of a run that are also there added up: they are no configurations of their own."""
    summed = {(r["path"], d) for r in records for d in str(r["device"]).split("+") if "+" in str(r["device"])}
    return [r for r in records if (r["path"], r["device"]) not in summed]


def without_gflops(record: Record) -> Record:
    """For figures of energy and time: runs whose GFLOPS/W are of different phases are repeats in these."""
    return {**record, **dict.fromkeys((*_GFLOPS, *BASIS))}
