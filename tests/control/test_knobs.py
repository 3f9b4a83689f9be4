"""Knobs of GPUs before Volta, of AMD's GPUs and of processors: found, set, read and put back to the last bit."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from powerd_control.knobs import Bench, KnobError, gpu_knobs
from powerd_control.leases import Holder, Leases, Records
from powerd_control.untested import amd_knobs, cpu_knobs
from powerd_core.errors import ConfigError
from powerd_core.hold import Setting
from support import file_nvml


def knob(made, name):
    return next(k for k in made if k.name == name)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    def boot(gpus=1, architecture=7):
        monkeypatch.setenv("POWERD_FAKE_NVML", str(file_nvml.fresh(tmp_path / "gpus.json", gpus, architecture)))
        return list(gpu_knobs(file_nvml))

    return boot


class TestNvidia:
    @pytest.mark.parametrize(
        ("architecture", "names"),
        [
            (4, ["power_cap", "sm_clock", "mem_clock"]),
            (5, ["power_cap", "sm_clock"]),
            (7, ["power_cap", "sm_clock", "mem_clock"]),
        ],
    )
    def test_which_there_are(self, machine, architecture, names):
        assert [k.name for k in machine(architecture=architecture)] == names

    def test_a_pascals_clocks_are_its_application_clocks_and_have_a_way_back(self, machine):
        clock = knob(machine(architecture=4), "sm_clock")
        found = clock.find()
        assert found == {"value": 2100.0}
        clock.set(1200.0)
        assert clock.read() == Setting(None, 1200.0, 1200.0)
        with file_nvml.opened() as state:
            assert state["gpus"][0]["applications"] == [file_nvml.MEMORY_CLOCKS[0], 1200], "the memory's is as it was"
        clock.revert(found)
        assert clock.read().requested == 2100.0

    def test_clocks_are_those_that_the_driver_lists(self, machine):
        made = machine()
        assert knob(made, "sm_clock").range.listed == tuple(map(float, file_nvml.SM_CLOCKS))
        assert knob(made, "mem_clock").range.greatest == 7001.0

    def test_a_library_that_is_too_old_says_what_to_do(self, machine, monkeypatch):
        made = machine()
        monkeypatch.delattr(file_nvml, "nvmlDeviceGetEnforcedPowerLimit")
        with pytest.raises(KnobError, match="update it"):
            knob(made, "power_cap").read()

    def test_a_driver_that_was_loaded_anew_is_opened_once_more(self, machine, monkeypatch):
        cap = knob(machine(), "power_cap")
        assert cap.read().requested == 260.0
        opened = []

        def read(gpu):
            if not opened:
                raise file_nvml.NVMLError(1)
            return 260_000

        monkeypatch.setattr(file_nvml, "nvmlInit", lambda: opened.append(1))
        monkeypatch.setattr(file_nvml, "nvmlDeviceGetPowerManagementLimit", read)
        assert cap.read().requested == 260.0
        assert opened


class Amd:
    """amdsmi with one GPU. One clock set resets the other; all of them go back together."""

    class AmdSmiException(Exception):
        pass

    AmdSmiClkType = SimpleNamespace(GFX="gfx")
    AmdSmiClkLimitType = SimpleNamespace(MAX="max")
    AmdSmiDevPerfLevel = SimpleNamespace(AUTO="auto")

    def __init__(self):
        self.cap_uw, self.clock, self.level, self.soft = 750_000_000, 2100, "auto", False

    def amdsmi_init(self): ...

    def amdsmi_get_processor_handles(self):
        return ["one"]

    def amdsmi_get_gpu_device_uuid(self, handle):
        return "amd-1"

    def amdsmi_get_power_cap_info(self, handle):
        watts = {"min_power_cap": 300, "max_power_cap": 750, "default_power_cap": 750}
        return {"power_cap": self.cap_uw, **{name: value * 1_000_000 for name, value in watts.items()}}

    def amdsmi_set_power_cap(self, handle, sensor, cap_uw):
        if cap_uw < 400_000_000:
            raise self.AmdSmiException("refused by the VBIOS")
        self.cap_uw = cap_uw

    def amdsmi_get_clock_info(self, handle, kind):
        return {"min_clk": 132, "max_clk": 2100}

    def amdsmi_set_gpu_clk_limit(self, handle, kind, limit, mhz):
        self.clock, self.level = mhz, "manual"

    def amdsmi_set_gpu_perf_level(self, handle, level):
        self.clock, self.level = 2100, level


class TestAmd:
    def test_a_cap(self):
        amd = Amd()
        cap = knob(amd_knobs(amd), "power_cap")
        found = cap.find()
        cap.set(500.0)
        assert (amd.cap_uw, cap.read().requested) == (500_000_000, 500.0)
        cap.revert(found)
        assert amd.cap_uw == 750_000_000
        assert cap.range.least == 300.0
        with pytest.raises(KnobError, match="VBIOS"):
            cap.set(300.0)

    def test_a_clock(self):
        amd = Amd()
        clock = knob(amd_knobs(amd), "sm_clock")
        found = {"value": "unlocked"}  # as the policy says: nothing tells it
        clock.set(1500.0)
        assert (amd.clock, amd.level) == (1500, "manual")
        clock.revert(found)
        assert (amd.clock, amd.level) == (2100, "auto")


def make_sysfs(root: Path, *, cores: int = 2) -> Path:
    package = root / "class/powercap/intel-rapl:0"
    files = {
        package: {
            "name": "package-0",
            "enabled": "0",
            "constraint_0_power_limit_uw": "125000000",
            "constraint_1_power_limit_uw": "253000000",
            "constraint_0_max_power_uw": "125000000",
        }
    }
    for core in range(cores):
        files[root / f"devices/system/cpu/cpufreq/policy{core}"] = {
            "cpuinfo_min_freq": "800000",
            "cpuinfo_max_freq": "4800000",
            "scaling_min_freq": str(800_000 + 100_000 * core),
            "scaling_max_freq": "4800000",
            "scaling_governor": ["schedutil", "performance"][core % 2],
            "scaling_available_governors": "performance powersave schedutil",
        }
    for folder, of in files.items():
        folder.mkdir(parents=True)
        for name, text in of.items():
            (folder / name).write_text(text + "\n")
    return root


def contents(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text().strip() for p in sorted(root.rglob("*")) if p.is_file()}


class TestProcessors:
    @pytest.mark.parametrize(
        ("name", "value"), [("package_power", 90.0), ("cpu_clock", 2400.0), ("cpu_governor", "powersave")]
    )
    def test_everything_is_as_it_was_found(self, tmp_path, name, value):
        root = make_sysfs(tmp_path)
        before = contents(root)
        of = knob(cpu_knobs(root), name)
        found = of.find()
        of.set(value)
        assert of.read().requested == value
        assert contents(root) != before
        of.revert(found)
        assert contents(root) == before

    def test_both_constraints_of_a_package(self, tmp_path):
        root = make_sysfs(tmp_path)
        knob(cpu_knobs(root), "package_power").set(90.0)
        limits = [text for name, text in contents(root).items() if name.endswith("power_limit_uw")]
        assert limits == ["90000000"] * 2
        assert contents(root)["class/powercap/intel-rapl:0/enabled"] == "1"

    def test_a_least_above_the_greatest_is_never_written(self, tmp_path, monkeypatch):
        """As the kernel would refuse it."""
        root = make_sysfs(tmp_path, cores=1)
        folder = root / "devices/system/cpu/cpufreq/policy0"
        write = Path.write_text

        def checked(path, text):
            write(path, text)
            assert int((folder / "scaling_min_freq").read_text()) <= int((folder / "scaling_max_freq").read_text())

        monkeypatch.setattr(Path, "write_text", checked)
        clock = knob(cpu_knobs(root), "cpu_clock")
        found = clock.find()
        for mhz in (1000.0, 4000.0, 800.0, 4800.0):
            clock.set(mhz)
        clock.revert(found)

    def test_a_lock_of_the_bios(self, tmp_path, monkeypatch):
        root = make_sysfs(tmp_path)
        of = knob(cpu_knobs(root), "package_power")

        def refuse(*_):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(Path, "write_text", refuse)
        with pytest.raises(KnobError, match="Input/output error"):
            of.set(90.0)

    def test_the_power_of_a_package_has_a_known_range_or_is_no_knob(self, tmp_path):
        root = make_sysfs(tmp_path)
        of = knob(cpu_knobs(root), "package_power").range
        assert (of.least, of.greatest) == (31.25, 125.0)
        (root / "class/powercap/intel-rapl:0/constraint_0_max_power_uw").write_text("0\n")
        with pytest.raises(KnobError, match="does not say how much power"):
            _ = knob(cpu_knobs(root), "package_power").range

    @pytest.mark.parametrize("found_uw", [90_000_000, 125_000_000])
    def test_the_power_of_a_package_is_never_set_above_what_was_found(self, tmp_path, found_uw):
        root = make_sysfs(tmp_path)
        (root / "class/powercap/intel-rapl:0/constraint_0_power_limit_uw").write_text(f"{found_uw}\n")
        before = contents(root)
        bench = Bench({"cpu": lambda: cpu_knobs(root)})
        leases = Leases(bench, Records(tmp_path / "leases"), lambda: 0.0, "boot")
        cap, me = bench.find("cpu0", "package_power"), Holder(0, 1, 1)
        if found_uw < 100_000_000:
            with pytest.raises(ConfigError, match="never set above what was found, 90 W: not to 100 W"):
                leases.acquire(me, [(cap, 100.0)], 30.0)
            assert contents(root) == before
        lease = leases.acquire(me, [(cap, 80.0)], 30.0)
        with pytest.raises(ConfigError, match="never set above"):
            leases.change(lease, [(cap, 125.5)])
        assert cap.read().requested == 80.0
        leases.end_all()
        assert contents(root) == before

    def test_a_machine_without_any(self, tmp_path):
        assert list(cpu_knobs(tmp_path)) == []


class TestBench:
    def test_a_device_that_is_not_there_and_a_knob_that_it_has_not(self, machine):
        machine(architecture=5)
        bench = Bench({"nvml": lambda: gpu_knobs(file_nvml)})
        assert bench.find("GPU-00000000-fake", "power_cap").device == "gpu0"
        with pytest.raises(ConfigError, match="no device 'gpu1' here: there is gpu0"):
            bench.find("gpu1", "power_cap")
        with pytest.raises(ConfigError, match="gpu0 has no mem_clock_mhz: it has power_cap_w, sm_clock_mhz"):
            bench.find("gpu0", "mem_clock")

    def test_a_driver_that_comes_later(self, machine):
        machine()
        fails = [True]

        def later():
            if fails:
                raise KnobError("no driver yet")
            return gpu_knobs(file_nvml)

        bench = Bench({"nvml": later})
        with pytest.raises(ConfigError, match="no driver yet"):
            bench.find("gpu0", "power_cap")
        fails.clear()
        assert bench.find("gpu0", "power_cap").device == "gpu0"

    def test_what_is_untested_on_hardware_is_loaded_when_somebody_names_it(self, tmp_path):
        made = []

        def cpu():
            made.append(1)
            return cpu_knobs(make_sysfs(tmp_path / str(len(made))))

        bench = Bench({}, untested={"cpu": cpu})
        assert bench.all() == []
        bench.admit(["amd"])
        assert not made
        assert bench.find_again("cpu", "cpufreq", "cpu_clock").device == "cpu", "a record names it"
        assert bench.find_again("amd", "1234", "power_cap").driver == "amd", "and keeps its name while it is missing"

    @pytest.mark.parametrize(
        ("name", "value", "is_taken"),
        [
            ("power_cap", 100.0, True),
            ("power_cap", 99.9, False),
            ("power_cap", 300.5, False),
            ("power_cap", float("nan"), False),
            ("power_cap", "200", False),
            ("power_cap", "unlocked", False),
            ("sm_clock", 1200.0, True),
            ("sm_clock", 1201.0, False),
            ("sm_clock", "unlocked", True),
            ("sm_clock", "default", False),
        ],
    )
    def test_a_knob_takes_numbers(self, machine, name, value, is_taken):
        """Names of levels and per cents are the client's business."""
        of = knob(machine(), name)
        if is_taken:
            of.check(value)
        else:
            with pytest.raises(ConfigError, match=f"{name}_(w|mhz) takes "):
                of.check(value)

    def test_a_governor_is_a_word(self, tmp_path):
        of = knob(cpu_knobs(make_sysfs(tmp_path)), "cpu_governor")
        of.check("powersave")
        for value in ("fast", 5.0):
            with pytest.raises(ConfigError, match="takes"):
                of.check(value)
