"""The helper in this process: what it does before it serves and when it ends, whom it serves, and what it looks at."""

import getpass
import json
import os
import signal
import socket
import threading
from types import SimpleNamespace

import pytest

from powerd_client.knobs import control_command
from powerd_control import helper as module
from powerd_control.helper import Connection, Helper, lock_machine, main
from powerd_control.knobs import Bench, PowerCap, gpu_knobs
from powerd_control.leases import Holder, Leases, Records, boot_id, start_ticks
from powerd_core.errors import ConfigError, ControlDenied, ControlError
from powerd_core.lease import Request, Wish, read_answer, to_line
from support import file_nvml
from support.steady import wait_for

FOUND_W, ASKED_W = 260.0, 200.0
RULE = '[[allow]]\nuser = "{user}"\ndevices = ["gpu0"]\nknobs = ["power_cap", "sm_clock"]\n'
ME = Holder(os.getuid(), os.getpid(), start_ticks(os.getpid()) or 0, "train.py")
SET = "nvmlDeviceSetPowerManagementLimit"


class Lab:
    """A machine with one GPU, a policy, and a helper whose rounds are counted by the test."""

    def __init__(self, folder, monkeypatch):
        monkeypatch.setenv("POWERD_FAKE_NVML", str(file_nvml.fresh(folder / "gpus.json")))
        self.folder, self.policy, self.now_s = folder, folder / "control.toml", 1000.0
        self.allow()
        self.bench = Bench({"nvml": lambda: gpu_knobs(file_nvml)})
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / "other"))
        self.listener.listen()
        self.peers = []

    def allow(self, above="", more=""):
        self.policy.write_text(above + RULE.format(user=getpass.getuser()) + more)
        self.policy.chmod(0o644)

    def new_leases(self):
        return Leases(self.bench, Records(self.folder / "leases"), lambda: self.now_s, boot_id())

    def helper(self, monkeypatch):
        monkeypatch.setattr(module, "boottime_s", lambda: self.now_s)
        self.leases = self.new_leases()
        return Helper(self.listener, self.bench, self.leases, self.policy)

    def leave_a_record(self):
        """As a helper that was killed does, whose holder lives."""
        self.new_leases().acquire(ME, [(self.bench.find("gpu0", "power_cap"), ASKED_W)], 30.0)
        assert self.cap_w() == ASKED_W

    def cap_w(self):
        with file_nvml.opened() as state:
            return state["gpus"][0]["limit_mw"] / 1e3

    def lock_mhz(self):
        with file_nvml.opened() as state:
            return state["gpus"][0]["lock"]

    def fault(self, **faults):
        with file_nvml.opened() as state:
            state["faults"] = faults

    def connect(self, helper, uid=None):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        who = os.getuid() if uid is None else uid
        made = Connection(ours, who, frozenset(), os.getpid(), start_ticks(os.getpid()) or 0, self.now_s)
        helper._connections.append(made)
        helper._selector.register(ours, 1, lambda: helper._receive(made))
        self.peers += [ours, theirs]
        return theirs

    def run(self, *more):
        at = ["--socket", str(self.folder / "socket"), "--policy", str(self.policy), "--sysfs", str(self.folder)]
        return main([*at, "--nvml", "support.file_nvml", "--simulated", *more])


@pytest.fixture
def lab(tmp_path, monkeypatch):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    it = Lab(tmp_path, monkeypatch)
    yield it
    for peer in (it.listener, *it.peers):
        peer.close()
    for number, handler in before.items():
        signal.signal(number, handler)


def answers(peer):
    """Lines that have come so far."""
    received = b""
    while True:
        try:
            part = peer.recv(1 << 16)
        except BlockingIOError:
            break
        if not part:
            break
        received += part
    return [line + b"\n" for line in received.split(b"\n")[:-1]]


def hold(level=ASKED_W, knob="power_cap", **more):
    return to_line(Request("acquire", (Wish("gpu0", knob, level),), **more))


