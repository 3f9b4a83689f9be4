"""`joules info --check`: figures, picture and marker check, of runs built from simulated exchanges."""

import json

import numpy as np
import pytest
from bench_clock import IDLE, MS, Quartz, S, Step, simulate
from make_run import LineSpec, PhaseSpec, make_run

from powerd_analytics import read_run
from powerd_analytics.cli import main
from powerd_analytics.runs import clock_report
from powerd_analytics.runs.clock_report import compare_marker
from powerd_client.runs import build
from powerd_core.serde import to_document
from powerd_core.wire import Message, encode
from support.fake_daemon import PERIOD_NS, make_block, make_description, make_stream
from support.small_run import make_journal

RUN = {"run_id": "ab", "created_utc": "2026-01-01T00:00:00+00:00", "powerd_version": "0", "command": ["x"],
       "environment": {}}  # fmt: skip
STREAM = make_stream()


def built(path, sim):
    """A run file made as a recorder's is, with a reading every millisecond around the middle."""
    pieces = [encode(Message("run", RUN)), encode(Message("start", {"t_start_ns": 0}))]
    pieces.append(encode(Message("description", to_document(make_description(STREAM, 1)), 1)))
    pieces += [encode(e) for e in sim.exchanges]
    middle = sim.length_ns // 2
    for k in range(40):
        first = sim.clocks.read(middle + (k - 20) * 20 * PERIOD_NS)
        pieces.append(encode(make_block(STREAM, 1, k, first, [1000] * 20)))
    pieces.append(encode(Message("stop", {"t_stop_ns": sim.length_ns, "complete": True})))
    build.build_run(make_journal(path, pieces, marks=False), path)
    return path


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    return built(
        tmp_path_factory.mktemp("c") / "steady.h5", simulate(1, IDLE, Quartz(drift_ppm=40, swing_ppm=0, walk_ppm=0))
    )


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    return built(
        tmp_path_factory.mktemp("c") / "stepped.h5",
        simulate(1, IDLE, length_ns=20 * S, steps=(Step(10 * S, by_ns=25 * MS),)),
    )


def test_the_figures_are_those_of_the_simulation(steady):
    (trace,) = clock_report.read_traces(read_run(steady))
    r = clock_report.clock_report(trace)
    assert r.skew_ppm == pytest.approx(40, abs=0.1)
    assert r.duration_s == pytest.approx(60, abs=0.3)
    assert r.exchanges > 600
    assert r.not_used == 0
    assert (r.board, r.epoch, r.steps) == ("fake board", "1", ())
    assert 115e-6 < r.delay_min_s < r.delay_median_s < r.delay_p99_s < 300e-6
    assert 50e-6 < r.bound_median_s < r.bound_max_s < 100e-6
    assert r.offset_end_s - r.offset_begin_s == pytest.approx(60 * 40e-6, abs=3e-5)


def test_a_step_is_told_and_readings_around_it_are_no_values(stepped):
    run = read_run(stepped)
    (trace,) = clock_report.read_traces(run)
    r = clock_report.clock_report(trace)
    (step,) = r.steps
    assert step.by_s == pytest.approx(-0.025, abs=1e-4)
    assert step.begin_ns < 10 * S < step.end_ns < step.begin_ns + 0.3 * S
    readings = run.readings("gpu0.rail_0")
    lost = readings.flags == 32
    assert lost.any()
    assert not lost.all()
    # Whatever is given out as a value is outside the time in which nobody knows the clock.
    inside = (readings.t_ns > step.begin_ns) & (readings.t_ns < step.end_ns)
    assert lost[inside].all()
    assert not lost[~inside].any()
    assert (np.diff(readings.t_ns[~lost]) > 0).all()
    (gap,) = [g for g in run.gaps if "stepped" in g.cause]
    assert gap.lost == lost.sum()
    assert "the clock of 'fake board' stepped" in str(run.messages)


def test_the_command_prints_for_people_and_for_programs(steady, stepped, capsys):
    main_ok(["info", "--check", str(steady)])
    said = capsys.readouterr().out
    for words in ("clock of fake board, epoch 1", "skew 40.0", "guaranteed bound: ±", "delay: 1"):
        assert words in said
    main_ok(["info", "--check", str(stepped), "--format", "json"])
    (document,) = json.loads(capsys.readouterr().out)
    assert document["clocks"][0]["steps"][0]["by_s"] == pytest.approx(-0.025, abs=1e-4)


def main_ok(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


class TestMarker:
    BOUND_NS = 60_000.0
    PHASES = tuple(PhaseSpec("forward", k * 50 * MS, k * 50 * MS + 20 * MS) for k in range(1, 20))

    def run(self, tmp_path, off_ns, without=()):
        """A pin that follows the phases, ``off_ns`` late, with statuses between as a node sends them."""
        edges = sorted((t, level) for p in self.PHASES for t, level in ((p.begin_ns, 1), (p.end_ns, 0)))
        rows, count = [(0, 0, 0)], 0
        for i, (t, level) in enumerate(edges):
            count += 1
            if i in without:
                continue
            rows.append((t + off_ns, level, count))
            if i % 3 == 0:
                rows.append((t + off_ns + 5 * MS, level, count))
        t, level, edge = (np.array(column) for column in zip(*rows, strict=True))
        line = LineSpec(
            "node.marker", device="node", t_ns=t.astype(np.int64),
            codes={"level": level.astype(np.uint8), "edge": edge.astype(np.uint16)},
            conversion={"kind": "quantity", "column": "level", "quantity": "marker_bits", "per_code": 1.0},
            accuracy={"centre_ns": 10_000},
        )  # fmt: skip
        power = LineSpec("gpu0.a", lambda t: 0.0 * t + 5)
        path = make_run(
            tmp_path / "r.h5", [power, line], self.PHASES, devices={"gpu0": ["gpu0.a"]}, bound_ns=self.BOUND_NS
        )
        return read_run(path)

    @pytest.mark.parametrize(("off_ns", "outside"), [(40_000, 0), (-90_000, 38)])
    def test_edges_are_paired_with_marks(self, tmp_path, capsys, off_ns, outside):
        run = self.run(tmp_path, off_ns)
        r = compare_marker(run, "node.marker", "forward")
        assert (r.marks, r.edges, r.pairs, r.outside, r.holds) == (38, 38, 38, outside, not outside)
        assert (r.median_s, r.p99_s) == pytest.approx((off_ns * 1e-9, abs(off_ns) * 1e-9))
        assert r.bound_median_s == pytest.approx(70e-6)
        main_ok(["info", "--check", str(run.path), "--marker", "node.marker", "--phase", "forward"])
        assert ("NOT held by 38 of 38" in capsys.readouterr().out) == bool(outside)

    def test_lost_edges_do_not_pair_with_others(self, tmp_path):
        # With an edge, the change of level behind it is lost too: its own time is not known to be an edge's.
        r = compare_marker(self.run(tmp_path, 1_000, without=(4, 5, 11)), "node.marker", "forward")
        assert r.pairs <= 35
        assert r.p99_s == pytest.approx(1e-6)
        assert r.holds
