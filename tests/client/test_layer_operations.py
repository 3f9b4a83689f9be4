"""What the first pass of a watched model in training says of its layers."""

import pytest
import torch
from torch import nn

from powerd_analytics import count_operations
from powerd_client.training.layer_operations import WATCHED_MODEL
from support.tape import TapedMeter


class Net(nn.Module):
    def __init__(self, *more):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), *more)
        self.head = nn.Linear(4 * 15 * 15, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


X = torch.randn(8, 3, 32, 32)


def events_of(net, passes=2, **attributes):
    with TapedMeter() as meter, meter.watch(net, **attributes):
        with torch.no_grad():
            net(X)
        for _ in range(passes):
            net(X).sum().backward()
        return [values for name, values in meter.tape.events if name == WATCHED_MODEL], meter.tape.notes


@pytest.mark.parametrize("attributes", [{}, {"batch_size": 8}, {"model": "net"}])
def test_the_operations_of_a_sample_are_counted_once(attributes):
    model = Net()
    (event,), notes = events_of(model, **attributes)
    assert event["operations_per_sample"] == count_operations(model, (3, 32, 32)).total
    assert event["model"] == attributes.get("model", "Net-9.13k")
    assert event["layers"][0] == ["features.0", "Conv2d", [4, 30, 30]]
    assert [row[0] for row in event["layers"]] == [f"features.{i}" for i in range(4)] + ["head"]
    assert notes == []


def test_nothing_is_hooked_afterwards():
    model = Net()
    events_of(model)
    assert not nn.modules.module._global_forward_hooks
    assert all(not module._forward_hooks for module in model.modules())


def test_what_the_user_states_stands():
    (event,), _ = events_of(Net(), operations_per_sample=5.0)
    assert "operations_per_sample" not in event


def test_a_layer_without_an_equation_leaves_no_number():
    """Half a count would pass for the whole."""
    (event,), _ = events_of(Net(nn.PReLU()))
    assert "operations_per_sample" not in event
    assert event["not_counted"] == ["features.4 (PReLU)"]


def test_a_pass_that_fails_says_nothing():
    model = Net()
    with TapedMeter() as meter, meter.watch(model):
        with pytest.raises(RuntimeError):
            model(torch.randn(8, 3, 5, 5))
        assert meter.tape.events == []
    assert not nn.modules.module._global_forward_hooks


def test_an_evaluation_alone_says_nothing():
    assert events_of(Net(), passes=0)[0] == []
