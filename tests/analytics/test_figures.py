"""The frame of a run: its columns, where each value comes from, and what is refused."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_campaign import one_run, with_attributes
from make_run import MS, LineSpec, PhaseSpec, S, make_run, training

from powerd_analytics.frame.figures import gpus_of, rows_of, run_frame
from powerd_analytics.runs.run import read_run
from powerd_core.errors import AnalysisError


def run_rows(path):
    return rows_of(run_frame(path))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return one_run(tmp_path_factory.mktemp("records") / "first.h5", batches=(64, 128))


def test_uncertainty_of_gflops_is_that_of_the_joules_it_divides_by(run):
    records = run_rows(run)
    total = next(r for r in records if r["kind"] == "total")
    both = [r for r in records if r["phase"] in ("forward", "backward") and r["batch_size"] == total["batch_size"]]
    joules = sum(r["j_per_batch"] for r in both)
    expected = total["gflops_per_w"] * np.sqrt(sum(r["u_statistical_j"] ** 2 for r in both)) / joules
    assert total["u_statistical_gflops_per_w"] == pytest.approx(expected)


def quantity(name, values, quantity, per_code, t_ns, detail=None):
    return LineSpec(
        name, device="gpu0", provenance="measured", t_ns=t_ns, codes={"value": np.array(values)}, detail=detail or {},
        conversion={"kind": "quantity", "column": "value", "quantity": quantity, "per_code": per_code},
    )  # fmt: skip


def test_settings_come_from_the_driver_and_clocks_and_products_from_attributes_that_say_them(tmp_path):
    t = np.arange(0, 900 * MS, 100 * MS)
    clocks = np.where(t < 200 * MS, 300, 1410)  # idle, then the training
    lines = [
        quantity("gpu0.sm_clock", clocks, "clock_hz", 1e6, t, {"name": "NVIDIA X1", "power_limit_mw": 300_000}),
        quantity("gpu0.memory_clock", 0 * clocks + 2600, "clock_hz", 1e6, t),
        quantity("gpu0.power_limit", 0 * clocks + 250_000, "power_limit_w", 1e-3, t),
    ]
    seen = run_rows(one_run(tmp_path / "a.h5", lines=lines))[0]
    assert (seen["device_name"], seen["power_cap_w"], seen["clock_hz"]) == ("NVIDIA X1", 250.0, None)
    assert seen["clock_observed_hz"] == pytest.approx(1.41e9, rel=0.2)
    said = run_rows(
        one_run(tmp_path / "b.h5", lines=lines, device_name="X2", power_cap_w=200, clock_mhz=1200, precision="fp16")
    )[0]
    assert (said["device_name"], said["power_cap_w"], said["clock_hz"]) == ("X2", 250.0, 1.2e9)
    assert (said["power_cap_asked_w"], said["power_cap_basis"]) == (200.0, "enforced")
    assert "phases say a cap of 200 W, the driver enforced 250 W" in said["note"]
    assert (said["clock_basis"], said["clock_observed_hz"]) == ("stated", seen["clock_observed_hz"])
    assert said["attribute_precision"] == "fp16"
    without = run_rows(one_run(tmp_path / "c.h5", lines=lines[:1]))[0]
    assert (without["power_cap_w"], without["power_cap_basis"]) == (300.0, "requested")  # as the source found it


@pytest.mark.parametrize(
    ("processes", "gpus"),
    [
        ([{"pid": 1}], 1),
        ([{"pid": 1, "devices": [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]}], 2),
        ([{"rank": i, "world_size": 2, "devices": [{"uuid": f"GPU-{i}"}]} for i in range(2)], 2),
        ([{"rank": i, "world_size": 2, "devices": [{"uuid": "GPU-a"}]} for i in range(2)], 1),
        ([{"rank": i, "world_size": 2} for i in range(2)], 2),
        ([{"rank": i, "world_size": 8, "devices": [{"uuid": f"GPU-{i}"}]} for i in range(4)], 8),
    ],
)
def test_gpus_are_counted_by_what_the_processes_say(run, processes, gpus):
    from dataclasses import replace

    assert gpus_of(replace(read_run(run), processes=tuple(processes))) == gpus


def test_two_models_under_one_name_in_a_run_are_refused(tmp_path):
    tr = training((64,), 5)
    kinds = [{"model": "m", "operations_per_sample": n} for n in (1e6, 2e6)]
    phases = [PhaseSpec("forward", (1 + i) * 100 * MS, (1 + i) * 100 * MS + 80 * MS, kinds[i]) for i in range(2)]
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", tr.power())], phases, end_ns=S)
    with pytest.raises(AnalysisError, match="model 'm'"):
        run_rows(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", float("nan")), ("batch_size", "lots"), ("batch_size", 0.5), ("batch_size", [64, 128]),
        ("gpus", -1), ("gpus", 1.5), ("gpus", True), ("power_cap_w", "high"), ("clock_mhz", float("inf")),
        ("dataset_size", -5), ("samples", 10**400), ("operations_per_sample", "some"),
    ],
)  # fmt: skip
def test_a_figure_that_is_no_number_is_dropped_with_a_note_and_costs_no_joule(tmp_path, name, value):
    tr = with_attributes(training((64,), 5), **{name: value})
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", tr.power())], tr.phases, end_ns=tr.end_ns)
    (told,) = read_run(path).dropped
    assert told.startswith(f"attribute {name} of phase 'training' is ")
    assert [m["text"] for m in read_run(path).messages if m["level"] == "warning"] == [told]
    plain = with_attributes(training((64,), 5), **{name: None})
    right = make_run(tmp_path / "right.h5", [LineSpec("gpu0.a", tr.power())], plain.phases, end_ns=tr.end_ns)
    assert read_run(right).dropped == ()
    shown = ("kind", "phase", "batch_size", "gpus", "power_cap_w", "j_per_batch", "energy_j", "samples_per_s")
    dropped, without = ([[row[column] for column in shown] for row in run_rows(p)] for p in (path, right))
    assert dropped == without
    assert dropped


@pytest.mark.parametrize(("text", "value"), [("64", 64), (" 64 ", 64), ("6.4e1", 64.0)])
def test_a_text_that_reads_as_a_number_is_that_number(tmp_path, text, value):
    tr = with_attributes(training((64,), 5), batch_size=text, gpus="2")
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", tr.power())], tr.phases, end_ns=tr.end_ns)
    assert read_run(path).dropped == ()
    (total,) = (row for row in run_rows(path) if row["kind"] == "total")
    assert (total["batch_size"], total["gpus"]) == (value, 2)


def test_phases_inside_do_not_inherit_a_figure_that_theirs_is_not(tmp_path):
    """Samples/s of a batch of unknown size are not those of the batches around it."""
    phases = [
        PhaseSpec("iteration", 0, 200 * MS, {"batch_size": 64}),
        PhaseSpec("forward", 50 * MS, 150 * MS, {"batch_size": "auto"}, parent=0),
    ]
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", training((64,), 5).power())], phases, end_ns=S)
    iteration, forward = read_run(path).phases.classes
    assert iteration.attributes == {"batch_size": 64}
    assert forward.attributes == {}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["batch_size", "gpus", "operations_per_sample", "lr", "model"]), ANYTHING, ANYTHING)
def test_whatever_an_attribute_is_there_are_joules(tmp_path, name, outer, inner):
    phases = [
        PhaseSpec("iteration", 0, 200 * MS, {name: outer}),
        PhaseSpec("forward", 50 * MS, 150 * MS, {name: inner}, parent=0),
    ]
    path = tmp_path / "r.h5"
    path.unlink(missing_ok=True)
    make_run(path, [LineSpec("gpu0.a", training((64,), 5).power())], phases, end_ns=S)
    (run,) = (row for row in run_rows(path) if row["kind"] == "run")
    assert run["energy_j"] > 0
