"""Faults of a simulated bus on a seeded schedule, in virtual or real time."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from random import Random

from powerd_core.errors import ConfigError
from powerd_daemon.ina.chips import INA219, INA226
from powerd_daemon.sim.bus import SimBus
from powerd_daemon.sim.chip import SimChip

KINDS = ("nack", "eio", "stuck", "brown-out", "wrong-device", "latency", "dead")
"""No acknowledgement; a failed transfer; SDA held low; a reset; another chip in its place for a while; a transfer that
begins late; a chip that is gone for seconds."""


class Faults:
    """One fault about every ``every_s`` (exponentially distributed), drawn from ``kinds`` and over the chips."""

    def __init__(self, seed: int, *, every_s: float, t0_ns: int, kinds: Sequence[str] = KINDS) -> None:
        unknown = sorted(set(kinds) - set(KINDS))
        if unknown or not kinds or every_s <= 0:
            raise ConfigError(f"faults: unknown kind {unknown} or no time between them: kinds are {', '.join(KINDS)}")
        self.counts: Counter[str] = Counter()
        self._random, self._every_s, self._kinds = Random(seed), every_s, tuple(kinds)
        self._away: list[tuple[int, int, SimChip]] = []
        self._next_ns = t0_ns + self._pause_ns()

    def before(self, bus: SimBus, t_ns: int) -> None:
        """Let what is due happen, and put back what was away."""
        if self._away:
            for entry in [e for e in self._away if t_ns >= e[0]]:
                _, address, chip = entry
                self._away.remove(entry)
                chip.reset(t_ns)
                bus.chips[address] = chip
        while t_ns >= self._next_ns:
            self._next_ns += self._pause_ns()
            self._happen(bus, t_ns)

    def _happen(self, bus: SimBus, t_ns: int) -> None:
        random, kind = self._random, self._random.choice(self._kinds)
        away = {address for _, address, _ in self._away}
        present = sorted(set(bus.chips) - away)
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
                self._away.append((t_ns + round(random.uniform(0.2, 3.0) * 1e9), address, chip))
                if kind == "wrong-device":
                    bus.chips[address] = SimChip(INA226 if chip.type.name != "INA226" else INA219, [], t_ns=t_ns)

    def _pause_ns(self) -> int:
        return max(1, round(self._random.expovariate(1 / self._every_s) * 1e9))
