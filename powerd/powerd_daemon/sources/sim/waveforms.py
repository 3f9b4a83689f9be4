"""The load of a simulated graphics card: a waveform of the board's time, shared over the card's supply lines.

The joules of a waveform between any two times are known exactly. A stream's ``detail`` holds what
`waveform_from_detail` needs to make a deterministic load again elsewhere: a benchmark compares measured joules with
the exact ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import expm1
from random import Random
from typing import Any, ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.serde import option

CELL_NS = 1_000_000_000
"""Time is cut into cells that are generated one by one from the seed and their number."""
HISTORY = 1 << 18
"""Steps that are remembered: some nine minutes at 500 a second."""
SHARES = {"pcie_12v": 0.20, "pcie_3v3": 0.02} | {f"ext_12v_{i}": 0.13 for i in range(1, 7)}
"""Each line's fixed share of the card's power: slot, slot auxiliary, and the six wires of the power connector."""
NOMINAL_V = {name: 3.3 if name == "pcie_3v3" else 12.0 for name in SHARES}
"""The lines' voltages at the load; a simulated supply does not sag."""


class Waveform(ABC):
    """The total power of a simulated card over the board's time."""

    kind: ClassVar[str]
    parameters: Mapping[str, Any]
    """Keyword arguments, apart from the anchor ``t0_ns``, that make the same waveform again."""

    @abstractmethod
    def power_w(self, t_ns: int) -> float:
        """Power at one moment."""

    @abstractmethod
    def energy_j(self, t0_ns: int, t1_ns: int) -> float:
        """The exact integral of the power between two times."""

    def advance(self, t_ns: int) -> None:  # noqa: B027  (only a waveform that follows something has to)
        """Make the waveform known up to ``t_ns``."""


Piece = tuple[int, float, float]
"""A straight stretch of a cycle: its duration in ns, and the power at its beginning and its end."""


class Cycle(Waveform):
    """Straight pieces one after the other, repeated for ever, also before the anchor ``t0_ns``."""

    def __init__(self, t0_ns: int, pieces: Sequence[Piece]) -> None:
        self._t0_ns = t0_ns
        self._pieces = tuple(p for p in pieces if p[0] > 0)
        if not self._pieces:
            raise ConfigError("a waveform needs at least one stretch that lasts: give it a duration")
        self._starts_ns = list(accumulate((ns for ns, _, _ in self._pieces), initial=0))
        self._starts_j = list(accumulate((ns * 1e-9 * (a + b) / 2 for ns, a, b in self._pieces), initial=0.0))
        self.cycle_ns, self.cycle_j = self._starts_ns[-1], self._starts_j[-1]

    def power_w(self, t_ns: int) -> float:
        at_ns = (t_ns - self._t0_ns) % self.cycle_ns
        i = bisect_right(self._starts_ns, at_ns) - 1
        duration_ns, from_w, to_w = self._pieces[i]
        return from_w + (to_w - from_w) * (at_ns - self._starts_ns[i]) / duration_ns

    def energy_j(self, t0_ns: int, t1_ns: int) -> float:
        cycles_0, at_0_ns = divmod(t0_ns - self._t0_ns, self.cycle_ns)
        cycles_1, at_1_ns = divmod(t1_ns - self._t0_ns, self.cycle_ns)
        # Whole cycles are counted as integers, so that days from the anchor cost no precision.
        return (cycles_1 - cycles_0) * self.cycle_j + (self.within_j(at_1_ns) - self.within_j(at_0_ns))

    def within_j(self, at_ns: int) -> float:
        """Energy from the beginning of a cycle to a time within it."""
        i = bisect_right(self._starts_ns, at_ns) - 1
        (duration_ns, from_w, to_w), into_ns = self._pieces[i], at_ns - self._starts_ns[i]
        slope = (to_w - from_w) / duration_ns
        return self._starts_j[i] + into_ns * 1e-9 * (from_w + slope * into_ns / 2)


