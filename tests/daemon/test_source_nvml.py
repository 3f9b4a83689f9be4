"""The NVML source against a fake of the library's functions."""

from dataclasses import replace
from random import Random

import pytest
from conformance import EPOCH, Opened, SourceConformance
from fake_nvml import AMPERE, MS, VOLTA, FakeNvml

from powerd_core.calibration import GpuFile, GpuGain, GpuResponse, gpus_text
from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import BAD, Flag, Provenance
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.nvml.source import NvmlOptions, NvmlSource
from powerd_daemon.sources.sim.bus import VirtualClock

TELLING = (186, "nvmlDeviceGetPowerUsage", "nvmlDeviceGetSamples", "nvmlDeviceGetTotalEnergyConsumption")
"""What tells a power or an energy: fields and functions."""
GPU_IS_LOST, NOT_SUPPORTED, UNKNOWN, DRIVER_NOT_LOADED = 15, 3, 999, 9


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(3_000 * MS)


def opened(nvml: FakeNvml, **options: object) -> Opened:
    """The three lines of the GPU's power alone, unless the options say otherwise."""
    options = {"scope_ms": 0.0, "side_ms": 0.0} | options
    source = NvmlSource(NvmlOptions(**options), Start("nvml", EPOCH, 0, nvml.clock), nvml)
    return Opened(source, nvml.clock, *source.open())


def names(o: Opened) -> list[str]:
    return [line.name for s in o.streams for line in s.lines]


class TestConformance(SourceConformance):
    polls = 400

    def make(self, start: Start) -> NvmlSource:
        self.nvml = FakeNvml(start.clock, gpus=2)
        return NvmlSource(NvmlOptions(), start, self.nvml)

    def fail(self, source):
        self.nvml.refuse = dict.fromkeys(TELLING, GPU_IS_LOST)


class TestWhatThereIs:
    def test_three_measured_lines_a_gpu_of_which_one_feeds_it(self, clock):
        o = opened(FakeNvml(clock, gpus=2))
        assert names(o)[:3] == ["gpu0.nvml_samples", "gpu0.nvml", "gpu0.nvml_energy"]
        assert [(d.name, d.feeds) for d in o.devices] == [
            ("gpu0", ("gpu0.nvml_samples",)),
            ("gpu1", ("gpu1.nvml_samples",)),
        ]
        assert [(d.uuid, d.pci) for d in o.devices] == [(f"GPU-{i}", "00000000:01:00.0") for i in (0, 1)]
        assert {line.provenance for s in o.streams for line in s.lines} == {Provenance.MEASURED}
        assert o.streams[0].detail == {
            "name": "NVIDIA Fake",
            "uuid": "GPU-0",
            "pci_bus_id": "00000000:01:00.0",
            "driver_version": "580.1",
            "cuda_version": "13.0",
            "architecture": 9,
            "power_limit_mw": 650_000,
            "default_power_limit_mw": 700_000,
            "min_power_limit_mw": 200_000,
            "max_power_limit_mw": 700_000,
            "scope": "gpu",
            "not_supported": {},
            "calibration": {
                name: {"response": "assumed", "gain": "published", "age_ns": age_ns, "factor": 1.0}
                for name, age_ns in (("gpu0.nvml_samples", AGE_NS), ("gpu0.nvml", 20 * MS), ("gpu0.nvml_energy", 0))
            },
        }

    @pytest.mark.parametrize(("architecture", "window_ms"), [(VOLTA, 100), (AMPERE, 1000)])
    def test_without_instant_power_the_usage_stands_in_and_says_so(self, clock, architecture, window_ms):
        nvml = FakeNvml(clock, architecture=architecture)
        nvml.refuse = {186: NOT_SUPPORTED}
        line = next(line for s in opened(nvml).streams for line in s.lines if line.name == "gpu0.nvml")
        assert "nvmlDeviceGetPowerUsage" in line.description
        assert line.accuracy.window_ns == window_ms * MS

    def test_a_gpu_in_parts_says_that_its_power_is_the_whole_gpus(self, clock):
        nvml = FakeNvml(clock)
        nvml.mig = ["MIG-1", "MIG-2"]
        o = opened(nvml)
        assert o.streams[0].detail["mig"] == [
            {"uuid": uuid, "name": "NVIDIA Fake MIG 3g.40gb"} for uuid in ("MIG-1", "MIG-2")
        ]
        assert "power of the whole GPU, whose 2 MIG instances have none of their own" in o.devices[0].description
        assert [d.name for d in o.devices] == ["gpu0"]
        assert "mig" not in opened(FakeNvml(clock)).streams[0].detail

    def test_the_power_of_a_grace_hopper_module_contains_the_gpus_and_is_never_added(self, clock):
        nvml = FakeNvml(clock)
        del nvml.refuse[186, 1]
        o = opened(nvml, scope_ms=10.0)
        (stream,) = [s for s in o.streams if s.lines[0].name == "gpu0.nvml_module"]
        assert (stream.detail["scope"], o.devices[0].feeds) == ("module", ("gpu0.nvml_samples",))
        assert "contains the GPU's power" in stream.lines[0].description


