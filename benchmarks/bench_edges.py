"""Device-timed edges of phases against the kernels of a torch.profiler trace of the same iterations.

An edge may lie between the end of the last kernel queued before its mark and the start of the first one queued after
it; its error is its distance from that. The profiler's GPU clock is tied to the host's by pings (a tiny kernel with the
host's time before and after it), which bound how far the tie can be off. Beside it, the same with the profiler's times
as they are, and how far those are from the wall clock.

Needs CUDA. `--dry-run` tries everything with a GPU that is not there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from bench_device import say, writer
from common import machine
from gpu_edges import Marks, compare, edges_of, read_trace
from gpu_training import Step, Training

from powerd_analytics import read_run
from powerd_analytics.chrome.clock import needed_wall_clock
from powerd_client import Meter
from powerd_client.hostclock import now_ns

CASES = (("resnet34", 64, False), ("alexnet", 16, False), ("alexnet", 256, False), ("resnet34", 64, True))
"""Model, batch size, whether its layers are marked too."""
GROUP = 10
"""Iterations between two groups of pings."""


class Gpu:
    """The GPU of this machine, and torch's profiler."""

    cases = CASES

    def __init__(self) -> None:
        self.clock = torch.cuda.get_device_name()
        self._activities = [torch.profiler.ProfilerActivity.CUDA]
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "first.json"
            with self.profile(path):  # the first one loads and starts what later ones find ready
                self.ping()
            if '"cuda_runtime"' not in path.read_text():
                say("  the profile has no launches by itself: with the CPU's activities")
                self._activities.append(torch.profiler.ProfilerActivity.CPU)

    @contextmanager
    def meter(self, out: Path) -> Iterator[Meter]:
        with Meter(out=out, device="cuda") as meter:
            yield meter

    @contextmanager
    def profile(self, path: Path) -> Iterator[None]:
        with torch.profiler.profile(activities=self._activities) as profiler:
            yield
            torch.cuda.synchronize()
        profiler.export_chrome_trace(str(path))

    @contextmanager
    def training(self, meter: Meter, name: str, batch: int, layers: bool) -> Iterator[Step]:
        training = Training(name, batch, torch.device("cuda"))
        training.warm_up(1.5)
        with meter.watch(training.model, training.optimizer, layers=True) if layers else nullcontext():
            step = training.plain if layers else training.phased(meter)
            for _ in range(5):
                step()
            yield step

    def ping(self) -> None:
        torch.cuda._sleep(1)
        torch.cuda.synchronize()

    def wait(self) -> None:
        torch.cuda.synchronize()


class Tape:
    """Stands before a meter's marks and writes down when each was made."""

    def __init__(self, mark: Callable[..., None]) -> None:
        self._mark = mark
        self.rows: list[tuple[int, int, int]] = []

    def __call__(self, code: int, thread: int | None = None) -> None:
        before = now_ns()
        self._mark(code, thread)
        self.rows.append((code, before, now_ns()))


def record(gpu: Any, folder: Path, name: str, batch: int, layers: bool, iterations: int) -> None:
    """Train under the profiler; run file, profile and what the benchmark itself saw come into ``folder``."""
    with gpu.meter(folder / "run.h5") as meter:
        tape = meter._mark = Tape(meter._mark)
        pings: list[tuple[int, int]] = []

        def ping() -> None:
            before = now_ns()
            gpu.ping()
            pings.append((before, now_ns()))

        with gpu.training(meter, name, batch, layers) as step:
            gpu.wait()
            first = len(tape.rows)
            with gpu.profile(folder / "trace.json"):
                for number in range(iterations):
                    if number % GROUP == 0:
                        for _ in range(GROUP):
                            ping()
                    step()
                gpu.wait()
                for _ in range(GROUP):
                    ping()
            last = len(tape.rows)
        kinds = [(phase._begin, *_kind(key)) for key, phase in meter._kinds.items()]
        time.sleep(1.1)  # an anchor of the wall clock behind the profile
    seen = {
        "model": name, "batch": batch, "layers": layers, "iterations": iterations, "clock": gpu.clock,
        "profiled": (first, last), "marks": tape.rows, "pings": pings, "kinds": kinds,
    }  # fmt: skip
    (folder / "seen.json").write_text(json.dumps(seen))


def analyse(folder: Path) -> dict[str, Any]:
    """Compare what `record` left."""
    seen = json.loads((folder / "seen.json").read_text())
    run, trace = read_run(folder / "run.h5"), read_trace(folder / "trace.json")
    marks, (first, last) = Marks.of(seen["marks"]), seen["profiled"]
    kinds = {code: (name, attributes) for code, name, attributes in seen["kinds"] if (marks.code == code).any()}
    edges = edges_of(run, marks, kinds)[first:last]
    inside = Marks(marks.code[first:last], marks.before_ns[first:last], marks.after_ns[first:last])
    clock = next(name for name, c in run.clocks.items() if seen["clock"] in (name + c.board))
    found = compare(run, clock, trace, inside, edges, seen["pings"], needed_wall_clock(run))
    head = {key: seen[key] for key in ("model", "batch", "layers", "iterations")}
    return head | {"timings": sorted({c.timing for c in run.phases.classes})} | found


