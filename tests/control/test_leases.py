"""Leases on GPUs that outlive the helper: killed at any step, knobs are as found, or as others set them."""

import contextlib
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_control import leases as module
from powerd_control.knobs import Bench, gpu_knobs
from powerd_control.leases import POLL_S, Holder, Leases, Records
from powerd_core.errors import ConfigError, ControlError, LeaseHeld
from powerd_core.hold import Happening, State
from support import file_nvml

FOUND_W, ASKED_W, OTHER_W, FOREIGN_W = 260.0, 200.0, 180.0, 140.0


class Killed(BaseException):
    """Instead of SIGKILL: nothing behind it runs, and what stands in files stays."""


class Machine:
    """GPUs, a folder of records and a clock, and the helpers that are started on it one after the other."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int = 1) -> None:
        self.nvml = file_nvml.fresh(folder / "gpus.json", gpus)
        self.records = folder / "leases"
        monkeypatch.setenv("POWERD_FAKE_NVML", str(self.nvml))
        self.now_s, self.boot = 1000.0, "first"
        self.steps: list[str] = []
        self.kill_at: int | None = None
        monkeypatch.setattr(file_nvml, "hook", self.step)
        calls = ("open", "write", "fsync", "replace", "unlink")
        shim = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
        for name in calls:
            setattr(shim, name, self._counted(name, getattr(os, name)))
        monkeypatch.setattr(module, "os", shim)

    def _counted(self, name, call):
        def counted(*arguments, **more):
            self.step(f"before {name}")
            result = call(*arguments, **more)
            self.step(f"after {name}")
            return result

        return counted

    def step(self, name: str) -> None:
        self.steps.append(name)
        if self.kill_at == len(self.steps):
            raise Killed(name)

    def start(self) -> Leases:
        self.bench = Bench({"nvml": lambda: gpu_knobs(file_nvml)})
        leases = Leases(self.bench, Records(self.records), lambda: self.now_s, self.boot)
        leases.restore()
        return leases

    def wanted(self, value: float, gpus=(0,), knob="power_cap"):
        return [(self.bench.find(f"gpu{gpu}", knob), value) for gpu in gpus]

    def caps_w(self) -> list[float]:
        with file_nvml.opened(self.nvml) as state:
            return [gpu["limit_mw"] / 1e3 for gpu in state["gpus"]]

    def locks(self) -> list[int | None]:
        with file_nvml.opened(self.nvml) as state:
            return [gpu["lock"] for gpu in state["gpus"]]

    def somebody_sets(self, cap_w: float, gpu: int = 0) -> None:
        with file_nvml.opened(self.nvml) as state:
            state["gpus"][gpu]["limit_mw"] = round(cap_w * 1e3)

    def fault(self, **faults) -> None:
        with file_nvml.opened(self.nvml) as state:
            state["faults"] = faults

    def settle(self, leases: Leases) -> None:
        """Time goes on until no lease can be left of a helper that was killed."""
        for _ in range(4):
            self.now_s += POLL_S
            leases.poll()


def me(name: str = "train.py") -> Holder:
    return Holder(os.getuid(), os.getpid(), module.start_ticks(os.getpid()) or 0, name)


UNLOCKED = {"sm_clock": "unlocked"}
"""As a policy says what is found of a clock."""
DEAD = Holder(os.getuid(), 2**22 - 1, 5, "gone")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


class TestLife:
    def test_what_was_found_stands_again_after_a_release(self, machine):
        leases = machine.start()
        lease = leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
        assert machine.caps_w() == [ASKED_W]
        assert lease.holds[0].state is State.HELD
        assert lease.holds[0].setting.enforced == ASKED_W
        leases.end(lease, Happening.RELEASED)
        assert machine.caps_w() == [FOUND_W]
        assert not leases.leases
        assert not list(machine.records.iterdir())

    def test_what_was_found_is_not_the_greatest_or_the_default(self, machine):
        machine.somebody_sets(222.0)
        leases = machine.start()
        leases.end(leases.acquire(me(), machine.wanted(ASKED_W), 30.0), Happening.RELEASED)
        assert machine.caps_w() == [222.0]

    def test_silence_ends_it(self, machine):
        leases = machine.start()
        lease = leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
        machine.now_s += 29.0
        leases.renew(lease)
        machine.now_s += 29.0
        leases.poll()
        assert machine.caps_w() == [ASKED_W]
        machine.now_s += 2.0
        leases.poll()
        assert machine.caps_w() == [FOUND_W]
        with pytest.raises(ControlError, match="ended"):
            leases.renew(lease)

    def test_a_second_one_is_told_who_holds_it_and_until_when(self, machine):
        leases = machine.start()
        leases.acquire(me("first.py"), machine.wanted(ASKED_W), 30.0)
        machine.now_s += 10.0
        with pytest.raises(LeaseHeld, match=r"gpu0 power_cap_w is held by first.py .* until 20 s from now"):
            leases.acquire(me("second.py"), machine.wanted(OTHER_W), 30.0)
        assert machine.caps_w() == [ASKED_W]

    def test_other_knobs_of_the_gpu_are_free(self, machine):
        leases = machine.start()
        leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
        lease = leases.acquire(me(), machine.wanted(1200.0, knob="sm_clock"), 30.0, UNLOCKED)
        assert (machine.caps_w(), machine.locks()) == ([ASKED_W], [1200])
        leases.end(lease, Happening.RELEASED)
        assert (machine.caps_w(), machine.locks()) == ([ASKED_W], [None])

    def test_another_level_and_back_to_what_was_found_first(self, machine):
        leases = machine.start()
        lease = leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
        leases.change(lease, machine.wanted(OTHER_W))
        assert machine.caps_w() == [OTHER_W]
        leases.end(lease, Happening.RELEASED)
        assert machine.caps_w() == [FOUND_W]

    def test_it_is_never_set_above_what_was_found_where_the_policy_says_so(self, machine):
        machine.somebody_sets(222.0)
        leases = machine.start()
        (cap, _), *_ = machine.wanted(ASKED_W)
        with pytest.raises(ConfigError, match="never set above what was found, 222 W: not to 230 W"):
            leases.acquire(me(), [(cap, 230.0)], 30.0, bounded=[cap])
        lease = leases.acquire(me(), [(cap, ASKED_W)], 30.0, bounded=[cap])
        with pytest.raises(ConfigError, match="222 W: not to 230 W"):
            leases.change(lease, [(cap, 230.0)], bounded=[cap])
        assert machine.caps_w() == [ASKED_W]
        leases.change(lease, [(cap, 222.0)], bounded=[cap])
        leases.change(lease, [(cap, 230.0)])
        assert machine.caps_w() == [230.0]

    @pytest.mark.parametrize("happening", [Happening.DIED, Happening.SILENT, Happening.STOPPED, Happening.TAKEN])
    def test_however_it_ends(self, machine, happening):
        leases = machine.start()
        leases.end(leases.acquire(me(), machine.wanted(ASKED_W), 30.0), happening)
        assert machine.caps_w() == [FOUND_W]


class TestOthers:
    def test_what_somebody_else_has_set_meanwhile_stays(self, machine):
        leases = machine.start()
        lease = leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
        machine.somebody_sets(FOREIGN_W)
        leases.poll()
        assert lease.holds[0].state is State.YIELDED
        assert "140 W" in lease.holds[0].why
        leases.end(lease, Happening.RELEASED)
        assert machine.caps_w() == [FOREIGN_W]

    def test_also_where_nobody_looked_before_the_end(self, machine):
        leases = machine.start()
        lease = leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
        machine.somebody_sets(FOREIGN_W)
        leases.end(lease, Happening.DIED)
        assert machine.caps_w() == [FOREIGN_W]

    def test_a_driver_that_was_loaded_anew_is_not_set_again(self, machine):
        leases = machine.start()
        lease = leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
        file_nvml.reload_driver(machine.nvml)
        leases.poll()
        assert lease.holds[0].state is State.LOST
        leases.end(lease, Happening.RELEASED)
        assert machine.caps_w() == [file_nvml.DEFAULT_MW / 1e3]

    def test_a_lock_that_the_driver_forgot_is_noticed_though_nothing_can_be_read(self, machine):
        leases = machine.start()
        lease = leases.acquire(me(), machine.wanted(1200.0, knob="sm_clock"), 30.0, UNLOCKED)
        file_nvml.reload_driver(machine.nvml)
        leases.poll()
        assert lease.holds[0].state is State.LOST

    def test_a_limit_out_of_band_is_not_ours_to_revert_for(self, machine):
        """Requested is what was asked, enforced is lower: the lease goes on, and says so."""
        with file_nvml.opened(machine.nvml) as state:
            state["gpus"][0]["out_of_band_mw"] = 150_000
        leases = machine.start()
        lease = leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
        assert lease.holds[0].state is State.HELD
        assert (lease.holds[0].setting.requested, lease.holds[0].setting.enforced) == (ASKED_W, 150.0)


SET = "nvmlDeviceSetPowerManagementLimit"


class TestRefusals:
    @pytest.mark.parametrize(
        ("fault", "why"),
        [
            ({"ignore": True}, "the driver keeps 260 W where 200 W was asked"),
            ({"clamp": 220_000}, "the driver keeps 220 W"),
            ({"refuse": 4}, "has to run as root"),
            ({"refuse": 3}, "does not have it"),
            ({"refuse": 15}, "lost"),
        ],
    )
    def test_a_driver_that_does_not_do_it(self, machine, fault, why):
        leases = machine.start()
        machine.fault(**{SET: fault})
        with pytest.raises(ControlError, match=why):
            leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
        with file_nvml.opened() as state:
            assert state["calls"][0] == [SET, 0, [200_000]], "it was tried"
        machine.fault()
        leases.poll()
        assert machine.caps_w() == [FOUND_W]
        assert not leases.leases

    def test_all_of_eight_or_none(self, tmp_path, monkeypatch):
        machine = Machine(tmp_path, monkeypatch, gpus=8)
        leases = machine.start()
        machine.fault(**{f"{SET} 5": {"refuse": 15}})
        with pytest.raises(ControlError, match="gpu5 power_cap_w.*All is as it was found"):
            leases.acquire(me(), machine.wanted(ASKED_W, range(8)), 30.0)
        with file_nvml.opened() as state:
            tried = {index for name, index, values in state["calls"] if values == [200_000]}
        assert tried == set(range(8)), "seven were set before the whole was given up"
        assert machine.caps_w() == [FOUND_W] * 8
        machine.fault()
        leases.acquire(me(), machine.wanted(ASKED_W, range(8)), 30.0)
        assert machine.caps_w() == [ASKED_W] * 8

    def test_a_full_disk_sets_nothing(self, machine, monkeypatch):
        leases = machine.start()

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(module.os, "write", full)
        with pytest.raises(ControlError, match="nothing was set.*No space left"):
            leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
        with file_nvml.opened() as state:
            assert state["calls"] == []
        assert not leases.leases

    def test_a_disk_that_is_full_later_still_lets_it_go_back(self, machine, monkeypatch):
        leases = machine.start()
        lease = leases.acquire(me(), machine.wanted(ASKED_W), 30.0)

        def full(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

        for name in ("write", "replace", "fsync"):
            monkeypatch.setattr(module.os, name, full)
        with pytest.raises(ControlError, match="nothing was set"):
            leases.change(lease, machine.wanted(OTHER_W))
        assert machine.caps_w() == [ASKED_W]
        leases.end(lease, Happening.RELEASED)
        assert machine.caps_w() == [FOUND_W]

    def test_what_does_not_go_back_at_once_is_tried_again(self, machine):
        leases = machine.start()
        lease = leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
        machine.fault(**{SET: {"refuse": 15}})
        leases.end(lease, Happening.RELEASED)
        assert machine.caps_w() == [ASKED_W]
        with pytest.raises(LeaseHeld):
            leases.acquire(me(), machine.wanted(OTHER_W), 30.0)
        machine.fault()
        leases.poll()
        assert machine.caps_w() == [FOUND_W]


def scenario(machine: Machine, leases: Leases, *, knob: str, is_changed: bool) -> None:
    """A lease's whole life."""
    first, second = (ASKED_W, OTHER_W) if knob == "power_cap" else (1200.0, 1005.0)
    lease = leases.acquire(DEAD, machine.wanted(first, knob=knob), 30.0, UNLOCKED)
    if is_changed:
        leases.change(lease, machine.wanted(second, knob=knob))
    leases.end(lease, Happening.RELEASED)


