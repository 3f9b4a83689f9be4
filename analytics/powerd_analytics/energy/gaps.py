"""What lies between phases, as intervals in order that are never in memory together: there are as many as phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Numbers = NDArray[np.intp]
Side = Literal["left", "right"]
_SIDES: tuple[Side, Side] = "left", "right"


class Moments:
    """Moments of ``outer`` and of ``cover``, each in order, as one list in order; ``side`` says where among equal ones
    of ``cover`` those of ``outer`` come, before them or behind."""

    def __init__(self, outer: Ints, cover: Ints, side: Side) -> None:
        self._outer, self._cover = outer, cover
        self._place = np.arange(len(outer)) + np.searchsorted(cover, outer, side)
        """Where those of ``outer`` are in the whole. Those of ``cover`` are by far more, and have no such list."""

    def __len__(self) -> int:
        return len(self._outer) + len(self._cover)

    def at(self, which: Numbers) -> Ints:
        """The moments [k] with these numbers."""
        before, upto = (np.searchsorted(self._place, which, side) for side in _SIDES)
        is_outer = upto > before
        found = np.empty(len(which), np.int64)
        found[is_outer] = self._outer[before[is_outer]]
        found[~is_outer] = self._cover[(which - before)[~is_outer]]
        return found

    def of_cover(self, which: Numbers) -> Numbers:
        """Which moments of ``cover`` the moments [k] of the whole are; -1 for those of ``outer``."""
        before, upto = (np.searchsorted(self._place, which, side) for side in _SIDES)
        return np.where(upto > before, -1, which - before)

    def before(self, t_ns: Ints) -> Numbers:
        """How many of the whole are earlier than each of some moments [k]."""
        found: Numbers = np.searchsorted(self._outer, t_ns, "left") + np.searchsorted(self._cover, t_ns, "left")
        return found


@dataclass(frozen=True, slots=True)
class Gaps:
    """From each of ``begins`` to the one of ``ends`` with its number; of no length where that is earlier."""

    begins: Moments
    ends: Moments

    def __len__(self) -> int:
        return len(self.begins)

    def between(self, which: Numbers) -> tuple[Ints, Ints]:
        """Beginnings and ends of the gaps [k] with these numbers."""
        begin = self.begins.at(which)
        return begin, np.maximum(begin, self.ends.at(which))

    def begun_before(self, t_ns: Ints) -> Numbers:
        """How many gaps begin earlier than each of some moments [k]."""
        return self.begins.before(t_ns)

    def ended_before(self, t_ns: Ints) -> Numbers:
        """How many gaps end earlier: of both lists, which are in order, the moment is behind so many."""
        return np.minimum(self.begins.before(t_ns), self.ends.before(t_ns))
