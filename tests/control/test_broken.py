"""Records that cannot be used, cards with other numbers, values that somebody else sets: what becomes of knobs.

What is broken at the restart of a helper stands in `test_crash_matrix`.
"""

import json
import os
import zlib
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from powerd_control import leases as module
from powerd_control.leases import Records
from powerd_core.errors import ControlError
from powerd_core.hold import Happening
from support.control_machine import ADMINS_W, ASKED_W, DEAD, FOUND_W, LIVES, Machine


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
    machine.renumber(1, 0)
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
    machine.renumber(1)
    machine.cards[1].setters.clear()
    with pytest.raises(ControlError, match="does not know this GPU"):
        leases.change(lease, machine.wanted(160.0, cards=[0]))
    machine.go_on(leases)
    assert machine.caps_w() == [ASKED_W, FOUND_W]
    assert not machine.cards[1].setters
    machine.renumber(0, 1)
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


READ, SET = "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceSetPowerManagementLimit"


@pytest.mark.slow
@settings(max_examples=100)
@given(
    at=st.integers(0, 70),
    found_w=st.integers(100, 260).map(float),
    admins_w=st.floats(100.0, 260.0),
    polls=st.integers(0, 2),
    delay_s=st.floats(0.0, 10.0),
)
def test_what_was_set_before_our_set_is_never_overwritten(tmp_path_factory, at, found_w, admins_w, polls, delay_s):
    """Somebody sets a cap before any call of the driver in the life of a lease that sets two, whatever the delay."""
    assume(min(abs(admins_w - ours_w) for ours_w in (found_w, ASKED_W, 160.0)) > 0.2)
    machine, calls = Machine(tmp_path_factory.mktemp("m")), []
    card = machine.cards[0]
    card.set_to.limit_w = found_w
    leases = machine.start()
    wanted, others = machine.wanted(cards=[0]), machine.wanted(160.0, cards=[0])

    def called(name):
        if len(calls) == at:
            card.set_to.limit_w = admins_w
        calls.append(name)

    machine.called = called
    with suppress(ControlError):
        lease = leases.acquire(LIVES, wanted, 30.0)
        for _ in range(polls):
            machine.now_s += delay_s
            leases.poll()
        leases.change(lease, others)
    leases.end_all()
    machine.go_on(leases)
    # No driver reads and sets in one call: a value that comes between our reading and our set is lost, and one that
    # comes before the set was read back may be taken for what the driver made of ours.
    before = [name for name in calls[:at] if name in (READ, SET)][-1:]
    behind = [name for name in calls[at:] if name in (READ, SET)][:1]
    if before != [SET] and behind == [READ]:
        assert card.set_to.limit_w == pytest.approx(admins_w, abs=0.001), calls
    assert leases.is_clean
