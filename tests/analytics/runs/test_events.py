"""Events of a run: what happened when, who said it, and what `joules info` tells of them."""

import json

import pytest
from command import joules
from make_run import MS, LineSpec, constant, make_run

from powerd_analytics.cli.info import describe_run, run_document
from powerd_analytics.runs.run import Event, read_run
from powerd_core.errors import RunFileError

RANKS = [{"pid": 1, "rank": 1}, {"pid": 2, "rank": 0}, {"pid": 3}]
EVENTS = [
    (10 * MS, "lease", {"cap_w": 200}, 2),
    (20 * MS, "result", {"top1": 0.70, "epoch": 1}, 1),
    (30 * MS, "result", {"top1": 0.1}, 0),
    (40 * MS, "result", {"top1": 0.713, "note": "\x1b[2J" + "x" * 3000}, 1),
]


def run_with(tmp_path, events, processes=RANKS):
    return make_run(tmp_path / "run.h5", [LineSpec("gpu0.a", constant)], events=events, processes=processes)


def test_events_come_with_their_moment_and_rank(tmp_path):
    run = read_run(run_with(tmp_path, EVENTS))
    assert run.events == tuple(Event(t, name, values, {0: 1, 1: 0, 2: None}[p]) for t, name, values, p in EVENTS)
    assert run.result == {"top1": 0.713, "epoch": 1, "note": EVENTS[3][2]["note"]}


@pytest.mark.parametrize("processes", [[{"pid": 1}], []])
def test_a_run_without_events(tmp_path, processes):
    run = read_run(run_with(tmp_path, (), processes))
    assert (run.events, run.result) == ((), {})
    assert not [line for line in describe_run(run_document(run)) if line.startswith(("  events", "  result"))]


def test_info_counts_them_and_says_the_result(tmp_path, capsys):
    path = run_with(tmp_path, EVENTS)
    said = joules(capsys, "info", path)[1].splitlines()
    assert "  events: 1 lease, 3 result" in said
    (result,) = [line for line in said if line.startswith("  result: ")]
    assert result.startswith("  result: top1 0.713, epoch 1, note \\x1b[2Jxxx")
    assert len(result) < 120
    document = json.loads(joules(capsys, "info", path, "--format", "json")[1])
    assert document["events"] == {"lease": 1, "result": 3}
    assert document["result"] == EVENTS[3][2] | {"epoch": 1}


@pytest.mark.parametrize("event", [(1 << 62, "a", {}, 0), (1, "a", {}, 3), (1, "a", {}, -1), (1, "a", [], 0)])
def test_events_that_cannot_be_are_refused_in_one_line(tmp_path, event):
    with pytest.raises(RunFileError, match="is damaged or incomplete"):
        read_run(run_with(tmp_path, [event]))


def test_info_says_which_source_met_no_hardware(tmp_path):
    lines = [LineSpec("wall", constant, detail={"untested": "untested on hardware"}), LineSpec("rail", constant)]
    said = list(describe_run(run_document(read_run(make_run(tmp_path / "r.h5", lines, [])))))
    assert [line.split()[0] for line in said if line.endswith("; untested on hardware")] == ["wall"]
