"""Repeats of one cell: which rows are some, and how sure their mean is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_campaign import one_run

from powerd_analytics.frame.figure import Figure, figure_of
from powerd_analytics.frame.figures import concat_frames, frame_from, of_kind, rows_of, run_frame, worked_out
from powerd_analytics.frame.means import mean_of_repeats
from powerd_analytics.frame.repeats import average_repeats
from powerd_analytics.output.export import Table
from powerd_analytics.views.layouts import TableChoice, chosen_tables

COVERED = (0.93, 0.97)


def row(i, **given):
    """One of the phases or totals of a cell."""
    known = {
        "kind": "phase", "run": f"r{i}", "path": f"r{i}.h5", "run_id": f"{i}", "model": "m", "batch_size": 64,
        "gpus": 1, "ranks": 1, "device": "gpu0", "provenance": "measured", "phase": "forward",
        "phase_path": "forward", "timing": "host", "iterations": 10, "s_per_batch": 0.1, "j_per_batch": 10.0,
        "u_statistical_j": 0.0, "u_systematic_j": 0.0, "rectangle_j": 0.0, "is_lower_bound": False, "runs": 1,
    }  # fmt: skip
    return known | given


def total(i, n, joules_of_a_batch=10.0, s_of_a_batch=0.1, **given):
    return row(i, kind="total", phase=None, phase_path=None, iterations=n, energy_j=n * joules_of_a_batch,
               time_s=n * s_of_a_batch, **given)  # fmt: skip


def frame(*rows):
    return worked_out(frame_from(rows))


@pytest.mark.parametrize("runs", [2, 3, 5, 10])
@pytest.mark.parametrize("systematic", [0.0, 1.0, 3.0])
def test_the_interval_of_a_mean_holds_the_truth_as_often_as_it_says(runs, systematic):
    """Runs that scatter by 1 % about 100 J, under a gain that all share and that is uniform within its limits."""
    rng, inside, tries = np.random.default_rng(runs), 0, 2000
    for _ in range(tries):
        off = rng.uniform(-1, 1) * np.sqrt(3) * systematic
        values = 100 + off + rng.normal(0, 1, runs)
        mean = mean_of_repeats([Figure(v, 0.1, systematic, systematic) for v in values])
        inside += abs(mean.value - 100) <= mean.u95
    assert COVERED[0] - 0.01 * (runs == 2) <= inside / tries <= COVERED[1] + 0.015 * (runs == 2)


@given(st.integers(2, 10), st.floats(0.0, 5.0), st.floats(0.0, 5.0), st.floats(0.0, 1.0))
def test_equal_runs_are_never_less_sure_than_one(runs, u_statistical, u_systematic, share):
    one = Figure(100.0, u_statistical, u_systematic, share * u_systematic)
    assert mean_of_repeats([one] * runs).u95 <= one.u95 * (1 + 1e-9)


def test_two_equal_runs_keep_the_shape_of_their_limits():
    rows = [row(i, u_systematic_j=10.0, rectangle_j=10.0) for i in range(2)]
    (one,), (mean,) = rows_of(frame(rows[0])), rows_of(average_repeats(frame(*rows)))
    assert one["u95_j"] == pytest.approx(16.45, abs=0.01)
    assert mean["u95_j"] == pytest.approx(one["u95_j"])


def test_the_mean_of_three_runs_has_two_degrees_of_freedom():
    (mean,) = rows_of(average_repeats(frame(*(row(i, j_per_batch=j) for i, j in enumerate((9.0, 10.0, 11.0))))))
    assert (mean["runs"], mean["degrees_of_freedom"], mean["j_per_batch"]) == (3, 2, 10.0)
    assert mean["u95_j"] == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert mean["power_w"] == pytest.approx(100.0)


def test_seconds_and_joules_have_degrees_of_freedom_of_their_own():
    """Joules agree to the last digit, and are as sure as each run says; seconds scatter."""
    rows = (row(i, s_per_batch=s, u_statistical_j=0.1) for i, s in enumerate((0.1, 0.11, 0.12)))
    (mean,) = rows_of(average_repeats(frame(*rows)))
    assert (mean["degrees_of_freedom"], mean["degrees_of_freedom_s"]) == (None, 2)
    assert figure_of(mean, "s_per_batch").u95 == pytest.approx(4.303 * 0.01 / 3**0.5, rel=1e-3)
    assert figure_of(mean, "j_per_batch").u95 == pytest.approx(1.96 * 0.1 / 3**0.5, rel=1e-3)
    (mean,) = rows_of(average_repeats(frame(*(row(i, j_per_batch=j) for i, j in enumerate((9.0, 10.0, 11.0))))))
    assert (mean["degrees_of_freedom"], mean["degrees_of_freedom_s"]) == (2, None)


@pytest.mark.parametrize("name", ["seed", "random_seed", "run_id", "output_dir", "out", "log_dir", "run_name"])
def test_what_names_a_run_parts_no_cells(name):
    rows = [row(i, **{f"attribute_{name}": f"{i}"}) for i in range(5)]
    assert average_repeats(frame(*rows))["runs"].tolist() == [5]


@pytest.mark.parametrize("name", ["lr", "precision", "width", "routing"])
def test_any_other_attribute_is_a_factor_unless_it_is_ignored(name):
    rows = frame(*(row(i, **{f"attribute_{name}": i % 2}) for i in range(4)))
    assert average_repeats(rows)["runs"].tolist() == [2, 2]
    assert average_repeats(rows, ignore=[f"attribute_{name}"])["runs"].tolist() == [4]


def test_twenty_runs_of_ten_cells_are_ten_rows(tmp_path):
    frames = []
    for cell in range(10):
        for seed in range(2):
            path = one_run(tmp_path / f"{cell}-{seed}.h5", iterations=2, lr=cell, seed=seed) if cell < 1 else None
            base = frames[0] if path is None else run_frame(path)
            frames.append(base.assign(attribute_lr=float(cell), attribute_seed=float(seed), path=f"{cell}-{seed}"))
    found = of_kind(average_repeats(concat_frames(frames)), "total")
    assert found["runs"].tolist() == [2] * 10


@pytest.mark.parametrize("name", ["clock", "memory_clock"])
def test_a_clock_parts_cells_only_where_somebody_set_it(name):
    seen = [row(i, j_per_batch=10.0 + i, **{f"{name}_observed_hz": hz}) for i, hz in enumerate((3e8, 1.5e9, 9e8))]
    (one,) = rows_of(average_repeats(frame(*seen)))
    assert (one["runs"], one["degrees_of_freedom"], one[f"{name}_observed_hz"]) == (3, 2, 9e8)
    chosen = frame(*(row(i, **{f"{name}_hz": hz}) for i, hz in enumerate((1.40e9, 1.41e9, 1.40e9, None))))
    assert average_repeats(chosen)["runs"].tolist() == [2, 1, 1]
    assert average_repeats(chosen, ignore=[f"{name}_hz"])["runs"].tolist() == [4]


def test_runs_without_joules_are_left_out_of_the_mean_and_told():
    (mean,) = rows_of(average_repeats(frame(row(0), row(1, j_per_batch=None), row(2, j_per_batch=12.0))))
    assert (mean["j_per_batch"], mean["runs"]) == (11.0, 2)
    assert "mean of 2 of 3 runs" in mean["note"]


# -- unequal work


def test_repeats_of_unequal_work_are_averaged_by_the_batch():
    (mean,) = rows_of(average_repeats(frame(total(0, 39), total(1, 40, joules_of_a_batch=12.0))))
    assert (mean["iterations"], mean["energy_j"], mean["j_per_batch"], mean["j_per_sample"]) == (1, 11.0, 11.0, 11 / 64)
    assert mean["edp_js"] == pytest.approx(11.0 * 0.1)


def table(name, *rows) -> Table:
    (found,) = chosen_tables(frame(*rows), TableChoice(names=(name,)))
    return found


def test_totals_of_unequal_work_never_stand_side_by_side():
    """The slower cap made fewer iterations in the same time: by its whole it would look the best."""
    rows = total(0, 40, 10.0, power_cap_w=250.0), total(1, 39, 10.2, power_cap_w=200.0)
    unequal, equal = table("totals", *rows), table("totals", rows[0], total(1, 40, 10.2, power_cap_w=200.0))
    assert not {"energy_j", "time_s", "edp_js"} & set(unequal.names)
    assert {"j_per_sample", "s_per_sample", "edp_per_sample_js"} <= set(unequal.names)
    assert any("unequal work" in note for note in unequal.notes)
    assert {"energy_j", "time_s", "edp_js"} <= set(equal.names)
