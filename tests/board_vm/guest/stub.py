"""i2c-stub keeps what is written to it and converts nothing. This plays the rest of an INA219 or INA226 for powerd:
a software reset sets CONFIG to its reset value. Arguments: the bus, and TYPE@ADDRESS=SHUNT,BUS for each chip.
"""

import sys
import threading
import time
from ctypes import POINTER, Structure, Union, c_uint8, c_uint16, c_uint32, pointer
from fcntl import ioctl

from powerd_daemon.sources.ina.chips import CONFIG, RST, chip_type

SLAVE_FORCE, SMBUS, WORD_DATA = 0x0706, 0x0720, 3


class Data(Union):
    _fields_ = [("byte", c_uint8), ("word", c_uint16), ("block", c_uint8 * 34)]


class Transfer(Structure):
    _fields_ = [("read", c_uint8), ("command", c_uint8), ("size", c_uint32), ("data", POINTER(Data))]


class Stub:
    """The registers of one chip, whoever else uses the address. Words with the byte first that a chip sends first."""

    def __init__(self, bus: int, address: int) -> None:
        self._file = open(f"/dev/i2c-{bus}", "r+b", buffering=0)  # noqa: SIM115
        ioctl(self._file, SLAVE_FORCE, address)
        self._data = Data()

    def read(self, register: int) -> int:
        ioctl(self._file, SMBUS, Transfer(1, register, WORD_DATA, pointer(self._data)))
        return int.from_bytes(self._data.word.to_bytes(2, "little"), "big")

    def write(self, register: int, word: int) -> None:
        self._data.word = int.from_bytes((word & 0xFFFF).to_bytes(2, "little"), "big")
        ioctl(self._file, SMBUS, Transfer(0, register, WORD_DATA, pointer(self._data)))


def prepare(stub: Stub, name: str, shunt: int, bus: int) -> int:
    """Registers as after power-on, with these codes. Returns the reset value of CONFIG."""
    kind = chip_type(name)
    for register, value in kind.resets.items():
        stub.write(register, value)
    for register, value, _ in kind.identity:
        stub.write(register, value)
    stub.write(kind.channels[0][0], shunt)
    stub.write(kind.channels[0][1], bus)
    return kind.resets[CONFIG]


def play(chips: list[tuple[Stub, int]], is_over: threading.Event) -> None:
    """Let software resets happen."""
    while not is_over.is_set():
        for stub, reset in chips:
            if stub.read(CONFIG) & RST:
                stub.write(CONFIG, reset)
        time.sleep(0)


def main() -> None:
    bus, chips = int(sys.argv[1]), []
    for text in sys.argv[2:]:
        kind, _, rest = text.partition("@")
        address, _, codes = rest.partition("=")
        stub = Stub(bus, int(address, 0))
        chips.append((stub, prepare(stub, kind, *(int(code, 0) for code in codes.split(",")))))
    print("ready", flush=True)
    play(chips, threading.Event())


if __name__ == "__main__":
    main()
