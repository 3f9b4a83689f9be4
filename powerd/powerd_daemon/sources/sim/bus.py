"""Chips of the INA family at their registers, their I2C bus, faults by a seeded schedule, and the clocks of all that.

A chip has pointer, read-only bits, reset values, and conversions on its own clock. A transaction of the bus takes its
clock periods, and an absent chip does not acknowledge.

A chip's shunt codes are the true averages of the load over the conversions' windows. Nothing here knows about the
driver: only the tables of `powerd_daemon.sources.ina.chips`, which come from the data sheets, are shared. What the
driver never uses is left out: current and power, alerts, running averages (INA3221), triggered conversions.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from powerd_daemon.clock import Clock
from powerd_daemon.sources.ina.bus import BUS_FREE_PERIODS, FUNC_I2C, WRITE_PERIODS, Read, ReadWords, split
from powerd_daemon.sources.ina.chips import (
    AVERAGES,
    CNVR,
    CONFIG,
    INA219,
    INA226,
    RST,
    Adc,
    ChipSettings,
    ChipType,
    chip_type,
)

_WRITABLE: dict[str, dict[int, int]] = {
    "INA219": {CONFIG: 0x3FFF},
    "INA226": {CONFIG: 0x0FFF, 7: 0xFFFF},
    "INA228": {CONFIG: 0x3FF0, 1: 0xFFFF},
    "INA3221": {CONFIG: 0x7FFF, 0x0E: 0xFFFE},
}
"""The bits of each register that a write changes, of the registers that the driver writes."""
POWER = 3
"""Register of the INA219; reading it clears CNVR."""
_COUNTS = {code: n for n, code in AVERAGES.items()}


@dataclass(frozen=True, slots=True)
class ChipErrors:
    """How one chip and its shunt deviate from their nominal values, relative where no unit is named."""

    current_gain: float = 0.0
    bus_gain: float = 0.0
    offset_v: float = 0.0
    """Zero error of the shunt voltage."""
    shunt_gain: float = 0.0
    clock: float = 0.0
    """Conversions take this much longer."""
    bus_offset_v: float = 0.0


def draw_errors(
    random: Random, settings: ChipSettings, *, grade: str = "", shunt_tolerance: float = 0.01, exact: bool = False
) -> ChipErrors:
    """Errors drawn evenly between the limits of the data sheet; ``exact`` leaves only the clock's."""
    limits = settings.grade(grade)
    clock, current, bus, offset, shunt, bus_offset = (random.uniform(-1, 1) for _ in range(6))
    clock *= settings.type.clock_tolerance
    if exact:
        return ChipErrors(clock=clock)
    return ChipErrors(
        current * limits.current_gain,
        bus * limits.bus_gain,
        offset * limits.offset_v[settings.shunt_range],
        shunt * shunt_tolerance,
        clock,
        bus_offset * limits.bus_offset_v,
    )


@dataclass(frozen=True, slots=True)
class Load:
    """What one channel measures; ``mean_a`` is the average current between two times of the board's clock."""

    mean_a: Callable[[int, int], float]
    bus_v: float
    shunt_ohm: float


NO_LOAD = Load(lambda _begin_ns, _end_ns: 0.0, 0.0, 1.0)