AGE_NS = 16_500_000


class TestWhatWasFound:
    """`powerd identify` and `powerd calibrate gpu0` of one GPU with one driver."""

    RESPONSE = GpuResponse(
        "GPU-0", "580.1", "nvml_samples", "low-pass", 12.76, 0.05, 0.0, 0.0, 16.1, 0.04, 3.34, 0.03, 4.0,
        "2026-11-23T02:00:00Z",
    )  # fmt: skip
    GAIN = GpuGain("GPU-0", "nvml_samples", 1.05, 0.004, "gpu0.ext_12v", "2026-11-23T02:00:00Z")

    def lines(self, clock, tmp_path, **gpu):
        path = tmp_path / "of" / "gpus.toml"
        path.parent.mkdir()
        path.write_text(gpus_text(GpuFile((replace(self.RESPONSE, **gpu),), (self.GAIN,))))
        o = opened(FakeNvml(clock, gpus=2), calibration=str(path))
        return o, {line.name: line for s in o.streams for line in s.lines}

    def test_the_line_states_it(self, clock, tmp_path):
        o, lines = self.lines(clock, tmp_path)
        accuracy = lines["gpu0.nvml_samples"].accuracy
        assert (accuracy.filter_ns, accuracy.centre_ns, accuracy.window_ns) == (12_760_000, 40_000, 0)
        assert accuracy.u_filter == pytest.approx(0.05 / 12.76 / 1.96)
        assert (accuracy.u_gain, lines["gpu0.nvml_samples"].conversion.w_per_code) == (0.004, pytest.approx(1.05e-3))
        assert o.streams[0].detail["calibration"]["gpu0.nvml_samples"] == {
            "response": "identified 2026-11-23", "gain": "calibrated 2026-11-23", "age_ns": 16_100_000, "factor": 1.05,
        }  # fmt: skip
        r = o.readings(o.run(100), "gpu0.nvml_samples")
        assert len(r["t_ns"]) > 40
        assert {t + 16_100_000 for t in r["t_ns"]} <= set(o.source._nvml._module.samples)
        other = lines["gpu1.nvml_samples"]
        assert (other.accuracy.filter_ns, other.conversion.w_per_code) == (13 * MS, 1e-3)

    def test_another_driver_may_see_power_otherwise(self, clock, tmp_path):
        _, lines = self.lines(clock, tmp_path, driver="570.1")
        accuracy = lines["gpu0.nvml_samples"].accuracy
        assert (accuracy.filter_ns, accuracy.u_filter, accuracy.u_gain) == (13 * MS, 0.0, 0.004)


