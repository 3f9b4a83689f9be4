"""The wait for data, and the plain loop."""

import copy

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from support.tape import TapedMeter


@pytest.fixture
def meter():
    with TapedMeter() as meter:
        yield meter


def test_each_wait_is_a_phase_the_first_one_included(meter):
    assert list(meter.data([1, 2, 3])) == [1, 2, 3]
    assert meter.tree() == "data data data"


def test_every_epoch_begins_anew(meter):
    loader = meter.data(DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2))
    for _ in range(2):
        for _ in loader:
            with meter.phase("work"):
                pass
    assert meter.tree() == " ".join(["data work"] * 6)


def test_an_end_that_could_not_be_known_is_cut(meter):
    assert list(meter.data(iter([1, 2]))) == [1, 2]
    assert meter.tree() == "data data data!"


def test_a_dataset_without_a_reliable_length(meter):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([1.0, 2.0, 3.0])

        def __len__(self):
            return 2

    loader = DataLoader(Stream(), batch_size=None)
    assert [float(x) for x in meter.data(loader)] == [1.0, 2.0, 3.0]
    assert meter.tree() == "data data data data!"


def test_a_loader_longer_or_shorter_than_it_says(meter):
    class Liar:
        def __init__(self, says, items):
            self.says, self.items = says, items

        def __len__(self):
            return self.says

        def __iter__(self):
            return iter(self.items)

    assert list(meter.data(Liar(1, [1, 2]))) == [1, 2]
    assert list(meter.data(Liar(2, [1]))) == [1]
    assert list(meter.data(Liar(0, []))) == []
    assert meter.tree() == "data data data!"


def test_an_error_of_the_loader_comes_through(meter):
    def broken():
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(meter.data(broken()))
    assert meter.tree() == "data data!"


def test_the_loader_is_otherwise_itself(meter):
    loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
    wrapped = meter.data(loader)
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
    for batch in meter.iterations([1, 2, 3]):
        if batch == 2:
            break

    def fail():
        for batch in meter.iterations([1, 2, 3]):
            raise ValueError(batch)

    with pytest.raises(ValueError, match="1"):
        fail()
    assert meter.tree() == "iteration[data] iteration[data] iteration[data]"


def test_continue_in_the_plain_loop(meter):
    for _ in meter.iterations([1, 2]):
        continue
    assert meter.tree() == "iteration[data] iteration[data]"


def test_the_plain_loop_over_what_has_no_length(meter):
    for _ in meter.iterations(iter([1])):
        pass
    assert meter.tree() == "iteration[data] iteration![data!]"


def test_watch_hands_the_loader_back(meter):
    watch = meter.watch(torch.nn.Linear(1, 1), loader=[1, 2])
    assert list(watch.loader) == [1, 2]
    assert meter.tree() == "data data"


def test_after_close_the_loader_still_gives_its_batches(meter):
    loader = meter.data([1, 2])
    meter.close()
    assert list(loader) == [1, 2]
    assert meter.tree() == ""


class Countdown:
    """An iterator whose length is what is left in it."""

    def __init__(self, n):
        self.left = n

    def __iter__(self):
        return self

    def __len__(self):
        return self.left

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


def test_an_iterator_that_is_empty_is_not_begun_anew(meter):
    class Batches:
        def __iter__(self):
            return Countdown(3)

        def __len__(self):
            return 3

    assert list(zip(meter.data(Batches()), range(10), strict=False)) == [(2, 0), (1, 1), (0, 2)]
    assert meter.tree() == "data data data"


def test_a_length_that_cannot_be_told_is_none(meter):
    class Batches(list):
        def __len__(self):
            raise RuntimeError("nobody knows")

    batches = Batches.__new__(Batches)
    list.extend(batches, [1, 2])
    assert [x for x in meter.data(batches)] == [1, 2]  # noqa: C416  (list() would ask for the length)
    assert meter.tree() == "data data data!"
