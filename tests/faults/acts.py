"""How each fault is made: a context manager for each cell of `faults.rows`, from its beginning to its end."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import zmq

from faults.processes import Child, signal_all, stopped, throttled, wait_for
from faults.stage import BOARD_HOST, Stage
from powerd_client.journals.journal import journal_path
from powerd_core.model import ClockExchange
from powerd_core.wire import Message, Want, encode

Act = Callable[[Stage], AbstractContextManager[None]]
ACTS: dict[tuple[str, str], Act] = {}

RAM_ROOM_BYTES = 2 << 20
CHOKE_SHARE = 1 / 3
SLOW_S = 0.3


def act(*pairs: tuple[str, str]) -> Callable[[Callable[[Stage], Iterator[None]]], Act]:
    """Put a generator function into the table: what is before its yield begins the fault, the rest ends it."""

    def put(steps: Callable[[Stage], Iterator[None]]) -> Act:
        made = contextlib.contextmanager(steps)
        ACTS.update(dict.fromkeys(pairs, made))
        return made

    return put


def worker(stage: Stage) -> list[int]:
    """The recorder's process that receives: the child of its guardian, or whoever is alone."""
    found = stage.recorders()
    return [pid for pid in found if _parent(pid) in found] or found


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _pid(child: Child | None) -> list[int]:
    return [child.pid] if child is not None and child.is_alive else []


PROCESSES: dict[str, Callable[[Stage], list[int]]] = {
    "recorder": worker,
    "trainer": lambda stage: _pid(stage.trainer),
    "powerd": lambda stage: _pid(stage.powerd),
    "node": lambda stage: _pid(stage.node),
    "sampler": lambda stage: stage.samplers(),
}
for _victim in ("recorder", "trainer", "powerd", "node"):
    _pids = PROCESSES[_victim]
    ACTS[_victim, "stop"] = lambda stage, pids=_pids: stopped(lambda: pids(stage))  # type: ignore[misc]
    ACTS[_victim, "slow"] = lambda stage, pids=_pids: throttled(lambda: pids(stage))  # type: ignore[misc]
# Its buffer overflows while nobody takes anything out of it.
ACTS["node", "full"] = lambda stage: stopped(stage.samplers)


@contextlib.contextmanager
def neutered(_stage: Stage) -> Iterator[None]:
    """The act that does nothing, in whose place no other may pass for one."""
    yield


