"""Counts of what models are made of besides plain layers, by hand; and what is listed or refused instead."""

import dataclasses
import tempfile

import pytest

from powerd_analytics.operations import count_operations
from powerd_core.errors import AnalysisError

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

from torch.overrides import _len_torch_function_stack  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from powerd_analytics.operations.executed import BACKWARD, ExecutedMode  # noqa: E402
from powerd_analytics.operations.on_meta import MetaDevice  # noqa: E402

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


def test_an_imaginary_number_makes_real_values_complex():
    found = count(
        lambda m, x: ((x * m.factor * 1j) @ m.linear.weight.to(torch.complex64)).abs(), linear=nn.Linear(8, 8)
    )
    assert found.forward.operations == 4 * LINEAR


def test_bags_add_up_the_rows_they_pick():
    bags, words, rows, width = 2, 5, 1000, 4
    for mode in ("sum", "mean", "max"):
        found = count_operations(nn.EmbeddingBag(rows, width, mode=mode), (words,), batch_size=bags, dtype="int64")
        assert found.forward.elementwise == found.backward.elementwise == bags * words * width
        assert found.executed_not_counted == ()
    [tokens], [weights] = empty((bags, words), dtype=torch.int64), empty((bags, words))
    model = Call(
        lambda m, x, w: m.bag(x, per_sample_weights=w * m.factor), bag=nn.EmbeddingBag(rows, width, mode="sum")
    )
    found = count_operations(model, inputs=[tokens, weights])
    assert found.forward.elementwise == bags * words * width + bags * words
    assert found.executed_not_counted == ()


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


def test_attention_says_what_a_fused_kernel_would_do_again():
    b, h, s, t, d = 2, 3, 5, 7, 8

    def attend(m, q, k, v):
        return F.scaled_dot_product_attention(q * m.factor, k * m.factor, v * m.factor)

    found = count_operations(Call(attend), inputs=empty((b, h, s, d), (b, h, t, d), (b, h, t, d)))
    product = 2 * b * h * s * t * d
    assert products(found) == (2 * product, 4 * product)
    assert any(f"{product:,} operations more" in note for note in found.notes)
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    model = Call(lambda m, x: m.layer(x, x, x, need_weights=False)[0], layer=layer)
    inside = count_operations(model, (5, 8), batch_size=2)
    assert any(f"{2 * 2 * 5 * 5 * 8:,} operations more" in note for note in inside.notes)
    for is_reentrant in (False, True):

        def twice(m, x, is_reentrant=is_reentrant):
            y = m.model(m.first(x))
            return checkpoint(m.model, y, use_reentrant=is_reentrant)

        both = count_operations(Call(twice, model=model, first=nn.Linear(8, 8)), (5, 8), batch_size=2)
        assert any(f"{2 * 2 * 2 * 5 * 5 * 8:,} operations more" in note for note in both.notes)
    assert not any("more" in n for n in count_operations(model, (5, 8), batch_size=2, backward=False).notes)


def test_the_fused_kernel_of_a_cpu_has_five_products_in_backward():
    b, h, s, d = 2, 3, 16, 8
    q, k, v = (torch.randn(b, h, s, d, requires_grad=True) for _ in range(3))
    mode = ExecutedMode()
    with mode:
        out = F.scaled_dot_product_attention(q, k, v)
        mode.current_pass = BACKWARD
        out.backward(torch.ones_like(out))
    assert any("flash_attention" in name for name in mode.kernels[""])
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


def test_tied_weights_count_where_they_are_used():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.out = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
            self.out.weight = self.tokens.weight

        def forward(self, x):
            return self.out(self.tokens(x))

    for model in (Tied, Tied()):
        found = count_operations(model, (5,), batch_size=2, dtype="int64")
        assert products(found) == (2 * 10 * 80, 2 * 2 * 10 * 80)


def test_a_module_that_is_called_three_times():
    found = count(lambda m, x: m.linear(m.linear(m.linear(x))), linear=nn.Linear(8, 8))
    assert products(found) == (3 * LINEAR, (1 + 2 + 2) * LINEAR)
    assert len([layer for layer in found.layers if layer.name == "linear"]) == 3


@dataclasses.dataclass
class Output:
    logits: object
    inside: object = None


class Holder:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: {"logits": y},
        Output,
        lambda y: Output(None, {"deep": [Output(y)]}),
        Holder,
        lambda y: torch.distributions.Normal(y, 1.0, validate_args=False),
    ],
)
def test_tensors_are_found_in_what_a_model_returns(wrap):
    found = count(lambda m, x: wrap(m.linear(x)), linear=nn.Linear(8, 8))
    assert products(found) == (LINEAR, LINEAR)


def test_an_output_without_tensors_is_said():
    found = count(lambda m, x: str(m.linear(x).shape), linear=nn.Linear(8, 8))
    assert any("returned a str, in which there is no tensor" in note for note in found.notes)


def test_weights_that_are_made_from_others_have_the_layers_equation():
    for normed in (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm):
        model = normed(nn.Linear(8, 8))
        found = count_operations(model, (8,), batch_size=2)
        assert found.total == 64
        assert found.layers[0].values_read == 8 + 64
        assert any("parametrizations" in text for text in found.not_counted)
    from torch.nn.utils.prune import l1_unstructured

    pruned = l1_unstructured(nn.Linear(8, 8), "weight", 0.5)
    assert products(count_operations(pruned, (8,), batch_size=2)) == (LINEAR, LINEAR)


