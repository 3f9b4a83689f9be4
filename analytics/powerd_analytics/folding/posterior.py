"""What readings make of a prior: how likely it is with them, and the power that it then gives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.folding.equations import Total
from powerd_analytics.folding.priors import Priors

Values = NDArray[np.float64]

_FAR = 1e150
"""Beyond every sum of squares of readings over their noise."""


def evidence(total: Total, sigma2: float, priors: Priors) -> Values:
    """[models] logarithms of how likely the readings are, with noise of variance ``sigma2``."""
    normal, right, square, n = total
    log_det, explained = _determinants(normal / sigma2 + priors.precision, right / sigma2)
    made: Values = 0.5 * (priors.log_det - log_det - (square / sigma2 - explained) - n * np.log(sigma2))
    return made


def _determinants(precision: Values, right: Values) -> tuple[Values, Values]:
    """[models] logarithms of the determinants of matrices [models, p, p], and what they and ``right`` [p] explain of
    the squares. Both are in Cholesky's factor of the matrix with one row more: half the work of Gauss's, once."""
    p = len(right)
    more = np.empty((len(precision), p + 1, p + 1))
    # Only the lower triangle is looked at.
    more[:, :p, :p], more[:, p, :p], more[:, p, p] = precision, right, _FAR
    try:
        lower = np.linalg.cholesky(more)
    except np.linalg.LinAlgError:
        # Readings without any noise weigh so much more than what is taken as possible that rounding decides.
        x = np.linalg.solve(precision, right[None, :, None])[..., 0]
        return np.linalg.slogdet(precision)[1], x @ right
    pivots = np.diagonal(lower, axis1=1, axis2=2)[:, :p]
    return 2 * np.log(pivots).sum(axis=1), np.sum(lower[:, p, :p] ** 2, axis=1)


def means(total: Total, sigma2: float, priors: Priors, marks: Values) -> Values:
    """[1, models, lags, k] power that ``marks`` [lags, k, p] take of what is most likely."""
    normal, right, _, _ = total
    x = np.linalg.solve(normal / sigma2 + priors.precision, (right / sigma2)[None, :, None])[..., 0]
    made: Values = (x @ _flat(marks).T).reshape(1, len(x), *marks.shape[:2])
    return made


def means_and_variances(total: Total, sigma2: float, priors: Priors, marks: Values) -> Values:
    """[3, models, lags, k] the same, and the variances that it has from noise and from the prior."""
    normal, right, _, _ = total
    normal, flat = normal / sigma2, _flat(marks)
    known = np.linalg.solve(normal + priors.precision, np.column_stack([right / sigma2, flat.T])[None])
    x, to = known[..., 0], known[..., 1:]
    noise = np.sum(to * (normal @ to), axis=1)
    model = np.maximum(np.sum(to * flat.T, axis=1) - noise, 0.0)
    return np.array([x @ flat.T, noise, model]).reshape(3, len(x), *marks.shape[:2])


def _flat(marks: Values) -> Values:
    return marks.reshape(-1, marks.shape[-1])
