"""The sampler process: one source, its deadlines and nothing else. The supervisor tells it what to do on stdin."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zmq

from powerd_core.errors import PowerdError
from powerd_core.model import Device, Stream
from powerd_core.serde import from_document, to_document
from powerd_core.wire import Message
from powerd_daemon.clock import SystemClock
from powerd_daemon.config import SourceConfig, make_source
from powerd_daemon.outbox import Outbox
from powerd_daemon.realtime import make_realtime, sharpen_timers
from powerd_daemon.registry import find_source
from powerd_daemon.sampling import Resume, Sampling
from powerd_daemon.sources.base import Start

STATISTICS_NS = 1_000_000_000
SEND_HWM = 64
LINGER_MS = 500


@dataclass(frozen=True, slots=True)
class Spec:
    """What the supervisor writes to the sampler's stdin, as a JSON object."""

    kind: str
    name: str
    where: str
    options: Mapping[str, object]
    epoch: int
    first_stream: int
    endpoint: str
    """Where the server pulls: an ipc socket in its private directory."""
    block_ns: int
    outbox_bytes: int
    parent_pid: int
    resume: tuple[Resume, ...] = ()
    priority: int = 0
    lock_memory: bool = False


def main() -> int:
    """Run until SIGTERM or until the parent is gone. Status 0; 2 when the source cannot be used."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop)
    spec = from_document(Spec, json.load(sys.stdin))
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.set(zmq.SNDHWM, SEND_HWM)
    push.connect(spec.endpoint)
    try:
        return _run(spec, push, lambda: stopping)
    finally:
        is_orphan = os.getppid() != spec.parent_pid
        push.close(linger=0 if is_orphan else LINGER_MS)
        context.term()
        if is_orphan:
            _sweep(spec.endpoint)


def _run(spec: Spec, push: zmq.Socket[bytes], stopping: Callable[[], bool]) -> int:
    outbox = Outbox(spec.outbox_bytes)

    def send(frame: bytes) -> bool:
        try:
            push.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def announce(streams: tuple[Stream, ...], devices: tuple[Device, ...]) -> None:
        outbox.put_message(Message("streams", to_document({"streams": streams, "devices": devices})))
        # What exists by now lives as long as the process: no collection shall walk it between two deadlines.
        gc.collect()
        gc.freeze()

    sharpen_timers()
    for refused in make_realtime(spec.priority, spec.lock_memory):
        outbox.put_message(Message("notice", {"message": refused}))
    clock = SystemClock()
    config = SourceConfig(spec.kind, spec.name, spec.options, spec.where)
    sampling: Sampling | None = None
    try:
        cls = find_source(spec.kind)
        sampling = Sampling(
            lambda start: make_source(config, cls, start),
            Start(spec.name, spec.epoch, spec.first_stream, clock),
            outbox,
            block_ns=spec.block_ns,
            resume=spec.resume,
            on_open=announce,
        )
        if not spec.resume:
            sampling.open()
        statistics_ns = clock.now_ns()
        while not stopping() and os.getppid() == spec.parent_pid:
            sampling.step()
            now_ns = clock.now_ns()
            if now_ns >= statistics_ns:
                outbox.put_statistics(Message("statistics", sampling.statistics()))
                statistics_ns = now_ns + STATISTICS_NS
            outbox.drain(send)
        sampling.close()
        outbox.put_statistics(Message("statistics", sampling.statistics()))
        status = 0
    except PowerdError as error:
        outbox.put_message(Message("failed", {"message": str(error), "final": True}))
        status = 2
    except Exception as error:  # noqa: BLE001
        # The fault of a driver that does not keep to its contract: its author needs the traceback.
        traceback.print_exc()
        outbox.put_message(Message("failed", {"message": f"{type(error).__name__}: {error}", "final": False}))
        status = 2
    if sampling is not None:
        sampling.abandon()
    give_up_ns = clock.now_ns() + LINGER_MS * 1_000_000
    while os.getppid() == spec.parent_pid and not outbox.drain(send) and clock.now_ns() < give_up_ns:
        clock.sleep_until(clock.now_ns() + 5_000_000)
    return status


def _sweep(endpoint: str) -> None:
    """Remove the socket that a supervisor which was killed could not remove; the last sampler takes the directory."""
    path = Path(endpoint.removeprefix("ipc://"))
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


if __name__ == "__main__":
    sys.exit(main())
