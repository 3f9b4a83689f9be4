"""Ranks of a DDP training in one recording: are phases and rest the iteration, joules the devices', and the cost?

For each number of ranks, torchrun starts them; local rank 0 records and the others join. Rounds of the plain loop and
of the loop with `iteration`, `forward`, `backward` and `update` marked take turns, in the same order in all ranks and
new by chance for each pair; a second plain round in each turn says what two rounds of the same loop differ by, and a
clock around each mark what marks take of the thread that launches. Then the same of the loop under `Meter.watch`, with
and without DDP's communication. On the CPU a small CNN over gloo, where the ranks share the cores; with `--device cuda`
ResNet-34 over NCCL with a GPU for each rank; numbers of ranks for which there are not enough GPUs are left out.

Targets: on every rank each iteration has all its phases, none overlaps another or the iteration's edges, so that they
and the rest are the iteration; and joules of all ranks' phases and the rest are the devices' within 1e-9. Exit status
1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import HERE, median_interval, options
from trainings.case import Case
from trainings.training import PHASES, UNTIMED, Step, Training

from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.ranks import ranks_of
from powerd_analytics.runs.run import Run, read_run
from powerd_client import Meter

BACKENDS = {"cpu": ("small-cnn", 8, "gloo"), "cuda": ("resnet34", 64, "nccl")}
TARGET = 1e-9
WAYS = (
    ("plain again", "again", "plain"),
    ("marked", "phases", "plain"),
    ("watched without communication", "watch", "unwatched"),
    ("watched with communication", "communication", "unwatched"),
)


@contextmanager
def watched(meter: Meter, training: Training, *, communication: bool) -> Iterator[Step]:
    """The plain step under `Meter.watch`."""
    with meter.watch(training.model, training.optimizer, communication=communication):
        yield training.plain


def marks_us(meter: Meter, training: Training, count: int) -> float:
    """Microseconds that the eight marks of an iteration take of the thread that launches its kernels."""
    iteration, forward, backward, update = (meter.phase(p) for p in ("iteration", *PHASES))
    clock, spent_ns = time.perf_counter_ns, 0

    def clocked(mark: Callable[..., object], *error: object) -> None:
        nonlocal spent_ns
        begin = clock()
        mark(*error)
        spent_ns += clock() - begin

    for _ in range(count):
        clocked(iteration.__enter__)
        clocked(forward.__enter__)
        loss = training.loss()
        clocked(forward.__exit__, None, None, None)
        clocked(backward.__enter__)
        loss.backward()
        clocked(backward.__exit__, None, None, None)
        clocked(update.__enter__)
        training.update()
        clocked(update.__exit__, None, None, None)
        clocked(iteration.__exit__, None, None, None)
    training.wait()
    return spent_ns / count / 1e3


def rounds(
    meter: Meter,
    training: Training,
    ways: Mapping[str, Callable[[], AbstractContextManager[Step]]],
    args: argparse.Namespace,
) -> dict[str, list[float]]:
    """Milliseconds an iteration of each way, round by round; all ranks take as many steps, in the same order."""
    import torch.distributed as dist

    world, ms = dist.get_world_size(), {name: [] for name in ways}
    training.steps(training.plain, 5)
    # A rank that takes one more step would wait for the others for ever.
    total = torch.tensor([args.milliseconds / training.ms_per_step(training.plain, 10)], device=training.device)
    dist.all_reduce(total)
    count, order = max(3, round(float(total) / world)), random.Random(7)
    with meter.phase("training", batch_size=training.batch, model=training.name, ranks=world):
        for _ in range(args.pairs):
            for name in order.sample(list(ways), len(ways)):
                with ways[name]() as step:
                    training.steps(step, UNTIMED)
                    dist.barrier()
                    ms[name].append(training.ms_per_step(step, count))
    time.sleep(0.2)  # readings behind the last phase
    return ms


def rank(args: argparse.Namespace) -> None:
    """One of the ranks that torchrun starts: writes the milliseconds of each round beside the run file ``args.out``."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    number, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    out, (name, batch, backend) = Path(args.out), BACKENDS[args.device]
    device = torch.device("cuda", local) if args.device == "cuda" else torch.device("cpu")
    if args.device == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    dist.init_process_group(backend)
    training = Training(name, batch, device)
    training.model = DistributedDataParallel(training.model, device_ids=[local] if args.device == "cuda" else None)
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.01, momentum=0.9)
    with Meter(out=out) as meter:
        step = training.phased(meter)
        ways = {"plain": training.plain, "again": training.plain, "phases": step}
        ms = rounds(meter, training, {name: partial(nullcontext, way) for name, way in ways.items()}, args)
        us = marks_us(meter, training, 100)
    with Meter(out=out.with_name(f"watched{world}.h5")) as meter:
        ms |= rounds(
            meter,
            training,
            {
                "unwatched": lambda: nullcontext(training.plain),
                "watch": lambda: watched(meter, training, communication=False),
                "communication": lambda: watched(meter, training, communication=True),
            },
            args,
        )
    (out.parent / f"rank{number}.json").write_text(json.dumps({"ms": ms, "marks_us": us}))
    sys.stdout.flush()
    os._exit(0)  # threads of the backends may abort a process that ends in order


