"""Lines that are neither power nor energy: shown by `joules info`, in no sum and no comparison."""

import json

import h5py
import numpy as np
import pytest
from make_run import MS, LineSpec, S, make_run

from powerd_analytics.cli.describe import describe_run
from powerd_analytics.runs.run import read_run
from powerd_analytics.signals.signal import load_signal
from powerd_core.errors import AnalysisError, RunFileError

T = np.arange(0, S + 1, 100 * MS, dtype=np.int64)


def beside(name: str, quantity: str, codes: list[int], per_code: float = 1.0, flags: list[int] | None = None):
    conversion = {"kind": "quantity", "column": "code", "quantity": quantity, "per_code": per_code}
    return LineSpec(
        name,
        t_ns=T,
        codes={"code": np.array(codes, np.uint64)},
        conversion=conversion,
        flags=None if flags is None else np.array(flags, np.uint16),
    )


@pytest.fixture
def path(tmp_path):
    lines = [
        LineSpec("gpu0.a", lambda t: np.full(len(t), 100.0)),
        beside("gpu0.temperature", "temperature_c", [0, *range(41, 51)], flags=[8] + [0] * 10),
        beside("gpu0.sm_clock", "clock_hz", [1980] * 11, 1e6),
        beside("gpu0.clock_events", "clock_events_bits", [1] * 5 + [4] * 5 + [5]),
    ]
    made = make_run(tmp_path / "run.h5", lines, devices={"gpu0": ["gpu0.a"]})
    with h5py.File(made, "r+") as file:
        bits = {"gpu0.clock_events": {"gpu_idle": 1, "sw_power_cap": 4, "sync_boost": 16}}
        file["lines/gpu0.clock_events"].attrs["detail"] = json.dumps({"bits": bits})
    return made


def test_they_are_known_by_their_quantity_and_compared_with_nothing(path):
    run = read_run(path)
    assert run.line("gpu0.temperature").quantity == "temperature_c"
    assert run.compared("gpu0") == ()
    assert set(run.beside("gpu0")) == {"gpu0.temperature", "gpu0.sm_clock", "gpu0.clock_events"}


def test_info_shows_range_and_shares_without_the_bad_readings(path):
    text = "\n".join(describe_run(read_run(path)))
    assert "gpu0.temperature (simulated, sim): temperature_c 41 to 50, mean of the readings 45.5" in text
    assert "10 good readings, 1 bad" in text
    assert "clock_hz 1.98e+09 to 1.98e+09" in text
    assert "clock_events_bits: gpu_idle in 54.5%, sw_power_cap in 54.5%; 11" in text
    assert "sum of the feeds: 100 J" in text


def test_they_are_no_signal(path):
    with pytest.raises(AnalysisError, match="is temperature_c, no power"):
        load_signal(read_run(path), "gpu0.temperature")


def test_a_device_fed_by_one_is_refused(path):
    with h5py.File(path, "r+") as file:
        file["devices/gpu0"].attrs["feeds"] = np.array(["gpu0.a", "gpu0.temperature"], dtype=h5py.string_dtype())
    with pytest.raises(RunFileError, match="'gpu0.temperature', which is no power"):
        read_run(path)
