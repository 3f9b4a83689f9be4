"""Knobs come back though something else is broken at the restart, or somebody is told which do not, and why.

The driver is a simulated node of two cards in this process: it outlives every helper, which is made anew.
"""

import json
import os
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from powerd_control import leases as module
from powerd_control.knobs import Bench, gpu_knobs
from powerd_control.leases import POLL_S, Holder, Leases, Records, start_ticks
from powerd_core.errors import ControlError
from powerd_core.gpu_physics import RTX_6000
from powerd_core.hold import Happening, State
from powerd_daemon.sources.sim.gpu import Refusal, SimulatedGpu, SimulatedNode
from powerd_daemon.sources.sim.nvml_face import NvmlFace, make_module

FOUND_W, ASKED_W, ADMINS_W = 230.0, 150.0, 190.0
LIVES = Holder(os.getuid(), os.getpid(), start_ticks(os.getpid()) or 0, "train.py")
DEAD = Holder(os.getuid(), 2**22 - 1, 5, "gone")


class Machine:
    """Two cards whose caps were set by hand, the records of helpers, and the helpers."""

    def __init__(self, folder: Path) -> None:
        self.node = SimulatedNode([SimulatedGpu(RTX_6000, index) for index in range(2)])
        self.cards = list(self.node.gpus)
        for gpu in self.cards:
            gpu.set_to.limit_w = FOUND_W
        self.folder, self.now_s = folder / "leases", 1000.0
        self.is_driver_up = True

    def _call(self, face):
        def call(name, arguments):
            if not self.is_driver_up:
                raise Refusal(9)
            return face.call(name, arguments)

        return call

    def start(self) -> Leases:
        nvml = make_module(self._call(NvmlFace(self.node, lambda: self.now_s)))
        self.bench = Bench({"nvml": lambda: gpu_knobs(nvml)})
        leases = Leases(self.bench, Records(self.folder), lambda: self.now_s, "boot")
        leases.restore()
        return leases

    def wanted(self, value=ASKED_W, cards=(0, 1)):
        return [(self.bench.find(self.cards[card].uuid, "power_cap"), value) for card in cards]

    def caps_w(self):
        return [gpu.set_to.limit_w for gpu in self.cards]

    def go_on(self, leases: Leases) -> None:
        for _ in range(3):
            self.now_s += POLL_S
            leases.poll()

    def faults(self, *names, card=0):
        self.cards[card].faults = set(names)

    @property
    def record(self) -> Path:
        (record,) = self.folder.glob("*.json")
        return record


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def rewritten(record: Path, change) -> None:
    """A record whose check is right and whose contents are not."""
    document = json.loads(record.read_bytes().split(b" ", 2)[2])
    text = json.dumps(change(document))
    record.write_text(f"2 {zlib.crc32(text.encode()):08x} {text}")


def with_found(found):
    def change(document):
        document["holds"][0]["found"] = found
        return document

    return lambda record: rewritten(record, change)


def as_folder(record: Path) -> None:
    record.unlink()
    record.mkdir()


def as_link(record: Path) -> None:
    record.rename(record.with_suffix(".elsewhere"))
    record.symlink_to(record.with_suffix(".elsewhere"))


def whole(of: dict) -> bytes:
    text = json.dumps(of)
    return f"2 {zlib.crc32(text.encode()):08x} {text}".encode()


DAMAGES = {
    "cut": lambda r: os.truncate(r, 200),
    "empty": lambda r: os.truncate(r, 0),
    "garbled": lambda r: r.write_bytes(r.read_bytes().replace(b"230.0", b"130.0", 1)),
    "noise": lambda r: r.write_bytes(b"\xff\0" * 99),
    "a link": as_link,
    "a folder": as_folder,
    "of another version": lambda r: r.write_bytes(b"3" + r.read_bytes()[1:]),
    "found is text": with_found("230"),
    "found is null": with_found({"value": None}),
    "nothing ours": lambda r: rewritten(r, lambda d: d | {"holds": [h | {"ours": []} for h in d["holds"]]}),
    "an odometer of text": lambda r: rewritten(r, lambda d: d | {"holds": [h | {"odometer": ""} for h in d["holds"]]}),
    "a knob that is none": lambda r: rewritten(r, lambda d: d | {"holds": [h | {"knob": "fan"} for h in d["holds"]]}),
    "a holder that is none": lambda r: rewritten(r, lambda d: d | {"holder": {"uid": 5}}),
    "a list": lambda r: r.write_bytes(whole([])),
    "nested deep": lambda r: r.write_bytes(b"2 %08x " % zlib.crc32(b"[" * 9999) + b"[" * 9999),
}


