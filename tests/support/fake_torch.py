"""As much of torch as `powerd_client.journals.device_timing` uses: streams, events, and a GPU that runs behind the
host.

The device's clock has its own origin and rate. Work is queued on a stream for as long as `work` says; an event on the
stream is passed when what was queued before it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def host_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class FakeStream:
    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.busy_until_ns = 0


class FakeEvent:
    rate = 1 + 20e-6
    """Device time runs so much faster than the host's."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.t_host_ns = 0
        """When the device passes it, in host time: the truth."""

    def record(self, stream: FakeStream) -> None:
        self.t_host_ns = max(host_ns(), stream.busy_until_ns)

    def query(self) -> bool:
        return host_ns() >= self.t_host_ns

    def synchronize(self) -> None:
        while not self.query():
            time.sleep(1e-4)

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.t_host_ns - self.t_host_ns) * self.rate / 1e6


class FakeTorch:
    """Stands for the module. ``fail`` is raised by the next event that is recorded."""

    def __init__(self) -> None:
        self.stream = FakeStream()
        self.events: list[FakeEvent] = []
        """Those recorded on the training's stream, in order."""
        self.passed_ns: list[int] = []
        self.capturing = False
        self.fail: Exception | None = None
        self._C = _Internals(self)
        self.cuda = _Cuda(self)

    def work(self, ms: float) -> None:
        """Queue work, and return at once."""
        self.stream.busy_until_ns = max(host_ns(), self.stream.busy_until_ns) + round(ms * 1e6)

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        if self.fail is not None:
            raise self.fail
        event.record(stream)
        if stream is self.stream:
            self.passed_ns.append(event.t_host_ns)


class _Internals:
    def __init__(self, torch: FakeTorch) -> None:
        self._cuda_getDevice: Callable[[], int] = lambda: 0
        self._cuda_getCurrentRawStream: Callable[[int], int] = lambda device: 17
        self._cuda_isCurrentStreamCapturing: Callable[[], bool] = lambda: torch.capturing
        self._CudaEventBase = type("_CudaEventBase", (), {"record": staticmethod(torch.record)})


class _Properties:
    name = "Fake GPU"
    uuid = "1234"


class _Cuda:
    Event = FakeEvent

    def __init__(self, torch: FakeTorch) -> None:
        self.is_available = lambda: True
        self.Stream = FakeStream
        self.current_stream = lambda device: torch.stream
        self.get_device_properties = lambda device: _Properties
