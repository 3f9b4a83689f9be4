"""The helper as a process, with holders that are processes too: real sockets, real kills."""

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from powerd_client.knobs import control
from powerd_client.knobs.cap_search import CapSearch
from powerd_client.knobs.control import Hold, connect
from powerd_client.knobs.power_choice import PowerChooser
from powerd_core.errors import ConfigError, ControlDenied, ControlError, LeaseHeld
from powerd_core.lease import KNOB_OF_OPTION, Request, Wish, read_answer
from powerd_core.verdict import Verdict
from support import file_nvml
from support.control_lab import ASKED_W, FOUND_W, HOLDER, Lab
from support.steady import wait_for


@pytest.fixture
def lab(tmp_path, monkeypatch):
    it = Lab(tmp_path, monkeypatch)
    it.start()
    yield it
    if it.process is not None and it.process.poll() is None:
        it.kill()


class TestHold:
    @pytest.mark.quick("the one lease of the quick tier: a helper's process")
    def test_for_the_time_of_a_with(self, lab):
        events = []
        hold = Hold({"power_cap_w": ASKED_W}, settle_s=0.0, emit=lambda *event: events.append(event))
        with hold as held:
            assert lab.caps_w() == [ASKED_W] * 2
            assert "gpu0 power_cap_w 200 W (found 260 W)" in held.text()
            assert held.verdict is Verdict.SLACK
        assert lab.caps_w() == [FOUND_W] * 2
        assert held.verdict is Verdict.SLACK, "as it was when it ended"
        assert not held.problem
        told = [(values["device"], values["asked"], values["enforced"], values["state"]) for _, values, _ in events]
        assert told == [
            ("gpu0", ASKED_W, ASKED_W, "held"),
            ("gpu1", ASKED_W, ASKED_W, "held"),
            ("gpu0", None, FOUND_W, "ended"),
            ("gpu1", None, FOUND_W, "ended"),
        ]
        times = [t_ns for _, _, t_ns in events]
        assert times == sorted(times)

    def test_the_policy(self, lab):
        with pytest.raises(ControlDenied, match="from 120 W to 280 W, not 300 W"):
            Hold({"power_cap_w": "max"}, ["gpu1"]).acquire()
        with pytest.raises(ConfigError, match="can be set from 100 W to 300 W"):
            Hold({"power_cap_w": 5.0}, ["gpu1"]).acquire()
        with pytest.raises(ConfigError, match="did you mean 'power_cap_w'"):
            Hold({"power_cap": 200.0}, ["gpu1"]).acquire()
        assert lab.caps_w() == [FOUND_W] * 2

    def test_other_levels_while_it_is_held(self, lab):
        with Hold({"power_cap_w": ASKED_W}, ["gpu0"], settle_s=0.0) as held:
            assert held.set(power_cap_w=180)
            assert lab.caps_w() == [180.0, FOUND_W]
            with pytest.raises(ConfigError):
                held.set(power_cap_w=5)
            assert not held.set(power_cap_w=290), "which the policy does not allow"
        assert lab.caps_w() == [FOUND_W] * 2

    def test_a_gpu_that_this_process_may_not_use_is_left_alone(self, lab, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00000001")
        with Hold({"power_cap_w": ASKED_W}, settle_s=0.0):
            assert lab.caps_w() == [FOUND_W, ASKED_W]

    def test_without_a_helper_one_line_says_what_to_start(self, lab):
        lab.stop()
        with pytest.raises(ControlError, match=r"start `powerd-control`.*docs/howto/control.md") as told:
            Hold({"power_cap_w": ASKED_W}).acquire()
        assert "\n" not in str(told.value)

    def test_a_chooser_whom_the_policy_allows_nothing_says_so_in_one_line(self, lab, caplog):
        lab.policy.write_text('sm_clock_found = "unlocked"\n')
        lab.kill()
        lab.start()
        hold = lambda devices: Hold({"power_cap_w": "default"}, devices)  # noqa: E731
        with PowerChooser(CapSearch, hold, lambda *_: [], lambda *_: None) as chooser:
            for _ in range(5):
                chooser.step()
        assert chooser.decision is None
        assert lab.caps_w() == [FOUND_W] * 2
        (line,) = caplog.messages
        assert line.startswith("no power cap is chosen: ")
        assert "the training goes on" in line

    def test_a_foreign_change_is_told_and_left(self, lab):
        events = []
        hold = Hold({"power_cap_w": ASKED_W}, ["gpu0"], settle_s=0.0, ttl_s=1.5, emit=lambda *e: events.append(e))
        with hold as held:
            with file_nvml.opened(lab.nvml) as state:
                state["gpus"][0]["limit_mw"] = 140_000
            wait_for(lambda: held.problem)
            assert "somebody else changed the value: it is 140 W now" in held.problem
            assert held.verdict is Verdict.OVERRIDDEN
        assert lab.caps_w() == [140.0, FOUND_W]
        assert [e[1]["state"] for e in events][:2] == ["held", "yielded"]


class TestDeaths:
    def test_a_holder_that_is_killed(self, lab):
        with lab.holder("power_cap_w=200") as holder:
            assert lab.caps_w() == [ASKED_W, FOUND_W]
            holder.kill()
            wait_for(lambda: lab.caps_w() == [FOUND_W] * 2)
            assert holder.wait() == -signal.SIGKILL

    def test_a_holder_whose_child_keeps_the_connection(self, lab):
        """The death of the process counts, not the end of its socket."""
        forks = HOLDER.replace("time.sleep(100)", "import os\nif os.fork(): os._exit(3)\ntime.sleep(20)")
        process = subprocess.Popen([sys.executable, "-c", forks, "gpu0", "power_cap_w=200"], stdout=subprocess.PIPE)
        assert process.wait(30) == 3
        wait_for(lambda: lab.caps_w() == [FOUND_W] * 2)
        process.stdout.close()

    def test_a_holder_that_is_stopped_longer_than_its_ttl(self, lab):
        with lab.holder("power_cap_w=200") as holder:
            holder.send_signal(signal.SIGSTOP)
            state = Path(f"/proc/{holder.pid}/stat")
            wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
            wait_for(lambda: lab.caps_w() == [FOUND_W] * 2)
            holder.send_signal(signal.SIGCONT)

    def test_a_helper_that_is_killed_ends_the_lease_and_the_next_one_puts_everything_back(self, lab):
        events = []
        hold = Hold({"power_cap_w": ASKED_W}, ["gpu0"], settle_s=0.0, ttl_s=3.0, emit=lambda *e: events.append(e))
        with hold as held:
            lab.kill()
            lab.start()
            assert lab.caps_w() == [FOUND_W] * 2
            wait_for(lambda: held.problem)
        assert "the lease has ended: the control helper has ended" in held.problem
        assert [(e[1]["state"], e[1]["enforced"]) for e in events] == [("held", ASKED_W), ("lost", None)]

    def test_holder_and_helper_killed(self, lab):
        with lab.holder("power_cap_w=200") as holder:
            lab.kill()
            holder.kill()
            holder.wait()
            assert lab.caps_w() == [ASKED_W, FOUND_W], "nobody was left to put it back"
            lab.start()
            wait_for(lambda: lab.caps_w() == [FOUND_W] * 2)

    def test_a_helper_that_is_gone_for_good_ends_the_lease_and_not_the_training(self, lab, caplog):
        with Hold({"power_cap_w": ASKED_W}, ["gpu0"], settle_s=0.0, ttl_s=3.0) as held:
            lab.kill()
            wait_for(lambda: held.problem)
            assert held.verdict is Verdict.OVERRIDDEN
            assert not held.set(power_cap_w=150)
        assert "the lease has ended" in held.problem

    def test_a_helper_that_is_stopped_holds_up_no_training(self, lab, monkeypatch):
        """It answers nothing, and its connection stands."""
        monkeypatch.setattr(control, "_HURRY_S", 0.5)
        waits, wait = [], control.HelperSocket.ask
        monkeypatch.setattr(control.HelperSocket, "ask", lambda *a: (waits.append(a[1].verb), wait(*a))[1])
        with Hold({"power_cap_w": ASKED_W}, ["gpu0"], settle_s=0.0, ttl_s=30.0) as held:
            lab.process.send_signal(signal.SIGSTOP)
            waits.clear()
            assert not held.set(power_cap_w=150)
            assert held.verdict is Verdict.OVERRIDDEN
            assert held.problem == "the lease has ended: the control helper has not answered for 0.5 s"
            assert not held.set(power_cap_w=150)
        assert waits == ["set"], "it was waited for once"
        lab.process.send_signal(signal.SIGCONT)
        wait_for(lambda: lab.caps_w() == [FOUND_W] * 2)

    def test_a_helper_that_stops_puts_everything_back(self, lab):
        with lab.holder("power_cap_w=200"):
            assert lab.stop() == 0
            assert lab.caps_w() == [FOUND_W] * 2

    def test_what_a_killed_helper_left_can_be_put_back_without_another_one(self, lab):
        with lab.holder("power_cap_w=200") as holder:
            lab.kill()
            holder.kill()
        assert lab.caps_w() == [ASKED_W, FOUND_W]
        command = [sys.executable, "-m", "powerd_control", "--nvml", "file_nvml", "--simulated", "--revert-all"]
        subprocess.run([*command, "--socket", lab.socket, "--policy", lab.policy], check=True)
        assert lab.caps_w() == [FOUND_W] * 2


class TestTwo:
    def test_the_second_is_refused_and_may_wait(self, lab):
        with lab.holder("power_cap_w=200") as holder:
            with pytest.raises(LeaseHeld, match="held by holder"):
                Hold({"power_cap_w": 180.0}, ["gpu0"]).acquire()
            second = Hold({"power_cap_w": 180.0}, ["gpu0"], settle_s=0.0, wait_s=30.0)
            threading.Timer(0.3, holder.kill).start()
            with second:
                assert lab.caps_w() == [180.0, FOUND_W]
        wait_for(lambda: lab.caps_w() == [FOUND_W] * 2)

    def test_who_queues_in_vain_is_told(self, lab):
        with lab.holder("power_cap_w=200"), pytest.raises(LeaseHeld):
            Hold({"power_cap_w": 180.0}, ["gpu0"], wait_s=1.0).acquire()

    def test_races_have_one_winner(self, lab):
        command = [sys.executable, "-c", HOLDER, "gpu0"]
        racers = [
            subprocess.Popen(
                [*command, f"power_cap_w={150 + i}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            for i in range(4)
        ]
        wait_for(lambda: sum(r.poll() is None for r in racers) == 1)
        (winner,) = (i for i, racer in enumerate(racers) if racer.poll() is None)
        assert lab.caps_w() == [150.0 + winner, FOUND_W]
        for racer in racers:
            racer.kill()
            racer.wait()
            racer.stdout.close()
        wait_for(lambda: lab.caps_w() == [FOUND_W] * 2)

    def test_the_lease_of_another_process_cannot_be_renewed_or_set(self, lab):
        lab.allow()
        with lab.holder("power_cap_w=200"):
            peer = connect()
            (lease,) = peer.ask(Request("status")).leases
            for request in (
                Request("renew", lease=lease.lease),
                Request("set", (Wish("gpu0", "power_cap", 150.0),), lease=lease.lease),
            ):
                with pytest.raises(ControlError, match="you hold no lease"):
                    peer.ask(request)
            with pytest.raises(ControlDenied, match="steal"):
                peer.ask(Request("steal", lease=lease.lease))
            assert lab.caps_w() == [ASKED_W, FOUND_W]
            lab.allow("steal = true")
            peer.ask(Request("steal", lease=lease.lease))
            assert lab.caps_w() == [FOUND_W] * 2
            peer.close()


def _takes(peer: socket.socket, part: bytes) -> bool:
    try:
        peer.sendall(part)
    except OSError:
        return False
    return True


class TestHostile:
    def test_garbage_is_answered_or_hung_up_on_and_sets_nothing(self, lab):
        for line in (b"\0" * 100, b"{}", b"[1]", b'{"verb":"acquire"}', b'{"verb":"set","lease":"x"}', b"\xff\xfe"):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(lab.socket))
                peer.sendall(line + b"\n")
                with pytest.raises((ControlError, ConfigError)):
                    read_answer(peer.recv(65536))
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(lab.socket))
            wait_for(lambda: not _takes(peer, b"x" * 4096))
        assert lab.is_up()
        with file_nvml.opened(lab.nvml) as state:
            assert state["calls"] == []

    def test_who_says_for_whom_he_asks_is_not_believed(self, lab):
        peer = connect()
        with pytest.raises(ControlDenied, match="only powerd may say"):
            peer.ask(Request("acquire", (Wish("gpu0", "power_cap", 200.0),), claim="trainer"))
        peer.close()

    def test_a_user_has_so_many_connections(self, lab):
        peers = []
        for _ in range(40):
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(str(lab.socket))
            peers.append(peer)
        peers[-1].settimeout(5)
        assert peers[-1].recv(1) == b"", "hung up on"
        for peer in peers:
            peer.close()
        wait_for(lab.is_up)
        with Hold({"power_cap_w": ASKED_W}, ["gpu0"], settle_s=0.0):
            assert lab.caps_w() == [ASKED_W, FOUND_W]

    def test_a_socket_that_another_helper_serves_is_not_taken_away(self, lab):
        command = [sys.executable, "-m", "powerd_control", "--socket", str(lab.socket), "--policy", str(lab.policy)]
        second = subprocess.run(
            [*command, "--nvml", "file_nvml", "--simulated"], capture_output=True, text=True, check=False
        )
        assert second.returncode == 2
        assert "another powerd-control serves" in second.stderr
        assert lab.is_up()


@pytest.mark.quick("the commands of the helper")
def test_every_option_is_taken_by_the_command(lab, monkeypatch, capsys):
    from powerd_client.commands import Control
    from powerd_daemon import commands
    from powerd_daemon.cli import main

    monkeypatch.setattr(commands, "entry_point", lambda name: Control)
    assert main(["control", "status"]) == 0
    capsys.readouterr()
    assert main(["control", "status", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {(knob["device"], knob["knob"]) for knob in told["knobs"]} >= {("gpu0", "power_cap"), ("gpu1", "power_cap")}
    assert (told["leases"], told["problems"]) == ([], [])
    assert main(["control", "check"]) == 0
    assert main(["control", "policy"]) == 0
    assert main(["control", "set", "gpu0", "power_cap_w=200", "--for", "0.2"]) == 0
    assert lab.caps_w() == [FOUND_W] * 2
    assert main(["control", "release", "nothing"]) == 2
    assert set(KNOB_OF_OPTION) >= {"power_cap_w", "sm_clock_mhz", "mem_clock_mhz"}
