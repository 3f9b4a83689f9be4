"""Power and speed of a GPU under a power cap and clocks: the smallest form that meets published sweeps.

With the core clock ``f`` as a share of the greatest, the memory clock ``g`` likewise, and an iteration that takes
``T`` seconds at full clocks, of which a share ``w`` is waiting (host, data, gaps between kernels) and of the rest a
share ``m`` is bound by the memory:

    t(f, g)   = T (w + (1 - w) ((1 - m) / f + m / g))         time of an iteration
    V(f)      = 1 + kv max(0, f - fk)^2                       voltage: it has a floor below the knee fk
    P_busy(f) = P0 + u f V(f)^2 / V(1)^2 - pm (1 - g)         power while kernels run; u is the network's
    mean P    = (w T P_wait + (t - w T) P_busy) / t           waiting does not get slower with the clock
    a cap c   : the greatest f with P_busy(f) <= c            the card dithers between two steps of its clock

Without the waiting share the published sweeps are missed by 5 % rms, 29 % at worst: a cap binds in the bursts of a
network whose mean power is far below it. The form, its constants for one card and the four numbers of each network were
fitted to Table 2 of Krzywaniak, Czarnul and Proficz (ICCS 2022).

Several cards add communication, in which a card neither works nor rests (`Network.communication_s` and
`Card.communication_w`), cards that rest, a floor of the machine, and the loss of its power supplies:

    wall power = (1 + loss) (floor + n P_card + (N - n) P_idle)

Nothing here reads a clock or draws a number by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Card:
    """A model of a GPU: what it draws, how fast it may run, and what its driver takes."""

    name: str
    architecture: int
    """nvmlDeviceArchitecture_t: 4 Pascal, 5 Volta, 6 Turing, 7 Ampere, 9 Hopper."""
    floor_w: float
    """P0: while kernels run, at any clock."""
    knee: float
    """fk, of the greatest clock."""
    voltage: float
    """kv."""
    wait_w: float
    """P_wait: between kernels."""
    idle_w: float
    """When nobody uses it."""
    core_mhz: tuple[int, ...]
    """Clocks that the driver lists, rising. The last is f = 1."""
    memory_mhz: tuple[int, ...]
    """Likewise; the last is g = 1."""
    limits_w: tuple[float, float, float]
    """Least, default and greatest power limit."""
    flops: float
    """At full clock, in single precision."""
    bytes_per_s: float
    """Of the memory, at full clock."""
    work_w: float = 190.0
    """u of work that states none."""
    memory_w: float = 20.0
    """pm: what the memory draws less at g = 0, continued."""
    communication_w: float = 90.0
    """While it exchanges gradients."""
    ambient_c: float = 30.0
    warming_k_per_w: float = 0.18
    warming_s: float = 30.0
    """Time constant of its temperature."""
    slowdown_c: float = 88.0
    """Above it the driver takes clock away."""
    leakage_per_k: float = 0.0006
    """Share of the power that a kelvin above 60 degrees adds."""
    settle_s: float = 0.05
    """How long a new limit or clock takes to be obeyed."""

    @property
    def least_f(self) -> float:
        return self.core_mhz[0] / self.core_mhz[-1]


@dataclass(frozen=True, slots=True)
class Network:
    """A training on a card: its four numbers, and communication by the number of cards."""

    busy_w: float
    """u: what its kernels add to the floor at full clock."""
    waiting: float
    """w, of an iteration's time at full clocks."""
    memory: float
    """m, of what is not waiting."""
    time_s: float = 1.0
    """T, at full clocks on one card."""
    communication_s: Mapping[int, float] | None = None
    """By number of cards: what an iteration adds for exchanging gradients."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine draws beside its cards."""

    slots: int = 1
    """N: cards in it, working or not."""
    floor_w: float = 0.0
    """Processors, memory and fans."""
    loss: float = 0.0
    """Of the power supplies, as a share of what they deliver."""

    def wall_w(self, cards_w: float) -> float:
        """What a meter at the wall shows while all cards together draw ``cards_w``."""
        return (1.0 + self.loss) * (self.floor_w + cards_w)


@dataclass(frozen=True, slots=True)
class Operation:
    """How a card, or a machine of cards, runs a network at a setting."""

    f: float
    time_s: float
    power_w: float
    """The mean over an iteration."""
    at_cap: float
    """Share of the time in which the cap holds the clock back."""

    @property
    def energy_j(self) -> float:
        return self.power_w * self.time_s


