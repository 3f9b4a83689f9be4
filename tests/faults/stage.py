"""Everything that one cell of the matrix needs: powerd, the way to it, a training with its recorder, other clients."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from faults.processes import HERE, MARK, Child, Hang, left_over, running_module, wait_for
from powerd_client.journals.journal import journal_path
from powerd_core.wire import Message, decode, encode

BLOCKS_PER_S, FRAME_BYTES = 50, 256
"""Of powerd's ring: a block's header and what it keeps beside it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How long and how much."""

    length_s: float
    """A fault's duration."""
    lines: int
    rate_hz: float
    clients: int
    before_steps: int
    after_steps: int

    def ring_mib(self, share: float) -> float:
        """A ring that lasts ``share`` times a fault, as `powerd_daemon.daemon.ring_seconds` reckons."""
        scan_bytes = 8 + 10 * self.lines
        bytes_per_s = BLOCKS_PER_S * FRAME_BYTES + scan_bytes * self.rate_hz
        return share * self.length_s * bytes_per_s / (1 << 20)


QUICK = Scale(length_s=2.0, lines=4, rate_hz=500.0, clients=1, before_steps=40, after_steps=40)
FULL = Scale(length_s=30.0, lines=8, rate_hz=1000.0, clients=3, before_steps=300, after_steps=300)

TMPFS_BYTES = 48 << 20
PROXY_HOST, BOARD_HOST = "127.0.0.2", "127.0.0.1"


def sources(kind: str, scale: Scale, port: Path, node_rate_hz: float, script: Path) -> str:
    """The ``[[source]]`` for *numbered*, *node* (at ``port``) or *sim* (which obeys the file ``script``)."""
    match kind:
        case "node":
            sensors = "".join(
                f'[[source.sensors]]\nname = "rail{i}"\naddress = 0x40\ncontroller = {i}\n' for i in range(2)
            )
            # A process on a busy machine answers echoes when it is its turn.
            return (
                f'[[source]]\nkind = "node"\nport = "{port}"\nrate_hz = {node_rate_hz}\n'
                f"clock_limit_us = 100000\n{sensors}"
            )
        case "sim":
            return (
                '[[source]]\nkind = "steered_sim:SteeredSim"\nname = "sim"\nrate_hz = 200\nwaveform = "constant"\n'
                f'errors = "none"\nscript = "{script}"\n'
            )
    return (
        '[[source]]\nkind = "numbered_source:NumberedSource"\nname = "numbered"\n'
        f"lines = {scale.lines}\nrate_hz = {scale.rate_hz}\n"
    )


def free_ports(count: int = 3) -> int:
    """The first of ``count`` ports that are free on both loopback addresses."""
    while True:
        first = secrets.randbelow(12_000) + 20_000  # below those that connections take
        with contextlib.ExitStack() as held:
            try:
                for host in (PROXY_HOST, BOARD_HOST):
                    for port in range(first, first + count):
                        made = held.enter_context(socket.socket())
                        made.bind((host, port))
            except OSError:
                continue
            return first