class SimChip:
    """One chip with the shunts and supplies of its channels, which converts shunt and bus for ever. All times are the
    board clock's, and must not go back.

    INA219 and INA3221 give each register its value when that conversion ends; the others do so when all averages are
    complete. Where a resolution below the full one is set, the codes are coarser by as many bits.
    """

    def __init__(
        self, chip: str | ChipType, loads: Sequence[Load], *, errors: ChipErrors = ChipErrors(), t_ns: int = 0
    ) -> None:
        self.type = chip if isinstance(chip, ChipType) else chip_type(chip)
        self._errors, self._ready = errors, False
        self._loads = [*loads, *[NO_LOAD] * (len(self.type.channels) - len(loads))]
        self.reset(t_ns)

    def reset(self, t_ns: int) -> None:
        """Power-on reset, as by the supply or by writing RST."""
        self._pointer = 0
        self._registers = {**self.type.resets, **{register: value for register, value, _ in self.type.identity}}
        self._shunt = [0] * len(self.type.channels)
        self._bus = [0] * len(self.type.channels)
        self._configure(t_ns)

    def select(self, pointer: int) -> None:
        """Set the pointer; it is kept for all further reads."""
        self._pointer = pointer & (7 if self.type.name == "INA219" else 0xFF)

    def size_of(self) -> int:
        """Bytes of the register under the pointer."""
        return self.type.code_bytes if any(self._pointer in pair for pair in self.type.channels) else 2

    def read_word(self, t_ns: int) -> int:
        """The register under the pointer, unsigned, as the chip shifts it out at ``t_ns``."""
        self._convert(t_ns)
        is_ina219 = self.type.name == "INA219"
        for i, (shunt, bus) in enumerate(self.type.channels):
            if self._pointer == shunt:
                return self._shunt[i] & ((1 << 8 * self.type.code_bytes) - 1)
            if self._pointer == bus:
                return self._bus[i] << self.type.bus_shift | (CNVR if is_ina219 and self._ready else 0)
        if is_ina219 and self._pointer == POWER:
            self._ready = False
        return self._registers.get(self._pointer, 0)

    def write_word(self, register: int, word: int, t_ns: int) -> None:
        """Set the pointer and write; registers that are read-only ignore it."""
        self._convert(t_ns)
        self.select(register)
        if register == CONFIG and word & RST:
            self.reset(t_ns)
        elif mask := _WRITABLE[self.type.name].get(register, 0):
            self._registers[register] = word & mask | self._registers[register] & ~mask
            if register == CONFIG or (register == 1 and self.type.name == "INA228"):
                self._configure(t_ns)

    def _configure(self, t_ns: int) -> None:
        """Begin to convert as the registers say."""
        kind, word = self.type, self._registers[CONFIG]
        average = shunt_range = bus_range = 0
        channels = [0]
        match kind.name:
            case "INA219":
                shunt, bus = word >> 3 & 15, word >> 7 & 15
                shunt_range, bus_range = word >> 11 & 3, word >> 13 & 1
            case "INA228":
                adc = self._registers[1]
                shunt, bus, average, shunt_range = adc >> 6 & 7, adc >> 9 & 7, adc & 7, word >> 4 & 1
            case _:
                shunt, bus, average = word >> 3 & 7, word >> 6 & 7, word >> 9 & 7
                if kind.name == "INA3221":
                    channels = [c for c in range(3) if word >> (14 - c) & 1]
        self._averages, self._channels = _COUNTS[average], channels
        self._shunt_adc, self._bus_adc = _find_adc(kind, shunt), _find_adc(kind, bus)
        slower = 1 + self._errors.clock
        self._shunt_ns = round(self._shunt_adc.conversion_ns * slower)
        self._one_ns = self._shunt_ns + round(self._bus_adc.conversion_ns * slower)
        self._range = next(r for r in kind.shunt_ranges.values() if r.code == shunt_range)
        self._bus_full_scale = next(r.full_scale for r in kind.bus_ranges.values() if r.code == bus_range)
        self._cycle_ns = max(len(channels), 1) * self._averages * self._one_ns
        """Distance of two codes of a channel."""
        self._since_ns, self._cycles, self._ready = t_ns, 0, False
        self._shunts, self._buses = [0] * len(channels), [0] * len(channels)

    def _convert(self, t_ns: int) -> None:
        """Bring the registers up to what was converted until ``t_ns``."""
        cycles, rest_ns = divmod(max(t_ns - self._since_ns, 0), self._cycle_ns)
        if cycles > self._cycles:
            self._cycles, self._ready = cycles, True
        for k, channel in enumerate(self._channels):
            of_this_ns = rest_ns - k * self._one_ns if self.type.renews_at_once else -1
            shunts, buses = cycles + (of_this_ns >= self._shunt_ns), cycles + (of_this_ns >= self._one_ns)
            load = self._loads[channel]
            if shunts > self._shunts[k]:
                self._shunts[k] = shunts
                begin_ns = self._since_ns + (shunts - 1) * self._cycle_ns + k * self._one_ns
                begins_ns = [begin_ns + n * len(self._channels) * self._one_ns for n in range(self._averages)]
                mean_a = sum(load.mean_a(t_ns, t_ns + self._shunt_ns) for t_ns in begins_ns) / self._averages
                self._shunt[channel] = self._shunt_code(load, mean_a)
            if buses > self._buses[k]:
                self._buses[k] = buses
                self._bus[channel] = self._bus_code(load.bus_v)

    def _shunt_code(self, load: Load, current_a: float) -> int:
        e, r = self._errors, self._range
        shunt_v = (current_a * load.shunt_ohm * (1 + e.shunt_gain) + e.offset_v) * (1 + e.current_gain)
        bits = self._shunt_adc.bits_lost + {"INA228": 4, "INA3221": 3}.get(self.type.name, 0)
        return min(max(_quantise(shunt_v / r.lsb_v, bits), -r.full_scale), r.full_scale)

    def _bus_code(self, steady_v: float) -> int:
        bus_v = steady_v * (1 + self._errors.bus_gain) + self._errors.bus_offset_v if steady_v else 0.0
        return min(max(_quantise(bus_v / self.type.bus_lsb_v, self._bus_adc.bits_lost), 0), self._bus_full_scale)


