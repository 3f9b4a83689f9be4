"""The plots of `joules plot --kind`: which configurations and layers they draw, as what, and what they refuse; bars."""

import re

import numpy as np
import pytest
from command import joules, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from make_campaign import one_run
from make_job import machine
from make_layers import write_run as write_layers

from powerd_analytics import plots
from powerd_analytics.energy.metrics import eds, pareto_front
from powerd_analytics.frame.figures import rows_of
from powerd_analytics.frame.published import read_table
from powerd_analytics.frame.trainings import read_runs
from powerd_analytics.runs.run import read_run

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from powerd_analytics.plots.configurations import PER, SMALLEST
from powerd_analytics.plots.power import phase_colours
from powerd_analytics.plots.style import Bar, draw_bars

CAPS = """gpu,model,target,power_cap_w,energy_kj,u95_j,time_s
X,Net,default,250,4.0,40,20
X,Net,a,200,3.0,30,22
X,Net,b,150,2.8,28,30
X,Net,c,220,4.1,41,31
"""


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text")) if t.get_text()]


def titles(figure):
    return [title for ax in figure.axes if (title := ax.get_title(loc="left"))]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """Two caps; two runs of 250 W with different numbers of batches."""
    folder = tmp_path_factory.mktemp("runs")
    for name, cap, scale, iterations in (("a", 250, 1.0, 4), ("b", 250, 1.0, 6), ("low", 150, 0.75, 4)):
        one_run(folder / f"{name}.h5", scale, (64, 128), iterations, power_cap_w=cap, provenance="measured")
    return folder


@pytest.fixture(scope="module")
def frame(campaign):
    return read_runs([campaign])


@pytest.fixture
def configurations(tmp_path):
    def of_table(text):
        (tmp_path / "t.csv").write_text(text)
        return plots.configurations_of_table(read_table(tmp_path / "t.csv"))

    return of_table


def found_in(*paths):
    return plots.configurations_of_runs(read_runs(list(paths)))


def drawn_of(row):
    """Energy and time of a row of a picture."""
    return [row[name] for name in PER[row["per"]]]


# Configurations


def test_phases_of_a_campaign_have_the_tables_joules(frame):
    low = [r for r in rows_of(frame) if r["power_cap_w"] == 150]
    figure = plots.draw_phases(plots.configurations_of_runs(frame), "runs")
    for word in ("energy a batch (J)", "time a batch (s)", "batch size", "150 W", "250 W"):
        assert word in texts(figure)
    wanted = [r["j_per_batch"] for r in low if r["phase"] in ("forward", "backward", "update") and r["j_per_batch"]]
    energy = [ax for ax in figure.axes if ax.get_ylabel().startswith("energy") and ax.get_title(loc="left") == "150 W"]
    heights = [p.get_height() for ax in energy for p in ax.patches if p.get_hatch() != "xxxx"]
    assert sorted(heights) == pytest.approx(sorted(wanted))


def test_totals_are_compared_by_the_sample_and_repeats_whatever_their_batches(frame):
    found, records = plots.configurations_of_runs(frame), rows_of(frame)
    totals = {(r["power_cap_w"], r["batch_size"]): r for r in rows_of(found) if r["kind"] == "total"}
    low = next(r for r in records if (r["kind"], r["batch_size"], r["power_cap_w"]) == ("total", 128, 150))
    point = totals[150, 128]
    assert point["per"] == " a sample"
    assert drawn_of(point) == pytest.approx([low["j_per_batch"] / 128, low["s_per_batch"] / 128])
    ax = plots.draw_pareto(found, "runs").axes[0]
    ends = [segment[:, 1] for bars in ax.containers for segment in bars[2][-1].get_segments()]
    half = low["u95_j"] / low["energy_j"] * drawn_of(point)[0]
    assert any(np.ptp(at) / 2 == pytest.approx(half) and at.mean() == pytest.approx(drawn_of(point)[0]) for at in ends)
    same = [r for r in records if (r["kind"], r["batch_size"], r["power_cap_w"]) == ("total", 64, 250)]
    mean_j = np.mean([r["energy_j"] / r["iterations"] for r in same])
    assert drawn_of(totals[250, 64])[0] == pytest.approx(mean_j / 64)
    curve = plots.draw_sweep(found, "caps").axes[0].containers[0][0]
    assert list(curve.get_xdata()) == [150.0, 250.0]  # and no curve goes back to where it was


