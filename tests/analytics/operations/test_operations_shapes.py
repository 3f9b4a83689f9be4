"""Shapes of kernels by our own rules, against what torch really makes on a CPU, and what torch itself refuses."""

import subprocess
import sys
import warnings
from math import prod
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import layer_zoo  # noqa: E402
import layer_zoo_layouts  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

from powerd_analytics.operations.kernels import convolution_backward, trilinear  # noqa: E402
from powerd_analytics.operations.shapes import SHAPES, shaped  # noqa: E402
from powerd_analytics.operations.shapes_layout import on_meta  # noqa: E402

aten = torch.ops.aten
OTHERS = layer_zoo_layouts.LAYOUTS | layer_zoo_layouts.TYPES
MODELS = layer_zoo.LAYERS | layer_zoo.FUNCTIONS | OTHERS
OTHER_ON_CPU = {
    # On a CPU these leave out what only other devices' backward needs; ours are those of torch's own meta kernels.
    "aten.native_batch_norm.default", "aten._embedding_bag.default",
}  # fmt: skip


def same_on_meta(x):
    """Arguments with the same strides on ``meta``."""

    def one(v):
        if isinstance(v, torch.Tensor):
            return torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device="meta")
        return torch.device("meta") if isinstance(v, torch.device) else v

    return tree_map(one, x)


def looks(made):
    """Shape, type and the strides that matter, of each result."""

    def one(v):
        strides = [s for s, n in zip(v.stride(), v.shape, strict=True) if n != 1] if v.numel() else []
        return tuple(v.shape), v.dtype, strides

    values = list(made) if isinstance(made, tuple | list) else [made]
    return [one(v) if isinstance(v, torch.Tensor) else v for v in values]


def _key(values):
    return tuple(
        (v.shape, v.stride(), v.dtype)
        if isinstance(v, torch.Tensor)
        else _key(v)
        if isinstance(v, list | tuple)
        else repr(v)
        for v in values
    )


class Compared(TorchDispatchMode):
    """Runs kernels, and compares each result with what the rules say."""

    def __init__(self):
        super().__init__()
        self.used, self.different, self.calls, self.seen = set(), [], {}, set()

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        key = func, _key(args), _key(kwargs.values())
        if key in self.seen:
            return func(*args, **kwargs)
        self.seen.add(key)
        meta_args, meta_kwargs = same_on_meta(args), same_on_meta(kwargs)
        if func is aten._pack_padded_sequence.default:
            meta_args = meta_args[0], args[1], meta_args[2]  # lengths have values wherever the model is
        if any(a.name == "device" for a in func._schema.arguments):
            meta_kwargs["device"] = torch.device("meta")
        ours = shaped(func, meta_args, meta_kwargs)
        if func not in self.calls and "backward" not in str(func):
            self.calls[func] = meta_args, meta_kwargs
        real = func(*args, **kwargs)
        if ours is not None:
            self.used.add(str(func))
            # A CPU keeps statistics of short types in the short type, accelerators in single precision.
            n = 1 if func is aten.native_layer_norm.default and args[0].dtype.itemsize == 2 else None
            if looks(ours)[:n] != looks(real)[:n] and str(func) not in OTHER_ON_CPU:
                self.different.append((str(func), looks(ours), looks(real), meta_args))
        return real


@pytest.fixture(scope="module")
def compared():
    """All models of the zoo run on a CPU, forward and backward."""
    torch.manual_seed(0)
    mode, threads = Compared(), torch.get_num_threads()
    torch.set_num_threads(1)  # kernels of a few values: threads would only wait for each other
    for make, shapes in MODELS.values():
        with warnings.catch_warnings(), mode:
            warnings.simplefilter("ignore")  # the zoo has what torch advises against
            outputs = layer_zoo.Behind(make())(*layer_zoo.inputs(shapes, "cpu"))
            roots = [t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad]
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
    torch.set_num_threads(threads)
    return mode


def test_every_rule_gives_what_torch_makes(compared):
    assert compared.different == []


def test_every_rule_was_asked(compared):
    packets = {name.split(".")[1] for name in compared.used} | {name.split(".", 1)[1] for name in compared.used}
    assert sorted(set(SHAPES) - packets) == []


def _mutants(value):
    """The same argument a little wrong."""
    if isinstance(value, torch.Tensor):
        shape = tuple(value.shape)
        for d in range(len(shape)):
            for n in {shape[d] + 1, d % 2} - {shape[d]}:
                yield torch.empty((*shape[:d], n, *shape[d + 1 :]), dtype=value.dtype, device="meta")
        for other in {shape[1:], (1, *shape), shape[::-1]} - {shape}:
            yield torch.empty(other, dtype=value.dtype, device="meta")
        for dtype in {torch.float64, torch.int64, torch.bool, torch.complex64} - {value.dtype}:
            yield torch.empty(shape, dtype=dtype, device="meta")
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from {value + 1, -value, value + 9, 0} - {value}
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            for mutant in _mutants(inner):
                yield [*value[:i], mutant, *value[i + 1 :]]


