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


class TrainersWrapper(nn.Module):
    """A trainer's own module around the one that it compiled."""

    def __init__(self, model):
        super().__init__()
        self.inner = torch.compile(model, backend="eager")

    def forward(self, x):
        return self.inner(x)


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def compiled_again(model):
    model.compile(backend="eager")
    model(X)
    return compiled_in_place(model)


WAYS = {
    "torch.compile": lambda model: torch.compile(model, backend="eager"),
    "model.compile": compiled_in_place,
    "model.compile twice": compiled_again,
    "inside a trainer's module": TrainersWrapper,
    "not compiled after all": lambda model: torch.compile(model, backend="eager", disable=True),
    "a compiled step": lambda model: torch.compile(TrainersWrapper(model), backend="eager"),
}


@pytest.mark.parametrize("is_seen_before", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_however_a_watched_model_is_compiled_its_passes_are_marked_once(meter, way, is_seen_before):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if not is_seen_before:
        meter.watch(model, optimizer, batch_size=4)
    called = WAYS[way](model)
    if is_seen_before:
        meter.watch(model, optimizer, batch_size=4)
    meter.tape.marks.clear()
    train(called, optimizer, steps=2)
    with torch.no_grad():
        called(X)
    if way == "a compiled step":
        assert meter.tree() == " ".join(["backward:4 update:4"] * 2)
        return
    assert meter.tree() == " ".join(["forward:4 backward:4 update:4"] * 2) + " evaluation:4"
    meter.close()
    assert meter.tape.notes == []
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_compiled_model_that_fails_is_cut_and_the_next_pass_is_marked(meter):
    class Failing(Net):
        fails = True

        def forward(self, x):
            if self.fails:
                raise KeyError
            return super().forward(x)

    model = Failing()
    meter.watch(model)
    called = torch.compile(model, backend="eager")
    with pytest.raises(KeyError):
        called(X)
    model.fails = False
    called(X).sum().backward()
    assert meter.tree() == "forward! forward backward"


def test_a_model_that_is_called_by_another_way_is_told_at_the_end(meter):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter.watch(model, optimizer)
    for _ in range(3):
        model.forward(X).sum().backward()
        optimizer.step()
    assert meter.tree() == " ".join(["backward update"] * 3)
    meter.close()
    (note,) = meter.tape.notes
    assert note.startswith("watch: backward ran 3 times, the watched Net never: its forward cannot be seen")


def test_the_model_inside_a_watched_wrapper_is_marked_too(meter):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wrapper = torch.compile(model, backend="eager")
    meter.watch(wrapper, optimizer)
    train(model, optimizer, steps=1)
    train(wrapper, optimizer, steps=1)
    assert meter.tree() == " ".join(["forward backward update"] * 2)


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
