"""Pivots: every cell holds one configuration, and averages and gains are of what is shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_analytics.frame.figures import frame_from, worked_out
from powerd_analytics.views.pivots import PivotRequest, gain_table, make_pivot, pivot_table
from powerd_core.errors import AnalysisError


def record(**given):
    made = {
        "kind": "phase", "path": "p", "run_id": "r", "model": "m", "gpus": 1, "ranks": 1, "device": "gpu0",
        "provenance": "measured", "phase": "forward", "phase_path": "forward", "timing": "host",
        "iterations": 10, "s_per_batch": 0.1, "u_s_per_batch": 0.001, "u_statistical_j": 0.1, "u_systematic_j": 0.2,
        "runs": 1, "is_lower_bound": False, "note": "", "missing_s": 0.0,
    }  # fmt: skip
    return made | given


def pivot(records, text):
    return make_pivot(worked_out(frame_from(records)), PivotRequest.parse(text))


def test_what_differs_within_a_cell_is_added_to_the_rows():
    records = [record(batch_size=b, j_per_batch=float(b)) for b in (64, 128)]
    found = pivot(records, "model,phase::j_per_batch")
    assert found.row_names == ("model", "phase", "batch_size", "provenance")
    assert [f.value for f in found.cells.values()] == [64.0, 128.0]
    assert "batch_size added" in found.notes[0]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.sampled_from([32, 64]),
            st.sampled_from(["gpu0", "gpu1"]),
            st.sampled_from(["measured", "modelled"]),
            st.floats(1, 100),
        ),
        min_size=1,
        max_size=25,
    )
)
def test_every_record_is_in_exactly_one_cell_with_its_own_kind(drawn):
    records = [
        record(run_id=str(i), path=str(i), model=m, batch_size=b, device=d, provenance=p, j_per_batch=j)
        for i, (m, b, d, p, j) in enumerate(drawn)
    ]
    found = pivot(records, "model:phase:j_per_batch")
    names = (*found.row_names, *found.column_names)
    for (row, column), figure in found.cells.items():
        cell = dict(zip(names, (*row, *column), strict=True))
        inside = [r["j_per_batch"] for r in records if all(r.get(n) == v for n, v in cell.items())]
        assert figure.value == pytest.approx(sum(inside) / len(inside))
        assert (
            len({(r["batch_size"], r["device"]) for r in records if all(r.get(n) == v for n, v in cell.items())}) == 1
        )


def test_a_mean_over_a_side_needs_all_its_cells():
    records = [record(batch_size=b, gpus=g, j_per_batch=float(b)) for b, g in ((64, 1), (64, 2), (128, 1))]
    found = pivot(records, "batch,phase:gpus:j_per_batch")
    means = {row[0]: found.mean([row], found.columns) for row in found.rows}
    assert means[64].value == 64.0
    assert means[128] is None
    assert found.mean(found.rows, [(1,)]).value == 96.0
    assert found.mean(found.rows, [(2,)]) is None
    # Cells of other configurations are no repeats: that they differ is no uncertainty.
    assert found.mean(found.rows, [(1,)]).u_statistical == pytest.approx(0.1 / 2**0.5)


def test_a_gain_is_second_over_first_with_both_uncertainties():
    records = [
        record(device_name=n, batch_size=64, j_per_batch=j, u_statistical_j=0.0, u_systematic_j=0.01 * j)
        for n, j in (("old", 10.0), ("new", 5.0))
    ]
    found = pivot(records, "batch,phase:generation:j_per_batch")
    sheet = gain_table(found, "device_name", ("old", "new"))
    assert sheet.rows[0][-2] == pytest.approx(0.5)
    assert sheet.rows[0][-1] == pytest.approx(1.959964 * 0.5 * 0.01 * 2**0.5)
    assert gain_table(found, "device_name").rows == sheet.rows  # exactly two: in their order
    with pytest.raises(AnalysisError, match="there is old, new"):
        gain_table(found, "device_name", ("old", "newer"))


def total(n, basis, **given):
    known = {"gflops_per_w": 2.0 + n, "gflops_convention": "paper", "gflops_basis": basis} if basis else {}
    return record(kind="total", phase=None, phase_path=None, batch_size=64, run=f"r{n}", path=f"r{n}", run_id=f"r{n}",
                  time_s=1.0, energy_j=10.0, j_per_batch=1.0, **known, **given)  # fmt: skip


def test_figures_per_joule_of_different_phases_share_no_average_and_have_no_gain():
    bases = {(64, "old"): "forward+backward", (64, "new"): "forward+backward", (128, "old"): "iteration",
             (128, "new"): "forward+backward"}  # fmt: skip
    records = [
        total(i, basis, device_name=product) | {"batch_size": batch}
        for i, ((batch, product), basis) in enumerate(bases.items())
    ]
    found = pivot(records, "batch:product:gflops_per_w")
    assert found.row_names == ("batch_size", "gflops_basis", "provenance")
    sheet = pivot_table(found, averages=True)
    rows = [(row[0], row[1], *row[3::2]) for row in sheet.rows]
    assert rows == [
        (64, "forward+backward", 2.0, 3.0, 2.5), (128, "forward+backward", None, 5.0, None),
        (128, "iteration", 4.0, None, None), ("average", "forward+backward", None, 4.0, None),
    ]  # fmt: skip
    assert [(row[0], row[3]) for row in gain_table(found, "device_name", ("old", "new")).rows] == [(64, 1.5)]
