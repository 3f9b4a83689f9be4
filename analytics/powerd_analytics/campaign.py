"""Many runs as one campaign: their records, repeats averaged, scaled to whole trainings, several GPUs added up; and
what follows from these: CO2 and money, and what an iteration consists of.

Two runs are repeats where everything in `CONFIGURATION` agrees and their clocks do within `CLOCK_SHARE`. Their mean
keeps what is statistical apart from what is systematic: the first averages out, the second does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import hypot, isfinite
from pathlib import Path

from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.export import Cell
from powerd_analytics.index import index_records, is_index, run_files
from powerd_analytics.jobs import merge_jobs
from powerd_analytics.metrics import Quantity, co2_g, edp_js, iterations_of, money
from powerd_analytics.records import (
    Figure,
    Record,
    attributes_of,
    check_campaign,
    check_run,
    figure_of,
    joules_column,
    mean_figure,
    number_of,
    run_records,
    summed_joules,
    total_of,
)
from powerd_analytics.runs.run import Progress, no_progress
from powerd_analytics.table import ITERATION, LAYER
from powerd_analytics.text import joined
from powerd_client.phase import BASELINE
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.text import printable


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


# -- repeats -----------------------------------------------------------------------------------------------------------

CONFIGURATION = (
    "kind", "host", "program", "model", "batch_size", "gpus", "ranks", "rank_numbers", "world_size", "machines",
    "device", "device_name", "provenance", "power_cap_w", "attributes", "phase", "phase_path", "timing",
    "operations_per_sample",
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
_U_JOULES = ("u95_j", "u_statistical_j", "u_systematic_j")
_MEANS = ("clock_hz", "power_cap_w", "rest_j", "residual_j", "time_s", "s_per_batch", "missing_s", "s_per_training",
          "j_per_training")  # fmt: skip


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
    is_phase = record["kind"] == "phase"
    name, time = joules_column(record), "s_per_batch" if is_phase else "time_s"
    if others := sum(r[name] is None for r in same) % n:
        # Joules of some runs beside the seconds of all would be a row of two populations.
        record = _mean_record([r for r in same if r[name] is not None])
        note = f"mean of {n - others} of {n} runs, the others have no joules"
        return record | {"note": joined(record["note"], note)}
    notes = [joined(*(r["note"] for r in same))]
    record |= {c: joined(*(r[c] for r in same)) or None for c in ("run", "path", "run_id", "created_utc", "method")}
    record |= {c: _mean(same, c) for c in _MEANS if c in record}
    iterations = [int(v) for v in _numbers(same, "iterations")]
    record["iterations"] = sum(iterations) if is_phase else next(iter(iterations), None)
    record["s_per_batch_min"] = min(_numbers(same, "s_per_batch_min"), default=None)
    record["s_per_batch_max"] = max(_numbers(same, "s_per_batch_max"), default=None)
    record["is_lower_bound"] = any(r["is_lower_bound"] is True for r in same)
    seconds, batch = _mean_of(same, "s_per_batch"), number_of(record, "batch_size")
    record["u_s_per_batch"] = seconds.u_statistical if seconds else None
    has_rate = any(r["samples_per_s"] is not None for r in same)
    record["samples_per_s"] = batch / seconds.value if has_rate and batch and seconds and seconds.value else None
    record |= dict.fromkeys(("j_per_batch", "energy_j", "power_w", "edp_js", *_U_JOULES))
    if (joules := _mean_of(same, name)) is not None:
        record |= {name: joules.value, "u95_j": joules.u95}
        record |= {"u_statistical_j": joules.u_statistical, "u_systematic_j": joules.u_systematic}
        if not is_phase and iterations and iterations[0]:
            record["j_per_batch"] = joules.value / iterations[0]
        if length_s := _mean(same, time):
            record |= {"power_w": joules.value / length_s, "edp_js": edp_js(joules.value, length_s)}
        if "u95_j_per_training" in record:
            whole, u95 = number_of(record, "j_per_training"), joules.u95
            record["u95_j_per_training"] = u95 * whole / joules.value if whole and u95 is not None else None
    # Operations per mean joule, so that the figure belongs to the mean energy; on one basis only.
    record |= dict.fromkeys((*_GFLOPS, *BASIS))
    figures = [(f, tuple(r[c] for c in BASIS)) for r in same if (f := figure_of(r, "gflops_per_w")) is not None]
    bases = list(dict.fromkeys(basis for _, basis in figures))
    if len(bases) > 1:
        notes.append(f"no GFLOPS/W: over the joules of {' or '.join(str(basis) for _, basis in bases)}, by run")
    elif bases:
        mean = mean_figure([f.inverse() for f, _ in figures]).inverse()
        record |= dict(zip((*_GFLOPS, *BASIS), (*_parts(mean), *bases[0]), strict=True))
    return record | {"note": "; ".join(note for note in notes if note)}


def _parts(figure: Figure) -> tuple[float, float | None, float | None]:
    return figure.value, figure.u_statistical, figure.u_systematic


def _numbers(records: Iterable[Record], name: str) -> list[float]:
    return [v for r in records if (v := number_of(r, name)) is not None]


def _mean(same: Sequence[Record], name: str) -> float | None:
    values = _numbers(same, name)
    return sum(values) / len(values) if values else None


def _mean_of(same: Sequence[Record], name: str) -> Figure | None:
    figures = [f for r in same if (f := figure_of(r, name)) is not None]
    return mean_figure(figures) if figures else None


# -- whole trainings ---------------------------------------------------------------------------------------------------

_CAP = ("power_cap_w", "power_cap_asked_w", "power_cap_in_run")
_SAME = ("path", "run_id", "model", "batch_size", "gpus", "provenance", "attributes", *_CAP)
MOST = 1e12
"""Of iterations, epochs and samples, of grams and any currency a kilowatt-hour: more than this is a slip."""


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
        if (self.epochs is None) != (self.dataset_size is None) or None not in (self.iterations, self.epochs):
            raise ConfigError("give either --iterations, or --epochs and --dataset-size together")

    def __bool__(self) -> bool:
        return self.iterations is not None or self.epochs is not None

    def of(self, batch_size: float | None) -> float | None:
        """Iterations of a training at that batch size; None where epochs need a batch size that is not known.

        Raises `AnalysisError` for less than one.
        """
        if self.epochs is None or self.dataset_size is None:
            return self.iterations
        if not batch_size or batch_size < 1:
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
    s, j, u95, recorded = (number_of(record, name) for name in ("s_per_batch", "j_per_batch", "u95_j", "iterations"))
    if iterations is None or share is None or s is None:
        return whole
    times, is_total = iterations * share, record["kind"] == "total"
    if is_total and ranks > 1:
        # In the run each rank's iteration counted by itself, and took its part of the device's seconds and joules.
        s, j = s * ranks, None if j is None else j * ranks
        notes = str(record["note"] or "").split("; ")
        kept = [text for text in notes if not text.startswith("n counts the iterations")]
        whole |= {"s_per_batch": s, "j_per_batch": j, "note": "; ".join(kept)}
    in_training = times if is_total else times * ranks
    grow = times * ranks / recorded if is_total and recorded else in_training
    joules = None if j is None else j * in_training
    u95_whole = None if u95 is None or j is None else u95 * grow
    whole |= {"s_per_training": s * times, "j_per_training": joules, "u95_j_per_training": u95_whole}
    if is_total:
        product = None if joules is None else edp_js(joules, s * times)
        whole |= {"iterations": round(iterations), "time_s": s * times, "energy_j": joules, "edp_js": product}
        for name in (*_U_JOULES, "rest_j", "residual_j"):
            value = number_of(record, name)
            whole[name] = None if value is None else value * grow
    return whole


# -- several GPUs ------------------------------------------------------------------------------------------------------


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
    is_phase = same[0]["kind"] == "phase"
    total = dict(same[0]) | {"device": "+".join(str(r["device"]) for r in same), "clock_hz": None}
    total["device_name"] = " + ".join(dict.fromkeys(str(r["device_name"]) for r in same if r["device_name"])) or None
    total["note"] = joined(*(r["note"] for r in same))
    total["is_lower_bound"] = any(r["is_lower_bound"] is True for r in same)
    if total["ranks"] != 1:
        # Each rank has its own batch. A phase's rate is that of one rank, a total's that of all on its GPU.
        counted = sum(1 if is_phase else number_of(r, "ranks_counted") or 1 for r in same)
        total["samples_per_s"] = _total(same, "samples_per_s") if total["ranks"] == counted else None
    total |= {name: max(_numbers(same, name), default=None) for name in ("time_s", "s_per_batch")}
    total |= {name: _total(same, name) for name in ("j_per_batch", "energy_j", "power_w")}
    total |= summed_joules(same, [1.0] * len(same), range(len(same)))
    energy, u95 = number_of(total, joules_column(total)), number_of(total, "u95_j")
    time = number_of(total, "s_per_batch" if is_phase else "time_s")
    if "j_per_training" in total:
        whole = _total(same, "j_per_training")
        u95_whole = u95 * whole / energy if u95 is not None and whole and energy else None
        total |= {"j_per_training": whole, "u95_j_per_training": u95_whole}
    total["edp_js"] = edp_js(energy, time) if energy is not None and time is not None else None
    # Every GPU did as many operations, so that the joules an operation are the mean.
    total |= dict.fromkeys(_GFLOPS)
    inverse = [f.inverse() for r in same if (f := figure_of(r, "gflops_per_w")) is not None and f.value]
    if n := len(inverse) if len(inverse) == len(same) else 0:
        u = [hypot(*(getattr(f, name) or 0.0 for f in inverse)) / n for name in ("u_statistical", "u_systematic")]
        mean = Figure(sum(f.value for f in inverse) / n, u[0], u[1]).inverse()
        total |= dict(zip(_GFLOPS, _parts(mean), strict=True))
    return total


def _total(same: Sequence[Record], name: str) -> float | None:
    return total_of(number_of(r, name) for r in same)


def _key(record: Record, *names: str) -> tuple[Cell, ...]:
    return tuple(record[name] for name in names)


# -- which records can be compared -------------------------------------------------------------------------------------


def group_of(record: Record) -> tuple[Cell, ...]:
    """What phases of one configuration on one device have in common."""
    return _key(record, "model", "batch_size", "gpus", "device", "device_name", "provenance", *_CAP,
                "attributes", "host")  # fmt: skip


def of_configurations(phases: Sequence[Record]) -> list[Record]:
    """Phases that have a batch size, where any has: a warm-up is one of a kind and would dwarf what is compared."""
    return [r for r in phases if r["batch_size"] is not None] or list(phases)


def innermost(records: Sequence[Record]) -> list[Record]:
    """Phases without phases inside that belong to the sum of their group: no overlapping ones, no baseline. Layers are
    parts of passes, not phases of their own."""
    phases = [(r, a) for r in records if r["kind"] == "phase" and LAYER not in (a := attributes_of(r))]
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


def parts_of_machines(records: Iterable[Record]) -> dict[str, str]:
    """By device, which part of the machine it is: ``gpu`` for ``gpu0`` and for ``gpu0+gpu1``. Of recordings that have
    several of one name, not added up, each is a part of its own; all are "" where no recording has several parts.

    A CPU and a GPU that work at one training are no choice between two: that one of them takes less says nothing.
    """
    recordings: dict[tuple[Cell, ...], set[str]] = {}
    for r in records:
        for path in str(r["path"]).split("; "):  # several, where it is a mean of repeats
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


# -- CO2 and money: by factors that the user states, with what these and the joules are unsure of ----------------------

CO2 = "co2_g"
"""Column of CO2 equivalents; that of money has the currency in its name: ``cost_eur``, or ``cost``."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Grams of CO2 equivalent and the price of a kilowatt-hour, each with its standard uncertainty. None: not asked."""

    co2_g_per_kwh: float | None = None
    u_co2_g_per_kwh: float | None = None
    price_per_kwh: float | None = None
    u_price_per_kwh: float | None = None
    currency: str | None = None
    """The three letters of ISO 4217."""

    def __post_init__(self) -> None:
        options = {name: f"--{name.replace('_', '-')}" for name in self.__slots__}
        for name, option in options.items():
            value = getattr(self, name)
            if name != "currency" and value is not None and not (isfinite(value) and 0 <= value < MOST):
                raise ConfigError(f"{option} {value:g}: it must be 0 or more, and less than {MOST:g}")
            of = "price_per_kwh" if name == "currency" else name.removeprefix("u_")
            if value is not None and getattr(self, of) is None:
                raise ConfigError(f"{option} is of {options[of]}: give that too")
        if (text := self.currency) is not None and not (len(text) == 3 and text.isascii() and text.isalpha()):
            raise ConfigError(f"--currency {printable(text, limit=40)}: write its three letters, as in EUR")

    def __bool__(self) -> bool:
        return self.co2_g_per_kwh is not None or self.price_per_kwh is not None

    @property
    def cost(self) -> str:
        """Name of the column of money."""
        return f"cost_{self.currency.lower()}" if self.currency else "cost"

    @property
    def columns(self) -> list[str]:
        """The columns that `with_factors` adds."""
        return list(self.of(0.0, None))

    @property
    def stated(self) -> str:
        """The factors in words; empty where there is none."""
        per = f"{self.currency.upper()}/kWh" if self.currency else "a kWh"
        factors = []
        if self.co2_g_per_kwh is not None:
            factors.append(f"CO2 equivalents at {_stated(self.co2_g_per_kwh, self.u_co2_g_per_kwh)} g/kWh")
        if self.price_per_kwh is not None:
            factors.append(f"cost at {_stated(self.price_per_kwh, self.u_price_per_kwh)} {per}")
        return f"{', '.join(factors)}, as stated" if factors else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of these columns."""
        return (f"{self.stated}, of the joules in the same row",) if self else ()

    def of(self, energy_j: float, u95_j: float | None) -> dict[str, float | None]:
        """The columns of an energy; without an interval where its own is not known."""
        joules = Quantity.measured(energy_j, 0.0, (u95_j or 0.0) / COVERAGE_FACTOR)
        costs = {}
        if self.co2_g_per_kwh is not None:
            costs[CO2] = co2_g(joules, Quantity.measured(self.co2_g_per_kwh, 0.0, self.u_co2_g_per_kwh or 0.0))
        if self.price_per_kwh is not None:
            costs[self.cost] = money(joules, Quantity.measured(self.price_per_kwh, 0.0, self.u_price_per_kwh or 0.0))
        columns: dict[str, float | None] = {}
        for name, cost in costs.items():
            columns |= {name: cost.value, f"u95_{name}": None if u95_j is None else cost.u95}
        return columns


def with_factors(records: Sequence[Record], factors: Factors) -> list[Record]:
    """The records with the columns of ``factors``: of ``energy_j``, and of phases of a whole training of
    ``j_per_training``. Averaged before: what repeats share of a factor's error does not average out."""
    return [{**r, **dict.fromkeys(factors.columns), **_of_record(r, factors)} for r in records]


