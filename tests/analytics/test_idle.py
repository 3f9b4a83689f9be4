import csv
import io
import json
import subprocess
import sys

import pytest
from make_run import MS, LineSpec, PhaseSpec, S, make_run, training

from powerd_analytics import cli
from powerd_analytics.idle import table_above_idle
from powerd_analytics.runs.run import read_run
from powerd_analytics.table import phase_table
from powerd_analytics.table_frames import CSV_COLUMNS, records
from powerd_client import Meter
from powerd_client.phase import BASELINE
from powerd_core.errors import AnalysisError, ConfigError

IDLE_W = 60.0


def idle_run(path, baselines=(True, True), drift_w=0.0, inside=False, accuracy=None):
    """A training at steps of power, with a baseline of a second before it, after it, both, or none."""
    tr = training((64,), 40, watts=(IDLE_W, 180.0, 260.0, 110.0))
    shift = 2 * S
    stop = tr.end_ns + shift + 2 * S
    phases = []
    if inside:
        phases.append(PhaseSpec("job", 100 * MS, stop - 100 * MS))
    if baselines[0]:
        phases.append(PhaseSpec(BASELINE, 200 * MS, 1200 * MS, {}, 0 if inside else -1))
    at = len(phases)
    for p in tr.phases:
        parent = p.parent + at if p.parent >= 0 else (0 if inside else -1)
        spec = PhaseSpec(p.name, p.begin_ns + shift, p.end_ns + shift, p.attributes, parent)
        phases.append(spec)
    last = tr.phases[0].end_ns + shift
    if baselines[1]:
        phases.append(PhaseSpec(BASELINE, last + 700 * MS, last + 1700 * MS, {}, 0 if inside else -1))
    power = tr.power()

    def at_time(t):
        return power((t - shift).clip(0)) + drift_w * (t > last)

    line = LineSpec("gpu0.a", at_time, accuracy=accuracy or {"u_gain": 0.01})
    return read_run(make_run(path, [line], phases, end_ns=stop)), tr


def test_energy_above_idle_is_the_whole_less_idle_power(tmp_path):
    run, tr = idle_run(tmp_path / "r.h5")
    table = table_above_idle(run)
    (idle,) = table.idle
    assert idle.idle_w == pytest.approx(IDLE_W, rel=1e-3)
    assert idle.seconds == pytest.approx(2)
    assert "a drift of" in idle.note
    rows = {r["phase"]: r for r in records(table) if r["table"] == "phase"}
    exact = tr.joules(tr.phases[0].begin_ns, tr.phases[0].end_ns)
    seconds = (tr.phases[0].end_ns - tr.phases[0].begin_ns) * 1e-9
    total = next(r for r in records(table) if r["table"] == "total" and r["batch_size"] == 64)
    assert total["above_idle_j"] == pytest.approx(exact - IDLE_W * seconds, abs=total["above_idle_u95_j"])
    assert total["above_idle_j"] + total["idle_j"] == pytest.approx(total["energy_j"])
    assert total["above_idle_u95_j"] > total["u95_j"]
    assert rows[BASELINE]["above_idle_j"] == pytest.approx(0, abs=rows[BASELINE]["above_idle_u95_j"])
    # The whole stays as it is: nothing is subtracted from it.
    plain = records(phase_table(run))
    for ours, theirs in zip(records(table), plain, strict=True):
        assert {k: ours[k] for k in CSV_COLUMNS} == {k: theirs[k] for k in CSV_COLUMNS}
    assert "idle_w" not in plain[0]


def test_drift_is_said_and_widens_the_uncertainty(tmp_path):
    steady, _ = idle_run(tmp_path / "a.h5")
    drifted, _ = idle_run(tmp_path / "b.h5", drift_w=12.0)
    (a,), (b,) = table_above_idle(steady).idle, table_above_idle(drifted).idle
    assert (b.before_w, b.after_w) == (pytest.approx(60, abs=0.1), pytest.approx(72, abs=0.1))
    assert b.idle_w == pytest.approx(66, abs=0.1)
    assert b.u_w**2 - a.u_w**2 == pytest.approx(6**2 / 3, rel=0.1)
    assert "a drift of 12" in b.note


