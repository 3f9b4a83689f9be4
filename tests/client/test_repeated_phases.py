"""`Meter.magnify` leaves a training as it was, and marks what it repeats."""

import copy
import itertools
import random
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from powerd_client.signals.pairing import Kinds, add_iterations
from powerd_client.training import repeated_phases
from powerd_core.errors import ConfigError
from support.tape import TapedMeter

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.real_gpu),
]


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    monkeypatch.setattr(repeated_phases, "STRETCH_S", (0.01, 0.02))


@pytest.fixture
def exact():
    """Kernels that compute the same bits again."""
    torch.use_deterministic_algorithms(True)
    cudnn, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = cudnn


class Training:
    """Batch norm, dropout and noise from all generators, two optimizers and a schedule."""

    def __init__(self, device):
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(7)
        self.device = device
        self.model = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(144, 3),
        ).to(device)
        parameters = list(self.model.parameters())
        self.optimizers = [
            torch.optim.AdamW(parameters[:4], 1e-2, weight_decay=0.1),
            torch.optim.SGD(parameters[4:], 1e-2, momentum=0.9),
        ]
        self.x = self.batch()
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizers[0], 0.9)

    def batch(self):
        return torch.randn(8, 1, 8, 8, device=self.device) * (1 + np.random.rand() + random.random())

    def loss(self, x):
        return self.model(x).square().mean()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.loss(self.batch()).backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self.schedule.step()

    def state(self):
        return copy.deepcopy([x.state_dict() for x in (self.model, *self.optimizers, self.schedule)])


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def generators():
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [random.getstate(), [x.tolist() if isinstance(x, np.ndarray) else x for x in np.random.get_state()],
            torch.get_rng_state(), cuda]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("when", [0, 3])
def test_a_training_goes_on_to_the_same_bits(device, when, exact):
    """Before the first step, when the optimizers have no state and there are no gradients, and later."""

    def trained(*, magnified):
        training = Training(device)
        for n in range(6):
            if magnified and n == when:
                before, drawn = training.state(), generators()
                gradients = [p.grad for p in training.model.parameters()]
                with TapedMeter() as meter:
                    meter.magnify(
                        training.model,
                        *training.optimizers,
                        loss=lambda: training.loss(training.x * (random.random() + np.random.rand())),
                    )
                    assert meter.tree().count("magnified update") > 2
                assert same(generators(), drawn)
                assert same(training.state(), before)
                assert all(p.grad is g for p, g in zip(training.model.parameters(), gradients, strict=True))
            training.step()
        return training.state()

    assert same(trained(magnified=True), trained(magnified=False))


def test_what_is_repeated_lies_in_a_phase_of_its_own_and_in_no_iteration():
    training = Training("cpu")
    with TapedMeter() as meter:
        meter.watch(training.model, *training.optimizers)
        for n in range(4):
            training.step()
            if n == 1:
                meter.magnify(training.model, *training.optimizers, loss=lambda: training.loss(training.x))
        spans, names = meter.tape.phases()
        kinds = Kinds()
        for number in sorted(names):
            kinds.number({"name": names[number].partition(":")[0], "attributes": {"n": number}, "timing": "host"})
        assert len(kinds.entries) == len(meter.tape.kinds) - len(meter.tape.cuts)
        order = {number: place for place, number in enumerate(sorted(names))}
        spans.kind = [order[kind] for kind in spans.kind]
        add_iterations(spans, kinds)
    name_of = [kinds.entries[kind]["name"] for kind in spans.kind]
    inside = {name: [] for name in name_of}
    for name, parent in zip(name_of, spans.parent, strict=True):
        inside[name].append("" if parent < 0 else name_of[parent])
    assert inside["iteration"] == [""] * 4
    assert inside["forward"] == inside["backward"] == ["iteration"] * 4
    assert inside["magnify"] == [""]
    for name in ("forward", "backward", "update"):
        assert set(inside[f"magnified {name}"]) == {"magnify"}


class OnGpu(nn.Parameter):
    is_cuda = True


class FakeCuda:
    """A GPU that is always done with what was queued before the last two events, or never."""

    def __init__(self, is_done):
        self.waits = 0
        cuda = self

        class Event:
            def record(self):
                pass

            def query(self):
                return is_done

            def synchronize(self):
                cuda.waits += 1

        self.Event = Event

    def is_initialized(self):
        return False


