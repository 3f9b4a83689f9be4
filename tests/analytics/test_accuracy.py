"""Accuracy beside energy: results in columns, seconds and joules up to a target, weighted averages, equal seeds."""

import json

import numpy as np
import pytest
from command import joules, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from make_campaign import with_attributes
from make_run import MS, LineSpec, PhaseSpec, S, constant, make_run, training
from published_tables import rows

from powerd_analytics.energy.metrics import weighted_mean
from powerd_analytics.frame.figures import of_kind, rows_of, run_frame
from powerd_analytics.runs.accuracy import ResultTarget, Series, is_lower_better
from powerd_core.errors import AnalysisError

GAIN = {"u_gain": 0.02, "u_offset_w": 0.0, "step_w": 0.0, "window_ns": 0, "origin": "test"}
MIDDLE_NS = 1_234_567_891


def run_with(path, results, scale=1.0, batches=(64,), seed=None, command=None, processes=({"pid": 1},), gpus=1, **more):
    """A training that says results at times; its watts are exact, and its sensor has a gain that is off by 2 %."""
    tr = with_attributes(training(batches, 40), **more)
    if seed is not None:
        with_attributes(tr, seed=seed)
    if gpus > 1:
        with_attributes(tr, gpus=gpus)
    events = [(t_ns, "result", values, process) for t_ns, values, process in results]
    lines = [LineSpec(f"gpu{i}.a", tr.power(scale), f"gpu{i}", accuracy=GAIN) for i in range(gpus)]
    more = {} if command is None else {"command": json.dumps(command)}
    make_run(
        path,
        lines,
        tr.phases,
        end_ns=tr.end_ns + 500 * MS,
        events=events,
        run_id=path.stem,
        processes=processes,
        **more,
    )
    return tr


def said(*values, process=0, begin_ns=900 * MS, step_ns=334_567_891):
    return [(begin_ns + i * step_ns, v, process) for i, v in enumerate(values)]


def total_of(path):
    (total,) = rows_of(of_kind(run_frame(path), "total"))
    return total


# -- columns


def test_a_run_has_its_last_and_its_best_results(tmp_path):
    run_with(tmp_path / "a.h5", said({"top1": 0.5, "loss": 1.0, "epoch": 0}, {"top1": 0.9, "loss": 0.3, "epoch": 1},
                                     {"top1": 0.8, "loss": 0.4, "note": "x", "ok": True, "epoch": 2}))  # fmt: skip
    frame = run_frame(tmp_path / "a.h5")
    for r in rows_of(of_kind(frame, "total", "run")):
        assert (r["result_top1"], r["result_top1_best"]) == (0.8, 0.9)
        assert (r["result_loss"], r["result_loss_best"]) == (0.4, 0.3)
    assert of_kind(frame, "phase")["result_top1"].isna().all()
    assert not {"result_note", "result_ok", "result_epoch"} & set(frame.columns)


def test_of_two_trainings_in_a_run_each_has_its_own_results(tmp_path):
    tr = run_with(tmp_path / "a.h5", [], batches=(64, 128))
    ends = [p.end_ns for p in tr.phases if p.parent < 0]
    results = [(ends[0] + MS, {"top1": 0.7}, 0), (ends[1] + MS, {"top1": 0.8}, 0)]
    run_with(tmp_path / "b.h5", results, batches=(64, 128))
    totals = rows_of(of_kind(run_frame(tmp_path / "b.h5"), "total"))
    assert [(r["batch_size"], r["result_top1"], r["result_top1_best"]) for r in totals] == [
        (64, 0.7, 0.7), (128, 0.8, 0.8),
    ]  # fmt: skip


def test_the_training_has_the_result_of_an_evaluation_behind_it(tmp_path):
    phases = [PhaseSpec("iteration", 0, S, {"batch_size": 8}), PhaseSpec("test", S, 2 * S, {"batch_size": 100})]
    make_run(tmp_path / "a.h5", [LineSpec("gpu0.a", constant)], phases, end_ns=3 * S,
             events=[(2 * S + MS, "result", {"top1": 0.6}, 0)])  # fmt: skip
    assert [r["result_top1"] for r in rows_of(of_kind(run_frame(tmp_path / "a.h5"), "total"))] == [0.6, 0.6]


def test_of_several_ranks_the_first_one_that_says_results_counts(tmp_path):
    both = [*said({"top1": 0.1}, process=0), *said({"top1": 0.2}, process=1)]
    run_with(tmp_path / "a.h5", both, processes=({"pid": 1, "rank": 1}, {"pid": 2, "rank": 0}))
    assert total_of(tmp_path / "a.h5")["result_top1"] == 0.2


@pytest.mark.parametrize("name", ["loss", "val_loss", "Test/Loss", "wer", "eval-rmse", "perplexity", "top1_error"])
def test_less_of_a_loss_is_better(name):
    assert is_lower_better(name)


@pytest.mark.parametrize("name", ["top1", "accuracy", "f1", "bleu", "power", "answer", "mseq"])
def test_more_of_an_accuracy_is_better(name):
    assert not is_lower_better(name)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(-1e6, 1e6), st.sampled_from(["top1", "loss"]))