class Constant(Cycle):
    """The same power for ever."""

    kind = "constant"

    def __init__(self, t0_ns: int, *, level_w: float) -> None:
        self.parameters = {"level_w": level_w}
        super().__init__(t0_ns, ((CELL_NS, level_w, level_w),))


class Square(Cycle):
    """High for ``duty`` of each period, then low."""

    kind = "square"

    def __init__(self, t0_ns: int, *, low_w: float, high_w: float, period_ms: float, duty: float) -> None:
        self.parameters = {"low_w": low_w, "high_w": high_w, "period_ms": period_ms, "duty": duty}
        period_ns = round(period_ms * 1e6)
        high_ns = round(period_ns * duty)
        super().__init__(t0_ns, ((high_ns, high_w, high_w), (period_ns - high_ns, low_w, low_w)))


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """One iteration of a training loop. Levels are shares of the way from ``idle_w`` to ``peak_w``.

    The durations avoid whole milliseconds, so that iterations meet the scans at ever other moments.
    """

    forward_ms: float = option(31.713, "duration of the forward pass")
    backward_ms: float = option(67.331, "duration of the backward pass")
    update_ms: float = option(21.157, "duration of the parameter update")
    idle_ms: float = option(9.291, "wait for the next batch")
    forward_level: float = option(0.75, "level of the forward pass, 0 = idle, 1 = peak")
    backward_level: float = option(1.0, "level of the backward pass")
    update_level: float = option(0.4, "level of the parameter update")
    ramp_ms: float = option(0.8, "how long power takes to reach a phase's level")

    def __post_init__(self) -> None:
        if min(self.forward_ms, self.backward_ms, self.update_ms, self.idle_ms, self.ramp_ms) < 0:
            raise ConfigError("forward_ms, backward_ms, update_ms, idle_ms and ramp_ms must not be negative")

    def phases(self) -> tuple[tuple[str, int, float], ...]:
        """Name, duration in ns and level of each phase, in order."""
        return (
            ("forward", round(self.forward_ms * 1e6), self.forward_level),
            ("backward", round(self.backward_ms * 1e6), self.backward_level),
            ("update", round(self.update_ms * 1e6), self.update_level),
            ("idle", round(self.idle_ms * 1e6), 0.0),
        )


class Training(Cycle):
    """Forward, backward, update and a wait, over and over. Each phase begins with the ramp to its level."""

    kind = "training"

    def __init__(self, t0_ns: int, *, idle_w: float, peak_w: float, **options: float) -> None:
        self.options = TrainingOptions(**options)
        self.parameters = {"idle_w": idle_w, "peak_w": peak_w} | asdict(self.options)
        phases = [p for p in self.options.phases() if p[1] > 0]
        levels = [idle_w + level * (peak_w - idle_w) for _, _, level in phases]
        ramp_ns = round(self.options.ramp_ms * 1e6)
        pieces: list[Piece] = []
        for i, (name, duration_ns, _) in enumerate(phases):
            if ramp_ns > duration_ns:
                raise ConfigError(f"ramp_ms = {self.options.ramp_ms} is longer than the phase {name!r}: shorten it")
            pieces.append((ramp_ns, levels[i - 1], levels[i]))
            pieces.append((duration_ns - ramp_ns, levels[i], levels[i]))
        super().__init__(t0_ns, pieces)

    def phases(self, t0_ns: int, t1_ns: int) -> Iterator[tuple[str, int, int]]:
        """Name, begin and end of each phase that lies wholly between two times."""
        begin_ns = t0_ns - (t0_ns - self._t0_ns) % self.cycle_ns
        while begin_ns < t1_ns:
            for name, duration_ns, _ in self.options.phases():
                if t0_ns <= begin_ns and begin_ns + duration_ns <= t1_ns and duration_ns:
                    yield name, begin_ns, begin_ns + duration_ns
                begin_ns += duration_ns


