"""The WT310E source against the simulated meter, in virtual time."""

from itertools import pairwise
from math import sqrt

import pytest
import simulated_wt310e
from conformance import EPOCH, Opened, SourceConformance
from simulated_wt310e import SimLink, SimWt310

import powerd_daemon.sources.wt310e as wt310
from powerd_core.errors import SensorError
from powerd_core.model import Flag, Gap, Provenance
from powerd_daemon.sampler import Outbox, Sampling
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.sim.waveforms import Constant, Square
from powerd_daemon.sources.wt310e import Wt310eOptions, Wt310eSource

MS = 1_000_000
S = 1_000_000_000
RANGES = {"volts": 300.0, "amperes": 5.0}
RAMP = Square(0, low_w=100.0, high_w=400.0, period_ms=7000.0, duty=0.5)


class Bench:
    """A meter on a link in virtual time, and the source on its other end."""

    def __init__(self, load=RAMP, *, blocks=False, baud=9600, **options):
        self.clock = VirtualClock()
        byte_ns = 0 if blocks else 10 * S // baud
        self.meter = SimWt310(load.energy_j, self.clock.now_ns() - 3 * S, byte_ns=byte_ns, latency_ns=MS)
        self.links = []
        self.blocks = blocks
        port = "/dev/usbtmc0" if blocks else "/dev/ttySIM"
        self.options = Wt310eOptions(port=port, baud=baud, **RANGES, **options)
        self.load = load

    def link(self, port, baud):
        self.links.append(SimLink(self.meter, self.clock, blocks=self.blocks))
        return self.links[-1]

    def source(self, start=None):
        return Wt310eSource(self.options, start or Start("wall", EPOCH, 0, self.clock), self.link)

    def opened(self):
        source = self.source()
        return Opened(source, self.clock, *source.open())


class TestConformance(SourceConformance):
    polls = 400

    def make(self, start):
        meter = SimWt310(RAMP.energy_j, start.clock.now_ns())
        options = Wt310eOptions(port="/dev/ttySIM", **RANGES)
        self.link = SimLink(meter, start.clock)
        return Wt310eSource(options, start, lambda port, baud: self.link)

    def fail(self, source):
        self.link.is_out = True


