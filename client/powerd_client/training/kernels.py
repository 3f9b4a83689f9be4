"""`Meter.record_kernels`: the names of the kernels that a step of a training runs, by torch's profiler.

Two trainings of one network may run other kernels: at another batch size, precision or algorithm, on another card, with
another release of cuDNN. Their joules then differ for that reason too, and the run has to say so.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from powerd_core.errors import ConfigError

KERNELS = "kernels"
"""The name of the event."""
LONGEST = 200
"""Characters of a kernel's name in the run: those of templates have thousands, and an event has room for 64 KiB."""
MOST = 200
"""Names in the run: of more, the most frequent."""
_COPIES = ("Memcpy", "Memset")
_ENGINE = ("autograd::", "torch::")
"""What the names begin with that the profiler gives to parts of a backward pass, which are no operators."""


def check_record(step: object, iterations: object) -> None:
    """Raises `ConfigError` for arguments that `Meter.record_kernels` does not take."""
    if not callable(step):
        raise ConfigError("record_kernels() wants a function without arguments that trains one batch")
    if not isinstance(iterations, int) or iterations < 1:
        raise ConfigError(f"record_kernels(iterations={iterations!r}): give a whole number, 1 or more")


def profiled(step: Callable[[], object], iterations: int) -> tuple[dict[str, object], str]:
    """Call ``step`` so often under the profiler: the values of the event, or why there are none.

    On a GPU the names are those of the GPU's kernels, without copies; elsewhere those of torch's operators, the ones
    that call others included. Raises what ``step`` raises.
    """
    is_on_gpu = torch.cuda.is_available()
    device = "CUDA" if is_on_gpu else "CPU"
    failures: list[str] = []
    with _kept(failures):
        profiler: Any = profile(activities=[getattr(ProfilerActivity, device)])
        profiler.start()
    has_begun = not failures
    try:
        for _ in range(iterations):
            step()
        if is_on_gpu:
            torch.cuda.synchronize()
    finally:
        if has_begun:
            with _kept(failures):
                profiler.stop()
    counts: Counter[str] = Counter()
    if not failures:
        with _kept(failures):
            # On a GPU the calls of its driver come too, as events of the processor.
            counts.update(event.name for event in profiler.events() if event.device_type.name == device)
    if failures:
        return {}, failures[0]
    return event_of("gpu" if is_on_gpu else "cpu", counts, iterations), ""


@contextlib.contextmanager
def _kept(failures: list[str]) -> Iterator[None]:
    """The profiler's own errors, such as that another one is at work, end no training. Its warnings are of cycles that
    it does not have here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # noqa: BLE001  (torch's, CUPTI's)
        failures.append(" ".join(f"{type(error).__name__}: {error}".split()))


def event_of(where: str, counts: Mapping[str, int], iterations: int) -> dict[str, object]:
    """The values of the event: ``digest`` is of all names in full, whatever their counts."""
    if where == "gpu":
        own = {name: count for name, count in counts.items() if not name.startswith(_COPIES)}
    else:
        own = {name: count for name, count in counts.items() if "::" in name and not name.startswith(_ENGINE)}
    shown: Counter[str] = Counter()
    for name, count in own.items():
        shown[_short(name)] += count
    return {
        "where": where,
        "iterations": iterations,
        "digest": hashlib.sha256("\n".join(sorted(own)).encode()).hexdigest()[:12],
        "distinct": len(own),
        "names": dict(sorted(shown.most_common(MOST))),
    }


def _short(name: str) -> str:
    """A kernel's name without the types that it returns and takes."""
    name = re.sub(r"^void ", "", re.sub(r"\([^()]*\)$", "", name))
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
