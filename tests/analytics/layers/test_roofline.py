"""Energy of layers, GFLOPS/W by both conventions, and the roofline, from a run whose power is known."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from make_layers import BATCH, ITERATIONS, write_run
from make_run import MS, LineSpec, PhaseSpec, make_run

from powerd_analytics import phase_table, read_run
from powerd_analytics.cli import main
from powerd_analytics.operations.counts import (
    EXECUTED,
    PAPER,
    ExecutedCount,
    LayerCount,
    OperationCount,
    Work,
    to_document,
)
from powerd_analytics.run_tables.layers import BOTH, layer_energies, roof_of, roofline
from powerd_core.errors import AnalysisError

COUNT = OperationCount(
    layers=(
        LayerCount("conv", "Conv2d", 10**9, (1,), (1,), 10**6, 10**6),
        LayerCount("relu", "ReLU", 10**6, (1,), (1,), 10**6, 10**6),
        LayerCount("relu", "ReLU", 10**6, (1,), (1,), 10**6, 10**6),
    ),
    not_counted=("norm (GroupNorm)",),
    batch_size=BATCH,
    executed=(
        ExecutedCount("conv", "Conv2d", Work(16 * 10**9, 0, 10**7), Work(32 * 10**9, 0, 2 * 10**7)),
        ExecutedCount("relu", "ReLU", Work(0, 10**6, 10**6), Work(0, 10**6, 10**6)),
        ExecutedCount("norm", "GroupNorm", Work(0, 10**6, 10**6), Work(0, 10**6, 10**6)),
    ),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("r") / "r.h5")


@pytest.fixture(scope="module")
def table(path):
    return phase_table(read_run(path))


@pytest.fixture(scope="module")
def rows(table):
    found = layer_energies(table, lambda _batch: COUNT)
    return {(r.level, r.layer, r.passes): r for r in found}


def test_joules_of_layers(rows):
    conv = rows["layer", "conv", "forward"]
    assert conv.j_per_batch == pytest.approx(2.0, rel=0.01)
    assert conv.u95_j > 0
    assert rows["layer", "conv", "backward"].j_per_batch == pytest.approx(4.0, rel=0.01)
    assert rows["layer", "conv", BOTH].j_per_batch == pytest.approx(6.0, rel=0.01)


def test_a_layer_called_twice_has_the_joules_of_both(rows):
    relu = rows["layer", "relu", "forward"]
    assert relu.calls == 2
    assert relu.j_per_batch == pytest.approx(2.0, rel=0.02)
    assert relu.s_per_batch == pytest.approx(0.020)


def test_gflops_per_watt_by_both_conventions(rows):
    forward, both = rows["layer", "conv", "forward"], rows["layer", "conv", BOTH]
    assert forward.paper.gflops_per_w == pytest.approx(BATCH * 1.0 / 2.0, rel=0.01)
    assert forward.executed.gflops_per_w == pytest.approx(16 / 2.0, rel=0.01)
    assert both.paper.operations == 2 * BATCH * 10**9  # each pass counts them once
    assert both.executed.operations == 48 * 10**9
    model = rows["model", "", BOTH]
    assert model.paper.operations == 2 * BATCH * COUNT.total
    assert model.executed.gflops_per_w == pytest.approx(48 / 12.3, rel=0.01)
    assert model.kind == ""


def test_what_is_not_counted_stands_beside_the_figures(table):
    count = replace(COUNT, executed_not_counted=("relu (ReLU): aten._fft_c2c.default, 2 times",))
    found = layer_energies(table, lambda _batch: count)
    notes = {(r.level, r.layer, r.passes): r.note for r in found}
    said = "not counted (executed): aten._fft_c2c.default, 2 times"
    assert said in notes["layer", "relu", "forward"]
    assert said not in notes["layer", "conv", "forward"]
    for name in (("phase", "", "forward"), ("model", "", BOTH)):
        assert said in notes[name]
        assert "not counted (paper): 1 modules" in notes[name]


def test_forward_and_backward_share_their_systematic_part(rows):
    a, b, both = (rows["layer", "conv", p].energy for p in ("forward", "backward", BOTH))
    assert both.u_systematic_j == pytest.approx(a.u_systematic_j + b.u_systematic_j)
    assert both.u_statistical_j == pytest.approx(np.hypot(a.u_statistical_j, b.u_statistical_j))


def test_backward_without_the_models_attributes_is_the_only_models(tmp_path):
    """`Meter.watch(model, model="net")` gives its attributes to forward and layers; autograd's passes have none."""
    phases, t = [], 100 * MS
    for _ in range(ITERATIONS):
        for name in ("forward", "backward"):
            attributes = {"batch_size": BATCH, "model": "net"}
            parent = len(phases)
            phases.append(PhaseSpec(name, t, t + 20 * MS, attributes if name == "forward" else {}))
            phases.append(PhaseSpec("layer", t, t + 20 * MS, attributes | {"layer": "conv"}, parent))
            t += 20 * MS
    line = LineSpec("gpu0.a", lambda t: np.full(len(t), 100.0))
    table = phase_table(read_run(make_run(tmp_path / "r.h5", [line], phases, end_ns=t + 100 * MS)))
    found = {(r.level, r.passes): r for r in layer_energies(table, lambda _batch: COUNT)}
    assert found["phase", "backward"].j_per_batch == pytest.approx(2.0, rel=0.02)
    assert found["model", BOTH].j_per_batch == pytest.approx(4.0, rel=0.02)
    assert found["layer", BOTH].calls == 1


