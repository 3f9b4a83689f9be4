"""A run read in slices gives what it gives in memory."""

import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, make_run, training

from powerd_analytics.energy.devices import line_energies, load_parts, part_phase_energies
from powerd_analytics.run_tables.table import phase_table, table_of
from powerd_analytics.runs.run import read_run
from powerd_analytics.runs.signals import load_signal, load_sliced

SIZES = (300, 1000, 4000)


def trained(tmp_path, **line):
    t = training(iterations=60, batches=(64, 128))
    rng = np.random.default_rng(3)

    def power(at):
        return np.maximum(t.power()(at) + rng.normal(0, 3, len(at)), 0)

    spec = LineSpec("gpu0.a", power, **line)
    return read_run(make_run(tmp_path / "r.h5", [spec], t.phases, end_ns=t.end_ns, bound_ns=20_000.0))


def both(run, size):
    (whole,) = load_parts(run)
    (sliced,) = load_parts(run, in_memory=0, slice_size=size)
    return whole, sliced


def test_the_table_is_the_same(tmp_path):
    run = trained(tmp_path)
    parts = both(run, 1000)
    whole_j, sliced_j = (line_energies(part.signals, run.begin_ns, run.end_ns) for part in parts)
    assert sliced_j == pytest.approx(whole_j, rel=1e-9)
    a, b = (table_of(run, [part]) for part in parts)
    for x, y in zip(a.phases, b.phases, strict=True):
        assert (x.phase, x.iterations, x.note) == (y.phase, y.iterations, y.note)
        if x.j_per_batch is not None:
            assert y.j_per_batch == pytest.approx(x.j_per_batch, abs=x.u95_j)
    for x, y in zip(a.totals, b.totals, strict=True):
        assert y.energy_j == pytest.approx(x.energy_j, abs=x.u95_j)
    assert b.runs[0].energy_j == pytest.approx(a.runs[0].energy_j, abs=0.5 * a.runs[0].u95_j)
    assert b.runs[0].phases_j + b.runs[0].rest_j == pytest.approx(b.runs[0].energy_j, rel=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_holes_bad_readings_and_time_that_folds_back(tmp_path, size):
    rng = np.random.default_rng(size)
    t = np.arange(0, 12000 * MS, 2 * MS, dtype=np.int64)
    t[2000:2100] -= 300 * MS
    flags = (rng.random(len(t)) < 0.01).astype(np.uint16) * 8
    flags[3000:4500] = 32
    flags[5000:5003] = 2
    codes = {"power_mw": rng.integers(50_000, 300_000, len(t))}
    begin = np.arange(100, 11000, 170) * MS
    phases = [PhaseSpec("all", 50 * MS, 11900 * MS)]
    phases += [PhaseSpec("a", int(b), int(b) + 165 * MS, {}, 0) for b in begin]
    line = LineSpec("gpu0.a", t_ns=t, codes=codes, flags=flags)
    run = read_run(make_run(tmp_path / "r.h5", [line], phases, end_ns=12_500 * MS))
    whole, sliced = both(run, size)
    a, b = part_phase_energies(run, whole), part_phase_energies(run, sliced)
    np.testing.assert_allclose(b.missing_s, a.missing_s, atol=1e-9)
    np.testing.assert_allclose(b.off_by_j, a.off_by_j, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(a.resolvable, b.resolvable)
    one, many = whole.signals[0], sliced.signals[0]
    assert (many.bad, many.spacing_ns, many.shown_w()) == (one.bad, one.spacing_ns, one.shown_w())
    np.testing.assert_array_equal(many.clipped_ns, one.clipped_ns)


@pytest.mark.parametrize("size", SIZES)
def test_a_counter_wraps_and_is_set_back_across_slices(tmp_path, size):
    rng = np.random.default_rng(size)
    t = np.arange(0, 10_000 * MS, 2 * MS, dtype=np.int64)
    codes = np.cumsum(rng.integers(0, 900, len(t))) % 2**16
    conversion = {"kind": "counter", "column": "e", "j_per_code": 0.001, "background_w": 3.0, "bits": 16}
    line = LineSpec("gpu0.a", t_ns=t, conversion=conversion, codes={"e": codes})
    begin = np.arange(100, 9000, 95) * MS
    phases = [PhaseSpec("a", int(b), int(b) + 90 * MS) for b in begin]
    run = read_run(make_run(tmp_path / "r.h5", [line], phases, end_ns=10_000 * MS))
    whole, sliced = both(run, size)
    a, b = part_phase_energies(run, whole), part_phase_energies(run, sliced)
    far = np.abs(a.energy_j - b.energy_j) / np.hypot(a.u95_j, b.u95_j)
    assert np.nanmax(far) < 1


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_hardly_any_readings(tmp_path, count):
    t = np.arange(count, dtype=np.int64) * 2 * MS
    line = LineSpec("gpu0.a", t_ns=t, codes={"power_mw": np.full(count, 1000)})
    run = read_run(make_run(tmp_path / "r.h5", [line], [PhaseSpec("a", 0, 8 * MS)], end_ns=8 * MS))
    whole, sliced = both(run, 300)
    a, b = part_phase_energies(run, whole), part_phase_energies(run, sliced)
    np.testing.assert_allclose(b.missing_s, a.missing_s)
    assert len(load_sliced(run, "gpu0.a")) == min(count, 2)
    assert len(load_signal(run, "gpu0.a")) == count


def test_large_files_are_not_loaded(tmp_path, monkeypatch):
    run = trained(tmp_path)
    monkeypatch.setattr("powerd_analytics.runs.signals.IN_MEMORY", 100)
    monkeypatch.setattr("powerd_analytics.runs.signals.load_signal", None)
    assert phase_table(run).runs[0].energy_j > 0
