"""Phases and totals of a training over several machines: joules of all its ranks, seconds of the mean rank.

A batch of the training is a batch in every rank: J/batch are the joules of all ranks in their phases of a kind, over
how often a rank had one. Seconds are the mean over the ranks, beside those of the fastest and the slowest: machines
have clocks of their own, and no time of one is compared with a time of another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import hypot, sqrt

from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.metrics import edp_js, gflops_per_w_paper
from powerd_analytics.records.columns import Cell, Record, number_of
from powerd_analytics.records.jobdevices import JobDevices, Place

_KIND = ("kind", "model", "batch_size", "attributes", "operations_per_sample", "phase", "phase_path", "timing")
_PASSES = ("forward", "backward")
_OF_A_PART = ("mean per rank:", "n counts the iterations of", "joules are the device's")
"""Notes on how ranks share a machine's device, which do not hold for sums over all ranks."""

Parts = list[tuple[Place, Record]]


def phase_sums(devices: JobDevices, places: Sequence[Place], whole: Record) -> list[Record]:
    """Records of kind ``phase`` and ``total`` of one set of devices; ``whole`` is what they have in common."""
    groups: dict[tuple[Cell, ...], Parts] = {}
    for m, device, provenance in places:
        for record in devices.members[m].records:
            if record["kind"] in ("phase", "total") and (record["device"], record["provenance"]) == (
                device,
                provenance,
            ):
                key = tuple(record[name] for name in _KIND)
                groups.setdefault(key, []).append(((m, device, provenance), record))
    found = [_sum(devices, parts, whole) for parts in groups.values()]
    return [_with_gflops(record, found) for record in found]


def _sum(devices: JobDevices, parts: Parts, whole: Record) -> Record:
    first = parts[0][1]
    is_total = first["kind"] == "total"
    made = first | whole | {"sensors": None, "gpu": None, "begin_unix_s": None, "s_by_rank": None, "sharing": None}
    made["ranks_counted"] = None  # a batch is one in every rank
    made["device_name"] = "; ".join(dict.fromkeys(str(r["device_name"]) for _, r in parts if r["device_name"])) or None
    for name in ("power_cap_w", "clock_hz"):
        values = [v for _, r in parts if (v := number_of(r, name)) is not None]
        made[name] = sum(values) / len(values) if len(values) == len(parts) else None
    made["is_lower_bound"] = any(r["is_lower_bound"] is True for _, r in parts)
    made["missing_s"] = sum(number_of(r, "missing_s") or 0.0 for _, r in parts)
    made["method"] = "; ".join(dict.fromkeys(str(r["method"]) for _, r in parts if r["method"])) or None
    ranks = _ranks(parts)
    counts, seconds = [n for n, _ in ranks.values()], [s / n for n, s in ranks.values()]
    mean_n = sum(counts) / len(ranks) if ranks else 0.0
    made["iterations"] = round(mean_n) if ranks else None
    said = [text for _, r in parts for text in str(r["note"] or "").split("; ")]
    notes = [text for text in said if text and not text.startswith(_OF_A_PART)]
    if ranks:
        made |= {"s_per_batch": sum(seconds) / len(ranks)}
        made |= {"s_per_batch_min": min(seconds), "s_per_batch_max": max(seconds)}
        if len(set(counts)) > 1:
            notes.append(f"ranks have {min(counts)} to {max(counts)} of them: n is their mean")
        if len(ranks) < (number_of(whole, "ranks") or 0):
            notes.append(f"{len(ranks)} of {whole['ranks']} ranks have such phases")
    made["u_s_per_batch"] = _u_seconds(parts)
    made |= _joules(devices, parts, mean_n, is_total=is_total)
    name = "energy_j" if is_total else "j_per_batch"
    if made[name] is None:
        silent = [f"{p[1]} of {r['run']}" for p, r in parts if r[name] is None]
        notes.append(f"no joules of {', '.join(silent)}")
    if is_total:
        lengths = [s for _, s in ranks.values()]
        made["time_s"] = sum(lengths) / len(lengths) if lengths else None
        made["j_per_batch"] = _over(number_of(made, "energy_j"), mean_n)
    j, s = number_of(made, name), number_of(made, "time_s" if is_total else "s_per_batch")
    made["power_w"] = _over(j, s)
    made["edp_js"] = edp_js(j, s) if j is not None and s is not None else None
    batch, s_batch = number_of(made, "batch_size"), number_of(made, "s_per_batch")
    has_rate = batch and s_batch and any(r["samples_per_s"] is not None for _, r in parts)
    made["samples_per_s"] = len(ranks) * batch / s_batch if has_rate and batch and s_batch else None
    return made | {"note": "; ".join(dict.fromkeys(notes))}