class Telegraph(Waveform):
    """Levels drawn evenly between two powers, each held for an exponentially distributed time: the same for everyone
    who knows the seed, at any time asked for.

    A step falls on every whole second from the anchor, where the cells meet. Energy over a span costs its seconds
    once; asking again is cheap.
    """

    kind = "telegraph"

    def __init__(self, t0_ns: int, *, low_w: float, high_w: float, dwell_ms: float, seed: int) -> None:
        if dwell_ms < 0.01:
            raise ConfigError(f"dwell_ms = {dwell_ms} is too short for a telegraph waveform: give at least 0.01")
        self._t0_ns = t0_ns
        self.parameters = {"low_w": low_w, "high_w": high_w, "dwell_ms": dwell_ms, "seed": seed}
        self._cell = lru_cache(maxsize=8)(self._generate)
        self._sums_j = [0.0]
        """From the anchor to the beginning of each cell behind it."""

    def power_w(self, t_ns: int) -> float:
        number, at_ns = divmod(t_ns - self._t0_ns, CELL_NS)
        return self._cell(number).power_w(at_ns)

    def energy_j(self, t0_ns: int, t1_ns: int) -> float:
        number_0, at_0_ns = divmod(t0_ns - self._t0_ns, CELL_NS)
        number_1, at_1_ns = divmod(t1_ns - self._t0_ns, CELL_NS)
        within_j = self._cell(number_1).within_j(at_1_ns) - self._cell(number_0).within_j(at_0_ns)
        return within_j if number_0 == number_1 else self._before_j(number_1) - self._before_j(number_0) + within_j

    def _before_j(self, number: int) -> float:
        """Energy from the anchor to the beginning of a cell."""
        while number >= len(self._sums_j):
            self._sums_j.append(self._sums_j[-1] + self._cell(len(self._sums_j) - 1).cycle_j)
        return self._sums_j[number] if number >= 0 else -sum(self._cell(n).cycle_j for n in range(number, 0))

    def _generate(self, number: int) -> Cycle:
        """One cell, as a cycle that begins at 0."""
        p = self.parameters
        random = Random(f"{p['seed']}/{number}")
        starts_ns, levels_w = [0], [random.uniform(p["low_w"], p["high_w"])]
        while (start_ns := starts_ns[-1] + 1 + round(random.expovariate(1.0) * p["dwell_ms"] * 1e6)) < CELL_NS:
            starts_ns.append(start_ns)
            levels_w.append(random.uniform(p["low_w"], p["high_w"]))
        levels = zip(pairwise([*starts_ns, CELL_NS]), levels_w, strict=True)
        return Cycle(0, [(end_ns - begin_ns, level_w, level_w) for (begin_ns, end_ns), level_w in levels])


