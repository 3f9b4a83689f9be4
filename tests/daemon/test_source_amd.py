"""AMD GPUs against a fake of the library amdsmi at its functions."""

import pytest
from conformance import EPOCH, Opened, SourceConformance

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Flag
from powerd_daemon.sources.amd import AmdOptions, AmdSource
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.polled import LOST
from powerd_daemon.sources.sim.bus import VirtualClock

MS = 1_000_000
NOT_SUPPORTED, BUSY, NOT_INIT = 2, 30, 32
RESOLUTION_UJ = 15.3


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, code):
        super().__init__(code)
        self.err_code = code

    def __str__(self):
        return f"Error code:\n\t{self.err_code} | AMDSMI_STATUS"


class FakeAmdSmi:
    """``refuse`` maps functions to the status they fail with; ``key`` is where the library puts the watts."""

    AmdSmiException = AmdSmiException

    def __init__(self, clock, gpus=1, key="current_socket_power"):
        self.clock, self.gpus, self.key, self.refuse, self.running = clock, gpus, key, {}, 0
        self.watts = lambda: 140
        self.stands = False

    def __getattr__(self, name):
        if not name.startswith("amdsmi_") or not hasattr(type(self), "_" + name):
            raise AttributeError(name)

        def call(*arguments):
            if name in self.refuse:
                raise AmdSmiLibraryException(self.refuse[name])
            return getattr(self, "_" + name)(*arguments)

        return call

    def _amdsmi_init(self):
        self.running += 1

    def _amdsmi_shut_down(self):
        self.running -= 1

    def _amdsmi_get_processor_handles(self):
        return list(range(self.gpus))

    def _amdsmi_get_gpu_asic_info(self, handle):
        return {"market_name": "AMD Fake", "vendor_id": "0x1002"}

    def _amdsmi_get_gpu_device_uuid(self, handle):
        return f"0000000{handle}-0000-1000-8000-0123456789ab"

    def _amdsmi_get_gpu_device_bdf(self, handle):
        return f"0000:{handle + 1:02x}:00.0"

    def _amdsmi_get_power_info(self, handle):
        none = {"socket_power": "N/A", "current_socket_power": "N/A", "average_socket_power": "N/A", "power_limit": 300}
        return none | {self.key: self.watts()}

    def _amdsmi_get_energy_count(self, handle):
        t_ns = 5_000 * MS if self.stands else self.clock.now_ns()
        return {
            "energy_accumulator": t_ns // MS * 9000, "counter_resolution": RESOLUTION_UJ, "timestamp": t_ns,
        }  # fmt: skip


def opened(smi, **options):
    source = AmdSource(AmdOptions(**options), Start("amd", EPOCH, 0, smi.clock), smi)
    return Opened(source, smi.clock, *source.open())


def names(o):
    return [line.name for s in o.streams for line in s.lines]


@pytest.fixture
def smi():
    return FakeAmdSmi(VirtualClock())


class TestConformance(SourceConformance):
    polls = 100

    def make(self, start):
        self.smi = FakeAmdSmi(start.clock, gpus=2)
        return AmdSource(AmdOptions(), start, self.smi)

    def fail(self, source):
        self.smi.refuse = {"amdsmi_get_power_info": BUSY, "amdsmi_get_energy_count": BUSY}


