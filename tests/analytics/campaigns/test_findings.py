"""What comes out of a campaign is said where its figures say it, and not said where they do not."""

from dataclasses import replace

import numpy as np
import pytest

from powerd_analytics.campaign_views.all_tables import campaign_tables
from powerd_analytics.campaign_views.campaign_figures import Campaign
from powerd_analytics.campaign_views.findings import falls, findings, rises, surely_less
from powerd_analytics.campaigns.campaign_file import design_of
from powerd_analytics.campaigns.design import KNOBS
from powerd_analytics.campaigns.journal import History, Result, RunRecord, total_row
from powerd_analytics.frame.figure import Figure
from powerd_analytics.frame.figures import RESULT
from powerd_analytics.output.export import to_markdown

BLOCKS = 4


def campaign(factors, taken, reference=None, noise=0.002, **tables):
    """``taken`` says joules and seconds by levels, and maybe results and kernels."""
    names = [f"{{{name}}}" for name in factors if name not in (*KNOBS, "gpus")]
    document = {"campaign": {"name": "c", "command": ["train", *names]}, "factors": factors,
                "repeats": {"min": BLOCKS}} | tables  # fmt: skip
    document |= {"order": {"reference": reference}} if reference else {}
    design = design_of(document)
    history, draw = History("begun"), np.random.default_rng(1)
    for block in range(BLOCKS):
        for cell in design.cells():
            joules, seconds, *more = taken(**cell.levels)
            results, kernels = [*more, {}, ""][:2] if len(more) != 1 else [more[0], ""]
            row = total_row(joules * (1 + noise * draw.normal()), seconds * (1 + noise * draw.normal()))
            row |= {f"{RESULT}{name}": value for name, value in results.items()} | {"provenance": "simulated"}
            said = {"digest": kernels, "distinct": 1, "first": kernels} if kernels else {}
            history.records[f"{cell.id}-{block}"] = RunRecord(result=Result((row,), kernels=said))
    return Campaign(design, history)


def said(words, *arguments, **more):
    return [text for text in findings(campaign(*arguments, **more)) if words in text.lower()]


CAPS, BATCH, GPUS = {"power_cap_w": [100, 150, 200]}, {"batch_size": [32, 64, 128]}, {"gpus": [1, 2, 4]}
AT_200 = {"power_cap_w": 200}


def bowl(power_cap_w, depth=0.1, **_):
    return 100 * (1 - depth * (power_cap_w == 150)), 10 + (200 - power_cap_w) / 100


def scaled(gpus, power_cap_w):
    """Several GPUs lose a fifth of their speed to each other at 200 W, and a tenth at less."""
    return 99 + (power_cap_w > 150), 10 / gpus * (1.2 - (power_cap_w < 200) / 10) ** (gpus > 1)


def test_figures_that_overlap_are_in_no_order():
    one, other, unknown = Figure(1.0, 0.1), Figure(1.5, 0.1), Figure(3.0)
    assert surely_less(one, other)
    assert not surely_less(one, Figure(1.2, 0.1))
    assert not surely_less(one, unknown)
    assert falls([other, Figure(1.45, 0.2), one])
    assert not falls([other, one, Figure(1.45, 0.02)])  # it surely rises again
    assert rises([one, other])


