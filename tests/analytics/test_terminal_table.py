"""`joules tables` on a terminal: a tree of phases that fits 80 columns, and every single iteration for programs."""

import csv
import io
import json

import make_layers
import numpy as np
import pytest
from command import joules
from make_run import MS, LineSpec, PhaseSpec, make_run

from powerd_analytics.runs.run import read_run
from powerd_analytics.table import phase_table


def line(name="gpu0.rail", device="gpu0", provenance="measured", watts=100.0):
    power = lambda t: np.full(len(t), watts)  # noqa: E731
    return LineSpec(name, power, device=device, provenance=provenance, accuracy={"u_gain": 0.005})


def training(settings, plan=(("forward", 40), ("backward", 60)), count=20):
    """For each of the settings a training of so many iterations."""
    phases, t = [], 100 * MS
    for attributes in settings:
        outer = PhaseSpec("training", t, t, attributes)
        at = len(phases)
        phases.append(outer)
        for _ in range(count):
            around = len(phases)
            phases.append(PhaseSpec("iteration", t, t, {}, at))
            for name, ms in plan:
                phases.append(PhaseSpec(name, t, t + ms * MS, {}, around))
                t += ms * MS
            phases[around].end_ns = outer.end_ns = t
    return phases, t + 100 * MS


def shown(capsys, path, *options):
    code, out, err = joules(capsys, "tables", path, *options)
    assert code == 0, err
    return out


def test_a_tree_with_shares_and_a_total(tmp_path, capsys):
    phases, end_ns = training([{"model": "net", "batch_size": 8}, {"model": "net", "batch_size": 16}])
    run = make_run(tmp_path / "r.h5", [line(), line("cpu0.model", "cpu0", "modelled")], phases, end_ns=end_ns)
    out = shown(capsys, run)
    lines = out.splitlines()
    assert lines[0].startswith("r.h5 · 4.2 s · gpu0 measured  420")
    assert "(0.117 Wh) · 100 W" in lines[0]
    assert [row.split()[1:3] for row in lines if "├ " in row] == [["forward", "0.0400"]] * 2
    assert [row.split()[0] for row in lines if " iteration " in row] == ["8", "16"]
    assert sum("40 %  ████" in row for row in lines) == 2
    assert sum(row.lstrip().startswith("total 200.0 ± ") for row in lines) == 2
    (modelled,) = (row for row in lines if "MODELLED" in row)
    assert modelled.endswith("(--device cpu0)")
    assert "cpu0 MODELLED" in shown(capsys, run, "--device", "cpu0").splitlines()[0]


@pytest.mark.parametrize(
    ("settings", "plan"),
    [
        ([{"model": "a transformer with a very long name " * 3}, {"model": "b"}], (("forward", 40),)),
        ([{"batch_size": 8}], tuple((f"a stage whose name is far too long for a table {i}", 20) for i in range(30))),
        ([{"epoch": i} for i in range(12)], (("forward", 40),)),
    ],
    ids=["models", "phases", "groups"],
)
def test_whatever_was_recorded_fits_80_columns_and_a_few_screens(tmp_path, capsys, settings, plan):
    phases, end_ns = training(settings, plan, count=2)
    lines = [line(f"gpu{i}.rail", f"gpu{i}") for i in range(2)]
    out = shown(capsys, make_run(tmp_path / "r.h5", lines, phases, end_ns=end_ns)).splitlines()
    rows = [row for row in out if "0.0" in row]
    assert max(map(len, rows)) <= 80
    assert len(out) < 150


def test_layers_are_one_line(tmp_path, capsys):
    run = make_layers.write_run(tmp_path / "r.h5")
    out = shown(capsys, run)
    assert "3 layers: joules layers r.h5" in out
    assert "conv" not in out + shown(capsys, run, "--wide")
    assert "conv" in shown(capsys, run, "--format", "csv")


def test_spread_and_uncertainty_are_two_columns(tmp_path, capsys):
    phases, end_ns = training([{"batch_size": 10, "operations_executed_per_sample": 1e9}])
    path = make_run(tmp_path / "r.h5", [line()], phases, end_ns=end_ns)
    rows = list(csv.DictReader(io.StringIO(shown(capsys, path, "--format", "csv"))))
    forward = next(row for row in rows if row["phase"] == "forward")
    assert 0.033 < float(forward["u95_j"]) < 0.07  # a shared gain of 0.5 %, and no spread
    assert float(forward["sd_j"]) < 0.01 * float(forward["u95_j"])
    assert float(forward["j_per_sample"]) == pytest.approx(0.4)
    total = next(row for row in rows if row["kind"] == "total")
    assert float(total["j_per_sample"]) == pytest.approx(1.0)
    assert float(total["eds"]) == 1
    assert float(total["ed2p_js2"]) == pytest.approx(200 * 2**2)
    assert float(total["gflops_per_w_executed"]) == pytest.approx(1.0)
    code, out, _ = joules(capsys, "tables", path, "--table", "records", "--format", "json")
    records = json.loads(out)
    assert code == 0
    assert next(r for r in records if r["kind"] == "total")["samples_per_j"] == pytest.approx(1.0)


def test_kinds_that_come_at_different_rates_have_no_figures_of_a_batch(tmp_path):
    phases = [PhaseSpec("tokenise", i * 50 * MS, i * 50 * MS + 30 * MS, {"batch_size": 8}) for i in range(10)]
    phases.insert(1, PhaseSpec("save", 30 * MS, 50 * MS, {"batch_size": 8}))
    run = read_run(make_run(tmp_path / "r.h5", [line()], phases))
    (total,) = phase_table(run).totals
    assert total.energy_j == pytest.approx(32)
    assert total.samples_per_s is None
    assert "none is an iteration" in total.note


def test_every_iteration_in_every_format_for_programs(tmp_path, capsys):
    phases, end_ns = training([{"model": "=net", "batch_size": 8, "amp": True}])
    path = make_run(tmp_path / "r.h5", [line()], phases, end_ns=end_ns)
    written = {}
    for form in ("csv", "json"):
        written[form] = shown(capsys, path, "--table", "iterations", "--format", form)
    rows = json.loads(written["json"])
    assert [row["number"] for row in rows] == list(range(20))
    assert sum(row["energy_j"] for row in rows) == pytest.approx(200)
    assert rows[0]["begin_utc"] == "2026-01-01T12:00:00.100000000Z"
    assert all(0 < row["u95_j"] < 1 for row in rows)
    from_csv = list(csv.DictReader(io.StringIO(written["csv"])))
    assert [float(row["energy_j"]) for row in from_csv] == [row["energy_j"] for row in rows]
    assert from_csv[0]["model"] == "'=net"
    parquet = pytest.importorskip("pyarrow.parquet")
    shown(capsys, path, "--table", "iterations", "--format", "parquet", "--output", tmp_path / "i.parquet")
    assert parquet.read_table(tmp_path / "i.parquet").to_pylist() == rows
