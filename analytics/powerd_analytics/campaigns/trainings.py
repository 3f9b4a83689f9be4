"""From a batch to the whole training: records scaled to so many iterations; several GPUs of a run added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.metrics import edp_js, iterations_of
from powerd_analytics.records.columns import Cell, Record, number_of
from powerd_core.errors import AnalysisError, ConfigError

_SAME = ("path", "run_id", "model", "batch_size", "gpus", "provenance", "attributes", "power_cap_w")
_ROW = (*_SAME, "kind", "phase", "phase_path", "timing")

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
        if not (found := iterations_of(self.epochs, self.dataset_size, batch_size)):
            said = f"--epochs {self.epochs:g} --dataset-size {self.dataset_size:g}"
            raise AnalysisError(f"{said}: that is not one batch of {batch_size:g}")
        return found


def whole_trainings(records: Sequence[Record], length: Length) -> list[Record]:
    """All records with ``s_per_training`` and ``j_per_training``; totals are then those of the whole training.

    A phase that comes several times an iteration, or not in each, counts as often as it did in the run. What is
    systematic grows with the training, what is statistical is that of the mean batch: the run measured no more.

    An iteration of the training is one in every rank. Joules of the training are those of all ranks that share the
    device, seconds those of one.
    """
    totals = {_key(r, _SAME, "device"): r for r in records if r["kind"] == "total"}
    found = []
    for r in records:
        n = length.of(_batch_of_all(r)) if r["kind"] in ("phase", "total") else None
        total = totals.get(_key(r, _SAME, "device"), r)
        share = _share(number_of(r, "iterations"), number_of(total, "iterations")) if r["kind"] == "phase" else 1.0
        found.append(_scaled(r, n, share, number_of(total, "ranks_counted") or 1.0))
    return found


def _batch_of_all(record: Record) -> float | None:
    """Samples of one iteration: ranks have a batch each, also those that are not in the run; GPUs of one process share
    theirs."""
    batch = number_of(record, "batch_size")
    ranks = max(number_of(record, name) or 1 for name in ("ranks", "world_size"))
    return None if batch is None else batch * ranks


def _share(phases: float | None, iterations: float | None) -> float | None:
    """Phases an iteration; one that was cut off at the end of a run is no smaller share."""
    if not phases or not iterations:
        return None
    share = phases / iterations
    return float(round(share)) if round(share) >= 1 and abs(phases - round(share) * iterations) <= share + 1 else share


def _scaled(record: Record, iterations: float | None, share: float | None, ranks: float) -> Record:
    """A record of the training; ``ranks`` share the device."""
    found = {**record, "s_per_training": None, "j_per_training": None, "u95_j_per_training": None}
    s, j = number_of(record, "s_per_batch"), number_of(record, "j_per_batch")
    if iterations is None or share is None or s is None:
        return found
    times, is_total = iterations * share, record["kind"] == "total"
    if is_total and ranks > 1:
        # In the run each rank's iteration counted by itself, and took its part of the device's seconds and joules.
        s, j = s * ranks, None if j is None else j * ranks
        found |= {"s_per_batch": s, "j_per_batch": j, "note": _of_training(record["note"])}
    in_training = times if is_total else times * ranks
    recorded = number_of(record, "iterations")
    grow = times * ranks / recorded if is_total and recorded else in_training
    u95 = number_of(record, "u95_j")
    found["s_per_training"] = s * times
    if j is not None:
        found["j_per_training"] = j * in_training
        found["u95_j_per_training"] = None if u95 is None else u95 * grow
    if is_total:
        found |= {"iterations": round(iterations), "time_s": s * times, "energy_j": None, "edp_js": None}
        if j is not None:
            found |= {"energy_j": j * times, "edp_js": edp_js(j * times, s * times)}
        for name in ("u95_j", "u_statistical_j", "u_systematic_j", "rest_j", "residual_j"):
            value = number_of(record, name)
            found[name] = None if value is None else value * grow
    return found


def _of_training(note: Cell) -> str:
    """Notes without what holds for the iterations of the run only."""
    return "; ".join(text for text in str(note or "").split("; ") if not text.startswith("n counts the iterations of"))


def summed_devices(records: Sequence[Record]) -> list[Record]:
    """A further record for each row of a run that used several GPUs: their joules added up, ``device`` = gpu0+gpu1.

    Only where the run has as many GPU devices as it used GPUs. Different GPUs are different sensors: their
    uncertainties are independent. Time is that of the slowest.
    """
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in records:
        is_gpu = r["device_name"] is not None or str(r["device"]).startswith("gpu")
        if r["kind"] in ("phase", "total") and is_gpu and r["machines"] is None:
            groups.setdefault(_key(r, _ROW, "kind"), []).append(r)
    return [_sum(same) for same in groups.values() if len(same) > 1 and len(same) == same[0]["gpus"]]


def _sum(same: Sequence[Record]) -> Record:
    made = dict(same[0])
    made["device"] = "+".join(str(r["device"]) for r in same)
    names = list(dict.fromkeys(str(r["device_name"]) for r in same if r["device_name"]))
    made["device_name"] = " + ".join(names) or None
    made["note"] = "; ".join(dict.fromkeys(str(r["note"]) for r in same if r["note"]))
    made["clock_hz"] = None
    if made["ranks"] != 1:
        # Each rank has its own batch. A phase's rate is that of one rank, a total's that of all on its GPU.
        rates = [number_of(r, "samples_per_s") for r in same]
        counted = [number_of(r, "ranks_counted") or 1 for r in same]
        is_each = made["ranks"] == sum(counted if made["kind"] == "total" else [1 for _ in same]) and None not in rates
        made["samples_per_s"] = sum(v for v in rates if v is not None) if is_each else None
    made["is_lower_bound"] = any(r["is_lower_bound"] is True for r in same)
    for name in ("time_s", "s_per_batch"):
        made[name] = max((v for r in same if (v := number_of(r, name)) is not None), default=None)
    for name in ("j_per_batch", "energy_j", "power_w", "rest_j", "residual_j"):
        values = [number_of(r, name) for r in same]
        made[name] = None if None in values else sum(v for v in values if v is not None)
    for name in ("u_statistical_j", "u_systematic_j"):
        made[name] = sqrt(sum((number_of(r, name) or 0.0) ** 2 for r in same))
    is_known = made["is_lower_bound"] is not True and all(r["u95_j"] is not None for r in same)
    u = sqrt(sum((number_of(made, name) or 0.0) ** 2 for name in ("u_statistical_j", "u_systematic_j")))
    made["u95_j"] = COVERAGE_FACTOR * u if is_known else None
    j, s = ("j_per_batch", "s_per_batch") if made["kind"] == "phase" else ("energy_j", "time_s")
    energy, time = number_of(made, j), number_of(made, s)
    if "j_per_training" in made:
        whole = [number_of(r, "j_per_training") for r in same]
        made["j_per_training"] = None if None in whole else sum(v for v in whole if v is not None)
        total, u95 = number_of(made, "j_per_training"), number_of(made, "u95_j")
        made["u95_j_per_training"] = u95 * total / energy if u95 is not None and total and energy else None
    made["edp_js"] = edp_js(energy, time) if energy is not None and time is not None else None
    _divide(made, same)
    return made


def _divide(made: Record, same: Sequence[Record]) -> None:
    """GFLOPS/W over the joules of all: every GPU did as many operations, so the joules an operation are the mean."""
    names = ("gflops_per_w", "u_statistical_gflops_per_w", "u_systematic_gflops_per_w")
    figures = [number_of(r, names[0]) for r in same]
    made |= dict.fromkeys(names)
    inverse = [1 / f for f in figures if f]
    if len(inverse) < len(same):
        return
    mean = len(same) / sum(inverse)
    made[names[0]] = mean
    for name in names[1:]:
        parts = [(number_of(r, name) or 0.0) / f**2 for r, f in zip(same, figures, strict=True) if f]
        made[name] = mean**2 / len(same) * sqrt(sum(p**2 for p in parts))


def _key(record: Record, names: Sequence[str], *more: str) -> tuple[Cell, ...]:
    return tuple(record[name] for name in (*names, *more))