def _of_record(record: Record, factors: Factors) -> dict[str, Cell]:
    names = ("j_per_training", "u95_j_per_training") if record["kind"] == "phase" else ("energy_j", "u95_j")
    energy, u95 = (number_of(record, n) if n in record else None for n in names)
    if energy is None:
        return {}
    return dict(factors.of(energy, None if record["is_lower_bound"] is True else u95))


def _stated(factor: float, u: float | None) -> str:
    return f"{factor:g}" if u is None else f"{factor:g} (u = {u:g})"


# -- what an iteration's joules consist of: its phases and the rest between them ---------------------------------------

KINDS = ("measured", "simulated", "modelled")
"""In the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Piece:
    """All phases of a kind within one iteration. Without joules the sensor could not resolve them."""

    phase: str
    energy_j: float | None
    u95_j: float | None
    is_lower_bound: bool


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One iteration of one configuration on one device: means."""

    place: str
    """The configuration in words."""
    device: str
    provenance: str
    model: str
    panel: tuple[str, str, str]
    """Part of the machine, provenance and model: what agrees in these has one scale, and nothing else has."""
    energy_j: float | None
    u95_j: float | None
    pieces: tuple[Piece, ...]
    is_lower_bound: bool

    @property
    def known_j(self) -> float:
        return sum(max(p.energy_j or 0.0, 0.0) for p in self.pieces)

    @property
    def rest_j(self) -> float:
        """What no resolvable phase has; an overlap of some intervals is none."""
        return max((self.energy_j or 0.0) - self.known_j, 0.0)

    @property
    def reach_j(self) -> float:
        """Where its bar ends, its interval included."""
        return max(self.known_j, (self.energy_j or 0.0) + (self.u95_j or 0.0))

    @property
    def rest_name(self) -> str:
        """What the rest is: between the phases, or also in those that are not resolvable."""
        return "rest, n.r." if any(p.energy_j is None for p in self.pieces) else "rest"


