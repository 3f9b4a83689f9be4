"""A powerd that measures by itself, and waiting for what it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zmq

from support.fake_daemon import PERIOD_NS, FakeDaemon

READINGS = 20


@contextmanager
def steady_daemon(
    milliwatts: Sequence[int] = (1500,) * READINGS, paused: threading.Event | None = None
) -> Iterator[FakeDaemon]:
    """Adds a block of 20 readings a line every 20 ms, unless ``paused``, and forgets none; its clock is 7 s behind."""
    context = zmq.Context()
    made = FakeDaemon(context, offset_ns=-7_000_000_000)
    stop = threading.Event()

    def produce() -> None:
        t = made.now_ns()
        while not stop.wait(max(0.0, (t - made.now_ns()) * 1e-9)):
            if paused is None or not paused.is_set():
                made.add_block(list(milliwatts), t - READINGS * PERIOD_NS)
            t += READINGS * PERIOD_NS

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield made
    finally:
        stop.set()
        thread.join()
        made.close()
        context.destroy(linger=0)


def wait_for(condition: Callable[[], Any], timeout_s: float = 60) -> Any:
    """What ``condition`` says as soon as it says something."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found
