"""What pmlib's messages are made of, over a pair of sockets: the part of the service that needs no powerd."""

import socket
import struct

import pytest

from powerd_client.pmlib.readings import MAX_LINES, Lines
from powerd_client.pmlib.service import Wire
from powerd_core.errors import ConfigError


@pytest.fixture
def ends():
    near, far = socket.socketpair()
    with near, far:
        yield Wire(near), far


def test_numbers_texts_and_lines_come_as_they_were_sent(ends):
    wire, far = ends
    mask = bytearray(MAX_LINES // 8)
    mask[0], mask[1] = 0b101, 0b10
    far.sendall(struct.pack("=i", -7) + struct.pack("=i", 5) + b"gpu0\0" + struct.pack("=i", len(mask)) + mask)
    assert (wire.number(), wire.text(), wire.lines()) == (-7, "gpu0", Lines([0, 2, 9]))
    far.sendall(struct.pack("=i", len(mask)) + bytes(len(mask)))
    assert wire.lines() == Lines.all()


def test_what_is_given_is_a_number_a_text_with_its_length_or_bytes(ends):
    wire, far = ends
    wire.give(3, "W", b"\x01\x02")
    assert far.recv(100) == struct.pack("=i", 3) + struct.pack("=i", 1) + b"W\x01\x02"


@pytest.mark.parametrize("size", [-1, 1025, 1 << 30])
def test_a_text_of_a_size_that_cannot_be_is_refused(ends, size):
    wire, far = ends
    far.sendall(struct.pack("=i", size))
    with pytest.raises(ConfigError):
        wire.text()


def test_a_client_that_is_gone_ends_it(ends):
    wire, far = ends
    far.sendall(b"\0\0")
    far.close()
    with pytest.raises(EOFError):
        wire.number()
