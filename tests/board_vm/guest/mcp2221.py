"""An MCP2221 (USB to I2C) in front of eight simulated INA219: speaks its HID reports through /dev/uhid.

The kernel's hid-mcp2221 makes an I2C adapter of it. Line i carries (i + 1) / 2 A at 12 V through 50 mOhm, exactly.
Reports as in Microchip's data sheet DS20005565, section 3.1.
"""

import os
import struct
import time

from powerd_daemon.sources.sim.bus import Load, SimChip

UHID_DESTROY, UHID_OUTPUT, UHID_CREATE2, UHID_INPUT2 = 1, 6, 11, 12
BUS_USB, MICROCHIP, MCP2221 = 3, 0x04D8, 0x00DD
REPORT = 64
DESCRIPTOR = bytes.fromhex("0600ff0901a1010902150026ff007508954081020903750895409102c0")
STATUS, GET, WRITE, READ, READ_AGAIN, WRITE_ON = 0x10, 0x40, 0x90, 0x91, 0x93, 0x94
NACK, COMPLETE = 0x25, 0x55


class Bridge:
    """The chip: one answer for each report."""

    def __init__(self) -> None:
        now_ns = time.monotonic_ns()
        self.chips = {
            0x40 + i: SimChip("INA219", [Load(lambda _begin, _end, a=(i + 1) / 2: a, 12.0, 0.05)], t_ns=now_ns)
            for i in range(8)
        }
        self.read, self.is_absent = b"", False

    def answer(self, report: bytes) -> bytes:
        command, answer = report[0], bytearray(REPORT)
        answer[0] = command
        if command == STATUS:
            answer[3] = report[3]  # the speed is taken
            answer[8] = NACK if self.is_absent else 0
            answer[20] = 0x40 if self.is_absent else 0
            if report[2] == 0x10:
                self.is_absent = False
        elif command in (WRITE, WRITE_ON):
            size, chip = report[1], self.chips.get(report[3] >> 1)
            self.is_absent = chip is None
            if chip is not None and size == 1:
                chip.select(report[4])
            elif chip is not None and size == 3:
                chip.write_word(report[4], int.from_bytes(report[5:7], "big"), time.monotonic_ns())
        elif command in (READ, READ_AGAIN):
            size, chip = report[1], self.chips.get(report[3] >> 1)
            self.is_absent = chip is None
            word = 0 if chip is None else chip.read_word(time.monotonic_ns())
            self.read = word.to_bytes(2, "big")[:size]
        elif command == GET:
            answer[2] = NACK if self.is_absent else COMPLETE
            answer[3] = len(self.read)
            answer[4 : 4 + len(self.read)] = self.read
            self.is_absent = False
        return bytes(answer)


def main() -> None:
    device, bridge = os.open("/dev/uhid", os.O_RDWR), Bridge()
    names = struct.pack("=128s64s64s", b"MCP2221 in software", b"", b"")
    numbers = struct.pack("=HHIIII", len(DESCRIPTOR), BUS_USB, MICROCHIP, MCP2221, 0x100, 0)
    os.write(device, struct.pack("=I", UHID_CREATE2) + names + numbers + DESCRIPTOR.ljust(4096, b"\0"))
    print("ready", flush=True)
    while True:
        event = os.read(device, 8192)
        if struct.unpack_from("=I", event)[0] == UHID_OUTPUT:
            answer = bridge.answer(event[4 : 4 + REPORT])
            os.write(device, struct.pack("=IH", UHID_INPUT2, REPORT) + answer)


if __name__ == "__main__":
    main()
