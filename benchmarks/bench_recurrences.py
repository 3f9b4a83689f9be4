"""`joules optimise run` end to end: a small real training recurs on a simulated GPU, with leases and with kills.

`examples/sim_learning.py` truly learns: how many epochs it needs depends on its batch size, and what an epoch takes on
the card's power limit as well. Each recurrence is a process `joules optimise run`, which records the training, sets the
limit under lease, and stops what is hopeless. At some recurrences that process is killed with SIGKILL, at others the
training: then the command is started again, as its user would do.

The oracle is the pair of batch size and limit with the least expected joules: the mean epochs of trainings in this
process, times an epoch's joules by the physics of the card. Target: the settings of the last recurrences cost at most
5 % more than the oracle's.

    python benchmarks/bench_recurrences.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

from common import machine, options
from replaying import ended, replayed

from powerd_core.gpu_physics import RTX_6000, Network, operate

LEARNING = Path(__file__).parents[1] / "examples" / "sim_learning.py"
sys.path.insert(0, str(LEARNING.parent))
import sim_learning as training  # noqa: E402

SIZES, CAPS_W = (64, 8, 16, 32), (100, 130, 160, 200, 260)
RATE, TARGET, MOST_EPOCHS = 0.5, 0.94, 60
LAST = 10
DEADLINE_S = 120.0


def expected_j(seeds: int) -> dict[tuple[int, float], float]:
    """Joules to the target by batch size and limit. Trainings that do not reach it count with all their epochs."""
    costs = {}
    for size in SIZES:
        epochs = [epochs_of(size, seed) for seed in range(10_000, 10_000 + seeds)]
        reached = [n for n in epochs if n <= MOST_EPOCHS]
        mean = (sum(reached) + MOST_EPOCHS * (seeds - len(reached))) / max(len(reached), 1)
        for cap_w in CAPS_W:
            costs[size, float(cap_w)] = mean * epoch_j(size, cap_w)
    return costs


def epochs_of(size: int, seed: int) -> int:
    for epoch, accuracy in enumerate(training.accuracies(size, RATE, seed), 1):
        if accuracy >= TARGET or epoch > MOST_EPOCHS:
            return epoch
    raise AssertionError


def epoch_j(size: int, cap_w: float) -> float:
    waiting_s, kernels_s = training.SAMPLES / size * training.WAIT_S, training.SAMPLES * training.SAMPLE_S
    whole_s = waiting_s + kernels_s
    return operate(RTX_6000, Network(training.BUSY_W, waiting_s / whole_s, training.MEMORY, whole_s), cap_w).energy_j


# ---- the recurrences, on a simulated GPU -----------------------------------------------------------------------------


def recur(folder: Path, count: int, kill_joules: list[int], kill_training: list[int]) -> list[str]:
    """Carry out the recurrences; what became of each kill."""
    told, limits = [], []
    for number in range(1, count + 1):
        for who, numbers in (("joules", kill_joules), ("training", kill_training)):
            if number in numbers:
                told.append(killed(folder, number, who))
                limits.append(limit_w())
        done = subprocess.run(command(number), cwd=folder, stderr=subprocess.PIPE, text=True, check=False)
        print(done.stderr, end="", flush=True)
        assert done.returncode == 0, done.stderr
    assert all(limit == RTX_6000.limits_w[1] for limit in [*limits, limit_w()]), limits
    return told


def command(number: int) -> list[str]:
    own = ["--batch-sizes", ",".join(map(str, SIZES)), "--power-caps", ",".join(map(str, CAPS_W)), "--job", "learning"]
    own += ["--target", str(TARGET), "--metric", "accuracy", "--max-epochs", str(MOST_EPOCHS)]
    own += ["--window", "0.4", "--settle", "0.15"]
    train = [sys.executable, str(LEARNING), "--batch", "{batch_size}", "--rate", str(RATE), "--target", str(TARGET)]
    joules = [sys.executable, "-P", "-m", "powerd_analytics", "optimise", "run"]
    return [*joules, *own, "--", *train, "--epochs", "1000", "--seed", str(number)]


def killed(folder: Path, number: int, who: str) -> str:
    """Begin a recurrence, and kill one of its processes some time after the training was started."""
    process = subprocess.Popen(command(number), cwd=folder, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: trainings(process.pid))
    (child,) = trainings(process.pid)
    time.sleep(0.05 * (number % 8))
    if who != "joules" and not cmdline(child):  # the training was quicker
        who = "joules"
    os.kill(process.pid if who == "joules" else child, signal.SIGKILL)
    _, error = process.communicate(timeout=DEADLINE_S)
    wait_for(lambda: not cmdline(child))
    wait_for(lambda: limit_w() == RTX_6000.limits_w[1])
    last = (error.splitlines() or ["it had said nothing yet"])[-1]
    return f"recurrence {number}: {who} killed, status {process.returncode}; {last}"


def trainings(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if cmdline(int(child)).split("\0")[1:2] == [str(LEARNING)]]


def cmdline(pid: int) -> str:
    """Empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def limit_w() -> float:
    from powerd_daemon.sources.sim.gpu_socket import SimGpu

    return float(SimGpu.here().call("nvmlDeviceGetPowerManagementLimit", [0])) / 1e3


