"""Tables and pictures of a campaign whose answer is known: cap against clock, test beds of several hosts."""

import pytest
from make_campaign import campaign_of

from powerd_analytics.campaign_views.all_tables import campaign_tables
from powerd_analytics.campaign_views.campaign_page import pictures
from powerd_analytics.campaigns.design import Guard
from powerd_analytics.campaigns.guard import discard_of
from powerd_analytics.campaigns.journal import Discard, Result, total_row

BOTH = {
    "factors": {"power_cap_w": [200, 260], "sm_clock_mhz": [1500, 2100]},
    "order": {"reference": {"power_cap_w": 260, "sm_clock_mhz": 2100}},
}
"""A campaign with two knobs."""
TAKEN = {(260, 2100): (100.0, 10.0), (200, 2100): (90.0, 10.4), (260, 1500): (85.0, 10.8), (200, 1500): (80.0, 11.5)}
"""Joules and seconds by cap and clock."""


def of_cell(levels, block):
    joules, seconds = TAKEN[levels["power_cap_w"], levels["sm_clock_mhz"]]
    off = 1 + 0.001 * block
    return Result((total_row(off * joules, off * seconds) | {"device": "gpu0", "provenance": "measured"},))


def test_cap_and_clock_are_compared_at_equal_slowdown(tmp_path):
    campaign = campaign_of(tmp_path, BOTH, of_cell)
    (table,) = campaign_tables(campaign, ("slowdown",))
    rows = {(round(row["slower_pct"]), row["turned"]): row for row in table.records()}
    assert rows[5, "power cap"]["saving_pct"] == pytest.approx(10)
    assert rows[5, "SM clock"]["saving_pct"] == 0, "every clock but the reference's is slower than that"
    assert rows[5, "power cap and SM clock"]["power_cap_w"] == 200
    assert rows[10, "SM clock"]["saving_pct"] == pytest.approx(15)
    assert rows[10, "power cap and SM clock"]["saving_pct"] == pytest.approx(15), "both together are 15 % slower"
    assert rows[10, "SM clock"]["time_pct"] == pytest.approx(8)
    assert {p.name for p in pictures(campaign)} >= {"slowdown", "sm_clock"}


def test_with_one_knob_there_is_nothing_to_compare(tmp_path):
    one = {"factors": {"power_cap_w": [200, 260]}, "order": {"reference": {"power_cap_w": 260}}}
    campaign = campaign_of(tmp_path, one, lambda levels, block: of_cell(levels | {"sm_clock_mhz": 2100}, block))
    assert campaign_tables(campaign, ("slowdown",))[0].records() == []
    assert "slowdown" not in {p.name for p in pictures(campaign)}


def test_a_test_bed_says_the_versions_and_the_clocks_that_were_set_of_each_host(tmp_path):
    def of_host(levels, block):
        row = total_row(100.0, 10.0) | {"device": "gpu0", "provenance": "measured", "device_name": "H200"}
        row |= {"host": f"n{block}", "torch_version": "2.13.0", "cuda_version": "13.0", "clock_hz": 1.5e9}
        return Result((row,))

    factors = {"batch_size": [32, 64]}
    (table,) = campaign_tables(campaign_of(tmp_path, {"factors": factors}, of_host), ("testbed",))
    beds = table.records()
    assert [(bed["host"], bed["runs"]) for bed in beds] == [("n0", 2), ("n1", 2)]
    assert {(bed["torch_version"], bed["cuda_version"], bed["clock_hz"]) for bed in beds} == {("2.13.0", "13.0", 1.5e9)}


def test_a_clock_that_is_swept_is_no_part_of_the_test_bed(tmp_path):
    def run(levels, block):
        taken = of_cell(levels, block)
        return Result(tuple(row | {"clock_hz": 1e6 * levels["sm_clock_mhz"], "host": "n"} for row in taken.rows))

    (table,) = campaign_tables(campaign_of(tmp_path, BOTH, run), ("testbed",))
    assert [(bed["host"], bed["runs"]) for bed in table.records()] == [("n", 8)]


def test_a_cell_has_the_money_of_its_training_at_each_cap(tmp_path):
    priced = BOTH | {"campaign": {"name": "c", "command": ["train", "{power_cap_w}", "{sm_clock_mhz}"],
                                  "price_per_kwh": 0.36, "price_per_gpu_hour": 1.8}}  # fmt: skip
    (table,) = campaign_tables(campaign_of(tmp_path, priced, of_cell), ("cells",))
    by_cap = {(row["power_cap_w"], row["sm_clock_mhz"]): row for row in table.records()}
    for key, row in by_cap.items():
        joules, seconds = row["energy_j"], row["time_s"]
        assert row["cost_eur"] == pytest.approx(joules * 0.36 / 3.6e6 + seconds * 1.8 / 3600), key
    # A cap that saves a tenth of the joules costs more: the card is dearer than its energy.
    assert by_cap[200, 2100]["cost_eur"] > by_cap[260, 2100]["cost_eur"]
    assert any("1.8 EUR for an hour of a GPU" in note for note in table.notes)


def test_a_run_in_another_room_temperature_does_not_count(tmp_path):
    guard = Guard(ambient_c=(18, 22))
    runs = [Result((total_row(1.0, 1.0) | {"ambient_c": degrees},)) for degrees in (17.9, 18.0, 21.9, 24.0)]
    assert [discard_of(run, guard) is not None for run in runs] == [True, False, False, True]
    assert discard_of(runs[3], guard) == Discard("ambient", "24.0 degrees around it, 18 to 22 are wanted")
    assert discard_of(Result((total_row(1.0, 1.0),)), guard) is None, "nothing measures it"
    assert discard_of(runs[3], Guard(ambient_c=(18, 22), discard=("thermal",))) is None
    with pytest.raises(ValueError, match="two temperatures"):
        Guard(ambient_c=(22, 18))