def breakdowns(records: Sequence[Record]) -> list[list[Breakdown]]:
    """The configurations of each device and model, measured ones first, then those with most joules. Of `prepared`
    records (`powerd_analytics.campaign_tables`); repeats are averaged, and GPUs that are added up are there once."""
    parts_and_totals = [of_a_batch(r) for r in records if r["kind"] in ("phase", "total")]
    means = averaged(map(without_gflops, without_summands(parts_and_totals)))

    def grouped(some: Sequence[Record]) -> dict[tuple[Cell, ...], list[Record]]:
        groups: dict[tuple[Cell, ...], list[Record]] = {}
        for r in some:
            groups.setdefault((*group_of(r), r["run"]), []).append(r)
        return groups

    every = grouped(means)
    parts = parts_of_machines(means)
    by_figure: dict[tuple[str, ...], list[tuple[list[Record], Record | None]]] = {}
    for key, phases in grouped(of_configurations(innermost(means))).items():
        figure = tuple(str(phases[0][name] or "") for name in ("device", "provenance", "model"))
        own = _of_iteration(every[key], phases)
        by_figure.setdefault(figure, []).append((own, _whole(every[key], own)))
    for same in by_figure.values():
        same.sort(key=lambda own: number_of(own[0][0], "batch_size") or 0.0)
    figures = [
        [_breakdown(phases, whole, [others for others, _ in same], parts) for phases, whole in same]
        for same in by_figure.values()
    ]
    return sorted(figures, key=lambda own: (KINDS.index(own[0].provenance), -sum(b.reach_j for b in own)))


