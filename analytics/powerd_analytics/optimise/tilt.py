"""Ours, for jobs that drift: the epochs of a batch size change from recurrence to recurrence, slowly or at once.

The process of `powerd_analytics.optimise.lognormal` becomes one in time too: the slope over log2 of the batch size and
the part of each batch size alone go random walks, whose steps are learnt by marginal likelihood. What was seen long ago
then counts less, and how much less the job itself says. Where nothing drifts, the steps are learnt to be none. The
default batch size has no share of the slope's walk: what is known of it lasts, and it is what remains when the others
have become uncertain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from powerd_analytics.optimise.lognormal import LognormalPolicy, Past, PastTrainings, Values


class TiltPolicy(LognormalPolicy):
    """A state-space process over batch size and time."""

    name = "tilt"
    most_past = 60
    """Trainings that are looked back at."""
    steps_sd = (0.0, 0.004, 0.008, 0.016, 0.032, 0.064)
    """Of the walk of log N, of one recurrence and, for the slope, an octave. Each is as likely as the others, a priori;
    together they are as likely as no drift at all."""

    def _horizon(self) -> int:
        return self.parameters.least_horizon  # what drifts is not known for longer

    def _remembered(self) -> list[Past]:
        return self.memory.past[-self.most_past :]

    def _squares(self, values: Sequence[float]) -> float:
        # Of successive trainings (von Neumann): what drifts slowly is no chance.
        return math.fsum((b - a) ** 2 for a, b in pairwise(values)) / 2

    def _posterior(self, seen: PastTrainings, centre: float) -> tuple[Values, Values]:
        """Averaged over the steps by how likely each makes what was seen.

        Time runs backwards from now: a walk has gone the farther, the longer ago a training was.
        """
        if not len(seen.places):
            return super()._posterior(seen, centre)
        octaves = self._octaves[seen.places]
        walk = (1.0 + np.outer(octaves, octaves)) * np.minimum.outer(seen.ages, seen.ages)
        steady = self._kernel[np.ix_(seen.places, seen.places)] + np.diag(seen.noise)
        to_now = self._kernel[seen.places]
        values = seen.values - centre
        means, variances, likelihoods = [], [], []
        for step_sd in self.steps_sd:
            root = np.linalg.cholesky(steady + step_sd**2 * walk)
            white = np.linalg.solve(root, np.column_stack([values, to_now]))
            means.append(centre + white[:, 1:].T @ white[:, 0])
            variances.append(self._kernel.diagonal() - np.sum(white[:, 1:] ** 2, axis=0))
            likelihoods.append(-0.5 * white[:, 0] @ white[:, 0] - np.log(root.diagonal()).sum())
        weights = np.exp(np.array(likelihoods) - max(likelihoods))
        weights[0] *= len(self.steps_sd) - 1
        weights /= weights.sum()
        mean = weights @ np.array(means)
        variance = weights @ (np.array(variances) + (np.array(means) - mean) ** 2)
        return mean, np.maximum(variance, 1e-12)
