"""Scanner and main loop on simulated hardware. Runs under CPython and MicroPython alike."""

import struct

from powernode import protocol
from powernode.node import Node, since
from powernode.protocol import Deframer, encode
from powernode.scanner import NO_SHUNT, Scanner
from simulated_pico import SimulatedPico, chips, sensors


def scanner_on(pico, count=8, check_all=False):
    made = Scanner(pico, lambda: pico.us, since, sensors(count), check_all)
    made.set_up()
    return made


def codes(words):
    return [struct.unpack("<hH", words[at : at + 4]) for at in range(0, len(words), 4)]


def test_a_scan_reads_every_chip():
    pico = SimulatedPico(chips())
    pico.chips[1, 0x40].shunt = -2000
    scanner = scanner_on(pico)
    begin = pico.us
    time_us, valid, reset, span_us, words = scanner.scan()
    assert (time_us, valid, reset, span_us) == (begin, 0xFF, 0, 16 * 120)
    assert codes(words)[:3] == [(1000, 3000 << 3 | 2), (-2000, 3001 << 3 | 2), (3000, 3002 << 3 | 2)]
    assert {chip.config for chip in pico.chips.values()} == {0x3C4F}


def test_a_chip_that_does_not_answer_is_not_valid_and_has_no_plausible_code():
    pico = SimulatedPico(chips())
    scanner = scanner_on(pico)
    scanner.scan()
    pico.chips[0, 0x41].is_there = False
    _, valid, _, _, words = scanner.scan()
    assert valid == 0xFF & ~4
    assert codes(words)[2][0] & 0xFFFF == NO_SHUNT
    assert scanner.errors == 1


def test_a_dead_chip_is_left_alone_and_comes_back():
    pico = SimulatedPico(chips())
    scanner = scanner_on(pico)
    pico.chips[0, 0x40].is_there = False
    for _ in range(50):
        scanner.scan()
    errors = scanner.errors
    for _ in range(100):
        assert scanner.scan()[1] == 0xFE
    assert scanner.errors - errors <= 2
    pico.chips[0, 0x40].is_there = True
    for _ in range(8 * 64 + 8):
        valid = scanner.scan()[1]
    assert valid == 0xFF


def test_a_brown_out_toggles_the_reset_bit_within_one_round():
    for check_all, most in ((False, 8), (True, 1)):
        pico = SimulatedPico(chips())
        scanner = scanner_on(pico, check_all=check_all)
        before = scanner.scan()[2]
        pico.chips[1, 0x42].brown_out()
        seen = [scanner.scan()[2] ^ before for _ in range(most)]
        assert seen[-1] == 1 << 5
        assert set(seen) <= {0, 1 << 5}
        assert scanner.resets == 1
        assert pico.chips[1, 0x42].config == 0x3C4F


class Bench:
    """A node, what is sent to it and what it says."""

    def __init__(self, count=8):
        self.pico = SimulatedPico(chips(count), us=(1 << 30) - 20000)
        self.node = Node(self.pico)
        self.deframer = Deframer()

    def send(self, kind, sequence, payload=b""):
        self.pico.incoming += encode(protocol.head(kind, sequence, 0) + payload)

    def run(self, us):
        """Bodies that the node sends in this time, as (type, sequence, time, payload)."""
        end = self.pico.us + us
        while self.pico.us < end:
            self.node.step()
        out = self.deframer.feed(bytes(self.pico.outgoing))
        self.pico.outgoing = bytearray()
        return [protocol.parse_head(body)[1:] + (body[protocol.HEAD_BYTES :],) for body in out]  # noqa: RUF005

    def start(self, period_us=4000, count=8):
        payload = struct.pack("<IB", period_us, count)
        self.send(protocol.CONFIGURE, 1, payload + b"".join([struct.pack("<BBH", *s) for s in sensors(count)]))
        self.send(protocol.START, 2)
        said = self.run(5000)
        assert [m[3] for m in said if m[0] == protocol.ANSWER] == [b"\x82\0", b"\x83\0"]
        return [m for m in said if m[0] == protocol.DATA]


def only(kind, said):
    return [m for m in said if m[0] == kind]


def test_scans_come_at_absolute_deadlines_across_the_wrap_of_the_counter():
    bench = Bench()
    scans = bench.start() + only(protocol.DATA, bench.run(400000))
    assert [s[1] for s in scans] == list(range(len(scans)))
    assert 100 <= len(scans) <= 102
    for k, s in enumerate(scans):
        assert 0 <= s[2] - scans[0][2] - 4000 * k < 200


