"""What the firmware's main loop asks of its hardware, simulated. Runs under CPython and MicroPython alike."""

from powernode.protocol import crc16
from powernode.ring import EdgeQueue

TICKS = 1 << 30
TRANSFER_US = 120


class SimulatedChip:
    """An INA219 at its registers: constant codes, a reset value, CNVR behind the first conversion."""

    def __init__(self, shunt, bus):
        self.shunt, self.bus = shunt, bus
        self.config = 0x399F
        self.is_there = True

    def brown_out(self):
        self.config = 0x399F


class SimulatedPico:
    """Time passes by what is done: ``us`` is the node's own clock."""

    def __init__(self, chips, us=0, boot=0x12345678, rate=1.0):
        self.chips = chips
        """By (controller, address)."""
        self.us = us
        self.rate = rate
        self.boot = boot
        self.uid = b"\xe6\x60\x01\x02\x03\x04\x05\x06"
        self.reset_cause = 1
        self.marker = 15
        self.crc = crc16
        self.bus = self
        self.edges = EdgeQueue()
        self.pin = 0
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.room = 1 << 30
        """Bytes that the host still takes."""
        self.fed = 0
        self.shown = []

    # the bus

    def read_word(self, controller, address, register):
        chip = self._chip(controller, address)
        return (chip.config, chip.shunt & 0xFFFF, chip.bus)[register]

    def write_word(self, controller, address, register, word):
        assert register == 0, "nothing but CONFIG is ever written"
        self._chip(controller, address).config = word

    def _chip(self, controller, address):
        self.us += TRANSFER_US
        chip = self.chips.get((controller, address))
        if chip is None or not chip.is_there:
            raise OSError(5)
        return chip

    # the board

    def ticks(self):
        return int(self.us) % TICKS

    def ticks_diff(self, later, earlier):
        return (later - earlier + TICKS // 2) % TICKS - TICKS // 2

    def level(self):
        return self.pin

    def turn(self, level):
        """An edge of the marker."""
        self.pin = level
        self.edges.put(self.ticks(), level)

    def read(self):
        data = bytes(self.incoming[:64])
        self.incoming = self.incoming[64:]
        return data

    def write(self, buffer):
        taken = min(len(buffer), self.room)
        self.outgoing += buffer[:taken]
        self.room -= taken
        return taken

    def feed(self):
        self.fed += 1
        self.us += 10

    def show(self, is_running, has_errors):
        self.shown.append((is_running, has_errors))

    def idle(self):
        self.us += 90


def chips(count=8):
    """Chips at 0x40 ... on both controllers in turn: shunt 1000 * (i + 1), bus 3000 + i with CNVR set."""
    made = {}
    for i in range(count):
        made[i % 2, 0x40 + i // 2] = SimulatedChip(1000 * (i + 1), (3000 + i) << 3 | 2)
    return made


def sensors(count=8, config=0x3C4F):
    """(controller, address, config) of these chips, as `protocol.parse_configure` gives them."""
    return [(i % 2, 0x40 + i // 2, config) for i in range(count)]