def test_what_does_not_fit_is_refused(tmp_path, table):
    other = OperationCount((LayerCount("x", "Conv2d", 1, (1,), (1,)),), ())
    with pytest.raises(AnalysisError, match="are not those of the operations"):
        layer_energies(table, lambda _batch: other)
    with pytest.raises(AnalysisError, match="give --model one"):
        layer_energies(table, model="b")
    with pytest.raises(AnalysisError, match="no batch_size"):
        layer_energies(phase_table(read_run(write_run(tmp_path / "a.h5", batch=0))), lambda _batch: COUNT)
    with pytest.raises(AnalysisError, match="no phases of layers"):
        layer_energies(phase_table(read_run(write_run(tmp_path / "b.h5", layers=False))))


def test_the_roof_lies_on_the_best_and_over_all(rows):
    for convention in (PAPER, EXECUTED):
        points = roofline(list(rows.values()), convention)
        roof, figures = roof_of(points, convention), [p.by(convention) for p in points]
        assert all(f.gflops_per_w <= roof.at(f.operations_per_byte) * (1 + 1e-12) for f in figures)
        assert any(f.gflops_per_w == pytest.approx(roof.at(f.operations_per_byte)) for f in figures)
    conv = next(p for p in roofline(list(rows.values()), PAPER) if (p.layer, p.passes) == ("conv", "forward"))
    assert conv.paper.operations_per_byte == pytest.approx(10**9 / (4 * 2 * 10**6))
    with pytest.raises(AnalysisError):
        roof_of((), PAPER)


def test_the_command(path, tmp_path, capsys):
    counted, picture = tmp_path / "ops.json", tmp_path / "roof.svg"
    counted.write_text(json.dumps(to_document(COUNT)))
    with pytest.raises(SystemExit) as done:
        main(["tables", "--table", "layers", str(path), "--operations", str(counted), "--format", "csv"])
    assert not done.value.code
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    conv = next(r for r in rows if (r["layer"], r["pass"]) == ("conv", BOTH))
    assert float(conv["gflops_per_w_executed"]) == pytest.approx(8.0, rel=0.01)
    assert conv["batch_size"] == "8"
    with pytest.raises(SystemExit):
        main(["plot", str(path), "--kind", "roofline", "--operations", str(counted), "-o", str(picture)])
    capsys.readouterr()
    drawn = picture.read_text()
    assert "<svg" in drawn
    for form in ("markdown", "json"):
        with pytest.raises(SystemExit):
            main(["tables", "--table", "layers", str(path), "--operations", str(counted), "--format", form])
        text = capsys.readouterr().out
        assert "conv" in text
        assert "paper" in text
        assert "executed" in text
    with pytest.raises(SystemExit) as done:
        main(["plot", str(path), "--kind", "roofline", "-o", str(tmp_path / "p.png")])
    assert done.value.code == 2
    assert "--operations together" in capsys.readouterr().err
