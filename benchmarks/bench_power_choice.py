"""A power cap chosen inside a training: by `Meter.optimise_power`, by Zeus, and not at all, on the same simulated GPU.

The comparison runs in virtual time: the card, both choosers and their clocks share one clock that moves with the card
alone, so that it does not depend on how busy the machine is. Each row is a training of as many iterations, which vary
by chance (``--jitter``) and wander slowly (``--wander``), the same for all choosers; the card tells its exact joules.

Zeus is the GlobalPowerLimitOptimizer of the package zeus 0.16 (``--zeus DIR`` says where it is installed; without it
there are no such rows) with its default windows (10 + 40 iterations a limit, 25 W apart): once choosing by its own
default cost, eta 0.5, and once by the metric that ours has. Ours is told the same steps, with its default windows and
its default settling time. Both read the driver's counter of joules, which is renewed every 0.1 s: Zeus as it stands,
ours between two renewals in proportion, and a tenth of a second late. *Excess* is by how much the metric at the cap
that was left is above its best at any whole watt, by the physics of the card. *Search* is what the iterations of the
search took beyond as many at that cap.

With ``--killed`` real trainings on a simulated GPU are killed by SIGKILL while they hold a cap: what limit does the
card have two seconds later?

With ``--live`` the comparison runs in real time: the trainings of a seed, one for each who chooses, run at once, each
on a `powerd sim-gpu` of its own that tells its exact joules, and record themselves. *By the card* is the metric of the
whole training if each iteration had taken what the card's physics say at the cap that it had: a machine that is busy
with other things changes joules and seconds, but that only by what is chosen. *Choice s* is when the cap was chosen,
*cpu %* what the process of the training has used of one core beyond the training that does not choose.

    python benchmarks/bench_power_choice.py --zeus DIR
    python benchmarks/bench_power_choice.py --zeus DIR --killed
    python benchmarks/bench_power_choice.py --zeus DIR --live --network vgg19 resnet50 --seeds 10 --iterations 1000
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace

import numpy as np
from common import machine, options

from powerd_client.energies.live_energy import Energy
from powerd_client.knobs.cap_search import METRICS, CapSearch
from powerd_client.knobs.power_choice import SETTLE_S, PowerChooser
from powerd_client.signals.integral import Integral
from powerd_core.gpu_physics import NETWORKS, RTX_6000, operate, timed
from powerd_core.verdict import Verdict
from powerd_daemon.sources.sim.gpu import RENEWAL_S, SimulatedGpu, SimulatedNode, work_of
from powerd_daemon.sources.sim.nvml_face import NvmlFace, make_module

LEAST_W, DEFAULT_W, _ = RTX_6000.limits_w
BEGIN_S, LATE_S = 1000.0, 0.1
WANDER_S = 30.0
"""Correlation time of the slow part of the iterations' length."""
STARTS_S = 14.0
"""So long the trainings of a seed take to start, of which none is measured."""


def value(name: str, metric: str, cap_w: float) -> float:
    """What a chooser makes least, of an iteration."""
    at = operate(RTX_6000, NETWORKS[name], cap_w)
    if metric == "zeus":
        return 0.5 * at.energy_j + 0.5 * DEFAULT_W * at.time_s
    of_energy, of_time = METRICS[metric]
    return float(at.energy_j**of_energy * at.time_s**of_time)


def excess(name: str, metric: str, cap_w: float, max_slowdown: float) -> float:
    slowest_s = operate(RTX_6000, NETWORKS[name], DEFAULT_W).time_s * (1 + max_slowdown)
    caps = range(int(LEAST_W), int(DEFAULT_W) + 1)
    fast = [cap for cap in caps if operate(RTX_6000, NETWORKS[name], cap).time_s <= slowest_s]
    return value(name, metric, cap_w) / min(value(name, metric, cap) for cap in fast) - 1


# ---- virtual time ----------------------------------------------------------------------------------------------------


