"""The recorder: a process beside the training that receives, journals, and at the end writes the run file.

It is started by `powerd_client.recording` with a JSON object on its standard input, answers with JSON objects on its
standard output, one a line, and ends when it is told to stop or when its parent is gone.

It is two processes. The guardian, here, forks the worker (`powerd_client.worker`), which does everything, and another
one when it dies. The guardian holds the journal's lock, which its workers share, and the local powerd, which must
outlive them. It needs the standard library only, so that there is little in it that could fail, and its workers start
at once.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import sys
import time
import traceback

from powerd_client import journal as journals
from powerd_client.job import (
    WINDOW_S,
    Attempts,
    Job,
    TrainerWatch,
    UserHandler,
    log,
    manner_of_death,
    read_job,
    say,
)
from powerd_client.local import LocalDaemon, best_source
from powerd_core.errors import PowerdError

_ORDERLY = (0, 2)
"""Exit statuses of a worker behind which there is nothing more to do."""
_LOOK_S = 0.5


class Guardian:
    """Forks workers until one of them has ended in order. Raises `RunFileError`, `OSError` or `PeerError` at once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.daemon: LocalDaemon | None = None
        self._lock = journals.lock(job.journal)
        self._user = UserHandler(job.stderr)
        log.addHandler(self._user)
        log.propagate = False
        # In memory that outlives each worker: 1 when the recording has begun.
        self._ready = mmap.mmap(-1, 1)
        self._terminations: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: self._terminations.append(number))
        self._trainer = TrainerWatch(job.parent_pid)
        self._attempts = Attempts()
        self._worker = 0
        self._fork_s: float | None = None
        self._death: str | None = None
        # A signal wakes the select below: what its handlers write into this pipe cannot be missed.
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> int:
        """The exit status: that of the last worker, or 1 when too many have died."""
        if not self.job.urls:
            source = self.job.source or best_source(self.job.trainer_pid)
            self.daemon = LocalDaemon(source, self.job.journal / "powerd.log")
            self.daemon.start()
        self._fork()
        forwarded = False
        while True:
            if (status := self._ended()) is not None:
                if status in _ORDERLY:
                    return status
                if not self._try_again(status):
                    return 1
            self._mind_daemon()
            if self._fork_s is not None and time.monotonic() >= self._fork_s:
                self._fork()
            if self._terminations and not forwarded and self._worker:
                forwarded = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._worker, signal.SIGTERM)
            if self._trainer.is_gone():
                self._user.close()
            self._wait()

    def _wait(self) -> None:
        pause = _LOOK_S if self._fork_s is None else max(min(_LOOK_S, self._fork_s - time.monotonic()), 0)
        if select.select([self._wake], [], [], pause)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)

    def _ended(self) -> int | None:
        """The worker's exit status (negative: a signal) when it has just ended."""
        if not self._worker:
            return None
        pid, status = os.waitpid(self._worker, os.WNOHANG)
        if not pid:
            return None
        self._worker = 0
        return os.waitstatus_to_exitcode(status)

    def _try_again(self, status: int) -> bool:
        died = manner_of_death(status)
        pause = self._attempts.pause(time.monotonic())
        if pause is None:
            log.warning(
                f"the recorder {died} again and again within {WINDOW_S:g} s and is given up: the training goes on, "
                f"what was recorded is kept; the reason may be in {self.job.journal / 'recorder.log'}"
            )
            return False
        if self._death is None:
            log.warning(f"the recorder {died} and is started again; powerd holds the readings meanwhile")
        self._death = died
        self._fork_s = time.monotonic() + pause
        return True

    def _mind_daemon(self) -> None:
        if self.daemon is None:
            return
        if not self._ready[0]:
            self.daemon.check()  # one that cannot even start is an error of the start
        elif not self._trainer.is_gone() and (text := self.daemon.tend()) is not None:
            log.warning(text)

    def _fork(self) -> None:
        self._fork_s = None
        try:
            pid = os.fork()
        except OSError as error:
            if not self._try_again(error.errno or 1):
                raise
            return
        if pid == 0:
            self._be_worker()
        self._worker = pid

    def _be_worker(self) -> None:
        """The forked child's life, which ends here."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if self._death:
                say(restarted=True, pid=os.getpid())
            from powerd_client.worker import WorkerContext, work  # zmq: not in the guardian

            status = work(
                WorkerContext(
                    self.job, self._user, self._ready, self._terminations, self._trainer, self.daemon, self._death
                )
            )
        except BaseException:  # noqa: BLE001  (whatever it is, nothing of the guardian's must run in this process)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def close(self) -> None:
        """End what lives longer than a worker."""
        if self._worker:
            with contextlib.suppress(OSError):
                os.kill(self._worker, signal.SIGKILL)
                os.waitpid(self._worker, 0)
        if self.daemon is not None:
            self.daemon.stop()


def main() -> int:
    """Entry of the recorder process: record in workers until the run is done; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = read_job()
    if job is None:
        return 2
    guardian = None
    try:
        guardian = Guardian(job)
        return guardian.run()
    except PowerdError as error:
        say(error=str(error))
        return 2
    except OSError as error:
        say(error=f"the recorder cannot begin: {error.strerror or error}")
        return 2
    finally:
        if guardian is not None:
            guardian.close()


if __name__ == "__main__":
    sys.exit(main())
