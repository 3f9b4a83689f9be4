"""Knobs turned over CURVE: powerd hands questions on for keys with the role control, and for nobody else."""

import getpass

import pytest
from daemon_harness import PATIENCE_S, running

from powerd_client.knobs.control import Hold, PowerdSocket
from powerd_core.errors import ControlError
from powerd_core.keys import AllowedClient
from powerd_core.lease import Request, Wish
from powerd_core.verdict import Verdict
from powerd_daemon import peer
from powerd_daemon.auth import KeyDirectory, make_pair
from powerd_daemon.config import parse_config
from support.control_lab import ASKED_W, FOUND_W, Lab
from support.steady import wait_for

REMOTE = """powerd_user = "{user}"
[[allow]]
remote = "trainer"
devices = ["gpu0"]
knobs = ["power_cap"]
power_cap_w = [150, 260]
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr(peer, "TIMEOUT_MS", int(PATIENCE_S * 1000))
    it = Lab(tmp_path, monkeypatch)
    it.policy.write_text(REMOTE.format(user=getpass.getuser()))
    it.start()
    yield it
    if it.process.poll() is None:
        it.kill()


@pytest.fixture
def powerd(lab, tmp_path, monkeypatch):
    """One with keys: its address, and a function that makes this process the client of a role."""
    board, server = KeyDirectory(tmp_path / "board"), make_pair()
    pairs = {"trainer": make_pair(), "reader": make_pair()}
    roles = {"trainer": "control", "reader": "read"}
    with board.changing():
        board.write_pair("server.toml", server)
        board.write_clients({name: AllowedClient(name, pair.public, roles[name]) for name, pair in pairs.items()})
    text = f'[server]\nlisten = "tcp://127.0.0.1:*"\nkeys = "{board.path}"\ncontrol = "{lab.socket}"\n'
    config = parse_config(text + '[[source]]\nkind = "steady_source:SteadySource"\nname = "s"\n', "f")
    with running(config) as started:
        wait_for(lambda: started.daemon.description is not None)
        url = started.daemon.listen

        def be(name):
            own = KeyDirectory(tmp_path / name)
            with own.changing():
                own.write_pair("client.toml", pairs[name])
                own.write_boards({url.removeprefix("tcp://"): server.public})
            monkeypatch.setenv("POWERD_KEYS", str(tmp_path / name))

        yield url, be


@pytest.mark.quick("forwarding of questions: a helper and a powerd")
def test_a_cap_is_held_by_a_trainer_elsewhere_and_goes_back(lab, powerd):
    url, be = powerd
    be("trainer")
    with Hold({"power_cap_w": ASKED_W}, ["gpu0"], settle_s=0.0, where=url) as held:
        assert lab.caps_w() == [ASKED_W, FOUND_W]
        assert held.verdicts == {"gpu0 power_cap_w": (Verdict.UNKNOWN, "the time at the cap was not read")}
        assert held.set(power_cap_w=170)
        assert lab.caps_w() == [170.0, FOUND_W]
    assert lab.caps_w() == [FOUND_W] * 2
    assert not held.problem


def test_the_policy_counts_for_the_key_and_not_for_powerd(lab, powerd):
    url, be = powerd
    be("trainer")
    for level, device in ((140.0, "gpu0"), (200.0, "gpu1")):
        with pytest.raises(ControlError, match=r"from 150 W|not on gpu1"):
            Hold({"power_cap_w": level}, [device], where=url).acquire()
    assert lab.caps_w() == [FOUND_W] * 2


def test_a_key_that_may_read_turns_nothing(lab, powerd):
    url, be = powerd
    be("reader")
    socket = PowerdSocket(url)
    try:
        for request in (Request("acquire", (Wish("gpu0", "power_cap", 200.0),)), Request("status")):
            with pytest.raises(ControlError, match="--role control"):
                socket.ask(request)
    finally:
        socket.close()
    assert lab.caps_w() == [FOUND_W] * 2


def test_who_has_no_key_turns_nothing(lab, powerd, monkeypatch, tmp_path):
    url, _ = powerd
    monkeypatch.setenv("POWERD_KEYS", str(tmp_path / "none"))
    socket = PowerdSocket(url)
    monkeypatch.setattr("powerd_client.knobs.control._ANSWER_S", 2.0)
    try:
        with pytest.raises(OSError):  # noqa: PT011  (refused at the handshake, or never answered)
            socket.ask(Request("acquire", (Wish("gpu0", "power_cap", 200.0),)))
    finally:
        socket.close()
    assert lab.caps_w() == [FOUND_W] * 2


def test_a_powerd_that_ends_lets_go(lab, powerd):
    url, be = powerd
    be("trainer")
    hold = Hold({"power_cap_w": ASKED_W}, ["gpu0"], settle_s=0.0, where=url, ttl_s=5).acquire()
    assert lab.caps_w() == [ASKED_W, FOUND_W]
    hold._ended.set()  # a trainer that says nothing more
    wait_for(lambda: lab.caps_w() == [FOUND_W] * 2)
    hold._peer.close()


def test_without_a_helper_the_answer_says_so(lab, powerd):
    url, be = powerd
    be("trainer")
    lab.stop()
    with pytest.raises(ControlError, match="no control helper answers beside this powerd"):
        Hold({"power_cap_w": ASKED_W}, ["gpu0"], where=url).acquire()