@pytest.mark.parametrize("machines", [1, 2])
def test_joules_of_several_ranks_are_of_the_samples_of_all(tmp_path, machines):
    """Of two ranks in one run, and of four on two machines: each has a batch of its own."""
    frame = read_runs([machine(tmp_path / f"{i}.h5", i, machines=machines) for i in range(machines)])
    (total,) = [r for r in rows_of(plots.configurations_of_runs(frame)) if r["kind"] == "total"]
    samples = 2 * machines * total["batch_size"]
    assert drawn_of(total) == pytest.approx([total["j_per_batch"] / samples, total["s_per_batch"] / samples])


def test_the_front_and_the_lines_of_equal_edp_and_eds_are_the_metrics_own(configurations):
    found = configurations(CAPS)
    energies, times = zip(*map(drawn_of, rows_of(found)), strict=True)
    figure = plots.draw_pareto(found, "caps", "target=default", (1.5,))
    ax = figure.axes[0]
    curves = {str(line.get_label()).split(":")[0]: np.asarray(line.get_xydata()) for line in ax.lines}
    at = pareto_front(times, energies)
    assert curves["Pareto front"].tolist() == [[times[i], energies[i]] for i in at]
    product = curves["equal EDP, least"].prod(axis=1)
    assert product == pytest.approx(min(e * t for e, t in zip(energies, times, strict=True)))
    time, energy = curves["equal EDS (k = 1.5), least"].T
    least = min(eds(e, t, energies[0], times[0], 1.5) for e, t in zip(energies, times, strict=True))
    assert eds(energy, time, energies[0], times[0], 1.5) == pytest.approx(least)
    assert any("provenance not stated" in text for text in texts(figure))


def test_curves_over_caps_are_relative_and_carry_errors(configurations):
    curve, _, bars = plots.draw_sweep(configurations(CAPS), "caps", "target=default").axes[0].containers[0]
    assert list(curve.get_xdata()) == [150, 200, 220, 250]
    assert list(curve.get_ydata()) == pytest.approx([0.7, 0.75, 1.025, 1.0])
    half = [np.ptp(segment[:, 1]) / 2 for segment in bars[0].get_segments()]
    assert half == pytest.approx([0.7 * 0.01 * 2**0.5, 0.75 * 0.01 * 2**0.5, 1.025 * 0.01 * 2**0.5, 0.0])


def test_a_seed_parts_no_panels(tmp_path):
    for i, cap in enumerate((250, 150)):
        one_run(tmp_path / f"{i}.h5", batches=(64,), iterations=4, power_cap_w=cap, random_seed=i)
    figure = plots.draw_sweep(found_in(tmp_path), "caps")
    assert [list(ax.containers[0][0].get_xdata()) for ax in figure.axes] == [[150.0, 250.0]]


@pytest.mark.parametrize("attribute", ["optimizer", "device_name"])
def test_what_differs_has_panels_of_its_own_on_one_scale(tmp_path, attribute):
    for name, watts in (("one", 1.0), ("two", 0.5)):
        one_run(tmp_path / f"{name}.h5", watts, (64,), 4, **{attribute: name})
    figure = plots.draw_phases(found_in(tmp_path), "runs")
    assert len(titles(figure)) == 2
    of = {what: [ax for ax in figure.axes if ax.get_ylabel().startswith(what)] for what in ("energy", "time")}
    assert len({ax.get_ylim() for ax in of["energy"]}) == 1 < len(of["energy"])
    hatches = {what: {p.get_hatch() for ax in axes for p in ax.patches} - {"xxxx"} for what, axes in of.items()}
    assert hatches["time"] <= {"", None}  # time is the host's own
    assert not hatches["energy"] <= {"", None}


# Layers


def test_layers_are_no_configurations_and_hide_no_passes(tmp_path):
    run = read_run(write_layers(tmp_path / "layers.h5"))
    assert len([r for r in rows_of(found_in(run.path)) if r["kind"] == "total"]) == 1
    assert list(phase_colours(run)) == ["forward", "backward"]
    labels = texts(plots.draw_run(run))
    assert {"forward", "backward"} <= set(labels)
    assert "layer" not in labels


# The command


