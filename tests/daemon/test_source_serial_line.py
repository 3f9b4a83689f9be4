"""The source for any meter that prints lines, on a port that plays back text in virtual time."""

from collections import deque

import pytest
from conformance import EPOCH, Opened, SourceConformance

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Flag
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.serial_line import LineFormat, SerialLineOptions, SerialLineSource
from powerd_daemon.sources.sim.bus import VirtualClock

MS = 1_000_000
S = 1_000_000_000
POWER = r"P=(?P<power>-?[\d.]+) W"


class Player:
    """A port on which lines begin at given times, one character a millisecond."""

    name, byte_ns, blocks = "/dev/ttyPLAY", MS, False

    def __init__(self, clock, lines=()):
        self.clock = clock
        self.coming = deque()
        self.written = []
        self.answer = None
        self.is_out = self.is_closed = False
        for t_ns, text in lines:
            self.play(t_ns, text)

    def play(self, t_ns, text):
        self.coming += [(t_ns + (i + 1) * MS, bytes((b,))) for i, b in enumerate(text.encode())]

    def read(self):
        if self.is_out:
            raise SensorError(f"{self.name} is gone")
        came = b""
        while self.coming and self.coming[0][0] <= self.clock.now_ns():
            came += self.coming.popleft()[1]
        return came

    def write(self, data):
        self.written.append((self.clock.now_ns(), data))
        if self.answer:
            self.play(self.clock.now_ns() + 20 * MS, self.answer)

    def close(self):
        self.is_closed = True


def opened(lines=(), pattern=POWER, answer=None, **options):
    clock = VirtualClock()
    player = Player(clock, [(clock.now_ns() + t_ms * MS, text) for t_ms, text in lines])
    player.answer = answer
    given_options = SerialLineOptions(port="/dev/ttyPLAY", pattern=pattern, **options)
    source = SerialLineSource(given_options, Start("meter", EPOCH, 0, clock), lambda port, baud: player)
    return Opened(source, clock, *source.open()), player


def every(count, first_ms=100, step_ms=1000, text="P={:.1f} W\r\n"):
    return [(first_ms + k * step_ms, text.format(100.0 + k)) for k in range(count)]


class TestConformance(SourceConformance):
    polls = 1000

    def make(self, start):
        lines = [(start.clock.now_ns() + k * 100 * MS, f"P={k}.5 W E={k} Wh\r\n") for k in range(110)]
        pattern = r"P=(?P<power>[\d.]+) W E=(?P<energy>\d+) Wh"
        options = SerialLineOptions(port="x", pattern=pattern, units={"energy": "Wh"}, every_ms=100.0)
        self.player = Player(start.clock, lines)
        return SerialLineSource(options, start, lambda port, baud: self.player)

    def fail(self, source):
        self.player.is_out = True