def test_what_is_wrong_is_left_to_torch(compared):
    """Of each kernel of the zoo one argument after the other made wrong: what torch refuses has no result here."""
    wrong, asked = [], 0
    for func, (args, kwargs) in compared.calls.items():
        for i, value in enumerate(args):
            for mutant in _mutants(value):
                changed = (*args[:i], mutant, *args[i + 1 :])
                ours = shaped(func, changed, kwargs)
                if ours is None:
                    continue
                asked += 1
                expected = looks(ours)
                try:
                    theirs = looks(func(*changed, **kwargs))
                except Exception as error:
                    theirs = str(error).split("\n")[0]
                if theirs != expected:
                    wrong.append((str(func), i, mutant, expected, theirs))
    assert wrong == []
    assert asked > 2000


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), n=st.integers(1, 3))
def test_strides_of_elementwise_kernels_are_torchs(data, shape, n):
    """Operands permuted, cut, expanded and broadcast."""
    operands = []
    for _ in range(n):
        order = data.draw(st.permutations(range(len(shape))))
        steps = data.draw(st.lists(st.sampled_from([1, 1, 2]), min_size=len(shape), max_size=len(shape)))
        kept = [1 if data.draw(st.booleans()) and data.draw(st.booleans()) else size for size in shape]
        x = torch.zeros([kept[i] * steps[i] for i in order]).permute([order.index(i) for i in range(len(shape))])
        x = x[tuple(slice(None, None, step) for step in steps)]
        if data.draw(st.booleans()):
            x = x.expand(shape)
        operands.append(x)
    func, args = {
        1: (aten.exp.default, operands),
        2: (aten.mul.Tensor, operands),
        3: (aten.addcmul.default, operands),
    }[n]
    assert looks(shaped(func, same_on_meta(args), {})) == looks(func(*args))
    with_number = [operands[0], 2.0]
    assert looks(shaped(aten.add.Tensor, same_on_meta(with_number), {})) == looks(aten.add.Tensor(*with_number))
    for like in (aten.clone.default, aten.zeros_like.default):
        assert looks(shaped(like, same_on_meta(operands[:1]), {})) == looks(like(operands[0]))
    assert looks(on_meta(operands[0])) == looks(torch.empty_like(operands[0]))


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(2, 4), min_size=1, max_size=4), keeps=st.booleans(), data=st.data(),
)  # fmt: skip
def test_reductions_of_permuted_tensors_are_torchs(shape, keeps, data):
    over = data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, unique_by=lambda d: d % len(shape)))
    x = torch.zeros(shape).permute(data.draw(st.permutations(range(len(shape)))))
    for func in (aten.mean.dim, aten.sum.dim_IntList, aten.amax.default):
        args = (x, over, keeps)
        assert looks(shaped(func, same_on_meta(args), {})) == looks(func(*args))
    for args in ((x, over[0], False), (x, over[0], x.dtype)):
        func = aten._softmax.default if args[2] is False else aten._safe_softmax.default
        ours = shaped(func, same_on_meta(args), {})
        assert ours is None or looks(ours) == looks(func(*args))


def test_all_kernels_that_torch_calls_pointwise():
    """Every one of them, whether a model of the zoo has it or not: of two shapes and mixed types, forward alone."""
    checked = 0
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space != "aten" or "backward" in packet:
            continue
        func = getattr(getattr(aten, packet, None), overload or "default", None)
        if func is None or torch.Tag.pointwise not in func.tags or "out" in overload:
            continue
        for kinds in ((torch.float32, torch.float32), (torch.float32, torch.float64), (torch.float16, torch.float16)):
            args, left = [], list(kinds)
            for a in func._schema.arguments:
                kind = str(a.type)
                if kind == "Tensor":
                    x = torch.full(
                        (3, 4) if len(left) == 2 or not left else (4,), 0.5, dtype=left.pop(0) if left else kinds[0]
                    )
                    args.append(x)
                elif not a.kwarg_only and not a.has_default_value():
                    args.append({"bool": False, "str": "none"}.get(kind, 1))
            ours = shaped(func, same_on_meta(args), {})
            if ours is None:
                continue
            try:
                real = func(*args)
            except (RuntimeError, NotImplementedError):  # for values, or for types that a CPU has no kernel for
                continue
            assert looks(ours) == looks(real), (name, kinds)
            checked += 1
    assert checked > 200


