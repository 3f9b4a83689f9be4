"""What rows of a simulation say, and the tables that come of it: phases, kernels, operations, pilots."""

import sys
from dataclasses import replace
from math import ceil

import pytest
from command import joules
from make_campaign import simulated_campaign

from powerd_analytics.campaign_views.all_tables import campaign_tables
from powerd_analytics.campaign_views.campaign_figures import Campaign
from powerd_analytics.campaign_views.findings import findings
from powerd_analytics.campaigns.campaign_file import design_of
from powerd_analytics.campaigns.journal import Journal, phase_row, read_history
from powerd_analytics.campaigns.runner import Blocks, Runner, begin, run_pilot
from powerd_analytics.campaigns.simulated import Simulated
from powerd_analytics.cli import shared
from powerd_analytics.frame.figure import Figure
from powerd_analytics.frame.figures import rows_of
from powerd_analytics.frame.means import mean_of_repeats
from powerd_core.errors import ConfigError

ROWS = [
    {
        "model": "alexnet",
        "phases": {"forward": [2.0, 0.1], "backward": [6.0, 0.3]},
        "operations_per_sample": 1e9,
        "operations_executed_per_sample": 6e9,
    },
    {"model": "sgemm", "phases": {"forward": [4.0, 0.1]}, "operations_per_sample": 8e9},
    {"model": "alexnet", "batch_size": 64, "kernels": ["winograd", "gemm"]},
    {"model": "alexnet", "batch_size": 128, "kernels": ["fft", "gemm"]},
    {"model": "sgemm", "kernels": ["gemm"]},
]


def run(folder, **tables):
    document = {
        "campaign": {"name": "c", "command": ["train", "{model}", "{batch_size}"]},
        "factors": {"model": ["alexnet", "sgemm"], "batch_size": [64, 128]},
        "work": {"images": 1280}, "order": {"reference": {"batch_size": 64}}, "repeats": {"min": 2},
        "simulation": {"noise": 0.0, "rows": ROWS},
    }  # fmt: skip
    design = design_of(document | tables)
    executor = Simulated.named(design, "sim:rtx6000")
    with Journal(folder) as journal:
        design = run_pilot(begin(design, executor, journal), executor, journal)
        Runner(design, Blocks(design), Simulated.named(design, "sim:rtx6000"), journal).run()
    return design, read_history(folder)


def records(name, design, history):
    (table,) = campaign_tables(Campaign(design, history), (name,))
    return {(row["model"], row["batch_size"], row.get("phase")): row for row in table.records()}


def test_seconds_and_joules_of_phases_are_of_a_batch_and_beside_the_reference(tmp_path):
    rows = records("phases", *run(tmp_path))
    backward = rows["alexnet", 128, "backward"]
    assert (backward["energy_j"], backward["time_s"]) == pytest.approx((6.0, 0.3))
    assert backward["energy_pct"] == pytest.approx(-50)  # half as many batches
    assert ("sgemm", 64, "backward") not in rows


def test_a_phase_whose_joules_a_run_does_not_know_has_the_mean_of_the_others(tmp_path):
    design, history = run(tmp_path)
    record = next(r for r in history.records.values() if any(row.get("phase") == "backward" for row in r.result.rows))
    kept = [row for row in record.result.rows if row.get("phase") != "backward"]
    record.result = replace(record.result, rows=tuple(kept))
    backward = records("phases", design, history)["alexnet", 64, "backward"]
    assert backward["energy_j"] == pytest.approx(6.0)


def test_phases_have_the_u95_of_tables_and_what_is_not_resolvable_keeps_its_row(tmp_path):
    design, history = run(tmp_path)
    forward, backward = Figure(2.0, 0.1, 0.05, 0.03), (0.3, "phases too short")
    parts = {"u_statistical_j": forward.u_statistical, "u_systematic_j": forward.u_systematic,
             "rectangle_j": forward.rectangle}  # fmt: skip
    for k, record in enumerate(history.records.values()):
        rows = [row for row in record.result.rows if row["kind"] != "phase"]
        rows.append(phase_row("forward", 2.0 + 0.1 * (k % 3), 0.1) | parts)
        rows.append({name: v for name, v in phase_row("backward", None, backward[0]).items() if v is not None})
        rows[-1]["note"] = f"not resolvable: {backward[1]}"
        record.result = replace(record.result, rows=tuple(rows))
    (table,) = campaign_tables(Campaign(design, history), ("phases",))
    every = {(r["model"], r["batch_size"], r["phase"]): r for r in table.records()}
    assert len(every) == 8
    results = [r for key, r in history.results().items() if design.item_of(key).cell.levels == {
        "model": "alexnet", "batch_size": 64}]  # fmt: skip
    n = [ceil(r.samples / 64) for r in results]
    expected = mean_of_repeats([
        replace(forward, value=r.rows[1]["j_per_batch"]).scaled(1 / k) for r, k in zip(results, n, strict=True)
    ])  # fmt: skip
    row = every["alexnet", 64, "forward"]
    assert (row["energy_j"], row["u95_j"]) == pytest.approx((expected.value, expected.u95))
    row = every["alexnet", 64, "backward"]
    assert (row["energy_j"], row["u95_j"]) == (None, None)
    assert row["time_s"] == pytest.approx(0.3 / n[0])
    assert row["note"] == "not resolvable: phases too short"
    for form in ("text", "latex", "markdown"):
        assert shared.tables_text([table], form, None).count("n.r.") == 4


