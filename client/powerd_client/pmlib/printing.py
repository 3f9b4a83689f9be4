"""A counter's data as rows of text: one row a moment, seconds since the first set began, watts of each line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from powerd_client.pmlib.data import ALL_SETS, CounterData
from powerd_client.pmlib.lines import Lines
from powerd_core.errors import ConfigError


def rows(data: CounterData, lines: Lines | None, set_number: int, separator: str) -> Iterator[str]:
    """The header, then the rows. A power that nobody knows is an empty cell, and so is a sum with one in it."""
    chosen = data.lines(lines)
    columns = [] if data.is_aggregate else [f"Line {i}" for i in chosen]
    yield separator.join(["Set_id", "Time", *columns, "Value_aggregate" if data.is_aggregate else "Sum"])
    for part in data.chosen(set_number):
        moments = part.moments(chosen, data.frequency)
        watts = part.watts(chosen, moments)
        shown = [watts.sum(axis=0)] if data.is_aggregate else [*watts, watts.sum(axis=0)]
        for k, t_ns in enumerate(moments):
            cells = [f"{(t_ns - data.begin_ns) * 1e-9:.9f}", *("" if np.isnan(w[k]) else f"{w[k]:.6f}" for w in shown)]
            yield separator.join([str(part.number), *cells])


def write_text(path: Path, data: CounterData, lines: Lines | None, set_number: int, separator: str) -> None:
    """The rows into a file. Raises `ConfigError` when it cannot be written."""
    made = list(rows(data, lines, set_number, separator))
    try:
        path.write_text("\n".join(made) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def print_data(
    data: CounterData, lines: Lines | None = None, set_number: int = ALL_SETS, out: TextIO | None = None
) -> None:
    """The rows, separated by tabs, to standard output."""
    for row in rows(data, lines, set_number, "\t"):
        print(row, file=out or sys.stdout)
