"""The gain of a GPU driver's power by a reference: `powerd calibrate gpu0 --reference rails|wall|WATTS`.

The rails that feed the card and the driver see the same power: the ratio of their joules over the same time is the
gain. A wall meter sees the whole machine behind its power supply: only what moves with the GPU counts, the slope of its
power over the driver's, times the supply's efficiency. A stated wattage is that of a load that is steady meanwhile.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import hypot, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.runs.run import Run, read_run
from powerd_analytics.runs.signals import load_signal, plain_j
from powerd_client import Meter
from powerd_client.signals.signal import Signal
from powerd_core.calibration import GpuGain
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.model import Provenance

Values = NDArray[np.float64]

FIELDS = ("nvml_samples", "nvml", "nvml_energy")
PARTS = 10
"""Of the common time; how their ratios differ says how sure the ratio of all is."""
LEAST_S = 10.0
BLOCK_S, STEADY = 1.0, 0.05
"""Means of wall and driver that are held against each other, longer than either averages: of blocks whose neighbours
have the same power to within this share of its span, so that no step that one of them smears is in them."""
CONTRAST = 0.3
"""Standard deviation of the driver's power over its mean that a wall meter needs, so that the GPU can be told from the
rest of the machine."""
LOADS_MS = (4000.0, 8000.0)
"""Lengths of random loads that give it."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a GPU's power is held against. ``u`` is a relative standard uncertainty."""

    what: str
    u: float
    efficiency: float
    u_efficiency: float

    @property
    def watts(self) -> float | None:
        """Of a stated wattage."""
        try:
            return float(self.what)
        except ValueError:
            return None


def gains(
    gpu: str,
    what: str,
    *,
    u: float,
    efficiency: float,
    u_efficiency: float,
    run: Path | None,
    url: Sequence[str] | None,
    seconds: float,
) -> list[GpuGain]:
    """By a recording, or by one that is made now. Raises `PowerdError`."""
    reference = Reference(what, u, efficiency, u_efficiency)
    if run is not None:
        return gains_of(read_run(run), gpu, reference)
    if not seconds >= LEAST_S:
        raise ConfigError(f"--seconds: at least {LEAST_S:g}")
    if url is None and reference.watts is None:
        raise ConfigError(f"a reference {reference.what} needs --url, the powerd that reads it and the GPU, or --run")
    with tempfile.TemporaryDirectory(prefix="powerd-calibrate-") as directory:
        path = Path(directory) / "run.h5"
        if reference.what == "wall":
            from powerd_analytics.gpu_calibration.random_loads import record

            record(gpu, path, seconds, LOADS_MS, url)
        else:  # whatever load runs now
            with Meter(url, path, device="host", quiet=True):
                time.sleep(seconds)
        return gains_of(read_run(path), gpu, reference)


def gains_of(run: Run, gpu: str, reference: Reference) -> list[GpuGain]:
    """The gain of each of the driver's lines in a run. Raises `AnalysisError`."""
    driver = [load_signal(run, name) for field in FIELDS if (name := f"{gpu}.{field}") in run.lines]
    driver = [s for s in driver if len(s) > PARTS]
    if not driver:
        raise AnalysisError(f"{run.path} has no power of {gpu} by its driver: record with the source nvml too")
    others, what = _others(run, gpu, reference)
    found = []
    for signal in driver:
        ends = [(int(s.t_ns[0]), int(s.t_ns[-1])) for s in (signal, *others)]
        begin, end = max(b for b, _ in ends), min(e for _, e in ends)
        if end - begin < LEAST_S * 1e9:
            raise AnalysisError(f"{signal.line.name} and {what} overlap for less than {LEAST_S:g} s: record longer")
        gain, u = _gain(signal, others, begin, end, reference)
        was = signal.line.detail.get("calibration", {}).get(signal.line.name, {}).get("factor", 1.0)
        found.append(
            GpuGain(
                str(signal.line.detail.get("uuid")),
                signal.line.name.partition(".")[2],  # type: ignore[arg-type]
                gain * float(was),
                u,
                what,
                datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            )
        )
    return found