class TestReadings:
    def test_each_line_once_in_microwatts_at_the_middle_of_its_window(self):
        o, _ = opened(every(10))
        r = o.readings(o.run(1000), "meter")
        assert r["power_uw"] == [100_000_000 + k * 1_000_000 for k in range(10)]
        begun = [1 * S + 100 * MS + k * S for k in range(10)]
        assert all(abs(t + 500 * MS - b) <= 10 * MS for t, b in zip(r["t_ns"], begun, strict=True))
        assert not any(r["flags"])

    def test_power_and_energy_are_lines_of_their_own(self):
        lines = [(100, "P=100 W\n"), (600, "E=2.5 Wh\n"), (1100, "P=101 W\n"), (1600, "E=3 Wh\n")]
        o, _ = opened(lines, r"P=(?P<power>\d+) W|E=(?P<energy>[\d.]+) Wh", units={"energy": "Wh"})
        made = o.run(200)
        assert o.readings(made, "meter")["power_uw"] == [100_000_000, 101_000_000]
        assert o.readings(made, "meter_energy")["energy_uj"] == [9_000_000_000, 10_800_000_000]
        assert o.devices[0].feeds == ("meter",)

    def test_a_garbled_line_is_a_flagged_reading_and_a_heading_is_nothing(self):
        lines = [(100, "P=1 W\n"), (1100, "# time\n"), (1200, "P=2x@ W\n"), (2100, "P=3 W\n"), (2500, "\n")]
        o, _ = opened(lines, ignore="^#")
        r = o.readings(o.run(300), "meter")
        assert r["flags"] == [0, Flag.IO_ERROR, 0]
        assert r["power_uw"] == [1_000_000, 0, 3_000_000]
        assert o.source.health() == {
            "garbled_lines": 1, "late_lines": 0, "silences": 0, "first_garbled": "P=2x@ W",
        }  # fmt: skip

    def test_a_silence_is_flagged_until_it_ends(self):
        o, player = opened(every(3))
        made = o.run(900)
        player.play(o.clock.now_ns() + 50 * MS, "P=7 W\n")
        made += o.run(100)
        r = o.readings(made, "meter")
        silent = [f for f in r["flags"] if f]
        assert silent == [Flag.MISSING] * len(silent)
        assert 3 <= len(silent) <= 5
        assert o.source.silences == len(silent)
        assert (r["flags"][-1], r["power_uw"][-1]) == (0, 7_000_000)

    def test_lines_that_came_while_nobody_looked_have_no_time_and_are_flagged(self):
        o, _ = opened(every(6))
        made = o.run(150)
        o.clock.t_ns += 2 * S
        made += o.run(200)
        r = o.readings(made, "meter")
        assert Flag.STALE in r["flags"]
        assert o.source.health()["late_lines"] == r["flags"].count(Flag.STALE)
        assert all(c == 0 for c, f in zip(r["power_uw"], r["flags"], strict=True) if f)
        assert not r["flags"][-1]

    def test_the_piece_of_a_line_that_was_under_way_at_the_start_is_no_garbage(self):
        o, _ = opened([(100, "9 W\n"), *every(2, first_ms=1000)])
        r = o.readings(o.run(250), "meter")
        assert r["flags"] == [0, 0]

    def test_a_meter_that_wants_to_be_asked(self):
        o, player = opened(answer="P=42 W\r\n", ask=r"VAL?\r\n", every_ms=500.0)
        r = o.readings(o.run(500), "meter")
        assert {data for _, data in player.written} == {b"VAL?\r\n"}
        assert len(player.written) == 10
        assert r["power_uw"] == [42_000_000] * 10


class TestFormat:
    @pytest.mark.parametrize(
        ("pattern", "units", "text", "power", "energy"),
        [
            (r"(?P<power>[\d.]+)", {"power": "mW"}, "1234.5", 1_234_500, None),
            (r"(?P<power>[\d.]+)", {"power": "kW"}, "0.25", 250_000_000, None),
            (r"(?P<energy>[\d.]+)", {"energy": "kWh"}, "1.000001", None, 3_600_003_600_000),
            (r"(?P<energy>[\d.]+)", {"energy": "J"}, "12.5", None, 12_500_000),
            (r"(?P<volts>[\d.]+)V (?P<amps>[\d.-]+)mA", {"amps": "mA"}, "12.05V -100mA", -1_205_000, None),
            (r"(?P<power>[\d.]+) ?(?P<power_unit>m?W)", {}, "15 mW", 15_000, None),
            (r"(?P<power>[\d.]+) ?(?P<power_unit>m?W)", {}, "15W", 15_000_000, None),
            (r"(?P<power>[\d.e+-]+)", {}, "1.5e2", 150_000_000, None),
        ],
    )
    def test_units(self, pattern, units, text, power, energy):
        found = LineFormat(pattern, units).read(text)
        assert (found.get("power"), found.get("energy")) == (power, energy)

    @pytest.mark.parametrize(
        ("pattern", "units", "what"),
        [
            ("(", {}, "no regular expression"),
            (r"\d+", {}, "no group"),
            (r"(?P<watts>\d+)", {}, "group 'watts'"),
            (r"(?P<volts>\d+)", {}, "both groups"),
            (r"(?P<power>\d+)(?P<volts>\d)(?P<amps>\d)", {}, "without power"),
            (r"(?P<power>\d+)", {"power": "VA"}, "'VA' is no unit of power"),
            (r"(?P<power>\d+)", {"energy": "J"}, "no group 'energy'"),
        ],
    )
    def test_formats_that_cannot_be_used_are_refused(self, pattern, units, what):
        with pytest.raises(ConfigError, match=what):
            SerialLineOptions(port="p", pattern=pattern, units=units)

    @pytest.mark.parametrize("text", ["INF", "-inf", "NaN", "sNaN", "1e400", "1E+999999999"])
    def test_what_is_no_finite_number_is_no_reading(self, text):
        assert not LineFormat(r"(?P<energy>\S+)", {}).read(text)
