"""Scans of up to eight INA219 over a bus with two methods.

The bus has ``read_word(controller, address, register)`` and ``write_word(controller, address, register, word)``; both
raise OSError when the chip does not answer. A reading that failed has its valid bit cleared, and codes that no chip
gives.

Each scan also reads one sensor's CONFIG back, in turn; all of them where there is time. When it is not what was
written, or cannot be read, the sensor's reset bit toggles and it is set up again. So a reading is good when the reset
bit of its sensor has not toggled by the scan that is as many scans later as there are sensors, less one. A bit that
toggles tells so even when the frame in which it did was lost.
"""

import struct

CONFIG, SHUNT, BUS = 0, 1, 2
NO_SHUNT, NO_BUS = 0x8000, 0
"""Codes of a reading that failed."""
GIVE_UP_AFTER = 8
"""Failures in a row after which a sensor is left alone ..."""
PROBE_EVERY = 64
"""... but for one try in so many of its turns."""


class Scanner:
    """``sensors`` holds (controller, address, config) tuples; ``now`` reads the node's time, ``since`` subtracts."""

    def __init__(self, bus, now, since, sensors, check_all=False):
        self._bus = bus
        self._now = now
        self._since = since
        self._sensors = sensors
        self._failures = [0] * len(sensors)
        self._is_set_up = [False] * len(sensors)
        self._words = bytearray(4 * len(sensors))
        self._checks = len(sensors) if check_all else 1
        self._turn = 0
        self._round = 0
        self._reset = 0
        self.errors = 0
        """Transfers that failed."""
        self.resets = 0
        """How often a sensor that had lost its settings was set up again."""

    def set_up(self):
        """Write and check all settings. A sensor that does not answer is tried again while scanning."""
        for i in range(len(self._sensors)):
            self._configure(i)
            if not self._is_set_up[i]:
                self._failures[i] = GIVE_UP_AFTER

    def describe(self):
        return [s + (1 if self._is_set_up[i] else 0,) for i, s in enumerate(self._sensors)]  # noqa: RUF005  (no MicroPython)

    def scan(self):
        """(time, valid, reset, span, words). Sensor i was read at time + span * (i + 0.5) / n."""
        valid = at = 0
        words, bus = self._words, self._bus
        begin = self._now()
        for i, (controller, address, _) in enumerate(self._sensors):
            is_read = False
            if self._is_set_up[i]:
                try:
                    shunt = bus.read_word(controller, address, SHUNT)
                    struct.pack_into("<HH", words, at, shunt, bus.read_word(controller, address, BUS))
                    valid |= 1 << i
                    is_read = True
                    self._failures[i] = 0
                except OSError:
                    self._failed(i)
            if not is_read:
                struct.pack_into("<HH", words, at, NO_SHUNT, NO_BUS)
            at += 4
        span = self._since(self._now(), begin)
        for _ in range(self._checks):
            self._check()
        return begin, valid, self._reset, min(span, 0xFFFF), bytes(words)

    def _check(self):
        """Read back the settings of the sensor whose turn it is."""
        i = self._turn
        self._turn += 1
        if self._turn == len(self._sensors):
            self._turn = 0
            self._round += 1
        if self._failures[i] >= GIVE_UP_AFTER and self._round % PROBE_EVERY:
            return
        controller, address, config = self._sensors[i]
        if self._is_set_up[i]:
            try:
                if self._bus.read_word(controller, address, CONFIG) == config:
                    return
                self.resets += 1
            except OSError:
                self._failed(i)
        self._reset ^= 1 << i
        self._configure(i)

    def _configure(self, i):
        controller, address, config = self._sensors[i]
        self._is_set_up[i] = False
        try:
            self._bus.write_word(controller, address, CONFIG, config)
            self._is_set_up[i] = self._bus.read_word(controller, address, CONFIG) == config
        except OSError:
            self._failed(i)

    def _failed(self, i):
        self.errors += 1
        self._failures[i] += 1
        if self._failures[i] >= GIVE_UP_AFTER:
            self._is_set_up[i] = False
