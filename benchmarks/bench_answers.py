"""How long `joules` thinks: CPU seconds from a command to its answer, in processes of their own with compiled modules.

Each command is asked twice: cold, by a user whose cache is empty, and warm, after a command has kept the run's
figures. The run files are made here: one like the demo's (52 s, eight rails at 500 readings/s and a counter, three
batch sizes), one of a minute as a GPU's driver gives it (samples behind a low-pass, instant power, an energy counter),
and short trainings. ``--demo FILE`` takes the run file of `make demo` for the first. Closing lines are what a
recording's end prints, from the run file on: nobody has kept anything then. They are ended when they take too long,
which the table marks with ">". With ``--before REVISION`` the commands of that revision take turns with those of this
folder; of each the fastest turn counts. Beside them stand the plain integral of the same readings (numpy's trapezoid,
with reading the file) and the start of pyinstrument where it is installed.

    python benchmarks/bench_answers.py --before main

Targets (CPU seconds on two quiet cores): see `TARGETS_S`. Exit status 1 when one is missed, warm but for the closing
lines.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from common import HERE, machine, options, progress

sys.path.insert(0, str(HERE.parent / "tests" / "analytics" / "support"))

TARGETS_S = {
    "joules --help": 0.1,
    "joules info": 0.4,
    "joules tables, demo": 0.5,
    "joules tables, minute of a GPU": 0.5,
    "closing lines, demo": 1.0,
    "joules compare, two of the runs": 1.0,
    "joules plot, demo": 2.5,
    "joules report, demo": 2.0,
    "joules tables --table uncertainty, demo": 0.6,
    "joules top --once, demo": 0.5,
    "joules info --check, demo": 0.8,
    "joules tables, 36 runs": 1.5,
    "joules tables, 500 runs": 8.0,
}
CLOSING = "closing lines, demo"
FOLDERS = ("powerd", "client", "analytics")
SHARES = (0.45, 0.22, 0.15, 0.07, 0.05, 0.03, 0.02, 0.01)
"""Of the rails in the power."""
PLAIN = """
import sys, h5py, json, numpy
with h5py.File(sys.argv[1]) as f:
    for name, g in f["lines"].items():
        c = json.loads(g.attrs["conversion"])
        if c["kind"] == "scaled":
            print(name, numpy.trapezoid(g[c["column"]][:] * c["w_per_code"], g["t_ns"][:] * 1e-9))
