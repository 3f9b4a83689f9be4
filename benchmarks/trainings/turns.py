"""Forward, backward and update of real trainings in turns, against blocks of the same phase alone.

ResNet-34 at several batch sizes, and GPT-2. Stretches of the training take turns with blocks in which each phase runs
alone for seconds, which any sensor can measure: joules of one repetition there are what the phase should take. Both
come from the same readings, so that the gain of the sensor, the largest part of a stated interval, cancels. A learning
rate of 1e-6 leaves the weights, and with them the data that the kernels see, as they are. Blocks whose repetitions
take 2 % longer than the phase are in brackets, with how much longer; how far a phase is off the other blocks is printed
too. The target is by all blocks. On a slow host blocks of short kernels may wait for it where the training does not:
with ``--graphs`` each phase is one CUDA graph, in turns and alone, and neither has to.

Needs CUDA, and transformers for GPT-2. A run file of each training stays in ``--directory``, where that
is given. Targets: forward and backward within 3 % of their blocks, always a number. Exit status 1 when one is missed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from trainings.case import Case
from trainings.training import PHASES, Training, say

from powerd_analytics import read_run
from powerd_analytics.run_tables.uncertainty_table import budget_rows
from powerd_client import Meter

JUDGED = ("forward", "backward")
TARGET, LONGER = 0.03, 1.02
SETTLE_S = 0.7
"""Before a block, in which clocks and power come to their level."""


class KeptTraining(Training):
    """Forward keeps its loss, so that backward can be repeated; weights stay all but as they are."""

    def __init__(self, name: str, batch: int) -> None:
        super().__init__(name, batch, torch.device("cuda"), learning_rate=1e-6)
        self.kept = self.loss()

    def forward(self) -> None:
        self.kept = self.loss()

    def backward(self) -> None:
        self.kept.backward()

    def backward_again(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.kept.backward(retain_graph=True)

    def update(self) -> None:
        self.optimizer.step()

    def as_graphs(self) -> None:
        """Make each phase a CUDA graph, which the host launches as a whole."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what a first iteration allocates and chooses is not for capture
            for _ in range(3):
                # A loss holds on to its graph, and by that to the stream in which gradients are added up.
                self.kept = torch.zeros(())
                self.optimizer.zero_grad(set_to_none=True)
                self.forward()
                self.backward()
                self.update()
        torch.cuda.current_stream().wait_stream(side)
        self.kept = torch.zeros(())
        self.optimizer.zero_grad(set_to_none=True)  # a captured backward then writes gradients, and adds to none
        pool = torch.cuda.graph_pool_handle()
        for name in PHASES:
            # Activations are kept, as a block repeats backward alone.
            work = (lambda: self.kept.backward(retain_graph=True)) if name == "backward" else getattr(self, name)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=side):
                work()
            setattr(self, name, graph.replay)
        self.backward_again = self.backward

    def iteration(self, meter: Meter) -> None:
        with meter.phase("iteration"):
            for name in PHASES:
                with meter.phase(name):
                    getattr(self, name)()
            self.optimizer.zero_grad(set_to_none=True)


def ms_of(work: Callable[[], None], count: int = 10) -> float:
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / count


def blocks(meter: Meter, training: KeptTraining, turn: int, seconds: float) -> None:
    """Each phase alone."""
    for name in PHASES:
        work = training.backward_again if name == "backward" else getattr(training, name)
        training.forward()
        training.backward_again()
        ms = ms_of(work)
        with meter.phase("alone", of=name, turn=turn):
            for _ in range(round(1e3 * SETTLE_S / ms)):
                work()
            count = max(1, round(1e3 * seconds / ms))
            with meter.phase("steady", of=name, turn=turn, repetitions=count):
                for _ in range(count):
                    work()
            torch.cuda.synchronize()


