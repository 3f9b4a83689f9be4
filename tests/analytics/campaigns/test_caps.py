"""`joules campaign caps`, and the tables of campaigns: best settings are read from a fitted curve, with their ties."""

import json
import re
from itertools import pairwise

import pytest
from command import joules

from powerd_analytics.campaign_views.all_tables import campaign_tables
from powerd_analytics.campaign_views.campaign_figures import Campaign
from powerd_analytics.campaigns.campaign_file import design_of
from powerd_analytics.campaigns.caps import Rounds, caps_design, levels_of, promise_text
from powerd_analytics.campaigns.design import Simulation
from powerd_analytics.campaigns.journal import Journal, read_history
from powerd_analytics.campaigns.runner import Blocks, Runner, begin
from powerd_analytics.campaigns.simulated import Simulated
from powerd_core.errors import ConfigError
from powerd_core.gpu_physics import NETWORKS, RTX_6000, operate
from powerd_core.lease import Range

CAPS = Range(100.0, 260.0, 260.0)


def sweep(folder, network="vgg19", noise=0.005, metric="edp", **more):
    design = caps_design(["train"], levels_of(CAPS, 5.0, None, None), 260.0, 5, "", 1, Simulation(
        network=network, iterations=100, noise=noise, **more))  # fmt: skip
    with Journal(folder) as journal:
        design = begin(design, Simulated(design, RTX_6000), journal)
        Runner(design, Rounds(design, metric), Simulated(design, RTX_6000), journal).run()
    return design, read_history(folder)


def true_edp(network, cap_w):
    at = operate(RTX_6000, NETWORKS[network], cap_w)
    return at.energy_j * at.time_s


@pytest.mark.parametrize("network", ["alexnet", "vgg19", "resnet152"])
def test_rounds_find_a_cap_as_good_as_the_best_in_a_tenth_of_the_grid(tmp_path, network):
    design, history = sweep(tmp_path, network)
    verdict = Rounds(design, "edp").verdict(history)
    assert verdict.is_promised
    assert history.done == verdict.runs <= 33 * 5 / 4
    least = min(true_edp(network, float(cap)) for cap in design.factors["power_cap_w"])
    assert true_edp(network, verdict.cap_w) <= least * 1.005
    campaign = Campaign(design, history)
    (group,) = campaign.groups
    best = campaign.best(group, "edp")
    assert true_edp(network, float(best.cell.levels["power_cap_w"])) <= least * 1.005
    assert any(true_edp(network, float(c.levels["power_cap_w"])) <= least * 1.001 for c in best.as_good)


def test_rounds_that_can_promise_nothing_go_on_beside_the_best(tmp_path):
    design, history = sweep(tmp_path, noise=0.08)
    verdict = Rounds(design, "edp").verdict(history)
    assert not verdict.is_promised
    counts = {}
    for key, record in history.records.items():
        counts[key.rpartition("-")[0]] = counts.get(key.rpartition("-")[0], 0) + (record.result is not None)
    at = {float(cell.levels["power_cap_w"]): counts.get(cell.id, 0) for cell in design.cells()}
    caps = sorted(at)
    best = caps.index(verdict.cap_w)
    assert min(at[cap] for cap in caps[max(0, best - 2) : best + 3]) >= 5
    assert sum(count == 0 for count in at.values()) > 10, "the rest of the grid is left alone"


def test_where_no_cap_binds_one_run_tells(tmp_path):
    """A training that draws less than the least cap: the driver never counted time at it."""
    design, history = sweep(tmp_path, noise=0.01, rows=({"network": "vgg19", "busy_w": 20.0},))
    verdict = Rounds(design, "edp").verdict(history)
    assert verdict.is_flat
    assert verdict.cap_w == 260
    assert history.done == 1
    assert "no cap matters" in promise_text(verdict, "edp")


def test_a_cap_that_was_not_run_is_as_good_only_where_it_is_surely_within_one_per_cent(tmp_path):
    design, history = sweep(tmp_path, "resnet152", noise=0.01)
    campaign = Campaign(design, history)
    (group,) = campaign.groups
    chosen = campaign.best(group, "edp")
    ran = {cell.id for cell in group.cells}
    assert all(share <= (0.021 if cell.id in ran else 0.0101) for cell, share in chosen.within.items())


def test_rounds_go_on_where_a_killed_runner_left_them(tmp_path):
    whole = sweep(tmp_path / "whole")[1]
    lines = (tmp_path / "whole" / "campaign.jsonl").read_text().splitlines(keepends=True)
    for number, cut in enumerate(range(2, len(lines), 13)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "campaign.jsonl").write_text("".join(lines[:cut]))
        assert {k: r.result for k, r in sweep(folder)[1].records.items()} == {
            k: r.result for k, r in whole.records.items()
        }


def test_levels():
    assert levels_of(CAPS, 50.0, None, None) == [110, 160, 210, 260]
    assert levels_of(Range(100.0, 300.0, 260.0), 100.0, None, None) == [100, 200, 260, 300]
    assert levels_of(CAPS, 2.5, 200.0, 205.0) == [200, 202.5, 205, 260]
    for step, least in ((0.0, None), (5.0, 90.0), (5.0, 260.0)):
        with pytest.raises(ConfigError, match="they can be set from 100 to 260 W"):
            levels_of(CAPS, step, least, None)


