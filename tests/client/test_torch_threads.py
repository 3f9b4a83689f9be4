"""`Meter.watch` where several threads train, or one evaluates while another trains."""

import threading

import pytest
import torch
from torch import nn

from support.tape import TapedMeter

X = torch.randn(4, 3)
WAIT_S = 10


@pytest.fixture
def meter():
    with TapedMeter() as meter:
        yield meter


def beside(work):
    """Run ``work`` in another thread while this one waits."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()


class Interrupted(torch.optim.SGD):
    """An optimizer whose step lets something else happen in the middle."""

    during = staticmethod(lambda: None)

    @torch.no_grad()
    def step(self, closure=None):
        self.during()
        return super().step(closure)


def test_a_pass_in_another_thread_does_not_end_an_update(meter):
    model = nn.Linear(3, 2)
    optimizer = Interrupted(model.parameters(), lr=0.01)
    meter.watch(model, optimizer)

    def evaluate():
        with torch.no_grad():
            model(X)

    optimizer.during = lambda: beside(evaluate)
    for _ in range(2):
        model(X).sum().backward()
        optimizer.step()
    assert meter.tree().split().count("evaluation") == 2
    assert "!" not in meter.tree()
    assert sorted(meter.tree().split()) == sorted(["forward", "backward", "update", "evaluation"] * 2)
    assert meter.tape.problems == []
    assert meter.tape.notes == []


class Meeting(torch.autograd.Function):
    """Hands its input on; in backward it calls a function."""

    @staticmethod
    def forward(ctx, x, meet):
        ctx.meet = meet
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.meet()
        return gradient, None


class Meets(nn.Module):
    def __init__(self, meet):
        super().__init__()
        self.meet = meet

    def forward(self, x):
        return Meeting.apply(x, self.meet)


def layered(meet):
    return nn.Sequential(nn.Linear(3, 3), Meets(meet), nn.Linear(3, 2))


def test_layers_of_two_backward_passes_lie_each_in_their_own(meter):
    inner = layered(lambda: None)
    meter.watch(inner, layers=True)
    outer = layered(lambda: beside(lambda: inner(X).sum().backward()))
    meter.watch(outer, layers=True)
    outer(X).sum().backward()
    phases, names = meter.tape.phases()
    assert meter.tape.problems == []
    inside = {}
    for kind, parent in zip(phases.kind, phases.parent, strict=True):
        if parent >= 0:
            inside.setdefault(parent, []).append(names[kind])
    backward = ["layer:2", "layer:1", "layer:0"]
    assert sorted(inside.values()) == sorted([backward, backward, backward[::-1], backward[::-1]])
    assert not any(phases.cut)
