"""Whether a descriptor can be read or written now, by poll: select knows no descriptor above 1,023, and a training may
hold thousands."""

from __future__ import annotations

import select


def is_readable(descriptor: int, timeout_s: float = 0.0) -> bool:
    """Whether something can be read within the time, its end included."""
    return _is_ready(descriptor, select.POLLIN, timeout_s)


def is_writable(descriptor: int, timeout_s: float = 0.0) -> bool:
    """Whether something can be written within the time, or would fail at once."""
    return _is_ready(descriptor, select.POLLOUT, timeout_s)


def _is_ready(descriptor: int, event: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, timeout_s) * 1e3))