def wait_for(holds) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def summary(folder: Path, expected: dict[tuple[int, float], float]) -> dict:
    state = folder / "optimise.sqlite"
    steps = replayed(state, "learning")
    rows = [
        {
            "ending": outcome.ending, "batch_size": outcome.settings.batch_size,
            "power_cap_w": outcome.settings.power_cap_w, "energy_j": outcome.energy_j, "epochs": outcome.epochs,
        }
        for _, outcome in ended(state, "learning")
    ]  # fmt: skip
    best = min(expected, key=lambda settings: expected[settings])
    reached = [row for row in rows if row["ending"] == "reached"]
    over = [expected[row["batch_size"], row["power_cap_w"]] / expected[best] - 1 for row in reached]
    beside_j = fmean(r["energy_j"] - r["epochs"] * epoch_j(r["batch_size"], r["power_cap_w"]) for r in reached[-LAST:])
    last_j = fmean(row["energy_j"] for row in reached[-LAST:])
    return {
        "oracle": best,
        "oracle_j": expected[best],
        "default_over_oracle": expected[SIZES[0], float(CAPS_W[-1])] / expected[best] - 1,
        "settings": [(row["batch_size"], row["power_cap_w"]) for row in reached],
        "over_oracle": over,
        "last_over_oracle": fmean(over[-LAST:]),
        "last_j": last_j,
        "last_beside_epochs_j": beside_j,
        "all_j": sum(row["energy_j"] or 0.0 for row in rows),
        "endings": {name: sum(r["ending"] == name for r in rows) for name in ("reached", "stopped", "failed", "lost")},
        "decisions": sum(step.what != "end" for step in steps),
        "decided_again": sum(step.what != "end" and step.is_same for step in steps),
    }


def main() -> int:
    o = options(
        __doc__, recurrences=30, kill_joules=[4, 12, 20], kill_training=[8, 16, 24], seeds=200, folder="", json=""
    )
    if not o.folder:
        print(machine(), flush=True)
        with tempfile.TemporaryDirectory() as folder:
            inside = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--control", "--"]
            inside += [sys.executable, __file__, *sys.argv[1:], "--folder", folder]
            return subprocess.run(inside, check=False, cwd=folder).returncode
    begun_s = time.monotonic()
    told = recur(Path(o.folder), o.recurrences, o.kill_joules, o.kill_training)
    took_s = time.monotonic() - begun_s
    found = summary(Path(o.folder), expected_j(o.seeds)) | {"kills": told}
    if o.json:
        Path(o.json).write_text(json.dumps(found))
    print("\n".join(told))
    print(f"settings of the recurrences: {' '.join(f'{b}/{c:g}' for b, c in found['settings'])}")
    print(f"trainings: {found['endings']}; {found['decided_again']} of {found['decisions']} decisions come out again")
    print(f"oracle: batch size {found['oracle'][0]}, {found['oracle'][1]:g} W, {found['oracle_j']:.0f} J expected")
    print(f"the default settings cost {100 * found['default_over_oracle']:+.0f} %")
    print(
        f"the last {LAST} recurrences: {100 * found['last_over_oracle']:+.1f} % by their settings; recorded "
        f"{found['last_j']:.0f} J each, {found['last_beside_epochs_j']:.0f} J of them beside the epochs"
    )
    print(f"{o.recurrences} recurrences took {took_s:.0f} s and {found['all_j']:.0f} J")
    return int(found["last_over_oracle"] > 0.05)


if __name__ == "__main__":
    sys.exit(main())