class Host(Waveform):
    """Follows this host's CPUs, so that what a program does shows in the simulated card's power: between idle and peak
    in proportion to the share of ``cores`` that was busy.

    CPU time is counted in lumps of a scheduler's tick and more. It is therefore drawn from a store that empties
    with the time constant ``smooth_ns``, never faster than ``cores`` could have used it: late, but complete.

    The power is known exactly over what was generated so far, and only there: `advance` reads ``cpu_ns`` (cumulative)
    and appends a step from the end of the last one. Asking beyond, or before what is remembered, is a `ValueError`.
    """

    kind = "host"

    def __init__(
        self, t0_ns: int, *, idle_w: float, peak_w: float, cores: float, smooth_ns: float, cpu_ns: Callable[[], int]
    ) -> None:
        self.parameters = {"idle_w": idle_w, "peak_w": peak_w, "cores": cores, "smooth_ns": smooth_ns}
        self._idle_w, self._span_w, self._cores, self._smooth_ns = idle_w, peak_w - idle_w, cores, smooth_ns
        self._read_ns = cpu_ns
        self._cpu_ns, self._store_ns = cpu_ns(), 0.0
        self._ends_ns = array("q", [t0_ns])
        self._ends_j = array("d", [0.0])
        self._levels_w = array("d", [idle_w])

    def advance(self, t_ns: int) -> None:
        step_ns = t_ns - self._ends_ns[-1]
        if step_ns <= 0:
            return
        cpu_ns = self._cpu_ns
        with suppress(SensorError):  # a process that is gone uses no more CPU
            cpu_ns = self._read_ns()
        most_ns = self._cores * step_ns
        # More threads than cores must not fill the store for ever.
        self._store_ns = min(self._store_ns + cpu_ns - self._cpu_ns, most_ns + 10 * self._cores * self._smooth_ns)
        self._cpu_ns = cpu_ns
        spent_ns = min(-expm1(-step_ns / self._smooth_ns) * self._store_ns, most_ns)
        self._store_ns -= spent_ns
        level_w = self._idle_w + self._span_w * spent_ns / most_ns
        self._ends_j.append(self._ends_j[-1] + step_ns * 1e-9 * level_w)
        self._ends_ns.append(t_ns)
        self._levels_w.append(level_w)
        if len(self._ends_ns) > HISTORY:
            for kept in (self._ends_ns, self._ends_j, self._levels_w):
                del kept[: HISTORY // 2]

    def power_w(self, t_ns: int) -> float:
        return self._levels_w[self._piece(t_ns)]

    def energy_j(self, t0_ns: int, t1_ns: int) -> float:
        return self._until_j(t1_ns) - self._until_j(t0_ns)

    def _piece(self, t_ns: int) -> int:
        if not self._ends_ns[0] <= t_ns <= self._ends_ns[-1]:
            raise ValueError(f"the host's load is known from {self._ends_ns[0]} to {self._ends_ns[-1]}, not at {t_ns}")
        return min(bisect_right(self._ends_ns, t_ns), len(self._ends_ns) - 1)

    def _until_j(self, t_ns: int) -> float:
        i = self._piece(t_ns)
        return self._ends_j[i] - (self._ends_ns[i] - t_ns) * 1e-9 * self._levels_w[i]


DETERMINISTIC: dict[str, Callable[..., Waveform]] = {c.kind: c for c in (Constant, Square, Training, Telegraph)}
"""Waveforms that are fully determined by their parameters and their anchor."""


@dataclass(frozen=True, slots=True)
class CardLoad:
    """A card's power and how much of it each line carries (``shares`` add up to one)."""

    waveform: Waveform
    shares: Mapping[str, float]

    def power_w(self, t_ns: int, line: str | None = None) -> float:
        """Power of one line at a board time, or of the card."""
        return (1.0 if line is None else self.shares[line]) * self.waveform.power_w(t_ns)

    def energy_j(self, t0_ns: int, t1_ns: int, line: str | None = None) -> float:
        """Exact joules of one line between two board times, or of the card."""
        return (1.0 if line is None else self.shares[line]) * self.waveform.energy_j(t0_ns, t1_ns)

    def detail(self, t0_ns: int) -> dict[str, Any]:
        """What `waveform_from_detail` reads, for a stream's ``detail``."""
        w = self.waveform
        return {
            "waveform": {"kind": w.kind, "t0_ns": t0_ns, "parameters": dict(w.parameters)},
            "shares": dict(self.shares),
        }


def waveform_from_detail(detail: Mapping[str, Any]) -> CardLoad:
    """The load that a simulated source ran with, from the ``detail`` of its stream.

    Raises `ConfigError` when the detail is of no simulated source, or when its waveform followed a host and so
    cannot be known afterwards.
    """
    try:
        waveform, shares = detail["waveform"], {str(k): float(v) for k, v in detail["shares"].items()}
        kind, t0_ns, parameters = waveform["kind"], int(waveform["t0_ns"]), dict(waveform["parameters"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError("this stream's detail describes no simulated load: it is not of the source 'sim'") from error
    if kind not in DETERMINISTIC:
        raise ConfigError(f"a {kind!r} waveform cannot be made again: its exact joules were known only while it ran")
    return CardLoad(DETERMINISTIC[kind](t0_ns, **parameters), shares)
