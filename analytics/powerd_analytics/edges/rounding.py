"""What rounding a reading to a code does to means of many readings, given the noise that it rounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

HARMONICS = 8


def rounding_u(step: float, seen2: Values) -> Values:
    """Standard uncertainty, in the unit of ``step``, of the mean of a steady value rounded to multiples of ``step``.

    ``seen2`` is the variance of the readings between which the value stands still, rounding included. Without noise
    every reading is rounded the same way: step / sqrt(12). Normal noise of variance s^2 ahead of the rounding leaves
    of the k-th harmonic of the saw-tooth, step / (pi k) high, the share exp(-2 (pi k s / step)^2) in the mean
    (Widrow, 1956); the value's place within a step is evenly likely.
    """
    if step <= 0:
        return np.zeros_like(seen2)
    noise2 = np.maximum(seen2 / step**2 - 1 / 12, 0)[..., None]
    k2 = np.arange(1, HARMONICS + 1) ** 2
    square = np.sum(np.exp(-4 * np.pi**2 * k2 * noise2) / k2, axis=-1) / (2 * np.pi**2)
    # What the harmonics left out add where there is no noise.
    rest = (np.pi**2 / 6 - np.sum(1 / k2)) / (2 * np.pi**2)
    return np.asarray(step * np.sqrt(square + np.where(noise2[..., 0] > 0, 0.0, rest)), np.float64)
