"""The response of a GPU's driver from random loads: a recording of one H200, and waveforms made without our code."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, make_run
from scipy.signal import lfilter

from powerd_analytics.gpu_calibration.identification import Loads, fit
from powerd_analytics.gpu_calibration.random_loads import KINDS, identify
from powerd_core.errors import AnalysisError, ConfigError
from powerd_daemon.sources.nvml.samples import SampleGrid

DATA = Path(__file__).parents[1] / "data" / "nvml"
STEP_S = 0.05e-3


def test_a_recording_of_an_h200() -> None:
    """Late stamps are in it: one sample in twenty shows the power of another moment, and must not count."""
    kind, begin_us, end_us = np.loadtxt(DATA / "h200_loads.csv", dtype=np.int64, delimiter=",", skiprows=1).T
    stamp_us, power_mw = np.loadtxt(DATA / "h200_samples.csv", dtype=np.int64, delimiter=",", skiprows=1).T
    grid, waiting, instants = SampleGrid(), [], []
    assert grid.learn([1000 * t for t in stamp_us[:50].tolist()])
    for t in stamp_us.tolist():
        waiting.append(1000 * t)
        known = grid.instants(waiting)
        instants += known
        waiting = waiting[len(known) :]
    t_s = np.array([np.nan if t is None else t * 1e-9 for t in instants])
    good = ~np.isnan(t_s)
    watts = power_mw[: len(t_s)][good] * 1e-3
    found = fit(Loads(begin_us * 1e-6, end_us * 1e-6, kind, t_s[good], watts))
    assert found.family == "low-pass"
    assert 1e3 * found.response.tau_s == pytest.approx(13.2, abs=0.2)
    assert 1e3 * found.delay_s == pytest.approx(3.4, abs=0.15)
    assert max(found.u95_tau_s, found.u95_delay_s) < 0.2e-3
    assert found.held_out_w["low-pass"] < 0.3 * found.held_out_w["rectangle"]


def telegraph(seed: int, *, tau_s: float, window_s: float, delay_s: float, seconds: float, noise_w: float) -> Loads:
    """Loads in random order, and what a sensor makes of them on a fine grid of time."""
    rng = np.random.default_rng(seed)
    lengths = 2.5e-3 * (36 ** rng.random(int(seconds / 20e-3)))
    kind = np.concatenate([[0], np.cumsum(rng.integers(1, 3, len(lengths) - 1))]) % 3
    end = np.cumsum(lengths)
    fine_s = np.arange(0, end[-1], STEP_S)
    power = np.array([620.0, 480.0, 130.0])[kind[np.minimum(np.searchsorted(end, fine_s, "right"), len(end) - 1)]]
    if window_s:
        wide = round(window_s / STEP_S)
        total = np.concatenate(
            [np.full(wide, power[0] * STEP_S).cumsum(), power[0] * STEP_S * wide + np.cumsum(power) * STEP_S]
        )
        power = (total[wide:] - total[:-wide]) / (wide * STEP_S)
    if tau_s:
        left = np.exp(-STEP_S / tau_s)
        power = lfilter([1 - left], [1, -left], power, zi=[left * power[0]])[0]
    t_s = np.arange(0.2, end[-1] - 0.2, 20.00005e-3)
    seen = np.interp(t_s - delay_s, fine_s + STEP_S, power) + noise_w * rng.standard_normal(len(t_s))
    odd = rng.random(len(t_s)) < 0.03
    seen[odd] += 150 * rng.standard_normal(odd.sum())
    return Loads(np.concatenate([[0], end[:-1]]), end, kind, t_s, seen)


@pytest.mark.parametrize(
    ("family", "tau_ms", "window_ms"),
    [("rectangle", 0.0, 100.0), ("low-pass behind a window", 8.0, 30.0)],
)
def test_each_family_is_known_again(family: str, tau_ms: float, window_ms: float) -> None:
    loads = telegraph(7, tau_s=tau_ms / 1e3, window_s=window_ms / 1e3, delay_s=4e-3, seconds=9, noise_w=3)
    found = fit(loads)
    assert found.family == family
    assert 1e3 * found.response.tau_s == pytest.approx(tau_ms, abs=0.5)
    assert 1e3 * found.response.window_s == pytest.approx(window_ms, abs=1.5)
    assert 1e3 * found.delay_s == pytest.approx(4.0, abs=0.5)


def test_a_low_pass_lies_inside_twice_its_interval() -> None:
    seed, tau_ms, delay_ms = 3, 4.0, -6.0
    found = fit(telegraph(seed, tau_s=tau_ms / 1e3, window_s=0, delay_s=delay_ms / 1e3, seconds=12, noise_w=4))
    centre_s = -found.response.shift_s
    assert abs(centre_s - (tau_ms + delay_ms) / 1e3) <= 2 * found.u95_shift_s + STEP_S
    assert abs(found.response.tau_s - tau_ms / 1e3) <= 2 * found.u95_tau_s + STEP_S or found.response.window_s > 0


def test_a_run_of_random_loads_gives_what_the_source_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The age that was taken off the timestamps is put back."""
    loads = telegraph(5, tau_s=13e-3, window_s=0, delay_s=3e-3, seconds=10, noise_w=4)
    begin, end = (np.round(x * 1e9).astype(np.int64) for x in (loads.begin_s, loads.end_s))
    phases = [PhaseSpec(KINDS[k], int(b), int(e)) for k, b, e in zip(loads.kind, begin, end, strict=True)]
    name, age_ns = "gpu0.nvml_samples", 16_500_000
    detail = {"uuid": "GPU-1", "driver_version": "580.1", "calibration": {name: {"age_ns": age_ns}}}
    t_ns = np.round(loads.t_s * 1e9).astype(np.int64) - age_ns
    codes = {"power_mw": np.round(loads.watts * 1e3).astype(np.int64)}
    line = LineSpec(name, provenance="measured", period_ns=20 * MS, t_ns=t_ns, codes=codes, detail=detail)
    path = make_run(tmp_path / "run.h5", [line], phases, end_ns=int(end[-1]))
    (found,) = identify("gpu0", 90.0, path)
    assert (found.uuid, found.driver, found.field) == ("GPU-1", "580.1", "nvml_samples")
    assert found.age_ms == pytest.approx(16.0, abs=0.3)
    assert (found.tau_ms, found.delay_ms) == (pytest.approx(13.0, abs=0.3), pytest.approx(3.0, abs=0.3))
    with pytest.raises(AnalysisError, match="no line gpu1"):
        identify("gpu1", 90.0, path)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match="need PyTorch"):
        identify("gpu0", 90.0, None)


@pytest.mark.quick("identification of a driver")
def test_what_tells_nothing_is_refused() -> None:
    loads = telegraph(1, tau_s=0.01, window_s=0, delay_s=0, seconds=6, noise_w=1)
    noise = np.random.default_rng(2).normal(400, 100, len(loads.t_s))
    with pytest.raises(AnalysisError, match="do not follow the loads"):
        fit(Loads(loads.begin_s, loads.end_s, loads.kind, loads.t_s, noise))
    with pytest.raises(AnalysisError, match="give more seconds"):
        fit(loads.part(slice(100)))
