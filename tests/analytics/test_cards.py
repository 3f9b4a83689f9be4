"""One instrument, several cards: `joules tables --table cards`."""

import numpy as np
import pytest
from command import joules, refused
from make_campaign import one_run, with_attributes
from make_run import LineSpec, make_run, training
from published_tables import rows

from powerd_analytics.energy.uncertainty import student

GAIN = {"u_gain": 0.02, "u_offset_w": 0.0, "step_w": 0.0, "window_ns": 0, "origin": "test"}


def part(path, scale, card, product="pascal", gpus=2):
    """A run on ``gpus`` cards with an instrument on one of them."""
    about = {"device_name": product, "gpus": gpus, "instrumented": card}
    tr = with_attributes(training((64,), 12), **about)
    make_run(path, [LineSpec("gpu0.a", tr.power(scale), accuracy=GAIN)], tr.phases, end_ns=tr.end_ns, run_id=path.stem)


def cards(capsys, folder, *options):
    code, out, _ = joules(capsys, "tables", folder, "--table", "cards", "--format", "csv", *options)
    assert code == 0
    return rows(out)


def all_of(found):
    (row,) = [r for r in found if r["card"].startswith("all")]
    return row


@pytest.mark.quick("cards of one machine")
def test_one_of_two_equal_cards_is_measured_and_the_other_extrapolated(tmp_path, capsys):
    part(tmp_path / "a.h5", 0.5, "gpu1")
    one, every = cards(capsys, tmp_path, "--card-spread", 0.03)
    assert (one["card"], one["measured"], one["basis"]) == ("gpu1", "1 of 2", "one share")
    assert (every["card"], every["measured"], every["basis"]) == ("all 2", "1 of 2", "all GPUs")
    joules_of_one, u_one = float(one["j_per_batch"]), float(one["u95_j_per_batch"])
    assert float(every["j_per_batch"]) == pytest.approx(2 * joules_of_one)
    # Two cards of which one is measured differ from twice that one by sqrt 2 times the spread.
    u = np.hypot(2 * u_one / 1.69, 2**0.5 * 0.03 * joules_of_one)
    assert 1.75 * u < float(every["u95_j_per_batch"]) < 1.97 * u  # of a limit and a normal part
    assert every["gflops_per_w"] == pytest.approx(one["gflops_per_w"])
    assert "1 of 2 cards taken for equal to gpu1" in every["note"]


def test_without_a_spread_there_is_no_u95(tmp_path, capsys):
    part(tmp_path / "a.h5", 0.5, "gpu0")
    every = all_of(cards(capsys, tmp_path))
    assert every["u95_j_per_batch"] == ""
    assert "how far cards differ is not known" in every["note"]


def test_an_instrument_that_moves_measures_all_cards(tmp_path, capsys):
    part(tmp_path / "a.h5", 0.50, "gpu0")
    part(tmp_path / "b.h5", 0.52, "gpu1")
    first, second, every = cards(capsys, tmp_path)
    assert every["measured"] == "2 of 2"
    assert float(every["j_per_batch"]) == pytest.approx(float(first["j_per_batch"]) + float(second["j_per_batch"]))
    # It is one instrument: its gain is off by as much on both.
    assert float(every["u95_j_per_batch"]) == pytest.approx(
        float(first["u95_j_per_batch"]) + float(second["u95_j_per_batch"]), rel=0.02
    )


def test_the_spread_between_cards_follows_from_those_that_were_measured(tmp_path, capsys):
    part(tmp_path / "a.h5", 0.24, "gpu0", gpus=4)
    part(tmp_path / "b.h5", 0.26, "gpu1", gpus=4)
    first, second, every = cards(capsys, tmp_path)
    mean = (float(first["j_per_batch"]) + float(second["j_per_batch"])) / 2
    assert (every["measured"], float(every["j_per_batch"])) == ("2 of 4", pytest.approx(4 * mean))
    share = abs(float(first["j_per_batch"]) - mean) * 2**0.5 / mean
    spread_j = share * mean * (4 * 2 / 2) ** 0.5 * float(student(1)) / 1.96
    # Of one degree of freedom, the spread outweighs the gain of 2 %.
    assert float(every["u95_j_per_batch"]) == pytest.approx(1.96 * spread_j, rel=0.02)


def test_mixed_generations_are_as_many_of_each(tmp_path, capsys):
    part(tmp_path / "p.h5", 0.2, "gpu0", "pascal", 4)
    part(tmp_path / "m.h5", 0.4, "gpu2", "maxwell", 4)
    found = cards(capsys, tmp_path, "--mix", "pascal=2,maxwell=2", "--card-spread", 0.02)
    each = {r["card"]: float(r["j_per_batch"]) for r in found}
    assert each["all 4"] == pytest.approx(2 * each["gpu0"] + 2 * each["gpu2"])
    one = {r["card"]: float(r["gflops_per_w"]) for r in found}
    assert one["all 4"] == pytest.approx(2 / (1 / one["gpu0"] + 1 / one["gpu2"]))
    (tmp_path / "m.h5").unlink()
    every = all_of(cards(capsys, tmp_path, "--mix", "pascal=2,maxwell=2"))
    assert (every["j_per_batch"], every["note"]) == ("", "no card of maxwell was measured")


def test_gpus_have_a_share_of_their_machine(tmp_path, capsys):
    tr = with_attributes(training((64,), 12), device_name="pascal", gpus=2)
    lines = [LineSpec("gpu0.a", tr.power(0.2), accuracy=GAIN), LineSpec("wall", tr.power(), "node", accuracy=GAIN)]
    make_run(tmp_path / "a.h5", lines, tr.phases, end_ns=tr.end_ns)
    one, every, node = cards(capsys, tmp_path, "--card-spread", 0.03)
    assert (node["card"], float(node["node_share_pct"] or 0)) == ("node", 0)
    assert [float(r["node_share_pct"]) for r in (one, every)] == pytest.approx([20, 40], rel=1e-3)
    u95 = [float(r["u95_j_per_batch"]) / float(r["j_per_batch"]) for r in (every, node)]
    assert float(every["u95_node_share_pct"]) == pytest.approx(40 * np.hypot(*u95), rel=1e-3)


def test_a_card_that_was_measured_in_two_ways_is_not_taken_for_two(tmp_path, capsys):
    for name, clock in (("a", 1.2e9), ("b", 1.5e9)):
        tr = with_attributes(training((64,), 12), device_name="pascal", gpus=2, clock_hz=clock)
        make_run(tmp_path / f"{name}.h5", [LineSpec("gpu0.a", tr.power(0.5))], tr.phases, end_ns=tr.end_ns, run_id=name)
    every = all_of(cards(capsys, tmp_path, "--card-spread", 0.03))
    assert (every["j_per_batch"], every["measured"]) == ("", "1 of 2")
    assert "a card was measured in several ways" in every["note"]


def test_what_is_no_spread_is_refused(tmp_path, capsys):
    one_run(tmp_path / "a.h5", iterations=2)
    command = ("tables", tmp_path / "a.h5", "--card-spread")
    assert "choose that" in refused(capsys, *command, 0.1)
    assert "is a share" in refused(capsys, *command, 2, "--table", "cards")
