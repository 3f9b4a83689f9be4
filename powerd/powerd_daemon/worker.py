"""A thread for what may stall: jobs go in, and nobody waits for them."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

Job = Callable[[], None]


class Worker(Protocol):
    """Does jobs one after the other."""

    @property
    def pending(self) -> int:
        """Jobs that are not done yet."""
        ...

    def put(self, job: Job) -> None: ...

    def close(self, patience_s: float) -> None:
        """Do what is pending and end; leave it behind if that takes longer."""
        ...


class Thread:
    """A `Worker` of its own thread, which never keeps the process from ending."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # Each counter has one writer, so no lock is needed for their difference.
        self._put = self._done = 0
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        return self._put - self._done

    def put(self, job: Job) -> None:
        self._put += 1
        self._jobs.put(job)

    def close(self, patience_s: float) -> None:
        self._jobs.put(None)
        self._thread.join(patience_s)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # noqa: BLE001
                # A fault of ours: whoever mends it needs the traceback, and all other jobs are still to be done.
                traceback.print_exc()
            finally:
                self._done += 1
