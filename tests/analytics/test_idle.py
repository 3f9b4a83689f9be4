import csv
import io

import pytest
from make_run import MS, LineSpec, PhaseSpec, S, make_run, training

from powerd_analytics import cli
from powerd_analytics.frame.figures import frame_of, rows_of
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from powerd_client.energies.phase import BASELINE
from powerd_core.errors import AnalysisError

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
    table = phase_table(run, above_idle=True)
    (idle,) = table.idle
    assert idle.idle_w == pytest.approx(IDLE_W, rel=1e-3)
    assert idle.seconds == pytest.approx(2)
    assert "a drift of" in idle.note
    every = rows_of(frame_of(run, table))
    rows = {r["phase"]: r for r in every if r["kind"] == "phase"}
    exact = tr.joules(tr.phases[0].begin_ns, tr.phases[0].end_ns)
    seconds = (tr.phases[0].end_ns - tr.phases[0].begin_ns) * 1e-9
    total = next(r for r in every if r["kind"] == "total" and r["batch_size"] == 64)
    assert total["above_idle_j"] == pytest.approx(exact - IDLE_W * seconds, abs=total["above_idle_u95_j"])
    assert total["above_idle_j"] + total["idle_j"] == pytest.approx(total["energy_j"])
    assert total["above_idle_u95_j"] > total["u95_j"]
    assert rows[BASELINE]["above_idle_j"] == pytest.approx(0, abs=rows[BASELINE]["above_idle_u95_j"])
    # The whole stays as it is: nothing is subtracted from it.
    plain = rows_of(frame_of(run, phase_table(run)))
    for ours, theirs in zip(every, plain, strict=True):
        assert {k: ours[k] for k in theirs} == theirs
    assert "idle_w" not in plain[0]


def test_drift_is_said_and_widens_the_uncertainty(tmp_path):
    steady, _ = idle_run(tmp_path / "a.h5")
    drifted, _ = idle_run(tmp_path / "b.h5", drift_w=12.0)
    (a,), (b,) = phase_table(steady, above_idle=True).idle, phase_table(drifted, above_idle=True).idle
    assert (b.before_w, b.after_w) == (pytest.approx(60, abs=0.1), pytest.approx(72, abs=0.1))
    assert b.idle_w == pytest.approx(66, abs=0.1)
    assert b.u_w**2 - a.u_w**2 == pytest.approx(6**2 / 3, rel=0.1)
    assert "a drift of 12" in b.note


def test_a_run_without_a_baseline(tmp_path):
    run, _ = idle_run(tmp_path / "r.h5", (False, False))
    with pytest.raises(AnalysisError, match="has no baseline"):
        phase_table(run, above_idle=True)


def test_every_output_shows_both(tmp_path, capsys):
    run, _ = idle_run(tmp_path / "r.h5")
    shown = {}
    for form in ("text", "csv", "markdown"):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["tables", str(run.path), "--above-idle", "--format", form])
        assert stopped.value.code == 0
        shown[form] = capsys.readouterr().out
    for word in ("Above idle, beside the whole", "J above idle", "idle W"):
        assert word in shown["markdown"]
    assert "above idle " in shown["text"]
    assert "a drift of" in shown["text"]
    row = next(csv.DictReader(io.StringIO(shown["csv"])))
    assert float(row["idle_w"]) == pytest.approx(IDLE_W, rel=1e-3)