def voltage(card: Card, f: float) -> float:
    """Relative to that below the knee."""
    return 1.0 + card.voltage * max(0.0, f - card.knee) ** 2


def busy_w(card: Card, u: float, f: float, g: float = 1.0) -> float:
    """Power while kernels run, at a core clock ``f`` and a memory clock ``g``."""
    return card.floor_w + u * f * (voltage(card, f) / voltage(card, 1.0)) ** 2 - card.memory_w * (1.0 - g)


def clock_at(card: Card, u: float, cap_w: float, *, f_most: float = 1.0, g: float = 1.0) -> float:
    """The greatest clock, at most ``f_most``, at which kernels of ``u`` stay within a cap; the least clock of the card
    where none does. Continuous: a card dithers between two steps."""
    f, target_w = f_most, cap_w - card.floor_w + card.memory_w * (1.0 - g)
    scale = u / voltage(card, 1.0) ** 2
    if scale * f * voltage(card, f) ** 2 <= target_w:
        return f
    # Newton's method from above: the power is convex in the clock, so no step goes below the root.
    for _ in range(50):
        v = voltage(card, f)
        slope = scale * v * (v + 4.0 * f * card.voltage * max(0.0, f - card.knee))
        step = (scale * f * v * v - target_w) / slope
        f -= step
        if f <= card.least_f:
            return card.least_f
        if step < 1e-13:
            break
    return f


def operate(
    card: Card, network: Network, cap_w: float, *, f_most: float = 1.0, g: float = 1.0, cards: int = 1
) -> Operation:
    """An iteration at a cap, with the core clock at most ``f_most`` and the memory clock ``g``. On several cards each
    does its share of the iteration and exchanges gradients; the power is that of one card."""
    f = clock_at(card, network.busy_w, cap_w, f_most=f_most, g=g)
    waiting_s = network.waiting * network.time_s / cards
    full_s = (1.0 - network.waiting) * network.time_s / cards
    busy_s = full_s * ((1.0 - network.memory) / f + network.memory / g)
    exchange_s = (network.communication_s or {}).get(cards, 0.0)
    power_w = busy_w(card, network.busy_w, f, g)
    energy_j = waiting_s * card.wait_w + busy_s * power_w + exchange_s * card.communication_w
    time_s = waiting_s + busy_s + exchange_s
    return Operation(f, time_s, energy_j / time_s, busy_s / time_s if f < f_most else 0.0)


def operate_machine(
    machine: Machine, card: Card, network: Network, cap_w: float, *, f_most: float = 1.0, g: float = 1.0, cards: int = 1
) -> Operation:
    """An iteration on ``cards`` of a machine's cards, all at one cap, while the others rest. The power is that at the
    wall."""
    at = operate(card, network, cap_w, f_most=f_most, g=g, cards=cards)
    resting_w = (machine.slots - cards) * card.idle_w
    return Operation(at.f, at.time_s, machine.wall_w(cards * at.power_w + resting_w), at.at_cap)


def steps(card: Card, f: float) -> tuple[int, int, float]:
    """Two listed clocks in MHz around a continuous one, and the share of the time in the upper: how a card dithers."""
    mhz = f * card.core_mhz[-1]
    upper = next((clock for clock in card.core_mhz if clock >= mhz - 1e-6), card.core_mhz[-1])
    lower = max((clock for clock in card.core_mhz if clock <= mhz + 1e-6), default=card.core_mhz[0])
    return lower, upper, (mhz - lower) / (upper - lower) if upper > lower else 0.0


def _clocks(least: int, greatest: int, step: int) -> tuple[int, ...]:
    return tuple(range(greatest, least - 1, -step))[::-1]


RTX_6000 = Card(
    name="Quadro RTX 6000",
    architecture=6,
    floor_w=67.5,
    knee=0.448,
    voltage=1.025,
    wait_w=21.7,
    idle_w=15.0,
    core_mhz=_clocks(300, 2100, 15),
    memory_mhz=(405, 810, 5001, 6501, 7001),
    limits_w=(100.0, 260.0, 260.0),
    flops=16.3e12,
    bytes_per_s=672e9,
    communication_w=41.0,
)
"""Constants fitted to Krzywaniak et al., Table 2; the rest from the data sheet and by sight. Its power while it
communicates: see `XCEPTION`."""