def judge_one(args: argparse.Namespace, ranks: int, directory: Path) -> bool:
    """Train with so many ranks and print what came of it. Whether all sums agree."""
    out = directory / f"run{ranks}.h5"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    torchrun += ["--module", "trainings.ranks", "--out", str(out)]
    for option in ("device", "pairs", "milliseconds"):
        torchrun += [f"--{option}", str(getattr(args, option))]
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    # One thread as torchrun would set it, saying so.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}
    subprocess.run(torchrun, check=True, env=environment)
    run, is_met = read_run(out), True
    for rank in range(ranks):
        is_met &= phases_fill_iterations(run, rank, json.loads((directory / f"rank{rank}.json").read_text()))
    return joules_agree(run) and is_met


def joules_agree(run: Run) -> bool:
    """Print joules of all ranks' phases and the rest against those of their devices; whether they agree."""
    table, worst = phase_table(run), 0.0
    for whole in table.runs:
        if whole.energy_j is None or whole.phases_j is None:
            continue
        parts_j = whole.phases_j + (whole.rest_j or 0.0)
        print(f"    {whole.device} ({whole.provenance}): {whole.energy_j:.2f} J, phases + rest {parts_j:.2f} J")
        worst = max(worst, abs(parts_j / whole.energy_j - 1))
    print(f"    largest difference of joules: {worst:.1e} of the devices' (target {TARGET:g})")
    for message in run.messages:
        if message.get("level") in ("warning", "error"):
            print(f"    the run says: {message['text']}")
    return worst <= TARGET


def phases_fill_iterations(run: Run, rank: int, measured: Mapping[str, Any]) -> bool:
    """Print a rank's phases against its iterations, and marked against plain rounds.

    Whether each iteration has all its phases, one after the other and within it, so that they and the rest are it.
    """
    p, ranks, ms, us = run.phases, ranks_of(run), measured["ms"], measured["marks_us"]
    names = np.array([c.name for c in p.classes])[p.label]
    iterations = np.flatnonzero((ranks.tracks(run) == rank) & (names == "iteration"))
    length = (p.end_ns - p.begin_ns).astype(np.int64)
    in_phases_ns = incomplete = overlaps = 0
    for i in iterations.tolist():
        inside = np.flatnonzero(p.parent == i)  # in the order of their beginnings
        rest = np.append(p.begin_ns[inside], p.end_ns[i]) - np.insert(p.end_ns[inside], 0, p.begin_ns[i])
        in_phases_ns += int(length[inside].sum())
        overlaps += int((rest < 0).sum())
        incomplete += len(inside) != len(PHASES) or bool(p.cut[inside].any())
    total_ns = int(length[iterations].sum())
    print(
        f"    rank {rank} on {', '.join(ranks.ranks[rank].devices)}: {len(iterations)} iterations of "
        f"{total_ns / len(iterations) / 1e6:.2f} ms; forward + backward + update {in_phases_ns / total_ns:.2%}, rest "
        f"{1 - in_phases_ns / total_ns:.2%}; {overlaps} phases overlap, {incomplete} iterations lack one"
    )
    for text, name, plain in WAYS:
        middle, low, high = median_interval([(b / a - 1) * 100 for a, b in zip(ms[plain], ms[name], strict=True)])
        print(
            f"      plain {statistics.median(ms[plain]):.3f} ms, {text} {middle:+.2f} % "
            f"(95 %: {low:+.2f} .. {high:+.2f}; {len(ms[name])} pairs)"
        )
    print(
        f"      eight marks take {us:.0f} us of the launching thread, {us / statistics.median(ms['plain']) / 10:.2f} %"
    )
    return not overlaps and not incomplete


def judge(args: argparse.Namespace, folder: Path) -> bool:
    """Every number of ranks; whether all sums agree."""
    name, batch, backend = BACKENDS[args.device]
    print(f"  {name}, batch {batch} a rank, {backend}")
    is_met = True
    for ranks in map(int, args.ranks.split(",")):
        if args.device == "cuda" and ranks > torch.cuda.device_count():
            print(f"  {ranks} ranks: left out, there are {torch.cuda.device_count()} GPUs")
            continue
        print(f"  {ranks} {'ranks' if ranks > 1 else 'rank'}:", flush=True)
        is_met &= judge_one(args, ranks, folder)
    print(f"  phases and rest = iteration on every rank, joules of ranks = devices: {'held' if is_met else 'MISSED'}")
    return is_met


_OPTIONS = {"device": "cpu", "pairs": 15, "milliseconds": 400.0}
CASES = {"ranks": Case("ranks of a DDP training", judge, {"ranks": "1,2,4", **_OPTIONS})}

if __name__ == "__main__":
    rank(options(__doc__, out="", **_OPTIONS))
