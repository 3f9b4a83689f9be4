"""The RAPL source on a powercap tree of plain files."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conformance import EPOCH, Opened, SourceConformance
from hypothesis import given
from hypothesis import strategies as st

from powerd_client.signals.integral import unwrap_counter
from powerd_core.errors import SensorError
from powerd_core.model import Flag, Provenance
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.rapl import RaplOptions, RaplSource, Unwrap, find_zones, is_modelled
from powerd_daemon.sources.sim.bus import VirtualClock

RANGE_UJ = 262_143_328_850
INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {}\n\nprocessor\t: 1\n"
SERVER = {
    "intel-rapl": None,
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "dram",
    "intel-rapl:1": "package-1",
    "intel-rapl:1:0": "dram",
    "intel-rapl-mmio:0": "package-0",
    "dtpm": None,
}
LAPTOP = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "uncore", "intel-rapl:1": "psys"}


def tree(root: Path, zones: dict[str, str | None]) -> Path:
    for name, kind in zones.items():
        (root / name).mkdir(parents=True)
        if kind:
            (root / name / "name").write_text(kind + "\n")
            (root / name / "energy_uj").write_text("1000\n")
            (root / name / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return root


def count(root: Path, zone: str, energy_uj: int | str) -> None:
    (root / zone / "energy_uj").write_text(f"{energy_uj}\n")


DIES = {f"intel-rapl:{i}": f"package-0-die-{i}" for i in range(4)}


class CountingClock(VirtualClock):
    """While somebody sleeps, the counters of zones move every ``pause_ns``, from a first value and at so many watts;
    that of the zone ``late`` stays behind in one of so many sleeps."""

    def __init__(
        self, root: Path, pause_ns: int, zones: dict[str, tuple[int, float]], late: tuple[str, int] = ("", 1)
    ) -> None:
        super().__init__()
        self.root, self.pause_ns, self.zones, self.late, self.were_late = root, pause_ns, zones, late, 0
        self.sleeps, self.shown = 0, dict[str, int]()

    def sleep_until(self, t_ns: int) -> None:
        super().sleep_until(t_ns)
        self.sleeps += 1
        moved_s = (self.t_ns - self.t_ns % self.pause_ns) * 1e-9
        for zone, (first_uj, watts) in self.zones.items():
            if zone == self.late[0] and self.sleeps % self.late[1] == 0:
                self.were_late += 1
            else:
                energy_uj = first_uj + round(moved_s * watts * 1e6)
                if self.shown.get(zone) != energy_uj:
                    self.shown[zone] = energy_uj
                    count(self.root, zone, energy_uj)


def opened(root: Path, clock: VirtualClock | None = None, **options: object) -> Opened:
    clock = clock or VirtualClock()
    cpuinfo = root / "cpuinfo"
    if not cpuinfo.exists():
        cpuinfo.write_text(INTEL.format(143))
    source = RaplSource(RaplOptions(root=root, **options), Start("rapl", EPOCH, 0, clock), cpuinfo)
    return Opened(source, clock, *source.open())


class TestConformance(SourceConformance):
    polls = 60

    @pytest.fixture(autouse=True)
    def _root(self, tmp_path):
        self.root = tree(tmp_path, LAPTOP)

    @pytest.fixture
    def clock(self):
        """Counters that stood would be flagged anyway."""
        return CountingClock(self.root, 1_000_000, dict.fromkeys(LAPTOP, (5, 40.0)))

    def make(self, start: Start) -> RaplSource:
        return RaplSource(RaplOptions(root=self.root), start)

    def fail(self, source: RaplSource) -> None:
        source.start.clock.zones = {}
        for zone in LAPTOP:
            count(self.root, zone, "")


class TestZones:
    def test_packages_and_their_memory_feed_the_device_each_once(self, tmp_path):
        o = opened(tree(tmp_path, SERVER))
        assert [line.name for line in o.streams[0].lines] == [
            "cpu0.package_0", "cpu0.dram_0", "cpu0.package_1", "cpu0.dram_1",
        ]  # fmt: skip
        (device,) = o.devices
        assert device.feeds == ("cpu0.package_0", "cpu0.dram_0", "cpu0.package_1", "cpu0.dram_1")

    def test_parts_of_a_package_and_what_contains_it_are_never_added(self, tmp_path):
        o = opened(tree(tmp_path, LAPTOP))
        assert [line.name for line in o.streams[0].lines] == [
            "cpu0.package_0", "cpu0.core_0", "cpu0.uncore_0", "platform.psys",
        ]  # fmt: skip
        assert [(d.name, d.feeds) for d in o.devices] == [
            ("cpu0", ("cpu0.package_0",)),
            ("platform", ("platform.psys",)),
        ]

    def test_dies_that_count_apart_are_packages_of_their_own(self, tmp_path):
        zones = find_zones(tree(tmp_path, {"intel-rapl:0": "package-0-die-0", "intel-rapl:1": "package-0-die-1"}))
        assert [z.suffix for z in zones] == ["package_0", "package_1"]

    @pytest.mark.parametrize("pause_ns", [1_000_000, 100_000_000], ids=["each ms", "ten times a second"])
    def test_dies_that_show_one_counter_are_added_once(self, tmp_path, pause_ns):
        clock = CountingClock(tmp_path, pause_ns, dict.fromkeys(DIES, (1_000_000, 68.0)))
        o = opened(tree(tmp_path, DIES), clock=clock)
        (device,) = o.devices
        assert device.feeds == ("cpu0.package_0",)
        assert "counted once" in device.description
        lines = {line.name: line for line in o.streams[0].lines}
        assert list(lines) == ["cpu0.package_0", "cpu0.package_1", "cpu0.package_2", "cpu0.package_3"]
        assert lines["cpu0.package_3"].description.startswith("the counter of cpu0.package_0 once more, not added")
        mirrors = dict.fromkeys(list(lines)[1:], "cpu0.package_0")
        assert o.source.health()["mirrors"] == o.streams[0].detail["mirrors"] == mirrors
        made = o.run(2)
        assert all(o.readings(made, name)["flags"] == [0, 0] for name in lines)

    def test_of_two_sockets_each_is_added_once(self, tmp_path):
        zones = {f"intel-rapl:{i}": f"package-{i // 2}-die-{i % 2}" for i in range(4)}
        sockets = [(1_000_000, 68.0), (1_000_000, 71.0)]
        clock = CountingClock(tmp_path, 1_000_000, {zone: sockets[i // 2] for i, zone in enumerate(zones)})
        (device,) = opened(tree(tmp_path, zones), clock=clock).devices
        assert device.feeds == ("cpu0.package_0", "cpu0.package_2")

    @pytest.mark.parametrize(
        ("first", "other"),
        [
            ((1_000_000, 34.0), (1_000_061, 34.0)),  # the same power, one step apart
            ((1_000_000, 34.0), (1_000_000, 33.9)),  # nearly the same power, since the same value
            ((1_000_000, 34.0), (90_000_000, 34.0)),
            ((1_000_000, 0.0), (1_000_000, 0.0)),  # nothing says that they are one
            ((1_000_000, 0.0), (1_000_000, 34.0)),
        ],
    )
    def test_dies_that_count_apart_are_all_added(self, tmp_path, first, other):
        zones = {"intel-rapl:0": "package-0-die-0", "intel-rapl:1": "package-0-die-1"}
        clock = CountingClock(tmp_path, 1_000_000, dict(zip(zones, (first, other), strict=True)))
        o = opened(tree(tmp_path, zones), clock=clock)
        (device,) = o.devices
        assert device.feeds == ("cpu0.package_0", "cpu0.package_1")
        assert "mirrors" not in o.streams[0].detail

    def test_a_mirror_whose_files_change_one_behind_the_other_is_one_counter(self, tmp_path):
        """As of a fake, or of counters that move between two reads: one round in ten catches them in between."""
        zones = {"intel-rapl:0": "package-0-die-0", "intel-rapl:1": "package-0-die-1"}
        clock = CountingClock(tmp_path, 1_000_000, dict.fromkeys(zones, (1_000_000, 68.0)), late=("intel-rapl:1", 10))
        (device,) = opened(tree(tmp_path, zones), clock=clock).devices
        assert clock.were_late >= 10
        assert device.feeds == ("cpu0.package_0",)

    def test_no_zone_at_all(self, tmp_path):
        for root in (tmp_path, tmp_path / "none"):
            with pytest.raises(SensorError, match="modprobe intel_rapl_msr"):
                find_zones(root)

    @pytest.mark.parametrize(
        ("text", "modelled"),
        [(INTEL.format(143), False), (INTEL.format(0x2D), True), ("vendor_id : AuthenticAMD\n", True)],
    )
    def test_what_the_processor_models_is_not_called_measured(self, tmp_path, text, modelled):
        (tmp_path / "cpuinfo").write_text(text)
        assert is_modelled(tmp_path / "cpuinfo") is modelled
        line = opened(tree(tmp_path, LAPTOP)).streams[0].lines[0]
        assert line.provenance is (Provenance.MODELLED if modelled else Provenance.MEASURED)


class TestReadings:
    def test_codes_are_microjoules_that_go_on_over_a_wrap(self, tmp_path):
        root = tree(tmp_path, LAPTOP)
        o = opened(root)
        made = []
        for energy_uj in (RANGE_UJ - 700_000, RANGE_UJ - 200_000, 300_000, 800_000):
            count(root, "intel-rapl:0", energy_uj)
            made += o.run(1)
            o.clock.t_ns += 10_000_000
        r = o.readings(made, "cpu0.package_0")
        assert r["flags"] == [0] * 4
        assert o.source.health()["began_again"]["cpu0.package_0"] == 1
        assert not any(o.source.health()["unknown_steps"].values())
        assert [b - a for a, b in pairwise(r["energy_uj"])] == [500_000, 500_001, 500_000]
        line = o.streams[0].lines[0]
        assert (line.conversion.j_per_code, line.conversion.bits) == (1e-6, 64)

    @pytest.mark.parametrize(
        ("later_uj", "pause_s", "why"),
        [(5_000_000, 600, "may have begun again twice"), (500, 1, "fell by more than that much power explains")],
    )
    def test_energy_that_cannot_be_told_is_flagged_and_looks_set_back(self, tmp_path, later_uj, pause_s, why):
        root = tree(tmp_path, LAPTOP)
        o = opened(root, most_w=500.0)
        count(root, "intel-rapl:0", 4_000_000)
        made = o.run(2)
        o.clock.t_ns += pause_s * 1_000_000_000
        count(root, "intel-rapl:0", later_uj)
        made += o.run(1)
        o.clock.t_ns += 10_000_000
        count(root, "intel-rapl:0", later_uj + 1000)
        made += o.run(1)
        r = o.readings(made, "cpu0.package_0")
        assert r["flags"] == [0, 0, Flag.RESET, 0], why
        assert o.source.health()["unknown_steps"]["cpu0.package_0"] == 1
        good = [c for c, f in zip(r["energy_uj"], r["flags"], strict=True) if not f]
        assert good[2] < good[1]
        assert unwrap_counter(np.array(good, np.uint64), 64)[1].tolist() == [False, True], why

    def test_a_counter_that_stands_still_counts_nothing(self, tmp_path):
        """As in a virtual machine. It is no 0 J, and what it did before it moves is unknown."""
        root = tree(tmp_path, LAPTOP)
        o = opened(root)
        made = o.run(100)
        assert set(o.readings(made, "cpu0.package_0")["flags"]) == {Flag.STALE}
        assert set(o.readings(made, "cpu0.core_0")["flags"]) == {Flag.STALE}
        assert "cpu0.package_0" in o.source.health()["standing"]
        for step in (1, 2):
            count(root, "intel-rapl:0", 1000 + step * 400_000)
            o.clock.t_ns += 10_000_000
            made += o.run(1)
        r = o.readings(made, "cpu0.package_0")
        assert r["flags"][-2:] == [Flag.RESET, 0]
        assert unwrap_counter(np.array([r["energy_uj"][0], r["energy_uj"][-1]], np.uint64), 64)[1].tolist() == [True]
        assert o.readings(made, "cpu0.core_0")["flags"][-1] == 0, "a part may take no energy"
        made = o.run(100)
        later = o.readings(made, "cpu0.package_0")["flags"]
        assert later[:40] == [0] * 40
        assert later[60:] == [Flag.STALE] * 40, "a package cannot take nothing for a second"

    def test_memory_that_stands_or_cannot_be_read_is_left_out_and_named(self, tmp_path):
        root = tree(tmp_path, SERVER)
        clock = CountingClock(root, 1_000_000, {"intel-rapl:0": (5, 40.0), "intel-rapl:1": (70_000_000, 20.0)})
        count(root, "intel-rapl:1:0", "nothing")
        o = opened(root, clock=clock)
        (device,) = o.devices
        assert device.feeds == ("cpu0.package_0", "cpu0.package_1")
        assert (
            "without cpu0.dram_1, which cannot be read; without cpu0.dram_0, which stands still" in device.description
        )
        flags = {name: set(o.readings(o.run(30), name)["flags"]) for name in ("cpu0.package_0", "cpu0.dram_0")}
        assert flags == {"cpu0.package_0": {0}, "cpu0.dram_0": {Flag.STALE}}

    def test_a_package_that_stands_beside_another_stays_in_the_device(self, tmp_path):
        """Without it the device's joules would be too few, and nobody would see it."""
        root = tree(tmp_path, {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1"})
        o = opened(root, clock=CountingClock(root, 1_000_000, {"intel-rapl:0": (5, 40.0)}))
        assert o.devices[0].feeds == ("cpu0.package_0", "cpu0.package_1")
        assert set(o.readings(o.run(30), "cpu0.package_1")["flags"]) == {Flag.STALE}

    def test_a_read_that_fails_is_flagged_and_costs_no_energy(self, tmp_path):
        root = tree(tmp_path, LAPTOP)
        o = opened(root)
        count(root, "intel-rapl:0", 2000)
        made = o.run(1)
        o.clock.t_ns += 10_000_000
        count(root, "intel-rapl:0", "")
        made += o.run(1)
        o.clock.t_ns += 10_000_000
        count(root, "intel-rapl:0", 3000)
        made += o.run(1)
        r = o.readings(made, "cpu0.package_0")
        assert r["flags"] == [0, Flag.IO_ERROR, 0]
        assert sum(o.source.health()["failed_reads"].values()) == 1
        assert r["energy_uj"][2] - r["energy_uj"][0] == 1000
        assert o.readings(made, "cpu0.core_0")["flags"] == [0, 0, 0]


@given(st.lists(st.integers(0, RANGE_UJ // 3), min_size=1, max_size=60), st.integers(0, RANGE_UJ))
def test_unwrapping_gives_the_energy_back(steps, first):
    unwrap = Unwrap(RANGE_UJ, most_w=1000.0)
    true = np.cumsum([0, *steps])
    # 100 s apart: 1 kW allows 100 kJ of the 262 kJ at which the counter begins again.
    codes = [unwrap((first + int(e)) % (RANGE_UJ + 1), k * 100_000_000_000) for k, e in enumerate(true)]
    assert all(known for _, known in codes)
    assert [c - codes[0][0] for c, _ in codes] == true.tolist()
