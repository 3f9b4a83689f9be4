"""Bodies against the golden frames that the host's side is pinned by too. Runs under CPython and MicroPython alike."""

import struct

from powernode import protocol
from powernode.protocol import decode, encode

GOLDEN = __file__.rsplit("/", 2)[0] + "/golden/frames.txt"
SENSORS = ((0, 0x40, 0x3C4F, 1), (1, 0x4F, 0x399F, 0))


def golden():
    frames = {}
    with open(GOLDEN) as file:
        for line in file:
            name, digits = line.split()
            frames[name] = bytes([int(digits[i : i + 2], 16) for i in range(0, len(digits), 2)])
    return frames


def test_what_the_node_says():
    frames = golden()
    made = {
        "data": protocol.data(65535, 0xFFFFFFFE, 1, 2, 480, struct.pack("<hHhH", -1234, 0x5DC2, 31999, 0)),
        "description": protocol.description(7, 1000, 0xDEADBEEF, bytes(range(8)), 2, 1, 15, 4000, SENSORS),
        "echo_answer": protocol.echo_answer(8, 2000, 1990),
        "edge": protocol.edge(9, 3000, 1),
        "status": protocol.status(10, 4000, 0xDEADBEEF, 1, 0, 12, (1, 2, 3, 4, 5, 6)),
        "answer": protocol.answer(11, 5000, protocol.CONFIGURE, protocol.RUNNING),
    }
    for name, body in made.items():
        assert encode(body) == frames[name], name


def test_what_the_node_understands():
    frames = golden()
    kinds = {
        "describe": protocol.DESCRIBE,
        "configure": protocol.CONFIGURE,
        "start": protocol.START,
        "stop": protocol.STOP,
        "echo": protocol.ECHO,
    }
    for number, name in enumerate(("describe", "configure", "start", "stop", "echo")):
        body = decode(frames[name][:-1])
        assert protocol.parse_head(body) == (protocol.VERSION, kinds[name], 12 + number, 0)
    period_us, sensors = protocol.parse_configure(decode(frames["configure"][:-1]))
    assert period_us == 4000
    assert sensors == [(0, 0x40, 0x3C4F), (1, 0x4F, 0x399F)]


def configure(period_us, sensors, count=None):
    body = protocol.head(protocol.CONFIGURE, 0, 0)
    body += struct.pack("<IB", period_us, len(sensors) if count is None else count)
    return body + b"".join([struct.pack("<BBH", *s) for s in sensors])


def test_configurations_that_cannot_be_meant():
    one = (0, 0x40, 1)
    assert protocol.parse_configure(configure(4000, [one])) is not None
    for body in (
        protocol.head(protocol.CONFIGURE, 0, 0),
        configure(4000, []),
        configure(4000, [one], 2),
        configure(4000, [one, one]),
        configure(4000, [(2, 0x40, 1)]),
        configure(4000, [(0, 0x90, 1)]),
        configure(100, [one]),
        configure(4000, [(0, 0x40 + i, 1) for i in range(9)]),
    ):
        assert protocol.parse_configure(body) is None
    assert protocol.parse_head(b"\1\2\3") is None
