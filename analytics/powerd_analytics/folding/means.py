"""Mean power of phases that are shorter than the sensor's window, from many iterations seen at shifting moments.

A reading is the mean power over its window: a linear function of the power in each bin of each kind of phase, with the
shares of the window as coefficients. Iterations come at moments that have nothing to do with the sensor's, so that many
readings are many different equations for the same unknowns. Least squares solves them. Windows say little of what goes
on inside a phase much shorter than they are; there a prior takes over (`powerd_analytics.folding.priors`): after an
edge the power comes from its old level with some time constant, and beside that it walks at random. Time constant and
size of the walk are unknown; all are weighed by how well they explain the readings (Bayesian model averaging), so that
what the readings leave open widens the interval instead of being decided by a choice. Where the windows lie, and how
much later than its phases power comes (`powerd_analytics.folding.lag`), are limits: what they make is taken from end to
end of what the readings do not speak against.

Where every window holds whole iterations, only phases that last longer or shorter than usual tell the kinds apart, and
what they tell is the power of the time that is more, which need not be that of the rest. It is an unknown of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.folding.equations import Equations, jackknife, noise_of
from powerd_analytics.folding.lag import Cases, Places
from powerd_analytics.folding.posterior import evidence, means, means_and_variances
from powerd_analytics.folding.priors import Priors

Values = NDArray[np.float64]

_AGAINST = 1.92
"""How much smaller the logarithm of that evidence is where readings speak against a place and a lag of the windows: the
95 % limit of a likelihood ratio for one unknown (Wilks, 1938)."""
_BY_CHANCE = 2.0
"""How many times the variance that their noise explains 16 blocks may well differ by (1.8 in one of 40 cases)."""
_NEXT_TO_NOTHING = 1e-12
"""Share of all models' below which one is not asked for its power."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Mean power of each kind [k], around ``usual_w``, with standard uncertainties (W)."""

    node_ns: Values
    """[nodes] differences of place and lag that are possible, `Places.nodes`."""
    watts: Values
    u_random_w: Values
    """From the scatter of the readings and of the iterations: shrinks with their number."""
    u_model_w: Values
    """From what windows cannot see inside a phase: stays."""
    limit_w: Values
    """How far the places of windows and the lags of power that are possible take it at most: stays."""
    of_lag: Values
    """Share of that which goes with the lag, 0 to 1, as of a variance; the rest goes with the place."""
    u_in_step_w: Values
    """From how readings at the same moments of an iteration are off together, whatever their number: stays."""