BAD_POLICIES = {
    "typing error": lambda path: path.write_text("[[allow]\n"),
    "mode 664": lambda path: path.chmod(0o664),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


class TestRestoreFirst:
    @pytest.mark.parametrize("bad", BAD_POLICIES)
    def test_a_bad_policy_keeps_nothing_from_going_back(self, lab, bad):
        lab.leave_a_record()
        BAD_POLICIES[bad](lab.policy)
        assert lab.run("--revert-all") == 0
        assert lab.cap_w() == FOUND_W

    def test_neither_does_a_socket_that_cannot_be_made(self, lab):
        lab.leave_a_record()
        (lab.folder / "socket").write_text("")
        assert lab.run() == 2
        assert lab.cap_w() == FOUND_W

    def test_a_library_that_is_broken_breaks_no_other(self, lab, monkeypatch):
        (lab.folder / "amdsmi.py").write_text("raise KeyError('librocm')\n")
        monkeypatch.syspath_prepend(str(lab.folder))
        lab.leave_a_record()
        assert lab.run("--revert-all") == 0
        assert lab.cap_w() == FOUND_W

    @pytest.mark.parametrize("damage", ["cut", "driver"])
    def test_revert_all_says_what_it_could_not_put_back(self, lab, damage, caplog):
        lab.leave_a_record()
        if damage == "cut":
            (record,) = (lab.folder / "leases").iterdir()
            os.truncate(record, 100)
        else:
            lab.fault(**{SET: {"ignore": True}})
        assert lab.run("--revert-all") == 1
        assert lab.cap_w() == ASKED_W
        assert {"cut": "cannot be used", "driver": "it keeps 200 W"}[damage] in caplog.text

    def test_a_bad_policy_is_an_empty_one_and_said(self, lab, monkeypatch):
        helper = lab.helper(monkeypatch)
        lab.policy.chmod(0o664)
        peer = lab.connect(helper)
        for request, error in ((hold(), ControlDenied), (to_line(Request("check")), ControlDenied)):
            peer.send(request)
            helper._round(0.0)
            with pytest.raises(error, match="the policy cannot be used.*chmod 644"):
                read_answer(answers(peer)[0])
        peer.send(to_line(Request("status")))
        helper._round(0.0)
        assert "chmod 644" in read_answer(answers(peer)[0]).problems[0]
        assert lab.cap_w() == FOUND_W


class TestEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    @pytest.mark.parametrize("is_refused", [False, True])
    def test_a_signal_puts_everything_back_or_is_answered_by_a_status(self, lab, number, is_refused, capfd):
        lab.leave_a_record()
        if is_refused:
            lab.fault(**{SET: {"refuse": 15}})

        def end():
            wait_for((lab.folder / "socket").exists)
            os.kill(os.getpid(), number)

        thread = threading.Thread(target=end)
        thread.start()
        assert lab.run() == (1 if is_refused else 0)
        thread.join()
        assert lab.cap_w() == (ASKED_W if is_refused else FOUND_W)
        assert not (lab.folder / "socket").exists()


class TestOneAMachine:
    def test_a_second_one_does_nothing(self, lab, capsys):
        lab.leave_a_record()
        lock = lock_machine(lab.folder / "lock")
        for more in ([], ["--revert-all"]):
            assert lab.run(*more) == 2
            assert "another powerd-control serves this machine" in capsys.readouterr().err
        assert lab.cap_w() == ASKED_W
        os.close(lock)
        assert lab.run("--revert-all") == 0

    def test_on_the_machines_own_driver_it_is_one_lock_for_all_sockets(self, lab, monkeypatch):
        monkeypatch.setattr(module.os, "geteuid", lambda: 0)
        assert str(module._lock_path(False, lab.folder / "leases")) == "/run/powerd-control/lock"
        assert module._lock_path(True, lab.folder / "leases") == lab.folder / "lock"

    def test_a_link_is_no_lock(self, lab):
        (lab.folder / "lock").symlink_to(lab.policy)
        with pytest.raises(ConfigError):
            lock_machine(lab.folder / "lock")


class TestPolicyWhileItIsHeld:
    @pytest.mark.parametrize(
        "change", ["the rule is gone", "narrower", "somebody else computes", "it lasts too long", "nothing"]
    )
    def test_it_is_looked_at_again(self, lab, monkeypatch, change):
        users = {os.getuid()}
        monkeypatch.setattr(PowerCap, "users", lambda self: frozenset(users))
        lab.allow(more='require = "owns-all-processes"\n')
        helper = lab.helper(monkeypatch)
        peer = lab.connect(helper)
        peer.send(hold())
        helper._round(0.0)
        lease = read_answer(answers(peer)[0]).lease.lease
        if change == "the rule is gone":
            lab.policy.unlink()
        elif change == "narrower":
            lab.allow(more="power_cap_w = [100, 150]\n")
        elif change == "somebody else computes":
            users.add(os.getuid() + 1)
        elif change == "it lasts too long":
            lab.allow(more="max_lease_s = 2\n")
        lab.now_s += 3.0
        helper._mind()
        assert (lease in lab.leases.leases) == (change == "nothing")
        assert lab.cap_w() == (ASKED_W if change == "nothing" else FOUND_W)


class TestClocks:
    def test_none_is_held_unless_the_policy_says_what_is_found(self, lab, monkeypatch):
        helper = lab.helper(monkeypatch)
        peer = lab.connect(helper)
        peer.send(hold(1200.0, "sm_clock"))
        helper._round(0.0)
        with pytest.raises(ControlDenied, match='the policy has to say sm_clock_found = "unlocked"'):
            read_answer(answers(peer)[0])
        assert lab.lock_mhz() is None

    @pytest.mark.parametrize(("stated", "lock_mhz"), [('"unlocked"', None), ("1500", 1500)])
    def test_it_goes_back_to_what_the_policy_says(self, lab, monkeypatch, stated, lock_mhz):
        lab.allow(above=f"sm_clock_found = {stated}\n")
        helper = lab.helper(monkeypatch)
        peer = lab.connect(helper)
        peer.send(hold(1200.0, "sm_clock"))
        helper._round(0.0)
        assert lab.lock_mhz() == 1200
        lab.leases.end_all()
        assert lab.lock_mhz() == lock_mhz


class TestFlood:
    def test_who_sends_many_is_answered_one_in_a_round(self, lab, monkeypatch):
        helper = lab.helper(monkeypatch)
        floods = [lab.connect(helper) for _ in range(3)]
        for flood in floods:
            flood.send(to_line(Request("check")) * 20)
        helper._round(0.0)
        honest = lab.connect(helper)
        honest.send(to_line(Request("status")))
        helper._round(0.0)
        assert len(answers(honest)) == 1
        assert [len(answers(flood)) for flood in floods] == [2, 2, 2]
        for _ in range(18):
            assert helper._patience_s() == 0.0, "what has come is served without waiting"
            helper._round(0.0)
        assert [len(answers(flood)) for flood in floods] == [18, 18, 18]

    def test_a_sign_of_life_that_waits_to_be_read_is_one(self, lab, monkeypatch):
        helper = lab.helper(monkeypatch)
        peer = lab.connect(helper)
        peer.send(hold(ttl_s=2.0))
        helper._round(0.0)
        lease = read_answer(answers(peer)[0]).lease.lease
        lab.now_s += 5.0  # somebody's driver was slow
        peer.send(to_line(Request("renew", lease=lease)))
        helper._mind()
        assert lab.cap_w() == ASKED_W
        lab.now_s += 5.0
        helper._mind()
        assert lab.cap_w() == FOUND_W, "silence ends it"

    @pytest.mark.parametrize("verb", ["status", "describe", "check", "renew"])
    def test_whom_no_rule_names_is_hung_up_on(self, lab, monkeypatch, verb, caplog):
        helper = lab.helper(monkeypatch)
        for _ in range(20):
            peer = lab.connect(helper, uid=os.getuid() + 1)
            peer.send(to_line(Request(verb)) * 2)
            helper._round(0.0)
            (line,) = answers(peer)
            if verb == "check":
                assert json.loads(line)["allowed"] == []
            else:
                with pytest.raises(ControlError, match="no rule of the policy names you"):
                    read_answer(line)
        assert not helper._connections
        assert len(caplog.records) <= 1


@pytest.mark.parametrize("is_bad", [False, True])
def test_status_shows_what_could_not_be_put_back_and_why(lab, monkeypatch, capsys, is_bad):
    lab.leave_a_record()
    if is_bad:
        (record,) = (lab.folder / "leases").iterdir()
        record.with_name("bad.json").write_text("")
    helper = lab.helper(monkeypatch)
    lab.fault(**{SET: {"refuse": 15}})
    lab.leases.restore()
    lab.leases.end_all()
    peer = lab.connect(helper)

    def ask(request):
        peer.send(to_line(request))
        helper._round(0.0)
        return read_answer(answers(peer)[0])

    assert control_command._status(SimpleNamespace(ask=ask), "text") == 1
    told = capsys.readouterr().out
    assert "reverting (the driver did not take back what was found: gpu0: " in told
    assert ("bad.json" in told) == is_bad
