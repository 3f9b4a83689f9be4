"""The Linux adapter against an ioctl that decodes the kernel's structures and drives simulated chips."""

import errno
import os
import sys
from ctypes import c_char, memmove

import pytest
from ina_bench import Bench

from powerd_core.errors import ConfigError, SensorError
from powerd_daemon.scan import scan_bus
from powerd_daemon.sources.ina.bus import (
    FUNC_BLOCK,
    FUNC_I2C,
    FUNC_WORDS,
    I2C_RDWR,
    I2C_RETRIES,
    I2C_SLAVE,
    I2C_SMBUS,
    I2C_TIMEOUT,
    MAX_MESSAGES,
    LinuxBus,
    Read,
)
from powerd_daemon.sources.ina.scanner import Scanner

smbus2 = pytest.importorskip("smbus2.smbus2")


class Kernel:
    """What /dev/i2c-N does with `ioctl`."""

    def __init__(self, bus=None):
        self.bus = bus
        self.settings = {}
        self.calls = 0
        self.longest = 0

    def __call__(self, fd, request, data):
        if request == I2C_SMBUS:
            self.calls += 1
            self._smbus(data)
            return
        if request != I2C_RDWR:
            self.settings[request] = data
            return
        self.calls += 1
        self.longest = max(self.longest, data.nmsgs)
        assert data.nmsgs <= MAX_MESSAGES
        messages = [data.msgs[i] for i in range(data.nmsgs)]
        reads, pointer = [], None
        for m in messages:
            if m.flags & 1:
                reads.append((m, Read(m.addr, pointer, m.len)))
                pointer = None
            elif m.len == 1:
                pointer = m.buf[0][0]
            else:
                sent = bytes(m.buf[i][0] for i in range(m.len))
                self.bus.write_word(m.addr, sent[0], int.from_bytes(sent[1:], "big"))
        if reads:
            raw = bytes(self.bus.prepare([r for _, r in reads])())
            for m, r in reads:
                memmove(m.buf, (c_char * r.size).from_buffer_copy(raw[: r.size]), r.size)
                raw = raw[r.size :]

    def _smbus(self, message):
        """A transfer as <linux/i2c.h> has it: a word's low byte is the one that comes first on the wire."""
        address, data = self.settings[I2C_SLAVE], message.data.contents
        if message.read_write == smbus2.I2C_SMBUS_WRITE:
            assert message.size == smbus2.I2C_SMBUS_WORD_DATA
            self.bus.write_word(address, message.command, int.from_bytes(data.word.to_bytes(2, "little"), "big"))
        elif message.size == smbus2.I2C_SMBUS_WORD_DATA:
            data.word = int.from_bytes(self.bus.prepare([Read(address, message.command)])(), "little")
        else:
            raw = bytes(self.bus.prepare([Read(address, message.command, data.block[0])])())
            data.block[1 : 1 + len(raw)] = list(raw)


@pytest.fixture
def opened(monkeypatch, request):
    """Open the bus without a device: its file is /dev/null. The parameter says what its adapter can do."""
    functions = getattr(request, "param", FUNC_I2C)

    class Device:
        def __init__(self, path):
            self.fd = os.open(os.devnull, os.O_RDWR)
            self.funcs = functions

        def close(self):
            os.close(self.fd)

    monkeypatch.setattr(smbus2, "SMBus", Device)
    return LinuxBus


@pytest.mark.parametrize("combines", [True, False])
def test_the_driver_reads_the_same_as_on_the_simulated_bus(opened, combines):
    bench = Bench([0.5 * i for i in range(1, 9)], combines=combines)
    kernel = Kernel(bench.bus)
    bus = opened(2, timeout_ms=50, ioctl=kernel)
    bench.scanner = Scanner(bus, bench.clock, bench.bank, scl_hz=400_000, period_ns=bench.period_ns)
    bench.scanner.open()
    assert bench.scanner.combined == combines
    assert kernel.settings == {I2C_TIMEOUT: 5, I2C_RETRIES: 0}
    before = kernel.calls
    bench.poll(1)
    assert kernel.calls - before == (1 if combines else 16)
    assert [row.shunt for row in bench.scan(3)] == [[2500 * i for i in range(1, 9)]] * 4
    bus.close()


def test_long_reads_are_split_at_42_messages(opened):
    bench = Bench()
    kernel = Kernel(bench.bus)
    bus = opened("/dev/i2c-2", ioctl=kernel)
    raw = bus.prepare([Read(0x40 + i % 8, 0) for i in range(50)])()
    assert bytes(raw) == b"\x39\x9f" * 50
    assert (kernel.calls, kernel.longest) == (3, 42)
    bus.close()


def test_errors_of_transfers_are_os_errors(opened):
    bus = opened(2, ioctl=Kernel(Bench().bus))
    for call in (bus.prepare([Read(0x50, 0)]), lambda: bus.write_word(0x50, 0, 0)):
        with pytest.raises(OSError, match="0x50"):
            call()
    bus.close()


@pytest.mark.parametrize("opened", [FUNC_WORDS], indirect=True)
def test_an_adapter_of_smbus_words_alone_reads_the_same(opened):
    bench = Bench([0.5 * i for i in range(1, 9)])
    kernel = Kernel(bench.bus)
    bus = opened(2, ioctl=kernel)
    assert not bus.has_i2c
    bench.scanner = Scanner(bus, bench.clock, bench.bank, scl_hz=400_000, period_ns=bench.period_ns)
    bench.scanner.open()
    assert not bench.scanner.combined
    before = kernel.calls
    bench.poll(1)
    assert kernel.calls - before == 16
    assert [row.shunt for row in bench.scan(3)] == [[2500 * i for i in range(1, 9)]] * 4
    assert [(a.address, a.chip) for a in scan_bus(bus, 2)] == [(0x40 + i, "INA219") for i in range(8)]
    with pytest.raises(SensorError, match="3 bytes"):
        bus.prepare([Read(0x40, 7, 3)])
    bus.close()


@pytest.mark.parametrize("opened", [FUNC_WORDS | FUNC_BLOCK], indirect=True)
def test_longer_registers_are_read_as_blocks(opened):
    class Chip:
        def prepare(self, reads):
            (read,) = reads
            return lambda: bytes(range(read.register, read.register + read.size))

    bus = opened(2, ioctl=Kernel(Chip()))
    assert bus.prepare([Read(0x40, 7, 3)])() == b"\7\10\11"
    assert bus.prepare([Read(0x40, None, 5)])() == b"\7\10\11\12\13"
    bus.close()


def test_a_bus_that_cannot_be_opened(monkeypatch):
    def fail(path):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(smbus2, "SMBus", fail)
    with pytest.raises(SensorError, match="/dev/i2c-7"):
        LinuxBus(7)
    monkeypatch.setitem(sys.modules, "smbus2.smbus2", None)
    with pytest.raises(ConfigError, match="its extra .board"):
        LinuxBus(1)
