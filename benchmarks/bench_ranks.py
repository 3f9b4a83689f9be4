"""Ranks of a DDP training in one recording: are phases and rest the iteration, joules the devices', and the cost?

For each number of ranks, torchrun starts them; local rank 0 records and the others join. Rounds of the plain loop and
of the loop with `iteration`, `forward`, `backward` and `update` marked take turns, in the same order in all ranks and
new by chance for each pair. On the CPU a small CNN over gloo, where the ranks share the cores; with `--device cuda`
ResNet-34 over NCCL with a GPU for each rank; numbers of ranks for which there are not enough GPUs are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import machine
from gpu_training import PHASES, Training

from powerd_client import Meter

CASES = {"cpu": ("small-cnn", 8, "gloo"), "cuda": ("resnet34", 64, "nccl")}
UNTIMED = 2


def worker(args: argparse.Namespace, out: Path) -> None:
    """One rank: writes the seconds an iteration of each round took to ``out``'s directory."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    name, batch, backend = CASES[args.device]
    device = torch.device("cuda", local) if args.device == "cuda" else torch.device("cpu")
    if args.device == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    dist.init_process_group(backend)
    training = Training(name, args.batch or batch, device)
    training.model = DistributedDataParallel(training.model, device_ids=[local] if args.device == "cuda" else None)
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.01, momentum=0.9)
    ms: dict[str, list[float]] = {"plain": [], "phases": []}
    with Meter(out=out) as meter:
        steps = {"plain": training.plain, "phases": training.phased(meter)}
        for _ in range(5):
            training.plain()
        begin = time.perf_counter()
        _steps(training, training.plain, 10)
        # All ranks take as many steps: a rank that takes one more would wait for the others for ever.
        count = torch.tensor([args.milliseconds / 1e3 / ((time.perf_counter() - begin) / 10)], device=device)
        dist.all_reduce(count)
        many, order = max(3, round(float(count) / world)), random.Random(7)
        with meter.phase("training", batch_size=training.batch, model=name, ranks=world):
            for _ in range(args.pairs):
                for mode in order.sample(list(steps), 2):
                    _steps(training, steps[mode], UNTIMED)
                    dist.barrier()
                    begin = time.perf_counter()
                    _steps(training, steps[mode], many)
                    ms[mode].append((time.perf_counter() - begin) / many * 1e3)
        time.sleep(0.2)  # readings behind the last phase
    (out.parent / f"rank{rank}.json").write_text(json.dumps({"ms": ms, "steps": many}))
    sys.stdout.flush()
    os._exit(0)  # threads of the backends may abort a process that ends in order


def _steps(training: Training, step: Callable[[], None], count: int) -> None:
    for _ in range(count):
        step()
    training.wait()


def case(args: argparse.Namespace, ranks: int, directory: Path) -> bool:
    """Train with so many ranks, and say what came of it. Whether all sums agree."""
    out = directory / f"run{ranks}.h5"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    own = ["--device", args.device, "--pairs", args.pairs, "--milliseconds", args.milliseconds]
    own += ["--batch", args.batch, "--worker", out]
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun would set it, saying so
    subprocess.run([*torchrun, __file__, *map(str, own)], check=True)
    from powerd_analytics.runs.run import read_run
    from powerd_analytics.tables.table import phase_table

    run = read_run(out)
    table = phase_table(run)
    sums_ok = _durations(run, ranks, [json.loads((directory / f"rank{i}.json").read_text()) for i in range(ranks)])
    worst = 0.0
    for whole in table.runs:
        shares = [r.energy_j for r in table.ranks if r.device == whole.device]
        if not shares and ranks > 1:
            print(f"    {whole.device} ({whole.provenance}): {whole.energy_j:.2f} J, {whole.note}")
            continue
        shares = shares or [whole.energy_j]
        worst = max(worst, abs(sum(shares) / whole.energy_j - 1)) if whole.energy_j else worst
        residual = "–" if whole.residual_j is None else f"{whole.residual_j:+.2g} J"
        print(
            f"    {whole.device} ({whole.provenance}): {' + '.join(f'{j:.2f}' for j in shares)} J of its ranks against "
            f"{whole.energy_j:.2f} J ± {whole.u95_j or float('nan'):.2g} of it; phases + rest miss {residual}"
            f"{'; ' + whole.note if whole.note else ''}"
        )
    for job in table.jobs:
        names = " + ".join(job.devices)
        print(f"    job on {names}: {job.energy_j:.3f} J of all ranks, {job.devices_j:.3f} J of the devices")
        worst = max(worst, abs(job.residual_j) / job.devices_j)
    print(f"    largest difference of joules: {worst:.1e} of the devices' (target 1e-9)")
    for message in run.messages:
        if message.get("level") in ("warning", "error"):
            print(f"    the run says: {message['text']}")
    return sums_ok and worst <= 1e-9


