"""The training of `train.py` on the card of `powerd sim-gpu`: it works as long as a real one would, at its caps and
clocks, and nothing is computed. So there is no loss, no accuracy, no precision and no algorithm.

Six networks and Xception have constants that were fitted to published sweeps (`powerd_core.gpu_physics`). For any other
one a network of its kind stands in, with kernels that take longer by the ratio of their operations: its joules are an
example, no forecast.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from operations import OPERATIONS

from powerd_client import Meter
from powerd_core.errors import ConfigError
from powerd_core.gpu_physics import CARDS, NETWORKS, RTX_6000, XCEPTION, Card, Network, timed
from powerd_daemon.sources.sim.gpu_socket import SimGpu

FORWARD, BACKWARD = 0.32, 0.64
"""Shares of an iteration's kernels; the rest is the update."""


class Fitted(NamedTuple):
    """What is known of a network on the RTX 6000."""

    network: Network
    batch_size: int
    iteration_s: float
    """At full clocks, with that batch."""


FITTED = {
    "alexnet": Fitted(NETWORKS["alexnet"], 128, 0.1128),
    "vgg19": Fitted(NETWORKS["vgg19"], 128, 0.882),
    "inception3": Fitted(NETWORKS["inception3"], 128, 0.7376),
    "inception4": Fitted(NETWORKS["inception4"], 64, 0.6978),
    "resnet50": Fitted(NETWORKS["resnet50"], 128, 0.5016),
    "resnet152": Fitted(NETWORKS["resnet152"], 64, 0.5367),
    # The study says how long 50,000 images take, and not its batch size: with 32, 2 to 8 cards are as fast as there.
    "xception": Fitted(XCEPTION, 32, XCEPTION.time_s * 32 / 50_000),
}
LIKE = {
    "vgg16": "vgg19", "googlenet": "inception3", "googlenet-auxiliary": "inception3", "caffenet": "alexnet",
    "2d-cnn": "alexnet", "2d-cnn-full5": "alexnet", "small": "alexnet", "resnet-im": "resnet50",
    "resnet-gait": "resnet50",
}  # fmt: skip


def work_of(model: str, batch_size: int, cards: int, card: Card) -> Network:
    """An iteration on one of ``cards`` cards that share the batch. The kernels take as long as it is large; the gaps
    between them stay, and so does the exchange of gradients. Raises `ConfigError`."""
    own = LIKE.get(model, model)
    fitted = FITTED[own]
    network = timed(fitted.network, fitted.iteration_s)
    if cards > 1 and cards not in (network.communication_s or {}):
        raise ConfigError(f"the simulated card does not know how {cards} cards share {model}: xception runs on 2, 4, 8")
    waiting_s = network.waiting * network.time_s / cards
    of_fitted = OPERATIONS[model].executed / OPERATIONS[own].executed
    kernels_s = (1 - network.waiting) * network.time_s / cards * of_fitted * batch_size / fitted.batch_size
    core_s = (1 - network.memory) * kernels_s * RTX_6000.flops / card.flops
    memory_s = network.memory * kernels_s * RTX_6000.bytes_per_s / card.bytes_per_s
    time_s = waiting_s + core_s + memory_s
    return replace(
        network, time_s=time_s, waiting=waiting_s / time_s, memory=memory_s / (core_s + memory_s),
        busy_w=network.busy_w * card.work_w / RTX_6000.work_w,
    )  # fmt: skip


def card_here(on: str) -> tuple[SimGpu, Card]:
    """The simulated card of this environment, which is the one of ``sim:CARD``. Raises `ConfigError`, `PeerError`."""
    kind, _, wanted = on.partition(":")
    if kind != "sim" or (wanted and wanted not in CARDS):
        raise ConfigError(f"--on {on}: there is sim, {', '.join(f'sim:{name}' for name in CARDS)}")
    gpu = SimGpu.here()
    full_name = gpu.call("nvmlDeviceGetName", [0])
    name = next(name for name, card in CARDS.items() if card.name == full_name)
    if wanted not in ("", name):
        raise ConfigError(f"--on {on}: the simulated card is a {name}: start `powerd sim-gpu --card {wanted}`")
    return gpu, CARDS[name]


def check_cards(gpu: SimGpu, cards: int) -> None:
    """Raises `ConfigError`."""
    there = gpu.call("nvmlDeviceGetCount", [])
    if cards > there:
        raise ConfigError(f"--gpus {cards}: the simulation has {there}: start `powerd sim-gpu --cards {cards}`")


def train(options: argparse.Namespace) -> None:
    """Raises `PowerdError` where no card is simulated, or another one."""
    if options.target or options.validation:
        raise ConfigError("--target and --validation need a real training: on a simulated card nothing is learnt")
    (gpu, card), cards = card_here(options.on), options.gpus
    check_cards(gpu, cards)
    work = work_of(options.model, options.batch_size, cards, card)
    exchange_s = (work.communication_s or {}).get(cards, 0.0)
    is_training, operations = options.mode == "train", OPERATIONS[options.model]
    kernels_s = (1.0 - work.waiting) * work.time_s
    waiting_s = work.waiting * work.time_s * (1.0 if is_training else FORWARD)
    with Meter() as meter, ThreadPoolExecutor(cards) as pool:

        def run(share: float, wait_s: float = 0.0, exchange_s: float = 0.0) -> None:
            memory_s = share * kernels_s * work.memory
            core_s = share * kernels_s - memory_s

            def on_card(number: int) -> None:
                gpu.run(wait_s, core_s, memory_s, work.busy_w, exchange_s=exchange_s, gpu=number)

            list(pool.map(on_card, range(cards)))

        attributes = {"model": options.model, "batch_size": options.batch_size, "mode": options.mode, "gpus": cards}
        attributes |= {"operations_per_sample": operations.paper}
        if is_training:
            attributes |= {"operations_executed_per_sample": operations.executed}
        iteration = meter.phase("iteration", **attributes)
        forward = meter.phase("forward" if is_training else "evaluation")
        data, backward, update = meter.phase("data"), meter.phase("backward"), meter.phase("update")
        for _ in range(options.epochs * -(-options.images // options.batch_size)):
            with iteration:
                with data:
                    run(0.0, waiting_s)
                with forward:
                    run(FORWARD)
                if is_training:
                    with backward:
                        run(BACKWARD, exchange_s=exchange_s)
                    with update:
                        run(1.0 - FORWARD - BACKWARD)
