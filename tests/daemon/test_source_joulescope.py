"""A Joulescope behind a fake of its maker's library: what the library publishes, as it publishes it."""

import pytest
from conformance import EPOCH, Opened, SourceConformance

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Flag
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.joulescope import JS110_HZ, LATENCY_NS, JoulescopeOptions, JoulescopeSource
from powerd_daemon.sources.polled import LOST
from powerd_daemon.sources.sim.bus import VirtualClock

MS = 1_000_000
JS220 = "u/js220/000415"


def statistics(k, watts, joules, scnt=50_000):
    """As `s/stats/value` of a JS220 has it: the k-th interval."""
    figure = lambda value, unit: {name: {"value": value, "units": unit} for name in ("avg", "std", "min", "max")}  # noqa: E731
    return {
        "time": {"samples": {"value": [k * scnt, (k + 1) * scnt], "units": "samples"}, "sample_freq": {"value": 1e6}},
        "signals": {"current": figure(watts / 12, "A"), "voltage": figure(12.0, "V"), "power": figure(watts, "W")},
        "accumulators": {"charge": {"value": joules / 12, "units": "C"}, "energy": {"value": joules, "units": "J"}},
    }


class FakeLibrary:
    """pyjoulescope_driver: intervals end while the clock moves, and the driver calls whoever subscribed."""

    def __init__(self, clock, paths=(JS220,)):
        self.clock, self.paths, self.published, self.subscribed = clock, list(paths), {}, []
        self.is_out, self.is_open, self.finalized = False, None, 0
        self.watts = lambda k: 4.5 + k

    def Driver(self):
        return self

    def device_paths(self):
        return self.paths

    def open(self, path):
        if self.is_out:
            raise TimeoutError("jsdrv_open timed out")
        self.is_open = path

    def publish(self, topic, value):
        self.published[topic] = value

    def subscribe(self, topic, flags, call):
        assert flags == "pub"
        self.subscribed.append(topic)
        self.clock.watch(self, lambda k: call(topic, self.value(k)))

    def value(self, k):
        return statistics(k, self.watts(k), 0.1 * k)

    def finalize(self):
        self.finalized += 1


class Clock(VirtualClock):
    """Calls the library's subscriber each time an interval of 50 ms has ended while somebody sleeps."""

    def watch(self, library, call):
        self.library, self.call, self.k, self.begun_ns = library, call, 0, self.t_ns

    def sleep_until(self, t_ns):
        while hasattr(self, "call") and self.begun_ns + (self.k + 1) * 50 * MS <= t_ns:
            self.t_ns = self.begun_ns + (self.k + 1) * 50 * MS
            if not self.library.is_out:
                self.call(self.k)
            self.k += 1
        super().sleep_until(t_ns)


def opened(library, **options):
    source = JoulescopeSource(JoulescopeOptions(**options), Start("js", EPOCH, 0, library.clock), library)
    return Opened(source, library.clock, *source.open())


@pytest.fixture
def library():
    return FakeLibrary(Clock())


class TestConformance(SourceConformance):
    polls = 300

    @pytest.fixture
    def clock(self):
        return Clock()

    def make(self, start):
        self.library = FakeLibrary(start.clock)
        return JoulescopeSource(JoulescopeOptions(), start, self.library)

    def fail(self, source):
        self.library.is_out = True


class TestReadings:
    def test_each_interval_once_at_its_middle_with_its_energy_at_its_end(self, library):
        begun_ns = library.clock.now_ns()
        o = opened(library)
        made = o.run(51)
        power, energy = o.readings(made, "joulescope"), o.readings(made, "joulescope_energy")
        assert power["power_uw"] == [4_500_000 + k * 1_000_000 for k in range(10)]
        assert power["t_ns"] == [begun_ns + k * 50 * MS + 25 * MS for k in range(10)]
        assert energy["energy_uj"] == [100_000 * k for k in range(10)]
        assert energy["t_ns"] == [begun_ns + (k + 1) * 50 * MS for k in range(10)]
        accuracy = o.streams[0].lines[0].accuracy
        assert (accuracy.window_ns, accuracy.centre_ns) == (50 * MS, LATENCY_NS)
        assert (o.devices[0].feeds, o.streams[0].detail["untested"]) == (("joulescope",), "untested on hardware")

    def test_the_instrument_is_set_to_send_intervals(self, library):
        opened(library, rate_hz=50.0)
        assert library.published == {
            f"{JS220}/s/i/range/mode": "auto", f"{JS220}/s/stats/scnt": 20_000, f"{JS220}/s/stats/ctrl": 1,
        }  # fmt: skip
        assert library.subscribed == [f"{JS220}/s/stats/value"]

    def test_a_js110_has_its_own_pace(self, library):
        library.paths = ["u/js110/001234"]
        o = opened(library)
        assert library.subscribed == ["u/js110/001234/s/sstats/value"]
        assert o.streams[0].period_ns == round(1e9 / JS110_HZ)

    @pytest.mark.parametrize("value", [{}, None, {"signals": {"power": {"avg": {"value": float("nan")}}}}])
    def test_what_has_no_power_is_missing(self, library, value):
        o = opened(library)
        library.value = lambda k: value
        r = o.readings(o.run(6), "joulescope")
        assert (r["flags"], r["power_uw"]) == ([Flag.MISSING], [0])


class TestFailures:
    def test_an_instrument_that_falls_silent_is_missing_and_then_lost(self, library):
        o = opened(library)
        o.run(11)
        library.is_out = True
        made, is_lost = o.run_until_lost(200)
        assert is_lost
        assert o.readings(made, "joulescope")["flags"] == [Flag.MISSING] * LOST

    def test_which_one(self, library):
        library.paths = [JS220, "u/js220/000416"]
        with pytest.raises(ConfigError, match="several Joulescopes: choose one by 'serial': u/js220/000415, u/js220"):
            opened(library)
        opened(library, serial="416")
        assert library.is_open == "u/js220/000416"
        with pytest.raises(SensorError, match="no Joulescope 7 is connected"):
            opened(library, serial="7")
        assert library.finalized == 2

    def test_one_that_another_program_holds(self, library):
        library.is_out = True
        with pytest.raises(SensorError, match="cannot be opened: jsdrv_open timed out: is another program using it"):
            opened(library)
        assert library.finalized == 1

    def test_without_the_library(self, library, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "pyjoulescope_driver", None)
        source = JoulescopeSource(JoulescopeOptions(), Start("js", EPOCH, 0, library.clock))
        with pytest.raises(SensorError, match=r"needs pyjoulescope_driver: .* with its extra \[joulescope\]"):
            source.open()

    @pytest.mark.parametrize("options", [{"rate_hz": 0.5}, {"u_gain": 0.0}, {"line": ""}, {"u_offset_w": -1.0}])
    def test_options_that_cannot_be_used_are_refused(self, options):
        with pytest.raises(ConfigError):
            JoulescopeOptions(**options)