def solve(
    equations: Callable[[float], Equations],
    places: Places,
    marks: Values,
    priors: Priors,
    usual_w: float,
    in_step: Callable[[float], Equations] | None = None,
) -> Solution:
    """Weigh all ``priors`` at all ``places`` that are possible, and mix what they give.

    ``equations`` are those of windows that are later by a number of ns than they seem. ``marks`` [lags, k, p] takes the
    mean power between the marks of a kind's phases. ``in_step`` are the same equations, in blocks of readings at the
    same moments of an iteration; `Solution.u_in_step_w` is 0 without them.
    """
    made = [equations(by) for by in places.nodes().tolist()]
    sigma2, apart = _scatter(made, priors, usual_w, marks[len(marks) // 2])
    q = priors.scaled(usual_w)
    told = _together(np.array([e.told * evidence(e.total, sigma2, q) for e in made]))
    nodes = places.finer(places.nodes(), told >= told.max() - _AGAINST)
    made = [equations(by) for by in nodes.tolist()]
    weights = _Weights.of(made, sigma2, q, places.cases(nodes))
    watts, noise, model = weights.of_cases(made, lambda e, some: means_and_variances(e.total, sigma2, some, marks), q)
    together = np.zeros(len(apart))
    if in_step is not None:
        # Windows where they are not would be off in step too.
        found = np.array([evidence(e.total, sigma2, q) for e in made])
        node, best = np.unravel_index(np.argmax(found), found.shape)
        together = jackknife(in_step(nodes[node]), q.precision[best], sigma2, marks[len(marks) // 2])
    return _mixed(weights, watts, noise, model, nodes, apart, np.sqrt(together))


def means_at(
    node_ns: Values,
    equations: Callable[[float], Equations],
    places: Places,
    marks: Values,
    priors: Priors,
    usual_w: float,
) -> Values:
    """[k] `Solution.watts` alone, from differences that are known to be possible."""
    made = [equations(by) for by in node_ns.tolist()]
    sigma2, _ = _scatter(made, priors, usual_w, marks[len(marks) // 2])
    q = priors.scaled(usual_w)
    weights = _Weights.of(made, sigma2, q, places.cases(node_ns))
    (watts,) = weights.of_cases(made, lambda e, some: means(e.total, sigma2, some, marks), q)
    return weights.mean(watts)


@dataclass(frozen=True, slots=True)
class _Weights:
    """How likely places, lags and models are with the readings, of those that these do not speak against."""

    cases: Cases
    which: NDArray[np.bool_]
    """[models] that count."""
    of_models: Values
    """[d, models that count, 1, 1] for each difference; sum to 1 for one."""
    of_lags: Values
    """[d, l, 1] of differences and lags; sum to 1."""

    @staticmethod
    def of(made: list[Equations], sigma2: float, priors: Priors, cases: Cases) -> _Weights:
        """``made`` are the equations at the nodes of ``cases``."""
        told_by = made[0].told * cases.between_nodes(np.array([evidence(e.total, sigma2, priors) for e in made]))
        told = _together(told_by)
        # One run has one place and one lag, which may be any that the readings do not speak against.
        possible = told >= told.max() - _AGAINST
        of_models = np.exp(told_by - told[:, None])[possible]
        which = of_models.max(axis=0) > _NEXT_TO_NOTHING
        usual = np.maximum(cases.prior * np.exp(told - told.max())[:, None], 1e-300)[possible][:, :, None]
        return _Weights(cases.only(possible), which, of_models[:, which, None, None], usual / usual.sum())

    def of_cases(
        self, made: list[Equations], known: Callable[[Equations, Priors], Values], priors: Priors
    ) -> list[Values]:
        """Each [d, models that count, l, k], of what is ``known`` [each, models, lags, k] of equations."""
        some = priors.only(self.which)
        there = np.unique(np.append(self.cases.low, np.minimum(self.cases.low + 1, len(made) - 1)))
        first = known(made[there[0]], some)
        # Between nodes that no case lies at nothing is looked up.
        at_nodes = np.zeros((len(first), len(made), *first.shape[1:]))
        at_nodes[:, there[0]] = first
        for i in there[1:]:
            at_nodes[:, i] = known(made[i], some)
        return [self.cases.with_lags(each) for each in at_nodes]

    def mean(self, watts: Values) -> Values:
        """[k] over models, differences and lags, of [d, models that count, l, k]."""
        made: Values = np.sum(self.of_lags * np.sum(self.of_models * watts, axis=1), axis=(0, 1))
        return made


def _mixed(
    weights: _Weights, watts: Values, noise: Values, model: Values, node_ns: Values, apart: Values, in_step_w: Values
) -> Solution:
    usual, both = weights.of_lags, (0, 1)
    # [differences, lags, kinds], with the models mixed.
    each = np.sum(weights.of_models * watts, axis=1)
    mean = np.sum(usual * each, axis=both)
    beside = each - mean
    limit = np.abs(beside).max(axis=both)
    late = weights.cases.lag_ns[:, :, None]
    late = late - np.sum(usual * late)
    with_lag = np.sum(usual * late * beside, axis=both) ** 2 / np.maximum(np.sum(usual * late**2), 1e-300)
    of_lag = np.clip(with_lag / np.maximum(np.sum(usual * beside**2, axis=both), 1e-300), 0.0, 1.0)
    random = np.maximum(weights.mean(noise), apart)
    inside_w = np.sqrt(weights.mean(model + (watts - each[:, None]) ** 2))
    return Solution(node_ns, mean, np.sqrt(random), inside_w, limit, of_lag, in_step_w)


def _together(evidence: Values) -> Values:
    """[n] of all models together, from the logarithms [n, models]."""
    best = evidence.max(axis=1)
    made: Values = best + np.log(np.sum(np.exp(evidence - best[:, None]), axis=1))
    return made


def _scatter(made: list[Equations], priors: Priors, usual_w: float, of: Values) -> tuple[float, Values]:
    """Variance of readings, such that it explains how blocks of them differ; and the variance [k] that means ``of``
    [k, p] have by how blocks differ."""
    sigma2 = noise_of(made, priors.precision[-1], usual_w)
    middle, q = made[len(made) // 2], priors.scaled(usual_w)
    best = int(np.argmax(evidence(middle.total, sigma2, q)))
    noise = means_and_variances(middle.total, sigma2, q.only(slice(best, best + 1)), of[None])[1, 0, 0]
    # Iterations differ, and readings that overlap are off together: blocks that lie apart tell by how much.
    apart = jackknife(middle, q.precision[best], sigma2, of)
    return sigma2 * max(1.0, float(np.min(apart / np.maximum(noise, 1e-300))) / _BY_CHANCE), apart