def test_a_target_is_reached_at_the_first_value_as_good(values, wanted, name):
    t_ns = ResultTarget(name, wanted).reached_ns(Series(name, np.arange(len(values)) * 10, np.array(values)))
    is_met = [v <= wanted if name == "loss" else v >= wanted for v in values]
    assert t_ns == (10 * is_met.index(True) if any(is_met) else None)


# -- seconds and joules up to a target


@settings(max_examples=8, deadline=None)
@given(at_ns=st.integers(400 * MS, 2700 * MS))
def test_joules_to_a_target_are_those_of_the_stretch_up_to_the_event(tmp_path_factory, at_ns):
    path = tmp_path_factory.mktemp("to") / "a.h5"
    tr = run_with(path, [(at_ns, {"top1": 0.98}, 0), (at_ns + 1, {"top1": 0.99}, 0)])
    from powerd_analytics.frame.accuracy_target import target_frame

    (r,) = rows_of(of_kind(target_frame(path, ResultTarget("top1", 0.98)), "total"))
    begin_ns = tr.phases[0].begin_ns
    assert r["time_s"] == pytest.approx((at_ns - begin_ns) * 1e-9, rel=1e-9)
    truth_j = tr.joules(begin_ns, at_ns)
    assert abs(r["energy_j"] - truth_j) < r["u95_j"]
    # The gain of 2 % is a limit: nine tenths of twice its standard uncertainty at least.
    assert 0.03 * truth_j < r["u95_j"] < 0.06 * truth_j
    assert (r["edp_js"], r["iterations"], r["gflops_per_w"]) == (pytest.approx(r["energy_j"] * r["time_s"]), None, None)


