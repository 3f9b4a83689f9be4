"""Real-time priority and locked memory for a sampler: a deadline then waits for no other process and no page."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress

MCL_CURRENT, MCL_FUTURE = 1, 2
PR_SET_TIMERSLACK = 29


def _lock_memory() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _set_priority(priority: int) -> None:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))


def sharpen_timers() -> None:
    """Let this process's sleeps end within a microsecond of their time, not the 50 us that Linux allows itself."""
    # Where that does not exist, sleeps are as they were.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)


def make_realtime(
    priority: int,
    lock_memory: bool,
    *,
    set_priority: Callable[[int], None] = _set_priority,
    lock: Callable[[], None] = _lock_memory,
) -> list[str]:
    """SCHED_FIFO at ``priority`` (0 leaves the scheduling alone) and locked memory, for this process.

    Returns what was not permitted, each as one line with the remedy: readings without it are later, not wrong.
    """
    refused = []
    if priority:
        try:
            set_priority(priority)
        except OSError as error:
            refused.append(
                f"priority = {priority} is not permitted ({error.strerror}): give powerd CAP_SYS_NICE or "
                f"LimitRTPRIO={priority} in its systemd unit"
            )
    if lock_memory:
        try:
            lock()
        except OSError as error:
            refused.append(
                f"lock_memory is not permitted ({error.strerror}): give powerd CAP_IPC_LOCK or LimitMEMLOCK=infinity"
            )
    return refused
