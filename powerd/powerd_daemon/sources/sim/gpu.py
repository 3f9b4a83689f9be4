"""Simulated GPUs that obey: state that caps, clocks and work move through time by `powerd_core.gpu_physics`.

A `SimulatedGpu` lives on any clock: it is told the time (`advance`) and goes there in pieces in which its power is
constant, so that it is exact in real time and in virtual time alike, and what it did does not depend on when it was
asked. What the driver tells is worked out from the latest pieces when somebody asks, so that hours of virtual time take
a moment (`SimulatedGpu.train`). What it truly used and how long it was truly at its limits is in `truth`, by which
everything above can be judged. `SimulatedNode` is what one machine has.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field, replace
from math import exp, floor

from powerd_core.errors import ConfigError
from powerd_core.gpu_physics import Card, Machine, Network, busy_w, clock_at
from powerd_daemon.sources.sim.as_pynvml.pynvml import Refusal

SAMPLE_S = 0.02
SAMPLES = 119
"""The driver's buffer of power samples: so many, so far apart; what an H200 has."""
RENEWAL_S = 0.1
"""How often instant and average power, and the energy counter, take a new value."""
LOW_PASS_S = 0.013
"""Time constant of what samples and instant power show."""
_REMEMBERED_S = 3.0
"""How far back what the driver tells may reach."""
_WARMING_S = 2.0
"""How often leakage and throttling follow the temperature."""
_COOLER_K = 3.0
"""So far below the slowdown's temperature a hot card is let go."""
_GRAIN_S = 5.0
"""A training in virtual time is done in pieces of whole iterations, about so long."""

FAULTS = (
    "ignore",  # a setting is accepted, and nothing changes
    "clamp",  # a power limit is clamped halfway between what was and what is asked
    "override",  # out of band, a lower limit is enforced than requested
    "other-client",  # somebody else changes the limit a second after each change
    "driver-reload",  # the driver is loaded anew a second after each change
    "no-permission",
    "not-supported",
    "slow",  # a setting takes 3 s
    "renumbered",  # as driver-reload, and the cards of the machine have other numbers then
    "lost",  # the GPU is lost a second after each change
    "thermal",  # it slows down for heat
    "brake",  # the power brake slows it down
    "clock-ignored",  # a lock is accepted, and the clock stays free
)
"""What may go wrong on request."""
KNOBS = {
    "power-cap": "limit_w",
    "sm-clock": "core_mhz",
    "memory-clock": "memory_mhz",
    "application-clocks": "applications_mhz",
}
"""A fault of settings may be of one of these alone: ``not-supported:sm-clock``. What each is in `GpuSettings`."""
OF_A_KNOB = ("ignore", "no-permission", "not-supported", "slow")
"""The faults that may be."""
FAULT_AFTER_S = 1.0
SLOW_S = 3.0
_SLOWED_F = 0.55
"""The clock to which heat or the power brake slows it down."""


UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST = 1, 2, 3, 4, 15


