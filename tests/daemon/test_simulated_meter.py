"""The simulated WT310E itself: strict about its protocol, and usable on a pty."""

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_core.errors import SensorError
from powerd_daemon.clock import SystemClock
from powerd_daemon.meter.link import LineReader, open_link
from powerd_daemon.meter.scpi import header_pattern
from powerd_daemon.meter.simulated import SimWt310
from powerd_daemon.meter.simulated_inputs import Input
from powerd_daemon.meter.simulator import Pty, main
from powerd_daemon.sim.shapes import Constant
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.wt310e import Wt310eOptions, Wt310eSource

MS = 1_000_000
S = 1_000_000_000


class Talk:
    """Speaks to a meter with 230 V and 345 W behind it, one character in 1 ms."""

    def __init__(self, watts=345.0):
        self.t_ns = 0
        self.meter = SimWt310(Input(Constant(0, level_w=watts).energy_j), 0, byte_ns=MS)
        self("::COMM:HEAD OFF"[1:])

    def __call__(self, text, after_s=0.2, end="\r\n"):
        self.meter.receive((text + end).encode(), self.t_ns)
        self.t_ns += round(after_s * S)
        return self.meter.transmit(self.t_ns).decode()

    def error(self):
        return self(":STAT:ERR?").strip()


def test_it_says_what_it_is():
    assert Talk()("*IDN?").startswith("YOKOGAWA,WT310E,SIMULATED")


@pytest.mark.parametrize("end", ["\n", "\r", "", "\r\r\n"])
def test_a_wrong_end_of_a_message_gets_no_answer(end):
    talk = Talk()
    assert talk("*IDN?", end=end) == ""


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (":NUM:NORM:VALL?", '113,"Undefined header"'),
        ("NUM:NORM:VAL?", '113,"Undefined header"'),
        (":STAT:EESR", '113,"Undefined header"'),
        (":INP:VOLT:RANG 230", '222,"Data out of range"'),
        (":INP:CURR:RANG 3", '222,"Data out of range"'),
        (":SAMP:RATE 0.3", '222,"Data out of range"'),
        (":INP:MODE AC", '222,"Data out of range"'),
        (":INTEG:STOP", '844,"Integration does not run"'),
        ("*IDN?\n", '102,"Syntax error"'),
    ],
)
def test_what_it_does_not_take_goes_to_the_error_queue(command, error):
    talk = Talk()
    assert talk(command) == ""
    assert talk.error() == error
    assert talk.error() == '0,"NO ERROR"'


def test_a_question_before_the_last_answer_was_sent_throws_that_away():
    talk = Talk()
    talk("*IDN?", after_s=0.01)
    assert talk(":NUM:NORM:NUM?").strip() == "3"
    assert talk.error() == '410,"Query INTERRUPTED"'


def test_values_exist_only_after_an_update_with_the_present_settings():
    talk = Talk()
    assert talk(":NUM:NORM:VAL?", 0.1) == "NAN,NAN,NAN\r\n"
    talk.t_ns += S
    assert talk(":NUM:NORM:VAL?") == "2.3000E+02,1.5000E+00,3.4500E+02\r\n"
    talk(":INP:VOLT:RANG 300", 0.01)
    assert talk(":NUM:NORM:VAL?").startswith("NAN")
    talk.t_ns += S
    assert talk(":NUM:NORM:VAL?").startswith("2.3")


def test_inputs_clip_at_their_ranges():
    talk = Talk(watts=345.0)
    talk(":INP:CURR:RANG 1")
    talk.t_ns += S
    assert talk(":NUM:NORM:VAL?") == "2.3000E+02,INF,INF\r\n"
    assert int(talk(":STAT:COND?")) & 0x40


def test_waiting_answers_when_the_update_ends():
    talk = Talk()
    talk(":STAT:FILT1 FALL;:SAMP:RATE 1")
    talk.t_ns += S
    talk(":STAT:EESR?")
    asked_ns = talk.t_ns
    assert talk(":COMM:WAIT 1;:STAT:EESR?", 0.1) == ""
    talk.t_ns += S
    assert talk("") == "1\r\n"
    assert asked_ns < talk.t_ns