class TestReadings:
    @pytest.mark.parametrize(
        ("blocks", "baud", "update_s"),
        [(False, 9600, 0.25), (False, 57600, 0.1), (True, 9600, 0.1), (False, 9600, 1.0)],
    )
    def test_each_update_once_at_its_middle(self, blocks, baud, update_s):
        bench = Bench(blocks=blocks, baud=baud, update_s=update_s)
        o = bench.opened()
        update_ns = round(update_s * S)
        r = o.readings(o.run(round(40 * update_s * 200)), "wall")
        assert 38 <= len(r["t_ns"]) <= 41
        assert r["flags"][1:] == [0] * (len(r["flags"]) - 1)
        allowed_ns = o.streams[0].lines[0].accuracy.centre_ns
        wrong_w = []
        for t_ns, code in zip(r["t_ns"][1:], r["code"][1:], strict=True):
            around = [
                bench.load.energy_j(t_ns + d - update_ns // 2, t_ns + d + update_ns // 2) / update_s
                for d in range(-allowed_ns, allowed_ns + 1, MS)
            ]
            watts = code * wt310.W_PER_POWER_CODE
            if not min(around) - 0.02 <= watts <= max(around) + 0.02:
                wrong_w.append((t_ns, watts))
        assert not wrong_w
        assert all(abs(b - a - update_ns) < 12 * MS for a, b in pairwise(r["t_ns"][1:]))

    def test_the_meters_own_energy_stands_at_the_end_of_the_update(self):
        bench = Bench(Constant(0, level_w=360.0))
        o = bench.opened()
        made = o.run(2000)
        power, energy = o.readings(made, "wall"), o.readings(made, "wall_energy")
        assert [b - a for a, b in zip(power["t_ns"], energy["t_ns"], strict=True)] == [125 * MS] * len(power["t_ns"])
        good = [(t, c) for t, c, f in zip(energy["t_ns"], energy["code"], energy["flags"], strict=True) if not f]
        (t0, c0), (t1, c1) = good[0], good[-1]
        joules = (c1 - c0) * wt310.J_PER_ENERGY_CODE
        assert joules == pytest.approx(360.0 * (t1 - t0) / S, rel=0.005)

    def test_over_range_is_a_flag_and_recovers(self):
        bench = Bench(Square(0, low_w=300.0, high_w=2600.0, period_ms=4000.0, duty=0.5))
        o = bench.opened()
        r = o.readings(o.run(2400), "wall")
        assert {f for f in r["flags"] if f} == {Flag.SATURATED}
        assert all(c == 0 for c, f in zip(r["code"], r["flags"], strict=True) if f)
        assert 10 < sum(f == 0 for f in r["flags"]) < len(r["flags"]) - 10
        assert o.source.health()["overloads"] == r["flags"].count(Flag.SATURATED)

    def test_updates_that_went_by_unread_leave_a_flagged_reading(self):
        bench = Bench()
        o = bench.opened()
        made = o.run(300)
        bench.clock.t_ns += 1100 * MS
        made += o.run(300)
        r = o.readings(made, "wall")
        assert r["flags"].count(Flag.MISSING) == 1
        at = r["flags"].index(Flag.MISSING)
        assert r["t_ns"][at + 1] - r["t_ns"][at - 1] > 900 * MS
        assert 2 <= o.source.health()["missed_updates"] <= 4

    def test_garbled_answers_are_flagged_readings_and_many_in_turn_a_lost_meter(self):
        bench = Bench()
        o = bench.opened()
        made = o.run(100)
        # Good answers lie between those that make no sense: however many there are in all, the meter is not lost.
        for count in range(1, 8):
            bench.links[0].garbles = True
            made += o.run(200)
            assert o.source.health() == {"garbled_answers": count, "missed_updates": 0, "overloads": 0}
        r = o.readings(made, "wall")
        assert [f for f in r["flags"] if f] == [Flag.IO_ERROR] * 7
        assert not r["flags"][-1]

        def garble():
            # One spoilt piece in each answer, of which there is one every 50 polls.
            while True:
                bench.links[0].garbles = True
                o.run(50)

        with pytest.raises(SensorError, match="makes sense"):
            garble()
        assert o.source.health()["garbled_answers"] > 10


class TestSetUp:
    def test_ranges_are_fixed_and_everything_that_holds_values_is_off(self):
        bench = Bench()
        bench.meter.meter.settings[":HOLD"] = "ON"
        o = bench.opened()
        m = bench.meter.meter
        assert (m.volts, m.amperes, m.rate_s, m.integration) == (300.0, 5.0, 0.25, "START")
        assert m.settings[":INP:VOLT:AUTO"] == m.settings[":INP:CURR:AUTO"] == m.settings[":HOLD"] == "OFF"
        assert not m.errors
        assert o.streams[0].detail["identity"].startswith("YOKOGAWA,WT310E")
        assert [line.provenance for line in o.streams[0].lines] == [Provenance.SIMULATED] * 2
        assert [(d.name, d.feeds) for d in o.devices] == [("node", ("wall",))]

    def test_a_meter_that_is_still_busy_with_somebody_else_is_taken_over(self):
        bench = Bench()
        bench.opened().run(20)
        again = bench.opened()
        assert set(again.readings(again.run(300), "wall")["flags"]) == {0}
        assert bench.meter.heard.count(":INTEG:STOP") == 1

    @pytest.mark.parametrize(
        ("model", "is_dc", "crest_factor", "reading", "share"),
        [
            ("WT310E", False, 3, 0.001484, 0.0005),
            ("WT310E", False, 6, 0.001484, 0.001),
            ("WT310EH", True, 3, 0.003, 0.002),
            ("WT310", False, 3, 0.001484, 0.001),
        ],
    )
    def test_accuracy_by_model_and_crest_factor(self, model, is_dc, crest_factor, reading, share):
        options = Wt310eOptions(
            "/dev/usbtmc0", 300, 5, coupling="dc" if is_dc else "ac", crest_factor=crest_factor, update_s=0.25
        )
        accuracy = wt310.power_accuracy(model, options, centre_ns=0)
        assert accuracy.u_gain * sqrt(3) == pytest.approx(reading, rel=1e-3)
        assert accuracy.u_offset_w * sqrt(3) == pytest.approx(share * 1500)

    def test_what_is_no_meter_or_refuses_or_says_nothing(self, monkeypatch):
        with monkeypatch.context() as patched:
            patched.delitem(simulated_wt310e._SETTINGS, ":NUM:NORM:ITEM1")
            with pytest.raises(SensorError, match=r":NUM:NORM:ITEM1 P,1"):
                Bench().opened()
        with monkeypatch.context() as patched:
            patched.setattr("simulated_wt310e.IDENTITY", "ACME,PSU,1,2")
            with pytest.raises(SensorError, match="ACME"):
                Bench().opened()
        bench = Bench()
        monkeypatch.setattr(SimLink, "read", lambda self: b"")
        source = bench.source()
        with pytest.raises(SensorError, match="does not answer"):
            source.open()
        source.close()
        assert bench.links[0].is_closed

    def test_closing_stops_the_integration_and_gives_the_keys_back(self):
        bench = Bench()
        o = bench.opened()
        o.run(100)
        o.source.close()
        bench.meter.transmit(bench.clock.now_ns() + 2 * S)
        assert bench.meter.meter.integration == "STOP"
        assert bench.meter.meter.settings[":COMM:REM"] == "OFF"


class TestTrouble:
    def test_a_meter_that_is_pulled_out_and_comes_back_leaves_a_gap(self):
        bench = Bench()
        outbox = Outbox(1 << 20)
        put = []
        outbox.put = put.append
        sampling = Sampling(bench.source, Start("wall", EPOCH, 0, bench.clock), outbox, block_ns=20 * MS)
        sampling.open()

        def run_until(t_ns):
            while bench.clock.now_ns() < t_ns:
                sampling.step()

        run_until(bench.clock.now_ns() + 2 * S)
        bench.links[0].is_out = True
        run_until(bench.clock.now_ns() + 3 * S)
        assert sampling.reopened == 1
        run_until(bench.clock.now_ns() + 2 * S)
        kinds = [type(event).__name__ for event in put]
        assert kinds.count("Gap") == 1
        gap = next(event for event in put if isinstance(event, Gap))
        assert "is gone" in gap.cause
        assert kinds[-1] == "Block"
        assert [e.sequence for e in put] == list(range(len(put)))
        bench.links[-1].is_deaf = True
        run_until(bench.clock.now_ns() + 4 * S)
        assert sampling.reopened == 2


@pytest.mark.parametrize(
    ("text", "code", "flag"),
    [
        ("123.45E+00", 123_450_000, 0),
        ("-1.5E-03", -1_500, 0),
        ("NAN", 0, Flag.MISSING),
        ("INF", 0, Flag.SATURATED),
        ("9.91E+37", 0, Flag.MISSING),
        ("9.9E+37", 0, Flag.SATURATED),
    ],
)
def test_values(text, code, flag):
    assert wt310.parse_value(text) == (code, Flag(flag))
