"""The I2C bus of simulated chips, faults on it by a seeded schedule, and the clocks in which both live.

A transaction takes its clock periods, and an absent chip does not acknowledge.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from random import Random

from powerd_daemon.clock import Clock
from powerd_daemon.sources.ina.bus import BUS_FREE_PERIODS, FUNC_I2C, WRITE_PERIODS, Read, ReadWords, split
from powerd_daemon.sources.ina.chips import INA219, INA226
from powerd_daemon.sources.sim.chip import SimChip

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
