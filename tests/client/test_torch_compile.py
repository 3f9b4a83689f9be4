"""Compiled, scripted and sharded models: marked outside, never traced."""

import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from support.tape import TapedMeter

X = torch.randn(4, 3)


@pytest.fixture
def meter():
    torch._dynamo.reset()
    with TapedMeter() as meter:
        yield meter
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x).relu())


def network():
    return Net()


def train(model, optimizer, steps=3):
    for _ in range(steps):
        model(X).sum().backward()
        optimizer.step()


THREE_STEPS = " ".join(["forward backward update"] * 3)


def test_the_compiled_wrapper_is_marked_and_compiled_once(meter):
    counter = CompileCounter()
    model = torch.compile(network(), backend=counter, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter.watch(model, optimizer, layers=True)
    train(model, optimizer)
    assert meter.tree() == THREE_STEPS
    assert counter.frame_count == 1
    assert "layers" in meter.tape.notes[0]


def test_a_model_compiled_in_place_is_marked_around_its_compiled_call(meter):
    counter, model = CompileCounter(), network()
    model.compile(backend=counter)
    compiled = model._compiled_call_impl
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with meter.watch(model, optimizer):
        train(model, optimizer)
    assert meter.tree() == THREE_STEPS
    assert counter.frame_count == 1
    assert model._compiled_call_impl is compiled


def test_a_model_compiled_after_it_was_watched_is_neither_broken_nor_recompiled(meter):
    counter, model = CompileCounter(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter.watch(model, optimizer, layers=True)
    train(torch.compile(model, backend=counter, fullgraph=True), optimizer)
    assert counter.frame_count == 1
    layers = ("layer:body", "layer:head")
    assert meter.tree(drop=layers) == THREE_STEPS


def test_a_scripted_model_has_backward_and_update_only(meter):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        model = torch.jit.script(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter.watch(model, optimizer, layers=True)
    train(model, optimizer, steps=1)
    assert meter.tree() == "backward update"
    assert any("scripted" in note for note in meter.tape.notes)
