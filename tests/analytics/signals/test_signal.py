import numpy as np
import pytest
from make_run import MS, LineSpec, make_run

from powerd_analytics.runs.run import read_run
from powerd_analytics.runs.signals import load_signal
from powerd_core.errors import AnalysisError, RunFileError

T = np.arange(0, 10 * MS, 2 * MS, dtype=np.int64)


def signal_of(tmp_path, **spec):
    spec = {"name": "a", "t_ns": T, **spec}
    return load_signal(read_run(make_run(tmp_path / "r.h5", [LineSpec(**spec)], end_ns=10 * MS)), "a")


def test_a_shunt_gives_watts_with_the_voltage_shifted_and_currents_signed(tmp_path):
    conversion = {
        "kind": "shunt", "shunt_ohm": 0.05, "shunt_lsb_v": 1e-5, "bus_lsb_v": 0.004, "bus_shift": 3, "offset_a": 0.1,
        "gain": 1.1, "shunt": "shunt", "bus": "bus",
    }  # fmt: skip
    shunt = np.array([1000, -1000, 0, 5, 32000], np.int16)
    bus = np.full(5, (3000 << 3) | 3, np.uint16)
    s = signal_of(tmp_path, conversion=conversion, codes={"shunt": shunt, "bus": bus})
    np.testing.assert_allclose(s.value, 12.0 * ((shunt * 1e-5 / 0.05 + 0.1) * 1.1))


@pytest.mark.parametrize("bit", [1, 2, 8, 16, 32])
def test_a_bad_reading_is_no_value(tmp_path, bit):
    flags = np.array([0, 0, bit, 0, 0], np.uint16)
    s = signal_of(tmp_path, codes={"power_mw": np.array([1, 1, 99999, 1, 1])}, flags=flags)
    assert s.value.tolist() == [0.001] * 4
    assert s.bad == 1
    assert s.missing_ns().max() == 2 * MS


def test_an_overflow_of_the_chip_s_own_registers_is_still_a_value(tmp_path):
    s = signal_of(tmp_path, codes={"power_mw": np.ones(5, int)}, flags=np.full(5, 4, np.uint16))
    assert len(s) == 5


def test_a_narrow_counter_wraps_and_has_its_background(tmp_path):
    conversion = {"kind": "counter", "column": "energy", "j_per_code": 0.5, "background_w": 1000.0, "bits": 16}
    codes = np.array([65530, 65534, 2, 6, 10], np.int64)
    s = signal_of(tmp_path, conversion=conversion, codes={"energy": codes})
    np.testing.assert_allclose(s.value, np.arange(5) * (4 * 0.5 + 1000 * 0.002))
    np.testing.assert_allclose(s.power()[1], 2000.0)


@pytest.mark.parametrize(
    ("bits", "j_per_code"),
    [
        (32, 61e-6),  # RAPL's unit
        (40, 16 * 3.2 * 20 / 2**19),  # INA228's ENERGY with a full scale of 20 A (data sheet, 8.1.2)
        (48, 3.6e-3),  # micro-watt-hours of a meter
        (64, 1e-3),  # NVML's millijoules
    ],
)
def test_counters_of_all_widths_go_round(tmp_path, bits, j_per_code):
    conversion = {"kind": "counter", "column": "energy", "j_per_code": j_per_code, "background_w": 0.0, "bits": bits}
    steps = np.array([0, 900, 1_800, 2_700, 4_000], np.uint64)
    codes = (np.uint64(2**bits - 1_000) + steps) & np.uint64(2**bits - 1)  # round between the second and the third
    s = signal_of(tmp_path, conversion=conversion, codes={"energy": codes})
    np.testing.assert_allclose(s.value, steps * j_per_code)


def test_a_counter_read_more_often_than_it_moves_counts_where_it_moved(tmp_path):
    t = np.arange(0, 1000 * MS, 20 * MS, dtype=np.int64)
    conversion = {"kind": "counter", "column": "e", "j_per_code": 1.0, "background_w": 0.0, "bits": 64}
    s = signal_of(
        tmp_path, t_ns=t, period_ns=20 * MS, conversion=conversion, codes={"e": t // (100 * MS) * 7},
        accuracy={"update_ns": 100 * MS},
    )  # fmt: skip
    assert np.diff(s.t_ns)[:-1].tolist() == [100 * MS] * 9
    assert s.value[-1] == 63
    assert s.spacing_ns == 100 * MS


def test_a_counter_that_stands_still_is_idle_and_not_missing(tmp_path):
    t = np.arange(0, 2000 * MS, 20 * MS, dtype=np.int64)
    conversion = {"kind": "counter", "column": "e", "j_per_code": 1.0, "background_w": 5.0, "bits": 64}
    codes = np.minimum(t, 500 * MS) // (100 * MS)
    s = signal_of(
        tmp_path, t_ns=t, period_ns=20 * MS, conversion=conversion, codes={"e": codes}, accuracy={"update_ns": 100 * MS}
    )
    assert not s.missing_ns().any()
    assert s.value[-1] == pytest.approx(5 + 5 * 1.98)
    assert s.power()[1][-1] == pytest.approx(5)


def test_a_late_scan_is_sampling_and_a_hole_is_missing(tmp_path):
    t = np.array([0, 2, 4, 9, 11, 13, 25, 27, 29], np.int64) * MS
    s = signal_of(tmp_path, t_ns=t, codes={"power_mw": np.ones(9, int)})
    assert s.missing_ns().tolist() == [0, 0, 0, 0, 0, 10 * MS, 0, 0]


def test_time_that_folds_back_at_a_clock_step_is_left_out(tmp_path):
    t = np.array([0, 10, 20, 15, 18, 30], np.int64) * MS
    s = signal_of(tmp_path, t_ns=t, codes={"power_mw": np.ones(6, int)})
    assert s.t_ns.tolist() == [0, 10 * MS, 20 * MS, 30 * MS]


def test_a_missing_column_and_an_unknown_line_are_said(tmp_path):
    with pytest.raises(RunFileError, match="power_mw"):
        signal_of(tmp_path, codes={"other": np.ones(5, int)})
    with pytest.raises(AnalysisError, match="'a1'"):
        load_signal(read_run(make_run(tmp_path / "q.h5", [LineSpec("a1", lambda t: t * 0.0)])), "a2")