class VirtualTraining:
    """A training on a card of its own, whose clock is the only one."""

    def __init__(self, o, network: str, seed: int) -> None:
        self.gpu = SimulatedGpu(RTX_6000, 0, seed=seed, now_s=BEGIN_S)
        self.gpu.noise = o.noise
        self._network = timed(NETWORKS[network], o.iteration_s)
        self._random, self._o, self._wander = random.Random(seed), o, 0.0
        self._t: list[float] = []
        self._j: list[float] = []
        self.iterate()

    @property
    def now_s(self) -> float:
        return self.gpu.now_s

    def iterate(self) -> None:
        o, gauss = self._o, self._random.gauss
        kept = math.exp(-o.iteration_s / WANDER_S)
        self._wander = kept * self._wander + math.sqrt(1 - kept**2) * gauss(0.0, o.wander)
        self.gpu.submit(work_of(self._network, math.exp(self._wander + gauss(0.0, o.jitter))))
        while not self.gpu.is_idle:
            self.gpu.advance(self.gpu.next_change_s() + 1e-9)
        renewed_s = math.floor((self.now_s - BEGIN_S) / RENEWAL_S + 1e-9) * RENEWAL_S + BEGIN_S
        if not self._t or renewed_s > self._t[-1] + 1e-6:
            self._t.append(renewed_s)
            self._j.append(self.gpu.energy_mj / 1e3)

    def energy_between(self, begin_ns: int, end_ns: int, wait_s: float, devices: list[str]) -> list[Energy]:
        t_ns = np.round(np.array(self._t) * 1e9).astype(np.int64)
        joules = float(Integral.of_energy(t_ns, self._j).between(begin_ns, end_ns))
        return [Energy("", joules, 0.01 * joules, device="gpu0")]


@dataclass
class Late:
    """The result of what was submitted, when its time has come."""

    training: VirtualTraining
    ready_s: float
    make: object

    def done(self) -> bool:
        return self.training.now_s >= self.ready_s

    def result(self):
        return self.make()


class LateWorker(Executor):
    def __init__(self, training: VirtualTraining) -> None:
        self._training = training

    def submit(self, function, /, *arguments):
        return Late(self._training, self._training.now_s + LATE_S, lambda: function(*arguments))


class VirtualHold:
    """A lease on the card of a training."""

    settle_s, problem, verdict = SETTLE_S, "", Verdict.BINDING

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu

    def acquire(self):
        return self

    def set(self, power_cap_w=None, sm_clock_mhz=None) -> bool:
        if power_cap_w is not None:
            self._gpu.change("limit_w", DEFAULT_W if power_cap_w == "default" else float(power_cap_w))
        if sm_clock_mhz is not None:
            self._gpu.change("core_mhz", None if sm_clock_mhz == "default" else (sm_clock_mhz, sm_clock_mhz))
        return True

    def release(self) -> None:
        self.set("default", "default")


def make_chooser(o, training: VirtualTraining, metric: str, **options) -> PowerChooser:
    ranges = {"power_cap": (LEAST_W, DEFAULT_W), "sm_clock": (300.0, 2100.0)}
    return PowerChooser(
        lambda least, default: CapSearch(least, default, metric, o.max_slowdown),
        lambda _: VirtualHold(training.gpu),
        training.energy_between,
        lambda *_: None,
        find_range=lambda knob: (["gpu0"], *ranges[knob]),
        now=lambda: round(training.now_s * 1e9),
        worker=LateWorker(training),
        **options,
    )


def ours(o, training: VirtualTraining, metric: str):
    chooser = make_chooser(o, training, metric).__enter__()

    def step() -> bool:
        training.iterate()
        chooser.step()
        return chooser.decision is not None

    return step


class Zeus:
    """The package, on whichever training goes on."""

    def __init__(self, where: str) -> None:
        self.training: VirtualTraining | None = None
        self._face = NvmlFace(SimulatedNode([]), lambda: self.training.now_s)
        sys.modules["pynvml"] = make_module(self._face.call)
        sys.path.append(where)
        import zeus.monitor.energy

        zeus.monitor.energy.time = lambda: self.training.now_s

    def steps(self, training: VirtualTraining, metric: str):
        self.training, self._face.node = training, SimulatedNode([training.gpu])
        begin_step, is_done = zeus_optimizer(metric)

        def step() -> bool:
            begin_step()
            training.iterate()
            return is_done()

        return step


