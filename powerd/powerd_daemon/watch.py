"""Whether another process still lives: powerd ends with the one that started it for itself."""

from __future__ import annotations

import os
import select
from contextlib import suppress

from powerd_core.errors import ConfigError


class ProcessWatch:
    """Watches process ``pid``, by a file descriptor where the kernel has them: a number may be given out again.

    Raises `ConfigError` when there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._was_parent = os.getppid() == pid
        self._poll: select.poll | None = None
        self._fd = -1
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise ConfigError(f"--parent-pid: there is no process {pid}") from None
        except (OSError, OverflowError):
            if not self._answers():
                raise ConfigError(f"--parent-pid: there is no process {pid}") from None
        else:
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)

    def is_gone(self) -> bool:
        if self._was_parent and os.getppid() != self._pid:
            return True
        # A descriptor also tells of a process that ended and was not waited for.
        return bool(self._poll.poll(0)) if self._poll else not self._answers()

    def close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _answers(self) -> bool:
        try:
            os.kill(self._pid, 0)
        except PermissionError:
            return True
        except (OSError, OverflowError):
            return False
        return self._pid > 0
