"""Plants ten faults in the product, one after the other, each in a copy, and says which tier of the tests sees it.

    python benchmarks/planted_faults.py [--jobs 1] [--workers 2]

A fault that neither tier sees is a fault of the tests. The quick tier stops at its first failure, and the rest is run
only for what the quick tier does not see.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("powerd", "client", "analytics")
FAULTS = {
    "a frame behind each hole of the ring is left out": (
        "powerd/powerd_daemon/ring.py",
        "UNKNOWN_TIME_NS, t_ns, span, -1, cause)), sequence + span",
        "UNKNOWN_TIME_NS, t_ns, span, -1, cause)), sequence + span + 1",
    ),
    "the zero of a calibration has the wrong sign": (
        "client/powerd_client/signals/signal.py",
        "(c.shunt_lsb_v / c.shunt_ohm) + c.offset_a) * c.gain)",
        "(c.shunt_lsb_v / c.shunt_ohm) - c.offset_a) * c.gain)",
    ),
    "a helper that was killed restores nothing": (
        "powerd/powerd_control/leases.py",
        "            names = self._records.names()\n",
        "            names = self._records.names()[:0]\n",
    ),
    "narrow counters do not wrap": (
        "client/powerd_client/signals/integral.py",
        "np.uint64((1 << bits) - 1)",
        "np.uint64((1 << 64) - 1)",
    ),
    "saturated readings are not flagged": (
        "powerd/powerd_daemon/sources/ina/scanner.py",
        "flags[i] |= Flag.SATURATED",
        "flags[i] |= Flag(0)",
    ),
    "U95 forgets what is systematic": (
        "analytics/powerd_analytics/energy/uncertainty.py",
        "    u = np.hypot(us, uy)\n    k = factor",
        "    u = us + 0 * uy\n    k = factor",
    ),
    "links and files of others are taken for the user's own": (
        "client/powerd_client/host/ownership.py",
        '    if (reason := foreign(path)) is not None:\n        raise RunFileError(f"{reason}: {remedy}")',
        "    return",
    ),
    "a rule of the policy counts for every device": (
        "powerd/powerd_control/policy.py",
        'if "*" not in self.devices and not',
        'if "*" not in self.devices and False and not',
    ),
    "the clock between two exchanges stands still": (
        "powerd/powerd_core/clock_comparison.py",
        "offset = o0 + (o1 - o0) * (t_board_ns - t0) / (t1 - t0)",
        "offset = o0",
    ),
    "repeats have n degrees of freedom": (
        "analytics/powerd_analytics/frame/means.py",
        "mean), n - 1.0",
        "mean), float(n)",
    ),
}


def first_failure(folder: Path, tier: str, workers: int) -> str:
    """The first test of a tier that fails in a copy of the project; empty where none does."""
    paths = os.pathsep.join(str(folder / name) for name in PACKAGES)
    path = os.pathsep.join(filter(None, [paths, os.environ.get("PYTHONPATH", "")]))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-n",
        str(workers),
        "--dist",
        "worksteal",
        "-m",
        tier,
        "-p",
        "no:cacheprovider",
    ]
    command += ["--basetemp", str(folder / "build"), f"--list-slow={os.devnull}"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR tests"))]
    if done.returncode not in (0, 1, 2) or bool(failures) != bool(done.returncode):
        raise RuntimeError(f"{folder}: the tests ended with status {done.returncode}: {done.stdout[-400:]}")
    return failures[0].partition(" - ")[0] if failures else ""


def seen_by(name: str, workers: int) -> tuple[str, str]:
    """The tier that sees a planted fault, and the test."""
    path, old, new = FAULTS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "powerd"
        ignored = shutil.ignore_patterns(".git", ".venv*", "build", "__pycache__", ".*_cache", ".hypothesis", ".wheels")
        shutil.copytree(ROOT, folder, ignore=ignored)
        text = (folder / path).read_text(encoding="utf-8")
        if text.count(old) != 1:
            sys.exit(f"{path} no longer has one {old!r}: plant another fault")
        (folder / path).write_text(text.replace(old, new), encoding="utf-8")
        for tier, marks in (("make test", "not slow and not soak"), ("make test-rest", "slow and not soak")):
            if test := first_failure(folder, marks, workers):
                return tier, test
    return "nobody", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="copies that are tested beside each other (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest in each (%(default)s)")
    options = parser.parse_args()
    numbers = count(1)
    tiers = []

    def report(name: str) -> str:
        tier, test = seen_by(name, options.workers)
        print(f"[{next(numbers)}/{len(FAULTS)}] {name}: seen by {tier}  {test}", flush=True)
        return tier

    with ThreadPoolExecutor(options.jobs) as pool:
        tiers = list(pool.map(report, FAULTS))
    print(f"{tiers.count('make test')} of {len(FAULTS)} are seen by `make test`, {tiers.count('nobody')} by nobody")
    return int("nobody" in tiers)


if __name__ == "__main__":
    sys.exit(main())