"""
PROFILER = "import pyinstrument; p = pyinstrument.Profiler(); p.start(); p.stop(); print(p.output_text())"


def make_demo(path: Path) -> Path:
    """Rails one after the other within 1.4 ms, as one bus reads them."""
    from make_run import MS, LineSpec, make_run, training

    tr = training((32, 64, 128), iterations=50, forward_ms=63.0, backward_ms=121.0, update_ms=12.0)
    rng = np.random.default_rng(0)
    accuracy = {"u_gain": 0.01, "u_offset_w": 0.03, "step_w": 1e-3, "window_ns": 1_060_000, "centre_ns": 793_000}

    def rail(share: float):  # type: ignore[no-untyped-def]
        return lambda t: share * tr.power()(t) + rng.normal(0, 0.2, len(t))

    lines = [
        LineSpec(f"gpu0.{i}", rail(share), offset_ns=i * MS // 5, accuracy=accuracy) for i, share in enumerate(SHARES)
    ]
    t = np.arange(0, tr.end_ns, 5 * MS)
    lines.append(
        LineSpec(
            "cpu0.model", device="cpu0", provenance="modelled", period_ns=5 * MS, t_ns=t,
            codes={"c": np.cumsum(rng.integers(0, 5 * MS, len(t)))},
            conversion={"kind": "counter", "column": "c", "j_per_code": 8e-9, "background_w": 10.0, "bits": 64},
            accuracy={"u_gain": 0.3, "u_offset_w": 3.0, "centre_ns": 4 * MS},
        )
    )  # fmt: skip
    return make_run(path, lines, tr.phases, end_ns=tr.end_ns, bound_ns=1e5)


def make_minute(path: Path) -> Path:
    from trainings import known

    samples = next(s for s in known.SENSORS if s.low_pass)
    instant = known.Sensor("nvml", 0.1, low_pass=0.0133, centre=0.013, noise=2.0, stays=6.0)
    counter = known.Sensor("nvml_energy", 1.0, counter=True, centre=0.1, noise=0.0)
    return known.make(
        path, known.Scenario(samples, "exponential", 0.131, seconds=60.0, pause=0.02, beside=(instant, counter))
    ).path


def make_runs(folder: Path, count: int) -> Path:
    from make_campaign import one_run

    folder.mkdir()
    for i in range(count):
        one_run(folder / f"{i}.h5", 1 + 0.01 * i, (32 * 2 ** (i % 3),), 12, noise_w=1.0, seed=i)
    return folder


@contextmanager
def revision(name: str) -> Iterator[Path]:
    """The files of a revision, compiled."""
    with tempfile.TemporaryDirectory(prefix="bench-before-") as place:
        tree = Path(place) / "tree"
        git = ["git", "-C", str(HERE.parent), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), name], check=True, capture_output=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)


def cpu_of(command: list[str], root: Path, cache: Path, standard_input: str = "") -> tuple[float, bool]:
    """User and system seconds of a process with its children, and whether it was ended for taking too many.

    Raises `RuntimeError` when it fails."""
    own = {"PYTHONPATH": os.pathsep.join(str(root / name) for name in FOLDERS), "XDG_CACHE_HOME": str(cache)}
    own["MPLCONFIGDIR"] = os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as told:
        given.write(standard_input)
        given.seek(0)
        process = subprocess.Popen(command, stdin=given, stdout=told, stderr=subprocess.STDOUT, env=os.environ | own)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        is_ended = process.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
        if process.returncode and not is_ended:
            told.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {told.read()[-2000:]}")
    return usage.ru_utime + usage.ru_stime, is_ended


def commands_of(place: Path, args: argparse.Namespace) -> dict[str, tuple[list[str], str]]:
    """What is asked, by the names of `TARGETS_S`, and what it is given on standard input."""
    python, joules = [sys.executable, "-P"], [sys.executable, "-P", "-m", "powerd_analytics"]
    demo = str(Path(args.demo).resolve() if args.demo else make_demo(place / "demo.h5"))
    minute = str(make_minute(place / "minute.h5"))
    few, many = make_runs(place / "few", args.runs), make_runs(place / "many", args.many)
    every = {
        "joules --help": ([*joules, "--help"], ""),
        "joules info": ([*joules, "info", demo], ""),
        "joules tables, demo": ([*joules, "tables", demo], ""),
        "joules tables, minute of a GPU": ([*joules, "tables", minute], ""),
        CLOSING: ([*python, "-m", "powerd_client.energies.live_energy"], f"{demo}\n"),
        "joules compare, two of the runs": ([*joules, "compare", str(few / "0.h5"), str(few / "3.h5")], ""),
        "joules plot, demo": ([*joules, "plot", demo, "-o", str(place / "p.png"), "--overwrite"], ""),
        "joules report, demo": ([*joules, "report", demo, "-o", str(place / "r.html"), "--overwrite"], ""),
        "joules tables --table uncertainty, demo": ([*joules, "tables", "--table", "uncertainty", demo], ""),
        "joules top --once, demo": ([*joules, "top", "--run", demo, "--once"], ""),
        "joules info --check, demo": ([*joules, "info", "--check", demo], ""),
        "joules tables, 36 runs": ([*joules, "tables", str(few)], ""),
        "joules tables, 500 runs": ([*joules, "tables", str(many)], ""),
        "beside: plain integral of the demo": ([*python, "-c", PLAIN, demo], ""),
    }
    if importlib.util.find_spec("pyinstrument"):
        every["beside: start of pyinstrument"] = ([*python, "-c", PROFILER], "")
    return every


def main() -> int:
    args = options(__doc__, before="", turns=3, runs=36, many=500, demo="", only="")
    print(machine(), f"load {os.getloadavg()[0]:.1f}", sep=", ")
    taken: dict[tuple[str, str, str], list[tuple[float, bool]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-answers-") as place:
        commands = {n: c for n, c in commands_of(Path(place), args).items() if args.only in n}

        def measure(roots: dict[str, Path]) -> None:
            for root in roots.values():
                for name in FOLDERS:
                    compileall.compile_dir(root / name, quiet=1)
            for turn in range(args.turns):
                for name, (command, given) in commands.items():
                    for when, root in roots.items():
                        progress(f"{name}, {when}, turn {turn + 1}")
                        with tempfile.TemporaryDirectory(prefix="bench-cache-") as cache:
                            taken[name, when, "cold"].append(cpu_of(command, root, Path(cache), given))
                            if name not in (CLOSING, "joules --help") and "beside" not in name:
                                taken[name, when, "warm"].append(cpu_of(command, root, Path(cache), given))
            progress("")

        if args.before:
            with revision(args.before) as tree:
                measure({"before": tree, "now": HERE.parent})
        else:
            measure({"now": HERE.parent})
    is_met = True
    print(
        f"{'CPU seconds':36}{'before':>14}{'now':>14}{'target':>8}\n{'':36}{'cold':>7}{'warm':>7}"
        + f"{'cold':>7}{'warm':>7}"
    )
    for name in commands:
        cells = [shown(taken.get((name, when, how))) for when in ("before", "now") for how in ("cold", "warm")]
        now, is_ended = min(taken.get((name, "now", "warm")) or taken[name, "now", "cold"])
        target = TARGETS_S.get(name)
        is_one_met = target is None or (now <= target and not is_ended)
        is_met &= is_one_met
        verdict = "" if target is None else f"{target:8.1f}  {'met' if is_one_met else 'MISSED'}"
        print(f"{name:36}{''.join(f'{cell:>7}' for cell in cells)}{verdict}")
    if not importlib.util.find_spec("pyinstrument"):
        print("beside: pyinstrument is not installed")
    return 0 if is_met else 1


def shown(turns: list[tuple[float, bool]] | None) -> str:
    if not turns:
        return ""
    seconds, is_ended = min(turns)
    return f"{'>' * is_ended}{seconds:.2f}"


if __name__ == "__main__":
    sys.exit(main())