def _quantise(code: float, bits: int) -> int:
    return round(code / (1 << bits)) << bits


def _find_adc(kind: ChipType, code: int) -> Adc:
    """The converter setting behind a code; several codes of the INA219 mean the same."""
    if kind.name == "INA219":
        code = code & 3 if not code & 8 else 3 if code == 8 else code
    return next(a for a in kind.adc.values() if a.code == code)


# -- the bus -----------------------------------------------------------------------------------------------------------

STUCK_NS = 20_000_000
NACK_PERIODS = 11
"""Start, address without acknowledgement, stop."""
KINDS = ("nack", "eio", "stuck", "brown-out", "wrong-device", "latency", "dead")
"""Faults: no acknowledgement; a failed transfer; SDA held low; a reset; another chip in its place for a while; a
transfer that begins late; a chip that is gone for seconds."""


class VirtualClock:
    """A `powerd_daemon.clock.Clock` that moves only when somebody sleeps: hours of measurement in seconds, and no test
    that waits. Its wall clock runs ``wall_offset_ns`` ahead of the monotonic one."""

    def __init__(self, t_ns: int = 1_000_000_000, wall_offset_ns: int = 1_700_000_000_000_000_000) -> None:
        self.t_ns = t_ns
        self.wall_offset_ns = wall_offset_ns

    def now_ns(self) -> int:
        return self.t_ns

    def wall_ns(self) -> int:
        return self.t_ns + self.wall_offset_ns

    def sleep_until(self, t_ns: int) -> None:
        self.t_ns = max(self.t_ns, t_ns)


class SimulationClock(VirtualClock):
    """The time of a simulated board, which is never ahead of ``real``: however late this machine runs the simulation,
    its board is late for nothing."""

    def __init__(self, real: Clock) -> None:
        super().__init__(real.now_ns(), real.wall_ns() - real.now_ns())
        self._real = real

    def sleep_until(self, t_ns: int) -> None:
        super().sleep_until(t_ns)
        self._real.sleep_until(self.t_ns)


