"""Board and training host as two network namespaces, a bad cable between them, and keys on both.

Both read the same CLOCK_MONOTONIC_RAW: the true offset of the board's clock is 0, and the guaranteed bound must hold
it.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.account import take_account
from faults.processes import HERE, MARK, Child, left_over, wait_for
from powerd_client import open_run

BOARD, HOST = "10.213.7.1", "10.213.7.2"
PORT = 7360
POWERD = [sys.executable, "-P", "-m", "powerd_daemon"]
CUT_S = 4.0


def sh(*command):
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def why_not():
    if os.geteuid() != 0:
        return "making network namespaces takes root"
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2)"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    name = f"powerd-try-{os.getpid()}"
    try:
        sh("ip", "netns", "add", name)
    except (subprocess.SubprocessError, OSError) as error:
        return f"network namespaces are not permitted here: {error}"
    sh("ip", "netns", "del", name)
    return ""


class Namespaced(Child):
    """A process in a network namespace."""

    def __init__(self, namespace, name, command, environment, log):
        self._namespace = namespace
        super().__init__(name, command, environment, log)

    def _command(self, command):
        return ["ip", "netns", "exec", self._namespace, *super()._command(command)]


class TwoHosts:
    """A powerd on the board, a training on the host, and the cable."""

    def __init__(self, directory):
        self.directory = directory
        self.token = os.urandom(8).hex()
        self.environment = os.environ | {
            MARK: self.token,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
            "FAULTS_DISK": "",
        }
        self.names = [f"board-{self.token[:8]}", f"host-{self.token[:8]}"]
        self.keys = directory / "board-keys", directory / "host-keys"
        self.out = directory / "run.h5"

    def open(self):
        tuns = [f"tb{self.token[:8]}", f"th{self.token[:8]}"]
        self.cable = Child("cable", [HERE / "tun_link.py", *tuns], self.environment, self.directory / "cable.log")
        self.cable.await_line("is ready", "ready")
        for name, tun, address, peer in zip(self.names, tuns, (BOARD, HOST), (HOST, BOARD), strict=True):
            sh("ip", "netns", "add", name)
            sh("ip", "link", "set", tun, "netns", name)
            sh("ip", "-n", name, "addr", "add", address, "peer", peer, "dev", tun)
            for device in ("lo", tun):
                sh("ip", "-n", name, "link", "set", device, "up")
        self.make_keys()
        config = self.directory / "powerd.toml"
        config.write_text(
            f'[server]\nlisten = "tcp://{BOARD}:{PORT}"\nboard = "bench"\nkeys = "{self.keys[0]}"\n'
            '[[source]]\nkind = "numbered_source:NumberedSource"\nname = "numbered"\nlines = 8\nrate_hz = 1000\n'
        )
        self.powerd = self.run(0, "powerd", ["-m", "powerd_daemon", "run", "--config", config])
        wait_for("powerd listens", lambda: "listens on" in self.powerd.said or not self.powerd.is_alive)
        assert self.powerd.is_alive, self.powerd.said

    def make_keys(self):
        board, host = self.keys
        for directory in self.keys:
            directory.mkdir(mode=0o700)
        said = sh(*POWERD, "keys", "server", "--keys", board, "--address", f"{BOARD}:{PORT}")
        public = re.search(r"public key: (\S+)", said)[1]
        said = sh(*POWERD, "keys", "client", "--keys", host, "--name", "trainer")
        own = re.search(r"public key: (\S+)", said)[1]
        sh(*POWERD, "keys", "allow", "trainer", own, "--keys", board)
        sh(*POWERD, "keys", "trust", f"{BOARD}:{PORT}", public, "--keys", host)

    def run(self, which, name, command):
        return Namespaced(self.names[which], name, command, self.environment, self.directory / f"{name}.log")

    def train(self):
        url = f"tcp://{BOARD}:{PORT}"
        self.trainer = self.run(1, "trainer", [HERE / "trainer.py", url, self.out, self.keys[1]])
        wait_for("the training begins", lambda: self.trainer.told("ready") or not self.trainer.is_alive)
        assert self.trainer.told("ready"), self.trainer.said

    def await_steps(self, more):
        goal = self.steps + more
        wait_for(f"{more} steps", lambda: self.steps >= goal or not self.trainer.is_alive)

    @property
    def steps(self):
        told = self.trainer.told("steps")
        return told[-1]["steps"] if told else 0

    def order(self, command):
        done = self.cable.lines.count("done")
        self.cable.tell(command)
        wait_for("the cable obeys", lambda: self.cable.lines.count("done") > done)

    def lost_packets(self):
        self.cable.tell("count")
        wait_for("the cable counts", lambda: any("lost" in line for line in self.cable.lines))
        return int([line for line in self.cable.lines if "lost" in line][-1].split()[-1])

    def close(self):
        for child in (getattr(self, name, None) for name in ("trainer", "powerd", "cable")):
            if child is not None and child.is_alive:
                child.end()
        over = left_over(self.token)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        return over


@contextlib.contextmanager
def two_hosts(directory):
    hosts = TwoHosts(directory)
    try:
        hosts.open()
        yield hosts
    finally:
        assert hosts.close() == []


def clocks(run):
    """(lower, upper bound of the offset, ns) at every moment of the run's clocks."""
    with open_run(run) as file:
        return [tuple(row) for clock in file["clocks"].values() for row in clock["map"][:, 1:3].tolist()]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def test_a_run_over_a_bad_network_is_complete(hosts):
    hosts.order("quality 4 6 0.02")
    hosts.train()
    hosts.await_steps(200)
    hosts.order("cut")
    time.sleep(CUT_S)  # the fault itself
    hosts.order("quality 4 6 0.02")
    hosts.await_steps(150)
    hosts.trainer.tell("finish")
    assert hosts.trainer.ended() == 0, hosts.trainer.said
    account = take_account(hosts.out)
    assert account.problems == []
    assert account.lost == account.declared == 0
    assert account.received == account.sent > 5000
    assert account.steps == hosts.trainer.told("closing")[-1]["steps"]
    assert hosts.trainer.told("closing")[-1]["longest_s"] < 1.5
    assert account.replayed > 0, "the cut was not noticed"
    assert hosts.lost_packets() > 20, "the cable lost nothing"
    bounds = clocks(hosts.out)
    assert all(low <= 0 <= high for low, high in bounds)
    # A way of 4 to 10 ms, each way: 8 ms of delay are 4 ms to either side, and the best of many come near that.
    width_ms = sorted((high - low) / 1e6 for low, high in bounds)
    assert width_ms[len(width_ms) // 2] < 25
    verified = subprocess.run(
        [sys.executable, "-P", "-m", "powerd_analytics", "info", "--check", str(hosts.out)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stdout


def test_a_host_without_keys_gets_nothing(hosts):
    hosts.order("quality 4 6 0")  # while packets get lost, one in sixty hears nothing at all in time
    for path in hosts.keys[1].iterdir():
        path.unlink()
    asked = hosts.run(1, "stranger", ["-m", "powerd_daemon", "describe", f"tcp://{BOARD}:{PORT}", "--json"])
    assert asked.ended() == 2
    assert not [line for line in asked.lines if "board" in line]
    assert len(asked.said.splitlines()) == 1
    assert "keys" in asked.said
