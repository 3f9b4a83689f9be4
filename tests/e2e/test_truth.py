"""Recorded runs still open, their sums are identities, and their joules agree with those of release 0.1.0 within both
uncertainties. How right the joules are, runs of known joules tell (`tests/analytics/energy/test_truth_battery.py`)."""

import json
from pathlib import Path

import numpy as np
import pytest

from powerd_analytics import phase_table, read_run
from powerd_analytics.frame.figures import frame_of, rows_of

DATA = Path(__file__).parents[1] / "data" / "truth"
RUNS = ("sim", "h200", "ranks", "gaps")


def place(row):
    """Of a row of ours, or of one of the first release, which called two columns otherwise."""
    kind, path = (row.get("table"), row["path"]) if "table" in row else (row["kind"], row["phase_path"])
    # A recording has the attributes that all its groups share, which it did not have then.
    names = ("device", "provenance", *(("model", "batch_size") if kind != "run" else ()))
    return (kind, path, *(str(row.get(key)) for key in names))


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    run = read_run(DATA / f"{request.param}.h5")
    pinned = json.loads((DATA / f"{request.param}.tables.json").read_text(encoding="utf-8"))
    return run, phase_table(run), pinned


def test_joules_agree_with_those_of_the_first_release(run):
    recording, table, pinned = run
    rows = {place(row): row for row in rows_of(frame_of(recording, table))}
    for old in pinned:
        if old["table"] in ("phase", "total", "run"):
            new, joules = rows[place(old)], "j_per_batch" if old["table"] == "phase" else "energy_j"
            seconds = "s_per_batch" if old["table"] == "phase" else "time_s"
            assert new[seconds] == pytest.approx(old[seconds], rel=1e-9)
            if old[joules] and new[joules] and old["u95_j"] and new["u95_j"]:
                assert abs(new[joules] - old[joules]) <= np.hypot(new["u95_j"], old["u95_j"]), place(old)


def test_sums_are_identities(run):
    _, table, _ = run
    for row in table.runs:
        if row.phases_j is not None:
            assert row.phases_j + row.rest_j == pytest.approx(row.energy_j, rel=1e-12)
    for total in table.totals:
        assert total.energy_j is not None
        assert total.u95_j is not None
