"""Small campaigns of run files for tests: trainings on products of a chosen appetite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from make_run import MS, LineSpec, Training, make_run, training

from powerd_analytics.campaign_views.campaign_figures import Campaign
from powerd_analytics.campaigns.campaign_file import design_of
from powerd_analytics.campaigns.design import KNOBS, Item
from powerd_analytics.campaigns.journal import Journal, Result, read_history, total_row
from powerd_analytics.campaigns.runner import Blocks, Runner, begin
from powerd_analytics.campaigns.simulated import Simulated
from powerd_core.lease import Range

IDS = iter(range(10**9))


def result(energy_j: float, time_s: float, **more) -> Result:
    """Of a run that took so much, and says nothing else."""
    return Result((total_row(energy_j, time_s),), **more)


def simulated_campaign(folder: Path, **tables):
    """Design and history of a campaign on a simulated card: two batch sizes, each at three caps, with phases, results,
    kernels and operations."""
    row = {
        "phases": {"forward": [2.0, 0.1], "backward": [6.0, 0.3]}, "operations_per_sample": 1e9,
        "operations_executed_per_sample": 6e9, "results": {"top1": 0.9}, "kernels": ["gemm"],
    }  # fmt: skip
    document = {
        "campaign": {"name": "c", "command": ["train", "{batch_size}"]},
        "factors": {"batch_size": [64, 128], "power_cap_w": [120.0, 160.0, 260.0]},
        "work": {"images": 1280}, "order": {"reference": {"batch_size": 64, "power_cap_w": 260.0}},
        "repeats": {"min": 2}, "simulation": {"noise": 0.01, "rows": [row]},
    }  # fmt: skip
    design = design_of(document | tables)
    with Journal(folder, is_synced=False) as journal:
        executor = Simulated.named(design, "sim:rtx6000")
        design = begin(design, executor, journal)
        Runner(design, Blocks(design), executor, journal).run()
    return design, read_history(folder)


@dataclass(frozen=True)
class _Told:
    """An executor whose runs take what they are told."""

    of_cell: Callable[[Mapping[str, Any], int], Result]

    def ranges(self) -> dict[str, Range]:
        return dict.fromkeys(KNOBS, Range(1, 10_000, 250))

    def run(self, item: Item, attempt: int, file: Path) -> Result:
        return self.of_cell(item.cell.levels, item.block)


def campaign_of(folder: Path, tables: Mapping[str, Any], of_cell: Callable[[Mapping[str, Any], int], Result]):
    """A campaign of two repeats whose runs are ``of_cell(levels, block)``."""
    words = [f"{{{name}}}" for name in tables["factors"]]
    document = {"campaign": {"name": "c", "command": ["train", *words]}, "repeats": {"min": 2}} | dict(tables)
    design, executor = design_of(document), _Told(of_cell)
    with Journal(folder, is_synced=False) as journal:
        design = begin(design, executor, journal)
        Runner(design, Blocks(design), executor, journal).run()
    return Campaign(design, read_history(folder))


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
