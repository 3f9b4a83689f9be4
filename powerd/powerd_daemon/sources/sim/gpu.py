"""Simulated GPUs that obey: state that caps, clocks and work move through time by `powerd_core.gpu_physics`.

A `SimulatedGpu` lives on any clock: it is told the time (`advance`) and goes there in pieces in which nothing changes,
so that it is exact in real time and in virtual time alike. What it truly used and how long it was truly at its limits
is in `truth`, by which everything above can be judged. `SimulatedNode` is what one machine has.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from math import exp

from powerd_core.gpu_physics import Card, busy_w, clock_at

SAMPLE_S = 0.02
SAMPLES = 119
"""The driver's buffer of power samples: so many, so far apart; what an H200 has."""
RENEWAL_S = 0.1
"""How often instant and average power, and the energy counter, take a new value."""
LOW_PASS_S = 0.013
"""Time constant of what samples and instant power show."""
_LONGEST_S = 0.1
"""A piece, for the temperature moves in it."""

FAULTS = (
    "ignore",  # a setting is accepted, and nothing changes
    "clamp",  # a power limit is clamped halfway between what was and what is asked
    "override",  # out of band, a lower limit is enforced than requested
    "other-client",  # somebody else changes the limit a second after each change
    "driver-reload",  # the driver is loaded anew a second after each change
    "no-permission",
    "not-supported",
    "slow",  # a setting takes 3 s
    "lost",  # the GPU is lost a second after each change
    "thermal",  # it slows down for heat
    "brake",  # the power brake slows it down
    "clock-ignored",  # a lock is accepted, and the clock stays free
)
"""What may go wrong on request."""
FAULT_AFTER_S = 1.0
SLOW_S = 3.0
_SLOWED_F = 0.55
"""The clock to which heat or the power brake slows it down."""


