import json

import h5py
import numpy as np
import pytest
from command import joules, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from make_run import MS, LineSpec, PhaseSpec, S, make_run, training

from powerd_analytics.run_tables.trace import MARGIN_NS, laid_out, write_trace
from powerd_analytics.runs.run import read_run
from powerd_analytics.runs.wall_clock import SLEW, WallClock, wall_clock
from powerd_client.host.hostclock import WallAnchor, anchor_note, take_anchor

UNIX_NS = 1_790_000_000_123_456_789
"""The wall clock at host time 0 of the runs below; beyond what a float holds to the nanosecond."""


def add_anchors(path, anchors):
    with h5py.File(path, "a") as f:
        del f["messages"]
        notes = [json.dumps(anchor_note(a)) for a in anchors]
        notes.append(json.dumps({"t_ns": 5, "level": "warning", "text": "something else"}))
        f.create_dataset("messages", data=notes, dtype=h5py.string_dtype())
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    tr = training((64,), 12)
    lines = [
        LineSpec("gpu0.a", tr.power(0.6)),
        LineSpec("gpu0.b", tr.power(0.4), offset_ns=MS),
        LineSpec("cpu0.m", tr.power(0.3), "cpu0", "modelled", period_ns=20 * MS),
    ]
    path = make_run(tmp_path_factory.mktemp("trace") / "run.h5", lines, tr.phases, end_ns=tr.end_ns)
    return read_run(add_anchors(path, [WallAnchor(t * S, UNIX_NS + t * S, 30) for t in range(3)]))


def profile_text(first_host_ns, last_host_ns, base_ns=UNIX_NS - UNIX_NS % S, **more):
    """As torch.profiler lays it out: the base in the head, events, and behind them its errors and a plain value."""
    events = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "kernel", "name": "gemm[ ] }", "pid": 0, "tid": 7, "ts": 0, "dur": 5.5, "args": {"x": [[]]}},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 0},
    ]
    for event, host in zip(events[1:], (first_host_ns, last_host_ns), strict=True):
        event["ts"] = (UNIX_NS + host - base_ns) / 1e3
    head = {"schemaVersion": 1, "baseTimeNanoseconds": base_ns} | more
    tail = {"ERROR": ["ERROR: Device.cpp:47] gpuGetDeviceCount failed with code 35"], "traceName": "a/b.json"}
    return json.dumps(head | {"traceEvents": events} | tail, indent=1)


def check_perfetto(document):
    """What Perfetto's importer of JSON wants: known phases, numbers, counters in order, slices that nest."""
    tracks, counters = {}, {}
    for event in document["traceEvents"]:
        assert event["ph"] in "MXCi"
        assert event["ph"] == "M" or isinstance(event["ts"], int | float)
        if event["pid"] in ("", 0, 7):
            continue
        assert 4_194_304 < event["pid"] < 2**31
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
        if event["ph"] == "C":
            assert all(np.isfinite(v) for v in event["args"].values())
            times = counters.setdefault((event["pid"], event["name"]), [])
            assert not times or event["ts"] > times[-1]
            times.append(event["ts"])
    for slices in tracks.values():
        open_until = []
        for s in sorted(slices, key=lambda s: (s["ts"], -s["dur"])):
            while open_until and open_until[-1] <= s["ts"] + 1e-3:
                open_until.pop()
            assert not open_until or s["ts"] + s["dur"] <= open_until[-1] + 2e-3
            open_until.append(s["ts"] + s["dur"])
    return counters


def test_a_trace_of_its_own(run, tmp_path):
    out = tmp_path / "t.json"
    written = write_trace(run, out)
    document = json.loads(out.read_text())
    counters = check_perfetto(document)
    assert written.counters == len(counters) == 4
    assert written.phases == len(run.phases) == sum(e["ph"] == "X" for e in document["traceEvents"])
    assert document["baseTimeNanoseconds"] == UNIX_NS + run.begin_ns
    forward = next(e for e in document["traceEvents"] if e["name"] == "forward")
    first = next(i for i in range(len(run.phases)) if run.phases.classes[run.phases.label[i]].name == "forward")
    assert forward["ts"] == pytest.approx((run.phases.begin_ns[first] - run.begin_ns) / 1e3, abs=1e-3)
    assert forward["args"]["batch_size"] == 64
    assert forward["args"]["gpu0 (simulated) J"] > 0
    assert any(
        "not resolvable" in map(str, e["args"].values()) for e in document["traceEvents"] if e["name"] == "update"
    )
    total = [e["args"]["W"] for e in document["traceEvents"] if e["name"] == "gpu0: sum of 2 lines W"]
    assert max(total) == pytest.approx(260, rel=0.01)
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert names == ["power of cpu0 MODELLED", "power of gpu0 SIMULATED", "phases of process 1"]


def test_the_profile_stays_as_it_is_and_both_are_on_one_timeline(run, tmp_path):
    begin, end = 300 * MS, 500 * MS
    profile = tmp_path / "p.json"
    profile.write_text(profile_text(begin, end))
    out = tmp_path / "both.json"
    written = write_trace(run, out, profile)
    document, before = json.loads(out.read_text()), json.loads(profile.read_text())
    head, _, rest = profile.read_bytes().partition(b'"traceEvents": [')
    assert out.read_bytes().startswith(head + b'"traceEvents": [')
    assert out.read_bytes().endswith(b"," + rest)
    check_perfetto(document)
    assert document["traceEvents"][-3:] == before["traceEvents"]
    assert document | {"traceEvents": 0} == before | {"traceEvents": 0}
    base = document["baseTimeNanoseconds"]
    p = run.phases
    shown = {round(e["ts"] * 1e3) + base - UNIX_NS for e in document["traceEvents"] if e.get("cat") == "phase"}
    for t in shown:
        assert np.min(np.abs(p.begin_ns - t)) <= 500  # a float of microseconds since the second before
    assert all(begin - MARGIN_NS - 1000 <= p.end_ns[np.argmin(np.abs(p.begin_ns - t))] for t in shown)
    assert 0 < len(shown) < len(p)
    assert 30 < written.bound_ns < 0.5 * SLEW * S + 100
    assert "aligned within" in document["traceEvents"][2]["args"]["labels"]
    assert write_trace(run, out, profile, whole_run=True).phases == len(p)