class SimBus:
    """A `powerd_daemon.sources.ina.bus.RegisterBus` in the time that a bus at ``scl_hz`` would take.

    ``before`` is called with the end of each transaction before its registers are worked out. ``combines`` is what
    bcm2835 cannot do.
    """

    functions = FUNC_I2C

    def __init__(
        self,
        clock: Clock,
        chips: Mapping[int, SimChip],
        *,
        scl_hz: float = 400_000.0,
        before: Callable[[int], None] | None = None,
        combines: bool = True,
    ) -> None:
        self.chips = dict(chips)
        self.combines = combines
        self.trouble: Faults | None = None
        self.periods = 0.0
        """SCL periods for which the bus was busy so far."""
        self.stuck_until_ns = 0
        """Until then nothing is acknowledged, after `STUCK_NS` each."""
        self.delay_ns = 0
        """The next transaction begins so much later."""
        self.clock, self._before = clock, before
        self._scl_ns = 1e9 / scl_hz
        self._free_ns = 0
        self._faults: dict[int, tuple[int, int]] = {}

    def fail(self, address: int, transfers: int, error: int = errno.EREMOTEIO) -> None:
        """Let the next ``transfers`` words that are asked of a chip or sent to it fail."""
        self._faults[address] = transfers, error

    def brown_out(self, address: int) -> None:
        """Reset a chip as a dip of its supply does."""
        self.chips[address].reset(self.clock.now_ns())

    def prepare(self, reads: Sequence[Read]) -> ReadWords:
        parts = []
        for part in split(reads):
            ends = accumulate(read.periods for read in part)
            # The word that is shifted out is fixed when the chip acknowledges its address for reading.
            parts.append([(r, end, int((end - 9 * r.size) * self._scl_ns)) for r, end in zip(part, ends, strict=True)])

        def call() -> bytes:
            if not self.combines and max(map(len, parts)) > 1:
                raise OSError(errno.EOPNOTSUPP, "the adapter cannot combine reads")
            return b"".join([self._read(part) for part in parts])

        return call

    def _read(self, reads: Sequence[tuple[Read, int, int]]) -> bytes:
        """One transaction of reads, each with the period at which it ends and when its word is fixed."""
        self._meet_trouble()
        refusal, good = None, reads
        for i, (read, _, _) in enumerate(reads):
            if (self._faults or read.address not in self.chips) and (refusal := self._refusal(read.address)):
                good = reads[:i]
                break
        start_ns = self._begin((good[-1][1] if good else 0) + (NACK_PERIODS if refusal else 1))
        words = []
        for read, _, latch_ns in good:
            chip = self.chips[read.address]
            if read.register is not None:
                chip.select(read.register)
            word, own = chip.read_word(start_ns + latch_ns), chip.size_of()
            # A narrower register than asked for is followed by ones: nobody pulls the line down.
            word = word << 8 | 0xFF if own < read.size else word >> 8 * (own - read.size)
            words.append(word.to_bytes(read.size, "big"))
        if refusal is not None:
            raise refusal
        return b"".join(words)

    def write_word(self, address: int, register: int, word: int) -> None:
        self._meet_trouble()
        refusal = self._refusal(address)
        self._begin(NACK_PERIODS if refusal else WRITE_PERIODS)
        if refusal is not None:
            raise refusal
        self.chips[address].write_word(register, word, self.clock.now_ns())

    def _meet_trouble(self) -> None:
        now_ns = self.clock.now_ns()
        if self.trouble is not None:
            self.trouble.before(self, now_ns)
        if now_ns < self.stuck_until_ns:
            self.clock.sleep_until(now_ns + STUCK_NS)
            raise OSError(errno.ETIMEDOUT, "the bus is stuck")

    def _refusal(self, address: int) -> OSError | None:
        transfers, error = self._faults.pop(address, (0, 0))
        if transfers > 1:
            self._faults[address] = transfers - 1, error
        if transfers:
            return OSError(error, f"transfer with {address:#04x} failed")
        if address not in self.chips:
            return OSError(errno.EREMOTEIO, f"no acknowledgement from {address:#04x}")
        return None

    def _begin(self, periods: float) -> int:
        """Let the transaction's time pass; returns its start."""
        start_ns = max(self.clock.now_ns(), self._free_ns) + self.delay_ns
        self.delay_ns = 0
        self.periods += periods
        self._free_ns = start_ns + round((periods + BUS_FREE_PERIODS) * self._scl_ns)
        end_ns = start_ns + round(periods * self._scl_ns)
        self.clock.sleep_until(end_ns)
        if self._before:
            self._before(end_ns)
        return start_ns


class Faults:
    """One fault about every ``every_s`` (exponentially distributed), drawn from ``kinds`` and over the chips, in real
    or virtual time. The same seed gives the same faults."""

    def __init__(self, seed: int, *, every_s: float, t0_ns: int, kinds: Sequence[str] = KINDS) -> None:
        self.counts: Counter[str] = Counter()
        self._random, self._every_s, self._kinds = Random(seed), every_s, tuple(kinds)
        self._away: dict[int, tuple[int, SimChip]] = {}
        self._next_ns = t0_ns + self._pause_ns()

    def before(self, bus: SimBus, t_ns: int) -> None:
        """Let what is due happen, and put back what was away."""
        for address in [a for a, (until_ns, _) in self._away.items() if t_ns >= until_ns]:
            _, chip = self._away.pop(address)
            chip.reset(t_ns)
            bus.chips[address] = chip
        while t_ns >= self._next_ns:
            self._next_ns += self._pause_ns()
            self._happen(bus, t_ns)

    def _happen(self, bus: SimBus, t_ns: int) -> None:
        random, kind = self._random, self._random.choice(self._kinds)
        present = sorted(set(bus.chips) - set(self._away))
        if not present:
            return
        address = random.choice(present)
        self.counts[kind] += 1
        match kind:
            case "nack" | "eio":
                bus.fail(address, random.randint(1, 4), errno.EIO if kind == "eio" else errno.EREMOTEIO)
            case "stuck":
                bus.stuck_until_ns = t_ns + round(random.uniform(0.001, 0.3) * 1e9)
            case "brown-out":
                bus.brown_out(address)
            case "latency":
                bus.delay_ns = round(random.uniform(0.0005, 0.03) * 1e9)
            case "wrong-device" | "dead":
                chip = bus.chips.pop(address)
                self._away[address] = t_ns + round(random.uniform(0.2, 3.0) * 1e9), chip
                if kind == "wrong-device":
                    bus.chips[address] = SimChip(INA226 if chip.type.name != "INA226" else INA219, [], t_ns=t_ns)

    def _pause_ns(self) -> int:
        return max(1, round(self._random.expovariate(1 / self._every_s) * 1e9))