FILE = """
[campaign]
name = "grid"
command = ["python", "train.py", "--model", "{model}"]
[factors]
model = ["alexnet", "vgg19"]
power_cap_w = {from = 100, to = 260, step = 10}
[order]
reference = {power_cap_w = "default"}
[work]
images = 32000
[simulation]
iterations = 250
noise = 0.005
"""


@pytest.mark.quick("the one campaign of the quick tier, from the plan to the page")
def test_commands_from_the_plan_to_the_page(tmp_path, capsys, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text(FILE)
    code, out, _ = joules(capsys, "campaign", "plan", "grid.toml", "--on", "sim:rtx6000")
    assert (code, "34 cells, 5 repeats" in out, "170 runs" in out) == (0, True, True)
    assert joules(capsys, "campaign", "table", "grid.toml")[0] == 2
    code, out, err = joules(capsys, "campaign", "run", "grid.toml", "--on", "sim:rtx6000")
    assert (code, "170 runs, 34 of 34 cells" in out, err.count("block ")) == (0, True, 170)
    code, out, _ = joules(capsys, "campaign", "status", "grid.toml", "--format", "json")
    assert (code, json.loads(out)["results"], json.loads(out)["to_do"]) == (0, 170, 0)
    code, out, _ = joules(capsys, "campaign", "table", "grid.toml", "--table", "minima", "--format", "json")
    rows = {(r["model"], r["target"]): r for r in json.loads(out)}
    assert rows["vgg19", "reference"]["power_cap_w"] == 260
    assert rows["vgg19", "EDP"]["energy_pct"] == pytest.approx(-26, abs=2)
    assert rows["alexnet", "EDP"]["time_pct"] == pytest.approx(8, abs=3)
    code, out, _ = joules(capsys, "campaign", "table", "grid.toml")
    assert (code, "Best settings of grid" in out) == (0, True)
    code, out, _ = joules(capsys, "campaign", "report", "grid.toml")
    page = (tmp_path / "grid" / "report.html").read_text()
    assert (code, out.strip()) == (0, "grid/report.html")
    assert page.count("data:image/png;base64,") == 3
    assert "vgg19: the least edp is at" in page.lower()


def test_caps_of_a_simulated_card(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("campaign", "caps", "--adaptive", "--on", "sim:rtx6000", "--network", "vgg19", "--", "python", "t.py")
    code, out, _ = joules(capsys, *arguments)
    assert code == 0
    assert "to train with the least edp: joules record --power-cap 1" in out
    before = (tmp_path / "caps" / "campaign.jsonl").read_bytes()
    assert joules(capsys, *arguments)[0] == 0
    assert (tmp_path / "caps" / "campaign.jsonl").read_bytes() == before  # nothing is made twice


@pytest.mark.parametrize(("network", "seed"), [("vgg19", 2), ("resnet50", 7)])
def test_the_cap_that_rounds_promise_is_the_best_of_the_table_and_the_one_to_train_with(
    tmp_path, capsys, monkeypatch, network, seed
):
    """The rounds guard against a card of another form; the curve of the table alone takes a neighbour here."""
    monkeypatch.chdir(tmp_path)
    arguments = ("campaign", "caps", "--adaptive", "--on", "sim:rtx6000", "--network", network, "--seed", seed)
    _, out, _ = joules(capsys, *arguments, "--", "python", "t.py")
    promised = re.search(r"at (\d+) W the edp is within", out).group(1)
    assert re.search(r"--power-cap (\d+)", out).group(1) == promised
    assert re.search(r"^ +EDP +(\d+)", out, re.MULTILINE).group(1) == promised


def test_a_planted_drift_does_not_reach_the_ratios(tmp_path):
    """3 % more joules at the end: within a block all cells have about the same of it."""
    design = design_of({
        "campaign": {"name": "c", "command": ["t"]}, "factors": {"power_cap_w": {"from": 100, "to": 260, "step": 20}},
        "order": {"reference": {"power_cap_w": "default"}}, "repeats": {"min": 5},
        "simulation": {"network": "vgg19", "iterations": 100, "noise": 0.0, "drift": 0.03},
    })  # fmt: skip
    with Journal(tmp_path) as journal:
        design = begin(design, Simulated(design, RTX_6000), journal)
        executor = Simulated(design, RTX_6000)
        Runner(design, Blocks(design), executor, journal).run()
    campaign = Campaign(design, read_history(tmp_path))
    (group,) = campaign.groups
    joules_of = [r.energy_j for r in group.runs[group.reference.id].values()]
    assert joules_of[-1] / joules_of[0] > 1.02  # the drift is there
    for cell in group.cells:
        energy = campaign.by_id[cell.id].ratios["e"]
        at = [operate(RTX_6000, NETWORKS["vgg19"], cap).energy_j for cap in (float(cell.levels["power_cap_w"]), 260.0)]
        assert energy.value == pytest.approx(at[0] / at[1], rel=0.007 if len(joules_of) % 2 else 0.001)


def test_caps_of_metrics_rise_from_energy_to_time(tmp_path):
    design, history = sweep(tmp_path, "resnet50", noise=0.002)
    campaign = Campaign(design, history)
    (group,) = campaign.groups
    caps = [campaign.best(group, metric).cell.levels["power_cap_w"] for metric in ("e", "edp", "eds:2", "eds:1.5")]
    assert all(a <= b for a, b in pairwise(caps))


def test_no_table_without_a_result(tmp_path):
    design = design_of({"campaign": {"name": "c", "command": ["t"]}, "factors": {"power_cap_w": [100, 200]}})
    assert campaign_tables(Campaign(design, read_history(tmp_path))) == []