@contextlib.contextmanager
def repeated(work: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Something that is done again and again meanwhile, in a thread of its own."""
    done = threading.Event()

    def loop() -> None:
        while not done.wait(pause_s):
            work()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _kill_worker(stage: Stage) -> None:
    (struck,) = worker(stage)
    os.kill(struck, signal.SIGKILL)
    wait_for("the recorder is gone", lambda: struck not in stage.recorders())


@act(("recorder", "kill"))
def _(stage: Stage) -> Iterator[None]:
    _kill_worker(stage)
    yield


@act(("recorder", "restart"))
def _(stage: Stage) -> Iterator[None]:
    for _ in range(3):
        wait_for("a recorder that receives", lambda: len(stage.recorders()) == 2)
        _kill_worker(stage)
    yield


@act(("recorder", "garbage"))
def _(stage: Stage) -> Iterator[None]:
    stage.network("spoil 0.2 client")
    stage.network("garbage")
    stage.network("spoil 0.2 client")
    yield
    stage.network("pass")


@act(("recorder", "full"))
def _(stage: Stage) -> Iterator[None]:
    (struck,) = worker(stage)
    with open(f"/proc/{struck}/statm", encoding="utf-8") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.prlimit(struck, resource.RLIMIT_AS, (used + RAM_ROOM_BYTES, used + RAM_ROOM_BYTES))
    # What it needs now comes all at once: everything that was measured while it could not run.
    with stopped(lambda: [struck]):
        wait_for("readings wait for it", lambda: stage.stats() is not None)
        yield


@act(("recorder and guardian", "kill"))
def _(stage: Stage) -> Iterator[None]:
    signal_all(stage.recorders(), signal.SIGKILL)
    yield


@act(("trainer", "kill"))
def _(stage: Stage) -> Iterator[None]:
    assert stage.trainer is not None
    stage.trainer.end(signal.SIGKILL)
    yield


@act(("trainer", "restart"))
def _(stage: Stage) -> Iterator[None]:
    first = stage.trainer
    assert first is not None
    first.end(signal.SIGKILL)
    stage.train(stage.out.with_name("second.h5"))
    yield
    if status := stage.finish_training():
        stage.problems.append(f"the second training ended with status {status}")
    stage.trainer = first


@act(("trainer", "garbage"))
def _(stage: Stage) -> Iterator[None]:
    journal = journal_path(stage.out)
    for path in journal.glob("marks-*.names"):
        with path.open("ab") as file:
            file.write(b'{"kind": 3, "na\n\xff\xfe\x00 not JSON\n[1, 2]\n')
    for path in journal.glob("marks-*.bin"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(random.Random(1).randbytes(64))
    yield


@act(("disk", "full"))
def no_room(stage: Stage) -> Iterator[None]:
    """The disk under the run is full."""
    if not stage.is_mounted:
        stage.disk.write_text(f"full {stage.place}")
        yield
        stage.disk.unlink()
        return
    ballast = stage.place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    yield
    ballast.unlink()


@act(("trainer", "full"))
def _(stage: Stage) -> Iterator[None]:
    assert stage.trainer is not None
    with no_room(stage):
        stage.trainer.tell("burst")
        yield


@act(("powerd", "kill"), ("powerd with a spool", "kill"))
def _(stage: Stage) -> Iterator[None]:
    stage.powerd.end(signal.SIGKILL)
    yield
    stage.start_powerd()


@act(("powerd's spool", "full"))
def _(stage: Stage) -> Iterator[None]:
    stage.disk.write_text(f"full {stage.directory}/spool")
    yield
    wait_for("powerd says that its spool is full", lambda: "cannot be written" in stage.powerd.said)
    stage.powerd.end(signal.SIGKILL)
    stage.disk.unlink()
    stage.start_powerd()


@act(("powerd", "restart"))
def _(stage: Stage) -> Iterator[None]:
    stage.powerd.end(signal.SIGTERM)
    stage.start_powerd()
    yield


@act(("powerd", "garbage"))
def _(stage: Stage) -> Iterator[None]:
    """Raw bytes, and messages that are none, at all three sockets."""
    noise, port = random.Random(1), int(stage.url.rpartition(":")[2])
    good = [encode(Message("describe")), encode(Want(0, 0, 0, 10)), encode(ClockExchange(0, 1))]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealers = []
    for step in range(3):
        dealer = context.socket(zmq.DEALER)
        dealer.linger, dealer.sndhwm = 0, 10
        dealer.connect(f"tcp://{BOARD_HOST}:{port + step}")
        dealers.append(dealer)

    def strike() -> None:
        with contextlib.suppress(OSError), socket.create_connection((BOARD_HOST, port + noise.randrange(3)), 1) as raw:
            raw.sendall(noise.randbytes(noise.choice([1, 64, 5000])))
        for dealer in dealers:
            frame = noise.choice(good)
            at = noise.randrange(len(frame))
            flipped = frame[:at] + bytes([frame[at] ^ 255]) + frame[at + 1 :]
            junk = [frame[:at], flipped, noise.randbytes(300), b"", bytes(1 << 20), frame]
            with contextlib.suppress(zmq.Again):
                dealer.send_multipart([noise.choice(junk)] * noise.choice([1, 1, 1, 3]), zmq.NOBLOCK)

    with repeated(strike, 0.02):
        yield
    context.destroy(linger=0)


@act(("node", "kill"))
def _(stage: Stage) -> Iterator[None]:
    assert stage.node is not None
    stage.node.end(signal.SIGKILL)
    stage.node_link.unlink()
    yield
    stage.plug()


@act(("node", "restart"))
def _(stage: Stage) -> Iterator[None]:
    assert stage.node is not None
    stage.node.end(signal.SIGKILL)
    stage.plug()
    yield


@act(("node", "garbage"))
def _(stage: Stage) -> Iterator[None]:
    with repeated(lambda: stage.node and stage.node.tell("garbage"), 0.1):
        yield


def _network(kind: str, command: str) -> None:
    @act(("network", kind))
    def _(stage: Stage) -> Iterator[None]:
        needed = (8 + 10 * stage.scale.lines) * stage.scale.rate_hz
        stage.network(command.format(rate=round(needed * CHOKE_SHARE)))
        yield
        stage.network("pass")


def _disk(kind: str, word: str, *more: object) -> None:
    @act(("disk", kind))
    def _(stage: Stage) -> Iterator[None]:
        stage.disk.write_text(" ".join(map(str, (word, journal_path(stage.out), *more))))
        yield
        if kind != "kill":  # … which is never good again as long as the run lasts
            stage.disk.unlink()


def _bus(kind: str, word: str) -> None:
    @act(("sensor bus", kind))
    def _(stage: Stage) -> Iterator[None]:
        stage.script.write_text(word)
        yield
        stage.script.unlink()


_network("kill", "cut")
_network("five-minute cut", "cut")
# Its ring overflows. What a recorder that is merely stopped was sent waits for it in the kernel, perhaps all of it.
ACTS["powerd", "full"] = ACTS["network", "kill"]
_network("stop", "stall")
_network("restart", "reset")
_network("slow", "slow 0.2 200000")
_network("garbage", "spoil 0.1 both")
_network("full", "slow 0 {rate}")
_disk("kill", "broken")
_disk("stop", "hang")
_disk("restart", "broken")
_disk("slow", "slow", SLOW_S)
_bus("kill", "dead")
_bus("stop", "stuck")
_bus("restart", "brown-out")
_bus("slow", "latency")
_bus("garbage", "wrong-device")


@act(("disk", "garbage"))
def _(stage: Stage) -> Iterator[None]:
    journal = journal_path(stage.out) / "journal.bin"
    wait_for("the journal has something to be damaged", lambda: journal.stat().st_size > 30_000)
    with journal.open("r+b") as file:
        file.seek(journal.stat().st_size // 2)
        file.write(random.Random(1).randbytes(4096))
    yield