def test_packed_sequences_have_only_the_steps_that_there_are():
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    def run(m, x):
        packed = pack_padded_sequence(x, [5, 3], batch_first=True)
        return pad_packed_sequence(m.lstm(packed)[0], batch_first=True)[0]

    found = count(run, (5, 8), lstm=nn.LSTM(8, 4, batch_first=True))
    assert found.forward.operations == 2 * (5 + 3) * 4 * 4 * (8 + 4)
    assert found.executed_not_counted == ()


def test_kernels_in_place_count_as_those_that_are_not():
    def changed(_m, x):
        return torch.zeros(2, 2).addmm_(x, x.t()).abs_().gt_(0).cumsum_(0)

    def made(_m, x):
        return torch.zeros(2, 2).addmm(x, x.t()).abs().gt(0).cumsum(0)

    for function in (changed, made):
        found = count(function)
        assert found.forward.operations == 2 * 2 * 8 * 2
        assert found.executed_not_counted == ()
        assert found.forward.elementwise == 4 * 4


def test_making_lazy_parameters_is_no_work_of_the_model():
    ready = count_operations(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (8,), batch_size=2)
    for make in (lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU()), nn.Sequential(nn.LazyLinear(8), nn.ReLU())):
        lazy = count_operations(make, (8,), batch_size=2)
        assert (lazy.forward, lazy.backward, lazy.total) == (ready.forward, ready.backward, ready.total)


def test_hooks_and_nested_gradients_count():
    layer = nn.Linear(8, 8)
    layer.register_forward_hook(lambda _module, _inputs, output: output @ torch.ones(8, 8, device=output.device))
    assert products(count_operations(nn.Sequential(layer), (8,), batch_size=2)) == (2 * LINEAR, 2 * LINEAR)

    def penalty(m, x):
        return torch.autograd.grad(m.linear(x.requires_grad_()).sum(), x, create_graph=True)[0]

    assert products(count(penalty, linear=nn.Linear(8, 8))) == (2 * LINEAR, LINEAR)


def test_sparse_tensors_are_listed_or_end_the_count():
    embedding = count_operations(nn.Embedding(20, 4, sparse=True), (5,), dtype="int64")
    assert any("sparse_coo" in text for text in embedding.executed_not_counted)

    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.eye(8).to_sparse())

        def forward(self, x):
            return torch.sparse.mm(self.table, x.t())

    # What ran before it is counted, and that there is more is said.
    found = count_operations(nn.Sequential(nn.Linear(8, 8), Sparse()), (8,), batch_size=2)
    assert found.stopped.startswith("forward in 1 (Sparse): torch has no shapes for a kernel of it")
    assert products(found) == (LINEAR, 0)


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


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_what_is_scripted_is_refused():
    traced = torch.jit.trace(nn.Linear(8, 8), torch.zeros(1, 8))
    with pytest.raises(AnalysisError, match="give the one that it was made from"):
        count_operations(traced, (8,))


def test_autocast_is_said():
    def mixed(m, x):
        with torch.autocast("cpu", torch.bfloat16):
            return m.linear(x)

    found = count(mixed, linear=nn.Linear(8, 8))
    assert products(found) == (LINEAR, LINEAR)
    assert any(note.startswith("autocast") for note in found.notes)


@pytest.mark.skipif(not hasattr(F, "_check_key_padding_mask"), reason="this release of torch has no such check")
def test_torch_keeps_its_own_checks():
    mask, places = torch.zeros(2, 4, dtype=torch.bool), torch.zeros(1, 1, 2, 2, dtype=torch.int64)
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    before = F._check_key_padding_mask, F._unpool_output_size, F.multi_head_attention_forward
    padded = Call(lambda m, x, hides: m.layer(x, x, x, key_padding_mask=hides)[0], layer=layer)
    with pytest.raises(AnalysisError, match=r"the mask of padding has the shape \(2, 4\), not \(2, 5\)"):
        count_operations(padded, inputs=[*empty((2, 5, 8)), mask])
    with MetaDevice(), pytest.raises(ValueError, match="unpooling makes a length of -2"):
        F.max_unpool2d(torch.empty(1, 1, 2, 2), places.to("meta"), 1, padding=2)
    assert before == (F._check_key_padding_mask, F._unpool_output_size, F.multi_head_attention_forward)
    assert F._check_key_padding_mask.__globals__ is vars(F)


class Around(nn.Module):
    """A layer, something in the middle, and a layer."""

    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 8), middle, nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_scripted_and_traced_modules_inside_a_model_are_counted_as_executed_and_listed_for_the_paper():
    def middle():
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    plain = count_operations(lambda: Around(middle()), (8,), batch_size=8)
    scripted = count_operations(lambda: Around(torch.jit.script(middle())), (8,), batch_size=8)
    traced = count_operations(lambda: Around(torch.jit.trace(middle(), torch.ones(2, 8))), (8,), batch_size=8)
    for count in (scripted, traced):
        assert count.forward.operations == plain.forward.operations
        assert [layer.name for layer in count.layers] == ["first", "last"]
        assert any("middle" in name for name in count.not_counted)
    assert scripted.backward.operations == plain.backward.operations
    rows = {e.name: e.forward.operations for e in scripted.executed}
    assert rows["Around"] == 2 * 8 * 8 * 8


class Ragged(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(x)
        return self.last(torch.nested.as_nested_tensor([x[:2], x[2:5]], layout=torch.jagged)).values()


def test_layers_on_nested_tensors_are_listed():
    count = count_operations(Ragged, (8,), batch_size=8)
    assert [layer.name for layer in count.layers] == ["first"]
    assert "last (Linear)" in count.not_counted
    assert any(text.startswith("last (Linear): aten.linear") for text in count.executed_not_counted)