@pytest.mark.parametrize("host_is_slow", [True, False])
def test_a_slow_host_gets_a_head_start_before_the_repetitions(host_is_slow, monkeypatch):
    monkeypatch.setattr(repeated_phases, "_cuda", cuda := FakeCuda(is_done=host_is_slow))
    monkeypatch.setattr(repeated_phases, "JUDGED_S", 0.0)
    ticks = itertools.count(step=1_000_000)  # a millisecond each look: some repetitions a stretch on any machine
    monkeypatch.setattr(repeated_phases, "now_ns", lambda: next(ticks))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    training = Training("cpu")
    training.model[-1].weight = OnGpu(training.model[-1].weight.detach())
    before = training.state()
    with TapedMeter() as meter:
        meter.magnify(training.model, *training.optimizers, loss=lambda: training.loss(training.x))
        assert not meter.tape.notes
        spans, names = meter.tape.phases()
    inside = [names[kind] for kind in spans.kind]
    repeated = [name for name in inside if name.startswith("magnified")]
    assert len(list(itertools.groupby(repeated))) == 2 * 3  # no stretch behind one of its own kind
    behind = {inside[i + 1] for i, name in enumerate(inside) if name == "head start"}
    assert behind == ({"magnified forward", "magnified update"} if host_is_slow else set())
    assert (cuda.waits == 0) == host_is_slow
    assert same(training.state(), before)


class Queued(NamedTuple):
    phase: str
    ns: int
    gpu_waited: bool


class SlowHost:
    """A GPU and a host that each take their time, by a clock of their own, for what is queued."""

    def __init__(self, host_ms, gpu_ms):
        self.host_ms, self.gpu_ms = host_ms, gpu_ms
        self.now_ns = self.done_ns = 0
        self.phase, self.queued = "", []
        host = self

        class Event:
            def record(self):
                self.at_ns = host.done_ns

            def query(self):
                return host.now_ns >= self.at_ns

            def synchronize(self):
                host.now_ns = max(host.now_ns, self.at_ns)

        self.Event = Event

    def is_initialized(self):
        return False

    def synchronize(self):
        self.now_ns = max(self.now_ns, self.done_ns)

    def marked(self, name):
        host = self

        class Phase:
            def __enter__(self):
                self.outer, host.phase = host.phase, name

            def __exit__(self, *_):
                host.phase = self.outer

        return Phase()

    def queue(self, name):
        self.now_ns += round(self.host_ms[name] * 1e6)
        self.queued.append(Queued(self.phase, self.now_ns, self.now_ns > self.done_ns))
        self.done_ns = max(self.done_ns, self.now_ns) + round(self.gpu_ms[name] * 1e6)

    def loss(self):
        self.queue("forward")
        return SimpleNamespace(backward=lambda retain_graph: self.queue("backward"))


@pytest.mark.parametrize(("backward_ms", "passes"), [(5.0, range(3, 6)), (12.0, range(7, 10)), (20.0, range(16, 17))])
def test_a_head_start_lasts_until_the_host_is_ahead(backward_ms, passes, monkeypatch):
    host = SlowHost({"forward": 9.0, "backward": backward_ms}, {"forward": 6.3, "backward": 14.2})
    monkeypatch.setattr(repeated_phases, "_cuda", host)
    monkeypatch.setattr(repeated_phases, "now_ns", lambda: host.now_ns)
    monkeypatch.setattr(repeated_phases, "STRETCH_S", (0.5, 0.5))
    monkeypatch.setattr(torch.cuda, "synchronize", host.synchronize)
    training = Training("cpu")
    training.model[-1].weight = OnGpu(training.model[-1].weight.detach())
    repeated_phases.magnify(host.marked, training.model, [], host.loss, 1.0)
    stretches = [list(some) for _, some in itertools.groupby(host.queued, lambda q: q.phase == "magnified backward")]
    starts = []
    for stretch in (s for s in stretches if s[0].phase == "magnified forward"):
        groups = [(phase, list(some)) for phase, some in itertools.groupby(stretch, lambda q: q.phase)]
        starts += [len(some) for phase, some in groups if phase == "head start"]
        first = [phase for phase, _ in groups].index("head start")
        behind = [q for phase, some in groups[first:] for q in some if phase == "magnified forward"]
        if backward_ms < 14:
            assert len(behind) >= 28
            assert not any(q.gpu_waited for q in behind)
        assert stretch[-1].ns - stretch[0].ns < 1.5e9
    assert len(starts) >= 4
    assert set(starts) <= set(passes)


def test_a_failure_is_told_and_leaves_nothing_behind(capsys):
    training = Training("cpu")
    training.step()
    before, calls = training.state(), []

    def loss():
        calls.append(1)
        if len(calls) > 3:
            raise MemoryError("no more")
        return training.loss(training.x)

    with TapedMeter() as meter:
        meter.magnify(training.model, *training.optimizers, loss=loss)
        assert meter.tape.notes == ["phases could not be magnified: MemoryError: no more"]
    assert "could not be magnified" in capsys.readouterr().err
    assert same(training.state(), before)


def test_arguments_of_the_wrong_type_are_refused():
    training = Training("cpu")
    with TapedMeter() as meter:
        for arguments, options in (
            ((training.optimizers[0],), {"loss": training.loss}),
            ((training.model, training.model), {"loss": training.loss}),
            ((training.model,), {"loss": torch.zeros(1)}),
            ((training.model,), {"loss": training.loss, "seconds": 0}),
        ):
            with pytest.raises(ConfigError):
                meter.magnify(*arguments, **options)
