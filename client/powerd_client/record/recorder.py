"""The recorder: a process beside the training that receives, journals, and at the end writes the run file.

It is started by `powerd_client.record.recording` with its job (`powerd_client.journals.job`), and ends when it is told
to stop or when its parent is gone. Marks that are made while no worker lives wait in the journal's segments
(`powerd_client.journals.marks`).

It is two processes. The guardian, here, forks the worker (`powerd_client.record.worker`), which does everything, and
another one when it dies. The guardian inherits the journal's lock, which its workers share, and holds the local powerd
of a run that names none, which must outlive them. This module needs the standard library only, so that there is little
in the guardian that could fail, and its workers start at once.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import time
import traceback

from powerd_client.host.local_powerd import WINDOW_S, Attempts, LocalDaemon, local_sources, manner_of_death
from powerd_client.host.readiness import is_readable
from powerd_client.journals.job import Inherited, Job, TrainerWatch, UserHandler, log, read_job, say, take_stderr
from powerd_core.errors import PowerdError

_ORDERLY = (0, 2)
"""Exit statuses of a worker behind which there is nothing more to do."""
_LOOK_S = 0.5


class Guardian:
    """Forks workers until one of them has ended in order. Raises `OSError` or `PeerError` at once."""

    def __init__(self, job: Job) -> None:
        user = UserHandler(take_stderr(job.journal / "recorder.log"))
        self.kept = Inherited(job, user, TrainerWatch(job.parent_pid), mmap.mmap(-1, 1), job.death)
        self.kept.ready[0] = job.death is not None
        self._attempts = Attempts()
        self._worker = 0
        self._fork_s: float | None = None
        """When to fork the next worker."""
        log.addHandler(user)
        log.propagate = False
        # A signal wakes the select below: what its handlers write into this pipe cannot be missed.
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda number, _: self.kept.terminations.append(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> int:
        """The exit status: that of the last worker, or 1 when too many have died."""
        if not self.kept.job.urls:
            if self.kept.job.source is None:
                sources, self.kept.notes = local_sources(self.kept.job.trainer_pid)
            else:
                sources = [self.kept.job.source]
            self.kept.daemon = LocalDaemon(sources, self.kept.job.journal / "powerd.log")
            self.kept.daemon.start()
        self._fork()
        was_told = False
        while True:
            if (status := self._ended()) is not None:
                if status in _ORDERLY:
                    return status
                if not self._try_again(status):
                    return 1
            self._mind_daemon()
            if self._fork_s is not None and time.monotonic() >= self._fork_s:
                self._fork()
            if self.kept.terminations and not was_told and self._worker:
                was_told = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._worker, signal.SIGTERM)
            if self.kept.trainer.is_gone():
                self.kept.user.let_go()
            pause = _LOOK_S if self._fork_s is None else max(min(_LOOK_S, self._fork_s - time.monotonic()), 0)
            if is_readable(self._wake, pause):
                os.read(self._wake, 4096)

    def _ended(self) -> int | None:
        """The worker's exit status (negative: a signal) when it has just ended."""
        pid, status = os.waitpid(self._worker, os.WNOHANG) if self._worker else (0, 0)
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
                f"what was recorded is kept; the reason may be in {self.kept.job.journal / 'recorder.log'}"
            )
            return False
        if self.kept.death is None:
            log.warning(f"the recorder {died} and is started again; powerd holds the readings meanwhile")
        self.kept.death = died
        self._fork_s = time.monotonic() + pause
        return True

    def _mind_daemon(self) -> None:
        if self.kept.daemon is None:
            return
        if not self.kept.ready[0]:
            self.kept.daemon.check()  # one that cannot even start is an error of the start
        elif not self.kept.trainer.is_gone() and (text := self.kept.daemon.tend()) is not None:
            log.warning(text)

    def _fork(self) -> None:
        self._fork_s = None
        try:
            self._worker = os.fork()
        except OSError as error:
            if not self._try_again(error.errno or 1):
                raise
            return
        if self._worker == 0:
            self._be_worker()

    def _be_worker(self) -> None:
        """The forked child's life, which ends here."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if self.kept.death:
                say(restarted=True, pid=os.getpid())
            from powerd_client.record.worker import work  # zmq: not in the guardian

            status = work(self.kept)
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
        if self.kept.daemon is not None:
            self.kept.daemon.stop()


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
    except (PowerdError, OSError) as error:
        say(error=str(error) if isinstance(error, PowerdError) else f"the recorder cannot begin: {error}")
        return 2
    finally:
        if guardian is not None:
            guardian.close()


if __name__ == "__main__":
    sys.exit(main())
