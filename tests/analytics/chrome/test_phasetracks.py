"""Phases as tracks: what comes of looking at a few of them at a time is what comes of looking at all."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_run import MS, LineSpec, PhaseSpec, S, make_run

from powerd_analytics.chrome.phasetracks import joules_of, nested, tracks_of
from powerd_analytics.chrome.trace import write_trace
from powerd_analytics.energy.devices import load_parts, part_phase_energies
from powerd_analytics.runs import phases
from powerd_analytics.runs.run import read_run


@st.composite
def runs(draw):
    """Phases of up to three processes, which need not lie inside the one around them, nor have lanes of their own."""
    m = draw(st.integers(0, 25))
    begin = np.sort(draw(st.lists(st.integers(0, 40), min_size=m, max_size=m))).astype(np.int64)
    end = begin + np.array(draw(st.lists(st.integers(0, 30), min_size=m, max_size=m)), np.int64)
    parent, process, depth = np.full(m, -1, np.int32), np.zeros(m, np.int32), np.zeros(m, np.int32)
    for i in range(m):
        parent[i] = draw(st.integers(-1, i - 1))
        process[i] = draw(st.integers(0, 2)) if parent[i] < 0 else process[parent[i]]
        depth[i] = 0 if parent[i] < 0 else depth[parent[i]] + 1
    columns = {"begin_ns": begin, "end_ns": end, "parent": parent, "process": process, "depth": depth}
    return SimpleNamespace(phases=SizedNamespace(**columns))


class SizedNamespace(SimpleNamespace):
    def __len__(self):
        return len(self.begin_ns)


@pytest.fixture(scope="module", autouse=True)
def few_at_a_time():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phases, "AT_A_TIME", 3)
        yield


@given(runs())
def test_edges_lie_within_those_of_the_phase_around_as_one_by_one(run):
    p = run.phases
    begin, end = p.begin_ns.tolist(), p.end_ns.tolist()
    for i, above in enumerate(p.parent.tolist()):
        if above >= 0:
            begin[i] = min(max(begin[i], begin[above]), end[above])
            end[i] = min(max(end[i], begin[i]), end[above])
    before = p.begin_ns.copy(), p.end_ns.copy()
    for process in range(3):
        own = np.flatnonzero(p.process == process)
        found = nested(run, own)
        assert [x[own].tolist() for x in found] == [np.array(x, np.int64)[own].tolist() for x in (begin, end)]
    assert np.array_equal(p.begin_ns, before[0])
    assert np.array_equal(p.end_ns, before[1])


@given(runs())
def test_outermost_phases_of_a_lane_do_not_overlap_and_inner_ones_stay_with_them(run):
    p = run.phases
    for process in range(3):
        tracks = tracks_of(run, process)
        own, lane = tracks.own, tracks.lane
        assert np.array_equal(own, np.flatnonzero(p.process == process))
        of = dict(zip(own.tolist(), lane.tolist(), strict=True))
        until: dict[int, int] = {}
        for i in own.tolist():
            if p.parent[i] >= 0:
                assert of[i] == of[int(p.parent[i])]
                continue
            assert until.get(of[i], 0) <= p.begin_ns[i]
            # The first lane that is free: no more lanes than phases at the same time.
            assert all(until.get(other, 0) > p.begin_ns[i] for other in range(of[i]))
            until[of[i]] = int(p.end_ns[i])


def test_joules_are_those_of_the_phases(tmp_path):
    specs = [
        PhaseSpec("training", 0, S),
        *(PhaseSpec("f", k * 100 * MS, (k * 100 + 70) * MS, parent=0) for k in range(10)),
    ]
    run = read_run(make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", lambda t: 50 + (t // (30 * MS)) % 7)], specs))
    (part,) = load_parts(run)
    columns, found = part_phase_energies(run, part), joules_of(run, part)
    assert np.array_equal(found.energy_j, columns.energy_j)
    assert np.allclose(found.u95_j, columns.u95_j, rtol=1e-12)
    assert found.resolvable.all()
    write_trace(run, tmp_path / "o.json")
    events = [e for e in json.loads((tmp_path / "o.json").read_text())["traceEvents"] if e.get("cat") == "phase"]
    assert [e["args"]["gpu0 (simulated) J"] for e in events] == [float(f"{j:.6g}") for j in columns.energy_j]
