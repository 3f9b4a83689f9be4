"""Figures of merit from energy and time: plain functions, each with its source."""

from __future__ import annotations


def edp_js(energy_j: float, time_s: float) -> float:
    """Energy-delay product (Horowitz, Indermaur, Gonzalez, "Low-power digital design", 1994): E * t."""
    return energy_j * time_s


def eds(energy_j: float, time_s: float, reference_energy_j: float, reference_time_s: float, k: float = 2.0) -> float:
    """Energy-delay sum of Krzywaniak, Czarnul and Proficz: a*E + b*t, 1 at the reference; k weighs energy against time.

    a = (k - 1) / (k * E_ref), b = 1 / (k * t_ref).
    """
    return (k - 1) / k * energy_j / reference_energy_j + time_s / (k * reference_time_s)


def mean_power_w(energy_j: float, time_s: float) -> float:
    """Energy over time."""
    return energy_j / time_s


def gflops_per_w_paper(operations_per_sample: float, batch_size: float, passes: int, j_per_batch: float) -> float:
    """GFLOPS/W by the convention of Castro et al.: each pass (forward, backward) counts the operations once.

    ``j_per_batch`` is what all these passes together took for one batch.
    """
    return passes * operations_per_sample * batch_size / j_per_batch / 1e9
