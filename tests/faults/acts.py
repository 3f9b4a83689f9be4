"""How each fault is made: a context manager for each cell of `faults.table`, from its beginning to its end."""

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

from faults.processes import signal_all, stopped, throttled, wait_for
from faults.stage import BOARD_HOST, Stage
from powerd_client.journal import journal_path
from powerd_core.model import ClockExchange
from powerd_core.wire import Message, Want, encode

Act = Callable[[Stage], AbstractContextManager[None]]
ACTS: dict[tuple[str, str], Act] = {}

RAM_ROOM_BYTES = 2 << 20


def act(victim: str, kind: str) -> Callable[[Callable[[Stage], Iterator[None]]], Act]:
    """Put a generator function into the table: what is before its yield begins the fault, the rest ends it."""

    def put(made: Callable[[Stage], Iterator[None]]) -> Act:
        ACTS[victim, kind] = contextlib.contextmanager(made)
        return ACTS[victim, kind]

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


def _kill_worker(stage: Stage) -> None:
    (struck,) = worker(stage)
    os.kill(struck, signal.SIGKILL)
    wait_for("the recorder is gone", lambda: struck not in stage.recorders())


@act("recorder", "kill")
def _(stage: Stage) -> Iterator[None]:
    _kill_worker(stage)
    yield


@act("recorder", "restart")
def _(stage: Stage) -> Iterator[None]:
    for _ in range(3):
        wait_for("a recorder that receives", lambda: len(stage.recorders()) == 2)
        _kill_worker(stage)
    yield


@act("recorder", "stop")
def _(stage: Stage) -> Iterator[None]:
    with stopped(lambda: worker(stage)):
        yield


@act("recorder", "slow")
def _(stage: Stage) -> Iterator[None]:
    with throttled(lambda: worker(stage)):
        yield


@act("recorder", "garbage")
def _(stage: Stage) -> Iterator[None]:
    stage.network("spoil 0.2 client")
    stage.network("garbage")
    stage.network("spoil 0.2 client")
    yield
    stage.network("pass")


@act("recorder", "full")
def _(stage: Stage) -> Iterator[None]:
    (struck,) = worker(stage)
    with open(f"/proc/{struck}/statm", encoding="utf-8") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.prlimit(struck, resource.RLIMIT_AS, (used + RAM_ROOM_BYTES, used + RAM_ROOM_BYTES))
    # What it needs now comes all at once: everything that was measured while it could not run.
    with stopped(lambda: [struck]):
        wait_for("readings wait for it", lambda: stage.stats() is not None)
        yield


@act("recorder and guardian", "kill")
def _(stage: Stage) -> Iterator[None]:
    signal_all(stage.recorders(), signal.SIGKILL)
    yield


@act("trainer", "kill")
def _(stage: Stage) -> Iterator[None]:
    assert stage.trainer is not None
    stage.trainer.end(signal.SIGKILL)
    yield


@act("trainer", "restart")
def _(stage: Stage) -> Iterator[None]:
    first = stage.trainer
    assert first is not None
    first.end(signal.SIGKILL)
    second = stage.train(stage.out.with_name("second.h5"))
    yield
    stage.finish_training()
    stage.problems += [f"the second training ended with status {second.process.returncode}"] * bool(
        second.process.returncode
    )
    stage.trainer = first


@act("trainer", "stop")
def _(stage: Stage) -> Iterator[None]:
    with stopped(lambda: [stage.trainer.pid] if stage.trainer else []):
        yield


@act("trainer", "slow")
def _(stage: Stage) -> Iterator[None]:
    with throttled(lambda: [stage.trainer.pid] if stage.trainer and stage.trainer.is_alive else []):
        yield


@act("trainer", "garbage")
def _(stage: Stage) -> Iterator[None]:
    noise = random.Random(1)
    journal = journal_path(stage.out)
    for path in journal.glob("marks-*.names"):
        with path.open("ab") as file:
            file.write(b'{"kind": 3, "na\n\xff\xfe\x00 not JSON\n[1, 2]\n')
    for path in journal.glob("marks-*.bin"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(noise.randbytes(64))
    yield


@contextlib.contextmanager
def no_room(stage: Stage) -> Iterator[None]:
    """The disk under the run is full."""
    if not stage.is_mounted:
        stage.disk.write_text(f"full {stage.place}")
        yield
        stage.disk.unlink()
        return
    ballast = stage.place / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    yield
    ballast.unlink()


@act("trainer", "full")
def _(stage: Stage) -> Iterator[None]:
    assert stage.trainer is not None
    with no_room(stage):
        stage.trainer.tell("burst")
        yield


@act("powerd", "kill")
def _(stage: Stage) -> Iterator[None]:
    stage.powerd.end(signal.SIGKILL)
    yield
    stage.start_powerd()


ACTS["powerd with a spool", "kill"] = ACTS["powerd", "kill"]


@act("powerd's spool", "full")
def _(stage: Stage) -> Iterator[None]:
    stage.disk.write_text(f"full {stage.directory}/spool")
    yield
    said = wait_for("powerd says that its spool is full", lambda: "cannot be written" in stage.powerd.said)
    assert said is None
    stage.powerd.end(signal.SIGKILL)
    stage.disk.unlink()
    stage.start_powerd()


@act("powerd", "restart")
def _(stage: Stage) -> Iterator[None]:
    stage.powerd.end(signal.SIGTERM)
    stage.start_powerd()
    yield


@act("powerd", "stop")
def _(stage: Stage) -> Iterator[None]:
    with stopped(lambda: [stage.powerd.pid]):
        yield


@act("powerd", "slow")
def _(stage: Stage) -> Iterator[None]:
    with throttled(lambda: [stage.powerd.pid]):
        yield


@act("powerd", "full")
def _(stage: Stage) -> Iterator[None]:
    with stopped(lambda: worker(stage)):
        yield


@act("powerd", "garbage")
def _(stage: Stage) -> Iterator[None]:
    done = threading.Event()
    thread = threading.Thread(target=_strangers, args=(stage, done))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _strangers(stage: Stage, done: threading.Event) -> None:
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
    while not done.wait(0.02):
        with contextlib.suppress(OSError), socket.create_connection((BOARD_HOST, port + noise.randrange(3)), 1) as raw:
            raw.sendall(noise.randbytes(noise.choice([1, 64, 5000])))
        for dealer in dealers:
            frame = noise.choice(good)
            at = noise.randrange(len(frame))
            junk = [
                frame[:at],
                frame[:at] + bytes([frame[at] ^ 255]) + frame[at + 1 :],
                noise.randbytes(300),
                b"",
                bytes(1 << 20),
                frame,
            ]
            with contextlib.suppress(zmq.Again):
                dealer.send_multipart([noise.choice(junk)] * noise.choice([1, 1, 1, 3]), zmq.NOBLOCK)
    context.destroy(linger=0)
