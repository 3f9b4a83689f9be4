"""A device without readings has no energy: nothing that reads a run makes 0 J of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, S, constant, make_run

from powerd_analytics import phase_table, read_run
from powerd_analytics.cli.describe import describe_run
from powerd_analytics.cli.tags import flat
from powerd_analytics.records.flat import records_of
from powerd_analytics.tables.render import to_csv, to_json, to_markdown
from powerd_analytics.tables.rows import IdleRow, PhaseTable
from powerd_analytics.tables.shares import budget_rows
from powerd_analytics.tables.sums import verify_sums
from powerd_core.model import Flag

NONE = np.zeros(0, np.int64)


def dead(name: str = "gpu1.a", device: str = "gpu1") -> LineSpec:
    return LineSpec(name, device=device, t_ns=NONE, codes={"power_mw": NONE}, flags=np.zeros(0, np.uint16))


def spoilt() -> LineSpec:
    t = np.arange(0, S, 2 * MS)
    flags = np.full(len(t), int(Flag.MISSING), np.uint16)
    return LineSpec("gpu1.a", device="gpu1", t_ns=t, codes={"power_mw": np.zeros(len(t), np.int64)}, flags=flags)


def single() -> LineSpec:
    return LineSpec("gpu1.a", device="gpu1", t_ns=np.array([5 * MS]), codes={"power_mw": np.array([100_000])},
                    flags=np.zeros(1, np.uint16))  # fmt: skip


def clipped() -> LineSpec:
    line = spoilt()
    line.flags = np.full(len(line.flags), int(Flag.SATURATED), np.uint16)
    return line


@pytest.fixture(params=[dead, spoilt, single, clipped])
def run_path(request, tmp_path: Path) -> Path:
    phases = [PhaseSpec("forward", 100 * MS, 900 * MS, {"batch_size": 8})]
    return make_run(tmp_path / "run.h5", [LineSpec("gpu0.a", constant), request.param()], phases)


def test_the_row_of_the_run_says_that_there_are_none(run_path: Path) -> None:
    table = phase_table(read_run(run_path))
    good, row = table.runs
    assert good.energy_j == pytest.approx(100, rel=0.01)
    joules = (row.energy_j, row.u95_j, row.power_w, row.phases_j, row.rest_j, row.residual_j)
    assert joules == (None,) * 6
    assert not row.is_lower_bound
    assert row.note.startswith("not resolvable: no readings of gpu1.a")
    _, total = table.totals
    assert (total.energy_j, total.u95_j, total.power_w, total.edp_js) == (None,) * 4
    assert "not resolvable" in total.note


def test_no_output_holds_a_zero_for_it(run_path: Path) -> None:
    run = read_run(run_path)
    table = phase_table(run)
    idle = (IdleRow("gpu1", "simulated", 5.0, 0.1, 5.0, 5.0, 1.0, ""),)
    both = PhaseTable(table.phases, table.totals, table.runs, idle)
    for row in json.loads(to_json(both)):
        if row["device"] == "gpu1":
            known = ("energy_j", "j_per_batch", "power_w", "u95_j", "edp_js", "idle_j", "above_idle_j", "rest_j")
            assert [row[name] for name in known] == [None] * len(known)
    assert ",gpu1," in to_csv(both)
    (shown,) = [x for x in to_markdown(table).splitlines() if x.startswith("| gpu1")]
    assert shown.split(" | ")[1:3] == ["1.000", "n.r."]
    values = flat(table)
    assert [name for name in values if "gpu1" in name and not name.endswith(("/time_s", "/s_per_batch"))] == []
    for record in records_of(run, table):
        if record["device"] == "gpu1":
            assert (record["energy_j"], record["j_per_batch"], record["u95_j"]) == (None, None, None)
    for budget in budget_rows(run, "gpu1"):
        assert (budget.energy_j, budget.u95_j, budget.parts) == (None, None, ())
    assert [f for f in verify_sums(run_path) if f.state == "wrong"] == []


def test_info_says_no_energy(run_path: Path) -> None:
    lines = list(describe_run(read_run(run_path)))
    (about,) = [line for line in lines if line.startswith("  gpu1.a")]
    assert ": no energy, " in about
    assert "  sum of the feeds: not known, no readings of gpu1.a" in lines


def test_a_sum_without_one_of_its_lines_is_not_the_devices_energy(tmp_path: Path) -> None:
    lines = [LineSpec("gpu0.a", constant), dead("gpu0.b", "gpu0")]
    run = read_run(make_run(tmp_path / "run.h5", lines, ()))
    (row,) = phase_table(run).runs
    assert row.energy_j is None
    assert row.note.startswith("not resolvable: no readings of gpu0.b")
    assert "  sum of the feeds: not known, no readings of gpu0.b" in list(describe_run(run))


def test_lines_without_a_common_time_have_no_sum(tmp_path: Path) -> None:
    early, late = (LineSpec(f"gpu0.{n}", constant, t_ns=t) for n, t in (
        ("a", np.arange(0, 400 * MS, 2 * MS)), ("b", np.arange(600 * MS, S, 2 * MS))))  # fmt: skip
    for line in (early, late):
        line.codes = {"power_mw": np.full(len(line.t_ns), 100_000)}
        line.flags = np.zeros(len(line.t_ns), np.uint16)
    run = read_run(make_run(tmp_path / "run.h5", [early, late], ()))
    lines = list(describe_run(run))
    assert "  sum of the feeds: not known, no time that all lines cover" in lines
    assert not any(" 0 J" in line for line in lines)
