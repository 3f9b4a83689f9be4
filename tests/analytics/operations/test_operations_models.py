"""The networks of the benchmark are the published ones, and are counted as by hand or by torch's own counter."""

import sys
from pathlib import Path

import pytest

from powerd_analytics.operations import count_operations

torch = pytest.importorskip("torch")

import operation_models_deep as deep  # noqa: E402
import operation_models_language as language  # noqa: E402
import operation_models_loops  # noqa: E402, F401
import operation_models_variants as variants  # noqa: E402
import operation_models_vision as vision  # noqa: E402
from bench_operations import ALL, MORE  # noqa: E402

NEW = pytest.mark.skipif(not hasattr(torch.nn, "RMSNorm"), reason="this release of torch has no RMSNorm")


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (vision.densenet, 7978856),
        (vision.efficientnet, 5288548),
        (language.gpt2, 124439808),
        pytest.param(language.llama, 6738415616, marks=NEW),
    ],
)
def test_parameters_are_the_published_ones(make, parameters):
    with torch.device("meta"):
        assert sum(p.numel() for p in make().parameters()) == parameters


@pytest.mark.parametrize("name", ["convnext", "gan", "bert", "moe", "resnet50_channels_last"])
def test_they_are_counted(name):
    entry = MORE[name]
    make = getattr(sys.modules[entry.file], name)
    inputs = []
    for shape in entry.shapes:
        sizes, _, dtype = shape.partition(":")
        size = (2, *(int(n) for n in sizes.split("x")))
        inputs.append(torch.empty(size, dtype=getattr(torch, dtype or "float32"), device="meta"))
    found = count_operations(make, inputs=inputs, batch_size=2)
    assert all("topk" in text for text in found.executed_not_counted)
    assert bool(found.executed_not_counted) == (name == "moe")
    assert 1.8 * found.forward.operations < found.backward.operations <= 2 * found.forward.operations


@NEW
def test_a_transformer_has_torchs_count():
    from torch.utils.flop_counter import FlopCounterMode

    def make():
        return variants.Short(language.Llama(layers=1))

    x = torch.empty(1, 64, dtype=torch.int64, device="meta")
    with torch.device("meta"), FlopCounterMode(display=False) as theirs:
        make()(x).sum().backward()
    found = count_operations(make, inputs=[x])
    assert (found.forward + found.backward).operations == theirs.get_total_flops()


def test_every_model_has_its_file():
    folder = Path(vision.__file__).parent
    assert all(not e.file or (folder / f"{e.file}.py").is_file() for e in ALL.values())


@pytest.mark.parametrize(
    ("make", "parameters"),
    [(deep.resnet152, 60192808), (deep.densenet201, 20013928), (deep.vit_large, 304326632), (deep.gpt2_xl, 1557611200)],
)
def test_parameters_of_deep_ones_are_the_published_ones(make, parameters):
    with torch.device("meta"):
        assert sum(p.numel() for p in make().parameters()) == parameters


@pytest.mark.parametrize("name", ["swin", "wavenet", "translator", "packed", "both_ways"])
def test_deep_ones_and_loops_are_counted(name):
    entry = MORE[name]
    make = getattr(sys.modules[entry.file], name)
    inputs = []
    for shape in entry.shapes:
        sizes, _, dtype = shape.partition(":")
        size = (2, *(int(n) for n in sizes.replace("200", "9").replace("16000", "64").split("x")))
        inputs.append(torch.empty(size, dtype=getattr(torch, dtype or "float32"), device="meta"))
    count = count_operations(make, inputs=inputs)
    assert count.executed_not_counted == ()
    assert 1.5 * count.forward.operations < count.backward.operations < 2.1 * count.forward.operations
