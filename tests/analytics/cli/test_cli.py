import csv
import io
import json
import re

import pytest
from command import joules
from make_run import LineSpec, make_run, training

from powerd_analytics.frame.figures import COLUMNS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    tr = training((64, 128), 4)
    lines = [
        LineSpec("gpu0.a", tr.power()),
        LineSpec("cpu0.m", tr.power(0.3), "cpu0", "modelled", period_ns=20_000_000),
    ]
    return make_run(tmp_path_factory.mktemp("cli") / "run.h5", lines, tr.phases, end_ns=tr.end_ns)


def test_the_columns_are_these_and_stay(run, capsys):
    code, out, _ = joules(capsys, "tables", run, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert tuple(rows[0]) == tuple(COLUMNS)
    assert tuple(COLUMNS) == (
        "kind", "run", "path", "run_id", "created_utc", "host", "processor", "cores", "memory_gib",
        "git_commit", "torch_version", "program", "campaign", "cell", "block",
        "seed", "model", "batch_size", "gpus", "ranks",
        "rank", "sharing", "ranks_counted", "job", "job_id", "job_name", "job_user", "job_account", "job_partition",
        "job_step", "world_size", "rank_numbers", "machines", "job_machines",
        "begin_unix_s", "device", "device_ids", "device_name", "driver_version", "cuda_version",
        "default_power_limit_w",
        "least_power_limit_w", "greatest_power_limit_w", "provenance", "power_cap_w", "power_cap_basis",
        "power_cap_asked_w", "power_cap_requested_w", "power_cap_in_run", "clock_hz", "clock_basis",
        "clock_asked_hz", "clock_requested_hz", "clock_observed_hz", "memory_clock_hz", "memory_clock_basis",
        "memory_clock_asked_hz", "memory_clock_requested_hz", "memory_clock_observed_hz",
        "ambient_c", "verdict", "verdict_note", "shared", "is_held", "phase", "phase_path", "is_iteration",
        "timing", "method", "iterations", "n", "s_per_batch", "u_s_per_batch", "s_per_batch_min",
        "s_per_batch_max", "j_per_batch", "batches_per_optimizer_step",
        "j_per_optimizer_step", "u95_j", "u_statistical_j", "u_systematic_j", "rectangle_j",
        "degrees_of_freedom", "degrees_of_freedom_s",
        "sd_s", "sd_j", "power_w", "samples_per_batch", "samples_per_s", "time_s", "energy_j",
        "edp_js", "ed2p_js2",
        "j_per_sample", "samples_per_j", "tokens_per_sample", "tokens_per_batch", "tokens_per_s", "j_per_token",
        "tokens_per_j",
        "s_per_sample", "edp_per_sample_js", "eds", "operations_per_sample",
        "operations_executed_per_sample", "gflops_per_w", "u_statistical_gflops_per_w", "u_systematic_gflops_per_w",
        "gflops_per_w_executed", "gflops_convention", "gflops_basis", "phases_j", "rest_j", "rest_u95_j", "missing_s",
        "off_by_j",
        "is_lower_bound", "note", "runs",
    )  # fmt: skip
    assert {r["kind"] for r in rows} == {"phase", "total", "run"}
    unresolved = next(r for r in rows if r["phase"] == "update")
    assert unresolved["j_per_batch"] == ""
    assert unresolved["note"].startswith("not resolvable")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("tables", "absent.h5"), "no run file"),
        (("tables", "{run}", "--device", "gpu1"), "did you mean 'gpu0'"),
        (("info", "{run}", "--device", "quite-another"), "this run has 'cpu0', 'gpu0'"),
        (("tables", "{run}", "--frmat", "csv"), "--format"),
        (("tables", "{run}", "--format", "xls"), "xls"),
        (("tabels", "{run}"), "tables"),
        (("tables",), "run"),
        (("record",), "nothing to record"),
        (("tables", "{run}", "-o", "no/such/dir/t.csv"), "no directory"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, capsys, arguments, text):
    code, out, err = joules(capsys, *(a.format(run=run) for a in arguments))
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert text.lower() in err.lower()


def test_a_counter_among_the_attributes_of_phases_is_told_by_name(run, capsys, monkeypatch):
    monkeypatch.setattr("powerd_client.journals.marks.MANY_KINDS", 2)
    code, out, err = joules(capsys, "tables", run, "--format", "json")
    assert code == 0
    assert json.loads(out)
    assert re.search(r"joules: .*run.h5: phase '\w+' has 2 values of its attribute 'batch_size': ", err)
    assert err.count("values of its attribute") == 1
