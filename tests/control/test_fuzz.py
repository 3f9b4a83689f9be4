"""Messages that the policy does not allow set nothing, whatever they are. $POWERD_FUZZ_MESSAGES says how many."""

import getpass
import json
import os
import random
import socket

import pytest

from powerd_control import helper as module
from powerd_control.helper import Connection, Helper
from powerd_control.knobs import Bench, gpu_knobs
from powerd_control.leases import Leases, Records, start_ticks
from powerd_control.requests import read_request
from powerd_core.lease import UNITS, Request, Wish, to_line
from support import file_nvml

MESSAGES = int(os.environ.get("POWERD_FUZZ_MESSAGES", "500"))
RULE = (
    '[[allow]]\nuser = "{user}"\ndevices = ["gpu0"]\nknobs = ["power_cap"]\npower_cap_w = [150, 250]\nmax_ttl_s = 60\n'
)
VERBS = ("describe", "status", "acquire", "set", "renew", "release", "steal", "check", "reset", "")


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setenv("POWERD_FAKE_NVML", str(file_nvml.fresh(tmp_path / "gpus.json", 2)))
    (tmp_path / "control.toml").write_text(RULE.format(user=getpass.getuser()))
    bench = Bench({"nvml": lambda: gpu_knobs(file_nvml)})
    leases = Leases(bench, Records(tmp_path / "leases"), module.boottime_s, "boot")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    yield Helper(listener, bench, leases, tmp_path / "control.toml"), leases
    listener.close()


def connection_of(uid):
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    return Connection(ours, uid, frozenset(), os.getpid(), start_ticks(os.getpid()) or 0, 0.0), theirs


def some_message(rng):
    """A line near to what is allowed, and then damaged or not."""
    if rng.random() < 0.2:
        near = Wish("gpu0", "power_cap", float(rng.randint(140, 260)))
        return to_line(
            Request("acquire", (near,), ttl_s=rng.choice([30.0, 61.0]), claim=rng.choice(["", "", "trainer"]))
        )[:-1]
    wishes = [
        Wish(
            rng.choice(["gpu0", "gpu1", "GPU-00000001-fake", "cpu", "*", "", "../gpu0"]),
            rng.choice(sorted(UNITS)),
            rng.choice(
                [float(rng.randint(-50, 400)), "min", "max", "default", "60%", "-5%", "1e999", "unlocked", "nan"]
            ),
        )
        for _ in range(rng.choice((0, 1, 1, 2, 9)))
    ]
    request = {
        "verb": rng.choice(VERBS),
        "wishes": [{"device": w.device, "knob": w.knob, "level": w.level} for w in wishes],
        "lease": rng.choice(["", "0" * 16, "../../etc"]),
        "name": rng.choice(["", "x", "\x1b[2J", "n" * 3000]),
        "ttl_s": rng.choice([1, 30, 61, 1e6, -1, 0]),
        "wait_s": rng.choice([0, 0, -1]),
        "claim": rng.choice(["", "", "trainer", "root"]),
    }
    for name in rng.sample(sorted(request), rng.choice((0, 0, 1, 3))):
        del request[name]
    line = bytearray(json.dumps(request).encode())
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 4)):
            line[rng.randrange(len(line))] = rng.randrange(256)
    return bytes(line).replace(b"\n", b" ")


def is_allowed(line, uid):
    """By a reading of the rule that shares nothing with the policy's code."""
    try:
        request = read_request(line)
    except ValueError:
        return False
    watts = [w.value for w in request.wishes]
    return (
        request.verb == "acquire"
        and uid == os.getuid()
        and not request.claim
        and request.ttl_s <= 60
        and all(w.device in ("gpu0", "GPU-00000000-fake") and w.knob == "power_cap" for w in request.wishes)
        and all(isinstance(w, float) and 150 <= w <= 250 for w in watts)
    )


@pytest.mark.timeout(3000)
def test_what_the_policy_does_not_allow_is_never_set(lab):
    helper, leases = lab
    rng = random.Random(5)
    allowed = set_ = 0
    for _ in range(MESSAGES):
        uid = rng.choice([os.getuid(), os.getuid() + 1, 0 if os.getuid() else 7])
        line = some_message(rng)
        connection, peer = connection_of(uid)
        helper._take(connection, line)
        with file_nvml.opened() as state:
            calls, state["calls"] = state["calls"], []
        may = is_allowed(line, uid)
        allowed += may
        set_ += bool(calls)
        assert not calls or may, (uid, line, calls)
        leases.end_all()
        with file_nvml.opened() as state:
            state["calls"] = []
        connection.socket.close()
        peer.close()
    assert 0 < set_ <= allowed, "some were allowed and set: the others could have been"


def test_a_line_that_is_allowed_is_set(lab):
    """What the fuzzing stands on."""
    helper, _ = lab
    connection, peer = connection_of(os.getuid())
    helper._take(connection, to_line(Request("acquire", (Wish("gpu0", "power_cap", 200.0),))))
    with file_nvml.opened() as state:
        assert state["calls"] == [["nvmlDeviceSetPowerManagementLimit", 0, [200_000]]]
    connection.socket.close()
    peer.close()