@pytest.mark.parametrize(("kind", "ending"), [("power", "png"), ("quality", "svg"), ("phases", "pdf")])
def test_the_command_writes_each_format(campaign, tmp_path, capsys, kind, ending):
    out = tmp_path / f"p.{ending}"
    assert joules(capsys, "plot", campaign / "a.h5", "--kind", kind, "-o", out)[0] == 0
    assert out.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")
    if ending == "svg":
        figure = plots.draw_quality(read_run(campaign / "a.h5"))
        assert {"clock bound (± µs)", "good readings (1/s)", "missing", "gpu0.a"} <= set(texts(figure))


@pytest.mark.parametrize(
    ("text", "arguments", "name"),
    [
        (CAPS, [], "t.csv is a table"),
        (CAPS, ["--kind", "quality"], "t.csv is a table"),
        (CAPS, ["--kind", "phases"], "t.csv: no phases"),
        (CAPS, ["--kind", "caps", "--reference", "target=none"], "target=none"),
        (CAPS, ["--kind", "caps", "--k", "0.5"], "--k"),
        ("energy_j,time_s\n3,soon\n", ["--kind", "pareto"], "row 1, column time_s"),
        ("energy_j,time_s\n1,2\n2,1e-300\n", ["--kind", "pareto"], "row 2, column time_s"),
        ("phase,batch,j_per_batch\nforward,8,1\nforward,8,2\n", ["--kind", "phases"], "two rows for one bar"),
        (None, ["--kind", "caps"], "no power caps"),
        (None, ["b.h5", "--kind", "power"], "--kind phases, pareto, caps"),
    ],
)
def test_bad_input_is_one_line_and_no_file(campaign, tmp_path, capsys, text, arguments, name):
    given = campaign / "a.h5"
    if text is not None:
        given = tmp_path / "t.csv"
        given.write_text(text)
    assert name in refused(capsys, "plot", given, *arguments, "-o", tmp_path / "p.png")
    assert not (tmp_path / "p.png").exists()


def test_any_name_can_be_drawn(tmp_path, capsys):
    """As a provenance, too, which stands at the foot; a character that the font lacks is no warning."""
    rows = "".join(f"8,3,2,{name},{name},{name}\n" for name in ("$x_{$", "\U0001f642", "a\x1b[2J"))
    (tmp_path / "t.csv").write_text("batch,energy_j,time_s,provenance,model,device\n" + rows)
    code, _, err = joules(capsys, "plot", tmp_path / "t.csv", "--kind", "pareto", "-o", tmp_path / "p.png")
    assert (code, err) == (0, "")


# Bars

VALUES = st.floats(-1e3, 1e6).filter(lambda v: v == 0 or abs(v) >= SMALLEST)  # what tables may hold to be drawn
HEIGHTS = st.lists(st.tuples(st.none() | VALUES, st.none() | st.floats(0, 1e3)), min_size=1, max_size=4)


def drawn(heights, *, is_lower_bound=False):
    ax = Figure(figsize=(5, 3)).subplots()
    bars = [Bar(float(i), 0.8, height, "#0072B2", "", is_lower_bound) for i, height in enumerate(heights)]
    draw_bars(ax, bars, heights, 4.5, unknown="n.r.")
    return ax


@settings(max_examples=15, deadline=None)
@given(HEIGHTS)
def test_every_bar_and_interval_is_on_the_axis(heights):
    ax = drawn(heights)
    low, high = ax.get_ylim()
    assert low <= 0 or ax.get_yscale() == "log"
    for h, u in heights:
        if h is not None:
            assert low <= h <= high
            assert h + (u or 0.0) <= high


def test_panels_of_phases_stand_in_the_order_of_the_cap_on_one_scale(tmp_path):
    rows = "".join(f"gpu0,{cap},{phase},8,{cap * j},0.1\n" for cap in (120, 160, 260, 200)
                   for phase, j in (("forward", 0.01), ("backward", 0.02)))  # fmt: skip
    path = tmp_path / "t.csv"
    path.write_text(f"device,power_cap_w,phase,batch_size,j_per_batch,s_per_batch\n{rows}")
    figure = plots.draw_phases(plots.configurations_of_table(read_table(path)), "t")
    caps = [re.search(r"\d+", title)[0] for title in titles(figure)]
    assert caps == ["120", "160", "200", "260"]
    limits = {ax.get_ylabel(): set() for ax in figure.axes if ax.get_ylabel()}
    for ax in figure.axes:
        if ax.get_ylabel():
            limits[ax.get_ylabel()].add(ax.get_ylim())
    assert [len(own) for own in limits.values()] == [1] * len(limits)
