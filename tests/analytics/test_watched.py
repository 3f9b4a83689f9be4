"""Phases as `Meter.watch` marks them: communication beside backward, recomputation and layers inside."""

import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, make_run

from powerd_analytics import phase_table, read_run
from powerd_analytics.plots.power import phase_colours

ITERATIONS = 30


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    phases, t = [], 100 * MS
    for _ in range(ITERATIONS):
        iteration = len(phases)
        phases.append(PhaseSpec("iteration", t, t + 70 * MS))
        phases.append(PhaseSpec("forward", t, t + 20 * MS, {}, iteration))
        backward = len(phases)
        phases.append(PhaseSpec("backward", t + 20 * MS, t + 60 * MS, {}, iteration))
        for layer in range(2):
            begin = t + (20 + 20 * layer) * MS
            phases.append(PhaseSpec("layer", begin, begin + 20 * MS, {"layer": str(layer)}, backward))
        # Two buckets on the way at once, the second one beyond the end of the first.
        phases += [PhaseSpec("communication", t + d * MS, t + (d + 15) * MS, {"overlaps": True}) for d in (30, 40)]
        phases.append(PhaseSpec("update", t + 60 * MS, t + 70 * MS, {}, iteration))
        t += 70 * MS
    order = sorted(range(len(phases)), key=lambda i: (phases[i].begin_ns, -phases[i].end_ns, i))
    place = {old: new for new, old in enumerate(order)}
    for phase in phases:
        phase.parent = place.get(phase.parent, -1)
    lines = [LineSpec("gpu0.a", lambda t: np.full(len(t), 100.0))]
    return read_run(
        make_run(tmp_path_factory.mktemp("r") / "r.h5", lines, [phases[i] for i in order], end_ns=t + 100 * MS)
    )


def test_what_overlaps_is_shown_and_counted_once(run):
    table = phase_table(run)
    rows = {r.path: r for r in table.phases if "layer" not in r.group}
    assert rows["communication"].j_per_batch == pytest.approx(1.5, rel=0.02)
    assert rows["iteration/backward"].j_per_batch == pytest.approx(4.0, rel=0.01)
    totals = {tuple(r.group): r for r in table.totals}
    assert totals[()].energy_j == pytest.approx(7.0 * ITERATIONS, rel=0.005)
    assert totals[()].rest_j == pytest.approx(0.0, abs=0.5)
    assert totals["overlaps",].energy_j == pytest.approx(2.5 * ITERATIONS, rel=0.02)  # together 25 ms, not 30
    whole = table.runs[0]
    assert whole.phases_j == pytest.approx(7.0 * ITERATIONS, rel=0.005)
    assert whole.phases_j + whole.rest_j == pytest.approx(whole.energy_j, rel=1e-9)


def test_layers_are_groups_of_their_own(run):
    rows = {(r.group["layer"], r.path): r for r in phase_table(run).phases if "layer" in r.group}
    assert set(rows) == {("0", "iteration/backward/layer"), ("1", "iteration/backward/layer")}
    assert rows["0", "iteration/backward/layer"].j_per_batch == pytest.approx(2.0, rel=0.02)


def test_pictures_show_what_does_not_overlap(run):
    assert "communication" not in phase_colours(run)


def test_passes_without_their_forward_have_no_samples_a_second(tmp_path):
    phases, t = [], 100 * MS
    for _ in range(ITERATIONS):
        for name, ms in (("backward", 40), ("update", 10)):
            phases.append(PhaseSpec(name, t, t + ms * MS, {"batch_size": 64}))
            t += ms * MS
        t += 30 * MS
    line = LineSpec("gpu0.a", lambda t: np.full(len(t), 100.0))
    table = phase_table(read_run(make_run(tmp_path / "r.h5", [line], phases, end_ns=t + 100 * MS)))
    (total,) = table.totals
    assert total.samples_per_s is None
    assert "no forward pass is marked" in total.note
    assert all(row.samples_per_s is None for row in table.phases)