@pytest.mark.quick("joules to a target, the table")
def test_the_table_to_a_target(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    for i, scale in enumerate((0.99, 1.0, 1.02)):
        run_with(tmp_path / f"a{i}.h5", said({"top1": 0.5}, {"top1": 0.97 + i / 1000}), scale, batch="small", seed=i)
    run_with(tmp_path / "b.h5", said({"top1": 0.4}, {"top1": 0.62}), batch="large")
    code, out, err = joules(capsys, "tables", tmp_path, "--to", "top1=0.97")
    assert (code, err) == (0, "")
    assert "joules to top1 >= 0.97" in out
    assert "never reaches top1 >= 0.97: its best is 0.62" in out
    assert max(len(line) for line in out.splitlines() if " all rows:" not in line) <= 80
    reached, never = sorted(rows(joules(capsys, "tables", tmp_path, "--to", "top1=0.97", "--format", "csv")[1]),
                            key=lambda r: r["attribute_batch"], reverse=True)  # fmt: skip
    assert (never["energy_j"], never["time_s"], never["u95_j"]) == ("", "", "")
    assert (reached["runs"], float(reached["result_top1"])) == ("3", pytest.approx(0.971))
    assert float(reached["u95_result_top1"]) == pytest.approx(4.3027 * 0.001 / 3**0.5, rel=1e-3)
    assert float(reached["time_s"]) == pytest.approx(1.034567891)
    # Three runs scatter by 1.5 %, which their spread tells with two degrees of freedom, and share a gain of 2 %.
    assert float(reached["degrees_of_freedom"]) == 2
    assert float(reached["u_statistical_j"]) == pytest.approx(
        np.std((0.99, 1.0, 1.02), ddof=1) / 3**0.5 * float(reached["energy_j"]) / np.mean((0.99, 1, 1.02)), rel=0.01
    )
    assert float(reached["u95_j"]) > 0.03 * float(reached["energy_j"])


def test_a_run_that_never_reaches_the_target_is_told_beside_those_that_do(tmp_path, capsys):
    for i, top1 in enumerate((0.98, 0.98, 0.5)):
        run_with(tmp_path / f"{i}.h5", said({"top1": top1}))
    out = " ".join(joules(capsys, "tables", tmp_path, "--to", "top1=0.9")[1].split())
    assert "mean of 2 of 3 runs, the others have no joules: never reaches top1 >= 0.9: its best is 0.5" in out


def test_gpus_of_a_training_are_added_up_to_a_target(tmp_path, capsys):
    run_with(tmp_path / "a.h5", said({"top1": 1}), gpus=2)
    run_with(tmp_path / "b.h5", said({"top1": 1}))
    frames = {
        p: rows(joules(capsys, "tables", tmp_path / p, "--to", "top1=1", "--format", "csv")[1])
        for p in ("a.h5", "b.h5")
    }
    (both,), (one,) = frames["a.h5"], frames["b.h5"]
    assert both["device"] == "gpu0+gpu1"
    assert float(both["energy_j"]) == pytest.approx(2 * float(one["energy_j"]))


def test_a_target_that_no_run_has_or_that_is_none_is_refused(tmp_path, capsys):
    path = tmp_path / "a.h5"
    run_with(path, said({"top1": 0.5, "loss": 1}))
    assert "no run has such a result: there is top1, loss" in refused(capsys, "tables", path, "--to", "top5=0.9")
    assert "is not NAME=VALUE" in refused(capsys, "tables", path, "--to", "top1")
    assert "leave the others out" in refused(capsys, "tables", path, "--to", "top1=0.5", "--table", "time")


def test_joules_to_a_target_are_of_one_setting(tmp_path, capsys):
    from make_run import auxiliary

    phases = [PhaseSpec("iteration", i * 500 * MS, (i + 1) * 500 * MS, {"batch_size": 8}) for i in range(20)]
    cap = auxiliary("gpu0.power_limit", "power_limit_w", lambda t: np.where(t < 5 * S, 200.0, 300.0), device="gpu0")
    make_run(tmp_path / "a.h5", [LineSpec("gpu0.a", constant), cap], phases, end_ns=10 * S,
             events=[(9 * S, "result", {"top1": 0.6}, 0)])  # fmt: skip
    out = joules(capsys, "tables", tmp_path / "a.h5", "--to", "top1=0.5")[1]
    assert "a setting changed during the training" in out


# -- weighted averages

SCENARIOS = [
    ("ResNet", 64, 89.0, 76.4, 72.2, 43.5, 47.0, 45.0, 76.0),
    ("ResNet", 128, 71.9, 62.6, 62.3, 33.8, 37.4, 36.3, 62.8),
    ("ResNet", 256, 63.5, 52.7, 56.1, 32.8, 35.5, 38.1, 55.4),
    ("2D-CNN", 64, 95.7, 87.5, 87.1, 45.6, 47.2, 47.4, 86.0),
    ("2D-CNN", 128, 95.5, 84.9, 83.9, 51.2, 41.5, 51.5, 84.4),
    ("2D-CNN", 256, 95.3, 79.2, 81.2, 48.6, 39.5, 51.7, 81.6),
]
"""Castro et al., table 12: accuracy in six scenarios of which three have 155 subjects and three 16, and the average."""
NAMES = ("N", "B", "S", "TN", "TB", "TS")


@pytest.mark.parametrize("row", SCENARIOS, ids=lambda r: f"{r[0]} {r[1]}")
def test_the_average_of_a_paper_is_weighted_by_its_subjects(tmp_path, capsys, row):
    run_with(tmp_path / "a.h5", said(dict(zip(NAMES, row[2:8], strict=True))))
    weights = "N=155,B=155,S=155,TN=16,TB=16,TS=16"
    out = joules(capsys, "tables", tmp_path / "a.h5", "--table", "accuracy", "--weights", weights, "--format", "csv")[1]
    assert round(float(rows(out)[0]["result_weighted"]), 1) == pytest.approx(row[8], abs=0.051)


def test_weights_are_of_results(tmp_path, capsys):
    run_with(tmp_path / "a.h5", said({"N": 1}))
    assert "no run has such a result; there is N" in refused(capsys, "tables", tmp_path / "a.h5", "--weights", "X=1")
    assert "is not NAME=WEIGHT" in refused(capsys, "tables", tmp_path / "a.h5", "--weights", "N=0")
    with pytest.raises(AnalysisError, match="each value needs its own"):
        weighted_mean([1.0], [1.0, 2.0])


# -- equal seeds


def seeded(folder, cases):
    for i, (cap, seed, loss) in enumerate(cases):
        run_with(folder / f"{i}.h5", said({"loss": loss}), power_cap_w=cap, seed=seed)


def test_equal_seeds_with_other_losses_are_told(tmp_path, capsys):
    seeded(tmp_path, [(200, 1, 0.25), (250, 1, 0.25), (300, 1, 0.2500001), (200, 2, 0.3), (300, 2, 0.3)])
    out = joules(capsys, "tables", tmp_path, "--table", "accuracy")[1]
    note = " ".join(out.split()).partition("seed 1")[2]
    assert "gave different loss (model AlexNet batch_size 64): 0.25 in 0 at 200 W, 1 at 250 W;" in note
    assert note.endswith("; 0.2500001 in 2 at 300 W")
    assert "seed 2" not in out


def test_equal_seeds_with_equal_losses_are_told_too(tmp_path, capsys):
    seeded(tmp_path, [(200, 1, 0.25), (300, 1, 0.25), (200, 2, 0.3), (300, 2, 0.3), (300, 3, 0.7)])
    out = joules(capsys, "tables", tmp_path, "--table", "accuracy")[1]
    assert "equal seeds gave equal results at every cap and clock (4 runs, 2 seeds)" in out


def test_a_seed_of_the_command_counts_and_a_cap_of_the_command_does_not_part(tmp_path, capsys):
    for i, cap in enumerate((200, 300)):
        run_with(
            tmp_path / f"{i}.h5", said({"loss": i}), command=["python", "t.py", "--seed=7", "--power-cap", str(cap)]
        )
    run_with(tmp_path / "2.h5", said({"loss": 5}), command=["python", "t.py", "--seed", "7", "--lr", "2"])
    assert total_of(tmp_path / "2.h5")["seed"] == "7"
    out = joules(capsys, "tables", tmp_path, "--table", "accuracy")[1]
    assert "seed 7 gave different loss (model AlexNet batch_size 64): 0 in 0; 1 in 1" in out