V100 = Card(
    name="Tesla V100-PCIE-16GB",
    architecture=5,
    floor_w=46.7,
    knee=0.580,
    voltage=2.471,
    wait_w=28.8,
    idle_w=25.0,
    core_mhz=tuple(15 * n // 2 for n in range(18, 185)),
    memory_mhz=(877,),
    limits_w=(100.0, 250.0, 250.0),
    flops=14.1e12,
    bytes_per_s=900e9,
)
"""Fitted to twelve trainings at seven limits, public traces of Zeus (NSDI 2023): half of the powers and times within
1.1 %, 2.5 % rms. The clocks are steps of 7.5 MHz, cut."""
V100_SXM2 = replace(
    V100,
    name="Tesla V100-SXM2-16GB",
    core_mhz=tuple(15 * n // 2 for n in range(18, 205)),
    limits_w=(150.0, 300.0, 300.0),
    flops=15.7e12,
)
"""The V100 with another range of limits and clocks; its constants are those of the one with PCI Express."""
P100 = Card(
    name="Tesla P100-PCIE-16GB",
    architecture=4,
    floor_w=31.7,
    knee=0.509,
    voltage=0.955,
    wait_w=25.5,
    idle_w=26.0,
    core_mhz=tuple(int(12.65625 * n) for n in range(43, 106)),
    memory_mhz=(715,),
    limits_w=(125.0, 250.0, 250.0),
    flops=9.5e12,
    bytes_per_s=732e9,
)
"""Fitted likewise, at six limits: half within 0.6 %, 2.4 % rms. It has application clocks and no locked ones."""
H100 = Card(
    name="H100 80GB HBM3",
    architecture=9,
    floor_w=130.0,
    knee=0.55,
    voltage=1.6,
    wait_w=95.0,
    idle_w=70.0,
    core_mhz=_clocks(345, 1980, 15),
    memory_mhz=(1593, 2619),
    limits_w=(200.0, 700.0, 700.0),
    flops=60e12,
    bytes_per_s=3350e9,
    work_w=560.0,
    memory_w=60.0,
    communication_w=250.0,
    warming_k_per_w=0.06,
)
"""Range, clocks and idle power as one H100 tells them; the rest by sight, so that matrix products at the default limit
run at two thirds of the clock, as they do there."""
RTX_2080_TI = replace(
    RTX_6000,
    name="GeForce RTX 2080 Ti",
    core_mhz=(300, 950, 1150, 1350, 1550, 1750, 1950),
    memory_mhz=(5800, 6300, 6800, 7300),
    limits_w=(100.0, 250.0, 280.0),
    flops=13.4e12,
    bytes_per_s=616e9,
)
"""The same chip as the RTX 6000, with the clocks of Tang et al. (2019). A real one moves its memory clock by offsets
alone, which no helper of ours touches."""

CARDS: dict[str, Card] = {
    "rtx6000": RTX_6000,
    "v100": V100,
    "v100-sxm2": V100_SXM2,
    "p100": P100,
    "h100": H100,
    "rtx2080ti": RTX_2080_TI,
}
"""By the name that `powerd sim-gpu --card` takes."""

NETWORKS: dict[str, Network] = {
    "alexnet": Network(167.0, 0.554, 0.632),
    "vgg19": Network(187.0, 0.090, 0.526),
    "inception3": Network(188.0, 0.130, 0.588),
    "inception4": Network(188.0, 0.084, 0.571),
    "resnet50": Network(189.0, 0.174, 0.593),
    "resnet152": Network(327.0, 0.122, 0.800),
}
"""On the RTX 6000 at batch 128 (64 for Inception V4 and ResNet-152), fitted to Krzywaniak et al., Table 2. The time of
an iteration is left at 1 s: `timed` gives it another."""


XCEPTION = Network(200.0, 0.01, 0.58, 421.5, {2: 16.0, 4: 22.0, 8: 32.6})
EIGHT_CARDS = Machine(slots=8, floor_w=250.0, loss=0.08)
"""The training and the machine of Koszczal et al. (Euro-Par 2023 Workshops): eight RTX 6000. Times on 1, 2, 4 and 8
cards at 260 W are those that can be read there. The other numbers were chosen so that its best caps for eight cards
come out, and 170 W costs eight cards 8.5 % of time (printed: 9.35). What is saved grows with the number of cards as
there, and is not the same: 3.5, 9.7, 16.8 and 21.6 per cent, where 3, 5.5, 11.5 and 25 are printed."""


def timed(network: Network, time_s: float) -> Network:
    """The same training with iterations of another length, communication in proportion."""
    longer = time_s / network.time_s
    communication_s = {cards: s * longer for cards, s in (network.communication_s or {}).items()}
    return replace(network, time_s=time_s, communication_s=communication_s or None)
