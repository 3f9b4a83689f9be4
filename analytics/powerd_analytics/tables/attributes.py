"""Attributes of phases that are figures by definition, and what is no figure among them."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from powerd_analytics.runs.phases import OPERATIONS
from powerd_analytics.runs.run import Run
from powerd_core.errors import AnalysisError
from powerd_core.text import printable

FROM_ONE = ("batch_size",)
ABOVE_ZERO = ("power_cap_w", "clock_hz", "clock_mhz")
COUNTS = ("gpus", "ranks", "world_size", "machines")
"""Whole numbers above 0."""
FROM_ZERO = ("epochs", "iterations", "samples", "dataset_size", OPERATIONS)
"""A training may end before its first sample, and a layer may do no operation."""
FIGURES = (*FROM_ONE, *ABOVE_ZERO, *COUNTS, *FROM_ZERO)
"""Attributes that tables calculate with, or that say how much was trained; any other may be anything."""


def check_attributes(run: Run) -> None:
    """Raises `AnalysisError` with file, row of the phases (from 1) and attribute for one of `FIGURES` that is none, and
    for one that is a number in some phases and true or false in others where the two are equal (1 and True)."""
    p = run.phases
    faults: dict[int, tuple[str, str]] = {}
    numbers: dict[str, set[Any]] = {}
    for kind in p.classes:
        for name, value in kind.attributes.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers.setdefault(name, set()).add(value)
    for label, kind in enumerate(p.classes):
        for name, value in kind.attributes.items():
            if isinstance(value, bool) and value in numbers.get(name, ()):
                faults.setdefault(label, (name, f"{value} here and {int(value)} in other phases: which is meant?"))
        for name in FIGURES:
            if label not in faults and (text := _fault(name, kind.attributes.get(name))):
                faults[label] = name, text
    if not faults:
        return
    # Phases inside inherit what is wrong: the first row that has it is the one that was given it.
    row = int(np.flatnonzero(np.isin(p.label, list(faults)))[0])
    label = int(p.label[row])
    phase = printable(repr(p.classes[label].name), limit=60)
    name, text = faults[label]
    raise AnalysisError(
        f"{run.path}: phase row {row + 1} ({phase}), attribute {name}: {text}; correct what marks it, or give an "
        "attribute of your own another name"
    )


def _fault(name: str, value: Any) -> str:
    """What is wrong with one value; empty for a good one and for none."""
    if value is None:
        return ""
    if name == OPERATIONS and isinstance(value, tuple) and not any(_fault(name, v) for v in value):
        return ""  # two models under one name: `groups_of` says so
    shown = printable(repr(value), limit=40)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{shown} is no number"
    if not _is_finite(value):
        return f"{shown} is no finite number"
    if name in FROM_ZERO:
        return f"{shown} is negative" if value < 0 else ""
    if name in FROM_ONE:
        return f"{shown}: must be 1 or more" if value < 1 else ""
    if value <= 0:
        return f"{shown}: must be above 0"
    return f"{shown} is no whole number" if name in COUNTS and not float(value).is_integer() else ""


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False