class TestSamples:
    def expected(self, nvml, begin, made):
        return [t - AGE_NS for t in nvml.sample_times_ns(begin, max(made) + 17 * MS)]

    def test_each_sample_once_at_the_middle_of_its_window(self, clock):
        nvml = FakeNvml(clock)
        o = opened(nvml)
        begin = clock.now_ns()
        r = o.readings(o.run(400), "gpu0.nvml_samples")
        assert r["t_ns"] == self.expected(nvml, begin, r["t_ns"])
        assert len(r["t_ns"]) > 150
        assert r["power_mw"] == [round(nvml.power_w(t + AGE_NS) * 1000) for t in r["t_ns"]]
        assert not any(r["flags"])

    def test_a_read_that_fails_loses_nothing(self, clock):
        nvml = FakeNvml(clock)
        o = opened(nvml)
        begin = clock.now_ns()
        made = o.run(50)
        nvml.refuse = {"nvmlDeviceGetSamples": UNKNOWN}
        made += o.run(30)
        nvml.refuse = {}
        made += o.run(100)
        r = o.readings(made, "gpu0.nvml_samples")
        assert r["t_ns"] == self.expected(nvml, begin, r["t_ns"])

    def test_a_sample_of_another_moment_than_its_instant_is_left_out(self, clock):
        nvml = FakeNvml(clock)
        nvml.late_ns = lambda t: 14 * MS if t // (20 * MS) % 10 == 0 else 0
        o = opened(nvml)
        begin = clock.now_ns()
        r = o.readings(o.run(200), "gpu0.nvml_samples")
        on_time = [t - AGE_NS for t in nvml.sample_times_ns(begin, clock.now_ns()) if not nvml.late_ns(t)]
        assert r["t_ns"] == [t for t in on_time if t in r["t_ns"]]
        assert len(r["t_ns"]) > 80
        assert o.source.health()["late_samples"]["gpu0.nvml_samples"] > 8

    def test_stamps_on_no_grid_are_said_to_be_late(self, clock):
        nvml = FakeNvml(clock)
        random = Random(3)
        late = {t: random.randint(0, 15 * MS) for t in nvml.samples}
        nvml.late_ns = late.__getitem__
        o = opened(nvml)
        accuracy = next(line.accuracy for s in o.streams for line in s.lines if line.name == "gpu0.nvml_samples")
        assert accuracy.centre_ns == 8_500_000
        assert "no grid" in accuracy.origin
        begin = clock.now_ns()
        r = o.readings(o.run(200), "gpu0.nvml_samples")
        stamps = [t + late[t] for t in nvml.samples if begin < t + late[t]]
        assert len(r["t_ns"]) > 90
        assert all(0 <= t - 24 * MS - found < 1000 for t, found in zip(stamps, r["t_ns"], strict=False))

    @pytest.mark.parametrize("first_ms", [30, -100])
    def test_a_driver_that_was_loaded_just_now_is_given_time_to_fill_its_buffer(self, clock, first_ms):
        nvml = FakeNvml(clock)
        nvml.samples = [t for t in nvml.samples if t > clock.now_ns() + first_ms * MS]
        begin = clock.now_ns()
        o = opened(nvml)
        assert clock.now_ns() - begin < 600 * MS
        line = o.streams[0].lines[0]
        assert (line.name, line.accuracy.centre_ns) == ("gpu0.nvml_samples", 1 * MS)

    @pytest.mark.parametrize(("period_ms", "samples_ms"), [(10, 50.0), (10, 1000.0), (30, 50.0)])
    def test_another_pace_in_the_middle_of_a_run_is_missing_and_never_wrong(self, clock, period_ms, samples_ms):
        nvml = FakeNvml(clock)
        nvml.power_w = lambda t_ns: 100.0 + t_ns // MS % 500  # says when it was
        begin = clock.now_ns()
        changed, back = begin + 2_000 * MS, begin + 6_000 * MS
        usual = [t for t in nvml.samples if t <= changed]
        other = list(range(usual[-1] + period_ms * MS, back, period_ms * MS))
        nvml.samples = [*usual, *other, *(other[-1] + i * 20 * MS for i in range(1, 500))]
        o = opened(nvml, samples_ms=samples_ms)
        r = o.readings(o.run(12_000 * MS // o.source.period_ns), "gpu0.nvml_samples")
        good = [t for t, flag in zip(r["t_ns"], r["flags"], strict=True) if not flag]
        late_ms = {
            t: abs((code // 1000 - 100) - (t + AGE_NS) // MS % 500)
            for t, code, flag in zip(r["t_ns"], r["power_mw"], r["flags"], strict=True)
            if not flag
        }
        wrong = {t for t, ms in late_ms.items() if ms > 1}
        # Too many samples show at once, too few within a second.
        assert not wrong or (period_ms > 20 and max(wrong) < changed + 1_000 * MS)
        assert max(late_ms[t] for t in good) < 20
        bad = [t for t, flag in zip(r["t_ns"], r["flags"], strict=True) if flag]
        assert {f for f in r["flags"] if f} == {Flag.MISSING}
        assert any(changed - 100 * MS < t < changed + 1_500 * MS for t in bad)
        assert not [t for t in good if changed + 1_000 * MS < t < back - 100 * MS]
        assert [t for t in good if back < t < back + 3_000 * MS]
        assert o.source.health()["lost_grids"]["gpu0.nvml_samples"] >= 1

    def test_no_power_at_all_is_no_reading(self, clock):
        nvml = FakeNvml(clock)
        o = opened(nvml, scope_ms=10.0)
        made = o.run(50)
        nvml.power_w = lambda t_ns: 0.0
        made += o.run(50)
        for line in ("gpu0.nvml_samples", "gpu0.nvml", "gpu0.nvml_memory"):
            r = o.readings(made, line)
            assert not any(code == 0 and not flag for code, flag in zip(r["power_mw"], r["flags"], strict=True)), line
            assert any(r["flags"]), line

    @pytest.mark.parametrize("fails", [True, False])
    def test_a_long_silence_is_flagged(self, clock, fails):
        nvml = FakeNvml(clock)
        o = opened(nvml)
        made = o.run(50)
        if fails:
            nvml.refuse = {"nvmlDeviceGetSamples": UNKNOWN}
        else:
            nvml.silent_from_ns = clock.now_ns()
        made += o.run(200)
        flags = o.readings(made, "gpu0.nvml_samples")["flags"]
        bad = [f for f in flags if f]
        assert bad == [Flag.IO_ERROR if fails else Flag.MISSING] * len(bad)
        assert 3 <= len(bad) <= 4


class TestInstant:
    def test_one_reading_a_renewal_near_its_time(self, clock):
        nvml = FakeNvml(clock)
        o = opened(nvml, samples_ms=0.0, energy_ms=0.0)
        r = o.readings(o.run(205), "gpu0.nvml")
        assert len(r["t_ns"]) == 20
        for t_ns, mw in zip(r["t_ns"], r["power_mw"], strict=True):
            renewed_ns = t_ns + 20 * MS
            assert abs((renewed_ns + 50 * MS) % (100 * MS) - 50 * MS) <= 10 * MS
            assert mw == round(nvml.power_w(renewed_ns + 10 * MS) * 1000)

    @pytest.mark.parametrize("power_w", [lambda t_ns: 77.0, lambda t_ns: 100.0 + t_ns // (100 * MS) % 50])
    def test_renewals_that_were_slept_through_are_missing(self, clock, power_w):
        nvml = FakeNvml(clock)
        nvml.power_w = power_w
        o = opened(nvml, samples_ms=0.0, energy_ms=0.0)
        made = o.run(105)
        stopped_ns = clock.now_ns()
        clock.t_ns += 7_000 * MS
        made += o.run(105)
        r = o.readings(made, "gpu0.nvml")
        within = [f for t, f in zip(r["t_ns"], r["flags"], strict=True) if 0 < t - stopped_ns < 6_990 * MS]
        assert within == [Flag.MISSING]
        assert r["flags"].count(Flag.MISSING) == 1
        assert not r["flags"][-1]
        assert r["t_ns"][-1] > clock.now_ns() - 250 * MS

    def test_failures_are_flagged(self, clock):
        nvml = FakeNvml(clock)
        o = opened(nvml, samples_ms=0.0, energy_ms=0.0)
        made = o.run(55)
        nvml.refuse = {186: UNKNOWN}
        made += o.run(55)
        nvml.refuse = {}
        made += o.run(55)
        r = o.readings(made, "gpu0.nvml")
        bad = [f for f in r["flags"] if f & BAD]
        assert bad == [Flag.IO_ERROR] * len(bad)
        assert 4 <= len(bad) <= 6
        assert not r["flags"][-1]
        assert o.source.health()["refused"]["gpu0.nvml"] in range(50, 56)


class TestEnergy:
    def test_the_counter_is_read_rarely_at_the_middle_of_the_call_and_a_failed_read_is_flagged(self, clock):
        nvml = FakeNvml(clock)
        o = opened(nvml)
        nvml.calls.clear()
        made = o.run(450)
        nvml.refuse = {"nvmlDeviceGetTotalEnergyConsumption": UNKNOWN}
        r = o.readings(made + o.run(100), "gpu0.nvml_energy")
        assert r["flags"] == [0] * 4 + [Flag.IO_ERROR]
        assert nvml.calls.count("nvmlDeviceGetTotalEnergyConsumption") == 5
        assert r["energy_mj"][:4] == [(t + 2 * MS) // (100 * MS) * 10_000 for t in r["t_ns"][:4]]
        refused = {name: count for name, count in o.source.health()["refused"].items() if count}
        assert refused == {"gpu0.nvml_energy": 1}


class TestScopes:
    def test_the_memory_is_a_line_of_its_own_at_the_middle_of_the_second_and_never_feeds_it(self, clock):
        nvml = FakeNvml(clock)
        o = opened(nvml, scope_ms=10.0)
        assert names(o)[-1] == "gpu0.nvml_memory"
        assert o.devices[0].feeds == ("gpu0.nvml_samples",)
        assert o.streams[-1].lines[0].accuracy.window_ns == 1_000 * MS
        assert [s.detail["scope"] for s in o.streams if s.lines[0].name in ("gpu0.nvml", "gpu0.nvml_memory")] == [
            "gpu",
            "memory",
        ]
        assert set(o.streams[0].detail["not_supported"]) == {"gpu0.nvml_module"}
        r = o.readings(o.run(300), "gpu0.nvml_memory")
        assert len(r["t_ns"]) >= 25
        for t_ns, mw in zip(r["t_ns"], r["power_mw"], strict=True):
            assert mw == round(nvml.power_w(t_ns + 510 * MS) * 1000) // 3


class TestAuxiliaryChannels:
    LINES = (
        "temperature",
        "memory_temperature",
        "sm_clock",
        "memory_clock",
        "power_limit",
        "power_limit_requested",
        "at_power_cap",
        "thermal",
        "power_brake",
        "clock_events",
    )

    def test_channels_with_their_units(self, clock):
        o = opened(FakeNvml(clock), side_ms=1000.0)
        lines = o.streams[-1].lines
        assert [line.name for line in lines] == [f"gpu0.{n}" for n in self.LINES]
        assert [line.quantity for line in lines] == [
            "temperature_c", "temperature_c", "clock_hz", "clock_hz", "power_limit_w", "power_limit_w",
            "limited_s", "limited_s", "limited_s", "clock_events_bits",
        ]  # fmt: skip
        made = o.run(300)
        values = {}
        for line in lines:
            r = o.readings(made, line.name)
            assert len(r["t_ns"]) == 3
            assert not any(r["flags"])
            values[line.name] = r["code"][-1] * line.conversion.per_code
        assert list(values.values()) == [41, 43, 1.98e9, 3.201e9, 650, 650, 5, 1.5, 0, 4]
        assert o.streams[-1].detail["bits"]["gpu0.clock_events"]["sw_power_cap"] == 4

    def test_what_a_gpu_does_not_have_is_left_out_and_a_failed_read_is_of_its_line_alone(self, clock):
        nvml = FakeNvml(clock)
        nvml.refuse = {82: NOT_SUPPORTED}
        o = opened(nvml, side_ms=1000.0)
        assert [line.name for line in o.streams[-1].lines] == [
            f"gpu0.{n}" for n in self.LINES if n != "memory_temperature"
        ]
        nvml.refuse["nvmlDeviceGetClockInfo"] = UNKNOWN
        made = o.run(150)
        assert set(o.readings(made, "gpu0.sm_clock")["flags"]) == {Flag.IO_ERROR}
        assert set(o.readings(made, "gpu0.temperature")["flags"]) == {0}


class TestFailures:
    @pytest.mark.parametrize(
        ("gpus", "refuse", "options", "error"),
        [
            (1, {"nvmlInit": DRIVER_NOT_LOADED}, {}, SensorError),
            (0, {}, {}, SensorError),
            (2, {}, {"gpus": (0, 5)}, ConfigError),
            (1, dict.fromkeys(TELLING, NOT_SUPPORTED), {}, SensorError),
        ],
    )
    def test_what_cannot_be_opened(self, clock, gpus, refuse, options, error):
        nvml = FakeNvml(clock, gpus=gpus)
        nvml.refuse |= refuse
        with pytest.raises(error):
            opened(nvml, **options)

    def test_a_gpu_that_is_lost_ends_the_source(self, clock):
        nvml = FakeNvml(clock)
        o = opened(nvml)
        o.run(20)
        nvml.refuse = {"nvmlDeviceGetSamples": GPU_IS_LOST}
        with pytest.raises(SensorError):
            o.run(20)
