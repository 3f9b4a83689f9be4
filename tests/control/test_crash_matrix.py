"""Something else is broken when a helper, its client or both are killed: every knob is at what was found in the end, or
`powerd control status` and the exit status say which is not, and why.

A cell is what is broken x who is killed x whether `--revert-all` runs before the helper is started again. The driver is
a simulated node of two cards in this process; helpers run as `powerd-control` does, but for their sockets.
"""

import itertools
import json
import os
import socket
import sys
import zlib
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from powerd_control import helper as helper_module
from powerd_control import leases as leases_module
from powerd_control.helper import Helper
from powerd_control.leases import POLL_S, Hold, Leases, Records
from powerd_control.policy import load_policy
from powerd_core.errors import ConfigError, ControlError
from powerd_core.hold import Happening
from support.control_machine import ASKED_W, DEAD, FOUND_W, LIVES, Machine


class Site(Machine):
    """A machine with a policy, on which helpers are started as the unit does."""

    def __init__(self, folder, monkeypatch) -> None:
        super().__init__(folder)
        self.policy = folder / "control.toml"
        self.policy.write_text("")
        self.is_record_unreadable = False
        self.errors: list[str] = []
        """Calls to the disk that failed."""
        self._patch = monkeypatch
        monkeypatch.setitem(sys.modules, "crash_nvml", SimpleNamespace())
        monkeypatch.setattr(helper_module, "boottime_s", lambda: self.now_s)
        monkeypatch.setattr(helper_module, "boot_id", lambda: "boot")
        monkeypatch.setattr(helper_module.signal, "signal", lambda *_: None)

    def run(self, body: Callable[[Helper], None], *more: str) -> int:
        """Start `powerd-control` and let it serve ``body``; its exit status."""
        sys.modules["crash_nvml"] = self.nvml
        at = ["--socket", str(self.folder.with_name("socket")), "--policy", str(self.policy)]
        arguments = helper_module.parser().parse_args([*at, "--nvml", "crash_nvml", "--simulated", *more])

        def serve(arguments, bench, leases, stops):
            self.bench = bench
            with socket.socket(socket.AF_UNIX) as listener:
                body(Helper(listener, bench, leases, arguments.policy))

        self._patch.setattr(helper_module, "_serve", serve)
        return helper_module._run(arguments)

    def polls(self, leases: Leases, times: int = 3) -> None:
        for _ in range(times):
            self.now_s += POLL_S
            leases.poll()

    def fail_disk(self, *names: str) -> None:
        shim = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})

        def failing(name):
            def call(*arguments, **more):
                if name == "open" and not arguments[1] & os.O_CREAT:
                    return os.open(*arguments, **more)
                self.errors.append(name)
                raise OSError(28, "No space left on device")

            return call

        vars(shim).update({name: failing(name) for name in names})
        self._patch.setattr(leases_module, "os", shim)

    def mend_disk(self) -> None:
        self._patch.setattr(leases_module, "os", os)

    def stop_driver(self) -> None:
        self.is_driver_up = False

    def start_driver(self) -> None:
        self.is_driver_up = True


@dataclass(frozen=True)
class Broken:
    """One thing that is broken. ``evidence`` says, from the side that it struck, that it was."""

    break_it: Callable[[Site], object]
    mend: Callable[[Site], object]
    evidence: Callable[[Site], bool]


def record(change: Callable[[bytes], bytes]) -> Broken:
    def break_it(site):
        site.good = site.record.read_bytes()
        site.record.write_bytes(change(site.good))
        try:
            Records(site.folder).read(site.record.stem)["holds"]
        except (ValueError, LookupError):
            site.is_record_unreadable = True

    def mend(site):
        for path in site.folder.glob("*.json"):
            path.write_bytes(site.good)

    return Broken(break_it, mend, lambda site: site.is_record_unreadable)


def without_holds(raw: bytes) -> bytes:
    document = json.loads(raw.split(b" ", 2)[2])
    text = json.dumps({key: value for key, value in document.items() if key != "holds"})
    return f"2 {zlib.crc32(text.encode()):08x} {text}".encode()


def is_policy_bad(site: Site) -> bool:
    try:
        load_policy(site.policy)
    except ConfigError:
        return True
    return False


def nothing_can_be_set(site: Site) -> bool:
    try:
        site.leases.acquire(LIVES, site.wanted(), 30.0)
    except ControlError as error:
        return "its record could not be written" in str(error) and site.errors != []
    return False


def lose(site: Site) -> None:
    site.cards[0].is_lost = True


def find(site: Site) -> None:
    site.cards[0].is_lost = False


