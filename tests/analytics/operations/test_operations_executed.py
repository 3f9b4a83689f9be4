"""What torch executes, against counts by hand."""

from math import prod

import pytest

from powerd_analytics.operations import count_operations

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

from powerd_analytics.operations.executed import attention, attention_backward  # noqa: E402


def executed(count, name):
    return next(e for e in count.executed if e.name == name)


@pytest.mark.parametrize(
    ("layer", "shape", "products"),
    [
        # products a sample, by hand: output values x kernel x channels in of a group
        (nn.Conv2d(8, 16, 3, padding=1), (8, 6, 6), 16 * 36 * 9 * 8),
        (nn.Conv2d(32, 64, 3, padding=1, groups=16), (32, 6, 6), 64 * 36 * 9 * 2),
        (nn.Conv2d(16, 16, 3, groups=16, bias=False), (16, 6, 6), 16 * 16 * 9),
        (nn.Conv2d(8, 4, 3, stride=2, dilation=2, padding=1), (8, 9, 9), 4 * 16 * 9 * 8),
        (nn.Conv1d(8, 4, 5, groups=2), (8, 12), 4 * 8 * 5 * 4),
        (nn.Conv3d(2, 4, (1, 2, 3)), (2, 3, 4, 5), 4 * (3 * 3 * 3) * 6 * 2),
        # transposed: input values x kernel x channels out of a group
        (nn.ConvTranspose2d(8, 6, 3, stride=2, groups=2, output_padding=1), (8, 5, 5), 8 * 25 * 9 * 3),
        (nn.Linear(7, 5), (7,), 35),
        (nn.Linear(7, 5), (3, 7), 3 * 35),
    ],
)
def test_backward_is_twice_forward(layer, shape, products):
    class Second(nn.Module):
        """The layer behind one that makes its input need a gradient."""

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.layer = layer

        def forward(self, x):
            return self.layer(x * self.scale)

    count = executed(count_operations(Second(), shape, batch_size=3), "layer")
    assert count.forward.operations == 3 * 2 * products
    assert count.backward.operations == 2 * 3 * 2 * products
    bias = layer.bias is not None
    values = prod(layer(torch.empty(3, *shape)).shape) if bias else 0
    assert count.forward.elementwise == count.backward.elementwise == values


def test_a_first_layer_has_no_gradient_of_its_input():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    count = count_operations(model, (3, 8, 8))
    first, second = executed(count, "0"), executed(count, "1")
    assert first.backward.operations == first.forward.operations
    assert second.backward.operations == 2 * second.forward.operations


def test_recurrent_layers_by_hand():
    steps, batch, width, hidden = 5, 2, 8, 16
    for kind, gates in ((nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)):
        count = count_operations(kind(width, hidden, batch_first=True), (steps, width), batch_size=batch)
        by_hand = 2 * steps * batch * gates * hidden * (width + hidden)
        assert count.forward.operations == by_hand
        # Backward: both gradients, but not of the input; the first state needs none either.
        of_input, of_first_state = by_hand * width // (width + hidden), 2 * batch * gates * hidden * hidden
        assert count.backward.operations == 2 * by_hand - of_input - of_first_state
        assert count.not_counted == (f"{kind.__name__} ({kind.__name__})",)
        assert count.total == 0


def test_attention_by_hand():
    n, heads, s, d = 2, 4, 6, 8
    shape = (n, heads, s, d)

    class Attention(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    tensors = [torch.empty(shape, device="meta", requires_grad=True) for _ in range(3)]
    product = 2 * n * heads * s * s * d

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.attention = Attention()

        def forward(self, *qkv):
            return self.attention(*(t * self.scale for t in qkv))

    count = count_operations(Model(), inputs=tensors)
    assert executed(count, "attention").forward.operations == 2 * product
    assert executed(count, "attention").backward.operations == 4 * product
    assert "attention (Attention)" in count.not_counted
    # In one kernel, backward computes the first product again.
    assert attention(tensors, None) == 2 * product
    assert attention_backward([tensors[0], *tensors], None) == 5 * product


def test_custom_functions_are_counted_in_both_passes():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad @ w.t() @ w @ w.t(), x.t() @ grad  # more than needed, and all of it runs

    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 3))

        def forward(self, x):
            return Twice.apply(x, self.weight)

    count = count_operations(nn.Sequential(nn.Linear(3, 3), Custom()), (3,), batch_size=2)
    assert executed(count, "1").forward.operations == 2 * 18
    assert executed(count, "1").backward.operations == 4 * 2 * 18


def test_kernels_that_nobody_knows_are_listed():
    class Spectral(nn.Module):
        def forward(self, x):
            return torch.fft.fft(x).real

    count = count_operations(nn.Sequential(nn.Linear(4, 4), Spectral()), (4,))
    assert any(text.startswith("1 (Spectral): aten._fft_") for text in count.executed_not_counted)


def test_a_factory_never_allocates_and_an_embedding_takes_integers():
    def make():
        return nn.Sequential(nn.Embedding(10**7, 10**6), nn.Linear(10**6, 10))

    count = count_operations(make, (7,), dtype="int64", batch_size=2)
    assert executed(count, "1").forward.operations == 2 * 2 * 7 * 10**7
    assert executed(count, "0").forward.operations == 0
    assert executed(count, "0").forward.moved_bytes >= 2 * 7 * 10**6 * 4
