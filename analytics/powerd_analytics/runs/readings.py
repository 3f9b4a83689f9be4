"""Readings of a line as they are in the file, all of them or a range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client.fileshape import TIMES, check_times


@dataclass(frozen=True, slots=True)
class Readings:
    """Everything a run file has on one line: int64 times [n], uint16 flags [n], raw codes by column [n]."""

    t_board_ns: NDArray[np.int64]
    t_ns: NDArray[np.int64]
    flags: NDArray[np.uint16]
    codes: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class LineReader:
    """Ranges of one line's readings, from a file that somebody keeps open."""

    name: str
    group: h5py.Group

    def readings(self, first: int, last: int) -> Readings:
        """Readings ``first`` to ``last - 1``. Raises ValueError for times that no clock shows."""
        t_board_ns, t_ns = (self.group[k][first:last].astype(np.int64, copy=False) for k in ("t_board_ns", "t_ns"))
        check_times(t_ns, f"a reading of line {self.name!r}")
        columns = {k: v[first:last] for k, v in self.group.items() if k not in TIMES}
        return Readings(t_board_ns, t_ns, self.group["flags"][first:last].astype(np.uint16, copy=False), columns)

    def values(self, columns: Iterable[str], first: int, last: int) -> Readings:
        """The same with these columns only, and without the board's times, which no energy needs."""
        t_ns = self.group["t_ns"][first:last].astype(np.int64, copy=False)
        check_times(t_ns, f"a reading of line {self.name!r}")
        codes = {k: self.group[k][first:last] for k in columns if k in self.group}
        flags = self.group["flags"][first:last].astype(np.uint16, copy=False)
        return Readings(np.zeros(0, np.int64), t_ns, flags, codes)