def steps_of_a_life(folder: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(folder, patch)
        leases = machine.start()
        machine.steps.clear()
        scenario(machine, leases, knob="power_cap", is_changed=True)
        return len(machine.steps)


@pytest.mark.parametrize("knob", ["power_cap", "sm_clock"])
@pytest.mark.parametrize("is_changed", [False, True])
def test_killed_at_every_step_of_its_life(tmp_path, monkeypatch, knob, is_changed):
    """A helper that dies between any two of its steps leaves nothing that the next one does not put back."""
    killed, was_set = [], 0
    for at in range(1, 1000):
        folder = tmp_path / str(at)
        folder.mkdir()
        machine = Machine(folder, monkeypatch)
        leases = machine.start()
        machine.steps.clear()
        machine.kill_at = at
        try:
            scenario(machine, leases, knob=knob, is_changed=is_changed)
        except Killed as where:
            killed.append(str(where))
        else:
            break
        was_set += machine.caps_w() != [FOUND_W] or machine.locks() != [None]
        machine.kill_at = None
        machine.settle(machine.start())
        assert machine.caps_w() == [FOUND_W], f"killed {killed[-1]} (step {at})"
        assert machine.locks() == [None], f"killed {killed[-1]} (step {at})"
        assert not any(entry.suffix == ".json" for entry in machine.records.iterdir())
        monkeypatch.undo()
    assert len(killed) > 20
    assert was_set > 5, "it died while the knob was set"
    assert {"before fsync", "after replace", "after unlink"} <= set(killed)


ACTS = ("nothing", "foreign", "reload", "reboot", "clamp")


@settings(max_examples=100, deadline=None)
@given(
    at=st.integers(1, 80),
    act=st.sampled_from(ACTS),
    holder_lives=st.booleans(),
    found_w=st.floats(100, 300).map(round).map(float),
    again_at=st.integers(1, 40) | st.none(),
)
def test_never_ours_without_a_lease(tmp_path_factory, at, act, holder_lives, found_w, again_at):
    """Killed at any step, and the next helper too; meanwhile others set a value, the driver or the machine begins
    anew, or the driver clamps: at the end the cap is what was found or what others made of it."""
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(tmp_path_factory.mktemp("m"), patch)
        machine.somebody_sets(found_w)
        leases = machine.start()
        machine.steps.clear()
        if act == "clamp":
            machine.fault(**{SET: {"halfway": True}})
        machine.kill_at = at
        holder = me() if holder_lives else DEAD
        try:
            lease = leases.acquire(holder, machine.wanted(ASKED_W), 30.0)
            leases.change(lease, machine.wanted(OTHER_W))
            leases.end(lease, Happening.RELEASED)
        except (Killed, ControlError):
            pass
        machine.fault()
        allowed = {found_w}
        if act == "foreign":
            machine.somebody_sets(FOREIGN_W)
            # Between what was found and what is asked it cannot be told from a clamp while nothing was read back.
            allowed = {FOREIGN_W, found_w} if found_w < FOREIGN_W else {FOREIGN_W}
        elif act in ("reload", "reboot"):
            file_nvml.reload_driver(machine.nvml)
            machine.boot = "second" if act == "reboot" else machine.boot
            allowed |= {FOUND_W}
        if again_at is not None:
            machine.kill_at = len(machine.steps) + again_at
            with contextlib.suppress(Killed):
                machine.settle(machine.start())
        machine.kill_at = None
        machine.settle(machine.start())
        (cap_w,) = machine.caps_w()
        assert cap_w in allowed, machine.steps


@pytest.mark.parametrize("holder", [me(), DEAD], ids=["lives", "is dead"])
def test_a_helper_that_was_killed_ends_its_leases(machine, holder):
    """What ran meanwhile is of no known setting, and the unit's ExecStopPost ends them anyhow."""
    leases = machine.start()
    leases.acquire(holder, machine.wanted(ASKED_W), 30.0)
    again = machine.start()
    assert machine.caps_w() == [FOUND_W]
    assert again.is_clean


def test_records_of_an_earlier_boot_are_dropped_and_nothing_is_set(machine):
    leases = machine.start()
    leases.acquire(me(), machine.wanted(ASKED_W), 30.0)
    machine.boot = "second"
    machine.somebody_sets(FOREIGN_W)
    with file_nvml.opened() as state:
        state["calls"].clear()
    again = machine.start()
    assert not again.leases
    assert not list(machine.records.iterdir())
    with file_nvml.opened() as state:
        assert state["calls"] == []


class TestRecords:
    def test_a_link_is_no_folder_of_ours(self, tmp_path):
        (tmp_path / "precious").mkdir()
        (tmp_path / "leases").symlink_to(tmp_path / "precious")
        with pytest.raises(ValueError, match="no folder of the helper's own"):
            Records(tmp_path / "leases")

    def test_a_folder_that_others_can_reach_is_refused(self, tmp_path):
        (tmp_path / "leases").mkdir(mode=0o777)
        (tmp_path / "leases").chmod(0o777)
        with pytest.raises(ValueError, match="not the helper's alone"):
            Records(tmp_path / "leases")

    def test_a_record_that_is_a_link_is_not_followed(self, machine, tmp_path):
        leases = machine.start()
        leases.acquire(DEAD, machine.wanted(ASKED_W), 30.0)
        (record,) = machine.records.iterdir()
        record.rename(tmp_path / "moved.json")
        record.symlink_to(tmp_path / "moved.json")
        machine.start()
        assert machine.caps_w() == [ASKED_W], "who planted it has not moved our knob"