@pytest.mark.parametrize(
    ("baselines", "said"), [((True, False), "only before the training"), ((False, True), "only after the training")]
)
def test_one_baseline_alone_says_so(tmp_path, baselines, said):
    run, _ = idle_run(tmp_path / "r.h5", baselines)
    (idle,) = table_above_idle(run).idle
    assert said in idle.note
    assert (idle.before_w is None, idle.after_w is None) == (not baselines[0], not baselines[1])


@pytest.mark.parametrize(
    ("seconds", "notes"),
    [
        (((0.5, 1.5), (8.0, 9.0)), "W before and"),
        (((0.5, 1.5),), "only before the training"),
        (((8.0, 9.0),), "only after the training"),
    ],
)
def test_a_command_that_marks_no_phases(tmp_path, seconds, notes):
    phases = [PhaseSpec(BASELINE, int(begin * S), int(end * S)) for begin, end in seconds]
    line = LineSpec("gpu0.a", lambda t: IDLE_W + 100 * ((t > 2 * S) & (t < 7 * S)))
    (idle,) = table_above_idle(read_run(make_run(tmp_path / "r.h5", [line], phases, end_ns=10 * S))).idle
    assert notes in idle.note
    assert idle.idle_w == pytest.approx(IDLE_W, rel=1e-3)


def test_baselines_inside_a_phase_around_everything(tmp_path):
    run, _ = idle_run(tmp_path / "r.h5", inside=True)
    (idle,) = table_above_idle(run).idle
    assert "before and" in idle.note


def test_a_run_without_a_baseline(tmp_path):
    run, _ = idle_run(tmp_path / "r.h5", (False, False))
    with pytest.raises(AnalysisError, match="has no baseline"):
        table_above_idle(run)


def test_every_output_shows_both(tmp_path, capsys):
    run, _ = idle_run(tmp_path / "r.h5")
    shown = {}
    for form in ("table", "csv", "json", "markdown"):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["tables", str(run.path), "--above-idle", "--format", form])
        assert stopped.value.code == 0
        shown[form] = capsys.readouterr().out
    for form in ("table", "markdown"):
        for word in ("Above idle, beside the whole", "J above idle", "idle W", "a drift of"):
            assert word in shown[form]
    row = next(csv.DictReader(io.StringIO(shown["csv"])))
    columns = ("idle_w", "idle_j", "above_idle_j", "above_idle_u95_j", "idle_note")
    assert tuple(row)[: len(CSV_COLUMNS) + 5] == (*CSV_COLUMNS, *columns)
    assert json.loads(shown["json"])[0]["idle_w"] == pytest.approx(float(row["idle_w"]))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_length_that_is_none(seconds):
    with pytest.raises(ConfigError, match="a baseline of"):
        Meter.baseline(object.__new__(Meter), seconds)


def test_a_meter_and_the_command_measure_baselines(tmp_path):
    script = "from powerd_client import Meter\nwith Meter() as m, m.phase('x'):\n    m.baseline(0.15)\n"
    joules = [sys.executable, "-P", "-m", "powerd_analytics", "record", "--out", "r.h5"]
    command = [*joules, "--baseline", "0.1", "--", sys.executable, "-c", script]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    run = read_run(tmp_path / "r.h5")
    p = run.phases
    names = [p.classes[i].name for i in p.label]
    assert names == [BASELINE, "x", BASELINE, BASELINE]
    assert not p.cut.any()
    assert [d >= s for d, s in zip(p.duration_s[[0, 2, 3]], (0.1, 0.15, 0.1), strict=True)] == [True] * 3
    assert any("wall clock" in m["text"] for m in run.messages)
    done = subprocess.run([*joules, "--baseline", "0", "--", "true"], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.h5", "r.h5.journal.gz"]
