"""The simulated graphics card with a bus whose faults a test steers through a file while it runs."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from powerd_daemon.clock import Clock
from powerd_daemon.sources.ina.bus import Read, ReadWords, RegisterBus
from powerd_daemon.sources.ina.chips import INA226
from powerd_daemon.sources.sim.bus import SimBus, SimChip
from powerd_daemon.sources.sim.source import SimOptions, SimSource

SHUNT = 1
"""The register of the shunt voltage. A read without a register goes where the pointer was left, which is there."""
ROW = struct.Struct("<qq")
"""Of the ledger: the moment, and the chip's address."""
HOLD_NS = 40_000_000
"""For so long after its last word a fault goes on by itself."""


class ForeignChip(SimChip):
    """A chip in the place of another one; each word that it answers is written down."""

    def read_word(self, t_ns: int) -> int:
        write_down("foreign-word")
        return super().read_word(t_ns)


class CountedBus:
    """A register bus on which each transfer that failed is written down; and each shunt word that was read, in a ledger
    under ``$FAULTS_LEDGER``."""

    def __init__(self, bus: RegisterBus, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self._ledger = Path(os.environ["FAULTS_LEDGER"], f"sim-{os.getpid()}").open("ab", buffering=0)  # noqa: SIM115

    def prepare(self, reads: Sequence[Read]) -> ReadWords:
        read = self._bus.prepare(reads)
        shunts = [r.address for r in reads if r.register in (None, SHUNT)]

        def call() -> bytes:
            with failures_written_down():
                words = bytes(read())
            if shunts:
                t_ns = self._clock.now_ns()  # of the simulated board, which may be worked out late
                self._ledger.write(b"".join(ROW.pack(t_ns, address) for address in shunts))
            return words

        return call

    def write_word(self, address: int, register: int, word: int) -> None:
        with failures_written_down():
            self._bus.write_word(address, register, word)


def write_down(what: str) -> None:
    """A line for whoever wants evidence of a fault."""
    with open(os.environ["FAULTS_SEEN"], "ab", buffering=0) as file:
        file.write(f"{what} 1\n".encode())


@contextmanager
def failures_written_down() -> Iterator[None]:
    try:
        yield
    except OSError:
        write_down("failed-transfer")
        raise


class Steered:
    """Does to a simulated bus what the word in ``script`` says, for as long as it says so.

    ``dead`` a chip is gone, ``stuck`` the bus is held low, ``brown-out`` all chips are reset once, ``latency`` every
    transfer begins late, ``wrong-device`` another chip answers, ``nack`` transfers are not acknowledged.
    """

    def __init__(self, script: Path) -> None:
        self._script = script
        self._word = ""
        self._away: dict[int, SimChip] = {}

    def before(self, bus: SimBus, t_ns: int) -> None:
        try:
            word = self._script.read_text().strip()
        except OSError:
            word = ""
        if word != self._word:
            self._end(bus, t_ns)
            self._word = word
            self._begin(bus)
        if word == "stuck":
            bus.stuck_until_ns = t_ns + HOLD_NS
        elif word == "latency":
            bus.delay_ns = 8_000_000
            write_down("late-transfer")
        elif word == "nack":
            bus.fail(min(bus.chips), 1, errno.EREMOTEIO)

    def _begin(self, bus: SimBus) -> None:
        if self._word == "brown-out":
            for address in bus.chips:
                bus.brown_out(address)
                write_down("reset-chip")
        elif self._word in ("dead", "wrong-device"):
            address = min(bus.chips)
            self._away[address] = bus.chips.pop(address)
            if self._word == "wrong-device":
                bus.chips[address] = ForeignChip(INA226, [], t_ns=0)

    def _end(self, bus: SimBus, t_ns: int) -> None:
        for address, chip in self._away.items():
            chip.reset(t_ns)
            bus.chips[address] = chip
        self._away.clear()
        bus.stuck_until_ns = 0


@dataclass(frozen=True, slots=True)
class SteeredOptions(SimOptions):
    """Those of `sim`, and where the faults are written."""

    script: Path = field(default=Path("faults"), metadata={"help": "file that names the fault of the moment"})


class SteeredSim(SimSource):
    """A `sim` that obeys a file."""

    Options: ClassVar[type[SimOptions]] = SteeredOptions

    def connect(self) -> tuple[RegisterBus, Mapping[str, object]]:
        bus, detail = super().connect()
        assert isinstance(self.options, SteeredOptions)
        assert self.bus is not None
        self.bus.trouble = Steered(self.options.script)
        return CountedBus(bus, self.start.clock), detail
