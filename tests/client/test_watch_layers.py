"""Layers, forward and backward."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from powerd_client import watchhooks
from support.tape import TapedMeter

X = torch.randn(4, 3)


@pytest.fixture
def meter():
    with TapedMeter() as meter:
        yield meter


def short(meter):
    return meter.tree().replace("layer:", "")


def test_every_layer_forward_and_backward_with_activations_in_place(meter):
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.Linear(8, 2))
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert short(meter) == "forward[0 1 2 3] backward[3 2 1 0]"


def test_gradients_are_the_same_with_and_without(meter):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(8, 2))
    model(X).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


def test_a_shared_layer_is_marked_each_time_under_its_first_name(meter):
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert short(meter) == "forward[0 1 0] backward[0 1 0]"


def test_a_layer_that_hands_its_input_on_takes_no_backward_of_another(meter):
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Linear(3, 2))
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert short(meter) == "forward[0 1 2] backward[2 0]"


def test_branches_and_layers_with_several_outputs(meter):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.shortcut, self.lstm = nn.Linear(3, 3), nn.Linear(3, 3), nn.LSTM(3, 4)

        def forward(self, x):
            y, _ = self.lstm(self.body(x) + self.shortcut(x))
            return y

    model = Net()
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert short(meter) == "forward[body shortcut lstm] backward[lstm shortcut body]"


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_of_a_checkpoint_are_marked_again_inside_its_recomputation(meter, reentrant):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(checkpoint(lambda y: self.b(self.a(y)), x, use_reentrant=reentrant))

    model = Net()
    meter.watch(model, layers=True)
    model(X.clone().requires_grad_()).sum().backward()
    # The layer in whose span the recomputation comes is in two pieces: the one before the checkpoint's own node, or the
    # one whose input is missing. The latter needs no more than that input, so b is not recomputed to its end.
    asked = "head recompute[a b] head b a" if reentrant else "head b recompute[a b!] b a"
    assert short(meter) == f"forward[a b head] backward[{asked}]"


def test_evaluation_has_layers_too_and_no_backward(meter):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    meter.watch(model, layers=True)
    with torch.no_grad():
        model(X)
    assert short(meter) == "evaluation[0 1]"


def test_a_model_without_modules_inside_is_named_by_its_type(meter):
    model = nn.Linear(3, 2)
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert short(meter) == "forward[Linear] backward[Linear]"


def test_names_are_those_of_the_users_model(meter):
    wrapped = nn.Module()
    wrapped.module = nn.ModuleDict(  # as DDP around a checkpoint's wrapper and FSDP around one layer
        {
            "submodule": nn.ModuleDict({"conv": nn.Identity()}),
            "block": nn.ModuleDict({"_checkpoint_wrapped_module": nn.ModuleDict({"module": nn.Identity()})}),
            "head": nn.ModuleDict({"_fsdp_wrapped_module": nn.Identity()}),
        }
    )
    meter.watch(wrapped, layers=True)
    named = [attributes[0][1] for name, attributes in meter.tape.kinds if name == "layer"]
    assert named == ["submodule.conv", "block.module", "head"]


def test_a_layer_that_raises_is_cut(meter):
    class Bad(nn.Module):
        def forward(self, x):
            raise ValueError(x)

    model = nn.Sequential(nn.Linear(3, 3), Bad())
    meter.watch(model, layers=True)
    with pytest.raises(ValueError):  # noqa: PT011
        model(X)
    assert short(meter) == "forward![0 1!]"


def test_only_part_of_the_model_needs_gradients(meter):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert short(meter) == "forward[0 1] backward[1]"


def test_two_passes_over_one_graph(meter):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    meter.watch(model, layers=True)
    loss = model(X).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert short(meter) == "forward[0 1] backward[1 0] backward[1 0]"


def test_a_view_that_can_have_no_gradient_does_not_stop_the_step(meter):
    layer = nn.Linear(3, 2)
    model = nn.Sequential(layer)
    meter.watch(model, layers=True)
    base = torch.randn(4, 3, requires_grad=True) * 1
    first, _ = base.split(2)
    base.mul_(2)  # from here on autograd refuses to say what made `first`
    with torch.no_grad():
        layer(first)
    assert short(meter) == "0"


def test_a_hook_that_fails_is_told_and_not_raised(meter, monkeypatch):
    model = nn.Linear(3, 2)
    meter.watch(model)

    def fails():
        raise RuntimeError("of another release")

    monkeypatch.setattr(watchhooks, "graph_task", fails)
    model(X).sum()
    noted = [text for text in meter._marker._noted if "of another release" in text]
    assert noted == ["a hook failed, and phases may be missing: RuntimeError: of another release"]