def zeus_optimizer(metric: str):
    """The package's optimizer on GPU 0: what is called before each step, and whether it has chosen."""
    import zeus.monitor.energy
    from zeus.optimizer import power_limit

    zeus.monitor.energy.sync_execution_fn = lambda *_, **__: None  # there is no CUDA
    of_energy, of_time = METRICS.get(metric, (0, 0))

    class ByMetric(power_limit.OptimumSelector):
        def select(self, measurements):
            return min(measurements, key=lambda m: m.energy**of_energy * m.time**of_time).power_limit

    selector = power_limit.ZeusCost(0.5) if metric == "zeus" else ByMetric()
    monitor = zeus.monitor.energy.ZeusMonitor(gpu_indices=[0])
    optimizer = power_limit.GlobalPowerLimitOptimizer(monitor, selector)
    return optimizer.on_step_begin, lambda: isinstance(optimizer.state, power_limit.Done)


def train(o, network: str, seed: int, make_step) -> dict:
    """Joules and seconds to the end, the cap that was left, and what was searched for how long."""
    training = VirtualTraining(o, network, seed)
    gpu, begin_s, begin_j = training.gpu, training.now_s, training.gpu.truth.energy_j
    step = make_step(training)
    searched = search_j = search_s = 0
    for n in range(o.iterations):
        is_over = step()
        if is_over and not searched:
            searched, search_j, search_s = n + 1, gpu.truth.energy_j - begin_j, training.now_s - begin_s
    cap_w = gpu.set_to.limit_w
    at = operate(RTX_6000, timed(NETWORKS[network], o.iteration_s), cap_w)
    return {
        "cap_w": cap_w,
        "energy_j": gpu.truth.energy_j - begin_j,
        "time_s": training.now_s - begin_s,
        "searched": searched,
        "search_j": search_j - searched * at.energy_j,
        "search_s": search_s - searched * at.time_s,
    }


