"""`Meter.magnify` on a real GPU, against blocks of seconds of the same phase alone.

ResNet-34 at three batch sizes: a training whose phases are too short for the driver's readings, with one call of
`magnify` half-way; before and after it each phase alone for seconds, by code of this script, whose power any sensor can
tell. The mean of the two powers times the phase's duration in the training is what the phase should take, as the power
of the same work changes within the half minute between them. All come from the same readings, so
the sensor's gain cancels.

Needs CUDA. Target: every phase of 5 ms and more within 2 % of its block, and the sum of the repeated phases within 2 %
of the iteration. A block in which the GPU waits for the host, so that a repetition takes longer than the phase, is no
truth. For forward bursts take its place then, of so few repetitions behind so many backward passes that the host is
ahead of them; where these wait too, forward is not judged. Exit status 1 when one is missed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from trainings.case import Case
from trainings.training import PHASES, WARM_UP_S, Training, say

from powerd_analytics import phase_table, read_run
from powerd_analytics.energy.devices import load_parts, part_phase_energies
from powerd_analytics.runs.run import Run
from powerd_client import Meter

LEAST_S, TARGET, WAITS = 5e-3, 0.02, 1.05
BURST, BEFORE = 8, 8
"""Repetitions of forward in a burst, and backward passes before it."""
ENDS = ("before", "after")


def train(meter: Meter, training: Training, seconds: float) -> None:
    """Ordinary iterations for so long; gradients are forgotten between two of them."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        with meter.phase("iteration", batch_size=training.batch):
            with meter.phase("forward"):
                loss = training.loss()
            with meter.phase("backward"):
                loss.backward()
            with meter.phase("update"):
                training.optimizer.step()
            training.optimizer.zero_grad(set_to_none=True)
        del loss
    torch.cuda.synchronize()


