"""What a training script marks by itself: phases, the waits for data, and the plain loop."""

import copy

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from powerd_core.errors import ConfigError
from support.tape import TapedMeter


@pytest.fixture
def meter():
    with TapedMeter() as meter:
        yield meter


def batches():
    yield 1


async def step():
    pass


async def stream():
    yield 1


@pytest.mark.parametrize("function", [batches, step, stream])
def test_what_runs_after_its_call_has_returned_is_refused(meter, function):
    with pytest.raises(ConfigError):
        meter.phase("x")(function)


def test_a_function_keeps_its_arguments_result_and_exceptions(meter):
    half = meter.phase("half")(lambda x, *, by=2: x / by)
    assert half(3, by=6) == 0.5
    with pytest.raises(ZeroDivisionError):
        half(1, by=0)
    assert meter.tree() == "half half"


class Sized:
    """A loader that says how long it is."""

    def __init__(self, says, items):
        self.says, self.items = says, items

    def __len__(self):
        return self.says

    def __iter__(self):
        return iter(self.items)


@pytest.mark.parametrize(
    ("loader", "tree"),
    [
        ([1, 2], "data data"),
        (iter([1, 2]), "data data data!"),  # an end that could not be known
        (Sized(1, [1, 2]), "data"),
        (Sized(2, [1]), "data data!"),
        (Sized(0, []), ""),
    ],
)
def test_each_wait_is_a_phase(meter, loader, tree):
    items = getattr(loader, "items", [1, 2])
    assert list(meter.data(loader)) == items
    assert meter.tree() == tree


def test_every_epoch_begins_anew_and_the_loader_is_otherwise_itself(meter):
    loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
    wrapped = meter.data(loader)
    for _ in range(2):
        for _ in wrapped:
            with meter.phase("work"):
                pass
    assert meter.tree() == " ".join(["data work"] * 6)
    assert len(wrapped) == 3
    assert wrapped.dataset is loader.dataset
    assert copy.copy(wrapped).batch_size == 2
    with pytest.raises(AttributeError):
        _ = wrapped.nothing


def test_the_plain_loop(meter):
    for batch in meter.iterations([1, 2], batch_size=4):
        with meter.phase("forward"):
            assert batch
    assert meter.tree() == "iteration:4[data forward] iteration:4[data forward]"


def test_leaving_the_plain_loop_ends_its_iteration(meter):
    def fail():
        for batch in meter.iterations([1, 2, 3]):
            raise ValueError(batch)

    for batch in meter.iterations([1, 2, 3]):
        if batch == 2:
            break
    with pytest.raises(ValueError, match="1"):
        fail()
    assert meter.tree() == "iteration[data] iteration[data] iteration[data]"
