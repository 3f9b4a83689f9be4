"""What a watched model and a GPU's driver tell, as tables and `joules info` have it."""

import pytest
from make_run import MS, LineSpec, PhaseSpec, make_run

from powerd_analytics.cli.info import describe_run, run_document
from powerd_analytics.frame.figures import of_kind, rows_of, run_frame
from powerd_analytics.run_tables.layers import described_layers
from powerd_analytics.runs.run import read_run
from powerd_client.training.layer_operations import WATCHED_MODEL

EVENT = {"model": "Net-1k", "operations_per_sample": 1e6, "layers": [["stem", "Conv2d", [4, 30, 30]]]}


def a_run(tmp_path, attributes, events=(EVENT,), detail=None):
    phases = []
    for k in range(9):
        at = k * 100 * MS
        phases.append(PhaseSpec("iteration", at, at + 90 * MS, attributes))
        outer = len(phases) - 1
        phases.append(PhaseSpec("forward", at, at + 30 * MS, attributes, parent=outer))
        phases.append(PhaseSpec("backward", at + 30 * MS, at + 80 * MS, attributes, parent=outer))
    told = [(1, WATCHED_MODEL, values, 0) for values in events]
    line = LineSpec("gpu0.nvml", lambda t: 100.0 + 0 * t, detail=detail or {})
    return make_run(tmp_path / "r.h5", [line], phases, events=told)


def operations(path):
    return {r["operations_per_sample"] for r in rows_of(of_kind(run_frame(path), "total"))}


@pytest.mark.parametrize("model", ["Net-1k", "as the user calls it"])
def test_tables_have_the_operations_that_the_first_pass_showed(tmp_path, model):
    path = a_run(tmp_path, {"model": model, "batch_size": 8})
    assert operations(path) == {1e6}
    (total,) = rows_of(of_kind(run_frame(path), "total"))
    joules = 100 * 0.08  # of forward and backward
    assert total["gflops_per_w"] == pytest.approx(2 * 1e6 * 8 / joules / 1e9, rel=0.05)


def test_what_the_phases_state_stands(tmp_path):
    stated = {"model": "Net-1k", "batch_size": 8, "operations_per_sample": 5.0}
    assert operations(a_run(tmp_path, stated)) == {5.0}


@pytest.mark.parametrize(
    "other", [{"model": "Net-1k", "operations_per_sample": 2e6}, {"model": "Other", **EVENT} | {"model": "Other"}]
)
def test_two_numbers_or_two_models_are_not_guessed(tmp_path, other):
    expected = {None} if other["model"] == "Net-1k" else {1e6}
    assert operations(a_run(tmp_path, {"model": "Net-1k", "batch_size": 8}, (EVENT, other))) == expected


def test_layers_have_their_class_and_shape(tmp_path):
    run = read_run(a_run(tmp_path, {"model": "Net-1k", "batch_size": 8}))
    assert described_layers(run.events) == {"stem": ("Conv2d", "4x30x30")}


DRIVER = {
    "name": "A GPU", "driver_version": "580.1", "power_limit_mw": 200000, "default_power_limit_mw": 260000,
    "min_power_limit_mw": 100000, "max_power_limit_mw": 300000,
}  # fmt: skip


def test_the_driver_and_its_limits_are_in_info_and_in_the_frame(tmp_path):
    path = a_run(tmp_path, {"batch_size": 8}, (), DRIVER)
    text = "\n".join(describe_run(run_document(read_run(path))))
    assert "  A GPU, driver 580.1, power limit 200 W (default 260 W, 100 to 300 W can be set)" in text
    for r in rows_of(of_kind(run_frame(path), "total", "phase", "run")):
        names = ("driver_version", "default_power_limit_w", "least_power_limit_w", "greatest_power_limit_w")
        assert [r[name] for name in names] == ["580.1", 260.0, 100.0, 300.0]


def test_a_device_that_no_driver_described_has_no_limits(tmp_path):
    path = a_run(tmp_path, {"batch_size": 8}, ())
    assert "can be set" not in "\n".join(describe_run(run_document(read_run(path))))
    assert {r["default_power_limit_w"] for r in rows_of(run_frame(path))} == {None}
