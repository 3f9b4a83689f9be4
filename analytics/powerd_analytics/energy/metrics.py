"""Figures of merit from energy and time: plain functions, each with its source.

Every function takes plain numbers or numpy arrays, and gives the same. Division of a number by zero raises
`ZeroDivisionError` (numpy warns instead); settings out of range raise `AnalysisError`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from powerd_core.errors import AnalysisError

Values = NDArray[np.float64]
N = TypeVar("N", float, Values)

J_PER_KWH = 3.6e6


def energy_j(power_w: N, time_s: N | float) -> N:
    """Energy from mean power: P * t."""
    return power_w * time_s


def mean_power_w(energy_j: N, time_s: N | float) -> N:
    """Energy over time."""
    return energy_j / time_s


def edp_js(energy_j: N, time_s: N | float) -> N:
    """Energy-delay product (Horowitz, Indermaur, Gonzalez, "Low-power digital design", 1994): E * t."""
    return energy_j * time_s


def ed2p_js2(energy_j: N, time_s: N | float) -> N:
    """Energy-delay-squared product, E * t^2: does not change with the supply voltage, to first order (Martin, Nyström
    and Pénzes, "ET2: a metric for time and energy efficiency of computation", 2002)."""
    return energy_j * time_s * time_s


def eds(
    energy_j: N, time_s: N | float, reference_energy_j: N | float, reference_time_s: N | float, k: float = 2.0
) -> N:
    """Energy-delay sum of Krzywaniak, Czarnul and Proficz: a*E + b*t, 1 at the reference; k weighs energy against time.

    a = (k - 1) / (k * E_ref), b = 1 / (k * t_ref). k >= 1; at 1 only time counts.
    """
    if not (math.isfinite(k) and k >= 1):
        raise AnalysisError(f"k of an EDS is {k}: it must be 1 or more")
    return energy_j / reference_energy_j * ((k - 1) / k) + time_s / reference_time_s * (1 / k)


def energy_saving_pct(energy_j: N, reference_energy_j: N | float) -> N:
    """Per cent of the reference's energy that is saved; negative when more is used."""
    return 100.0 - energy_j / reference_energy_j * 100.0


def performance_loss_pct(time_s: N, reference_time_s: N | float) -> N:
    """Per cent of the reference's time that it takes longer; negative when it is faster."""
    return time_s / reference_time_s * 100.0 - 100.0


def saving_minus_loss_pct(
    energy_j: N, time_s: N | float, reference_energy_j: N | float, reference_time_s: N | float
) -> N:
    """Energy saving minus performance loss, in points of per cent of the reference."""
    return 200.0 - energy_j / reference_energy_j * 100.0 - time_s / reference_time_s * 100.0


def zeus_cost_j(energy_j: N, time_s: N | float, max_power_w: float, eta: float = 0.5) -> N:
    """Cost of You, Chung and Chowdhury ("Zeus", NSDI'23): eta*E + (1 - eta)*P_max*t, in joules.

    ``max_power_w`` is the GPU's highest power limit; eta 1 counts energy alone, 0 time alone.
    """
    if not 0 <= eta <= 1:
        raise AnalysisError(f"eta of a Zeus cost is {eta}: it must lie between 0 and 1")
    if not (math.isfinite(max_power_w) and max_power_w > 0):
        raise AnalysisError(f"maximum power of a Zeus cost is {max_power_w} W: it must be above 0")
    return energy_j * eta + time_s * ((1 - eta) * max_power_w)


def gflops_per_w(operations: float, energy_j: N) -> N:
    """10^9 operations a joule, which is GFLOPS/W, for operations that were executed with that energy."""
    return operations / energy_j / 1e9


def gflops_per_w_paper(operations_per_sample: float, batch_size: float, passes: int, j_per_batch: N) -> N:
    """GFLOPS/W by the convention of Castro et al.: each pass (forward, backward) counts the operations once.

    ``j_per_batch`` is what all these passes together took for one batch, on all GPUs.
    """
    return gflops_per_w(passes * operations_per_sample * batch_size, j_per_batch)


def samples_per_s(samples: float, time_s: N) -> N:
    """Samples (images) over the seconds that they took: images/s."""
    return samples / time_s


def iterations_of(epochs: float, dataset_size: float, batch_size: float, *, drop_last: bool = False) -> int:
    """Batches of ``epochs`` passes over the data; the last of each pass may be smaller, or is dropped.

    Raises `AnalysisError` for sizes below 1.
    """
    if not (
        all(map(math.isfinite, (epochs, dataset_size, batch_size))) and epochs >= 0 and batch_size >= 1 <= dataset_size
    ):
        raise AnalysisError(
            f"{epochs} epochs of {dataset_size} samples in batches of {batch_size}: need at least 1 each"
        )
    each = dataset_size // batch_size if drop_last else -(-dataset_size // batch_size)
    return math.floor(epochs * each + 0.5)  # round() would take 4.5 batches for 4, and 1.5 for 2


def co2_g(energy_j: N, g_per_kwh: float) -> N:
    """Grams of CO2 equivalent at a stated intensity of the grid. Multiply by a site's PUE beforehand, if it counts."""
    return energy_j * (_factor(g_per_kwh, "g/kWh") / J_PER_KWH)


def money(energy_j: N, price_per_kwh: float) -> N:
    """What the energy costs, in the currency of a stated price."""
    return energy_j * (_factor(price_per_kwh, "a price of a kWh") / J_PER_KWH)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Sum of w * x over the sum of w, as Castro et al. average accuracies over scenarios by their numbers of classes.

    Raises `AnalysisError` for numbers that do not match, and weights that are not above 0.
    """
    if len(values) != len(weights) or not weights or min(weights) <= 0:
        raise AnalysisError(f"{len(values)} values and {len(weights)} weights: each value needs its own, above 0")
    return sum(w * x for w, x in zip(weights, values, strict=True)) / sum(weights)


def pareto_front(time_s: ArrayLike, energy_j: ArrayLike) -> NDArray[np.intp]:
    """Indices of the configurations [n] that no other beats in time without costing more energy, fastest first.

    One that is as good in one and worse in the other is beaten; equal ones are all in the front, in their order.
    Raises `AnalysisError` for NaN, infinities and arrays of other lengths.
    """
    t, e = _finite(time_s, "time"), _finite(energy_j, "energy")
    if len(e) != len(t):
        raise AnalysisError(f"{len(e)} energies and {len(t)} times: each configuration needs both")
    order = np.lexsort((e, t))
    t, e = t[order], e[order]
    first = np.searchsorted(t, t)  # of those that are as fast
    before = np.concatenate([[np.inf], np.minimum.accumulate(e)])[first]
    front: NDArray[np.intp] = order[(e == e[first]) & (e < before)]
    return front


def _finite(values: ArrayLike, what: str) -> Values:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise AnalysisError(f"{what}: needs a list of at least one number, all of them finite")
    return array


def _factor(value: float, what: str) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise AnalysisError(f"{what} is {value}: it must be a finite number, 0 or more")
    return value