def test_a_run_without_anchors_has_a_trace_of_its_own_only(tmp_path, capsys):
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", lambda t: 50 + 0 * t)])
    profile = tmp_path / "p.json"
    profile.write_text(profile_text(MS, 2 * MS))
    code, out, _ = joules(capsys, "trace", path, "-o", tmp_path / "o.json")
    assert (code, "1 counter, 0 phases" in out) == (0, True)
    for arguments in (
        ["q.json", "--profile", profile],
        ["o.json"],
        ["o.txt"],
        ["q.json", "--profile", tmp_path / "none.json"],
        ["q.json", "--max-points", "1"],
    ):
        refused(capsys, "trace", path, "-o", tmp_path / arguments[0], *arguments[1:])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o.json", "p.json", "r.h5"]


def test_missing_readings_are_a_slice_and_never_a_zero(tmp_path):
    t = np.concatenate([np.arange(0, 400 * MS, 2 * MS), np.arange(700 * MS, S, 2 * MS)])
    codes = {"power_mw": np.full(len(t), 50_000)}
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", t_ns=t, codes=codes)])
    write_trace(read_run(path), tmp_path / "o.json")
    events = json.loads((tmp_path / "o.json").read_text())["traceEvents"]
    (gap,) = [e for e in events if e["ph"] == "X"]
    assert gap["name"] == "no readings: gpu0.a"
    assert (gap["ts"], gap["dur"]) == (398_000, 302_000)
    assert {e["args"]["W"] for e in events if e["ph"] == "C"} == {50}


def test_phases_of_several_threads_get_lanes_and_attributes_are_finite_or_words(tmp_path):
    phases = [
        PhaseSpec("a", 0, 100 * MS),
        PhaseSpec("b", 50 * MS, 150 * MS, {"loss": float("nan"), "limit": float("inf"), "lr": 0.5}),
        PhaseSpec("inner", 60 * MS, 155 * MS, parent=1),
        PhaseSpec("c", 100 * MS, 200 * MS),
    ]
    run = read_run(make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", lambda t: 50 + 0 * t)], phases))
    assert laid_out(run, np.arange(4))[0].tolist() == [0, 1, 1, 0]
    write_trace(run, tmp_path / "o.json")
    document = json.loads((tmp_path / "o.json").read_text())
    check_perfetto(document)
    (found,) = (e["args"] for e in document["traceEvents"] if e["name"] == "b")
    assert (found["loss"], found["limit"], found["lr"]) == ("nan", "inf", 0.5)


@settings(max_examples=30)
@given(st.lists(st.floats(-SLEW, SLEW), min_size=20, max_size=60), st.integers(1, 9), st.data())
def test_the_bound_holds_for_a_clock_that_is_slewed_anyhow(rates, every, data):
    step = 100 * MS
    offset = np.concatenate([[0.0], np.cumsum(np.array(rates) * step)])
    times = np.arange(len(offset), dtype=np.int64) * step
    anchors = [
        WallAnchor(int(t), UNIX_NS + int(t) + round(o), 2) for t, o in zip(times[::every], offset[::every], strict=True)
    ]
    wall = WallClock.of(data.draw(st.permutations(anchors)))
    at = np.arange(0, times[-1], 33 * MS, dtype=np.int64)
    true = np.interp(at.astype(float), times.astype(float), offset)
    off = np.abs((wall.unix_ns(at) - UNIX_NS - at) - true)
    assert off.max() <= wall.bound_ns(0, int(times[-1])) + 1
    moment = int(at[len(at) // 2])
    assert abs(wall.host_ns(int(wall.unix_ns(np.array([moment]))[0])) - moment) <= SLEW * step * every


def test_the_torch_profiler_dates_its_events_by_the_wall_clock(tmp_path):
    torch = pytest.importorskip("torch")
    anchors = [take_anchor()]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        sandwiches = []
        for i in range(5):
            before = take_anchor()
            with torch.profiler.record_function(f"mine{i}"):
                pass
            sandwiches.append((before.t_host_ns, take_anchor().t_host_ns))
    anchors.append(take_anchor())
    profiler.export_chrome_trace(str(tmp_path / "p.json"))
    path = make_run(
        tmp_path / "r.h5",
        [LineSpec("gpu0.a", lambda t: 50 + 0 * t, period_ns=20 * MS)],
        [PhaseSpec(f"mine{i}", *edges) for i, edges in enumerate(sandwiches)],
        begin_ns=anchors[0].t_host_ns,
        end_ns=anchors[-1].t_host_ns,
    )
    run = read_run(add_anchors(path, anchors))
    assert wall_clock(run) is not None
    written = write_trace(run, tmp_path / "o.json", tmp_path / "p.json")
    events = json.loads((tmp_path / "o.json").read_text())["traceEvents"]
    tolerance_us = written.bound_ns / 1e3
    for i in range(5):
        phase = next(e for e in events if e["name"] == f"mine{i}" and e["cat"] == "phase")
        theirs = next(e for e in events if e["name"] == f"mine{i}" and e["cat"] != "phase")
        assert phase["ts"] - tolerance_us <= theirs["ts"]
        assert theirs["ts"] + theirs["dur"] <= phase["ts"] + phase["dur"] + tolerance_us
