"""Small campaigns of run files for tests: trainings on products of a chosen appetite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from make_run import MS, LineSpec, Training, make_run, training

IDS = iter(range(10**9))


def with_attributes(tr: Training, **attributes) -> Training:
    """The same with further attributes of its trainings."""
    tr.phases = [replace(p, attributes={**p.attributes, **attributes}) if p.parent < 0 else p for p in tr.phases]
    return tr


def one_run(
    path: Path,
    scale: float = 1.0,
    batches=(64,),
    iterations: int = 12,
    gpus: int = 1,
    accuracy=None,
    provenance: str = "simulated",
    noise_w: float = 0.0,
    seed: int = 0,
    lines=(),
    model: str = "AlexNet",
    **attributes,
) -> Path:
    """A run whose ``gpus`` devices each take ``scale`` / ``gpus`` of the training's power."""
    tr = with_attributes(training(batches, iterations, model=model), **attributes)
    if gpus > 1:
        with_attributes(tr, gpus=gpus)
    rng = np.random.default_rng(seed)

    def power(t):
        # One offset for each stretch of 50 ms: iterations differ, readings of one do not.
        drawn = (
            rng.normal(0, noise_w, int(t[-1] // (50 * MS)) + 1) if noise_w else np.zeros(int(t[-1] // (50 * MS)) + 1)
        )
        return tr.power(scale / gpus)(t) + drawn[t // (50 * MS)]

    specs = [
        LineSpec(f"gpu{i}.a", power, f"gpu{i}", provenance, accuracy=accuracy or {}) for i in range(gpus)
    ]  # fmt: skip
    feeds = {f"gpu{i}": [f"gpu{i}.a"] for i in range(gpus)}
    return make_run(path, [*specs, *lines], tr.phases, feeds, end_ns=tr.end_ns, run_id=f"id{next(IDS)}")