def _ranks(parts: Parts) -> dict[str, tuple[int, float]]:
    """Of each rank how many phases and their seconds: the same on each device that it uses."""
    found: dict[str, tuple[int, float]] = {}
    for _, record in parts:
        for rank, (count, length_s) in json.loads(str(record["s_by_rank"] or "{}")).items():
            found[rank] = (int(count), float(length_s))
    return found


def _u_seconds(parts: Parts) -> float | None:
    """Of the mean over all phases, each device's by its number of them."""
    known = [(number_of(r, "u_s_per_batch"), number_of(r, "iterations") or 0.0) for _, r in parts]
    count = sum(n for _, n in known)
    if not count or any(u is None for u, _ in known):
        return None
    return sqrt(sum((u * n / count) ** 2 for u, n in known if u is not None))


def _joules(devices: JobDevices, parts: Parts, mean_n: float, *, is_total: bool) -> Record:
    """Joules of all parts. Different devices are different sensors, off independently of each other; what several
    machines recorded of one device is off together."""
    name = "energy_j" if is_total else "j_per_batch"
    names = (name, "u_statistical_j", "u_systematic_j")
    by_device: dict[int, list[float]] = {}
    of_rest = {"rest_j": 0.0, "residual_j": 0.0}
    is_known = True
    has_rest = is_total
    for place, record in parts:
        device = devices.devices[place]
        # A phase's figures are the mean of a rank's share; a total's are the device's.
        times = device.share(place) if is_total else device.share(place) * _over_n(record, mean_n)
        values = [number_of(record, column) for column in names]
        if values[0] is None:
            return dict.fromkeys((*names, "u95_j", "rest_j", "residual_j"))
        is_known = is_known and None not in values and record["u95_j"] is not None
        sums = by_device.setdefault(id(device), [0.0, 0.0, 0.0])
        for i, value in enumerate(values):
            sums[i] += (value or 0.0) * times
        for column in of_rest:
            value = number_of(record, column)
            has_rest = has_rest and value is not None
            of_rest[column] += (value or 0.0) * times
    found: Record = {name: sum(sums[0] for sums in by_device.values())}
    u = [sqrt(sum(sums[i] ** 2 for sums in by_device.values())) for i in (1, 2)]
    found |= {"u_statistical_j": u[0], "u_systematic_j": u[1]} if is_known else {"u_statistical_j": None}
    found |= {} if is_known else {"u_systematic_j": None}
    found["u95_j"] = COVERAGE_FACTOR * hypot(*u) if is_known else None
    rest: Record = dict(of_rest) if has_rest else dict.fromkeys(of_rest)
    return found | rest


def _over_n(record: Record, mean_n: float) -> float:
    """Phases on the device for each that a rank has on average."""
    return (number_of(record, "iterations") or 0.0) / mean_n if mean_n else 0.0


def _over(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def _with_gflops(record: Record, every: Sequence[Record]) -> Record:
    """Operations of all ranks over the joules of all; of totals over those of the phases that their parts divide by."""
    names = ("gflops_per_w", "u_statistical_gflops_per_w", "u_systematic_gflops_per_w")
    basis = str(record["gflops_basis"] or "")
    cleared = record | dict.fromkeys(names)
    group = [r for r in every if r["kind"] == "phase" and all(r[n] == record[n] for n in _KIND[1:4])]
    passes = [r for r in group if r["phase"] in _PASSES]
    over = [r for r in group if r["phase"] in basis.split("+")]
    operations, batch, ranks = (number_of(record, n) for n in ("operations_per_sample", "batch_size", "ranks"))
    joules = [number_of(r, "j_per_batch") for r in over]
    if not basis or not (operations and batch and ranks) or not joules or not all(joules):
        return cleared
    count = 1 if record["kind"] == "phase" else len({r["phase"] for r in passes})
    total = sum(j for j in joules if j is not None)
    figure = gflops_per_w_paper(operations, batch * ranks, count, total)
    u = [sqrt(sum((number_of(r, n) or 0.0) ** 2 for r in over)) for n in ("u_statistical_j", "u_systematic_j")]
    return cleared | dict(zip(names, (figure, *(figure * part / total for part in u)), strict=True))
