"""The gain of a GPU driver's power, by rails, a wall meter or a stated wattage in a run file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from make_run import MS, LineSpec, S, make_run

from powerd_analytics.cli.info import describe_run, run_document
from powerd_analytics.gpu_calibration.gpu_gain import Reference, gains_of
from powerd_analytics.runs.run import read_run
from powerd_core.errors import AnalysisError, ConfigError

GAIN = 1.04


def true_w(t_ns: np.ndarray) -> np.ndarray:
    """Load and idle in turns of 8 s."""
    return np.where(t_ns // (8 * S) % 2 == 0, 550.0, 110.0)


def run_with(tmp_path: Path, *others: LineSpec, power=true_w, factor: float = 1.0):
    detail = {"uuid": "GPU-1", "calibration": {"gpu0.nvml_samples": {"factor": factor, "response": "assumed"}}}
    driver = LineSpec("gpu0.nvml_samples", lambda t: power(t) / GAIN * factor, provenance="measured",
                      period_ns=20 * MS, accuracy={"u_gain": 0.029}, detail=detail)  # fmt: skip
    feeds = {"gpu0": [x.name for x in others if x.device == "gpu0"] or [driver.name]}
    feeds |= {"node": [x.name for x in others if x.device == "node"]}
    return read_run(make_run(tmp_path / "run.h5", [driver, *others], devices=feeds, end_ns=64 * S))


def rail(name: str, share: float) -> LineSpec:
    return LineSpec(name, lambda t: share * true_w(t), provenance="measured", accuracy={"u_gain": 0.003})


@pytest.mark.parametrize("factor", [1.0, 1.02])
def test_rails_tell_the_gain_whatever_it_was_before(tmp_path: Path, factor: float) -> None:
    run = run_with(tmp_path, rail("gpu0.pcie_12v", 0.2), rail("gpu0.ext_12v", 0.8), factor=factor)
    (found,) = gains_of(run, "gpu0", Reference("rails", 0.0, 0.0, 0.0))
    assert (found.uuid, found.field, found.reference) == ("GPU-1", "nvml_samples", "gpu0.ext_12v + gpu0.pcie_12v")
    assert found.gain == pytest.approx(GAIN, rel=2e-3)
    assert 0.003 <= found.u_gain < 0.004
    assert any("powerd calibrate gpu0 --reference rails" in line for line in describe_run(run_document(run)))


def test_a_wall_meter_tells_it_by_what_moves_with_the_gpu(tmp_path: Path) -> None:
    wall = LineSpec("wall", lambda t: 210 + true_w(t) / 0.93, device="node", provenance="measured", period_ns=100 * MS)
    run = run_with(tmp_path, wall)
    (found,) = gains_of(run, "gpu0", Reference("wall", 0.001, 0.93, 0.01))
    assert found.gain == pytest.approx(GAIN, rel=5e-3)
    assert 0.01 <= found.u_gain < 0.015
    with pytest.raises(ConfigError, match="--efficiency"):
        gains_of(run, "gpu0", Reference("wall", 0.001, 0.0, 0.0))
    (tmp_path / "steady").mkdir()
    steady = run_with(tmp_path / "steady", wall, power=lambda t: np.full(len(t), 300.0))
    with pytest.raises(AnalysisError, match="load and idle in turns"):
        gains_of(steady, "gpu0", Reference("wall", 0.001, 0.93, 0.01))


def test_a_stated_wattage_is_held_against_the_mean(tmp_path: Path) -> None:
    run = run_with(tmp_path, power=lambda t: np.full(len(t), 312.0))
    (found,) = gains_of(run, "gpu0", Reference("312", 0.01, 0.0, 0.0))
    assert found.gain == pytest.approx(GAIN, rel=1e-4)
    assert found.u_gain == pytest.approx(0.01, rel=0.01)
    with pytest.raises(ConfigError, match="--reference-u"):
        gains_of(run, "gpu0", Reference("312", 0.0, 0.0, 0.0))
    with pytest.raises(AnalysisError, match="no rails beside gpu0"):
        gains_of(run, "gpu0", Reference("rails", 0.0, 0.0, 0.0))
