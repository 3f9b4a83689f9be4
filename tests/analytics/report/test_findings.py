"""What the page says first and draws: the best configuration, parts of a machine, unknowns, bars, gaps."""

import re

import numpy as np
import pytest
from make_campaign import one_run
from make_run import MS, LineSpec, PhaseSpec, make_run
from page import report


def said(page, words):
    """The sentences with these words."""
    return [t.strip() for t in page.texts if words in t.lower()]


def page_of(tmp_path, lines, phases, end_ns, **options):
    return report([make_run(tmp_path / "r.h5", lines, phases, end_ns=end_ns)], tmp_path / "page.html", **options)[1]


@pytest.mark.parametrize(("scale", "is_sure"), [(0.9, True), (0.999, False)])
def test_repeats_tell_configurations_apart_or_not(tmp_path, scale, is_sure):
    for name, factor in (("old", 1.0), ("new", scale)):
        for i in range(3):
            seed = i if name == "old" else 50 + i
            one_run(tmp_path / f"{name}{i}.h5", factor, noise_w=2.0, gpus=2, iterations=3, seed=seed, device_name=name)
    _, page = report(sorted(tmp_path.glob("*.h5")), tmp_path / "page.html")
    (sentence,) = said(page, "least energy a sample")
    assert ("distinguishable from all others" in sentence) == is_sure
    if is_sure:
        assert "Least energy a sample: AlexNet, batch 64, new" in sentence
        more = float(re.search(r"next is AlexNet, batch 64, old, ([\d.]+) % more", sentence).group(1))
        assert more == pytest.approx(100 * (1 / scale - 1), abs=1.5)
    # The bars are those of the GPUs' sum: single ones are no configurations of their own.
    assert [a["aria-label"].count("forward") for t, a in page.tags if t == "svg" and "role" in a] == [2]


@pytest.mark.parametrize("short", [True, False])
def test_nothing_takes_most_where_too_much_is_not_resolvable(tmp_path, short):
    """One of two phases is too short for the sensor, and what it may have taken is more than the other did."""
    specs = [PhaseSpec("training", 0, 300 * MS, {"model": "m", "batch_size": 8})]
    for at in range(0, 300 * MS, 100 * MS):
        specs.append(PhaseSpec("backward", at + 45 * MS, at + 95 * MS, {}, 0))
        # Many forward passes of half a millisecond each, between the readings: together they last as long.
        begins = [at + i * MS + MS // 4 for i in range(44)] if short else [at]
        specs += [PhaseSpec("forward", b, b + (MS // 2 if short else 45 * MS), {}, 0) for b in begins]
    watts = (150.0, 50.0) if short else (50.0, 150.0)
    line = LineSpec("gpu0.a", lambda at: np.where(at // (50 * MS) % 2, watts[1], watts[0]), period_ns=5 * MS)
    found = said(page_of(tmp_path, [line], specs, 300 * MS), "takes most of the joules")
    assert [sentence.split()[0] for sentence in found] == ([] if short else ["backward"])
