"""The picture of a run: its traces, its phases, and what has no reading."""

from dataclasses import replace

import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, S, make_run, training

from powerd_analytics import phase_table, read_run
from powerd_analytics.output.colours import REST, phase_colour
from powerd_analytics.plots import draw_run
from powerd_analytics.plots.power import _outer_spans, envelope_of_many, phase_colours, zoom_window
from powerd_core.errors import AnalysisError

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex

NONE = LineSpec("b", t_ns=np.zeros(0, np.int64), codes={"power_mw": np.zeros(0, np.int64)}, device="gpu1")


def drawn(tmp_path, lines, phases=(), end_ns=S):
    run = read_run(make_run(tmp_path / "r.h5", lines, list(phases), end_ns=end_ns))
    figure = draw_run(run)
    return run, phase_table(run), figure, [t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text"))]


def test_the_envelope_keeps_every_extreme():
    t, p = np.arange(1_000_000, dtype=np.int64), np.zeros(1_000_000)
    p[123_456], p[654_321] = 500.0, -3.0
    at, low, mean, high = envelope_of_many([(t, p)], len(t), 800)
    assert len(at) <= 800
    assert (high.max(), low.min()) == (500, -3)
    lasts = np.diff(np.append(at, t[-1]))
    assert float((mean * lasts).sum()) == pytest.approx(float(np.sum((p[1:] + p[:-1]) / 2 * np.diff(t))))


@pytest.mark.quick("the picture of power")
def test_the_picture_has_units_provenance_a_few_iterations_and_no_bar_of_zero(tmp_path):
    tr = training((64, 128), 12)
    run, table, figure, texts = drawn(tmp_path, [LineSpec("gpu0.a", tr.power())], tr.phases, tr.end_ns)
    for word in ("power (W)", "energy a batch (J)", "time (s)", "gpu0 SIMULATED", "forward", "batch 64"):
        assert word in "\n".join(texts)
    pieces = [(to_hex(p.get_facecolor()).upper(), p.get_width()) for p in figure.axes[-1].patches]
    inner = [r for r in table.phases if r.phase in ("forward", "backward", "update")]
    expected = [(phase_colour(r.phase), pytest.approx(r.j_per_batch)) for r in inner if r.is_resolvable]
    assert len(expected) >= 4
    assert sorted(p for p in pieces if p[0] != REST) == sorted(expected, key=lambda e: (e[0], e[1].expected))
    wholes = sum(r.j_per_batch for r in table.phases if r.phase == "iteration")
    assert sum(width for _, width in pieces) == pytest.approx(wholes, rel=0.02)
    begin, end = zoom_window(run)
    inside = (run.phases.begin_ns >= begin) & (run.phases.end_ns <= end)
    assert [run.phases.classes[i].name for i in run.phases.label[inside]].count("iteration") == 3
    assert list(phase_colours(run)) == ["forward", "backward", "update"]


def test_a_line_without_readings_is_named_beside_others_and_alone_has_no_picture(tmp_path):
    good, phases = LineSpec("a", lambda t: np.full(len(t), 100.0)), [PhaseSpec("x", 100 * MS, 200 * MS)]
    *_, texts = drawn(tmp_path, [good, NONE], phases)
    assert [t for t in texts if t.startswith("no readings")] == ["no readings of b"] * 2  # of the run, and of the zoom
    run = read_run(make_run(tmp_path / "none.h5", [replace(NONE, device="gpu0")], phases))
    assert phase_table(run).phases[0].j_per_batch is None
    with pytest.raises(AnalysisError):
        draw_run(run)


def test_iterations_of_a_watched_model_have_one_label(tmp_path):
    """They are the outermost phases: their label would else stand there once each."""
    lines = [LineSpec("a", lambda t: np.full(len(t), 100.0))]
    about = {"model": "Net-1k", "batch_size": 8}
    phases = [PhaseSpec("iteration", k * 100 * MS, (k + 1) * 100 * MS, about) for k in range(5)]
    run = read_run(make_run(tmp_path / "w.h5", lines, phases, end_ns=S))
    spans = _outer_spans(run.phases, np.ones(len(run.phases), bool))
    assert [(begin, end) for begin, end, _ in spans] == [(0, 500 * MS)]


def test_phases_of_two_groups_have_two_labels(tmp_path):
    lines = [LineSpec("a", lambda t: np.full(len(t), 100.0))]
    tr = training((64, 128), 3)
    run = read_run(make_run(tmp_path / "t.h5", lines, list(tr.phases), end_ns=tr.end_ns))
    spans = _outer_spans(run.phases, np.ones(len(run.phases), bool))
    assert len(spans) >= 2
