"""The recorder: a process beside the training that receives, journals, and at the end writes the run file.

It is started by `powerd_client.meter` with a JSON object on its standard input, answers with JSON objects on its
standard output, one a line, and ends when it is told to stop or when its parent is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from powerd_client import journal as journals
from powerd_client.hostclock import now_ns
from powerd_client.link import BoardLink
from powerd_client.local import LocalDaemon, best_source
from powerd_client.reception import Reception
from powerd_core import wire
from powerd_core.document import to_document
from powerd_core.errors import PeerTimeout, PowerdError
from powerd_core.model import Block, ClockExchange, Description

_FAST_EXCHANGES = 100
_FAST_NS, _SLOW_NS = 20_000_000, 100_000_000
_TAIL_NS = 100_000_000
_RETRY_NS = 1_000_000_000
_MAX_PENDING_BYTES = 64 << 20
_DRAIN_S = 2.0


def say(**message: object) -> None:
    """One JSON object to the parent, if it is still there."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


@dataclass(slots=True)
class Job:
    """What the recorder was asked to do."""

    out: Path
    journal: Path
    urls: list[str]
    trainer_pid: int | None
    message: dict[str, Any]
    overwrite: bool = False
    source: dict[str, object] | None = None


@dataclass(slots=True)
class Pending:
    """Frames that are not in the journal yet, oldest first."""

    frames: list[bytes] = field(default_factory=list)
    size: int = 0
    failed_ns: int = 0

    def add(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.size += len(frame)


class Recorder:
    """Receives from every board and tails every process's marks until `stop_ns` is set and reached."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stop_ns: int | None = None
        self.complete = True
        self.abandoned = False
        self._lock = journals.lock(job.journal)
        self._writer = journals.JournalWriter(job.journal)
        self._tail = journals.MarkTail(job.journal, consume=True)
        self._pending = Pending()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._daemon: LocalDaemon | None = None
        self._links: list[BoardLink] = []
        self._offsets: dict[int, list[tuple[int, float]]] = {}
        self._exchanges = 0
        self._exchange_ns = self._tail_ns = 0
        self._parent = os.getppid()
        self._warned: set[str] = set()
        self._ready = False
        self._reception = Reception()
        self._stdin = b""

    def open(self) -> None:
        """Connect, describe, and put what the run is into the journal. Raises `PowerdError`."""
        urls = self.job.urls
        if not urls:
            self._daemon = LocalDaemon(
                self.job.source or best_source(self.job.trainer_pid), self.job.journal / "powerd.log"
            )
            urls = [self._daemon.url]
        self._pending.add(wire.encode(wire.Message("run", self.job.message)))
        self._links = [BoardLink(self._context, url, client=f"recorder {os.getpid()}") for url in urls]
        for link in self._links:
            self._keep_description(self._describe(link))
        self._flush()

    def _describe(self, link: BoardLink) -> Description:
        deadline = time.monotonic() + (15.0 if self._daemon else 3.0)
        while True:
            try:
                return link.describe(timeout_s=0.5 if self._daemon else 3.0)
            except PeerTimeout:
                if self._daemon:
                    self._daemon.check()
                if time.monotonic() > deadline:
                    raise

    def _keep_description(self, description: Description) -> None:
        self._pending.add(wire.encode(wire.Message("description", to_document(description), description.epoch)))

    def run(self) -> None:
        """Record until told to stop, and then until every stream has reached that moment."""
        poller = zmq.Poller()
        poller.register(0, zmq.POLLIN)
        registered: set[zmq.Socket[bytes]] = set()
        deadline_ns = 0
        ready_ns = now_ns() + int(_DRAIN_S * 1e9)
        while True:
            for link in self._links:
                for socket in (link.control, link.data):
                    if socket is not None and socket not in registered:
                        poller.register(socket, zmq.POLLIN)
                        registered.add(socket)
                link.ask()
            if 0 in {fd for fd, _ in poller.poll(10)}:
                self._read_commands(poller)
            for link in self._links:
                self._receive(link)
            self._exchange_clocks()
            self._tail_marks()
            self._flush()
            if not self._ready and (self._flows() or now_ns() > ready_ns):
                self._begin()
            if os.getppid() != self._parent:
                self._lose_trainer()
            if self.abandoned:
                return
            if self.stop_ns is not None:
                deadline_ns = deadline_ns or now_ns() + int(_DRAIN_S * 1e9)
                if self._has_reached(self.stop_ns) or now_ns() > deadline_ns:
                    break
        self._tail_marks(final=True)
        refused = sum(link.refused for link in self._links)
        body = {
            "t_stop_ns": self.stop_ns,
            "complete": self.complete,
            "reception": self._reception.summary(refused),
        }
        self._pending.add(wire.encode(wire.Message("stop", body)))
        self._flush(final=True)

    def _lose_trainer(self) -> None:
        """The training process is gone, or has closed its end of the pipe, which it does when it dies."""
        if self.stop_ns is None and not self.abandoned:
            self.stop_ns, self.complete = now_ns(), False
            self._note("warning", "the training process ended without closing the run")

    def _flows(self) -> bool:
        """Whether every fast stream has sent something and the clocks are roughly known."""
        return self._exchanges >= 10 and all(
            s.t_last_board_ns
            for link in self._links
            for s in link.streams.values()
            if s.stream.period_ns < 1_000_000_000
        )

    def _begin(self) -> None:
        self._ready = True
        self._pending.add(wire.encode(wire.Message("start", {"t_start_ns": now_ns()})))
        self._flush()
        lines = [line.name for link in self._links for s in link.streams.values() for line in s.stream.lines]
        say(ready=True, pid=os.getpid(), lines=lines)

    def _read_commands(self, poller: zmq.Poller) -> None:
        data = os.read(0, 65536)
        if not data:
            poller.unregister(0)
            self._lose_trainer()
            return
        *lines, self._stdin = (self._stdin + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if "stop_ns" in command:
                self.stop_ns = command["stop_ns"]
            self.abandoned = self.abandoned or "abandon" in command
            if "note" in command:
                self._note("warning", command["note"])

    def _receive(self, link: BoardLink) -> None:
        if self._pending.size > _MAX_PENDING_BYTES:
            return  # the disk is full: what is not fetched stays in the daemon's ring
        offset = self._offset(link)
        for event, frame in link.receive():
            self._pending.add(frame)
            if offset is not None and isinstance(event, Block):
                self._reception.add(len(frame), now_ns() - event.t_first_ns - offset)
        try:
            while link.control.poll(0):
                answer = link.receive_control()
                if isinstance(answer, Description):
                    self._keep_description(answer)
        except PowerdError as error:
            self._warn(str(error))

    def _exchange_clocks(self) -> None:
        now = now_ns()
        if now < self._exchange_ns:
            return
        self._exchanges += 1
        self._exchange_ns = now + (_FAST_NS if self._exchanges < _FAST_EXCHANGES else _SLOW_NS)
        for link in self._links:
            try:
                exchange = link.exchange()
            except PowerdError as error:
                self._warn(str(error))
                continue
            if exchange is not None:
                self._pending.add(wire.encode(exchange))
                self._learn_offset(exchange)

    def _learn_offset(self, exchange: ClockExchange) -> None:
        kept = self._offsets.setdefault(exchange.epoch, [])
        kept.append((exchange.delay_ns, exchange.offset_ns))
        del kept[:-100]

    def _offset(self, link: BoardLink) -> float | None:
        """Host minus board time by the quickest of the last exchanges: good enough to know when to stop."""
        known = link.description and self._offsets.get(link.description.epoch)
        return min(known)[1] if known else None

    def _has_reached(self, stop_ns: int) -> bool:
        for link in self._links:
            offset = self._offset(link)
            if offset is None:
                return False
            # A stream slower than a second is not waited for; its last reading is as old as it is.
            if any(
                s.t_last_board_ns + offset < stop_ns
                for s in link.streams.values()
                if s.stream.period_ns < 1_000_000_000
            ):
                return False
        return True

    def _tail_marks(self, *, final: bool = False) -> None:
        now = now_ns()
        if now < self._tail_ns and not final:
            return
        if self._pending.failed_ns:
            return
        self._tail_ns = now + _TAIL_NS
        names, marks = self._tail.read()
        for document in names:
            self._pending.add(wire.encode(wire.Message("phase-names", document)))
        for piece in marks:
            self._pending.add(wire.encode(piece))

    def _flush(self, *, final: bool = False) -> None:
        pending = self._pending
        if not pending.frames or (pending.failed_ns and not final and now_ns() - pending.failed_ns < _RETRY_NS):
            return
        try:
            self._writer.write(pending.frames)
        except OSError as error:
            pending.failed_ns = now_ns()
            self._warn(f"the journal cannot be written ({error.strerror}): readings wait in memory and in powerd")
            if final:
                raise
            return
        self._pending = Pending()

    def _note(self, level: str, text: str) -> None:
        self._pending.add(wire.encode(wire.Message("note", {"t_ns": now_ns(), "level": level, "text": text})))

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._note("warning", text)
            say(warning=text)

    def close(self) -> None:
        """Let go of sockets, the local powerd and the journal's file (not of its lock)."""
        for link in self._links:
            link.close()
        self._context.destroy(linger=0)
        if self._daemon is not None:
            self._daemon.stop()
        self._writer.close()


def read_job() -> Job:
    """The job from the first line of standard input."""
    data = b""
    while not data.endswith(b"\n"):
        select.select([0], [], [])
        piece = os.read(0, 1)  # not a byte of the commands that may follow
        if not piece:
            raise SystemExit(2)
        data += piece
    document = json.loads(data)
    return Job(**{**document, "out": Path(document["out"]), "journal": Path(document["journal"])})


def main() -> None:
    """Entry of the recorder process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = read_job()
    recorder = None
    try:
        recorder = Recorder(job)
        recorder.open()
        signal.signal(signal.SIGTERM, lambda *_: setattr(recorder, "stop_ns", recorder.stop_ns or now_ns()))
        recorder.run()
        recorder.close()
        if recorder.abandoned:
            return
        from powerd_client.build import build_run  # numpy and h5py: half a second that the start need not wait for

        build_run(job.journal, job.out, overwrite=job.overwrite, progress=lambda share: say(progress=share))
        say(done=True)
    except (PowerdError, OSError) as error:
        if recorder is not None:
            with contextlib.suppress(OSError):
                recorder.close()
        say(error=str(error))
        sys.exit(2)


if __name__ == "__main__":
    main()