class Refusal(Exception):
    """What the driver answers instead: a return value of NVML."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


INVALID, NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST = 2, 3, 4, 15


@dataclass(slots=True)
class Work:
    """What a card has to do, in seconds at full clocks; what is left of each part, done in this order."""

    wait_s: float
    core_s: float
    memory_s: float
    busy_w: float
    exchange_s: float = 0.0
    number: int = 0
    done_s: float | None = None


@dataclass(slots=True)
class Truth:
    """What happened, exactly."""

    energy_j: float = 0.0
    time_s: float = 0.0
    busy_s: float = 0.0
    at_cap_s: float = 0.0
    thermal_s: float = 0.0
    brake_s: float = 0.0


@dataclass(slots=True)
class Settings:
    """What the driver keeps. Clocks in MHz, limits in watts."""

    limit_w: float
    core_mhz: tuple[int, int] | None = None
    memory_mhz: tuple[int, int] | None = None
    applications_mhz: tuple[int, int] | None = None


class SimulatedGpu:
    """One card. Times are seconds of any clock that only grows."""

    def __init__(self, card: Card, index: int = 0, *, seed: int = 0, now_s: float = 0.0) -> None:
        self.card, self.index = card, index
        self.uuid = f"GPU-51500000-0000-0000-0000-{seed % 0xFFFFFF:06x}{index:06x}"
        self.set_to = Settings(card.limits_w[1])
        self.in_force = Settings(card.limits_w[1])
        """What is obeyed: a change takes `Card.settle_s`."""
        self.faults: set[str] = set()
        self.noise = 0.0
        """Relative standard deviation of readings."""
        self.truth = Truth()
        self.energy_mj = 0
        """The driver's counter, since it was loaded."""
        self._counted_j = 0.0
        self.temperature_c = card.ambient_c + card.idle_w * card.warming_k_per_w
        self.is_lost = False
        self.setters: list[tuple[str, object]] = []
        """Every setting that was asked for, as evidence."""
        self._now_s = now_s
        self._settled_s = now_s
        self._queue: deque[Work] = deque()
        self._numbers = 0
        self.last_done_s = now_s
        self._low_pass_w = card.idle_w
        self.samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self._next_sample_s = now_s + SAMPLE_S
        self.instant_w = card.idle_w
        self.average_w = card.idle_w
        self._next_renewal_s = now_s + RENEWAL_S
        self._next_fault_s: float | None = None
        self._second: deque[tuple[float, float]] = deque()
        self.f, self.reasons = 0.0, 1
        self._at_cap = self._thermal = self._brake = False
        self._random = random.Random(seed * 1009 + index)

    # Work.

    def submit(self, work: Work) -> int:
        """Queue work; its number."""
        self._numbers += 1
        work.number = self._numbers
        self._queue.append(work)
        return work.number

    @property
    def is_idle(self) -> bool:
        return not self._queue

    def until_done_s(self) -> float:
        """How long what is queued takes as things are now; at least until something changes."""
        return sum(self._left_s(work, self._f(work.busy_w)[0]) for work in self._queue)

    def _left_s(self, work: Work, f: float) -> float:
        return work.wait_s + work.core_s / f + work.memory_s / self._g + work.exchange_s

    # Settings.

    @property
    def enforced_w(self) -> float:
        least, _, greatest = self.card.limits_w
        out_of_band_w = max(least, 0.8 * self.set_to.limit_w) if "override" in self.faults else greatest
        return min(self.set_to.limit_w, out_of_band_w)

    def change(self, name: str, value: object) -> None:
        """A setter of the driver. Raises `Refusal`."""
        self.setters.append((name, value))
        if "no-permission" in self.faults:
            raise Refusal(NO_PERMISSION)
        if "not-supported" in self.faults:
            raise Refusal(NOT_SUPPORTED)
        if not self.faults & {"ignore"}:
            if name == "limit_w" and "clamp" in self.faults:
                value = (self.set_to.limit_w + float(value)) / 2  # type: ignore[arg-type]
            setattr(self.set_to, name, value)
        self._settled_s = self._now_s + self.card.settle_s
        if self.faults & {"other-client", "driver-reload", "lost"}:
            self._next_fault_s = self._now_s + FAULT_AFTER_S

    def reload(self) -> None:
        """The driver is loaded anew: settings and counters are gone."""
        self.set_to = Settings(self.card.limits_w[1])
        self.in_force = Settings(self.card.limits_w[1])
        self.energy_mj, self._counted_j = 0, self.truth.energy_j

    # Time.

    @property
    def now_s(self) -> float:
        return self._now_s

    @property
    def _g(self) -> float:
        lock = self.in_force.memory_mhz
        most = self.card.memory_mhz[-1]
        if self.in_force.applications_mhz:
            return self.in_force.applications_mhz[0] / most
        return lock[1] / most if lock else 1.0

    @property
    def g(self) -> float:
        """The memory's clock, of the greatest."""
        return self._g

    def _f(self, u: float) -> tuple[float, int]:
        """The clock that work of ``u`` runs at, and why it is not higher (bits of nvmlClocksEventReasons)."""
        most = 1.0
        lock = self.in_force.core_mhz
        if self.in_force.applications_mhz:
            most = self.in_force.applications_mhz[1] / self.card.core_mhz[-1]
        elif lock and "clock-ignored" not in self.faults:
            most = lock[1] / self.card.core_mhz[-1]
        reasons = 0
        slowed = most
        if "thermal" in self.faults or self.temperature_c > self.card.slowdown_c:
            slowed, reasons = min(most, _SLOWED_F), 0x20
        elif "brake" in self.faults:
            slowed, reasons = min(most, _SLOWED_F), 0x80
        f = clock_at(self.card, u * self._leakage, self.in_force.limit_w, f_most=slowed, g=self._g)
        return f, 0x4 if f < slowed else reasons

    @property
    def _leakage(self) -> float:
        return 1.0 + self.card.leakage_per_k * (self.temperature_c - 60.0)

    def advance(self, to_s: float) -> None:
        """Go on to that time."""
        while self._now_s < to_s - 1e-12:
            self._step(min(to_s, self._now_s + _LONGEST_S))

    def _step(self, to_s: float) -> None:
        if self._settled_s is not None and self._now_s >= self._settled_s:
            self._obey()
        for moment in (self._settled_s, self._next_fault_s, self._next_sample_s, self._next_renewal_s):
            if moment is not None and self._now_s < moment < to_s:
                to_s = moment
        work = self._queue[0] if self._queue else None
        piece_s, power_w = self._work(work, to_s - self._now_s)
        self._account(piece_s, power_w)
        self._now_s += piece_s
        if work is not None and self._left_s(work, 1.0) < 1e-9:
            work.done_s = self.last_done_s = self._now_s
            self._queue.popleft()
        self._tick()

    def _obey(self) -> None:
        s = self.set_to
        self.in_force = Settings(self.enforced_w, s.core_mhz, s.memory_mhz, s.applications_mhz)

    def _work(self, work: Work | None, longest_s: float) -> tuple[float, float]:
        """Work for at most so long, within one part of it: how long it was, and the power."""
        self._at_cap = self._thermal = self._brake = False
        if work is None:
            lock = self.in_force.core_mhz if "clock-ignored" not in self.faults else None
            self.f = lock[0] / self.card.core_mhz[-1] if lock else self.card.least_f
            self.reasons = 0x1
            return longest_s, self.card.idle_w
        for part, power_w in (("wait_s", self.card.wait_w), ("exchange_s", self.card.communication_w)):
            is_its_turn = part == "wait_s" or work.core_s + work.memory_s <= 1e-12
            if is_its_turn and getattr(work, part) > 1e-12:
                piece_s = min(longest_s, getattr(work, part))
                setattr(work, part, getattr(work, part) - piece_s)
                self.reasons = 0x0
                return piece_s, power_w
        f, self.reasons = self._f(work.busy_w)
        self.f = f
        self._at_cap, self._thermal, self._brake = (bool(self.reasons & bit) for bit in (0x4, 0x20, 0x80))
        left_s = work.core_s / f + work.memory_s / self._g
        piece_s = min(longest_s, left_s)
        share = piece_s / left_s if left_s > 0 else 1.0
        work.core_s *= 1.0 - share
        work.memory_s *= 1.0 - share
        self.truth.busy_s += piece_s
        return piece_s, busy_w(self.card, work.busy_w * self._leakage, f, self._g)

    def _account(self, piece_s: float, power_w: float) -> None:
        truth = self.truth
        truth.energy_j += power_w * piece_s
        truth.time_s += piece_s
        truth.at_cap_s += piece_s * self._at_cap
        truth.thermal_s += piece_s * self._thermal
        truth.brake_s += piece_s * self._brake
        settled_c = self.card.ambient_c + self.card.warming_k_per_w * power_w
        self.temperature_c += (settled_c - self.temperature_c) * (1.0 - exp(-piece_s / self.card.warming_s))
        self._low_pass_w += (power_w - self._low_pass_w) * (1.0 - exp(-piece_s / LOW_PASS_S))

    def _tick(self) -> None:
        """Samples, renewals and planned faults that are due."""
        if self._now_s >= self._next_sample_s - 1e-12:
            self.samples.append((self._next_sample_s, self._read(self._low_pass_w)))
            self._next_sample_s += SAMPLE_S
        if self._now_s >= self._next_renewal_s - 1e-12:
            self._next_renewal_s += RENEWAL_S
            self.instant_w = self._read(self._low_pass_w)
            self._second.append((self._now_s, self.truth.energy_j))
            while len(self._second) > 2 and self._second[1][0] <= self._now_s - 1.0:
                self._second.popleft()
            (begin_s, begin_j), (end_s, end_j) = self._second[0], self._second[-1]
            if end_s > begin_s:
                self.average_w = (end_j - begin_j) / (end_s - begin_s)
            self.energy_mj = round(1e3 * (self.truth.energy_j - self._counted_j))
        if self._next_fault_s is not None and self._now_s >= self._next_fault_s:
            self._next_fault_s = None
            self._strike()

    def _read(self, power_w: float) -> float:
        return power_w * (1.0 + self.noise * self._random.gauss(0.0, 1.0)) if self.noise else power_w

    def _strike(self) -> None:
        """The fault that was planned by the last setting."""
        if "other-client" in self.faults:
            least, _, greatest = self.card.limits_w
            self.set_to.limit_w = round((least + greatest) / 2) + 7.0
        if "driver-reload" in self.faults:
            self.reload()
        self.is_lost = self.is_lost or "lost" in self.faults
        self._obey()


@dataclass(slots=True)
class SimulatedNode:
    """The cards of a machine, which share one clock."""

    gpus: list[SimulatedGpu] = field(default_factory=list)

    def advance(self, to_s: float) -> None:
        for gpu in self.gpus:
            gpu.advance(to_s)