@pytest.mark.parametrize("holder", [LIVES, DEAD], ids=["helper", "both"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_cannot_be_used(machine, tmp_path, damage, holder):
    """It kills nobody, is told, keeps others from taking our value for what was found, and is used when it is mended;
    what else was left goes back."""
    first = machine.start()
    first.acquire(holder, machine.wanted(cards=[0]), 30.0)
    record = machine.record
    first.acquire(DEAD, machine.wanted(cards=[1]), 30.0)
    good = record.read_bytes()
    DAMAGES[damage](record)
    for leases in (machine.start(), machine.start()):
        machine.go_on(leases)
        assert machine.caps_w() == [ASKED_W, FOUND_W], "the other one is back"
        assert not leases.is_clean, "which makes --revert-all end with 1"
        assert list(leases.unusable) == [record.stem]
        assert record.name in leases.problems()[0]
        with pytest.raises(ControlError, match="nothing is set while it is not known"):
            leases.acquire(LIVES, machine.wanted(120.0, cards=[0]), 30.0)
    record.rmdir() if record.is_dir() else record.unlink()
    record.write_bytes(good)
    machine.go_on(leases)
    assert machine.caps_w() == [FOUND_W] * 2
    assert leases.is_clean


def test_a_record_that_was_deleted_by_hand_blocks_no_more(machine):
    machine.start()
    bad = machine.folder / "bad.json"
    bad.write_text("")
    leases = machine.start()
    bad.unlink()
    machine.go_on(leases)
    leases.acquire(LIVES, machine.wanted(), 30.0)
    assert machine.caps_w() == [ASKED_W] * 2


@pytest.mark.parametrize("room", [0, 100, 4095])
def test_a_record_for_which_there_is_no_room_is_no_record(machine, monkeypatch, room):
    """The kernel writes what fits in and says how much."""
    leases = machine.start()
    shim = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
    shim.write = lambda file, data: os.write(file, data[:room])
    monkeypatch.setattr(module, "os", shim)
    with pytest.raises(ControlError, match="nothing was set.*no room"):
        leases.acquire(LIVES, machine.wanted(), 30.0)
    assert machine.caps_w() == [FOUND_W] * 2
    assert not list(machine.folder.iterdir())


def test_a_record_does_not_grow_by_another_level(machine):
    leases = machine.start()
    lease = leases.acquire(LIVES, machine.wanted(), 30.0)
    before = machine.record.stat().st_size
    leases.change(lease, machine.wanted(151.234567))
    assert machine.record.stat().st_size == before


# Something about the cards is broken at the restart.


def lose(machine):
    machine.cards[0].is_lost = True


def find(machine):
    machine.cards[0].is_lost = False


def renumber(machine, *cards):
    """NVML has to be opened anew and knows these cards in this order; their settings and counters are as they were."""
    machine.node.gpus = [machine.cards[card] for card in cards]
    machine.node.loads += 1
    for index, gpu in enumerate(machine.node.gpus):
        gpu.index = index


def take_away(machine):
    """As a card that has fallen off the bus."""
    renumber(machine, 1)


def bring_back(machine):
    renumber(machine, 0, 1)


def refuse(name):
    return lambda machine: machine.faults(name)


def stop_driver(machine):
    machine.is_driver_up = False


def start_driver(machine):
    machine.is_driver_up = True


CARDS = {
    "lost": (lose, find, 1),
    "gone": (take_away, bring_back, 1),
    "no-permission": (refuse("no-permission"), lambda m: m.faults(), 1),
    "ignores it": (refuse("ignore"), lambda m: m.faults(), 1),
    "driver comes late": (stop_driver, start_driver, 0),
}
"""What breaks it, what mends it, and how many caps come back before that."""


@pytest.mark.parametrize("is_reverted_between", [False, True], ids=["", "revert-all"])
@pytest.mark.parametrize("holder", [LIVES, DEAD], ids=["helper", "both"])
@pytest.mark.parametrize("what", CARDS)
def test_a_card_that_is_broken_at_the_restart(machine, what, holder, is_reverted_between):
    """Those that answer go back, those that do not are told, tried again, and nobody else's meanwhile."""
    break_it, mend, back = CARDS[what]
    machine.start().acquire(holder, machine.wanted(), 30.0)
    break_it(machine)
    if is_reverted_between:
        between = machine.start()
        between.end_all()
        assert not between.is_clean
    leases = machine.start()
    machine.go_on(leases)
    assert machine.caps_w() == [ASKED_W, FOUND_W if back else ASKED_W]
    (lease,) = leases.leases.values()
    told = {hold["uuid"]: hold for hold in lease.told(machine.now_s)["holds"]}
    assert told[machine.cards[0].uuid]["state"] == State.REVERTING
    assert told[machine.cards[0].uuid]["why"]
    mend(machine)
    machine.go_on(leases)
    assert machine.caps_w() == [FOUND_W] * 2
    assert leases.is_clean
    assert not list(machine.folder.iterdir())


@pytest.mark.parametrize("is_reverted_between", [False, True], ids=["", "revert-all"])
@pytest.mark.parametrize("holder", [LIVES, DEAD], ids=["helper", "both"])
@pytest.mark.parametrize("broken", [("write",), ("open", "unlink", "replace")], ids=["full", "read-only"])
def test_a_disk_that_is_broken_at_the_restart(machine, monkeypatch, broken, holder, is_reverted_between):
    """Nothing new is set, all goes back, and the record goes when it can."""
    machine.start().acquire(holder, machine.wanted(), 30.0)
    failed = []

    def fails(name):
        def call(*arguments, **more):
            if name == "open" and not arguments[1] & os.O_CREAT:
                return os.open(*arguments, **more)
            failed.append(name)
            raise OSError(30, "Read-only file system")

        return call

    shim = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
    vars(shim).update({name: fails(name) for name in broken})
    with monkeypatch.context() as patch:
        patch.setattr(module, "os", shim)
        if is_reverted_between:
            machine.start().end_all()
        leases = machine.start()
        machine.go_on(leases)
        assert machine.caps_w() == [FOUND_W] * 2
        with pytest.raises(ControlError, match="nothing was set"):
            leases.acquire(LIVES, machine.wanted(), 30.0)
        assert failed
    machine.go_on(leases)
    assert leases.is_clean
    assert not list(machine.folder.iterdir())


@pytest.mark.parametrize("is_killed_again", [False, True])
def test_a_restore_that_the_driver_clamps_is_ours(machine, is_killed_again):
    machine.start().acquire(DEAD, machine.wanted(), 30.0)
    machine.faults("clamp")
    leases = machine.start()
    assert machine.caps_w()[0] == (ASKED_W + FOUND_W) / 2, "it was clamped"
    machine.faults()
    if is_killed_again:
        leases = machine.start()
    machine.go_on(leases)
    assert machine.caps_w() == [FOUND_W] * 2
    assert leases.is_clean


def test_a_setting_that_the_driver_clamps_goes_back(machine):
    leases = machine.start()
    machine.faults("clamp")
    with pytest.raises(ControlError, match="the driver keeps 190 W where 150 W was asked"):
        leases.acquire(LIVES, machine.wanted(), 30.0)
    machine.faults()
    machine.go_on(leases)
    assert machine.caps_w() == [FOUND_W] * 2


# Cards have other numbers.


@pytest.mark.parametrize("is_restarted", [False, True])
def test_cards_that_have_other_numbers_are_known_by_their_uuid(machine, is_restarted):
    leases = machine.start()
    lease = leases.acquire(DEAD, machine.wanted(cards=[0]), 30.0)
    renumber(machine, 1, 0)
    machine.cards[1].set_to.limit_w = ADMINS_W
    for card in machine.cards:
        card.setters.clear()
    if is_restarted:
        leases = machine.start()
    else:
        leases.change(lease, machine.wanted(160.0, cards=[0]))
        assert lease.holds[0].knob.device == "gpu1", "its number now"
        leases.end(lease, Happening.RELEASED)
    assert machine.caps_w() == [FOUND_W, ADMINS_W]
    assert machine.cards[0].setters
    assert not machine.cards[1].setters


def test_a_card_that_is_gone_is_not_set_in_the_place_of_another(machine):
    leases = machine.start()
    lease = leases.acquire(LIVES, machine.wanted(cards=[0]), 30.0)
    take_away(machine)
    machine.cards[1].setters.clear()
    with pytest.raises(ControlError, match="does not know this GPU"):
        leases.change(lease, machine.wanted(160.0, cards=[0]))
    machine.go_on(leases)
    assert machine.caps_w() == [ASKED_W, FOUND_W]
    assert not machine.cards[1].setters
    bring_back(machine)
    machine.go_on(leases)
    assert machine.caps_w() == [FOUND_W] * 2


# Somebody else sets a value.


class Interrupted(Records):
    """Somebody sets a cap while a record is synced: between what was found, or looked at, and what is set."""

    at = None

    def write(self, name, document):
        super().write(name, document)
        if self.at is not None:
            self.at.set_to.limit_w = ADMINS_W


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize("moment", ["while it is acquired", "before a change", "while it is changed"])
def test_what_somebody_else_has_set_is_never_overwritten(machine, moment, is_ended):
    leases = machine.start()
    records = leases._records = Interrupted(machine.folder)
    if moment == "while it is acquired":
        records.at = machine.cards[0]
        with pytest.raises(ControlError, match="somebody else changed the value: it is 190 W now"):
            leases.acquire(LIVES, machine.wanted(), 30.0)
    else:
        lease = leases.acquire(LIVES, machine.wanted(), 30.0)
        if moment == "before a change":
            machine.cards[0].set_to.limit_w = ADMINS_W
        else:
            records.at = machine.cards[0]
        with pytest.raises(ControlError, match="somebody else changed the value: it is 190 W now"):
            leases.change(lease, machine.wanted(160.0))
    records.at = None
    if is_ended:
        leases.end_all()
    machine.go_on(leases)
    assert machine.caps_w() == [ADMINS_W, FOUND_W]
    assert leases.is_clean
