"""Two simulated cards in this process, which outlive every helper, and the helpers that are started on them."""

import os
from collections.abc import Callable
from pathlib import Path

from powerd_control.knobs import Bench, gpu_knobs
from powerd_control.leases import POLL_S, Holder, Leases, Records, start_ticks
from powerd_core.gpu_physics import RTX_6000
from powerd_daemon.sources.sim.as_pynvml.pynvml import Refusal
from powerd_daemon.sources.sim.gpu import SimulatedGpu, SimulatedNode
from powerd_daemon.sources.sim.nvml_face import NvmlFace, make_module

FOUND_W, ASKED_W, ADMINS_W = 230.0, 150.0, 190.0
LIVES = Holder(os.getuid(), os.getpid(), start_ticks(os.getpid()) or 0, "train.py")
DEAD = Holder(os.getuid(), 2**22 - 1, 5, "gone")


class Machine:
    """Two cards whose caps were set by hand, the records of helpers, and the helpers."""

    def __init__(self, folder: Path) -> None:
        self.node = SimulatedNode([SimulatedGpu(RTX_6000, index) for index in range(2)])
        self.cards = list(self.node.gpus)
        for gpu in self.cards:
            gpu.set_to.limit_w = FOUND_W
        self.folder, self.now_s = folder / "leases", 1000.0
        self.is_driver_up = True
        self.called: Callable[[str], object] = lambda name: None
        """Is told of each call of the driver before it is answered."""
        self.refused: list[int] = []
        """Return values of NVML with which a driver has refused a call."""

    def _call(self, face):
        def call(name, arguments):
            self.called(name)
            try:
                if not self.is_driver_up:
                    raise Refusal(9)
                return face.call(name, arguments)
            except Refusal as refusal:
                self.refused.append(refusal.code)
                raise

        return call

    @property
    def nvml(self):
        """The driver, as a helper opens it."""
        return make_module(self._call(NvmlFace(self.node, lambda: self.now_s)))

    def start(self) -> Leases:
        nvml = self.nvml
        self.bench = Bench({"nvml": lambda: gpu_knobs(nvml)})
        leases = Leases(self.bench, Records(self.folder), lambda: self.now_s, "boot")
        leases.restore()
        return leases

    def wanted(self, value=ASKED_W, cards=(0, 1)):
        return [(self.bench.find(self.cards[card].uuid, "power_cap"), value) for card in cards]

    def caps_w(self):
        return [gpu.set_to.limit_w for gpu in self.cards]

    def go_on(self, leases: Leases) -> None:
        for _ in range(3):
            self.now_s += POLL_S
            leases.poll()

    def faults(self, *names, card=0):
        self.cards[card].faults = set(names)

    @property
    def record(self) -> Path:
        (record,) = self.folder.glob("*.json")
        return record

    def renumber(self, *cards: int) -> None:
        """NVML has to be opened anew and knows these cards in this order; settings and counters are as they were."""
        self.node.gpus = [self.cards[card] for card in cards]
        self.node.loads += 1
        for index, gpu in enumerate(self.node.gpus):
            gpu.index = index
