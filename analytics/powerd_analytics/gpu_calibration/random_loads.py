"""Random loads on an idle GPU, recorded, and what a run of them tells: `powerd identify` and `powerd calibrate gpu0`.

Nothing is set on the GPU. Edges of loads are CUDA events on its own timeline, which wait for nothing.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from powerd_analytics.gpu_calibration.identification import Loads, fit
from powerd_analytics.runs.run import Run, read_run
from powerd_analytics.runs.signals import load_signal
from powerd_client import Meter
from powerd_client.host.visible_gpus import list_gpus
from powerd_core.calibration import GpuResponse
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.model import uuid_key
from powerd_core.text import needs_extra

KINDS = ("products", "copies", "waits")
FIELDS = ("nvml_samples", "nvml")
SHORTEST_MS, LONGEST_MS = 2.5, 90.0
QUEUED = 4
"""Loads that are queued ahead of the GPU: none begins late, and Ctrl-C ends them within a third of a second."""
BUSY_LOOKS, BUSY_PERCENT = 10, 5
WARM_S = 3.0
"""Before the loads, in which clocks rise and power comes to its level."""


def identify(gpu: str, seconds: float, run: Path | None) -> list[GpuResponse]:
    """The responses of a GPU's lines, from loads that run now, or from a recording of such. Raises `PowerdError`."""
    if run is not None:
        return responses(read_run(run), gpu)
    if not seconds >= 20:
        raise ConfigError("--seconds: at least 20, of which a time constant comes out to 0.1 ms or so")
    with tempfile.TemporaryDirectory(prefix="powerd-identify-") as directory:
        path = Path(directory) / "loads.h5"
        record(gpu, path, seconds, (SHORTEST_MS, LONGEST_MS))
        return responses(read_run(path), gpu)


def responses(run: Run, gpu: str) -> list[GpuResponse]:
    """What the random loads of a run tell of each line that shows the GPU's power. Raises `AnalysisError`."""
    label = {i: KINDS.index(c.name) for i, c in enumerate(run.phases.classes) if c.name in KINDS}
    some = run.phases.of(list(label))
    if len(set(label.values())) < len(KINDS) or not some.any():
        raise AnalysisError(f"{run.path} is no recording of random loads: it lacks phases called {', '.join(KINDS)}")
    origin_ns = int(run.phases.begin_ns[some][0])
    kinds = np.array([label[int(i)] for i in run.phases.label[some]])
    times = (run.phases.begin_ns[some], run.phases.end_ns[some])
    begin_s, end_s = (np.asarray((x - origin_ns) * 1e-9, np.float64) for x in times)
    found = []
    for field in FIELDS:
        detail = run.lines[name].detail if (name := f"{gpu}.{field}") in run.lines else {}
        if (known := detail.get("calibration", {}).get(name)) is None:
            continue
        signal = load_signal(run, name)
        t_s = np.asarray((signal.t_ns - origin_ns) * 1e-9, np.float64)
        result = fit(Loads(begin_s, end_s, kinds, t_s, signal.value))
        response, at_ms = result.response, 1e3
        # Timestamps are instants less what was taken for the centre's age when the run was recorded.
        age_ms = int(known["age_ns"]) * 1e-6 - response.shift_s * at_ms
        found.append(
            GpuResponse(
                uuid=str(detail.get("uuid")),
                driver=str(detail.get("driver_version")),
                field=field,  # type: ignore[arg-type]
                family=result.family,
                tau_ms=response.tau_s * at_ms,
                u95_tau_ms=result.u95_tau_s * at_ms,
                window_ms=response.window_s * at_ms,
                u95_window_ms=result.u95_window_s * at_ms,
                age_ms=age_ms,
                u95_age_ms=result.u95_shift_s * at_ms,
                delay_ms=age_ms - (response.tau_s + response.window_s / 2) * at_ms,
                u95_delay_ms=result.u95_delay_s * at_ms,
                residual_w=result.residual_w,
                taken=str(run.attributes.get("created_utc", ""))[:19] + "Z",
            )
        )
    if not found:
        raise AnalysisError(f"{run.path} has no line {' or '.join(f'{gpu}.{field}' for field in FIELDS)}")
    return found


