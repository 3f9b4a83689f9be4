"""The firmware as a process behind a pseudo terminal, with sensors that read the number of the node's deadline.

Arguments and commands are those of `tests/firmware/support/node_process.py`. Sensor 0 reads the lowest twelve bits of
the number, sensor 1 those above them. A deadline that the node slept through has a number too. Each deadline that is
met is written into a ledger under ``$FAULTS_LEDGER``: its moment, and its number.
"""

import os
import struct
import sys
import time
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "firmware" / "support"
sys.path[:0] = [str(SUPPORT)]

import node_process  # noqa: E402
from simulated_pico import SimulatedChip  # noqa: E402

BITS = 12
ROW = struct.Struct("<qq")
LEDGER = Path(os.environ["FAULTS_LEDGER"], f"node-{os.getpid()}").open("ab", buffering=0)  # noqa: SIM115


def chips(count: int) -> dict[tuple[int, int], SimulatedChip]:
    return {(i % 2, 0x40 + i // 2): SimulatedChip(0, 3000 << 3 | 2) for i in range(count)}


class NumberingNode(node_process.Node):
    """Tells its sensors the number of the deadline that they are read for."""

    def _scan(self, late_us: int) -> None:
        number = self._sequence + late_us // self._period_us & 0xFFFF
        LEDGER.write(ROW.pack(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW), number))
        for place, chip in enumerate(self._hardware.chips.values()):
            chip.shunt = number >> BITS * place & (1 << BITS) - 1
        super()._scan(late_us)


if __name__ == "__main__":
    node_process.chips = chips
    node_process.Node = NumberingNode
    node_process.main()