def test_deadlines_that_were_slept_through_are_numbered():
    bench = Bench()
    bench.start()
    bench.run(40000)
    bench.pico.us += 21000
    sequences = [s[1] for s in only(protocol.DATA, bench.run(40000))]
    jumps = [b - a for a, b in zip(sequences, sequences[1:])]  # noqa: B905, RUF007  (no such thing in MicroPython)
    assert sum([j - 1 for j in jumps]) + sequences[0] >= 5
    status = only(protocol.STATUS, bench.run(600000))[-1]
    assert struct.unpack("<6I", status[3][10:])[1] == 5


def test_what_the_host_does_not_take_is_dropped_whole_and_counted():
    bench = Bench()
    bench.start()
    bench.pico.room = 0
    bench.run(1000000)
    bench.pico.room = 1 << 30
    said = bench.run(1000000)
    assert bench.deframer.damaged == 0
    sequences = [s[1] for s in only(protocol.DATA, said)]
    lost = sequences[-1] - sequences[0] + 1 - len(sequences)
    dropped = struct.unpack("<6I", only(protocol.STATUS, said)[-1][3][10:])[2]
    assert 0 < lost <= dropped
    assert lost >= dropped - 3


def test_an_echo_is_answered_with_both_times():
    bench = Bench()
    bench.start()
    bench.run(10000)
    before = bench.node._clock.now()
    bench.send(protocol.ECHO, 99)
    (answer,) = only(protocol.ECHO_ANSWER, bench.run(5000))
    received = struct.unpack("<I", answer[3])[0]
    assert answer[1] == 99
    assert before <= received <= answer[2] <= before + 5000


def test_edges_are_sent_with_their_own_times_and_numbers():
    bench = Bench()
    bench.run(1000)
    times = []
    for level in (1, 0, 1):
        times.append(bench.node._clock.now())
        bench.pico.turn(level)
        bench.pico.us += 333
    edges = only(protocol.EDGE, bench.run(1000))
    assert [(e[1], e[2], e[3]) for e in edges] == [(0, times[0], b"\1"), (1, times[1], b"\0"), (2, times[2], b"\1")]
    status = only(protocol.STATUS, bench.run(600000))[-1]
    assert struct.unpack("<IBBI", status[3][:10]) == (0x12345678, 0, 1, 3)


def test_edges_that_were_lost_leave_a_hole_in_the_numbers():
    bench = Bench()
    for k in range(100):
        bench.pico.turn(k & 1)
    first = only(protocol.EDGE, bench.run(1000))
    bench.pico.turn(1)
    (following,) = only(protocol.EDGE, bench.run(1000))
    assert len(first) == 63
    assert following[1] == 100


def test_commands_out_of_place_are_answered():
    bench = Bench()
    bench.send(protocol.START, 5)
    bench.send(0x99, 6)
    bench.send(protocol.CONFIGURE, 7, b"\1")
    bench.pico.incoming += encode(b"\x09" + protocol.head(protocol.STOP, 8, 0)[1:])
    said = [(m[1], m[3]) for m in only(protocol.ANSWER, bench.run(2000))]
    assert said == [
        (5, bytes((protocol.START, protocol.NOT_CONFIGURED))),
        (6, bytes((0x99, protocol.BAD_COMMAND))),
        (7, bytes((protocol.CONFIGURE, protocol.BAD_COMMAND))),
        (8, bytes((protocol.STOP, protocol.BAD_VERSION))),
    ]
    bench.start()
    bench.send(protocol.CONFIGURE, 9, b"")
    assert (9, bytes((protocol.CONFIGURE, protocol.RUNNING))) in [(m[1], m[3]) for m in bench.run(5000)]
    bench.send(protocol.STOP, 10)
    bench.run(5000)
    assert not only(protocol.DATA, bench.run(50000))


def test_garbage_does_not_stop_the_node():
    bench = Bench()
    bench.start()
    for k in range(40):
        bench.pico.incoming += bytes([(k * j + 13) & 0xFF for j in range(97)])
        bench.run(4000)
    bench.pico.incoming += b"\0"
    bench.send(protocol.DESCRIBE, 77)
    (described,) = only(protocol.DESCRIPTION, bench.run(10000))
    assert described[1] == 77
    assert only(protocol.DATA, bench.run(10000))


def test_the_watchdog_is_fed_and_the_led_shows():
    bench = Bench()
    bench.start()
    fed = bench.pico.fed
    bench.run(600000)
    assert bench.pico.fed > fed + 100
    assert bench.pico.shown[-1] == (True, False)
    bench.pico.chips[0, 0x40].is_there = False
    bench.run(600000)
    assert bench.pico.shown[-1] == (True, True)
