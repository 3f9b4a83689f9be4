"""The main loop: deadlines, commands and frames. Everything that touches the world is in ``hardware``.

``hardware`` has: ``bus`` (see `scanner`), ``ticks()`` and ``ticks_diff(a, b)`` in microseconds, ``read()`` giving the
bytes that have come (never waiting), ``write(buffer)`` giving how many it took, ``edges`` (an `EdgeQueue`) and
``level()`` of the marker pin, ``marker`` (its number), ``uid`` (8 bytes), ``boot`` (a random number), ``reset_cause``
(0 unknown, 1 power, 2 watchdog), ``crc``, ``feed()`` for the watchdog, ``show(is_running, has_errors)`` for the LED,
``idle()`` called when nothing is due for a while.
"""

from powernode import protocol as p
from powernode.protocol import Deframer, encode
from powernode.ring import ByteRing
from powernode.scanner import Scanner

RING_BYTES = 8192
"""A third of a second of eight sensors, 500 times a second each."""
STATUS_US = 500000
IDLE_US = 1000
CHECK_ALL_US = 20000
"""With a period from here on, every scan reads all settings back."""
PIECE = 64
"""Bytes a write: one packet of USB full speed."""


class NodeClock:
    """``ticks`` reads the counter, ``diff`` subtracts two readings. Ask at least every few minutes."""

    def __init__(self, ticks, diff):
        self._ticks = ticks
        self._diff = diff
        self._last = ticks()
        self._us = 0

    def now(self):
        """Microseconds since start modulo 2**32."""
        ticks = self._ticks()
        self._us = (self._us + self._diff(ticks, self._last)) & 0xFFFFFFFF
        self._last = ticks
        return self._us

    def at(self, ticks):
        """The same for a reading of the counter a short while ago."""
        return (self.now() - self._diff(self._last, ticks)) & 0xFFFFFFFF


def since(later, earlier):
    """Microseconds from ``earlier`` to ``later``, negative when they come the other way round."""
    span = (later - earlier) & 0xFFFFFFFF
    return span - 0x100000000 if span & 0x80000000 else span


class Node:
    def __init__(self, hardware):
        self._hardware = hardware
        self._clock = NodeClock(hardware.ticks, hardware.ticks_diff)
        self._deframer = Deframer(hardware.crc)
        self._ring = ByteRing(RING_BYTES)
        self._scanner = None
        self._period_us = 0
        self._is_running = False
        self._deadline = 0
        self._sequence = 0
        self._edges = 0
        self._lost_edges = 0
        self._level = hardware.level()
        self._statuses = 0
        self._status_at = self._clock.now()
        self._missed = 0
        self._dropped = 0
        self._errors_shown = 0

    def run(self):
        """For ever."""
        while True:
            self.step()

    def step(self):
        """One turn: commands, the scan that is due, edges, the status that is due, and what the host takes."""
        hardware = self._hardware
        hardware.feed()
        data = hardware.read()
        if data:
            # The time of arrival, for echoes: as early as can be.
            received = self._clock.now()
            for body in self._deframer.feed(data):
                self._command(body, received)
        wait = IDLE_US + 1
        if self._is_running:
            wait = since(self._deadline, self._clock.now())
            if wait <= 0:
                self._scan(-wait)
        self._send_edges()
        if since(self._clock.now(), self._status_at) >= STATUS_US:
            self._send_status()
        self._flush()
        if wait > IDLE_US and not len(self._ring):
            hardware.idle()

    def _flush(self):
        ring = self._ring
        while len(ring):
            sent = self._hardware.write(ring.peek(PIECE))
            if not sent:
                return
            ring.drop(sent)

    def _send(self, body):
        if not self._ring.put(encode(body, self._hardware.crc)):
            self._dropped += 1

    def _scan(self, late_us):
        # A sequence number counts deadlines, so that those slept through are seen as a jump.
        skipped = late_us // self._period_us
        self._missed += skipped
        self._sequence += skipped
        self._deadline = (self._deadline + (skipped + 1) * self._period_us) & 0xFFFFFFFF
        time_us, valid, reset, span_us, words = self._scanner.scan()
        self._send(p.data(self._sequence, time_us, valid, reset, span_us, words))
        self._sequence = self._sequence + 1 & 0xFFFF

    def _send_edges(self):
        edges = self._hardware.edges
        while True:
            edge = edges.take()
            if edge is None:
                break
            self._level = edge[1]
            self._send(p.edge(self._edges, self._clock.at(edge[0]), edge[1]))
            self._edges += 1
        # Numbers of edges that were lost are never sent: the host sees a jump.
        lost = edges.lost
        self._edges += lost - self._lost_edges
        self._lost_edges = lost

    def _send_status(self):
        # This time first: every edge before it is in the queue by now, and goes out in front of the status.
        now = self._clock.now()
        self._status_at = now
        self._send_edges()
        scanner = self._scanner
        errors, resets = (scanner.errors, scanner.resets) if scanner else (0, 0)
        counters = (errors, self._missed, self._dropped, self._deframer.damaged, self._lost_edges, resets)
        is_running = 1 if self._is_running else 0
        self._send(p.status(self._statuses, now, self._hardware.boot, is_running, self._level, self._edges, counters))
        self._statuses += 1
        trouble = errors + self._missed + self._dropped + self._lost_edges + resets
        self._hardware.show(self._is_running, trouble != self._errors_shown)
        self._errors_shown = trouble

    def _command(self, body, received):
        head = p.parse_head(body)
        if head is None:
            return
        version, kind, sequence, _ = head
        if version != p.VERSION:
            self._answer(sequence, kind, p.BAD_VERSION)
        elif kind == p.ECHO:
            # Out of turn and at once: the sooner it leaves, the better the clocks can be compared.
            self._flush()
            self._send(p.echo_answer(sequence, self._clock.now(), received))
            self._flush()
        elif kind == p.DESCRIBE:
            self._describe(sequence)
        elif kind == p.CONFIGURE:
            self._configure(sequence, body)
        elif kind == p.START:
            self._start(sequence)
        elif kind == p.STOP:
            self._is_running = False
            self._answer(sequence, kind, p.OK)
        else:
            self._answer(sequence, kind, p.BAD_COMMAND)

    def _answer(self, sequence, command, result):
        self._send(p.answer(sequence, self._clock.now(), command, result))

    def _describe(self, sequence):
        h = self._hardware
        sensors = self._scanner.describe() if self._scanner else []
        self._send(
            p.description(
                sequence,
                self._clock.now(),
                h.boot,
                h.uid,
                h.reset_cause,
                1 if self._is_running else 0,
                h.marker,
                self._period_us,
                sensors,
            )
        )

    def _configure(self, sequence, body):
        if self._is_running:
            self._answer(sequence, p.CONFIGURE, p.RUNNING)
            return
        wanted = p.parse_configure(body)
        if wanted is None:
            self._answer(sequence, p.CONFIGURE, p.BAD_COMMAND)
            return
        self._period_us, sensors = wanted
        self._scanner = Scanner(self._hardware.bus, self._clock.now, since, sensors, self._period_us >= CHECK_ALL_US)
        self._scanner.set_up()
        self._answer(sequence, p.CONFIGURE, p.OK)

    def _start(self, sequence):
        if self._scanner is None:
            self._answer(sequence, p.START, p.NOT_CONFIGURED)
            return
        if not self._is_running:
            self._is_running = True
            self._sequence = 0
            self._deadline = self._clock.now()
        self._answer(sequence, p.START, p.OK)
