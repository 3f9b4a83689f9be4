import pytest

from powerd_analytics.operations import count_operations

torch = pytest.importorskip("torch")
nn = torch.nn


def caffenet():
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, 4), nn.ReLU(), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5),
        nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5),
        nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(),
        nn.Linear(9216, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(),
        nn.Linear(4096, 1000), nn.Softmax(1),
    )  # fmt: skip


def test_caffenet_as_in_the_paper():
    count = count_operations(caffenet(), (3, 227, 227))
    assert count.total == pytest.approx(726.4e6, rel=1e-4)
    assert count.not_counted == ()
    assert count.convention == "paper"


@pytest.mark.parametrize(
    ("layer", "shape", "operations"),
    [
        (nn.Conv2d(4, 6, 3, padding=1, bias=False), (4, 5, 5), 3 * 3 * 5 * 5 * 4 * 6),
        (nn.Conv2d(4, 6, 3, padding=1), (4, 5, 5), 3 * 3 * 5 * 5 * 4 * 6 + 6),
        (nn.Conv2d(4, 6, 3, groups=2, bias=False), (4, 5, 5), 3 * 3 * 3 * 3 * 4 * 6 // 2),
        (nn.Linear(7, 5), (7,), 35),
        (nn.MaxPool2d(2), (3, 8, 8), 2 * 2 * 4 * 4 * 3),
        (nn.AvgPool2d((1, 2)), (3, 8, 8), 2 * 8 * 4 * 3),
        (nn.AdaptiveAvgPool2d(1), (3, 8, 8), 3 * 64),
        (nn.ReLU(), (3, 8, 8), 192),
        (nn.BatchNorm2d(3), (3, 8, 8), 2 * 192),
        (nn.Softmax(-1), (10,), 30),
    ],
)
def test_layers_by_hand(layer, shape, operations):
    count = count_operations(nn.Sequential(layer), shape)
    assert count.total == operations
    assert count.layers[0].kind == type(layer).__name__


def test_the_model_is_left_alone():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    count_operations(model, (3,))
    assert model.training
    assert not model[0]._forward_hooks
    assert all(torch.equal(v, before[k]) and v.device.type == "cpu" for k, v in model.state_dict().items())


def test_what_has_no_equation_is_listed():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(3))
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            return self.inner(x) * self.factor

    count = count_operations(nn.Sequential(Scale(), nn.GELU(), nn.LayerNorm(3)), (3,))
    assert count.total == 9
    assert set(count.not_counted) == {"0 (Scale)", "1 (GELU)", "2 (LayerNorm)"}


def test_a_model_of_terabytes_needs_none():
    with torch.device("meta"):
        model = nn.Linear(10**6, 10**6)
    assert count_operations(model, (10**6,)).total == 10**12


def test_samples_that_were_folded_into_the_batch_or_come_second_are_all_counted():
    class Tokens(nn.Module):
        def __init__(self, fold):
            super().__init__()
            self.fold, self.layer, self.last = fold, nn.Linear(8, 4), nn.Linear(4, 2)

        def forward(self, x):  # [n, 6, 8]
            return self.last(self.layer(self.fold(x)).sum(0, keepdim=True))

    for fold in (lambda x: x, lambda x: x.reshape(-1, 8), lambda x: x.transpose(0, 1)):
        count = count_operations(Tokens(fold), (6, 8), batch_size=3)
        assert count.layers[0].operations == 6 * 8 * 4
        assert count.layers[0].values_read == 6 * 8 + 8 * 4
        assert count.layers[0].values_written == 6 * 4
    # One row for all samples is none of theirs: it counts as if each had one.
    assert count_operations(Tokens(lambda x: x.reshape(-1, 8)), (6, 8), batch_size=3).layers[1].operations == 4 * 2
    inputs = count_operations(Tokens(lambda x: x.reshape(-1, 8)), inputs=[torch.empty(3, 6, 8)])
    assert inputs.layers[0].operations == 6 * 8 * 4