def _tensor(shape, dtype=torch.float32):
    return torch.empty(shape, device="meta", dtype=dtype)


sizes = st.integers(1, 4)


@given(
    groups=sizes, cin=sizes, cout=sizes, size=st.tuples(st.integers(3, 12), st.integers(3, 12)),
    kernel=st.tuples(sizes, sizes), stride=sizes, padding=st.integers(0, 2), dilation=st.integers(1, 3),
    transposed=st.booleans(), bias=st.booleans(), mask=st.tuples(st.booleans(), st.booleans()),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_shapes_of_convolutions_are_torchs(
    groups, cin, cout, size, kernel, stride, padding, dilation, transposed, bias, mask
):
    x = _tensor((2, cin * groups, *size))
    weight = _tensor((cin * groups, cout, *kernel) if transposed else (cout * groups, cin, *kernel))
    b = _tensor((cout * groups,)) if bias else None
    rest = ([stride] * 2, [padding] * 2, [dilation] * 2, transposed, [0, 0], groups)
    grad = shaped(aten.convolution.default, (x, weight, b, *rest), {})
    assume(grad is not None)  # no output: torch's to refuse
    assert looks(grad) == looks(aten.convolution.default(x, weight, b, *rest))
    back = (grad, x, weight, [cout * groups] if bias else None, *rest, [*mask, bias])
    ours = shaped(aten.convolution_backward.default, back, {})
    theirs = aten.convolution_backward.default(*back)
    assert looks(ours) == looks(theirs)
    products = (x if transposed else grad).numel() * prod(weight.shape[1:])
    assert convolution_backward(back, None) == 2 * products * sum(mask)


@given(
    size=st.tuples(st.integers(3, 12), st.integers(3, 12)), kernel=st.tuples(sizes, sizes), stride=sizes,
    padding=st.integers(0, 2), overhangs=st.booleans(), batched=st.booleans(),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_shapes_of_poolings_are_torchs(size, kernel, stride, padding, overhangs, batched):
    x = torch.zeros((2, 3, *size) if batched else (3, *size))
    for func, args in (
        (aten.max_pool2d_with_indices.default, (x, kernel, [stride], [padding], [1], overhangs)),
        (aten.avg_pool2d.default, (x, kernel, [stride], [padding], overhangs)),
    ):
        ours = shaped(func, same_on_meta(args), {})
        if ours is not None:
            assert looks(ours) == looks(func(*args))
        else:
            assert padding > min(kernel) // 2 or min(n + 2 * padding - k for n, k in zip(size, kernel, strict=True)) < 0


def test_what_is_no_kernel_of_torchs_has_no_rule():
    library = torch.library.Library("powerd_shapes", "DEF")
    library.define("mystery(Tensor x) -> Tensor")
    assert shaped(torch.ops.powerd_shapes.mystery.default, (_tensor((2,)),), {}) is None
    assert shaped(aten.exp.default, (torch.zeros(2),), {}) is None, "not on meta: a value may be wanted"


def test_three_factors_by_hand():
    """`nn.Bilinear` of [2, 3] and [2, 5] to [2, 7]: two products and a sum for each of 2 x 7 x 3 x 5."""
    args = (_tensor((2, 3)), _tensor((7, 3, 5)), _tensor((2, 5)), [1, 3], [0], [1, 2], [2, 3], 1)
    assert trilinear(args, None) == 3 * 2 * 7 * 3 * 5
    assert shaped(aten._trilinear.default, args, {}).shape == (2, 7)


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
HEAVY = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx.experimental.symbolic_shapes", "sympy")
there = {name for name in HEAVY if name in sys.modules}
import layer_zoo, layer_zoo_layouts
from powerd_analytics.operations import count_operations
from powerd_analytics.operations.named import count_named
from powerd_analytics.operations.zoo import ZOO

def check(name):
    new = sorted(m for m in HEAVY if m in sys.modules and m not in there)
    if new:
        print(name, new)
        there.update(new)

import warnings
warnings.simplefilter("ignore")
models = {**layer_zoo.LAYERS, **layer_zoo.FUNCTIONS, **layer_zoo_layouts.LAYOUTS, **layer_zoo_layouts.TYPES}
for name, (make, shapes) in models.items():
    count_operations(lambda: layer_zoo.Behind(make()), inputs=layer_zoo.inputs(shapes), batch_size=2)
    check(name)
for name, entry in ZOO.items():
    count_named(name, batch_size=2)
    check(name)
check(count_operations(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)), (3,), batch_size=2).model)
print("counted", len(models))
"""


def test_no_layer_imports_torchs_compiler():
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, str(Path(__file__).parents[1] / "support")],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == f"counted {len(MODELS)}\n"
