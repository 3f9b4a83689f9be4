from dataclasses import replace

import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, S, make_run, training

from powerd_analytics import phase_table, read_run
from powerd_analytics.energy.devices import load_parts
from powerd_analytics.plots import draw_run, save
from powerd_analytics.plots.power import draw_power, envelope_of_many, phase_colours, zoom_window
from powerd_core.errors import AnalysisError
from powerd_core.model import Flag

pytest.importorskip("matplotlib")


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text"))]


def test_the_envelope_keeps_every_extreme():
    t = np.arange(1_000_000, dtype=np.int64)
    p = np.zeros(1_000_000)
    p[123_456], p[654_321] = 500.0, -3.0
    at, low, high = envelope_of_many([(t, p)], len(t), 800)
    assert len(at) <= 800
    assert high.max() == 500
    assert low.min() == -3


def test_the_picture_has_units_provenance_and_no_bar_of_zero(tmp_path):
    tr = training((64, 128), 20)
    run = read_run(make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", tr.power())], tr.phases, end_ns=tr.end_ns))
    table = phase_table(run)
    figure = draw_power(run, table, load_parts(run), {})
    said = "\n".join(texts(figure))
    for word in ("power (W)", "energy per phase (J)", "time (s)", "simulated", "n.r.", "forward", "batch 64"):
        assert word in said
    bars = figure.axes[-1]
    heights = [p.get_height() for p in bars.patches]
    assert min(heights) > 0
    solid = [p.get_height() for p in bars.patches if p.get_hatch() != "xxxx"]
    assert sorted(solid) == pytest.approx(sorted(r.j_per_batch for r in table.phases if r.is_resolvable))


def test_a_lower_bound_has_a_sign_and_no_interval(tmp_path):
    t = np.arange(0, S + 1, 2 * MS, dtype=np.int64)
    flags = np.where(t == 500 * MS, int(Flag.SATURATED), 0).astype(np.uint16)
    line = LineSpec("gpu0.a", lambda t: np.full(len(t), 50.0), t_ns=t, flags=flags)
    run = read_run(make_run(tmp_path / "r.h5", [line], [PhaseSpec("p", 200 * MS, 800 * MS)], end_ns=S))
    figure = draw_power(run, phase_table(run), load_parts(run), {})
    assert "≥ 30.0" in texts(figure)
    assert any("lower bound" in text for text in texts(figure))


def test_the_zoom_shows_a_few_iterations(tmp_path):
    tr = training((64,), 20)
    run = read_run(make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", tr.power())], tr.phases, end_ns=tr.end_ns))
    begin, end = zoom_window(run)
    inside = (run.phases.begin_ns >= begin) & (run.phases.end_ns <= end)
    names = [run.phases.classes[i].name for i in run.phases.label[inside]]
    assert names.count("iteration") == 3
    assert list(phase_colours(run)) == ["forward", "backward", "update"]


@pytest.mark.parametrize("phases", [[], [PhaseSpec("x", 100 * MS, 200 * MS)]])
def test_runs_with_hardly_a_phase_are_drawn(tmp_path, phases):
    run = read_run(make_run(tmp_path / "r.h5", [LineSpec("a", lambda t: 0.0 * t + 5)], phases))
    save(draw_run(run), tmp_path / "p.svg")
    assert (tmp_path / "p.svg").stat().st_size > 1000


NONE = LineSpec("a", t_ns=np.zeros(0, np.int64), codes={"power_mw": np.zeros(0, np.int64)})


def test_a_line_without_readings_has_no_joules_and_no_picture(tmp_path):
    run = read_run(make_run(tmp_path / "r.h5", [NONE], [PhaseSpec("x", 100 * MS, 200 * MS)]))
    row = phase_table(run).phases[0]
    assert row.j_per_batch is None
    assert "no readings" in row.note
    with pytest.raises(AnalysisError):
        save(draw_run(run), tmp_path / "p.png")
    assert not (tmp_path / "p.png").exists()


def test_a_line_without_readings_is_named_beside_others(tmp_path):
    silent = replace(NONE, name="b", device="gpu1")
    good = LineSpec("a", lambda t: np.full(len(t), 100.0))
    run = read_run(make_run(tmp_path / "r.h5", [good, silent], [PhaseSpec("x", 100 * MS, 200 * MS)]))
    parts = load_parts(run)
    said = [
        t.get_text() for t in draw_power(run, phase_table(run), parts, {}).findobj(lambda a: hasattr(a, "get_text"))
    ]
    assert said.count("no readings of b") == 2  # in the trace of the whole run, and in the one near
    assert not any(text == "no readings of a" for text in said)