def _others(run: Run, gpu: str, reference: Reference) -> tuple[list[Signal], str]:
    """The signals of the reference, none for a stated wattage; and what it is called."""
    if (watts := reference.watts) is not None:
        if not watts > 0 or not reference.u > 0:
            raise ConfigError("a stated wattage is above 0, and has a --reference-u (0.01 is 1 %)")
        return [], f"{watts:g} W as stated"
    powers = [x for x in run.lines.values() if x.quantity == "power_w" and x.provenance != Provenance.MODELLED]
    if reference.what == "rails":
        lines = [x for x in powers if x.device == gpu and ".nvml" not in x.name]
    elif reference.what == "wall":
        lines = [x for x in powers if x.name == "wall"]
        if not reference.efficiency:
            raise ConfigError("a wall meter needs --efficiency, that of the power supply, and --efficiency-u")
    else:
        raise ConfigError(f"--reference {reference.what!r}: rails, wall, or watts such as 350")
    if not lines:
        raise AnalysisError(
            f"{run.path} has no {reference.what} beside {gpu}: its powers are {', '.join(x.name for x in powers)}"
        )
    return [load_signal(run, x.name) for x in lines], " + ".join(x.name for x in lines)


def _gain(signal: Signal, others: Sequence[Signal], begin: int, end: int, reference: Reference) -> tuple[float, float]:
    """The gain and its relative standard uncertainty."""
    count = PARTS if reference.what != "wall" else max(int((end - begin) * 1e-9 / BLOCK_S), PARTS)
    edges = np.linspace(begin, end, count + 1).astype(np.int64)
    seconds = np.diff(edges) * 1e-9
    shown = plain_j(signal, (edges[:-1], edges[1:]))[0] / seconds
    if not np.mean(shown) > 0:
        raise AnalysisError(f"{signal.line.name} shows no power")
    if reference.watts is not None:
        u = float(np.std(shown, ddof=1) / np.mean(shown)) / sqrt(PARTS)
        return reference.watts / float(np.mean(shown)), hypot(u, reference.u)
    each = [plain_j(s, (edges[:-1], edges[1:]))[0] / seconds for s in others]
    true = np.sum(each, axis=0)
    accuracy = [(s.line.accuracy, float(np.mean(watts))) for s, watts in zip(others, each, strict=True)]
    # Gains of sensors of one make may be off alike: they are added as they are.
    u_gain = sum(a.u_gain * abs(watts) for a, watts in accuracy) / abs(float(np.mean(true)))
    u_gain = hypot(u_gain, reference.u)
    if reference.what == "wall":
        step = np.abs(np.diff(shown, prepend=shown[0], append=shown[-1]))
        steady = np.maximum(step[:-1], step[1:]) < STEADY * np.ptp(shown)
        shown, true, count = shown[steady], true[steady], int(steady.sum())
        if count < PARTS or np.std(shown) < CONTRAST * np.mean(shown):
            raise AnalysisError(
                "the GPU's power hardly changed: a wall meter needs load and idle in turns, seconds each"
            )
        design = np.column_stack([shown, np.ones(count)])
        solution = np.linalg.lstsq(design, true, rcond=None)[0]
        slope, left = float(solution[0]), true - design @ solution
        u_slope = float(np.std(left, ddof=2) / np.std(shown) / sqrt(count) / slope)
        return slope * reference.efficiency, hypot(u_slope, u_gain, reference.u_efficiency)
    ratio = true / shown
    u_offset = hypot(*(a.u_offset_w for a, _ in accuracy)) / float(np.mean(true))
    u_ratio = float(np.std(ratio, ddof=1)) / sqrt(count)
    return float(np.sum(true) / np.sum(shown)), hypot(u_ratio, u_gain, u_offset)