def blocks(meter: Meter, training: Training, at: str, seconds: float) -> dict[str, float]:
    """Milliseconds of a repetition of each phase alone, in random order. Weights stay as they are."""
    ms: dict[str, float] = {}
    rates = [group["lr"] for group in training.optimizer.param_groups]

    kept = [training.loss()]

    def backward() -> None:
        training.optimizer.zero_grad(set_to_none=True)
        kept[0].backward(retain_graph=True)

    for group in training.optimizer.param_groups:
        group["lr"] = 0.0
    work: dict[str, Callable[[], object]] = {
        "forward": training.loss, "backward": backward, "update": training.optimizer.step,
    }  # fmt: skip
    for name in random.sample(PHASES, len(PHASES)):
        kept[:] = [training.loss()]  # updates end the graph before
        backward()
        for part, length in (("settling", 0.5), ("block", seconds)):
            begin, count, queued = time.perf_counter(), 0, []
            with meter.phase(part, of=name, at=at):
                while time.perf_counter() - begin < length:
                    work[name]()
                    count += 1
                    event = torch.cuda.Event()
                    event.record()
                    queued.append(event)
                    if len(queued) > 3:
                        queued.pop(0).synchronize()
            torch.cuda.synchronize()
            ms[name] = 1e3 * (time.perf_counter() - begin) / count
    kept[:] = [training.loss()]
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(BEFORE):
            backward()
        with meter.phase("burst", of="forward", at=at):
            for _ in range(BURST):
                training.loss()
    torch.cuda.synchronize()
    for group, rate in zip(training.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    training.optimizer.zero_grad(set_to_none=True)
    return ms


def measure(path: Path, batch: int, args: argparse.Namespace) -> dict[str, float]:
    """Write a run file; milliseconds of each phase alone."""
    training = Training("resnet34", batch, torch.device("cuda"))
    training.warm_up(WARM_UP_S)
    with Meter(out=path, overwrite=True, quiet=True) as meter:
        ms = blocks(meter, training, ENDS[0], args.block)
        train(meter, training, args.seconds)
        begin = time.perf_counter()
        meter.magnify(training.model, training.optimizer, loss=training.loss)
        took_s = time.perf_counter() - begin
        train(meter, training, args.seconds)
        for name, after_ms in blocks(meter, training, ENDS[1], args.block).items():
            ms[name] = max(ms[name], after_ms)
        time.sleep(0.5)  # readings behind the last moment that is asked for
    say(f"  batch {batch}: magnify() took {took_s:.1f} s")
    return ms


def mean_interleaved(run: Run, name: str) -> float:
    """Joules of a kind of phase without its repetitions, NaN where the readings do not tell them."""
    part = next(p for p in load_parts(run) if p.device.startswith("gpu"))
    of_name = run.phases.of([i for i, c in enumerate(run.phases.classes) if c.name == name]) & ~run.phases.cut
    return float(np.mean(part_phase_energies(run, part).energy_j[of_name]))


def judge_one(path: Path, alone_ms: dict[str, float]) -> bool:
    """Print the figures of a run; whether all that count are within the target."""
    run = read_run(path)
    rows = [row for row in phase_table(run).phases if row.device.startswith("gpu")]
    block_w: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.phase == "block" and row.power_w is not None:
            block_w[str(row.group["of"])].append(row.power_w)
    bursts = [row for row in rows if row.phase == "burst" and row.power_w is not None]
    burst_ms = max((1e3 * (row.s_per_batch or 0.0) / BURST for row in bursts), default=0.0)
    ordinary = {row.phase: row for row in rows if "of" not in row.group}
    met = True
    iteration = ordinary["iteration"]
    say(f"    iteration {1e3 * (iteration.s_per_batch or 0):.2f} ms, {iteration.j_per_batch:.3f} J")
    for name in PHASES:
        row, watts, blocks_ms, what = ordinary[name], block_w[name], alone_ms[name], "blocks"
        ms = 1e3 * (row.s_per_batch or 0.0)
        if name == "forward" and blocks_ms > WAITS * ms and bursts:
            watts, blocks_ms, what = [row.power_w or 0.0 for row in bursts], burst_ms, f"blocks {blocks_ms:.2f}, bursts"
        if not watts or row.j_per_batch is None or row.u95_j is None:
            say(f"    {name:9} {ms:6.2f} ms: no number: {row.note}")
            met = met and ms < 1e3 * LEAST_S
            continue
        alone_j = statistics.mean(watts) * ms / 1e3
        off, before = row.j_per_batch / alone_j - 1, mean_interleaved(run, name) / alone_j - 1
        is_met, waits = row.method == "magnified" and abs(off) <= TARGET, blocks_ms > WAITS * ms
        met = met and (is_met or waits or ms < 1e3 * LEAST_S)
        block = f"{what} {blocks_ms:.2f} ms, {' and '.join(f'{w:.1f}' for w in watts)} W"
        block += ", wait for the host: no truth" if waits else ""
        say(
            f"    {name:9} {ms:6.2f} ms, {block} = {alone_j:7.3f} J; {row.method} {row.j_per_batch:7.3f} "
            f"± {row.u95_j:.3f} J, {off:+.1%}; interleaved {before:+.1%}; {row.note}"
        )
    return met


def judge(args: argparse.Namespace, folder: Path) -> bool:
    """Every batch size, as often as ``--turns`` says; whether every figure that counts is within the target."""
    is_met = True
    for turn in range(args.turns):
        for batch in args.batch:
            path = folder / f"magnify-{batch}-{turn}.h5"
            is_met &= judge_one(path, measure(path, batch, args))
    say(f"  target: phases of {1e3 * LEAST_S:g} ms and more within {TARGET:.0%}: {'met' if is_met else 'MISSED'}")
    return is_met


CASES = {
    "magnify": Case(
        "magnified phases against blocks of one phase", judge,
        {"batch": [64, 128, 256], "seconds": 5.0, "block": 2.5, "turns": 1, "directory": ""}, on_gpu=True,
    )
}  # fmt: skip
