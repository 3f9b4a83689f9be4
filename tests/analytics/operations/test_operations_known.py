"""Kernels looked up instead of worked out: the same results and counts, and nothing kept that must not be."""

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import layer_zoo  # noqa: E402

from powerd_analytics.operations import count_operations, executed, known  # noqa: E402
from powerd_analytics.operations.executed import ExecutedMode  # noqa: E402

aten = torch.ops.aten
SOME = dict(list((layer_zoo.LAYERS | layer_zoo.FUNCTIONS).items())[::23])


@pytest.mark.parametrize("name", SOME)
def test_the_same_as_without(monkeypatch, name):
    make, shapes = SOME[name]

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = layer_zoo.Behind(make())

        def forward(self, *x):
            return [self.body(*x) for _ in range(3)]

    inputs = layer_zoo.inputs(shapes, "meta")
    looked_up = count_operations(Loop, inputs=inputs)
    with monkeypatch.context() as patch:
        patch.setattr(executed, "key_of", lambda *_: None)
        assert looked_up == count_operations(Loop, inputs=inputs)


def test_types_of_numbers_and_strides_are_told_apart():
    x = torch.empty(3, 4, dtype=torch.int64, device="meta")
    y = torch.empty(4, 3, device="meta")
    with ExecutedMode():
        for _ in range(2):
            assert [(x * n).dtype for n in (2, 2.0, True)] == [torch.int64, torch.float32, torch.int64]
            assert [(y * 2).stride(), (y.t() * 2).stride()] == [(3, 1), (1, 3)]
            assert [tuple(torch.cat(parts).shape) for parts in ([y, y], [y, y, y])] == [(8, 3), (12, 3)]
            assert [tuple(y.sum(d).shape) for d in (0, 1)] == [(3,), (4,)]
            assert y.add_(1.0) is y
            assert (x + 1.5).dtype == torch.get_default_dtype()


def test_the_default_type_is_looked_at():
    x = torch.empty(3, dtype=torch.int64, device="meta")
    try:
        with ExecutedMode():
            assert (x / 2).dtype == torch.float32
            torch.set_default_dtype(torch.float64)
            assert (x / 2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_values_on_a_cpu_are_computed():
    x = torch.ones(3)
    with ExecutedMode():
        assert [(x + n).tolist() for n in (1, 2, 2)] == [[2.0] * 3, [3.0] * 3, [3.0] * 3]


def key(func, *args, **kwargs):
    return known.key_of(known.traits_of(func), args, kwargs)


def test_what_is_not_looked_up():
    x = torch.empty(3, 4, device="meta")
    add, norm = aten.add.Tensor, aten.linalg_vector_norm.default
    assert key(add, x, 1.0) == key(add, x, 2.0) != key(add, x, 1)
    assert key(norm, x, 1.0) != key(norm, x, 2.0)
    assert key(norm, x, float("nan")) is None
    assert key(add, x, torch.ones(())) is None
    assert key(add, x, object()) is None
    sparse = torch.empty(3, 4, layout=torch.sparse_coo, device="meta")
    assert key(add, x, sparse) is None
    assert known.traits_of(aten.t.default).is_view
    assert not known.traits_of(aten._fused_adam_.default).is_remembered
    imaginary = torch.empty(3, dtype=torch.complex64, device="meta")
    assert known.remembered([imaginary], {}, imaginary, None) is None
    assert known.remembered([x], {"out": x}, x, None) is None
    assert known.remembered([x], {}, (x, None, x.new_empty(2)), None).forms == [0, None, ((2,), (1,), torch.float32)]


def test_memory_has_an_end(monkeypatch):
    monkeypatch.setattr(executed, "LARGEST", 10)
    x = torch.empty(3, 50, device="meta")
    mode = ExecutedMode()
    with mode:
        for n in range(1, 40):
            x[:, :n].exp()
    assert 0 < len(mode._known) <= 10


def test_progress_is_told(monkeypatch):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            for _ in range(30):
                x = torch.relu(self.layer(x))
            return x

    monkeypatch.setattr(executed, "TICK", 10)
    told = []
    count_operations(Loop, (4,), progress=lambda share, text: told.append((share, text)))
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert 0.5 < shares[-1] <= 1.0
    assert told[0][1] == "forward, 10 kernels"
    assert told[-1][1].startswith("backward, ")