BROKEN = {
    "record cut": record(lambda raw: raw[:200]),
    "record empty": record(lambda raw: b""),
    "record garbled": record(lambda raw: raw.replace(b"230.0", b"130.0", 1)),
    "record of another version": record(lambda raw: b"1" + raw[1:]),
    "record without what was found": record(without_holds),
    "policy with a typing error": Broken(
        lambda s: s.policy.write_text("[[allow]\n"), lambda s: s.policy.write_text(""), is_policy_bad
    ),
    "policy that others can write": Broken(
        lambda s: s.policy.chmod(0o664), lambda s: s.policy.chmod(0o644), is_policy_bad
    ),
    "card lost": Broken(lose, find, lambda s: 15 in s.refused),
    "card off the bus": Broken(
        lambda s: s.renumber(1), lambda s: s.renumber(0, 1), lambda s: s.caps_w() == [ASKED_W, FOUND_W]
    ),
    "cards renumbered": Broken(
        lambda s: s.renumber(1, 0), lambda s: None, lambda s: [card.index for card in s.cards] == [1, 0]
    ),
    "driver late": Broken(Site.stop_driver, Site.start_driver, lambda s: 9 in s.refused),
    "driver refuses": Broken(lambda s: s.faults("no-permission"), lambda s: s.faults(), lambda s: 4 in s.refused),
    "driver ignores": Broken(
        lambda s: s.faults("ignore"), lambda s: s.faults(), lambda s: s.caps_w() == [ASKED_W, FOUND_W]
    ),
    "driver clamps": Broken(
        lambda s: s.faults("clamp"), lambda s: s.faults(), lambda s: ASKED_W < s.caps_w()[0] < FOUND_W
    ),
    "disk full": Broken(lambda s: s.fail_disk("write"), Site.mend_disk, nothing_can_be_set),
    "disk read-only": Broken(lambda s: s.fail_disk("open", "unlink", "replace"), Site.mend_disk, nothing_can_be_set),
}
KILLED = ("helper", "client", "both")
CELLS = [
    pytest.param(what, killed, is_reverted, id="-".join([what, killed, "revert-all" if is_reverted else "restart"]))
    for what, killed, is_reverted in itertools.product(BROKEN, KILLED, (False, True))
    if not (killed == "client" and is_reverted)  # beside a helper that lives it is refused
]


def account(site: Site, broken: Broken, helper: Helper) -> None:
    """Whoever asks for *status* hears of every card that is not at what was found, and of nothing else."""
    site.leases = helper._leases
    site.polls(helper._leases)
    told = helper._do_status(None, None)
    holds = [hold for lease in told["leases"] for hold in lease["holds"] if hold["state"] == "reverting"]
    assert all(hold["why"] for hold in holds)
    late = {hold["uuid"] for hold in holds}
    for card, cap_w in zip(site.cards, site.caps_w(), strict=True):
        assert (cap_w == FOUND_W) == (card.uuid not in late and not helper._leases.unusable), told
    assert bool(helper._leases.unusable) <= bool(told["problems"])
    assert broken.evidence(site), "nothing was broken"


def run_cell(site: Site, broken: Broken, killed: str, is_reverted: bool) -> None:
    first = site.start()
    lease = first.acquire(LIVES if killed == "helper" else DEAD, site.wanted(), 30.0)
    assert site.caps_w() == [ASKED_W] * 2
    site.refused.clear()
    broken.break_it(site)
    if killed == "client":
        first.end(lease, Happening.DIED)
        with helper_of(site, first) as helper:
            account(site, broken, helper)
        first.end_all()
        status = 0 if first.is_clean else 1
    else:
        if is_reverted:
            assert site.run(lambda _: None, "--revert-all") == (0 if site.caps_w() == [FOUND_W] * 2 else 1)
        status = site.run(lambda helper: account(site, broken, helper))
    assert status == (0 if site.caps_w() == [FOUND_W] * 2 else 1), "the exit status says whether all is back"
    broken.mend(site)
    assert site.run(lambda helper: site.polls(helper._leases)) == 0
    assert site.caps_w() == [FOUND_W] * 2
    assert not list(site.folder.iterdir())


@contextmanager
def helper_of(site: Site, leases: Leases):
    with socket.socket(socket.AF_UNIX) as listener:
        yield Helper(listener, site.bench, leases, site.policy)


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


@pytest.mark.parametrize(("what", "killed", "is_reverted"), CELLS)
def test_every_knob_goes_back_or_somebody_is_told(site, what, killed, is_reverted):
    run_cell(site, BROKEN[what], killed, is_reverted)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "killed", "is_reverted"), CELLS)
def test_each_cell_fails_where_nothing_is_broken(site, what, killed, is_reverted):
    site.good = b""
    with pytest.raises(AssertionError, match="nothing was broken"):
        run_cell(site, replace(BROKEN[what], break_it=lambda _: None), killed, is_reverted)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "killed", "is_reverted"), CELLS)
def test_each_cell_fails_where_nothing_is_put_back(site, monkeypatch, what, killed, is_reverted):
    monkeypatch.setattr(Hold, "revert", lambda hold: None)
    with pytest.raises(AssertionError):
        run_cell(site, BROKEN[what], killed, is_reverted)