def test_an_integration_goes_through_its_states():
    talk = Talk(watts=3600.0)
    talk(":INP:CURR:RANG 20;:NUM:NORM:NUM 1;:NUM:NORM:ITEM1 WH,1;:INTEG:MODE NORM;:INTEG:TIM 0,0,0")
    talk.t_ns += S
    assert talk(":NUM:NORM:VAL?") == "NAN\r\n"
    assert talk(":INTEG:STAR;:INTEG:STAT?", 0.1) == "START\r\n"
    assert talk(":INTEG:STAT?", 0.3) == "", "it is deaf for 0.2 s"
    assert talk.error() == '810,"Busy"'
    for command, number in ((":INP:CURR:RANG 10", "813"), (":INTEG:STAR", "842"), (":INTEG:RES", "845")):
        talk(command)
        assert talk.error().startswith(f"{number},")
    talk.t_ns += 10 * S
    assert float(talk(":NUM:NORM:VAL?")) == pytest.approx(10.5, abs=1.0)
    talk(":INTEG:STOP")
    before = talk(":NUM:NORM:VAL?")
    talk.t_ns += 10 * S
    assert float(talk(":NUM:NORM:VAL?")) == pytest.approx(float(before), abs=0.6)
    assert talk(":INTEG:RES;:INTEG:STAT?") == "RESET\r\n"
    assert not talk.meter.errors


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (":NUMeric[:NORMal]:VALue", (":NUM:VAL", ":numeric:norm:value", ":NUM:NORMAL:VAL"), (":NUME:VAL", ":NUM:VALU")),
        ("[:SAMPle]:RATE", (":RATE", ":SAMP:RATE"), (":RAT", ":SAM:RATE")),
        (":STATus:FILTer<x>", (":STAT:FILT1", ":STATUS:FILTER16"), (":STAT:FILT", ":STAT:FILTE1")),
    ],
)
def test_headers_have_a_long_and_a_short_form(spec, good, bad):
    assert all(header_pattern(spec).fullmatch(text) for text in good)
    assert not any(header_pattern(spec).fullmatch(text) for text in bad)


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
    assert reader.begun_ns == 98_000
    assert reader.feed(b"c\r\nx\n", 190_000, 210_000) == [(98_000, b"abc"), (198_000, b"x")]


def test_the_source_reads_it_through_pyserial_on_a_pty():
    clock = SystemClock()
    meter = SimWt310(Input(Constant(0, level_w=345.0).energy_j), clock.now_ns(), byte_ns=10 * S // 57600)
    pty = Pty(meter, clock)

    class Pumped(SystemClock):
        """While the source sleeps the meter works: one thread serves both."""

        def sleep_until(self, t_ns: int) -> None:
            while True:
                pty.step(wait_ms=1)
                if self.now_ns() >= t_ns:
                    return

    pumped = Pumped()
    options = Wt310eOptions(port=pty.port, baud=57600, update_s=0.1, volts=300.0, amperes=5.0)
    source = Wt310eSource(options, Start("wall", 1, 0, pumped))
    try:
        source.open()
        give_up = time.monotonic() + 30
        blocks = []
        while sum(b.count for b in blocks) < 5 and time.monotonic() < give_up:
            pumped.sleep_until(pumped.now_ns() + source.period_ns)
            source.poll()
            blocks += source.take()
        assert sum(b.count for b in blocks) >= 5
    finally:
        source.close()
        pty.close()


def test_the_command_offers_a_port_until_it_is_ended(tmp_path):
    link = tmp_path / "meter"
    child = subprocess.Popen(
        [sys.executable, "-m", "powerd_daemon.meter.simulator", "--link", str(link)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert str(link) in child.stdout.readline()
        assert os.path.realpath(link).startswith("/dev/pts/")
        child.terminate()
        assert child.wait(timeout=30) == 0
        assert not link.is_symlink()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_ending_it_while_it_says_where_it_is_leaves_no_link(tmp_path, monkeypatch):
    link, handler = tmp_path / "meter", signal.getsignal(signal.SIGTERM)

    def end_it(*_said, **_how):
        assert link.is_symlink()
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("builtins.print", end_it)
    try:
        assert main(["--link", str(link)]) == 0
    except KeyboardInterrupt:
        pytest.fail("it ended with a traceback")
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert not link.is_symlink()


@pytest.mark.parametrize("port", ["usbtmc9", "ttyNONE"])
def test_a_port_that_is_not_there(tmp_path, port):
    with pytest.raises(SensorError, match=f"{port}.*plugged in"):
        open_link(str(tmp_path / port), 9600)


def test_a_usbtmc_file_is_read_and_written_as_it_is(tmp_path):
    path = tmp_path / "usbtmc0"
    path.write_bytes(b"YOKOGAWA,WT310E\n")
    link = open_link(str(path), 9600)
    assert link.blocks
    assert link.read() == b"YOKOGAWA,WT310E\n"
    link.write(b"*IDN?\n")
    link.close()
    link.close()
    assert path.read_bytes().endswith(b"*IDN?\n")
    with pytest.raises(SensorError, match="does not take"):
        link.write(b"x")


@pytest.mark.parametrize("arguments", [["--baud", "0"], ["--volts", "-1"], ["--nonsense"]])
def test_the_command_refuses_what_cannot_work(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "simulator" in capsys.readouterr().err
