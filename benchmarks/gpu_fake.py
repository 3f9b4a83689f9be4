"""A GPU, a training and a profiler that are not there, so that `bench_edges.py --dry-run` can run to its end.

The GPU is that of the tests (`support.fake_torch`); the profile is written from what it really did.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import HERE
from gpu_edges import PING

from powerd_client import Meter

sys.path.insert(0, str(HERE.parent / "tests"))
from support.fake_torch import FakeTorch, host_ns

CLOCK = "Fake GPU 0-"
STREAM = 7


class RecordingTorch(FakeTorch):
    """Keeps a trace of what it was asked for, dated by the wall clock."""

    def __init__(self) -> None:
        super().__init__()
        self.trace: list[dict[str, Any]] = []
        self._number = 0
        self._ahead_ns = time.time_ns() - host_ns()

    def record(self, event: Any, stream: Any) -> None:
        begin = host_ns()
        super().record(event, stream)
        self._call("cudaEventRecord", begin)
        if stream is not self.stream:
            self._call("cudaEventSynchronize", host_ns())

    def kernel(self, name: str, ms: float) -> None:
        """Queue one."""
        begin = host_ns()
        number = self._call("cudaLaunchKernel", begin)
        start = max(host_ns(), self.stream.busy_until_ns)
        self.stream.busy_until_ns = start + round(ms * 1e6)
        where = {"device": 0, "stream": STREAM, "correlation": number}
        self._add("kernel", name, start, self.stream.busy_until_ns, where)

    def synchronize(self) -> None:
        while host_ns() < self.stream.busy_until_ns:
            time.sleep(1e-5)

    def _call(self, name: str, begin: int) -> int:
        self._number += 1
        self._add("cuda_runtime", name, begin, host_ns(), {"correlation": self._number})
        return self._number

    def _add(self, kind: str, name: str, begin: int, end: int, args: dict[str, Any]) -> None:
        self.trace.append(
            {
                "ph": "X", "cat": kind, "name": name, "ts": (begin + self._ahead_ns) / 1e3, "dur": (end - begin) / 1e3,
                "pid": 1, "tid": threading.get_ident(), "args": args,
            }
        )  # fmt: skip


class FakeGpu:
    """What `bench_edges.Gpu` does, with the fake."""

    clock = CLOCK
    cases = (("fake", 1, False),)

    def __init__(self) -> None:
        self.torch = RecordingTorch()

    @contextmanager
    def meter(self, out: Path) -> Iterator[Meter]:
        real = sys.modules.get("torch")
        sys.modules["torch"] = self.torch  # type: ignore[assignment]
        try:
            meter = Meter(out=out)
        finally:
            if real is None:
                del sys.modules["torch"]
            else:
                sys.modules["torch"] = real
        with meter:
            yield meter

    @contextmanager
    def profile(self, path: Path) -> Iterator[None]:
        self.torch.trace.clear()
        yield
        base = 1_700_000_000_000_000_000
        events = [{**e, "ts": e["ts"] - base / 1e3} for e in self.torch.trace]
        path.write_text(json.dumps({"baseTimeNanoseconds": base, "traceEvents": events}))

    @contextmanager
    def training(self, meter: Meter, name: str, batch: int, layers: bool) -> Iterator[Any]:
        iteration, forward, backward = (meter.phase(p) for p in ("iteration", "forward", "backward"))

        def step() -> None:
            with iteration:
                for phase in (forward, backward):
                    with phase:
                        for _ in range(3):
                            self.torch.kernel("gemm", 0.5)

        yield step

    def ping(self) -> None:
        self.torch.kernel(f"at::native::{PING}(long)", 0.002)
        self.torch.synchronize()

    def wait(self) -> None:
        self.torch.synchronize()
