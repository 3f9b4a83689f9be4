"""Samples per second and joules per sample where passes had another size than the stated batch."""

import h5py
import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, make_run

from powerd_analytics import phase_table, read_run
from powerd_analytics.frame.figures import frame_of

STEPS, BATCH, LAST = 60, 64, 16
MEAN = (2 * BATCH + LAST) / 3
"""Samples of a step where every third one is the last of an epoch."""


@pytest.fixture
def run(tmp_path):
    attributes = {"batch_size": BATCH}
    phases = []
    for i in range(STEPS):
        begin, parent = (20 + 45 * i) * MS, len(phases)
        phases.append(PhaseSpec("iteration", begin, begin + 40 * MS, attributes, -1))
        for k, name in enumerate(("forward", "backward", "update")):
            phases.append(PhaseSpec(name, begin + 12 * k * MS, begin + (12 * k + 10) * MS, attributes, parent))
    line = LineSpec("gpu0.a", lambda t: 100.0 + 50.0 * ((t // (7 * MS)) % 5), period_ns=MS // 2)
    path = make_run(tmp_path / "run.h5", [line], phases, end_ns=(60 + 45 * STEPS) * MS)
    with h5py.File(path, "r+") as file:
        is_last = np.repeat(np.arange(STEPS) % 3 == 2, 4)
        file["phases"].create_dataset("samples", data=np.where(is_last, LAST, 0).astype(np.int32))
    return read_run(path)


def test_every_row_counts_the_samples_that_its_passes_had(run):
    table = phase_table(run)
    (total,) = table.totals
    assert total.iterations == STEPS
    assert total.samples_per_batch == pytest.approx(MEAN)
    assert total.samples_per_s == pytest.approx(STEPS * MEAN / total.time_s)
    assert len(table.phases) == 4
    for row in table.phases:
        assert row.samples_per_s == pytest.approx(MEAN / row.s_per_batch)


def test_joules_of_a_sample_are_over_the_samples_there_were(run):
    frame = frame_of(run, phase_table(run))
    totals = frame[frame["kind"] == "total"]
    assert totals["batch_size"].tolist() == [BATCH]
    joules = totals["energy_j"].iloc[0] / STEPS
    assert totals["j_per_sample"].iloc[0] == pytest.approx(joules / MEAN)


def test_without_a_stated_batch_only_passes_that_are_all_of_known_size_have_samples(run):
    p = run.phases
    of_forward = [i for i, kind in enumerate(p.classes) if kind.name == "forward"]
    assert p.samples_of(of_forward, None) is None
    assert p.samples_of(of_forward, BATCH) == pytest.approx(MEAN)