@dataclass(slots=True)
class Work:
    """What a card has to do, in seconds at full clocks; what is left of each part, done in this order."""

    wait_s: float
    core_s: float
    memory_s: float
    busy_w: float
    exchange_s: float = 0.0
    draw: float = 1.0
    """All its powers are this many times those of the physics: the noise of a run."""
    number: int = 0
    done_s: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What a training truly took on one card."""

    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of constant power, up to the next one."""

    begin_s: float
    power_w: float
    shown_w: float
    """What the low-pass shows at its beginning."""
    energy_j: float
    """What was used up to its beginning."""

    def shown_at(self, t_s: float) -> float:
        return self.power_w + (self.shown_w - self.power_w) * exp((self.begin_s - t_s) / LOW_PASS_S)

    def energy_at(self, t_s: float) -> float:
        return self.energy_j + self.power_w * (t_s - self.begin_s)


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
class GpuSettings:
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
        self.set_to = GpuSettings(card.limits_w[1])
        self.in_force = GpuSettings(card.limits_w[1])
        """What is obeyed: a change takes `Card.settle_s`."""
        self.faults: set[str] = set()
        self.noise = 0.0
        """Relative standard deviation of readings."""
        self.truth = Truth()
        self.loaded = Truth()
        """What it was when the driver was loaded, whose counters began there."""
        self.processes: set[int] = set()
        """Who works on it."""
        self.is_persistent = True
        self.temperature_c = card.ambient_c + card.idle_w * card.warming_k_per_w
        self.is_lost = self.is_renumbered = False
        self.setters: list[tuple[str, object]] = []
        """Every setting that was asked for, as evidence."""
        self._now_s = now_s
        self._settled_s = now_s
        self._queue: deque[Work] = deque()
        self._numbers = 0
        self.last_done_s = now_s
        self._began_s = now_s
        """Samples, renewals and looks at the temperature are whole periods after it."""
        self._pieces = deque([_Piece(now_s, card.idle_w, card.idle_w, 0.0)])
        self._next_look_s = now_s + _WARMING_S
        self._next_fault_s: float | None = None
        self.f, self.reasons = 0.0, 1
        self._at_cap = self._thermal = self._brake = self._is_hot = False
        self._leakage = self._leakage_now()
        self._seed = seed * 1009 + index
        self._random = random.Random(self._seed)

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

    def train(
        self, network: Network, iterations: int = 1, *, cards: int = 1, time_noise: float = 0.0, noise: float = 0.0
    ) -> Run:
        """Train in virtual time, from now to the end. ``time_noise`` and ``noise`` are the relative standard deviations
        of a run's seconds and joules, which are drawn independently."""
        slower, more = (1.0 + sigma * self._random.gauss(0.0, 1.0) for sigma in (time_noise, noise))
        begin_s, begin_j = self._now_s, self.truth.energy_j
        each = max(1, round(_GRAIN_S / network.time_s * cards))
        for first in range(0, iterations, each):
            work = work_of(network, min(each, iterations - first) * slower, cards=cards)
            self.submit(replace(work, draw=more / slower))
        while self._queue:
            self._step(self._now_s + _GRAIN_S)
        return Run(self._now_s - begin_s, self.truth.energy_j - begin_j)

    def next_change_s(self) -> float:
        """When its first work is done as things are now, or something changes before that."""
        moments = [self._now_s + self._left_s(work, self._f(work.busy_w)[0]) for work in list(self._queue)[:1]]
        moments += [self._next_look_s] if self._queue else []
        return min([*moments, *(m for m in (self._settled_s, self._next_fault_s) if m is not None and m > self._now_s)])

    def _left_s(self, work: Work, f: float) -> float:
        return work.wait_s + work.core_s / f + work.memory_s / self._g + work.exchange_s

    # GpuSettings.

    @property
    def enforced_w(self) -> float:
        least, _, greatest = self.card.limits_w
        out_of_band_w = max(least, 0.8 * self.set_to.limit_w) if "override" in self.faults else greatest
        return min(self.set_to.limit_w, out_of_band_w)

    def change(self, name: str, value: object) -> None:
        """A setter of the driver. Raises `Refusal`."""
        self.setters.append((name, value))
        if self.has_fault("no-permission", name):
            raise Refusal(NO_PERMISSION)
        if self.has_fault("not-supported", name):
            raise Refusal(NOT_SUPPORTED)
        if not self.has_fault("ignore", name):
            if name == "limit_w" and "clamp" in self.faults:
                value = (self.set_to.limit_w + float(value)) / 2  # type: ignore[arg-type]
            setattr(self.set_to, name, value)
        self._settled_s = self._now_s + self.card.settle_s
        if self.faults & {"other-client", "driver-reload", "renumbered", "lost"}:
            self._next_fault_s = self._now_s + FAULT_AFTER_S

    def has_fault(self, fault: str, name: str) -> bool:
        """Whether a setting of that name has the fault."""
        return fault in self.faults or any(
            setting == name and f"{fault}:{knob}" in self.faults for knob, setting in KNOBS.items()
        )

    def reload(self) -> None:
        """The driver is loaded anew: settings and counters are gone."""
        self.set_to = GpuSettings(self.card.limits_w[1])
        self.in_force = GpuSettings(self.card.limits_w[1])
        self.loaded = replace(self.truth)

    # What the driver tells.

    @property
    def samples(self) -> list[tuple[float, float]]:
        """The driver's buffer: instants and watts, oldest first."""
        last = self._periods(SAMPLE_S)
        numbers = range(max(1, last - SAMPLES + 1), last + 1)
        instants = [self._began_s + n * SAMPLE_S for n in numbers]
        shown, pieces, at = [], list(self._pieces), 0
        for n, t_s in zip(numbers, instants, strict=True):
            while at + 1 < len(pieces) and pieces[at + 1].begin_s <= t_s:
                at += 1
            shown.append((t_s, self._read(pieces[at].shown_at(t_s), n)))
        return shown

    @property
    def instant_w(self) -> float:
        """Power as it was last renewed."""
        t_s = self._renewed_s
        return self._read(self._piece_at(t_s).shown_at(t_s), -self._periods(RENEWAL_S))

    @property
    def average_w(self) -> float:
        """Mean power of the second before the last renewal."""
        end_s = self._renewed_s
        begin_s = max(end_s - 1.0, self._began_s)
        if begin_s >= end_s:
            return self._pieces[0].power_w
        return (self._piece_at(end_s).energy_at(end_s) - self._piece_at(begin_s).energy_at(begin_s)) / (end_s - begin_s)

    @property
    def energy_mj(self) -> int:
        """The driver's counter since it was loaded, as it was last renewed."""
        t_s = self._renewed_s
        return max(0, round(1e3 * (self._piece_at(t_s).energy_at(t_s) - self.loaded.energy_j)))

    @property
    def _renewed_s(self) -> float:
        return self._began_s + self._periods(RENEWAL_S) * RENEWAL_S

    def _periods(self, period_s: float) -> int:
        return floor((self._now_s - self._began_s) / period_s + 1e-9)

    def _piece_at(self, t_s: float) -> _Piece:
        return next((piece for piece in reversed(self._pieces) if piece.begin_s <= t_s), self._pieces[0])

    def _read(self, power_w: float, number: int) -> float:
        """With the noise of this reading, which is the same whenever it is asked for."""
        if not self.noise:
            return power_w
        return power_w * (1.0 + self.noise * random.Random(f"{self._seed} {number}").gauss(0.0, 1.0))

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
        if self._is_hot:
            slowed, reasons = min(most, _SLOWED_F), 0x20
        elif "brake" in self.faults:
            slowed, reasons = min(most, _SLOWED_F), 0x80
        f = clock_at(self.card, u * self._leakage, self.in_force.limit_w, f_most=slowed, g=self._g)
        return f, 0x4 if f < slowed else reasons

    def _leakage_now(self) -> float:
        return 1.0 + self.card.leakage_per_k * (self.temperature_c - 60.0)

    def _look(self) -> None:
        """Leakage and throttling follow the temperature. With the fault *thermal* cooling has failed."""
        if "thermal" in self.faults:
            self.temperature_c = max(self.temperature_c, self.card.slowdown_c + 1.0)
        self._is_hot = self.temperature_c > self.card.slowdown_c - (_COOLER_K if self._is_hot else 0.0)
        self._leakage = self._leakage_now()

    def advance(self, to_s: float) -> None:
        """Go on to that time."""
        while self._now_s < to_s - 1e-12:
            self._step(to_s)

    def _step(self, to_s: float) -> None:
        """Go on to that time, or to where something changes before it."""
        if self._now_s >= self._settled_s:
            self._obey()
        if self._now_s >= self._next_look_s or ("thermal" in self.faults and not self._is_hot):
            self._look()
            self._next_look_s = self._began_s + (self._periods(_WARMING_S) + 1) * _WARMING_S
        for moment in (self._settled_s, self._next_fault_s, self._next_look_s):
            if moment is not None and self._now_s < moment < to_s:
                to_s = moment
        work = self._queue[0] if self._queue else None
        piece_s, power_w = self._work(work, to_s - self._now_s)
        self._account(piece_s, power_w * (work.draw if work is not None else 1.0))
        self._now_s = to_s if piece_s == to_s - self._now_s else self._now_s + piece_s
        if work is not None and self._left_s(work, 1.0) < 1e-9:
            work.done_s = self.last_done_s = self._now_s
            self._queue.popleft()
        if self._next_fault_s is not None and self._now_s >= self._next_fault_s:
            self._next_fault_s = None
            self._strike()

    def _obey(self) -> None:
        s = self.set_to
        self.in_force = GpuSettings(self.enforced_w, s.core_mhz, s.memory_mhz, s.applications_mhz)

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
        truth, last = self.truth, self._pieces[-1]
        if power_w != last.power_w:
            now_s = self._now_s
            self._pieces.append(_Piece(now_s, power_w, last.shown_at(now_s), truth.energy_j))
            while self._pieces[1].begin_s < now_s - _REMEMBERED_S:
                self._pieces.popleft()
        truth.energy_j += power_w * piece_s
        truth.time_s += piece_s
        truth.at_cap_s += piece_s * self._at_cap
        truth.thermal_s += piece_s * self._thermal
        truth.brake_s += piece_s * self._brake
        settled_c = self.card.ambient_c + self.card.warming_k_per_w * power_w
        if "thermal" in self.faults:
            settled_c = max(settled_c, self.card.slowdown_c + 1.0)
        self.temperature_c += (settled_c - self.temperature_c) * (1.0 - exp(-piece_s / self.card.warming_s))

    def _strike(self) -> None:
        """The fault that was planned by the last setting."""
        if "other-client" in self.faults:
            least, _, greatest = self.card.limits_w
            self.set_to.limit_w = round((least + greatest) / 2) + 7.0
        if "driver-reload" in self.faults:
            self.reload()
        self.is_renumbered = "renumbered" in self.faults
        self.is_lost = self.is_lost or "lost" in self.faults
        self._obey()