def keep(folder: Path, out: Path, name: str) -> None:
    """Copy what `record` left to ``out/name``, the profile packed."""
    target = out / name
    target.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.suffix == ".json":
            with path.open("rb") as source, gzip.open(target / f"{path.name}.gz", "wb", 6) as packed:
                shutil.copyfileobj(source, packed)
        elif path.is_file():
            shutil.copy(path, target)


def again(kept: Path) -> dict[str, Any]:
    """The comparison of a case that `keep` copied."""
    with tempfile.TemporaryDirectory() as directory:
        for path in kept.iterdir():
            if path.suffix == ".gz":
                with gzip.open(path) as packed, (Path(directory) / path.stem).open("wb") as plain:
                    shutil.copyfileobj(packed, plain)
            else:
                shutil.copy(path, directory)
        return analyse(Path(directory))


def _kind(key: Any) -> tuple[str, dict[str, Any]]:
    """Name and attributes of a key of `Meter`'s kinds."""
    # Behind the attributes stand their types.
    return (key, {}) if isinstance(key, str) else (key[0], dict(item for item in key[1:] if isinstance(item, tuple)))


def show(r: dict[str, Any]) -> None:
    """One case in words."""
    what = ", every layer" if r["layers"] else ""
    say(
        f"  {r['model']}, batch {r['batch']}{what}: {r['edges']} edges (timed by {', '.join(r['timings'])}), "
        f"{r['kernels']} kernels in {r['window_s']:.2f} s, matched by {r['matched_by']} ({r['records']} records)"
    )
    if (width := r["width_us"]) is not None:
        say(f"    room between kernels: {width['median']:.1f} us (median), {width['least']:.1f} us (least)")
    for key, text in (
        ("tied", "GPU clock tied by pings"),
        ("tied_after_mark", "the same, and not before the mark"),
        ("shown", "profiler's times by the wall clock"),
    ):
        s = r[key]
        say(
            f"    {text:36} median {s['median_us']:.2f}, p99 {s['p99_us']:.2f}, largest {s['largest_us']:.2f} us "
            f"(early {s['early_us']:.2f}, late {s['late_us']:.2f}); {s['inside']:.1%} inside"
        )
    for key, text in (("device_bound_us", "powerd's bound at the edges"), ("ping_bound_us", "bound of the pings' tie")):
        say(f"    {text:36} ± {r[key]['median']:.1f} us (median), ± {r[key]['largest']:.1f} us (largest)")
    say(
        f"    edges within powerd's bound: {r['within_device_bound']:.2%}; within it and the tie's: "
        f"{r['within_both_bounds']:.2%}; the wall clock's own bound: ± {r['wall_bound_us']:.0f} us"
    )
    for key, text in (
        ("gpu", "profiler's GPU clock less the wall clock"),
        ("host", "profiler's calls less the wall clock"),
    ):
        if (o := r["profiler"].get(key)) is not None:
            say(
                f"    {text:40} {o['median_us']:+.1f} us (median; {o['least_us']:+.1f} .. {o['most_us']:+.1f}; "
                f"first tenth {o['first_us']:+.1f}, last {o['last_us']:+.1f}), each known to ± {o['known_to_us']:.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60, help="of each case, profiled")
    parser.add_argument("--seconds", type=float, default=3600.0, help="no case begins later than this")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write bench_edges.jsonl and the cases' files there")
    parser.add_argument("--dry-run", action="store_true", help="with a GPU that is not there: figures mean nothing")
    parser.add_argument("--again", type=Path, nargs="+", metavar="DIR", help="compare anew what --out kept of cases")
    args = parser.parse_args()
    for kept in args.again or ():
        show(again(kept))
    if args.again:
        return
    if not args.dry_run and not torch.cuda.is_available():
        print("device-timed edges: no CUDA here, nothing was measured")
        return
    if args.dry_run:
        from gpu_fake import FakeGpu

        gpu: Any = FakeGpu()
    else:
        gpu = Gpu()
    write, end_s = writer(args.out, "bench_edges.jsonl"), time.monotonic() + args.seconds
    say(f"edges against torch.profiler: {gpu.clock} ({machine()}, PyTorch {torch.__version__})")
    failed, outside = [], []
    for name, batch, layers in gpu.cases:
        what = f"{name} {batch}{' with layers' if layers else ''}"
        if time.monotonic() > end_s:
            failed.append(f"{what}: no time left")
            continue
        say(f"  {what}")
        try:
            with tempfile.TemporaryDirectory() as directory:
                record(gpu, Path(directory), name, batch, layers, args.iterations)
                if args.out is not None:
                    keep(Path(directory), args.out, f"{name}-{batch}{'-layers' if layers else ''}")
                say("    reading the trace and the run file")
                result = analyse(Path(directory))
        except Exception as error:  # noqa: BLE001  (the other cases are still worth their time)
            traceback.print_exc()
            failed.append(f"{what}: {type(error).__name__}: {error}")
            continue
        write(result)
        show(result)
        if result["within_both_bounds"] < 1:
            outside.append(what)
    say(f"  stated bound: {'NOT HELD in ' + '; '.join(outside) if outside else 'held for every edge'}")
    for text in failed:
        say(f"  FAILED: {text}")
    sys.exit(2 if failed else 1 if outside else 0)


if __name__ == "__main__":
    main()