def _durations(run: object, ranks: int, results: list[dict[str, object]]) -> bool:
    """Print, for each rank, phases against iterations and marked against plain rounds."""
    import numpy as np
    from bench_hooks import interval

    from powerd_analytics.runs.ranks import ranks_of
    from powerd_analytics.runs.run import Run

    assert isinstance(run, Run)
    p, found, good = run.phases, ranks_of(run), True
    names = np.array([c.name for c in p.classes])[p.label]
    tracks = found.tracks(run)
    for rank, result in enumerate(results):
        iterations = np.flatnonzero((tracks == rank) & (names == "iteration"))
        place = {int(i): k for k, i in enumerate(iterations)}
        inner = np.flatnonzero(np.isin(p.parent, iterations))
        which = np.array([place[int(i)] for i in p.parent[inner]], np.int64)
        length = (p.end_ns - p.begin_ns).astype(np.int64)
        phases = np.zeros(len(iterations), np.int64)
        np.add.at(phases, which, length[inner])
        rest, last = np.zeros(len(iterations), np.int64), p.begin_ns[iterations].copy()
        outside = 0
        for i, k in zip(inner, which, strict=True):  # in the order of their beginnings
            rest[k] += p.begin_ns[i] - last[k]
            outside += int(p.begin_ns[i] < last[k])
            last[k] = p.end_ns[i]
        rest += p.end_ns[iterations] - last
        off_ns = np.abs(phases + rest - length[iterations])
        complete = len(inner) == len(PHASES) * len(iterations) and not p.cut[inner].any()
        good &= complete and not outside and not off_ns.any()
        ms = result["ms"]
        assert isinstance(ms, dict)
        middle, low, high = interval([(b / a - 1) * 100 for a, b in zip(ms["plain"], ms["phases"], strict=True)])
        whole_ns = max(int(length[iterations].sum()), 1)
        print(
            f"    rank {rank} on {', '.join(found.ranks[rank].devices)}: {len(iterations)} iterations of "
            f"{whole_ns / max(len(iterations), 1) / 1e6:.2f} ms; forward + backward + update "
            f"{100 * phases.sum() / whole_ns:.2f} %, rest {100 * rest.sum() / whole_ns:.2f} %, largest difference of "
            f"their sum {int(off_ns.max(initial=0))} ns, {outside} phases that overlap"
        )
        print(
            f"      plain {statistics.median(ms['plain']):.3f} ms, marked {middle:+.2f} % "
            f"(95 %: {low:+.2f} .. {high:+.2f}; {len(ms['plain'])} pairs of {result['steps']} steps)"
        )
    return bool(good)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks, such as 1,2,4")
    parser.add_argument("--device", choices=list(CASES), default="cpu")
    parser.add_argument("--pairs", type=int, default=15, help="of a plain and a marked round")
    parser.add_argument("--milliseconds", type=float, default=400.0, help="of each round")
    parser.add_argument("--batch", type=int, default=0, help="of each rank; 0: as is usual for the device")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run files there")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.worker is not None:
        worker(args, args.worker)
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        print("ranks on GPUs: no CUDA here, nothing was measured")
        return
    name, batch, backend = CASES[args.device]
    where = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if args.device == "cuda" else "the CPU"
    print(
        f"{name}, batch {args.batch or batch} a rank, {backend} on {where} ({machine()}, PyTorch {torch.__version__})"
    )
    good = True
    for ranks in (int(n) for n in args.ranks.split(",")):
        if args.device == "cuda" and ranks > torch.cuda.device_count():
            print(f"  {ranks} ranks: left out, there are {torch.cuda.device_count()} GPUs")
            continue
        print(f"  {ranks} {'ranks' if ranks > 1 else 'rank'}:", flush=True)
        with tempfile.TemporaryDirectory() as made:
            directory = args.keep or Path(made)
            directory.mkdir(parents=True, exist_ok=True)
            good &= case(args, ranks, directory)
    print(f"  phases and rest = iteration on every rank, joules of ranks = devices: {'held' if good else 'MISSED'}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
