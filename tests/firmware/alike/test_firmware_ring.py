"""Queues and the node's clock. Runs under CPython and MicroPython alike."""

from powernode.node import NodeClock, since
from powernode.ring import ByteRing, EdgeQueue


def test_bytes_come_out_as_they_went_in():
    ring = ByteRing(50)
    sent = b""
    received = b""
    for k in range(200):
        frame = bytes([k % 256] * (1 + k % 13))
        while not ring.put(frame):
            piece = bytes(ring.peek(7))
            assert 1 <= len(piece) <= 7
            received += piece
            ring.drop(len(piece))
        sent += frame
        assert len(ring) <= 50
    while len(ring):
        piece = bytes(ring.peek(64))
        received += piece
        ring.drop(len(piece))
    assert received == sent


def test_a_frame_that_does_not_fit_is_refused_whole():
    ring = ByteRing(10)
    assert ring.put(b"123456")
    assert not ring.put(b"abcde")
    assert len(ring) == 6
    assert ring.put(b"wxyz")
    assert bytes(ring.peek(64)) == b"123456wxyz"


def test_edges_in_order_and_losses_counted():
    edges = EdgeQueue(4)
    assert edges.take() is None
    for k in range(5):
        edges.put(100 + k, k % 2)
    assert edges.lost == 2
    assert [edges.take() for _ in range(3)] == [(100, 0), (101, 1), (102, 0)]
    assert edges.take() is None
    for k in range(20):
        edges.put(k, 1)
        assert edges.take() == (k, 1)
    assert edges.lost == 2


class Counter:
    """A tick counter of 30 bits, as MicroPython's."""

    def __init__(self, value):
        self.value = value

    def ticks(self):
        return self.value % (1 << 30)

    def diff(self, later, earlier):
        half = 1 << 29
        return (later - earlier + half) % (1 << 30) - half


def test_the_clock_goes_on_where_the_counter_wraps():
    counter = Counter((1 << 30) - 5)
    clock = NodeClock(counter.ticks, counter.diff)
    assert clock.now() == 0
    counter.value += 10
    assert clock.now() == 10
    total = 10
    for _ in range(40):
        counter.value += 300000000
        total += 300000000
        assert clock.now() == total % (1 << 32)


def test_times_of_a_short_while_ago():
    counter = Counter(1000)
    clock = NodeClock(counter.ticks, counter.diff)
    counter.value += 500
    mark = counter.ticks()
    counter.value += 250
    assert clock.at(mark) == 500
    assert clock.now() == 750


def test_spans_across_the_wrap():
    assert since(5, 0xFFFFFFFB) == 10
    assert since(0xFFFFFFFB, 5) == -10
    assert since(7, 7) == 0
