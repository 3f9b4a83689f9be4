"""COBS, CRC and resynchronisation. Runs under CPython and MicroPython alike."""

from powernode.protocol import MAX_BODY, MAX_ENCODED, Deframer, crc16, decode, encode


class Noise:
    """Pseudo-random bytes, the same everywhere."""

    def __init__(self, seed):
        self.state = seed

    def byte(self):
        self.state = (self.state * 1103515245 + 12345) & 0x7FFFFFFF
        return self.state >> 16 & 0xFF

    def bytes(self, count):
        return bytes([self.byte() for _ in range(count)])


def test_crc_check_value():
    assert crc16(b"123456789") == 0x29B1
    assert crc16(b"") == 0xFFFF


def test_round_trip_of_every_length():
    noise = Noise(1)
    for length in range(1, MAX_BODY + 1):
        for body in (noise.bytes(length), bytes(length), b"\xff" * length):
            frame = encode(body)
            assert frame[-1] == 0
            assert 0 not in frame[:-1]
            assert len(frame) <= MAX_ENCODED + 1
            assert decode(frame[:-1]) == body


def test_a_body_that_is_too_long_is_refused():
    try:
        encode(bytes(MAX_BODY + 1))
    except ValueError:
        return
    raise AssertionError("it was encoded")


def test_any_split_gives_the_same_bodies():
    noise = Noise(2)
    bodies = [noise.bytes(1 + noise.byte() % 60) for _ in range(40)]
    stream = b"".join([encode(b) for b in bodies])
    for step in (1, 2, 7, 64, 1000):
        deframer = Deframer()
        found = []
        for at in range(0, len(stream), step):
            found += deframer.feed(stream[at : at + step])
        assert found == bodies
        assert deframer.damaged == 0


def test_every_damaged_byte_costs_one_frame_at_most_two():
    bodies = [b"first", b"the one", b"last"]
    frames = [encode(b) for b in bodies]
    for at in range(len(frames[1])):
        damaged = bytearray(frames[1])
        damaged[at] ^= 0x55
        found = Deframer().feed(frames[0] + bytes(damaged) + frames[2])
        assert found[0] == b"first"
        assert b"the one" not in found
        assert len(found) >= 1
        if at < len(frames[1]) - 1:
            assert found[-1] == b"last"


def test_garbage_is_skipped_and_memory_is_bounded():
    noise = Noise(3)
    deframer = Deframer()
    deframer.feed(b"\x05" * 5000)
    assert len(deframer._buffer) <= MAX_ENCODED
    for _ in range(20):
        deframer.feed(noise.bytes(500))
        assert len(deframer._buffer) <= MAX_ENCODED
    assert deframer.damaged > 0
    assert deframer.feed(b"\0" + encode(b"good")) == [b"good"]


def test_what_is_no_frame():
    for encoded in (b"", b"\x01", b"\x02\x01", b"\x00", b"\x09abc", b"\x03ab", b"\x01\x01\x01\x01"):
        assert decode(encoded) is None
    assert decode(bytes(MAX_ENCODED + 1)) is None
