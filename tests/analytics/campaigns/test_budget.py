"""A machine's budget: limits of GPUs and of processors that together stay below it."""

import pytest
from make_campaign import campaign_of, result

from powerd_analytics.campaign_views.all_tables import campaign_tables
from powerd_analytics.campaigns.campaign_file import design_of
from powerd_core.errors import ConfigError
from powerd_core.lease import Range

SHARES = {
    "factors": {"gpus": [2], "power_cap_w": [200, 250, 300], "package_power_w": [80, 130]},
    "order": {"reference": {"power_cap_w": 200, "package_power_w": 130}},
    "budget": {"node_w": 800, "rest_w": 40, "packages": 2},
}
COMMAND = {"campaign": {"name": "c", "command": ["train", "{gpus}"]}}


def levels_of(design):
    return [(cell.levels["power_cap_w"], cell.levels["package_power_w"]) for cell in design.cells()]


def test_cells_over_the_budget_are_none():
    # 2 x 250 + 2 x 130 + 40 is 800; 2 x 300 + 2 x 80 + 40 is 800, too.
    assert levels_of(design_of(COMMAND | SHARES)) == [(200, 80), (200, 130), (250, 80), (250, 130), (300, 80)]
    without = {name: table for name, table in SHARES.items() if name != "budget"}
    assert len(levels_of(design_of(COMMAND | without))) == 6


def test_words_count_when_it_is_known_what_they_are():
    words = SHARES | {"factors": SHARES["factors"] | {"power_cap_w": [200, "max"]}}
    design = design_of(COMMAND | words)
    assert len(design.cells()) == 4
    ranges = {"power_cap_w": Range(100, 300, 300), "package_power_w": Range(30, 200, 200)}
    assert levels_of(design.resolved(ranges)) == [(200, 80), (200, 130), (300, 80)]


def test_a_reference_that_nobody_may_run_is_refused():
    over = SHARES | {"order": {"reference": {"power_cap_w": 300, "package_power_w": 130}}}
    with pytest.raises(ConfigError, match=r"order.reference: .* is 900 W, over the budget of 800 W"):
        design_of(COMMAND | over)


def test_a_budget_below_all_leaves_no_cell():
    with pytest.raises(ConfigError, match="the campaign has no cell"):
        design_of(COMMAND | SHARES | {"order": {}, "budget": {"node_w": 300}})


def test_the_best_share_is_found_among_those_that_fit(tmp_path):
    def taken(levels, block):
        # The processors feed the cards: with 80 W each the cards wait.
        seconds = 10.0 if levels["package_power_w"] == 130 else 14.0
        return result((1 + 0.001 * block) * 0.5 * levels["power_cap_w"] * seconds, (1 - 0.001 * block) * seconds)

    (table,) = campaign_tables(campaign_of(tmp_path, SHARES, taken), ("minima",))
    best = next(row for row in table.records() if row["target"] == "E")
    assert (best["power_cap_w"], best["package_power_w"]) == (200, 130)
