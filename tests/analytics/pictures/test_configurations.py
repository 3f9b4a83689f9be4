"""Which configurations pictures draw, and as what."""

import re

import numpy as np
import pytest
from make_campaign import one_run
from make_layers import write_run as write_layers
from make_run import LineSpec, make_run, training

from powerd_analytics import phase_table
from powerd_analytics.campaigns.campaign import read_campaign
from powerd_analytics.energy.devices import load_parts
from powerd_analytics.pictures.plots import draw, phase_colours
from powerd_analytics.published.tablefile import read_table
from powerd_analytics.runs.run import read_run
from powerd_core.errors import AnalysisError

pytest.importorskip("matplotlib")
from powerd_analytics import pictures


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text")) if t.get_text()]


def found_in(*paths, **options):
    return pictures.configurations_of_records(read_campaign(list(paths)), **options)


def table(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return pictures.configurations_of_table(read_table(path))


def test_runs_of_different_numbers_of_batches_are_repeats(tmp_path):
    paths = [one_run(tmp_path / f"{n}.h5", iterations=n, power_cap_w=200.0) for n in (6, 9)]
    paths += [one_run(tmp_path / f"low-{n}.h5", 0.8, iterations=n, power_cap_w=150.0) for n in (6, 9)]
    found = found_in(*paths)
    totals = [c for c in found if not c.phase]
    assert [(c.power_cap_w, c.cells["runs"]) for c in totals] == [(200.0, "2"), (150.0, "2")]
    each = [r for r in read_campaign(paths) if r["kind"] == "total" and r["power_cap_w"] == 200.0]
    assert totals[0].energy_j == pytest.approx(np.mean([r["energy_j"] / r["iterations"] for r in each]) / 64)
    energy = pictures.draw_caps(found, "caps").axes[0].containers[0][0]
    assert list(energy.get_xdata()) == [150.0, 200.0]  # and no curve goes back to where it was
    pictures.draw_matrix(found, "caps")


def test_a_processor_is_no_alternative_to_its_gpu(tmp_path):
    tr = training((64, 128), 8, model="m")
    lines = [LineSpec("gpu0.a", tr.power(1.0), provenance="measured"),
             LineSpec("cpu0.a", tr.power(0.1), "cpu0", "measured")]  # fmt: skip
    path = make_run(tmp_path / "r.h5", lines, tr.phases, end_ns=tr.end_ns)
    figure = pictures.draw_pareto(found_in(path), "runs")
    assert {ax.get_title(loc="left") for ax in figure.axes} == {"m, gpu", "m, cpu"}
    for ax in figure.axes:
        front = next(line for line in ax.lines if line.get_label() == "Pareto front")
        assert len(front.get_xdata()) >= 1


def test_gpus_of_one_product_that_are_not_added_up_are_told_apart(tmp_path):
    tr = training((64,), 6, model="m")
    phases = tr.phases
    for p in phases:
        p.attributes = {**p.attributes, **({"device_name": "H200"} if p.parent < 0 else {})}
    lines = [LineSpec(f"gpu{i}.a", tr.power(0.5 + i), f"gpu{i}") for i in range(2)]
    found = found_in(make_run(tmp_path / "r.h5", lines, phases, end_ns=tr.end_ns))
    assert {c.device for c in found} == {"H200 gpu0", "H200 gpu1"}
    assert {"H200 gpu0", "H200 gpu1"} <= set(texts(pictures.draw_phases(found, "runs")))


def test_layers_are_no_configurations_and_hide_no_passes(tmp_path):
    path = write_layers(tmp_path / "layers.h5")
    assert len([c for c in found_in(path) if not c.phase]) == 1
    run = read_run(path)
    assert list(phase_colours(run)) == ["forward", "backward"]
    labels = texts(draw(run, phase_table(run), load_parts(run), {}))
    assert "layer" not in labels
    assert {"forward", "backward", "iteration"} <= set(labels)


def test_a_pass_that_is_not_resolvable_is_said_beside_the_other(tmp_path):
    head = "layer,pass,j_per_batch,provenance\n"
    rows = "".join(f"l{i},forward,,measured\nl{i},backward,{50 - i},measured\n" for i in range(44))
    path = tmp_path / "layers.csv"
    path.write_text(head + rows + "x,forward,,measured\nx,backward,,measured\n")
    layers = pictures.layers_of_table(read_table(path))
    said = texts(pictures.draw_layers(layers, "layers"))
    assert "50.0 + forward n.r." in said
    assert "34.0; 1 of them n.r." in said  # 10 + 9 + 8 + 7: what has no bar of its own is not lost
    assert "5 more layers" in said
    assert any("+ forward n.r." in text for text in texts(pictures.draw_treemap(layers, "layers")))


def test_energy_without_any_time_is_drawn_alone(tmp_path):
    found = table(tmp_path, "model,gpus,batch,phase,j_per_batch\nm,1,8,f,1\nn,1,8,f,9\nm,2,8,f,2\nm,2,8,b,\n")
    figure = pictures.draw_phases(found, "t")
    assert [ax.get_ylabel() for ax in figure.axes if ax.get_ylabel()] == ["energy a batch (J)"] * 3
    titles = [t for ax in figure.axes if (t := ax.get_title(loc="left"))]
    assert titles == ["m, 1 GPU", "m, 2 GPUs", "n, 1 GPU"]  # those of a model side by side
    assert "–: no figure" in texts(figure)


def test_batch_sizes_are_the_columns_where_there_is_one_machine(tmp_path):
    name = "a-model-whose-name-is-longer-than-any-label-may-be-v2"
    rows = "".join(f"{m},{b},{g}\n" for m, g in ((name, 1.5), ("n", 2.5)) for b in (8, 16))
    ax = pictures.draw_matrix(table(tmp_path, "model,batch,gflops_per_w\n" + rows), "t").axes[0]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["batch 8", "batch 16", "mean"]
    long, short, mean = (t.get_text() for t in ax.get_yticklabels())
    assert re.fullmatch(r"a-model.*….*-v2", long)
    assert (short, mean) == ("n", "mean")
    one = texts(pictures.draw_matrix(table(tmp_path, "model,batch,gflops_per_w\nm,8,1.5\n"), "t"))
    assert "mean" not in one


def test_two_configurations_at_one_cap(tmp_path):
    head = "target,power_cap_w,energy_j,time_s\n"
    same = table(tmp_path, head + "default,200,4,2\nbest,100,3,3\nbest too,100,3,3\n")
    line = pictures.draw_caps(same, "t", "target=best too").axes[0].containers[0][0]
    assert list(line.get_ydata()) == pytest.approx([1.0, 4 / 3])
    with pytest.raises(AnalysisError, match="two configurations have the power cap 100 W"):
        pictures.draw_caps(table(tmp_path, head + "default,200,4,2\na,100,3,3\nb,100,3,4\n"), "t")


def test_values_over_decades_are_on_logarithmic_axes(tmp_path):
    rows = "".join(f"{2**i},{10.0**i},{10.0**-i}\n" for i in range(6))
    ax = pictures.draw_pareto(table(tmp_path, "batch,energy_j,time_s\n" + rows), "t").axes[0]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_ylabel() == "energy (J), logarithmic"
    assert ax.get_xlabel() == "time (ms), logarithmic"
    small = pictures.draw_pareto(table(tmp_path, "batch,energy_j,time_s\n1,2e8,1\n2,3e8,2\n"), "t").axes[0]
    assert small.get_ylabel() == "energy (MJ)"
    figure = pictures.draw_phases(table(tmp_path, "batch,phase,j_per_batch\n1,f,1e-3\n64,f,1e3\n"), "t")
    assert figure.axes[0].get_ylabel() == "energy a batch (J), logarithmic"
