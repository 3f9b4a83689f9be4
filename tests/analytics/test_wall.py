"""Software counters against the wall: `joules tables --table wall`."""

from math import hypot

import pytest
from command import joules, refused
from make_campaign import with_attributes
from make_run import LineSpec, make_run, training
from published_tables import rows

GAIN = {"u_gain": 0.02, "u_offset_w": 0.0, "step_w": 0.0, "window_ns": 0, "origin": "test"}


def run(path, **devices):
    """A run in which devices draw shares of the same power; ``cpu1_modelled`` is modelled."""
    tr = with_attributes(training((64,), 12), model="small")
    lines = [
        LineSpec(
            f"{name.partition('_')[0]}.a", tr.power(share), name.partition("_")[0],
            name.partition("_")[2] or "measured", accuracy=GAIN,
        )
        for name, share in devices.items()
    ]  # fmt: skip
    return make_run(path, lines, tr.phases, end_ns=tr.end_ns)


def test_counters_account_for_a_share_of_the_wall_in_each_phase_and_in_all(tmp_path, capsys):
    run(tmp_path / "a.h5", gpu0=0.3, gpu1=0.1, cpu0=0.2, node=1.0)
    code, out, _ = joules(capsys, "tables", tmp_path / "a.h5", "--table", "wall", "--format", "csv")
    found = {row["phase_path"]: row for row in rows(out)}
    assert code == 0
    assert {path.rpartition("/")[2] for path in found} == {"all", "iteration", "forward", "backward", "update"}
    for row in found.values():
        shares = [float(row[f"{name}_pct"]) for name in ("gpus", "processors", "counted")]
        assert shares == pytest.approx([40, 20, 60], rel=2e-3)
        # Each sensor is off by a gain of its own: the counters together by less than one that had seen all of it.
        joules_off, counters_off = float(row["u95_wall_j"]) / float(row["wall_j"]), hypot(30, 10, 20) / 60
        assert float(row["u95_counted_pct"]) == pytest.approx(60 * joules_off * hypot(1, counters_off), rel=0.2)
    backward = found["training/iteration/backward"]
    assert float(backward["overhead_w"]) == pytest.approx(0.4 * 260, rel=0.01)


def test_what_is_modelled_is_not_counted_and_named(tmp_path, capsys):
    run(tmp_path / "a.h5", gpu0=0.3, cpu0_modelled=0.2, node=1.0)
    _, out, _ = joules(capsys, "tables", tmp_path / "a.h5", "--table", "wall", "--format", "csv")
    whole = next(row for row in rows(out) if row["phase_path"] == "all")
    assert (whole["processors_pct"], float(whole["counted_pct"])) == ("", pytest.approx(30, rel=2e-3))
    assert "cpu0 is modelled" in whole["note"]


def test_without_a_wall_there_is_no_such_table(tmp_path, capsys):
    run(tmp_path / "a.h5", gpu0=0.3)
    assert "wall" in refused(capsys, "tables", tmp_path / "a.h5", "--table", "wall")
