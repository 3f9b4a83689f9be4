"""Any program that prints watts: real programs, and one port in virtual time for what every source must do."""

import sys
import time

import pytest
from conformance import EPOCH, Opened, SourceConformance

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Flag
from powerd_daemon.clock import SystemClock
from powerd_daemon.sources import command
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.command import CommandOptions, CommandSource, ProgramPort
from powerd_daemon.sources.sim.bus import VirtualClock

MS = 1_000_000


class Printer:
    """A program's output: a line every 100 ms of the clock, until it ends."""

    name, byte_ns, blocks = "meter-tool", 0, False

    def __init__(self, clock, text="{:.1f} W\n"):
        self.clock, self.text, self.begun_ns, self.printed, self.ended = clock, text, clock.now_ns(), 0, False

    def read(self, timeout_ns=0):
        if self.ended:
            raise SensorError("the program meter-tool ended with status 1")
        due = (self.clock.now_ns() - self.begun_ns) // (100 * MS)
        lines = [self.text.format(50.0 + k) for k in range(self.printed, due)]
        self.printed = due
        return "".join(lines).encode()

    def close(self):
        self.ended = True


class TestConformance(SourceConformance):
    polls = 1000

    @pytest.fixture(autouse=True)
    def _port(self, monkeypatch, clock):
        def start(_command):
            self.port = Printer(clock)
            return self.port

        monkeypatch.setattr(command, "ProgramPort", start)

    def make(self, start):
        return CommandSource(CommandOptions(command=("meter-tool",), every_ms=100.0), start)

    def fail(self, source):
        self.port.ended = True


def printed(monkeypatch, text, **options):
    clock = VirtualClock()
    monkeypatch.setattr(command, "ProgramPort", lambda _command: Printer(clock, text))
    given = {"command": ("meter-tool",), "every_ms": 100.0} | options
    source = CommandSource(CommandOptions(**given), Start("command", EPOCH, 0, clock))
    return Opened(source, clock, *source.open())


class TestNumbers:
    @pytest.mark.parametrize(
        ("text", "options", "power_uw"),
        [
            ("12.5\n", {}, 12_500_000),
            ("1.25e2 W\n", {}, 125_000_000),
            ("  310mW \n", {}, 310_000),
            ("12,5 W\n", {"decimal": ","}, 12_500_000),
            ("-3.5 W\n", {"pattern": r"(?P<power>\S+) W"}, -3_500_000),
            ("2e6 W\n", {"pattern": r"(?P<power>\S+) W"}, 2_000_000_000_000),
            (".5\n", {"units": {"power": "kW"}}, 500_000_000),
            ("t=3 p=70 mW\n", {"pattern": r"p=(?P<power>\d+) (?P<power_unit>m?W)"}, 70_000),
            ("12,02;1,5\n", {"pattern": r"(?P<volts>[\d,]+);(?P<amps>[\d,]+)", "decimal": ","}, 18_030_000),
        ],
    )
    def test_a_line_that_is_a_number_or_what_a_pattern_finds(self, monkeypatch, text, options, power_uw):
        o = printed(monkeypatch, text, **options)
        r = o.readings(o.run(30), "meter")
        assert (set(r["power_uw"]), set(r["flags"])) == ({power_uw}, {0})

    @pytest.mark.parametrize(
        "text",
        ["N/A", "Segfault: sensor 3 gone", "error 0", "0 errors", "-5 W", "1e9", "nan", "5 VA", "12,5", "3 4", "5 Wh"],
    )
    def test_a_line_that_is_no_number_of_watts_is_flagged(self, monkeypatch, text):
        o = printed(monkeypatch, f"{text}\n")
        r = o.readings(o.run(50), "meter")
        # The piece of a line that was under way at the start is no garbage.
        assert r["flags"][1:] == [Flag.IO_ERROR] * len(r["flags"][1:])
        assert o.source.health()["garbled_lines"] >= 2
        assert o.source.health()["first_garbled"] == text

    def test_what_ran_is_kept_with_the_readings_and_needs_no_hardware(self, monkeypatch):
        o = printed(monkeypatch, "1\n")
        assert o.streams[0].detail["command"] == ["meter-tool"]
        assert "untested" not in o.streams[0].detail
        assert o.streams[0].lines[0].description == "power as printed by the meter on meter-tool"

    @pytest.mark.parametrize("options", [{"command": ()}, {"command": ("",)}, {"command": ("x",), "pattern": "("}])
    def test_options_that_cannot_be_used_are_refused(self, options):
        with pytest.raises(ConfigError):
            CommandOptions(**options)


def wait(o, line, count):
    made, deadline = [], time.monotonic() + 60
    while len(o.readings(made, line)["t_ns"]) < count:
        assert time.monotonic() < deadline
        o.source.poll()
        made += o.source.take()
        time.sleep(0.005)
    return o.readings(made, line)


@pytest.mark.slow
class TestPrograms:
    def start(self, *program):
        clock = SystemClock()
        source = CommandSource(CommandOptions(command=program, every_ms=20.0), Start("command", EPOCH, 0, clock))
        return Opened(source, clock, *source.open())

    def test_a_line_is_timed_by_its_arrival(self):
        script = "import time\nfor k in range(10**6):\n    print(100 + k, flush=True)\n    time.sleep(0.02)"
        clock = SystemClock()
        begun_ns = clock.now_ns()
        o = self.start(sys.executable, "-c", script)
        try:
            r = wait(o, "meter", 5)
            good = [code for code, flag in zip(r["power_uw"], r["flags"], strict=True) if not flag]
            assert good == sorted(set(good))
            assert all(code % 1_000_000 == 0 for code in good)
            assert begun_ns - 20 * MS < r["t_ns"][0]
            assert r["t_ns"][-1] < clock.now_ns()
        finally:
            o.source.close()

    def test_a_program_that_ends_loses_the_source(self):
        o = self.start("sh", "-c", "echo 5; exit 3")
        with pytest.raises(SensorError, match="the program sh ended with status 3"):
            wait(o, "meter", 1000)
        o.source.close()

    def test_one_that_is_not_there(self):
        with pytest.raises(SensorError, match=r"/nonexistent/meter cannot be started: .*No such file"):
            self.start("/nonexistent/meter")

    def test_letting_go_ends_all_that_the_program_began(self):
        port = ProgramPort(("sh", "-c", "trap '' TERM; sleep 600 & echo $!; wait; sleep 600"))
        text = b""
        while not text.endswith(b"\n"):
            text += port.read()
        port.close()
        port.close()
        assert port._process.returncode is not None
        deadline = time.monotonic() + 30
        while is_running(int(text)):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def is_running(pid):
    """Whether a process runs; one that has ended may wait for somebody who asks."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