def test_a_campaign_without_models_says_what_batches_cost_in_a_sentence(tmp_path):
    factors = {"batch_size": [64, 128], "power_cap_w": [120.0, 260.0]}
    command = {"name": "c", "command": ["t", "{batch_size}"]}
    design, history = run(
        tmp_path, factors=factors, campaign=command, order={"reference": {"power_cap_w": 260.0}},
        simulation={"rows": [{"phases": {"forward": [2.0, 0.1]}}]},
    )  # fmt: skip
    (said,) = [text for text in findings(Campaign(design, history)) if "arger batches" in text]
    assert said.startswith("Larger batches")


def test_shares_of_a_matrix_product_and_both_ways_to_count(tmp_path):
    rows = records("efficiency", *run(tmp_path))
    own = rows["alexnet", 64, None]
    assert own["gflops_per_w"] == pytest.approx(2 * 64 * 1.0 / 8.0)
    assert own["gflops_per_w_executed"] == pytest.approx(64 * 6.0 / 8.0)
    assert own["gflops"] == pytest.approx(64 * 6.0 / 0.4)
    sgemm = rows["sgemm", 64, None]
    # Of the product of both batch sizes, whichever comes last: they are one setting.
    assert own["sgemm_pct"] == pytest.approx(100 * own["gflops_per_w"] / rows["sgemm", 128, None]["gflops_per_w"])
    assert sgemm["gflops_per_w"] == pytest.approx(2 * 64 * 8.0 / 4.0)


def test_cells_that_ran_other_kernels_than_their_reference_are_named(tmp_path):
    design, history = run(tmp_path)
    sets = {key[:2]: row["set"] for key, row in records("kernels", design, history).items()}
    assert sets["alexnet", 64] != sets["alexnet", 128]
    assert sets["sgemm", 64] == sets["sgemm", 128]
    (said,) = [text for text in findings(Campaign(design, history)) if "other kernels" in text]
    assert said.startswith("1 cell ran other kernels")
    assert "alexnet, batch_size 128" in said


def test_a_cell_that_does_not_fit_is_left_out_and_the_rest_goes_on(tmp_path):
    rows = [*ROWS, {"model": "sgemm", "batch_size": 128, "is_out_of_memory": True}]
    design, history = run(tmp_path, simulation={"noise": 0.0, "rows": rows})
    (left,) = [cell for cell in design.cells() if cell.id in history.left]
    assert (left.levels["model"], left.levels["batch_size"]) == ("sgemm", 128)
    assert history.left[left.id].reason == "out-of-memory"


def test_a_pilot_runs_once_and_its_result_goes_into_every_command(tmp_path):
    tables = {
        "campaign": {"name": "c", "command": ["train", "{model}", "{batch_size}", "{epochs}"]},
        "pilot": {"command": ["train", "--pilot"], "runs": 2},
        "simulation": {"noise": 0.0, "rows": ROWS, "pilot": 7},
    }
    design, history = run(tmp_path, **tables)
    assert history.pilot == 7
    item = design.block(0, design.cells())[0]
    assert design.argv(item)[-1] == "7"
    assert design.samples == 7 * 1280
    other = {**tables, "simulation": {"noise": 0.0, "rows": ROWS, "pilot": 9}}
    design, history = run(tmp_path, **other)  # goes on: the pilot has run
    assert (history.pilot, design.samples) == (7, 7 * 1280)


PILOT = """
import sys
import powerd_client
with powerd_client.Meter() as meter:
    with meter.phase("training"):
        pass
    {said}
"""


@pytest.mark.parametrize(("said", "why"), [("meter.result(epochs=3)", ""), ("pass", "it says no epochs")])
def test_a_real_pilot_is_recorded_and_must_say_its_result(tmp_path, monkeypatch, capsys, said, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pilot.py").write_text(PILOT.format(said=said))
    (tmp_path / "c.toml").write_text(f"""
[campaign]
name = "c"
command = ["{sys.executable}", "-c", "pass", "{{n}}", "{{epochs}}"]
[pilot]
command = ["{sys.executable}", "{tmp_path}/pilot.py"]
[factors]
n = [1]
[repeats]
min = 1
""")
    code, _, err = joules(capsys, "campaign", "run", "c.toml")
    if why:
        assert (code, why in err) == (2, True), err
        assert "the pilot failed" in err
        return
    assert code == 0, err
    assert read_history(tmp_path / "c").pilot == 3


def test_a_row_with_watts_alone_takes_the_seconds_of_all(tmp_path):
    simulation = {"noise": 0.0, "iterations": 5, "rows": [{"power_w": 100.0}]}
    _, history = run(tmp_path / "a", simulation=simulation)
    assert {result.energy_j for result in history.results().values()} == {5 * 0.3 * 100}
    with pytest.raises(ConfigError, match="power_w: say iteration_s too"):
        run(tmp_path / "b", simulation=simulation | {"iteration_s": {"alexnet": 0.1}})


def test_the_table_of_cells_is_columns_of_the_frame(tmp_path):
    campaign = Campaign(*simulated_campaign(tmp_path))
    (table,) = campaign_tables(campaign, ("cells",))
    names = ["runs", "time_s", "energy_j", "u95_j", "e_ratio", "u95_e_ratio", "edp_ratio", "edp_within_pct"]
    rows = [{name: row.get(name) for name in names} for row in table.records()]
    assert rows == [{name: row[name] for name in names} for row in rows_of(campaign.frame)]


def test_a_result_that_only_some_runs_have_has_no_u95(tmp_path):
    design, history = simulated_campaign(tmp_path)
    first = next(iter(history.records.values()))
    first.result = replace(first.result, rows=tuple({**row, "result_top1": None} for row in first.result.rows))
    (table,) = campaign_tables(Campaign(design, history), ("accuracy",))
    assert sorted((row["top1"], row["u95_top1"]) for row in table.records() if row["u95_top1"] is None) == [(0.9, None)]
