"""The recorder's worker: receives, tails the marks, journals, and at the end writes the run file.

Its guardian forks it, and forks another one when it dies; that one goes on from what the journal holds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from dataclasses import dataclass

from powerd_client.boards import Boards
from powerd_client.finish import build, clear_away, is_built
from powerd_client.hostclock import now_ns
from powerd_client.job import Job, Shared, Voice, say
from powerd_client.local import LocalDaemon
from powerd_client.logbook import Logbook
from powerd_client.orders import Orders, TermFlag, TrainerWatch
from powerd_client.resume import Past, read_past
from powerd_core.errors import PeerTimeout, PowerdError, RunFileError
from powerd_core.wire import Message

_ALIVE_NS = 1_000_000_000
_BEGIN_NS = 2_000_000_000
"""So long the start waits for a stream that sends nothing."""
_DRAIN_NS = 3_000_000_000
"""When the run has ended and nothing more comes for so long, nothing more will come."""
_STEP_NS = 100_000_000
"""No pass of the loop counts for more."""


@dataclass(slots=True)
class Lives:
    """What a worker has from its guardian."""

    job: Job
    voice: Voice
    shared: Shared
    terminated: TermFlag
    trainer: TrainerWatch
    daemon: LocalDaemon | None
    death: str | None = None
    """How the worker before this one ended."""


class Worker:
    """Receives from every board and tails every process's marks until it is told to stop."""

    def __init__(self, lives: Lives, past: Past) -> None:
        self.orders = Orders(lives.terminated, lives.trainer)
        self._lives = lives
        self._past = past
        self._log = Logbook(lives.job, lives.voice, past if lives.death else None)
        self._ready = past.has_start
        self._boards = Boards()
        self._guardian = os.getppid()
        self._adopted = False
        self._alive_ns = 0
        # Both without the time in which this process was stopped: it has not waited then.
        self._ran_ns = 0
        self._waited_ns = 0
        """How long nothing has come that the run needs."""

    def open(self) -> None:
        """Connect, describe, and put what the run is into the journal. Raises `PowerdError`."""
        job, daemon = self._lives.job, self._lives.daemon
        if not self._past.has_run:
            self._log.add(Message("run", job.message))
        if self._lives.death:
            self._log.note(f"the recorder {self._lives.death} and was started again")
        for url in [daemon.url] if daemon else job.urls:
            self._boards.add(url, self._past.memory(url))
        try:
            self._boards.describe(self._log, 15.0 if daemon else 3.0, self._look)
        except PeerTimeout:
            if not self.orders.is_ending:
                raise
        self._log.flush()
        if self._ready:
            self._say_ready()

    def _look(self) -> bool:
        """Whether the recording is to end."""
        was_ending = self.orders.is_ending
        for text in self.orders.look():
            self._log.note_once(text)
        if self.orders.is_ending and not was_ending:
            self._waited_ns = 0
            if not self.orders.is_complete:
                self._lives.voice.close()
        return self.orders.is_ending

    def run(self) -> None:
        """Record until told to stop, and then until every stream has reached that moment or nothing more comes.

        Raises `RunFileError` when the journal cannot take even the end of the run.
        """
        last_ns = now_ns()
        while not self.orders.is_abandoned:
            self._boards.ask()
            self._boards.wait(0 if not self.orders.commands.ended else None)
            self._look()
            step_ns = min(now_ns() - last_ns, _STEP_NS)
            last_ns = now_ns()
            self._ran_ns += step_ns
            self._waited_ns += step_ns
            if self._boards.receive(self._log, self.orders.stop_ns):
                self._waited_ns = 0
            self._boards.exchange_clocks(self._log)
            self._log.tail_marks()
            self._log.flush()
            self._mind_daemon()
            if not self._ready and (self._boards.flow() or self._ran_ns > _BEGIN_NS or self.orders.is_ending):
                self._begin()
            stop_ns = self.orders.stop_ns
            if stop_ns is not None:
                self._say_alive()
                has_all = self._boards.have_reached(stop_ns) and not self._log.is_failing
                if has_all or self._waited_ns > _DRAIN_NS:
                    self._end(stop_ns)
                    return

    def _end(self, stop_ns: int) -> None:
        for text in self._boards.silent(stop_ns):
            self._log.warn(text)
        self._boards.give_up(self._log)
        body = {"t_stop_ns": stop_ns, "complete": self.orders.is_complete, "reception": self._boards.summary()}
        self._log.end(Message("stop", body))

    def _begin(self) -> None:
        self._ready = True
        self._log.add(Message("start", {"t_start_ns": now_ns()}))
        self._log.flush()
        self._say_ready()

    def _say_ready(self) -> None:
        self._lives.shared.set_ready()
        say(ready=True, pid=os.getpid(), lines=self._boards.lines())

    def _say_alive(self) -> None:
        if now_ns() > self._alive_ns:
            self._alive_ns = now_ns() + _ALIVE_NS
            say(alive=True)

    def _mind_daemon(self) -> None:
        """With the guardian dead, its powerd ends too: then this process takes its place."""
        daemon = self._lives.daemon
        if daemon is None or self.orders.is_ending or os.getppid() == self._guardian:
            return
        if not self._adopted:
            self._adopted = True
            daemon.adopt()
        if (text := daemon.tend()) is not None:
            self._log.warn(text)

    def close(self) -> None:
        """Let go of sockets, of a powerd that was taken over, and of the journal's file (not of its lock)."""
        self._boards.close()
        if self._adopted and self._lives.daemon is not None:
            self._lives.daemon.stop()
        self._log.close()


def work(lives: Lives) -> int:
    """Record and build. The worker's exit status: 0 or 2 when all is done that can be; anything else, or an exception,
    when another worker should go on.
    """
    job = lives.job
    try:
        if lives.death and is_built(job.out, job.message["run_id"]):
            clear_away(job)
            say(done=True)
        elif _record(lives):
            build(job)
        else:  # nobody wants it; the parent removes it too, if nothing interrupts that
            shutil.rmtree(job.journal, ignore_errors=True)
    except RunFileError as error:
        say(error=str(error))
        return 2
    except (PowerdError, OSError) as error:
        if lives.shared.is_ready or getattr(error, "errno", None) == errno.ENOMEM:
            raise
        say(error=str(error))
        return 2
    return 0


def _record(lives: Lives) -> bool:
    """Whether there is something to build a run file from."""
    past = read_past(lives.job.journal) if lives.death else Past()
    if past.has_stop:
        return True
    worker = Worker(lives, past)
    try:
        worker.open()
        worker.run()
    finally:
        with contextlib.suppress(OSError):
            worker.close()
    return not worker.orders.is_abandoned