def compare(o) -> None:
    zeus = Zeus(o.zeus) if o.zeus else None
    makers = {
        "default": (o.metric, lambda training: training.iterate),
        "ours": (o.metric, lambda training: ours(o, training, o.metric)),
    }
    if zeus is not None:
        makers[f"zeus, by {o.metric}"] = o.metric, lambda training: zeus.steps(training, o.metric)
        makers["zeus"] = "zeus", lambda training: zeus.steps(training, "zeus")
    head(o)
    print("| network | seed | who | cap W | excess % | joules | seconds | metric | searched | search J | search s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    found: dict[str, list[tuple[float, float]]] = {}
    for network in o.network:
        for seed in range(o.first_seed, o.first_seed + o.seeds):
            before: dict = {}
            for who, (metric, make_step) in makers.items():
                row = train(o, network, seed, make_step)
                before = before or row
                over, joules, seconds, whole = against(o, network, who, metric, row, before)
                found.setdefault(who, []).append((over, whole))
                print(
                    f"| {network} | {seed} | {who} | {row['cap_w']:g} | {100 * over:.2f} | {joules:.4f} "
                    f"| {seconds:.4f} | {whole:.4f} | {row['searched']} "
                    f"| {row['search_j']:+.0f} | {row['search_s']:+.1f} |",
                    flush=True,
                )
    summary(found)


def head(o) -> None:
    print(f"{o.iterations} iterations of {o.iteration_s:g} s, {o.metric}, ours at most {o.max_slowdown:.0%} slower;")
    print("joules and seconds of the whole training against those at the default cap\n")


def against(o, network: str, who: str, metric: str, row: dict, before: dict) -> tuple[float, float, float, float]:
    """By how much the metric at the cap that was left is above its best; joules, seconds and metric of the whole
    training over those ``before``, at the default cap."""
    of_energy, of_time = METRICS[o.metric]
    over = excess(network, metric, row["cap_w"], 9.0 if who.startswith("zeus") else o.max_slowdown)
    joules, seconds = row["energy_j"] / before["energy_j"], row["time_s"] / before["time_s"]
    return over, joules, seconds, joules**of_energy * seconds**of_time


def summary(found: dict[str, list[tuple[float, float]]]) -> None:
    print()
    for who, rows in found.items():
        within = sum(over <= 0.005 for over, _ in rows)
        worst, whole = max(over for over, _ in rows), fmean(whole for _, whole in rows)
        print(
            f"{who}: within 0.5 % of the best in {within} of {len(rows)}, worst {worst:.2%}; "
            f"metric of the whole training {whole:.4f} of the default's"
        )


# ---- real time -------------------------------------------------------------------------------------------------------


def train_live(arguments: dict) -> None:
    """A training of its own process, in the environment of a simulated GPU; prints what `train` returns, with what it
    has cost the process. Whoever chooses, it records itself."""
    from powerd_client import Meter
    from powerd_daemon.sources.sim.gpu_socket import SimGpu

    o, who = SimpleNamespace(**arguments["options"]), arguments["who"]
    network, chance, gpu = timed(NETWORKS[arguments["network"]], o.iteration_s), random.Random(o.seed), SimGpu.here()
    with Meter(out="run.h5", quiet=True) as meter:
        chooser = meter.optimise_power(o.metric, o.max_slowdown) if who == "ours" else contextlib.nullcontext()
        begin_step, is_done = (lambda: None), (lambda: who == "ours" and chooser.decision is not None)
        if who.startswith("zeus"):
            sys.path.append(o.zeus)
            begin_step, is_done = zeus_optimizer(o.metric)
        time.sleep(max(0.0, arguments["begin_s"] - time.monotonic()))
        begin, cpu_s, choice_s, caps_w = gpu.truth(), time.process_time(), None, []
        with chooser:
            for _ in range(o.iterations):
                begin_step()
                work = work_of(network, math.exp(chance.gauss(0.0, o.jitter)))
                caps_w.append(gpu.call("nvmlDeviceGetPowerManagementLimit", [0]) / 1e3)
                gpu.run(work.wait_s, work.core_s, work.memory_s, work.busy_w)
                if who == "ours":
                    chooser.step()
                if choice_s is None and is_done():
                    choice_s = gpu.truth()["now_s"] - begin["now_s"]
            end, cpu_s = gpu.truth(), time.process_time() - cpu_s
            cap_w = gpu.call("nvmlDeviceGetPowerManagementLimit", [0]) / 1e3
    of_energy, of_time = METRICS[o.metric]
    every = [operate(RTX_6000, network, cap) for cap in caps_w]
    card = fmean(at.energy_j for at in every) ** of_energy * fmean(at.time_s for at in every) ** of_time
    at = operate(RTX_6000, network, DEFAULT_W)
    row = {"by_card": card / (at.energy_j**of_energy * at.time_s**of_time)}
    row |= {"energy_j": end["energy_j"] - begin["energy_j"], "time_s": end["now_s"] - begin["now_s"]}
    print(json.dumps(row | {"cap_w": cap_w, "choice_s": choice_s, "cpu_s": cpu_s}))


def compare_live(o) -> None:
    metrics = dict.fromkeys(("default", "ours", *([f"zeus, by {o.metric}"] if o.zeus else [])), o.metric)
    head(o)
    print("| network | seed | who | cap W | excess % | joules | seconds | metric | by the card | choice s | cpu % |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    found: dict[str, list[tuple[float, float]]] = {}
    costs: dict[str, list[tuple[float, float, float]]] = {}
    for network in o.network:
        for seed in range(o.first_seed, o.first_seed + o.seeds):
            rows = train_at_once(o, network, seed, list(metrics))
            before = rows["default"]
            for who, row in rows.items():
                over, joules, seconds, whole = against(o, network, who, metrics[who], row, before)
                found.setdefault(who, []).append((over, whole))
                cpu, choice_s = (row["cpu_s"] - before["cpu_s"]) / row["time_s"], row["choice_s"] or math.inf
                costs.setdefault(who, []).append((choice_s, cpu, row["by_card"]))
                print(
                    f"| {network} | {seed} | {who} | {row['cap_w']:g} | {100 * over:.2f} | {joules:.4f} "
                    f"| {seconds:.4f} | {whole:.4f} | {row['by_card']:.4f} | {choice_s:.1f} | {100 * cpu:.2f} |",
                    flush=True,
                )
    summary(found)
    for who, of in costs.items():
        choices_s, cpus, by_card = zip(*of, strict=True)
        times = f"{median(choices_s):.1f} s, at most {max(choices_s):.1f} s"
        print(f"{who}: chosen after {times}; {fmean(cpus):.2%} of a core; metric by the card {fmean(by_card):.4f}")


def train_at_once(o, network: str, seed: int, who: list[str]) -> dict[str, dict]:
    """The trainings of a seed, each with a simulated GPU and a helper of its own."""
    begin_s = time.monotonic() + STARTS_S
    with tempfile.TemporaryDirectory() as folder:
        trainings = {}
        for number, name in enumerate(who):
            own = Path(folder, str(number))
            own.mkdir()
            sim = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--control", "--seed", str(seed)]
            arguments = {"who": name, "network": network, "options": {**vars(o), "seed": seed}, "begin_s": begin_s}
            command = [*sim, "--noise", str(o.noise), "--", sys.executable, __file__, "--train", json.dumps(arguments)]
            trainings[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=own)
        told = {name: process.communicate()[0] for name, process in trainings.items()}
    return {name: json.loads(text) for name, text in told.items()}


# ---- what a kill leaves ----------------------------------------------------------------------------------------------


def train_and_be_killed(arguments: dict) -> None:
    """In the environment of a simulated GPU, in real time: until a cap below the default is set, and then SIGKILL."""
    from powerd_daemon.sources.sim.gpu_socket import SimGpu

    gpu, network, full_s = SimGpu.here(), NETWORKS["vgg19"], 0.06
    kernels_s = (1 - network.waiting) * full_s

    def iterate() -> None:
        gpu.run(network.waiting * full_s, kernels_s * (1 - network.memory), kernels_s * network.memory, network.busy_w)
        limit_w = gpu.call("nvmlDeviceGetPowerManagementLimit", [0]) / 1e3
        if limit_w < DEFAULT_W:
            print(f"{limit_w:g}", flush=True)
            os.kill(os.getpid(), 9)

    if arguments["who"] == "zeus":
        sys.path.append(arguments["zeus"])
        begin_step, _ = zeus_optimizer("zeus")
        while True:
            begin_step()
            iterate()
    from powerd_client import Meter

    with Meter(out="run.h5", quiet=True) as meter, meter.optimise_power(max_slowdown=0.5) as chooser:
        while True:
            with chooser.iteration():
                iterate()


def killed(o) -> None:
    after = "from powerd_daemon.sources.sim.gpu_socket import SimGpu as S; "
    after += "print(S.here().call('nvmlDeviceGetPowerManagementLimit', [0]) / 1e3)"
    script = f'{sys.executable} {__file__} --train "$0"; sleep 2; {sys.executable} -c "{after}"'
    for who in ("ours", "zeus") if o.zeus else ("ours",):
        command = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--control", "--", "sh", "-c", script]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [*command, json.dumps({"who": who, "zeus": o.zeus})],
                stdout=subprocess.PIPE, text=True, check=True, cwd=folder,
            )  # fmt: skip
        during_w, after_w = done.stdout.split()[-2:]
        print(f"{who}: killed with SIGKILL at {during_w} W, two seconds later {float(after_w):g} W", flush=True)


def main() -> None:
    o = options(
        __doc__,
        network=["alexnet", "vgg19", "resnet50", "inception3"],
        seeds=5,
        first_seed=1,
        iterations=6000,
        iteration_s=0.06,
        metric="edp",
        max_slowdown=0.5,
        jitter=0.02,
        wander=0.005,
        noise=0.01,
        zeus="",
        killed=False,
        live=False,
        train="",
    )
    if o.train:
        arguments = json.loads(o.train)
        (train_live if "options" in arguments else train_and_be_killed)(arguments)
        return
    print(machine())
    if o.killed:
        killed(o)
    elif o.live:
        compare_live(o)
    else:
        compare(o)


if __name__ == "__main__":
    main()