def record(
    gpu: str, path: Path, seconds: float, lengths_ms: tuple[float, float], url: Sequence[str] | None = None
) -> None:
    """Write a run of random loads, with lengths evenly spread over their logarithm. Raises `PowerdError`."""
    torch = _torch_on(gpu)
    pieces = _pieces(torch)
    ms = {name: _ms_of(torch, piece) for name, piece in pieces.items()}
    _run_for(torch, pieces, ms, WARM_S, lengths_ms, lambda name: None, "warming up")
    with Meter(url, path, device="cuda", quiet=True) as meter:
        _run_for(torch, pieces, ms, seconds, lengths_ms, meter.phase, "random loads")
        time.sleep(0.5)  # readings behind the last load


def _torch_on(gpu: str) -> Any:
    """PyTorch, working on this GPU, which is idle. Raises `ConfigError`."""
    try:
        import torch
    except ImportError:
        raise ConfigError(f"loads on {gpu} need PyTorch with CUDA: {needs_extra('torch')}") from None
    if not torch.cuda.is_available():
        raise ConfigError(f"PyTorch {torch.__version__} sees no GPU here: random loads need CUDA")
    import pynvml

    try:
        gpus = list_gpus()
        index = int(gpu.removeprefix("gpu"))
        uuid = uuid_key(gpus[index]["uuid"])
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        busy = 0
        for _ in range(BUSY_LOOKS):
            busy = max(busy, int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
            time.sleep(0.1)
    except (ValueError, IndexError):
        known = ", ".join(f"gpu{i}" for i in range(len(gpus))) or "none"
        raise ConfigError(f"there is no {gpu!r} here: the driver knows {known}") from None
    except pynvml.NVMLError as error:
        raise ConfigError(f"NVML does not tell of {gpu}: {error}") from None
    if busy > BUSY_PERCENT:
        raise ConfigError(f"{gpu} is busy ({busy} %): wait until nothing else runs on it")
    for number in range(torch.cuda.device_count()):
        if uuid_key(str(torch.cuda.get_device_properties(number).uuid)) == uuid:
            torch.cuda.set_device(number)
            return torch
    raise ConfigError(f"PyTorch may not use {gpu}: look at CUDA_VISIBLE_DEVICES")


def _pieces(torch: Any) -> dict[str, Callable[[], object]]:
    """Short kernels of each load. Products stay in fp32, whose power most GPUs stand without lowering their clocks."""
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
    product, source = torch.empty_like(a), torch.randn(1 << 25, device="cuda")
    target = torch.empty_like(source)
    work = (lambda: torch.mm(a, b, out=product), lambda: target.copy_(source), lambda: torch.cuda._sleep(400_000))
    return dict(zip(KINDS, work, strict=True))


def _ms_of(torch: Any, piece: Callable[[], object]) -> float:
    count = 1000
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for event in (begin, end):
        event.record()
        for _ in range(count if event is begin else 0):
            piece()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / count


def _run_for(
    torch: Any,
    pieces: dict[str, Callable[[], object]],
    ms: dict[str, float],
    seconds: float,
    lengths_ms: tuple[float, float],
    phase: Callable[[str], Any],
    text: str,
) -> None:
    """Queue loads, never the same one twice in a row, each in a phase, under a progress bar."""
    from contextlib import nullcontext

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    shortest, longest = lengths_ms
    last, ahead, chance = "", deque[Any](), random.Random()
    begin_s = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=seconds)
        try:
            while (passed_s := time.monotonic() - begin_s) < seconds:
                bar.update(task, completed=passed_s)
                last = chance.choice([name for name in pieces if name != last])
                length_ms = shortest * (longest / shortest) ** chance.random()
                with phase(last) or nullcontext():
                    for _ in range(max(1, round(length_ms / ms[last]))):
                        pieces[last]()
                ahead.append(torch.cuda.Event())
                ahead[-1].record()
                if len(ahead) > QUEUED:
                    ahead.popleft().synchronize()
        finally:
            torch.cuda.synchronize()