class TestReadings:
    @pytest.mark.parametrize("key", ["current_socket_power", "average_socket_power", "socket_power"])
    def test_watts_of_the_socket_wherever_the_library_has_them(self, smi, key):
        smi.key = key
        o = opened(smi)
        made = o.run(3)
        assert o.readings(made, "gpu0.amd")["power_uw"] == [140_000_000] * 3
        line = o.streams[0].lines[0]
        assert (line.accuracy.step_w, o.streams[0].detail["untested"]) == (1.0, "untested on hardware")
        assert "AMD specifies none" in line.accuracy.origin

    def test_the_accumulator_travels_as_it_is_with_its_resolution(self, smi):
        o = opened(smi)
        r = o.readings(o.run(2), "gpu0.amd_energy")
        line = o.streams[1].lines[0]
        assert line.conversion.j_per_code == pytest.approx(RESOLUTION_UJ * 1e-6)
        assert r["energy_codes"][1] - r["energy_codes"][0] == 100 * 9000

    def test_the_device_is_fed_once_and_known_by_its_address(self, smi):
        smi.gpus = 2
        o = opened(smi)
        assert [(d.name, d.feeds, d.pci) for d in o.devices] == [
            ("gpu0", ("gpu0.amd",), "0000:01:00.0"),
            ("gpu1", ("gpu1.amd",), "0000:02:00.0"),
        ]
        assert names(opened(smi, gpus=(1,))) == ["gpu1.amd", "gpu1.amd_energy"]

    @pytest.mark.parametrize("watts", ["N/A", 0, 0xFFFF, 0xFFFFFFFF])
    def test_what_is_no_power_is_missing_and_never_0(self, smi, watts):
        o = opened(smi)
        smi.watts = lambda: watts
        assert o.readings(o.run(1), "gpu0.amd")["flags"] == [Flag.MISSING]
        assert names(opened(smi)) == ["gpu0.amd_energy"]

    def test_an_accumulator_that_keeps_its_time_is_stale(self, smi):
        smi.stands = True
        o = opened(smi)
        r = o.readings(o.run(20), "gpu0.amd_energy")
        assert r["flags"][0] == 0
        assert set(r["flags"][1:]) == {Flag.STALE}
        assert o.source.health()["repeated_answers"]["gpu0.amd_energy"] == 19

    def test_older_libraries_call_the_accumulator_power(self, smi):
        smi._amdsmi_get_energy_count = lambda handle: {"power": 7, "counter_resolution": RESOLUTION_UJ, "timestamp": 1}
        o = opened(smi)
        assert o.readings(o.run(1), "gpu0.amd_energy")["energy_codes"] == [7]


class TestFailures:
    def test_a_refusal_is_flagged_and_only_all_of_them_lose_the_source(self, smi):
        o = opened(smi)
        smi.refuse = {"amdsmi_get_power_info": BUSY}
        made = o.run(LOST + 3)
        assert o.readings(made, "gpu0.amd")["flags"] == [Flag.IO_ERROR] * (LOST + 3)
        assert set(o.readings(made, "gpu0.amd_energy")["flags"]) == {0}
        smi.refuse["amdsmi_get_energy_count"] = BUSY
        assert o.run_until_lost(LOST)[1]

    def test_a_driver_that_is_gone_loses_the_source_at_once(self, smi):
        o = opened(smi)
        smi.refuse = {"amdsmi_get_power_info": NOT_INIT}
        with pytest.raises(SensorError, match="the driver is gone"):
            o.run(1)

    def test_what_a_gpu_does_not_have_is_left_out(self, smi):
        smi.refuse = {"amdsmi_get_energy_count": NOT_SUPPORTED}
        assert names(opened(smi)) == ["gpu0.amd"]
        smi.refuse["amdsmi_get_power_info"] = NOT_SUPPORTED
        with pytest.raises(SensorError, match="neither its power nor its energy"):
            opened(smi)

    def test_no_gpu_and_a_gpu_that_is_not_there(self, smi):
        with pytest.raises(ConfigError, match="no GPU 3: this machine has 1"):
            opened(smi, gpus=(3,))
        smi.gpus = 0
        with pytest.raises(SensorError, match="amdsmi knows no GPU"):
            opened(smi)

    @pytest.mark.parametrize("error", [ImportError("none"), KeyError("librocm"), OSError("no libamd_smi.so")])
    def test_without_the_library_or_rocm(self, smi, monkeypatch, error):
        monkeypatch.setattr("powerd_daemon.sources.amd.import_module", lambda name: _raise(error))
        source = AmdSource(AmdOptions(), Start("amd", EPOCH, 0, smi.clock))
        with pytest.raises(SensorError, match=r"needs amdsmi and ROCm .* with its extra \[amd\]"):
            source.open()
        source.close()

    def test_letting_go_shuts_the_library_down_once(self, smi):
        o = opened(smi)
        o.source.close()
        o.source.close()
        assert smi.running == 0


def _raise(error):
    raise error
