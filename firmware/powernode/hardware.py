"""The Raspberry Pi Pico behind the main loop. The only module that cannot run anywhere else.

Pins: I2C0 on GP4 (SDA) and GP5 (SCL), I2C1 on GP6 and GP7, marker input on GP15 (pulled down).
"""
# ruff: noqa: F821, RUF046  (ptr8 and ptr16 exist where viper compiles; its len gives an object)

import os
import select
import sys
import time

import machine
import micropython

from powernode import protocol
from powernode.ring import EdgeQueue

SCL_HZ = 400000
I2C_PINS = ((4, 5), (6, 7))
MARKER_PIN = 15
TRANSFER_US = 1000
"""After this long a transfer has failed; a word takes 120 us."""
WATCHDOG_MS = 2000

_TABLE = protocol._TABLE


@micropython.viper
def _crc16_viper(data) -> int:
    table = ptr16(_TABLE)
    source = ptr8(data)
    crc = 0xFFFF
    for i in range(int(len(data))):
        crc = (crc << 8 & 0xFF00) ^ table[crc >> 8 ^ source[i]]
    return crc


class PicoBus:
    """Both I2C controllers, with one buffer for all reads."""

    def __init__(self):
        self._word = bytearray(2)
        self._out = bytearray(2)
        self._controllers = [self._open(n) for n in (0, 1)]

    def read_word(self, controller, address, register):
        word = self._word
        try:
            self._controllers[controller].readfrom_mem_into(address, register, word)
        except OSError:
            self._release(controller)
            raise
        return word[0] << 8 | word[1]

    def write_word(self, controller, address, register, word):
        self._out[0] = word >> 8
        self._out[1] = word & 0xFF
        try:
            self._controllers[controller].writeto_mem(address, register, self._out)
        except OSError:
            self._release(controller)
            raise

    def _open(self, controller):
        sda, scl = I2C_PINS[controller]
        return machine.I2C(controller, sda=machine.Pin(sda), scl=machine.Pin(scl), freq=SCL_HZ, timeout=TRANSFER_US)

    def _release(self, controller):
        """A chip that lost count of the clock holds SDA low: nine clocks bring it to the end of its byte."""
        sda, scl = I2C_PINS[controller]
        if machine.Pin(sda, machine.Pin.IN, machine.Pin.PULL_UP).value():
            self._controllers[controller] = self._open(controller)
            return
        clock = machine.Pin(scl, machine.Pin.OPEN_DRAIN, value=1)
        for _ in range(9):
            clock.value(0)
            time.sleep_us(5)
            clock.value(1)
            time.sleep_us(5)
        self._controllers[controller] = self._open(controller)


class Pico:
    """What `node.Node` asks of its hardware."""

    def __init__(self):
        self.crc = _crc16_viper if _crc16_viper(b"123456789") == 0x29B1 else protocol.crc16
        self.bus = PicoBus()
        self.uid = machine.unique_id()
        self.boot = int.from_bytes(os.urandom(4), "little")
        self.reset_cause = {machine.PWRON_RESET: 1, machine.WDT_RESET: 2}.get(machine.reset_cause(), 0)
        self.marker = MARKER_PIN
        self.edges = EdgeQueue()
        self.ticks = time.ticks_us
        self.ticks_diff = time.ticks_diff
        self._pin = machine.Pin(MARKER_PIN, machine.Pin.IN, machine.Pin.PULL_DOWN)
        self._led = machine.Pin("LED", machine.Pin.OUT, value=0)
        # Binary data contains the byte of Ctrl-C.
        micropython.kbd_intr(-1)
        micropython.alloc_emergency_exception_buf(100)
        self._input = select.poll()
        self._input.register(sys.stdin, select.POLLIN)
        self._output = select.poll()
        self._output.register(sys.stdout, select.POLLOUT)
        self._byte = bytearray(1)
        self._pin.irq(self._edge, machine.Pin.IRQ_RISING | machine.Pin.IRQ_FALLING, hard=True)
        self._watchdog = machine.WDT(timeout=WATCHDOG_MS)

    def _edge(self, pin):
        self.edges.put(time.ticks_us(), pin.value())

    def level(self):
        return self._pin.value()

    def feed(self):
        self._watchdog.feed()

    def read(self):
        data = b""
        while len(data) < 64 and self._input.poll(0):
            sys.stdin.buffer.readinto(self._byte, 1)
            data += self._byte
        return data

    def write(self, buffer):
        if not self._output.poll(0):
            return 0
        sent = sys.stdout.buffer.write(buffer)
        return len(buffer) if sent is None else sent

    def show(self, is_running, has_errors):
        """Called twice a second: steady while measuring, dark for half a second after errors, else blinking."""
        self._led.value(not has_errors if is_running else not self._led.value())

    def idle(self):
        time.sleep_us(100)
