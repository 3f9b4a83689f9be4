"""The sensors whose intervals are counted: figures of data sheets, as powerd states them of its lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from powerd_core.model import Accuracy

MS = 1_000_000


FILTER_SHARE = 0.06


@dataclass(frozen=True, slots=True)
class Sensor:
    """What measures: limits are half-widths of rectangles from which each run and line draws its own error."""

    name: str
    period_ms: float = 2.0
    window_ms: float = 1.06
    shared_centre_ms: float = 0.03
    """The window's middle is off by up to this much, the same way all through a run: the conversion clock."""
    own_centre_ms: float = 0.70
    """And by up to this much from reading to reading: scans and conversions go past each other."""
    jitter_ms: float = 0.03
    gain_limits: tuple[float, ...] = ()
    u_gain: float = 0.0
    """Normal part of the gain: a calibration."""
    offset_limit_w: float = 0.0
    step_w: float = 0.0
    noise_w: float = 0.0
    bound_ms: float = 0.02
    counter: bool = False
    is_shunt: bool = True
    shares: tuple[float, ...] = (1.0,)
    """The part of the device's power that each of its lines carries."""
    chip: str = "INA219"
    """What the source names in the line's detail, where it is a shunt."""
    filter_ms: float = 0.0
    """Time constant of a low-pass of first order instead of the window, by up to `FILTER_SHARE` another in each run."""

    @property
    def accuracy(self) -> Accuracy:
        u_gain = float(np.sqrt(sum(g**2 for g in self.gain_limits) / 3 + self.u_gain**2))
        return Accuracy(
            u_gain, self.offset_limit_w / np.sqrt(3), self.step_w, round(self.window_ms * MS),
            round((self.shared_centre_ms + self.own_centre_ms) * MS), filter_ns=round(self.filter_ms * MS),
        )  # fmt: skip


SHEET: dict[str, Any] = {"gain_limits": (0.01, 0.01, 0.01), "offset_limit_w": 0.24, "step_w": 0.06}
SENSORS = (
    Sensor("INA219, data sheet", **SHEET),
    Sensor("INA219, calibrated", u_gain=0.001, offset_limit_w=0.02, step_w=0.06, noise_w=0.5),
    Sensor("8 rails, data sheet", shares=(0.1, 0.25, 0.25, 0.2, 0.05, 0.05, 0.05, 0.05), **SHEET),
    Sensor("counter, 500/s", window_ms=0.0, shared_centre_ms=0.0, own_centre_ms=0.1, counter=True,
           gain_limits=(0.005,), is_shunt=False),
    # One chip, shunt only, 84 us a conversion, pointer kept between reads: 29 clocks of 400 kHz and a call each.
    Sensor("INA219 alone, 9 bit, 4500/s", 1 / 4.5, 0.084, 0.008, 0.042, 0.02, u_gain=0.002, offset_limit_w=0.02,
           step_w=0.48, noise_w=0.5),
    # The next two as `powerd_daemon.ina.sensor.accuracy` states them for 2 milliohm, 1 % and 12 V, shunt and bus
    # converted by turns and one reading a cycle. What all readings share: the conversion clock's tolerance, when the
    # chip latches its register for a transfer, and, as no data sheet says when within a cycle that is renewed, one bus
    # conversion; what is a reading's own: half a cycle.
    # INA226 (SBOS547): 140 us each; +-0.1 % + 50 ppm/K, 10 uV + 0.1 uV/K, 60 K; 2.5 uV a code; clock +-10 %.
    Sensor("INA226 alone, 140 us, 3500/s", 1 / 3.5, 0.140, 0.204, 0.140, 0.02, gain_limits=(0.004, 0.004, 0.01),
           offset_limit_w=0.096, step_w=0.015, noise_w=0.5, chip="INA226"),
    # INA228 (SLYS021): 84 us each, three bytes a reading; +-0.05 % + 20 ppm/K, 1 uV + 10 nV/K; 312.5 nV a code; +-1 %.
    Sensor("INA228 alone, 84 us, 4000/s", 1 / 4.0, 0.084, 0.102, 0.084, 0.02, gain_limits=(0.0017, 0.0017, 0.01),
           offset_limit_w=0.0096, step_w=0.0019, noise_w=0.5, chip="INA228"),
    Sensor("NVML, 50/s", 20.0, 0.0, shared_centre_ms=0.9, own_centre_ms=0.1, jitter_ms=0.01, filter_ms=13.0,
           gain_limits=(0.05,), step_w=1e-3, is_shunt=False),
    Sensor("wall meter, 10/s", 100.0, 100.0, 1.0, 1.0, 1.0, gain_limits=(0.0015,), offset_limit_w=0.3, is_shunt=False),
)  # fmt: skip
