"""Repeats of one configuration become one record: averages with what their spread says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from powerd_analytics.campaigns.figures import Figure, figure_of, mean_figure
from powerd_analytics.metrics import edp_js
from powerd_analytics.records.columns import Cell, Record, number_of

CONFIGURATION = (
    "kind", "host", "model", "batch_size", "gpus", "ranks", "rank_numbers", "world_size", "machines", "device",
    "device_name", "provenance", "power_cap_w",
    "attributes", "phase", "phase_path", "timing", "operations_per_sample",
)  # fmt: skip
"""What must be the same for two runs to be repeats of one configuration; the clock is compared by `CLOCK_SHARE`."""
BASIS = ("gflops_convention", "gflops_basis")
"""What a figure of GFLOPS/W is made of. Repeats have it as they have joules: a run without these is a repeat too."""
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
    for record in records:
        groups.setdefault((*_key(record), *(record[name] for name in apart)), []).append(record)
    return [_merged(same) for group in groups.values() for same in _by_clock(group)]


def of_a_batch(record: Record) -> Record:
    """A total as of one of its batches, so that runs of different numbers of batches are repeats (`averaged`)."""
    n = number_of(record, "iterations")
    if record["kind"] != "total" or not n:
        return record
    values = {name: None if (v := number_of(record, name)) is None else v / n for name in _OF_ALL_BATCHES}
    energy, time = values["energy_j"], values["time_s"]
    product = None if energy is None or time is None else edp_js(energy, time)
    return {**record, **values, "edp_js": product, "iterations": 1}


def _key(record: Record) -> tuple[Cell, ...]:
    cap = number_of(record, "power_cap_w")
    key = [record[name] for name in CONFIGURATION if name != "power_cap_w"]
    key += [None if cap is None else round(cap / CAP_STEP_W)]
    if record["kind"] == "total":
        key.append(record["iterations"])
    if record["kind"] in WHOLE:
        key += [record["path"], record["run_id"], record["rank"], record["machine"]]
    return tuple(key)


def _by_clock(group: Sequence[Record]) -> list[list[Record]]:
    """Repeats apart by the clock; those of unknown clock are a setting of their own."""
    unknown = [r for r in group if number_of(r, "clock_hz") is None]
    known = sorted((r for r in group if r not in unknown), key=lambda r: number_of(r, "clock_hz") or 0.0)
    found: list[list[Record]] = [unknown] if unknown else []
    for i, record in enumerate(known):
        share = 1e-6 if record["clock_set"] is True else CLOCK_SHARE
        limit = (number_of(found[-1][0], "clock_hz") or 0.0) * (1 + share) if i else 0.0
        if i and (number_of(record, "clock_hz") or 0.0) <= limit and found[-1][0]["clock_set"] == record["clock_set"]:
            found[-1].append(record)
        else:
            found.append([record])
    order = {id(record): i for i, record in enumerate(group)}
    return sorted((sorted(same, key=lambda r: order[id(r)]) for same in found), key=lambda same: order[id(same[0])])


def _merged(same: Sequence[Record]) -> Record:
    n = len(same)
    if n == 1:
        return {**same[0], RUNS: 1}
    record = dict(same[0])
    for name in ("run", "path", "run_id", "created_utc"):
        record[name] = "; ".join(dict.fromkeys(str(r[name]) for r in same if r[name] is not None)) or None
    record["note"] = "; ".join(dict.fromkeys(str(r["note"]) for r in same if r["note"]))
    record["method"] = "; ".join(dict.fromkeys(str(r["method"]) for r in same if r["method"])) or None
    for name in ("clock_hz", "power_cap_w", "rest_j", "residual_j", "time_s", "s_per_batch", "missing_s"):
        record[name] = _mean(same, name)
    for name in ("s_per_training", "j_per_training"):
        if name in record:
            record[name] = _mean(same, name)
    iterations = [int(v) for r in same if (v := number_of(r, "iterations")) is not None]
    record["iterations"] = sum(iterations) if record["kind"] == "phase" else iterations[0] if iterations else None
    for name, most in (("s_per_batch_min", min), ("s_per_batch_max", max)):
        record[name] = most((v for r in same if (v := number_of(r, name)) is not None), default=None)
    record["is_lower_bound"] = any(r["is_lower_bound"] is True for r in same)
    _times(record, same)
    _joules(record, same)
    _ratio(record, same)
    whole, u95 = number_of(record, "j_per_training") if "j_per_training" in record else None, number_of(record, "u95_j")
    joules = number_of(record, "j_per_batch" if record["kind"] == "phase" else "energy_j")
    if "u95_j_per_training" in record:
        record["u95_j_per_training"] = u95 * whole / joules if whole and joules and u95 is not None else None
    return {**record, RUNS: n}


def _mean(same: Sequence[Record], name: str) -> float | None:
    values = [v for r in same if (v := number_of(r, name)) is not None]
    return sum(values) / len(values) if values else None


def _figure(same: Sequence[Record], name: str) -> Figure | None:
    found = [f for r in same if (f := figure_of(r, name)) is not None]
    return mean_figure(found) if found else None


def _times(record: Record, same: Sequence[Record]) -> None:
    seconds = _figure(same, "s_per_batch")
    record["u_s_per_batch"] = seconds.u_statistical if seconds else None
    batch = number_of(record, "batch_size")
    has_rate = any(r["samples_per_s"] is not None for r in same)
    record["samples_per_s"] = batch / seconds.value if batch and seconds and seconds.value and has_rate else None


def _joules(record: Record, same: Sequence[Record]) -> None:
    name, time = ("j_per_batch", "s_per_batch") if record["kind"] == "phase" else ("energy_j", "time_s")
    joules = _figure(same, name)
    for column in ("j_per_batch", "energy_j", "power_w", "edp_js", "u95_j", "u_statistical_j", "u_systematic_j"):
        record[column] = None
    if joules is None:
        return
    if joules.count < len(same):
        said = f"mean of {joules.count} of {len(same)} runs, the others have no figure"
        record["note"] = "; ".join(t for t in (str(record["note"]), said) if t)
    record |= {name: joules.value, "u95_j": joules.u95}
    record |= {"u_statistical_j": joules.u_statistical, "u_systematic_j": joules.u_systematic}
    n = number_of(record, "iterations")
    if record["kind"] != "phase" and n:
        record["j_per_batch"] = joules.value / n
    # Runs without joules must not bring their seconds into the power.
    seconds = _mean([r for r in same if r[name] is not None], time)
    if seconds:
        record |= {"power_w": joules.value / seconds, "edp_js": edp_js(joules.value, seconds)}


def _ratio(record: Record, same: Sequence[Record]) -> None:
    """Operations per mean joule, so that the figure belongs to the mean energy; on one basis only."""
    record |= dict.fromkeys(("gflops_per_w", "u_statistical_gflops_per_w", "u_systematic_gflops_per_w", *BASIS))
    found = [f for r in same if (f := figure_of(r, "gflops_per_w")) is not None]
    bases = dict.fromkeys(tuple(r[name] for name in BASIS) for r in same if r["gflops_per_w"] is not None)
    if len(bases) > 1:
        said = f"no GFLOPS/W: over the joules of {' or '.join(str(basis) for _, basis in bases)}, by run"
        record["note"] = "; ".join(t for t in (str(record["note"]), said) if t)
    if len(bases) != 1:
        return
    record |= dict(zip(BASIS, *bases, strict=True))
    inverse = mean_figure([_inverse(f) for f in found])
    mean = _inverse(inverse)
    record |= {"gflops_per_w": mean.value, "u_statistical_gflops_per_w": mean.u_statistical}
    record |= {"u_systematic_gflops_per_w": mean.u_systematic}


def _inverse(f: Figure) -> Figure:
    statistical, systematic = (None if u is None else u / f.value**2 for u in (f.u_statistical, f.u_systematic))
    return Figure(1 / f.value, statistical, systematic, f.is_lower_bound)