@pytest.mark.parametrize(
    ("words", "factors", "speaks", "silent", "more"),
    [
        ("the least energy is at", BATCH, lambda batch_size: (1000 / batch_size, 1), lambda batch_size: (100, 1), {}),
        (
            "is within 1 % of the best", BATCH,
            lambda batch_size: (1000 / batch_size, 1, {"top1": 0.9 - 1e-4 * batch_size * (batch_size > 64)}),
            lambda batch_size: (100, 1, {"top1": 0.9}), {},
        ),
        ("the least e is at 150 w", CAPS, bowl, lambda power_cap_w: bowl(power_cap_w, 0.0), {"reference": AT_200}),
        ("the least edp is at", CAPS, bowl, lambda power_cap_w: (100, 10), {"reference": AT_200}),
        (
            "loses least time", CAPS | {"model": ["a", "b"]},
            lambda model, power_cap_w: (100, 10 + (200 - power_cap_w) * (0.01 if model == "a" else 0.05)),
            lambda model, power_cap_w: (100, 10 + (200 - power_cap_w) * 0.05), {"reference": AT_200},
        ),
        (
            "the most energy that is saved", {"batch_size": [32, 64], "power_cap_w": [100, 200]},
            lambda batch_size, power_cap_w: (100 - 10 * (batch_size == 64) - 5 * (power_cap_w == 100), 10),
            lambda batch_size, power_cap_w: (100, 10), {"reference": {"batch_size": 32} | AT_200},
        ),
        (
            "saves grows with the number", GPUS | CAPS, lambda gpus, power_cap_w: bowl(power_cap_w, 0.1 * gpus),
            lambda gpus, power_cap_w: bowl(power_cap_w, 0.1), {"reference": AT_200},
        ),
        (
            "they scale better", GPUS | CAPS,
            scaled,
            lambda gpus, power_cap_w: (bowl(power_cap_w)[0], 10 / gpus), {"reference": AT_200},
        ),
        (
            "the idle floor", GPUS | CAPS, lambda gpus, power_cap_w: (100, 10 / gpus), None,
            {"reference": AT_200, "campaign": {"name": "c", "command": ["t"], "idle_w": 2.0}},
        ),
        (
            "hardly moves the speed", {"mem_clock_mhz": [5000, 6000, 7000]}, lambda mem_clock_mhz: (100, 10),
            lambda mem_clock_mhz: (100, 7e4 / mem_clock_mhz), {"reference": {"mem_clock_mhz": 7000}},
        ),
        (
            "larger batches cost less", BATCH | CAPS, lambda batch_size, power_cap_w: (1000 / batch_size, 10),
            lambda batch_size, power_cap_w: (100, 10), {"reference": AT_200},
        ),
        (
            "top1 falls with the batch size", BATCH | CAPS,
            lambda batch_size, power_cap_w: (100, 10, {"top1": 0.9 - 1e-3 * batch_size}),
            lambda batch_size, power_cap_w: (100, 10, {"top1": 0.9}), {"reference": AT_200},
        ),
        (
            "ran other kernels", CAPS, lambda power_cap_w: (100, 10, {}, "fft" if power_cap_w < 150 else "gemm"),
            lambda power_cap_w: (100, 10, {}, "gemm"), {"reference": AT_200},
        ),
        (
            "settings that should not change it", CAPS, lambda power_cap_w: (100, 10, {"loss": 1 / power_cap_w}),
            lambda power_cap_w: (100, 10, {"loss": 0.5}), {"reference": AT_200},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_finding_is_said_where_its_figures_say_it_and_only_there(words, factors, speaks, silent, more):
    if words == "saves grows with the number":
        words = "grows with the number of gpus"
    assert said(words, factors, speaks, **more), findings(campaign(factors, speaks, **more))
    if silent is None:  # without what the file says of idling
        silent, more = speaks, {name: value for name, value in more.items() if name != "campaign"}
    assert not said(words, factors, silent, **more)


def cards(slow):
    """Batches of two kinds of cards; four cards, two of each, take ``slow`` times as long as the slower kind."""

    def taken(batch_size, gpus, card):
        alone = {"new": 10.0, "old": 15.0}[card] * 64 / batch_size / gpus
        both = slow * 15.0 * 64 / (batch_size / 2) / 2 / 2
        return 100.0, both if gpus == 4 else alone

    return taken


@pytest.mark.parametrize(("slow", "is_said"), [(1.0, True), (1.4, False), (0.8, False)])
def test_mixed_cards_wait_for_the_slower_kind_only_where_that_is_all(slow, is_said):
    """At 1.4 times something else costs time, too; at 0.8 they cannot wait for it."""
    factors = {"batch_size": [64, 128, 256], "gpus": [2, 4], "card": ["new", "old"]}
    instrument = {"moved_over": "card", "mixed": {"new": 2, "old": 2}}
    assert bool(said("wait for the slower kind", factors, cards(slow), instrument=instrument)) == is_said


def test_joules_of_a_cell_are_those_of_all_its_cards():
    """One of each kind was measured: 100 J; four cards took 400 J, in every table, and the least is of one card."""
    factors = {"batch_size": [64], "gpus": [1, 2, 4], "card": ["new", "old"]}
    instrument = {"moved_over": "card", "mixed": {"new": 2, "old": 2}, "spread": 0.03}
    of = campaign(factors, lambda batch_size, gpus, card: (100 / gpus**0.5, 10), noise=0.0, instrument=instrument)
    joules = {(f.cell.levels["gpus"], f.cell.levels["card"]): f.energy_j for f in of.cells}
    assert joules[1, "new"].value == pytest.approx(100)
    assert joules[2, "old"].value == pytest.approx(2 * 100 / 2**0.5)
    assert joules[4, "new"].value == joules[4, "old"].value == pytest.approx(4 * 50)
    assert joules[2, "old"].u_systematic == pytest.approx(0.03 * 70.71 * 2**0.5, rel=1e-3)  # the unmeasured one differs
    assert not any("least energy is at batch_size 64, gpus 4" in text for text in findings(of))


def test_joules_that_are_the_least_they_can_be_have_no_interval_and_say_so():
    of = campaign(BATCH, lambda batch_size: (1000 / batch_size, 1))
    for m in of.runs[:1]:
        m.result.rows[0]["is_lower_bound"] = True
    (table,) = campaign_tables(of, ("cells",))
    bounds = {row["batch_size"]: (row["is_lower_bound"], row["u95_j"] is None) for row in table.records()}
    first = of.runs[0].item.cell.levels["batch_size"]
    assert bounds == {size: (True, True) if size == first else (None, False) for size in BATCH["batch_size"]}
    assert to_markdown([table]).count("≥") == 1


def test_the_test_bed_has_every_kind_of_device_of_a_run():
    """Mixed cards: each is a row, though a run has both."""
    mixed = campaign(CAPS, bowl)
    cards = [{"device": f"gpu{i}", "device_name": name} for i, name in enumerate(("V100", "P100", "V100"))]
    for record in mixed.history.records.values():
        (row,) = record.result.rows
        record.result = replace(record.result, rows=tuple(row | card for card in (*cards, *cards)))
    (table,) = campaign_tables(mixed, ("testbed",))
    runs = BLOCKS * len(CAPS["power_cap_w"])
    assert {(row["device_name"], row["runs"]) for row in table.records()} == {("V100", runs), ("P100", runs)}


def test_ratios_to_the_reference_are_headed_as_ratios():
    (table,) = campaign_tables(campaign(CAPS, bowl, reference=AT_200), ("cells",))
    head = to_markdown([table])
    assert "E/E ref" in head
    assert "EDP/EDP ref" in head
