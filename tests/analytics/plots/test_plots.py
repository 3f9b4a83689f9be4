"""The plots of `joules plot --kind`: which configurations and layers they draw, as what, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
from make_campaign import one_run
from make_layers import write_run as write_layers
from make_run import LineSpec, make_run, training

from powerd_analytics import phase_table, plots
from powerd_analytics.campaign import read_campaign
from powerd_analytics.cli import main
from powerd_analytics.energy.devices import load_parts
from powerd_analytics.layers import BOTH, layer_energies
from powerd_analytics.metrics import eds, pareto_front
from powerd_analytics.plots.power import draw_power, phase_colours
from powerd_analytics.published import read_table
from powerd_analytics.runs.run import read_run
from powerd_core.errors import AnalysisError

pytest.importorskip("matplotlib")

CAPS = """gpu,model,target,power_cap_w,energy_kj,u95_j,time_s
X,Net,default,250,4.0,40,20
X,Net,a,200,3.0,30,22
X,Net,b,150,2.8,28,30
X,Net,c,220,4.1,41,31
"""
LAYERS = """level,model,batch_size,layer,kind,pass,device,provenance,j_per_batch,u95_j,is_lower_bound
layer,Net,64,conv1,Conv2d,forward,gpu0,measured,2.0,0.1,False
layer,Net,64,conv1,Conv2d,backward,gpu0,measured,4.0,0.2,False
layer,Net,64,conv1,Conv2d,forward+backward,gpu0,measured,6.0,0.25,False
layer,Net,64,fc,Linear,forward,gpu0,measured,1.0,0.1,True
layer,Net,64,relu,ReLU,forward,gpu0,measured,,,False
phase,Net,64,,,forward,gpu0,measured,3.5,0.1,False
"""


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text")) if t.get_text()]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for cap, scale in ((250, 1.0), (150, 0.75)):
        one_run(folder / f"{cap}.h5", scale, (64, 128), 6, power_cap_w=cap, provenance="measured")
    return folder


@pytest.fixture
def caps(tmp_path):
    path = tmp_path / "caps.csv"
    path.write_text(CAPS)
    return path


def table(path):
    return plots.configurations_of_table(read_table(path))


def test_phases_of_a_campaign_have_the_tables_joules(campaign):
    records = read_campaign([campaign])
    figure = plots.draw_phases(plots.configurations_of_records(records), "runs")
    said = "\n".join(texts(figure))
    for word in ("energy a batch (J)", "time a batch (s)", "batch size", "measured power", "n.r.", "150 W", "250 W"):
        assert word in said
    wanted = [r["j_per_batch"] for r in records if r["phase"] in ("forward", "backward", "update")]
    energy = [ax for ax in figure.axes if ax.get_ylabel().startswith("energy")]
    heights = [p.get_height() for ax in energy for p in ax.patches if p.get_hatch() != "xxxx"]
    assert sorted(heights) == pytest.approx(sorted(j for j in wanted if j is not None))
    assert all(len(ax.containers) or ax.patches for ax in energy)


def test_totals_of_runs_are_compared_by_the_sample(campaign):
    records = read_campaign([campaign])
    found = [c for c in plots.configurations_of_records(records) if not c.phase]
    total = next(r for r in records if r["kind"] == "total" and r["batch_size"] == 128)
    point = next(c for c in found if c.batch == 128 and c.power_cap_w == total["power_cap_w"])
    assert point.per == " a sample"
    assert point.energy_j == pytest.approx(total["j_per_batch"] / 128)
    assert point.time_s == pytest.approx(total["s_per_batch"] / 128)
    assert point.u95_j / point.energy_j == pytest.approx(total["u95_j"] / total["energy_j"])


def test_the_front_is_the_metrics_own(caps):
    found = table(caps)
    figure = plots.draw_pareto(found, "caps")
    ax = figure.axes[0]
    front = next(line for line in ax.lines if line.get_label() == "Pareto front")
    at = pareto_front([c.time_s for c in found], [c.energy_j for c in found])
    assert list(front.get_xdata()) == [found[i].time_s for i in at]
    assert list(front.get_ydata()) == [found[i].energy_j for i in at]
    assert "provenance not stated" in "\n".join(texts(figure))


def test_lines_of_equal_edp_and_eds_are_equal(caps):
    found = table(caps)
    ref = found[0]
    ax = plots.draw_pareto(found, "caps", "target=default", 1.5).axes[0]
    hyperbola = next(line for line in ax.lines if str(line.get_label()).startswith("equal EDP"))
    product = np.asarray(hyperbola.get_xdata()) * np.asarray(hyperbola.get_ydata())
    assert product == pytest.approx(min(c.energy_j * c.time_s for c in found))
    straight = next(line for line in ax.lines if str(line.get_label()).startswith("equal EDS"))
    value = eds(np.asarray(straight.get_ydata()), np.asarray(straight.get_xdata()), ref.energy_j, ref.time_s, 1.5)
    assert value == pytest.approx(min(eds(c.energy_j, c.time_s, ref.energy_j, ref.time_s, 1.5) for c in found))


def test_curves_over_caps_are_relative_and_carry_errors(caps):
    figure = plots.draw_sweep(table(caps), "caps", "target=default")
    energy = figure.axes[0].containers[0]
    line, _, bars = energy
    assert list(line.get_xdata()) == [150, 200, 220, 250]
    assert list(line.get_ydata()) == pytest.approx([0.7, 0.75, 1.025, 1.0])
    half = [np.ptp(segment[:, 1]) / 2 for segment in bars[0].get_segments()]
    assert half == pytest.approx([0.7 * 0.01 * 2**0.5, 0.75 * 0.01 * 2**0.5, 1.025 * 0.01 * 2**0.5, 0.0])


def test_layers_of_a_run_have_the_joules_of_its_table(tmp_path):
    path = write_layers(tmp_path / "layers.h5")
    rows = layer_energies(phase_table(read_run(path)))
    layers = {x.name: x for x in plots.layers_of_rows(rows)}
    assert list(layers) == ["conv", "relu", "norm"][: len(layers)]
    for r in rows:
        if r.level == "layer" and r.passes == BOTH:
            assert layers[r.layer].energy_j == pytest.approx(r.j_per_batch)
            assert layers[r.layer].u95_j == r.u95_j
    # 20 ms and 40 ms of 100 W.
    assert layers["conv"].energy_j == pytest.approx(6.0, rel=0.02)
    # Too short for the sensor: in the list with its name.
    assert layers["norm"].parts == ()
    bars = texts(plots.draw_layers(list(layers.values()), path.name))
    assert "norm" in bars
    assert "n.r." in bars


def test_gpus_of_one_job_are_one_configuration(tmp_path):
    path = one_run(tmp_path / "two.h5", batches=(64, 128), iterations=4, gpus=2)
    every = plots.configurations_of_records(read_campaign([path]))
    assert {c.device for c in every if c.phase} == {"gpu0+gpu1"}  # else the bars of three devices stand on one place
    found = [c for c in every if not c.phase]
    assert [(c.device, c.gpus, c.batch) for c in found] == [("gpu0+gpu1", 2, 64), ("gpu0+gpu1", 2, 128)]
    # Joules of two kinds never stand in one panel.
    kinds = [replace(c, provenance=p) for c, p in zip(found, ("measured", "modelled"), strict=True)]
    assert len(plots.draw_pareto(kinds, "n").axes) == 2


def test_layers_keep_their_passes_and_their_interval(tmp_path):
    (tmp_path / "layers.csv").write_text(LAYERS)
    layers = plots.layers_of_table(read_table(tmp_path / "layers.csv"))
    assert [(x.name, x.energy_j, x.u95_j, x.is_lower_bound) for x in layers] == [
        ("conv1", 6.0, 0.25, False),
        ("fc", 1.0, None, True),
        ("relu", 0, None, False),
    ]
    bars = plots.draw_layers(layers, "n")
    assert sorted(p.get_width() for p in bars.axes[0].patches) == [1.0, 2.0, 4.0]
    assert {"conv1", "relu", "≥ 1.00"} <= set(texts(bars))


def test_quality_shows_clock_rate_age_and_gaps(campaign):
    figure = plots.draw_quality(read_run(campaign / "250.h5"))
    said = "\n".join(texts(figure))
    for word in ("clock bound (± µs)", "good readings (1/s)", "age of the newest", "missing", "gpu0.a"):
        assert word in said


@pytest.mark.parametrize(("kind", "ending"), [("power", "png"), ("quality", "svg"), ("phases", "pdf")])
def test_the_command_writes_each_format(campaign, tmp_path, capsys, kind, ending):
    out = tmp_path / f"p.{ending}"
    with pytest.raises(SystemExit) as end:
        main(["plot", str(campaign / "250.h5"), "--kind", kind, "-o", str(out)])
    assert end.value.code == 0
    assert out.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["caps.csv"], "is a table: say what to draw"),
        (["caps.csv", "--kind", "quality"], "is a table"),
        (["caps.csv", "--kind", "matrix"], '"power", "phases", "pareto", "caps", "layers", "quality"'),
        (["caps.csv", "--kind", "phases"], "caps.csv: no phases to draw"),
        (["caps.csv", "--kind", "layers"], "no column 'layer'"),
        (["caps.csv", "--kind", "caps", "--reference", "target=none"], "0 configurations"),
        (["caps.csv", "--kind", "caps", "--k", "0.5"], "must be 1 or more"),
        (["bad.csv", "--kind", "pareto"], "bad.csv, row 1, column time_s"),
        (["run.h5", "--kind", "layers"], "no phases of layers"),
        (["run.h5", "run.h5", "--kind", "power"], "is drawn of one"),
        (["run.h5", "--kind", "caps"], "no power caps to compare"),
    ],
)
def test_bad_input_is_one_line_and_no_file(caps, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("energy_j,time_s\n3,soon\n")
    if any(a == "run.h5" for a in arguments):
        one_run(tmp_path / "run.h5", iterations=2)
    with pytest.raises(SystemExit) as end:
        main(["plot", *arguments, "-o", "p.png"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "p.png").exists()


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("level,name,j_per_batch\nlayer,a,3\n", "layers", "no column 'layer'"),
        ("layer,j_per_batch\na,1e308\n", "layers", "row 1, column j_per_batch"),
        ("energy_j,time_s\n1,2\n2,1e-300\n", "pareto", "row 2, column time_s"),
        ("phase,batch,s_per_batch\nforward,8,1\n", "phases", "t.csv: no phases to draw"),
        ("phase,batch,j_per_batch\nforward,8,1\nforward,8,2\n", "phases", "t.csv: two rows for one bar of the picture"),
    ],
)
def test_tables_that_no_axis_can_show(tmp_path, capsys, text, kind, message):
    table, out = tmp_path / "t.csv", tmp_path / "p.png"
    table.write_text(text)
    with pytest.raises(SystemExit) as end:
        main(["plot", str(table), "--kind", kind, "-o", str(out)])
    said = capsys.readouterr().err
    assert (end.value.code, said.count("\n")) == (2, 1)
    assert message in said
    assert not out.exists()


def test_an_attribute_that_differs_has_panels_and_rows_of_its_own(tmp_path):
    for name, watts in (("sgd", 1.0), ("adam", 1.1)):
        one_run(tmp_path / f"{name}.h5", watts, (64,), 6, optimizer=name, operations_per_sample=1e9)
    found = plots.configurations_of_records(read_campaign([tmp_path]))
    assert {c.others for c in found} == {"optimizer sgd", "optimizer adam"}
    for draw in (plots.draw_phases, plots.draw_pareto):
        said = texts(draw(found, "runs"))
        assert [any(f"optimizer {n}" in t for t in said) for n in ("sgd", "adam")] == [True, True]


def test_panels_of_one_model_have_one_scale_and_time_is_not_hatched(tmp_path):
    for name, watts in (("old", 1.0), ("new", 0.5)):
        one_run(tmp_path / f"{name}.h5", watts, (64,), 6, device_name=name)
    figure = plots.draw_phases(plots.configurations_of_records(read_campaign([tmp_path])), "runs")
    of = {what: [ax for ax in figure.axes if ax.get_ylabel().startswith(what)] for what in ("energy", "time")}
    assert len({ax.get_ylim() for ax in of["energy"]}) == 1 < len(of["energy"])
    hatches = {what: {p.get_hatch() for ax in axes for p in ax.patches} - {"xxxx"} for what, axes in of.items()}
    assert hatches["time"] <= {"", None}
    assert not hatches["energy"] <= {"", None}
    assert "of AlexNet" in figure.get_suptitle()


@pytest.mark.parametrize("name", ["$x_{$", "\U0001f642", "a\x1b[2J"])
def test_any_name_can_be_drawn(tmp_path, capsys, name):
    """As a provenance, too, which stands at the foot; a character that the font lacks is no warning."""
    table = tmp_path / "t.csv"
    table.write_text(f"layer,j_per_batch,provenance,model,kind\nconv,3,{name},{name},{name}\n")
    with pytest.raises(SystemExit) as end:
        main(["plot", str(table), "--kind", "layers", "-o", str(tmp_path / "layers.png")])
    assert (end.value.code, capsys.readouterr().err) == (0, "")


def table_of(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return table(path)


def found_in(*paths, **options):
    return plots.configurations_of_records(read_campaign(list(paths)), **options)


def test_runs_of_different_numbers_of_batches_are_repeats(tmp_path):
    paths = [one_run(tmp_path / f"{n}.h5", iterations=n, power_cap_w=200.0) for n in (6, 9)]
    paths += [one_run(tmp_path / f"low-{n}.h5", 0.8, iterations=n, power_cap_w=150.0) for n in (6, 9)]
    found = found_in(*paths)
    totals = [c for c in found if not c.phase]
    assert [(c.power_cap_w, c.cells["runs"]) for c in totals] == [(200.0, "2"), (150.0, "2")]
    each = [r for r in read_campaign(paths) if r["kind"] == "total" and r["power_cap_w"] == 200.0]
    assert totals[0].energy_j == pytest.approx(np.mean([r["energy_j"] / r["iterations"] for r in each]) / 64)
    energy = plots.draw_sweep(found, "caps").axes[0].containers[0][0]
    assert list(energy.get_xdata()) == [150.0, 200.0]  # and no curve goes back to where it was


def test_a_processor_is_no_alternative_to_its_gpu(tmp_path):
    tr = training((64, 128), 8, model="m")
    lines = [LineSpec("gpu0.a", tr.power(1.0), provenance="measured"),
             LineSpec("cpu0.a", tr.power(0.1), "cpu0", "measured")]  # fmt: skip
    path = make_run(tmp_path / "r.h5", lines, tr.phases, end_ns=tr.end_ns)
    figure = plots.draw_pareto(found_in(path), "runs")
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
    assert {"H200 gpu0", "H200 gpu1"} <= set(texts(plots.draw_phases(found, "runs")))


def test_layers_are_no_configurations_and_hide_no_passes(tmp_path):
    path = write_layers(tmp_path / "layers.h5")
    assert len([c for c in found_in(path) if not c.phase]) == 1
    run = read_run(path)
    assert list(phase_colours(run)) == ["forward", "backward"]
    labels = texts(draw_power(run, phase_table(run), load_parts(run), {}))
    assert "layer" not in labels
    assert {"forward", "backward", "iteration"} <= set(labels)


def test_a_pass_that_is_not_resolvable_is_said_beside_the_other(tmp_path):
    head = "layer,pass,j_per_batch,provenance\n"
    rows = "".join(f"l{i},forward,,measured\nl{i},backward,{50 - i},measured\n" for i in range(44))
    path = tmp_path / "layers.csv"
    path.write_text(head + rows + "x,forward,,measured\nx,backward,,measured\n")
    layers = plots.layers_of_table(read_table(path))
    said = texts(plots.draw_layers(layers, "layers"))
    assert "50.0 + forward n.r." in said
    assert "34.0; 1 of them n.r." in said  # 10 + 9 + 8 + 7: what has no bar of its own is not lost
    assert "5 more layers" in said


def test_energy_without_any_time_is_drawn_alone(tmp_path):
    found = table_of(tmp_path, "model,gpus,batch,phase,j_per_batch\nm,1,8,f,1\nn,1,8,f,9\nm,2,8,f,2\nm,2,8,b,\n")
    figure = plots.draw_phases(found, "t")
    assert [ax.get_ylabel() for ax in figure.axes if ax.get_ylabel()] == ["energy a batch (J)"] * 3
    titles = [t for ax in figure.axes if (t := ax.get_title(loc="left"))]
    assert titles == ["m, 1 GPU", "m, 2 GPUs", "n, 1 GPU"]  # those of a model side by side
    assert "–: no figure" in texts(figure)


def test_two_configurations_at_one_cap(tmp_path):
    head = "target,power_cap_w,energy_j,time_s\n"
    same = table_of(tmp_path, head + "default,200,4,2\nbest,100,3,3\nbest too,100,3,3\n")
    line = plots.draw_sweep(same, "t", "target=best too").axes[0].containers[0][0]
    assert list(line.get_ydata()) == pytest.approx([1.0, 4 / 3])
    with pytest.raises(AnalysisError, match="100 W"):
        plots.draw_sweep(table_of(tmp_path, head + "default,200,4,2\na,100,3,3\nb,100,3,4\n"), "t")


def test_values_over_decades_are_on_logarithmic_axes(tmp_path):
    rows = "".join(f"{2**i},{10.0**i},{10.0**-i}\n" for i in range(6))
    ax = plots.draw_pareto(table_of(tmp_path, "batch,energy_j,time_s\n" + rows), "t").axes[0]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_ylabel() == "energy (J), logarithmic"
    assert ax.get_xlabel() == "time (s), logarithmic"
    small = plots.draw_pareto(table_of(tmp_path, "batch,energy_j,time_s\n1,2e8,1\n2,3e8,2\n"), "t").axes[0]
    assert small.get_ylabel() == "energy (J)"
    assert any(label.get_text() == "200 MJ" for label in small.get_yticklabels())
    figure = plots.draw_phases(table_of(tmp_path, "batch,phase,j_per_batch\n1,f,1e-3\n64,f,1e3\n"), "t")
    assert figure.axes[0].get_ylabel() == "energy a batch (J), logarithmic"
