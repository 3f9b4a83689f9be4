"""Ports and links: lines out of pieces, USBTMC files, serial ports on a pseudo-terminal."""

import os
import pty

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_core.errors import SensorError
from powerd_daemon.sources.port import LineReader, SerialPort, missing, open_port


@given(st.lists(st.binary(max_size=20)), st.integers(0, 3))
def test_lines_do_not_depend_on_how_they_are_cut(pieces, cut):
    whole = b"".join(pieces)
    reader, other = LineReader(0), LineReader(0)
    one = [line for piece in pieces for _, line in reader.feed(piece, 0, 0)]
    step = cut + 1
    two = [line for at in range(0, len(whole), step) for _, line in other.feed(whole[at : at + step], 0, 0)]
    assert one == two == [p.removesuffix(b"\r") for p in whole.split(b"\n")[:-1]]


def test_a_line_begins_when_its_first_byte_came():
    reader = LineReader(1000)
    assert reader.feed(b"ab", 90_000, 110_000) == []
    assert reader.feed(b"c\r\nx\n", 190_000, 210_000) == [(98_000, b"abc"), (198_000, b"x")]


@pytest.mark.parametrize("port", ["usbtmc9", "ttyNONE"])
def test_a_port_that_is_not_there(tmp_path, port):
    with pytest.raises(SensorError, match=port):
        open_port(str(tmp_path / port), 9600)


def test_a_usbtmc_file_is_read_and_written_as_it_is(tmp_path):
    path = tmp_path / "usbtmc0"
    path.write_bytes(b"YOKOGAWA,WT310E\n")
    file = open_port(str(path), 9600)
    assert file.blocks
    assert file.read() == b"YOKOGAWA,WT310E\n"
    file.write(b"*IDN?\n")
    file.close()
    file.close()
    assert path.read_bytes().endswith(b"*IDN?\n")
    with pytest.raises(SensorError):
        file.write(b"x")


@pytest.fixture
def pair():
    """A pseudo terminal: its master's descriptor, and the path at which pyserial finds it."""
    master, slave = pty.openpty()
    path = os.ttyname(slave)
    os.close(slave)
    yield master, path
    if master >= 0:
        os.close(master)


class TestSerialPort:
    def test_bytes_go_both_ways_on_a_pseudo_terminal(self, pair):
        master, path = pair
        port = SerialPort(path, 115_200)
        everything = bytes(range(256))
        os.write(master, everything)
        assert port.read(1_000_000_000) == everything
        assert port.read(0) == b""
        port.write(everything)
        assert os.read(master, 1000) == everything
        port.close()
        port.close()

    def test_an_unplugged_device(self):
        master, slave = pty.openpty()
        port = SerialPort(os.ttyname(slave), 115_200)
        os.close(slave)
        os.close(master)
        with pytest.raises(SensorError):
            port.read(10_000_000)
        port.close()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("/dev/ttyACM*", "name one that is here, without *: {dev}/ttyACM1"),
        ("/dev/ttyACM0", "here is {dev}/ttyACM1, {dev}/ttyUSB0"),
        ("/dev/usbtmc0", "no such device is here: is it plugged in and switched on?"),
    ],
)
def test_a_port_that_is_not_there_names_those_that_are(tmp_path, asked, expected):
    for name in ("ttyUSB0", "ttyACM1", "tty0"):
        (tmp_path / name).touch()
    path = asked.replace("/dev", str(tmp_path))
    assert missing(path, tmp_path).startswith(expected.format(dev=tmp_path))


def test_opening_a_port_that_is_not_there_says_so():
    pytest.importorskip("serial")
    with pytest.raises(SensorError, match=r"/dev/ttyACM\* is not there: (no such|name one)"):
        open_port("/dev/ttyACM*", 115200)
