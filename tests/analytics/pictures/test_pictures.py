"""The pictures of `joules plot --kind`: what they show, for which input, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_campaign import one_run
from make_layers import write_run as write_layers

from powerd_analytics import phase_table
from powerd_analytics.campaigns.campaign import read_campaign
from powerd_analytics.cli import main
from powerd_analytics.energy.reasons import digits
from powerd_analytics.layers.energy import layer_energies
from powerd_analytics.layers.rows import BOTH
from powerd_analytics.metrics import eds, pareto_front
from powerd_analytics.pictures.plots import plot_run
from powerd_analytics.published.tablefile import read_table
from powerd_analytics.runs.run import read_run
from powerd_core.errors import AnalysisError

pytest.importorskip("matplotlib")
from powerd_analytics import pictures

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
    return pictures.configurations_of_table(read_table(path))


def test_phases_of_a_campaign_have_the_tables_joules(campaign):
    records = read_campaign([campaign])
    figure = pictures.draw_phases(pictures.configurations_of_records(records), "runs")
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
    found = [c for c in pictures.configurations_of_records(records) if not c.phase]
    total = next(r for r in records if r["kind"] == "total" and r["batch_size"] == 128)
    point = next(c for c in found if c.batch == 128 and c.power_cap_w == total["power_cap_w"])
    assert point.per == " a sample"
    assert point.energy_j == pytest.approx(total["j_per_batch"] / 128)
    assert point.time_s == pytest.approx(total["s_per_batch"] / 128)
    assert point.u95_j / point.energy_j == pytest.approx(total["u95_j"] / total["energy_j"])


def test_the_front_is_the_metrics_own(caps):
    found = table(caps)
    figure = pictures.draw_pareto(found, "caps")
    ax = figure.axes[0]
    front = next(line for line in ax.lines if line.get_label() == "Pareto front")
    at = pareto_front([c.time_s for c in found], [c.energy_j for c in found])
    assert list(front.get_xdata()) == [found[i].time_s for i in at]
    assert list(front.get_ydata()) == [found[i].energy_j for i in at]
    assert "provenance not stated" in "\n".join(texts(figure))


def test_lines_of_equal_edp_and_eds_are_equal(caps):
    found = table(caps)
    ref = found[0]
    ax = pictures.draw_pareto(found, "caps", "target=default", 1.5).axes[0]
    hyperbola = next(line for line in ax.lines if str(line.get_label()).startswith("equal EDP"))
    product = np.asarray(hyperbola.get_xdata()) * np.asarray(hyperbola.get_ydata())
    assert product == pytest.approx(min(c.energy_j * c.time_s for c in found))
    straight = next(line for line in ax.lines if str(line.get_label()).startswith("equal EDS"))
    value = eds(np.asarray(straight.get_ydata()), np.asarray(straight.get_xdata()), ref.energy_j, ref.time_s, 1.5)
    assert value == pytest.approx(min(eds(c.energy_j, c.time_s, ref.energy_j, ref.time_s, 1.5) for c in found))


def test_curves_over_caps_are_relative_and_carry_errors(caps):
    figure = pictures.draw_caps(table(caps), "caps", "target=default")
    energy = figure.axes[0].containers[0]
    line, _, bars = energy
    assert list(line.get_xdata()) == [150, 200, 220, 250]
    assert list(line.get_ydata()) == pytest.approx([0.7, 0.75, 1.025, 1.0])
    half = [np.ptp(segment[:, 1]) / 2 for segment in bars[0].get_segments()]
    assert half == pytest.approx([0.7 * 0.01 * 2**0.5, 0.75 * 0.01 * 2**0.5, 1.025 * 0.01 * 2**0.5, 0.0])


def test_the_matrix_has_every_number_and_no_mean_of_holes(campaign, tmp_path):
    records = read_campaign([campaign])
    found = pictures.configurations_of_records(records)
    said = texts(pictures.draw_matrix(found, "runs"))
    for c in found:
        if c.gflops_per_w is not None and not c.phase:
            assert digits(c.gflops_per_w, 3) in said
    holed = [c for c in found if not (c.batch == 64 and c.power_cap_w == 150)]
    # One of two rows is whole: only its mean, and that of the whole column, are numbers.
    assert texts(pictures.draw_matrix(holed, "runs")).count("–") == 4
    with pytest.raises(AnalysisError, match="two configurations stand in one cell"):
        pictures.draw_matrix([*found, *(replace(c) for c in found)], "runs")


def matrix(*cells):
    """Four configurations: two batches on two devices, with value and uncertainty (statistical, systematic)."""
    at = [(b, d) for b in (64, 128) for d in ("x", "y")]
    return [
        pictures.Configuration(model="m", batch=b, device=d, provenance="measured", gflops_per_w=v,
                               u95_gflops_per_w=None if u is None else 2 * float(np.hypot(*u)), u_gflops_per_w=u)
        for (b, d), (v, u) in zip(at, cells, strict=True)
    ]  # fmt: skip


def test_means_of_the_matrix_carry_their_uncertainty():
    def u95s(found):
        return {t for t in texts(pictures.draw_matrix(found, "t")) if t.startswith("± ")}

    # Statistical parts of 0.3 and 0.4 average to 0.25, systematic ones that are shared to their mean, not to less.
    random = matrix((10.0, (0.3, 0.0)), (11.0, (0.4, 0.0)), (12.0, (0.3, 0.0)), (13.0, (0.4, 0.0)))
    assert u95s(random) == {"± 0.60", "± 0.80", "± 0.50", f"± {digits(2 * 0.3 / 2**0.5, 2)}", "± 0.57", "± 0.35"}
    shared = matrix((10.0, (0.0, 0.3)), (11.0, (0.0, 0.5)), (12.0, (0.0, 0.3)), (13.0, (0.0, 0.5)))
    assert u95s(shared) == {"± 0.60", "± 1.0", "± 0.80"}
    # What is not known apart may all be shared; what is not known of one cell is not known of its means.
    half = [replace(c, u_gflops_per_w=None) for c in shared]
    assert u95s(half) == u95s(shared)
    unknown = matrix((10.0, None), (11.0, (0.0, 0.5)), (12.0, (0.0, 0.3)), (13.0, (0.0, 0.5)))
    said = texts(pictures.draw_matrix(unknown, "t"))
    assert [said.count(t) for t in ("± 0.80", "± 1.0", "± 0.60")] == [1, 3, 1]


def test_a_mean_over_a_bound_is_a_bound():
    found = matrix(*[(v, (0.1, 0.1)) for v in (10.0, 11.0, 12.0, 13.0)])
    said = texts(pictures.draw_matrix([replace(found[0], is_lower_bound=True), *found[1:]], "t"))
    assert {"≤ 10.0", "≤ 10.5", "≤ 11.0", "≤ 11.5"} <= set(said)


def test_layers_of_a_run_have_the_joules_of_its_table(tmp_path):
    path = write_layers(tmp_path / "layers.h5")
    rows = layer_energies(phase_table(read_run(path)))
    layers = {x.name: x for x in pictures.layers_of_rows(rows)}
    assert list(layers) == ["conv", "relu", "norm"][: len(layers)]
    for r in rows:
        if r.level == "layer" and r.passes == BOTH:
            assert layers[r.layer].energy_j == pytest.approx(r.j_per_batch)
            assert layers[r.layer].u95_j == r.u95_j
    # 20 ms and 40 ms of 100 W.
    assert layers["conv"].energy_j == pytest.approx(6.0, rel=0.02)
    treemap = pictures.draw_treemap(list(layers.values()), path.name)
    pictures.save(treemap, tmp_path / "t.png")
    # Too short for the sensor: in the list with its name, and said where there is no area to draw.
    assert layers["norm"].parts == ()
    bars = texts(pictures.draw_layers(list(layers.values()), path.name))
    assert "norm" in bars
    assert "n.r." in bars
    assert any("1 not resolvable, not drawn" in text for text in texts(treemap))


def test_names_that_look_like_formulas_are_drawn_as_they_are(tmp_path):
    path = one_run(tmp_path / "odd.h5", batches=(64,), iterations=3, model="$\\frac{\x1b[2J$")
    run = read_run(path)
    for kind, figure in {
        "phases": pictures.draw_phases(pictures.configurations_of_records(read_campaign([path])), "$x$"),
        "quality": pictures.draw_quality(run),
    }.items():
        pictures.save(figure, tmp_path / f"{kind}.svg")
        assert "\x1b" not in (tmp_path / f"{kind}.svg").read_text()
    plot_run(run, tmp_path / "all.svg")
    assert (tmp_path / "all.svg").stat().st_size > 1000


def test_gpus_of_one_job_are_one_configuration(tmp_path):
    path = one_run(tmp_path / "two.h5", batches=(64, 128), iterations=4, gpus=2)
    every = pictures.configurations_of_records(read_campaign([path]))
    assert {c.device for c in every if c.phase} == {"gpu0+gpu1"}  # else the bars of three devices stand on one place
    found = [c for c in every if not c.phase]
    assert [(c.device, c.gpus, c.batch) for c in found] == [("gpu0+gpu1", 2, 64), ("gpu0+gpu1", 2, 128)]
    kinds = [replace(c, provenance=p) for c, p in zip(found, ("measured", "modelled"), strict=True)]
    # Joules of two kinds are never averaged.
    assert texts(pictures.draw_matrix([replace(c, batch=64.0) for c in kinds], "n")).count("–") == 1


def test_layers_keep_their_passes_and_their_interval(tmp_path):
    (tmp_path / "layers.csv").write_text(LAYERS)
    layers = pictures.layers_of_table(read_table(tmp_path / "layers.csv"))
    assert [(x.name, x.energy_j, x.u95_j, x.is_lower_bound) for x in layers] == [
        ("conv1", 6.0, 0.25, False),
        ("fc", 1.0, None, True),
        ("relu", 0, None, False),
    ]
    bars = pictures.draw_layers(layers, "n")
    assert sorted(p.get_width() for p in bars.axes[0].patches) == [1.0, 2.0, 4.0]
    for figure in (bars, pictures.draw_treemap(layers, "n")):
        said = "\n".join(texts(figure))
        assert "conv1" in said
        assert "measured power" in said
    areas = [p.get_width() * p.get_height() for p in pictures.draw_treemap(layers, "n").axes[0].patches]
    assert areas == pytest.approx([1.6 * 6 / 7, 1.6 / 7])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40), st.floats(0.2, 5))
def test_a_treemap_fills_its_box_without_overlap(sizes, width):
    sizes.sort(reverse=True)
    boxes = pictures.squarify(sizes, width, 1.0)
    total = sum(sizes)
    for size, (x, y, w, h) in zip(sizes, boxes, strict=True):
        assert w * h == pytest.approx(width * size / total, rel=1e-6, abs=1e-12)
        assert -1e-9 <= x <= x + w <= width + 1e-6
        assert -1e-9 <= y <= y + h <= 1 + 1e-6
    for i, (x, y, w, h) in enumerate(boxes):
        for x2, y2, w2, h2 in boxes[i + 1 :]:
            across, up = min(x + w, x2 + w2) - max(x, x2), min(y + h, y2 + h2) - max(y, y2)
            assert across <= 1e-6 or up <= 1e-6


def test_squares_stay_square_where_they_can():
    boxes = pictures.squarify([6, 6, 4, 3, 2, 2, 1], 6, 4)
    # The example of the paper that describes the algorithm.
    assert boxes[0] == pytest.approx((0, 0, 3, 2))
    assert max(max(w / h, h / w) for _, _, w, h in boxes[:4]) < 2
    with pytest.raises(ValueError, match="above 0"):
        pictures.squarify([1.0, 0.0])


def test_quality_shows_clock_rate_age_and_gaps(campaign):
    figure = pictures.draw_quality(read_run(campaign / "250.h5"))
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
        (["caps.csv", "--kind", "matrix"], "no GFLOPS/W"),
        (["caps.csv", "--kind", "phases"], "caps.csv: no phases to draw"),
        (["caps.csv", "--kind", "layers"], "no column 'layer'"),
        (["caps.csv", "--kind", "caps", "--reference", "target=none"], "0 configurations have it"),
        (["caps.csv", "--kind", "caps", "--k", "0.5"], "must be 1 or more"),
        (["bad.csv", "--kind", "pareto"], "bad.csv, line 2, column time_s"),
        (["run.h5", "--kind", "treemap"], "no phases of layers"),
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
        ("level,name,j_per_batch\nlayer,a,3\n", "layers", "line 1: no column 'layer'"),
        ("layer,j_per_batch\na,0\nb,-2\n", "treemap", "no layer took more than 0 J: there is no area to draw"),
        ("layer,j_per_batch\na,1e308\n", "treemap", "line 2, column j_per_batch: 1e308 is too large to be drawn"),
        ("energy_j,time_s\n1,2\n2,1e-300\n", "pareto", "line 3, column time_s: 1e-300 is too small to be drawn"),
        ("model,batch,gflops_per_w\nm,8,1e200\n", "matrix", "line 2, column gflops_per_w: 1e200 is too large"),
        ("phase,batch,s_per_batch\nforward,8,1\n", "phases", "t.csv: no energy to draw: a table of phases needs"),
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
    found = pictures.configurations_of_records(read_campaign([tmp_path]))
    assert {c.others for c in found} == {"optimizer sgd", "optimizer adam"}
    for draw in (pictures.draw_phases, pictures.draw_matrix, pictures.draw_pareto):
        said = texts(draw(found, "runs"))
        assert [any(f"optimizer {n}" in t for t in said) for n in ("sgd", "adam")] == [True, True]


def test_panels_of_one_model_have_one_scale_and_time_is_not_hatched(tmp_path):
    for name, watts in (("old", 1.0), ("new", 0.5)):
        one_run(tmp_path / f"{name}.h5", watts, (64,), 6, device_name=name)
    figure = pictures.draw_phases(pictures.configurations_of_records(read_campaign([tmp_path])), "runs")
    of = {what: [ax for ax in figure.axes if ax.get_ylabel().startswith(what)] for what in ("energy", "time")}
    assert len({ax.get_ylim() for ax in of["energy"]}) == 1 < len(of["energy"])
    hatches = {what: {p.get_hatch() for ax in axes for p in ax.patches} - {"xxxx"} for what, axes in of.items()}
    assert hatches["time"] <= {"", None}
    assert not hatches["energy"] <= {"", None}
    assert "of AlexNet" in figure.get_suptitle()


def test_layers_are_no_phases_of_a_campaign(tmp_path):
    path = write_layers(tmp_path / "layers.h5")
    found = pictures.configurations_of_records(read_campaign([path]))
    assert "layer" not in {c.phase for c in found}
    assert {"forward", "backward"} <= {c.phase for c in found}


@pytest.mark.parametrize("name", ["$x_{$", "\U0001f642", "a\x1b[2J"])
def test_any_name_can_be_drawn(tmp_path, capsys, name):
    """As a provenance, too, which stands at the foot; a character that the font lacks is no warning."""
    table = tmp_path / "t.csv"
    table.write_text(f"layer,j_per_batch,provenance,model,kind\nconv,3,{name},{name},{name}\n")
    for kind in ("layers", "treemap"):
        with pytest.raises(SystemExit) as end:
            main(["plot", str(table), "--kind", kind, "-o", str(tmp_path / f"{kind}.png")])
        assert (end.value.code, capsys.readouterr().err) == (0, "")


def test_configurations_without_a_panel_are_counted(tmp_path):
    table_ = tmp_path / "t.csv"
    table_.write_text("layer,j_per_batch,model\n" + "".join(f"conv,3,m{i}\n" for i in range(6)))
    layers = pictures.layers_of_table(read_table(table_))
    for draw in (pictures.draw_layers, pictures.draw_treemap):
        assert any("2 more configurations are not drawn" in t for t in texts(draw(layers, "t")))


def test_a_lower_bound_has_no_interval_and_the_foot_is_not_cut_off(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text(LAYERS)
    layers = pictures.layers_of_table(read_table(path))
    assert [(x.is_lower_bound, x.u95_j) for x in layers if x.name == "fc"] == [(True, None)]
    figure = pictures.draw_treemap(layers, "layers.csv")
    said = texts(figure)
    assert any("≥ 7.000 J a batch in 2 layers" in t for t in said)
    foot = next(t for t in said if "95 % interval" in t)
    assert "not drawn" in foot
    assert max(map(len, foot.split("\n"))) <= 16 * figure.get_figwidth()