def measure(path: Path, name: str, batch: int, args: argparse.Namespace) -> None:
    """Write the run file of one case: blocks before, between and after the stretches."""
    training = KeptTraining(name, batch)
    if args.graphs:
        training.as_graphs()
    with Meter(None, path, device="cuda", quiet=True) as meter:
        time.sleep(0.5)
        blocks(meter, training, 0, args.alone)
        for turn in range(1, args.stretches + 1):
            training.forward()
            training.optimizer.zero_grad(set_to_none=True)
            with meter.phase("training", model=name, batch_size=batch):
                begin = time.perf_counter()
                while time.perf_counter() - begin < args.seconds:
                    training.iteration(meter)
                torch.cuda.synchronize()
            blocks(meter, training, turn, args.alone)
        time.sleep(0.5)  # readings behind the last moment that is asked for


def judge_one(path: Path) -> bool:
    """Print what the phases take in turns and alone; whether forward and backward meet the target."""
    run = read_run(path)
    rows = [r for r in budget_rows(run) if r.device.startswith("gpu") and r.phase not in ("", "alone")]
    p = run.phases
    seconds = [(k, float(p.duration_s[p.label == i].mean())) for i, k in enumerate(p.classes)]
    alone_s = {(k.attributes["of"], k.attributes["turn"]): s for k, s in seconds if k.name == "steady"}
    alone_j: dict[str, list[tuple[float, float]]] = {}
    """Joules of one repetition, and its seconds."""
    for row in rows:
        if row.phase == "steady" and row.energy_j is not None and row.table == "phase":
            of, turn, count = (row.group[name] for name in ("of", "turn", "repetitions"))
            alone_j.setdefault(str(of), []).append((row.energy_j / int(count), alone_s[of, turn] / int(count)))
    in_turns = {r.phase: r for r in rows if "batch_size" in r.group}
    in_turns_s = {k.name: s for k, s in seconds if k.name in PHASES}
    is_met = True
    for name in PHASES:
        row, alone = in_turns[name], alone_j.get(name, [])
        longer = [s / in_turns_s[name] for _, s in alone]
        told = [f"{j:.4f}" if x <= LONGER else f"({j:.4f}, {x:.2f} x)" for (j, _), x in zip(alone, longer, strict=True)]
        text = f"    {name:9} alone {' '.join(told)} J, in turns"
        if row.energy_j is None or row.u95_j is None or not alone:
            say(f"{text} no number: {row.words}")
            is_met = is_met and name not in JUDGED
            continue
        off = row.energy_j / statistics.mean(j for j, _ in alone) - 1
        as_long_j = [j for (j, _), x in zip(alone, longer, strict=True) if x <= LONGER]
        less_gain = row.u95_j / row.energy_j * math.sqrt(sum(s.share for s in row.parts if s.part != "gain"))
        say(f"{text} {row.energy_j:.4f} ± {row.u95_j:.4f} J, off by {off:+.2%} (U95 less the gain {less_gain:.2%})")
        if 0 < len(as_long_j) < len(alone):
            off_others = row.energy_j / statistics.mean(as_long_j) - 1
            say(f"    {'':9} off the {len(as_long_j)} blocks that are as long as the phase by {off_others:+.2%}")
        is_met = is_met and (name not in JUDGED or abs(off) <= TARGET)
    return is_met


def judge(args: argparse.Namespace, folder: Path) -> bool:
    """Every training; whether forward and backward of all are within the target."""
    results = []
    for training in args.cases:
        name, _, batch = training.partition(":")
        path = folder / f"turns_{name}_{batch}{'_graphs' if args.graphs else ''}.h5"
        say(f"  {name}, batch {batch}{', as CUDA graphs' if args.graphs else ''}: {path}")
        measure(path, name, int(batch), args)
        results.append(judge_one(path))
        torch.cuda.empty_cache()
    say(f"  forward and backward within {TARGET:.0%} in {sum(results)} of {len(results)} cases")
    return all(results)


CASES = {
    "turns": Case(
        "phases in turns against blocks of one phase", judge,
        {
            "cases": ["resnet34:256", "resnet34:128", "resnet34:64", "gpt2:8"], "stretches": 3, "seconds": 8.0,
            "alone": 2.5, "graphs": False, "directory": "",
        },
        on_gpu=True,
    )
}  # fmt: skip