@dataclass(slots=True)
class SimulatedNode:
    """The cards of a machine, which share one clock, and what the machine draws beside them."""

    gpus: list[SimulatedGpu] = field(default_factory=list)
    machine: Machine = field(default_factory=Machine)
    loads: int = 0
    """How often the driver was loaded anew for all of them: handles of before are invalid."""

    def advance(self, to_s: float) -> None:
        for gpu in self.gpus:
            gpu.advance(to_s)
        if any(gpu.is_renumbered for gpu in self.gpus):
            self.load(self.gpus[1:] + self.gpus[:1])

    def load(self, gpus: list[SimulatedGpu]) -> None:
        """Load the driver anew, which finds these cards in this order: settings, counters and handles are gone."""
        self.gpus, self.loads = gpus, self.loads + 1
        for index, gpu in enumerate(gpus):
            gpu.index, gpu.is_renumbered = index, False
            gpu.reload()

    @property
    def wall_j(self) -> float:
        """What a meter at the wall has counted: cards, all else, and the loss of the power supplies."""
        cards_j = sum(gpu.truth.energy_j for gpu in self.gpus)
        time_s = max((gpu.truth.time_s for gpu in self.gpus), default=0.0)
        return (1.0 + self.machine.loss) * (self.machine.floor_w * time_s + cards_j)

    def train(self, network: Network, iterations: int = 1, *, cards: int = 1, noise: float = 0.0) -> Run:
        """Train on the first cards, in virtual time, while the others rest. The joules are those at the wall."""
        begin_s, begin_j = max(gpu.now_s for gpu in self.gpus), self.wall_j
        self.advance(begin_s)
        for gpu in self.gpus[:cards]:
            gpu.train(network, iterations, cards=cards, time_noise=noise, noise=noise)
        end_s = max(gpu.now_s for gpu in self.gpus)
        self.advance(end_s)
        return Run(end_s - begin_s, self.wall_j - begin_j)


def work_of(network: Network, iterations: float = 1.0, *, cards: int = 1) -> Work:
    """One card's share of so many iterations of a training on several."""
    kernels_s = (1.0 - network.waiting) * network.time_s * iterations / cards
    return Work(
        wait_s=network.waiting * network.time_s * iterations / cards,
        core_s=kernels_s * (1.0 - network.memory),
        memory_s=kernels_s * network.memory,
        busy_w=network.busy_w,
        exchange_s=(network.communication_s or {}).get(cards, 0.0) * iterations,
    )


def check_faults(names: Set[str]) -> set[str]:
    """Raises `ConfigError`, which lists what there is."""
    known = {*FAULTS, *(f"{fault}:{knob}" for fault in OF_A_KNOB for knob in KNOBS)}
    if unknown := names - known:
        knobs = f"; {', '.join(OF_A_KNOB)} also of one knob, as {OF_A_KNOB[0]}:{min(KNOBS)}"
        raise ConfigError(f"there is no fault {min(unknown)!r}: there are {', '.join(FAULTS)}{knobs}")
    return set(names)
