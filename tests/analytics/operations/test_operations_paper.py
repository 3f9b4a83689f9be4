"""The paper's equations by hand and on its models, and the command that prints counts."""

import csv
import io

import pytest

from powerd_analytics.cli import main
from powerd_analytics.operations import count_operations

torch = pytest.importorskip("torch")
nn = torch.nn

from powerd_analytics.operations.torch_model import count_named  # noqa: E402
from powerd_analytics.operations.zoo import ZOO  # noqa: E402

MIB = 2**20


def test_caffenet_is_the_row_of_table_1():
    count = count_named("caffenet")
    assert count.total == pytest.approx(727.20e6, rel=0.002)
    assert 4 * count.values_read / MIB == pytest.approx(239.1, abs=0.05)
    assert 4 * count.values_written / MIB == pytest.approx(6.0, abs=0.05)
    assert count.ctc == pytest.approx(11.6, abs=0.05)
    assert count.not_counted == ()


@pytest.mark.parametrize(
    ("model", "low", "high"),
    [
        ("2d-cnn", 784.05e6, 784.15e6),
        ("2d-cnn-full5", 800.8e6, 800.95e6),
        ("resnet", 410e6, 445e6),
        ("resnet-im", 3653e6, 3658e6),
    ],
)
def test_the_papers_other_models(model, low, high):
    assert low <= count_named(model).total <= high


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("alexnet", 61100840),
        ("resnet18", 11689512),
        ("resnet34", 21797672),
        ("resnet50", 25557032),
    ],
)
def test_parameters_are_the_published_ones(model, parameters):
    with torch.device("meta"):
        assert sum(p.numel() for p in ZOO[model].make().parameters()) == parameters


def test_a_function_in_a_file(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "class Two(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.embed = torch.nn.Embedding(9, 4)\n"
        "        self.out = torch.nn.Linear(4, 2)\n"
        "    def forward(self, tokens, x):\n"
        "        return self.out(self.embed(tokens) + x)\n"
        "def make():\n"
        "    return Two()\n"
    )
    with pytest.raises(SystemExit) as done:
        main(["operations", f"{file}:make", "--input", "5:int64", "--input", "5x4", "--batch", "2", "--format", "csv"])
    assert not done.value.code
    rows = {r["layer"]: r for r in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert rows["out"]["operations_paper"] == str(2 * 5 * 8)
    assert rows["out"]["operations_executed_forward"] == str(2 * 2 * 5 * 8)
    assert rows["embed"]["operations_paper"] == ""
    assert "not counted" in rows["embed"]["note"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no model 'nothing'"),
        (["resnet18", "--batch", "0"], "must be at least 1"),
        (["resnet18", "--input", "3x2y4"], "--input 3x2y4"),
        (["resnet18", "--input", "3:bits"], "--input 3:bits"),
        (["resnet18", "--input", "4x32x32"], "does not run"),
        (["none.py:make", "--input", "3"], "none.py"),
        (["{file}:make", "--input", "3"], "has no function 'make'"),
        (["{file}:build"], "give the shape of one sample"),
        (["{file}:build", "--input", "3"], "the model cannot be made: ValueError: not today"),
        (["{broken}:build", "--input", "3"], "cannot be imported: SyntaxError"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, said, capsys, tmp_path):
    file, broken, out = tmp_path / "some.py", tmp_path / "broken.py", tmp_path / "out.json"
    file.write_text("def build():\n    raise ValueError('not today')\n")
    broken.write_text("def build(:\n")
    given = [a.format(file=file, broken=broken) for a in arguments]
    with pytest.raises(SystemExit) as done:
        main(["operations", *given, "-o", str(out)])
    error = capsys.readouterr().err
    assert done.value.code == 2
    assert said in error
    assert error.count("\n") == 1
    assert not out.exists()


# -- the paper's equations


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
