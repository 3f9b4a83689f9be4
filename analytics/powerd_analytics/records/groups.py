"""The groups of a run's phases: what they have in common, and what must not be wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from powerd_analytics.celltext import to_json_text
from powerd_analytics.records.columns import Record
from powerd_analytics.runs.phases import OPERATIONS, PhaseClass, identity
from powerd_analytics.runs.run import Run
from powerd_analytics.tables.attributes import check_attributes
from powerd_analytics.tables.totals import number
from powerd_core.errors import AnalysisError

GroupKey = tuple[tuple[str, str], ...]

PROMOTED = ("model", "batch_size", "gpus", "device_name", "power_cap_w", "clock_hz", "clock_mhz")
"""Attributes of phases that have columns of their own."""


@dataclass(frozen=True, slots=True)
class Group:
    """What the phases of one group have in common: their attributes and when they ran (host's clock)."""

    attributes: Mapping[str, Any]
    begin_ns: int
    end_ns: int


def groups_of(run: Run) -> dict[GroupKey, Group]:
    """The groups by their attributes but for the operations. Raises `AnalysisError` as `check_models`."""
    check_attributes(run)
    p = run.phases
    first = np.full(len(p.classes), np.iinfo(np.int64).max)
    last = np.full(len(p.classes), np.iinfo(np.int64).min)
    np.minimum.at(first, p.label, p.begin_ns)
    np.maximum.at(last, p.label, p.end_ns)
    found: dict[GroupKey, Group] = {}
    for kind, begin, end in zip(p.classes, first.tolist(), last.tolist(), strict=True):
        key, attributes = group_key(dict(kind.group)), dict(kind.attributes)
        known = found.get(key, Group({}, begin, end))
        _check_operations(run, attributes, known.attributes)
        both = {**attributes, **known.attributes}
        found[key] = Group(both, min(begin, known.begin_ns), max(end, known.end_ns))
    return found


def _check_operations(run: Run, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Raises `AnalysisError` where phases of one group say different operations per sample."""
    said = [v for attributes in (a, b) if (v := attributes.get(OPERATIONS)) is not None]
    each = list(dict.fromkeys(x for v in said for x in (v if isinstance(v, tuple) else (v,))))
    if len(each) > 1:
        of = f" of model {a['model']!r}" if a.get("model") is not None else ""
        raise AnalysisError(
            f"{run.path}: phases{of} have {_shown(each[0])} and {_shown(each[1])} operations per sample: "
            "give different models different names"
        )


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def check_models(run: Run) -> None:
    """Raises `AnalysisError` where one model's name stands for two numbers of operations in a run, and as
    `check_attributes`."""
    groups_of(run)


def group_key(group: Mapping[str, Any]) -> GroupKey:
    """Attributes as something to look a group up by."""
    return tuple(sorted((name, identity(value)) for name, value in group.items()))


def whole_run(run: Run, found: Mapping[GroupKey, Group]) -> Group:
    """The recording as a group: with the attributes that all its groups have in common."""
    every = [g.attributes for g in found.values()]
    first = every[0] if every else {}
    shared = {k: v for k, v in first.items() if all(a.get(k) == v for a in every)}
    return Group(shared, run.begin_ns, run.end_ns)


def others_of(attributes: Mapping[str, Any]) -> str:
    """The attributes without a column of their own."""
    rest = {k: v for k, v in attributes.items() if k not in (*PROMOTED, OPERATIONS)}
    return to_json_text(rest, indent=None, sort_keys=True)


def is_of_class(record: Record, kind: PhaseClass) -> bool:
    """Whether a record of phases is that of a class of its run."""
    a = kind.attributes
    if ("/".join(kind.path), kind.timing, others_of(a)) != tuple(
        record[n] for n in ("phase_path", "timing", "attributes")
    ):
        return False
    mhz = number(a, "clock_mhz")
    said = {n: number(a, n) for n in ("batch_size", "gpus", "power_cap_w", "clock_hz")}
    said["clock_hz"] = said["clock_hz"] or (mhz * 1e6 if mhz else None)
    names = {n: text_of(a.get(n)) for n in ("model", "device_name")}
    return all(v is None or record[n] == v for n, v in [*said.items(), *names.items()])


def check_numbers(run: Run, record: Record) -> None:
    """Raises `AnalysisError` for a figure that is neither a finite number nor missing."""
    for name in ("s_per_batch", "j_per_batch", "energy_j", "u95_j"):
        value = record[name]
        if isinstance(value, float) and not isfinite(value):
            row = record["phase"] or record["kind"]
            raise AnalysisError(
                f"{run.path}: {name} of {row} on {record['device']} is {value}: a calibration or accuracy of its lines "
                "is not a number (`joules verify` says which)"
            )


def text_of(value: Any) -> str | None:
    """An attribute as text, None for nothing."""
    return None if value is None or value == "" else str(value)
