"""Random steps between many levels, the same for everyone who knows the seed, at any time asked for."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import Any

from powerd_core.errors import ConfigError
from powerd_daemon.sim.shapes import Waveform

CELL_NS = 1_000_000_000
"""Time is cut into cells that are generated one by one from the seed and their number."""


@dataclass(frozen=True, slots=True)
class _Cell:
    starts_ns: tuple[int, ...]
    levels_w: tuple[float, ...]
    starts_j: tuple[float, ...]

    def within_j(self, at_ns: int) -> float:
        i = bisect_right(self.starts_ns, at_ns) - 1
        return self.starts_j[i] + (at_ns - self.starts_ns[i]) * 1e-9 * self.levels_w[i]


class Telegraph(Waveform):
    """Levels drawn evenly between two powers, each held for an exponentially distributed time.

    A step falls on every whole second from the anchor, where the cells meet. Energy over a span costs its seconds
    once; asking again is cheap.
    """

    kind = "telegraph"

    def __init__(self, t0_ns: int, *, low_w: float, high_w: float, dwell_ms: float, seed: int) -> None:
        if dwell_ms < 0.01:
            raise ConfigError(f"dwell_ms = {dwell_ms} is too short for a telegraph waveform: give at least 0.01")
        self._t0_ns = t0_ns
        self._parameters = {"low_w": low_w, "high_w": high_w, "dwell_ms": dwell_ms, "seed": seed}
        self._cell = lru_cache(maxsize=8)(self._generate)
        self._after_j = [0.0]  # energy from the anchor to the end of each cell behind it
        self._before_j = [0.0]  # and from the beginning of each cell before it

    def parameters(self) -> dict[str, Any]:
        return dict(self._parameters)

    def power_w(self, t_ns: int) -> float:
        number, at_ns = divmod(t_ns - self._t0_ns, CELL_NS)
        cell = self._cell(number)
        return cell.levels_w[bisect_right(cell.starts_ns, at_ns) - 1]

    def energy_j(self, t0_ns: int, t1_ns: int) -> float:
        number_0, at_0_ns = divmod(t0_ns - self._t0_ns, CELL_NS)
        number_1, at_1_ns = divmod(t1_ns - self._t0_ns, CELL_NS)
        within_j = self._cell(number_1).within_j(at_1_ns) - self._cell(number_0).within_j(at_0_ns)
        return within_j if number_0 == number_1 else self._before(number_1) - self._before(number_0) + within_j

    def _before(self, number: int) -> float:
        """Energy from the anchor to the beginning of a cell."""
        while number >= len(self._after_j):
            self._after_j.append(self._after_j[-1] + self._cell(len(self._after_j) - 1).starts_j[-1])
        while -number >= len(self._before_j):
            self._before_j.append(self._before_j[-1] - self._cell(-len(self._before_j)).starts_j[-1])
        return self._after_j[number] if number >= 0 else self._before_j[-number]

    def _generate(self, number: int) -> _Cell:
        p = self._parameters
        random = Random(f"{p['seed']}/{number}")
        starts_ns, levels_w = [0], [random.uniform(p["low_w"], p["high_w"])]
        while (start_ns := starts_ns[-1] + 1 + round(random.expovariate(1.0) * p["dwell_ms"] * 1e6)) < CELL_NS:
            starts_ns.append(start_ns)
            levels_w.append(random.uniform(p["low_w"], p["high_w"]))
        ends_ns = [*starts_ns[1:], CELL_NS]
        joules = ((b - a) * 1e-9 * w for a, b, w in zip(starts_ns, ends_ns, levels_w, strict=True))
        return _Cell((*starts_ns, CELL_NS), (*levels_w, 0.0), tuple(accumulate(joules, initial=0.0)))