class Stage:
    """Started by `open`; `close` ends it all and says what did not end.

    ``source`` is numbered, node or sim. With ``ring_share``, powerd's ring lasts so many times a fault's duration.
    """

    def __init__(
        self,
        scale: Scale,
        *,
        source: str = "numbered",
        network: bool = False,
        small_disk: bool = False,
        ring_share: float = 0.0,
        spool: bool = False,
        node_rate_hz: float = 100.0,
    ) -> None:
        self.scale = scale
        self.source = source
        self.token = secrets.token_hex(8)
        _open.add(self)
        self.directory = Path(tempfile.mkdtemp(prefix="faults-"))
        self.place = self.directory / "runs"
        self.place.mkdir()
        self.out = self.place / "run.h5"
        self.disk = self.directory / "disk-word"
        self.seen = self.directory / "seen"
        """What disk, bus and parents of processes write down of what happened: a word and an amount a line."""
        self.ledger = self.directory / "counted"
        """Where sources write down which scans they counted out: a file for each of their processes."""
        self.ledger.mkdir()
        self.script = self.directory / "bus-word"
        self.node_link = self.directory / "ttyACM0"
        self.is_mounted = small_disk and _mount(self.place)
        self._server = f"ring_mib = {scale.ring_mib(ring_share)}\n" if ring_share else ""
        self._server += f'spool = "{self.directory}/spool"\n' if spool else ""
        port = free_ports()
        self.board_url = f"tcp://{BOARD_HOST}:{port}"
        self.url = f"tcp://{PROXY_HOST}:{port}" if network else self.board_url
        self._network = network
        self._sources = sources(source, scale, self.node_link, node_rate_hz, self.script)
        self.children: list[Child] = []
        self.powerds: list[Child] = []
        self.node: Child | None = None
        self.proxy: Child | None = None
        self.trainer: Child | None = None
        self.clients: Child | None = None
        self.problems: list[str] = []

    def _start(self, name: str, command: list[object], **environment: str) -> Child:
        paths = [str(HERE), str(HERE.parent)]
        if environment.pop("disk", ""):
            paths.insert(0, str(HERE / "disk"))
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
            MARK: self.token,
            "FAULTS_DISK": str(self.disk),
            "FAULTS_SEEN": str(self.seen),
            "FAULTS_LEDGER": str(self.ledger),
            "OMP_NUM_THREADS": "1",
        }
        self.children.append(Child(name, command, env, self.directory / f"{name}.log"))
        return self.children[-1]

    def open(self) -> None:
        """Start everything but the training."""
        if self.source == "node":
            self.plug()
        self.start_powerd()
        if self._network:
            self.proxy = self._start("proxy", [HERE / "proxy.py", PROXY_HOST, BOARD_HOST, *self._ports()])
            self.proxy.await_line("is ready", "ready")
        if self.scale.clients:
            self.clients = self._start("clients", [HERE / "clients.py", self.board_url, self.scale.clients])

    def _ports(self) -> list[int]:
        first = int(self.board_url.rpartition(":")[2])
        return [first, first + 1, first + 2]

    def plug(self) -> None:
        """A node at the serial port."""
        self.node = self._start("node", [HERE / "numbered_node.py", self.node_link, 2])
        self.node.await_line("is ready", "ready")

    def start_powerd(self, *, wait: bool = True) -> None:
        """A powerd, the first or another at the same address."""
        config = self.directory / "powerd.toml"
        config.write_text(f'[server]\nlisten = "{self.board_url}"\nboard = "bench"\n{self._server}{self._sources}')
        self.powerds.append(self._start("powerd", ["-m", "powerd_daemon", "run", "--config", config], disk="faked"))
        if wait:
            powerd = self.powerds[-1]
            wait_for("powerd answers", lambda: self.stats() is not None or not powerd.is_alive)
            assert powerd.is_alive, f"powerd ended: {powerd.said[-500:]}"

    @property
    def powerd(self) -> Child:
        return self.powerds[-1]

    def train(self, out: Path | None = None) -> Child:
        """Start a training and wait until it is recorded."""
        self.trainer = trainer = self._start(
            "trainer", [HERE / "trainer.py", self.url, out or self.out, ""], disk="faked"
        )
        wait_for("the training begins", lambda: trainer.told("ready") or not trainer.is_alive)
        assert trainer.told("ready"), f"the training did not begin: {trainer.said[-800:]}"
        return trainer

    def await_steps(self, more: int) -> None:
        """Until the training has made so many more steps, or is no longer there to make them."""
        trainer = self.trainer
        assert trainer is not None
        goal = self.steps + more
        wait_for(f"{more} more steps", lambda: self.steps >= goal or not trainer.is_alive)

    @property
    def steps(self) -> int:
        told = self.trainer.told("steps") if self.trainer else []
        return int(told[-1]["steps"]) if told else 0

    def recorders(self) -> list[int]:
        return running_module(self.token, "powerd_client.record.recorder")

    def samplers(self) -> list[int]:
        return running_module(self.token, "powerd_daemon.sampler")

    def network(self, command: str) -> None:
        """Have the proxy obey."""
        assert self.proxy is not None
        done = self.proxy.lines.count("done")
        self.proxy.tell(command)
        wait_for("the proxy obeys", lambda: self.proxy and self.proxy.lines.count("done") > done)

    def network_counts(self) -> dict[str, int]:
        """What the proxy did so far to what went through it, see `proxy.Proxy.counts`."""
        assert self.proxy is not None
        self.network("count")
        return dict(self.proxy.told("counts")[-1]["counts"])

    def answered_stats(self) -> dict[str, Any]:
        """`stats`, as soon as powerd answers."""
        found: list[dict[str, Any]] = []

        def answers() -> bool:
            found.extend(filter(None, [self.stats()]))
            return bool(found)

        wait_for("powerd answers", answers)
        return found[0]

    def stats(self) -> dict[str, Any] | None:
        """What powerd says about itself, None when it does not answer soon."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            asking = context.socket(zmq.DEALER)
            asking.linger = 0
            asking.connect(self.board_url)
            asking.send(encode(Message("stats")))
            if not asking.poll(500):
                return None
            answer = decode(asking.recv())
            return dict(answer.body) if isinstance(answer, Message) and answer.subject == "stats" else None
        finally:
            context.destroy(linger=0)

    def await_flow(self) -> None:
        """Until powerd takes readings in again from its first stream."""

        def scans() -> list[int] | None:
            stats = self.stats()
            return None if stats is None else [int(s["scans"]) for s in stats["streams"]][:1]

        before: list[int] | None = None

        def flows() -> bool:
            nonlocal before
            now = scans()
            if before is None:
                before = now
            return before is not None and now is not None and now[0] > before[0]

        wait_for("readings flow again", flows)

    def finish_training(self) -> int:
        """Let the training come to its end. Its status."""
        assert self.trainer is not None
        self.trainer.tell("finish")
        return self.trainer.ended()

    def await_file(self, patience_s: float = 60.0) -> None:
        """Until the recorder of a training that is gone has written the run file."""
        wait_for("the recorder ends", lambda: not self.recorders(), patience_s)

    def further_clients(self) -> dict[str, Any]:
        """What the other clients received; ends them."""
        if self.clients is None:
            return {"frames": [], "missing": [], "causes": []}
        self.clients.tell("end")
        self.clients.ended()
        return self.clients.told("frames")[-1]

    def said(self) -> str:
        """Everything that anybody said on standard error."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("*.log")))

    def close(self) -> list[str]:
        """End everything; the command lines of what had to be killed."""
        ending = [c for c in (self.clients, self.trainer, *self.powerds, self.proxy, self.node) if c is not None]
        for child in ending:
            if child.is_alive:
                child.end(signal.SIGKILL if child is self.node else signal.SIGTERM, 15)
        found = left_over(self.token)
        self.sweep()
        return found

    def sweep(self) -> None:
        """Remove its files."""
        _open.discard(self)
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.place)], capture_output=True, check=False)
        if "FAULTS_KEEP" not in os.environ:
            shutil.rmtree(self.directory, ignore_errors=True)

    def has_journal(self) -> bool:
        return journal_path(self.out).is_dir()


def _mount(place: Path) -> bool:
    """A small file system of its own at ``place``, where that is permitted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "faults", str(place)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


_open: set[Stage] = set()


def end_all() -> None:
    """Kill the processes of every stage that is open, and remove its files."""
    for stage in list(_open):
        left_over(stage.token, 0)
        stage.sweep()


@contextlib.contextmanager
def staged(stage: Stage) -> Iterator[Stage]:
    """A stage that is closed whatever happens; what is left over becomes one of its problems."""
    try:
        stage.open()
        yield stage
    finally:
        try:
            for command in stage.close():
                stage.problems.append(f"left over: {command}")
        except Hang as error:
            stage.problems.append(str(error))
            left_over(stage.token, 0)


def hold(seconds: float, still: Any = lambda: True) -> None:
    """The length of a fault: the one place where time just passes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and still():
        time.sleep(0.02)
