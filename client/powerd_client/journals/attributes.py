"""Attributes of phases that are figures by definition, such as ``batch_size``: numbers, or not known."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from math import isfinite

from powerd_core.text import printable

_LEAST = {"batch_size": 1.0} | dict.fromkeys(
    ("power_cap_w", "clock_hz", "clock_mhz", "memory_clock_hz", "memory_clock_mhz", "gpus", "ranks", "world_size",
     "machines", "epochs", "iterations", "samples", "dataset_size", "operations_per_sample",
     "operations_executed_per_sample"), 0.0)  # fmt: skip
"""The least that each can be."""
_WHOLE = ("gpus", "ranks", "world_size", "machines")
_MOST = 1e300


def with_figures(phase: str, attributes: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """The attributes with every figure as a number, and None for one that is no number of its kind; a text that reads
    as one is that number. By the names of the latter, what to say of them."""
    plain, faults = dict(attributes), dict[str, str]()
    for name in _LEAST.keys() & plain.keys():
        given = plain[name]
        value = _number(given)
        is_figure = value is not None and _LEAST[name] <= value < _MOST and not (name in _WHOLE and value % 1)
        plain[name] = value if is_figure else None
        if given is not None and not is_figure:
            whole = " and whole" if name in _WHOLE else ""
            shown = f"{name} of phase {printable(repr(phase), limit=60)} is {printable(repr(given), limit=40)}"
            faults[name] = (
                f"attribute {shown}, and must be a finite number, {_LEAST[name]:g} or more{whole}: it is dropped, and "
                "figures that need it are left out"
            )
    return plain, faults


def is_not_known(name: str, value: object) -> bool:
    """Whether an attribute is a figure without a value: phases have none then, nor that of the phases around them."""
    return value is None and name in _LEAST


def _number(value: object) -> int | float | None:
    """A number, or a text that reads as one. True and False are none."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return int(value)
        with contextlib.suppress(ValueError):
            return _number(float(value))
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or isfinite(value) else None