def _of_iteration(group: Sequence[Record], phases: list[Record]) -> list[Record]:
    """The phases that lie in an iteration, where a group has some: an evaluation beside it is no part of it."""
    around = tuple(f"{r['phase_path']}/" for r in group if r["kind"] == "phase" and r["phase"] == ITERATION)
    return [r for r in phases if f"{r['phase_path']}/".startswith(around)] or phases


def _whole(group: Sequence[Record], phases: Sequence[Record]) -> Record | None:
    """The phase around all of these as often as them, such as an iteration; else the total of their group."""
    most = max(number_of(r, "iterations") or 0.0 for r in phases)
    around = [
        r for r in group
        if r["kind"] == "phase" and number_of(r, "iterations") == most
        and all(str(p["phase_path"]).startswith(f"{r['phase_path']}/") for p in phases)
    ]  # fmt: skip
    around.sort(key=lambda r: -len(str(r["phase_path"])))
    return next(iter([*around, *(r for r in group if r["kind"] == "total")]), None)


def _breakdown(
    phases: Sequence[Record], whole: Record | None, figure: Sequence[Sequence[Record]], parts: dict[str, str]
) -> Breakdown:
    """``figure``: the phases of every configuration that it stands beside; all of them have one order."""
    first = phases[0]
    # As `powerd_analytics.table.iterations_of` counts them; a total is of one batch here.
    counts = {str(r["phase"]): number_of(r, "iterations") or 0.0 for r in phases}
    n = number_of(whole, "iterations") if whole is not None and whole["kind"] == "phase" else None
    n = n or counts.get("forward") or max(counts.values()) or 1.0
    pieces, order = [], list(dict.fromkeys(r["phase"] for own in figure for r in own))
    for r in sorted(phases, key=lambda r: order.index(r["phase"])):
        times = (number_of(r, "iterations") or n) / n
        j, u95 = (None if (v := number_of(r, name)) is None else v * times for name in ("j_per_batch", "u95_j"))
        pieces.append(Piece(str(r["phase"]), j, u95, r["is_lower_bound"] is True))
    provenance, model = str(first["provenance"]), str(first["model"] or "")
    return Breakdown(
        place=configuration(first, [own[0] for own in figure]),
        device=str(first["device"]),
        provenance=provenance,
        model=model,
        panel=(parts[str(first["device"])], provenance, model),
        energy_j=number_of(whole, "j_per_batch") if whole is not None else None,
        u95_j=number_of(whole, "u95_j") if whole is not None else None,
        pieces=tuple(pieces),
        is_lower_bound=whole is not None and whole["is_lower_bound"] is True,
    )


def configuration(record: Record, among: Sequence[Record], *, without_model: bool = False) -> str:
    """What tells a record from others: model, batch size, GPUs, device, cap; in the order of a sentence.

    ``without_model``: where the sentence has named it.
    """
    words = {
        "model": "{}", "batch_size": "batch {}", "gpus": "GPUs {}", "device": "{}", "device_name": "{}",
        "power_cap_w": "cap {} W",
    }  # fmt: skip
    parts = []
    for name, word in words.items():
        value = None if without_model and name == "model" else record[name]
        if value is not None and (len({r[name] for r in among}) > 1 or name in ("model", "batch_size")):
            parts.append(word.format(f"{value:g}" if isinstance(value, float) else value))
    others = attributes_of(record)
    parts += [f"{k} {v}" for k, v in others.items() if len({str(attributes_of(r).get(k)) for r in among}) > 1]
    return ", ".join(parts) or str(record["run"])
