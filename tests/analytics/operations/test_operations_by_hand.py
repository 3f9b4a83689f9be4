"""Counts of what models are made of besides plain layers, by hand; and what is listed or refused instead."""

import tempfile

import pytest

from powerd_analytics.operations import count_operations
from powerd_core.errors import AnalysisError

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

from torch.overrides import _len_torch_function_stack  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from powerd_analytics.operations.executed import BACKWARD, KernelCounter  # noqa: E402

LINEAR = 2 * 2 * 8 * 8  # of Linear(8, 8) for a batch of 2


class Call(nn.Module):
    """A function of the module and its inputs, with a factor that is learned and modules by name."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function, self.factor = function, nn.Parameter(torch.ones(()))
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs, **named):
        return self.function(self, *inputs, **named)


def count(function, shape=(8,), **modules):
    return count_operations(Call(function, **modules), shape, batch_size=2)


def products(found):
    return found.forward.operations, found.backward.operations


def empty(*shapes, dtype=torch.float32):
    return [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]


def test_a_complex_product_is_four_real_ones():
    layer = nn.Linear(3, 5, dtype=torch.complex64)
    found = count_operations(nn.Sequential(layer), (3,), batch_size=2, dtype="complex64")
    assert products(found) == (4 * 2 * 2 * 15, 4 * 2 * 2 * 15)
    # torch makes three real convolutions of a complex one.
    conv = nn.Conv1d(2, 3, 3, dtype=torch.complex64)
    assert count_operations(conv, (2, 8), dtype="complex64").forward.operations == 3 * 2 * (3 * 6) * (2 * 3)


def test_an_embedding_reads_the_rows_it_picks():
    rows, width, words = 1000, 4, 5
    found = count_operations(nn.Embedding(rows, width), (words,), dtype="int64", batch_size=2)
    picked = 2 * words
    assert found.forward.moved_bytes == picked * 8 + 2 * picked * width * 4
    # Its gradient is a whole table.
    assert found.backward.moved_bytes == picked * width * 4 + picked * 8 + rows * width * 4
    assert found.backward.elementwise == picked * width


@pytest.mark.parametrize(
    ("write", "times", "indices"),
    [
        # The source is read, its places are written, and read before where they are added to.
        (lambda table, at, x: table.index_copy_(0, at, x), 2, 3),
        (lambda table, at, x: table.index_add_(0, at, x), 3, 3),
        (lambda table, at, x: table.scatter_(0, at[:, None].expand(3, 8), x), 2, 3 * 8),
        (lambda table, at, x: table.scatter_add_(0, at[:, None].expand(3, 8), x), 3, 3 * 8),
        (lambda table, at, x: table.__setitem__(at, x), 2, 3),
        (lambda table, at, x: table.index_put_((at,), x, accumulate=True), 3, 3),
        (lambda table, at, x: table.index_fill_(0, at, 0.0), 1, 3),
    ],
)
def test_what_is_written_in_place_is_not_the_whole_table(write, times, indices):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.zeros(1000, 8))

        def forward(self, at, x):
            write(self.table, at, x)

    [at], [x] = empty((3,), dtype=torch.int64), empty((3, 8))
    found = count_operations(Model(), inputs=[at, x])
    assert found.forward.moved_bytes == times * 3 * 8 * 4 + indices * 8


def test_the_fused_kernel_of_a_cpu_has_five_products_in_backward():
    b, h, s, d = 2, 3, 16, 8
    q, k, v = (torch.randn(b, h, s, d, requires_grad=True) for _ in range(3))
    mode = KernelCounter()
    with mode:
        out = F.scaled_dot_product_attention(q, k, v)
        mode.current_pass = BACKWARD
        out.backward(torch.ones_like(out))
    [found] = mode.counts({"": nn.Identity()}, str)
    product = 2 * b * h * s * s * d
    assert (found.forward.operations, found.backward.operations) == (2 * product, 5 * product)


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_checkpoint_computes_again_what_executed_counts_and_paper_does_not(is_reentrant):
    def run(m, x):
        return checkpoint(m.inner, m.first(x), use_reentrant=is_reentrant)

    inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    found = count(run, first=nn.Linear(8, 8), inner=inner)
    # The first layer has no gradient of its input. What is not reentrant stops before the last product again.
    assert products(found) == (3 * LINEAR, LINEAR + 4 * LINEAR + (2 if is_reentrant else 1) * LINEAR)
    assert found.total == 3 * 64 + 8
    assert _len_torch_function_stack() == 0
    assert torch.empty(0).device.type == "cpu"


def test_wrappers_of_torch_leave_the_layers_names():
    inner = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    plain = count_operations(inner, (8,), batch_size=2)
    with tempfile.NamedTemporaryFile() as file:
        torch.distributed.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        try:
            wrapped = nn.parallel.DistributedDataParallel(inner)
            found = count_operations(wrapped, (8,), batch_size=2)
        finally:
            torch.distributed.destroy_process_group()
    assert found.executed == plain.executed
    assert found.layers == plain.layers
    assert any("without the communication" in note for note in found.notes)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_compiled_modules_are_counted_as_torch_runs_them_without_the_compiler():
    plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    expected = count_operations(plain, (8,), batch_size=2)
    for model in (torch.compile(plain), nn.Sequential(torch.compile(plain))):
        found = count_operations(model, (8,), batch_size=2)
        assert (found.forward, found.backward, found.total) == (expected.forward, expected.backward, expected.total)
        assert any(note.startswith("compiled modules") for note in found.notes)
    assert [e.name for e in count_operations(torch.compile(plain), (8,)).executed] == ["0", "1", "2"]


# -- models that ask for values


class Asks(nn.Module):
    """A layer that runs once more where the mean of its input is positive."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        return self.layer(y) if x.mean().item() > 0 else y


@pytest.mark.parametrize("model", [Asks, Asks()])
def test_a_model_that_asks_is_counted_with_values(model):
    count = count_operations(model, (8,), batch_size=2)
    # Random inputs lie between 0 and 1.
    assert (count.forward.operations, count.backward.operations) == (2 * LINEAR, 3 * LINEAR)
    assert any("one real batch" in note for note in count.notes)


def test_given_values_decide():
    for value, times in ((1.0, 2), (-1.0, 1)):
        count = count_operations(Asks, inputs=[torch.full((2, 8), value)])
        assert count.forward.operations == times * LINEAR


def test_a_model_without_values_that_asks_for_some_is_refused():
    with torch.device("meta"):
        model = Asks()
    with pytest.raises(AnalysisError, match="give the function that makes it"):
        count_operations(model, (8,))


def test_a_model_that_is_too_large_to_run_is_refused(monkeypatch):
    monkeypatch.setattr("powerd_analytics.operations.torch_model.LARGEST_REAL_BYTES", 100)
    with pytest.raises(AnalysisError, match="too large"):
        count_operations(Asks, (8,))
