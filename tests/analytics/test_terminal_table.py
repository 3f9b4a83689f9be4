"""`joules tables` on a terminal: a tree of phases that fits 80 columns, and every single iteration for programs."""

import csv
import io
import json

import make_layers
import numpy as np
import pytest
from command import joules, refused
from make_run import MS, LineSpec, PhaseSpec, S, constant, make_run

from powerd_analytics.frame.figures import frame_of
from powerd_analytics.frame.trainings import Length, with_sums
from powerd_analytics.run_tables.closing_lines import result_lines
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from powerd_analytics.views.breakdown import breakdowns, is_part


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
    assert "3 layers: joules tables --table layers r.h5" in out
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
    for option in (["--paper"], ["--mix", "pascal=2,maxwell=2"], ["--card-spread", "0.03"]):
        assert "takes one run file" in refused(
            capsys, "tables", path, "--table", "iterations", "--format", "csv", *option
        )
    parquet = pytest.importorskip("pyarrow.parquet")
    shown(capsys, path, "--table", "iterations", "--format", "parquet", "--output", tmp_path / "i.parquet")
    assert parquet.read_table(tmp_path / "i.parquet").to_pylist() == rows


def nested(path, around=()):
    """20 iterations of 10 s at 100 W, recomputation within backward. ``around``: phases above them, as name, attributes
    and seconds before the first iteration."""
    phases, t = [], 10 * S
    for depth, (name, attributes, before_s) in enumerate(around):
        phases.append(PhaseSpec(name, t - before_s * S, t + 200 * S, attributes, depth - 1))
    for k in range(20):
        outer, begin = len(phases), t + 10 * k * S
        phases.append(PhaseSpec("iteration", begin, begin + 10 * S, {"batch_size": 8}, len(around) - 1))
        for name, a, b, parent in (
            ("forward", 0, 2, outer), ("backward", 2, 8, outer), ("recompute", 4, 6, outer + 2),
            ("update", 8, 9, outer),
        ):  # fmt: skip
            phases.append(PhaseSpec(name, begin + a * S, begin + b * S, {"batch_size": 8}, parent))
    line = LineSpec("gpu0.a", constant, period_ns=500 * MS)
    return make_run(path, [line], phases, end_ns=220 * S)


def test_parts_and_rest_are_the_whole_where_phases_are_nested(tmp_path, capsys):
    path = nested(tmp_path / "r.h5")
    table = phase_table(read_run(path))
    (total,) = table.totals
    assert total.rest_j == pytest.approx(20 * 100.0, rel=1e-3)
    rest = {row.path: row.rest_j for row in table.phases}
    assert rest["iteration"] == pytest.approx(100.0, rel=1e-3)
    assert rest["iteration/backward"] == pytest.approx(400.0, rel=1e-3)
    assert rest["iteration/forward"] is None
    assert 0 < total.rest_u95_j < 0.1 * total.rest_j
    rests = [line.split()[-3:-1] for line in shown(capsys, path).splitlines() if "(rest)" in line]
    assert rests == [["40", "%"], ["10", "%"]]
    assert "backward 60 %, forward 20 %, update 10 %, rest 10 %" in result_lines(path)[1]
    frame = frame_of(read_run(path), table)
    assert list(frame["phase"][is_part(frame)]) == ["forward", "backward", "update"]
    bar = breakdowns(with_sums(frame, Length()))[0][0]
    assert [(piece.phase, round(piece.energy_j)) for piece in bar.pieces] == [
        ("forward", 200), ("backward", 600), ("update", 100)
    ]  # fmt: skip
    assert bar.rest_j == pytest.approx(100.0, rel=1e-3)


def test_the_rest_of_a_phase_above_the_iterations_is_a_share_of_that_phase(tmp_path, capsys):
    path = nested(tmp_path / "r.h5", [("stretch", {}, 5)])
    out = shown(capsys, path)
    (stretch,) = (line for line in out.splitlines() if line.lstrip().startswith("stretch"))
    assert "20500" in stretch
    assert "%" not in stretch
    rest = out.splitlines()[out.splitlines().index(stretch) + 1]
    assert rest.split() == ["└", "(rest)", "500", "±", "7", "2", "%", "▎"]
    frame = frame_of(read_run(path), phase_table(read_run(path)))
    assert "stretch" not in set(frame["phase"][is_part(frame)])


def test_a_lone_phase_is_no_riddle_in_the_closing_line(tmp_path):
    line = LineSpec("gpu0.a", constant, period_ns=50 * MS)
    path = make_run(tmp_path / "r.h5", [line], [PhaseSpec("iteration", S, 2 * S)], end_ns=3 * S)
    assert result_lines(path)[1] == "  of 100.0 J in iterations: iteration 100 %"


def test_the_closing_line_is_never_cut(tmp_path):
    names = [f"a stage whose name is long {i}" for i in range(9)]
    phases = [PhaseSpec(name, (1 + i) * S, (2 + i) * S) for i, name in enumerate(names)]
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", constant, period_ns=50 * MS)], phases, end_ns=12 * S)
    assert all(name in result_lines(path)[1] for name in names)


def test_groups_are_named_in_words(tmp_path, capsys):
    phases = [PhaseSpec("backward", S, 2 * S), PhaseSpec("communication", S, 2 * S, {"overlaps": True})]
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", constant, period_ns=50 * MS)], phases, end_ns=3 * S)
    out = shown(capsys, path)
    assert "beside other phases" in out
    assert "overlaps" not in out


def test_a_group_that_says_nothing_is_named_by_the_phase_around_it(tmp_path, capsys):
    phases = []
    for name, begin_ns, attributes in (("warm-up", 0, {}), ("training", 2 * S, {"batch_size": 8})):
        outer = len(phases)
        phases.append(PhaseSpec(name, begin_ns, begin_ns + 2 * S, attributes))
        phases += [PhaseSpec("iteration", begin_ns + k * S, begin_ns + k * S + S, parent=outer) for k in range(2)]
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", constant, period_ns=50 * MS)], phases, end_ns=4 * S)
    assert "warm-up" in [row.strip() for row in shown(capsys, path).splitlines()]
