"""Loads as functions of the board's time whose joules between any two times are known in closed form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any, ClassVar

from powerd_core.errors import ConfigError


class Waveform(ABC):
    """The total power of a simulated card over the board's time."""

    kind: ClassVar[str]

    @abstractmethod
    def power_w(self, t_ns: int) -> float:
        """Power at one moment."""

    @abstractmethod
    def energy_j(self, t0_ns: int, t1_ns: int) -> float:
        """The exact integral of the power between two times."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments, apart from the anchor ``t0_ns``, that make the same waveform again."""

    def advance(self, t_ns: int) -> None:  # noqa: B027  (only a waveform that follows something has to)
        """Make the waveform known up to ``t_ns``."""


class Constant(Waveform):
    """The same power for ever."""

    kind = "constant"

    def __init__(self, t0_ns: int, *, level_w: float) -> None:
        self._level_w = level_w

    def power_w(self, t_ns: int) -> float:
        return self._level_w

    def energy_j(self, t0_ns: int, t1_ns: int) -> float:
        return self._level_w * (t1_ns - t0_ns) * 1e-9

    def parameters(self) -> dict[str, Any]:
        return {"level_w": self._level_w}


@dataclass(frozen=True, slots=True)
class Piece:
    """A straight stretch of a cycle."""

    duration_ns: int
    from_w: float
    to_w: float


class Cycle(Waveform):
    """Straight pieces one after the other, repeated for ever, also before the anchor ``t0_ns``."""

    def __init__(self, t0_ns: int, pieces: Sequence[Piece]) -> None:
        self._t0_ns = t0_ns
        self._pieces = tuple(p for p in pieces if p.duration_ns > 0)
        if not self._pieces:
            raise ConfigError("a waveform needs at least one stretch that lasts: give it a duration")
        self._starts_ns = list(accumulate((p.duration_ns for p in self._pieces), initial=0))
        self._starts_j = list(
            accumulate((p.duration_ns * 1e-9 * (p.from_w + p.to_w) / 2 for p in self._pieces), initial=0.0)
        )
        self.cycle_ns = self._starts_ns[-1]

    def power_w(self, t_ns: int) -> float:
        at_ns = (t_ns - self._t0_ns) % self.cycle_ns
        i = bisect_right(self._starts_ns, at_ns) - 1
        piece = self._pieces[i]
        return piece.from_w + (piece.to_w - piece.from_w) * (at_ns - self._starts_ns[i]) / piece.duration_ns

    def energy_j(self, t0_ns: int, t1_ns: int) -> float:
        cycles_0, at_0_ns = divmod(t0_ns - self._t0_ns, self.cycle_ns)
        cycles_1, at_1_ns = divmod(t1_ns - self._t0_ns, self.cycle_ns)
        # Whole cycles are counted as integers, so that days from the anchor cost no precision.
        return (cycles_1 - cycles_0) * self._starts_j[-1] + (self._within_j(at_1_ns) - self._within_j(at_0_ns))

    def _within_j(self, at_ns: int) -> float:
        i = bisect_right(self._starts_ns, at_ns) - 1
        piece, into_ns = self._pieces[i], at_ns - self._starts_ns[i]
        slope = (piece.to_w - piece.from_w) / piece.duration_ns
        return self._starts_j[i] + into_ns * 1e-9 * (piece.from_w + slope * into_ns / 2)


class Square(Cycle):
    """High for ``duty`` of each period, then low."""

    kind = "square"

    def __init__(self, t0_ns: int, *, low_w: float, high_w: float, period_ms: float, duty: float) -> None:
        self._parameters = {"low_w": low_w, "high_w": high_w, "period_ms": period_ms, "duty": duty}
        period_ns = round(period_ms * 1e6)
        high_ns = round(period_ns * duty)
        super().__init__(t0_ns, (Piece(high_ns, high_w, high_w), Piece(period_ns - high_ns, low_w, low_w)))

    def parameters(self) -> dict[str, Any]:
        return dict(self._parameters)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """One iteration of a training loop. Levels are shares of the way from ``idle_w`` to ``peak_w``.

    The durations avoid whole milliseconds, so that iterations meet the scans at ever other moments.
    """

    forward_ms: float = field(default=31.713, metadata={"help": "duration of the forward pass"})
    backward_ms: float = field(default=67.331, metadata={"help": "duration of the backward pass"})
    update_ms: float = field(default=21.157, metadata={"help": "duration of the parameter update"})
    idle_ms: float = field(default=9.291, metadata={"help": "wait for the next batch"})
    forward_level: float = field(default=0.75, metadata={"help": "level of the forward pass, 0 = idle, 1 = peak"})
    backward_level: float = field(default=1.0, metadata={"help": "level of the backward pass"})
    update_level: float = field(default=0.4, metadata={"help": "level of the parameter update"})
    ramp_ms: float = field(default=0.8, metadata={"help": "how long power takes to reach a phase's level"})

    def __post_init__(self) -> None:
        for name in ("forward_ms", "backward_ms", "update_ms", "idle_ms", "ramp_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} = {getattr(self, name):g} must not be negative")

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
        self._watts = {"idle_w": idle_w, "peak_w": peak_w}
        phases = [p for p in self.options.phases() if p[1] > 0]
        levels = [idle_w + level * (peak_w - idle_w) for _, _, level in phases]
        ramp_ns = round(self.options.ramp_ms * 1e6)
        pieces = []
        for i, (name, duration_ns, _) in enumerate(phases):
            if ramp_ns > duration_ns:
                raise ConfigError(f"ramp_ms = {self.options.ramp_ms} is longer than the phase {name!r}: shorten it")
            pieces.append(Piece(ramp_ns, levels[i - 1], levels[i]))
            pieces.append(Piece(duration_ns - ramp_ns, levels[i], levels[i]))
        super().__init__(t0_ns, pieces)

    def parameters(self) -> dict[str, Any]:
        return self._watts | asdict(self.options)

    def phases(self, t0_ns: int, t1_ns: int) -> Iterator[tuple[str, int, int]]:
        """Name, begin and end of each phase that lies wholly between two times."""
        begin_ns = t0_ns - (t0_ns - self._t0_ns) % self.cycle_ns
        while begin_ns < t1_ns:
            for name, duration_ns, _ in self.options.phases():
                if t0_ns <= begin_ns and begin_ns + duration_ns <= t1_ns and duration_ns:
                    yield name, begin_ns, begin_ns + duration_ns
                begin_ns += duration_ns
