"""Shares of hits: of one cell with its interval, and of all cells of a phase length together."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, exp, lgamma, log

import numpy as np

LOW, HIGH = 0.93, 0.97
ALONE = 0.05
"""The share of cells whose own interval may miss what is true, and of benchmarks that say so in `Verdict.together`."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of hits with its 95 % interval."""

    value: float
    low: float
    high: float
    variance: float = 0.0
    """Of ``value``, from how runs differ."""
    runs: int = 1

    @property
    def is_missed(self) -> bool:
        return self.high < LOW or self.low > HIGH

    @property
    def is_inside(self) -> bool:
        return LOW <= self.value <= HIGH

    def __str__(self) -> str:
        return f"{self.value:6.1%} ({self.low:5.1%}-{self.high:6.1%})"


def share_of(by_run: np.ndarray) -> Share:
    """From shares [runs]: Wilson's interval for as many independent trials as the scatter between runs amounts to."""
    n, p = len(by_run), float(np.mean(by_run))
    variance = float(np.var(by_run, ddof=1)) / n if n > 1 else 0.25
    trials = max(p * (1 - p) / variance, n) if variance > 0 else n
    z2 = 1.96**2
    middle, half = p + z2 / (2 * trials), 1.96 * np.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2))
    low, high = float((middle - half) / (1 + z2 / trials)), float((middle + half) / (1 + z2 / trials))
    return Share(p, low, high, variance, n)


def at_most(hits: float, n: int, p: float) -> float:
    """Probability of so many hits (rounded up) or fewer in ``n`` independent trials with ``p`` each."""
    k = ceil(hits - 1e-9)
    each = [lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) + i * log(p) + (n - i) * log(1 - p) for i in range(k + 1)]
    return min(sum(exp(x) for x in each), 1.0)


def pooled(shares: list[Share]) -> Share:
    """Of runs that draw their cell too, each as likely as any other; the cells are strata, so that only the scatter
    within them counts."""
    value = float(np.mean([s.value for s in shares]))
    variance = sum(s.variance for s in shares) / len(shares) ** 2
    half = 1.96 * float(np.sqrt(variance))
    return Share(value, max(value - half, 0.0), min(value + half, 1.0), variance)


@dataclass(slots=True)
class Verdict:
    """What came of the judged shares."""

    judged: int = 0
    inside: int = 0
    below: int = 0
    above: int = 0
    cautious: int = 0
    worst_low: float = 1.0
    worst_high: float = 0.0
    shares: list[Share] = field(default_factory=list)

    @property
    def by_chance(self) -> float:
        """Cells that would be beyond a limit by their own interval if all were right at it."""
        return ALONE / 2 * self.judged

    def together(self) -> tuple[int, int]:
        """How many are so far below and above a limit that, were all cells right at it, a share `ALONE` of benchmarks
        would have any (Bonferroni): of hundreds of looks, some are beyond by their own interval by chance.

        A run counts as one trial. Its phases share gain, zero and clock, so that one run in thirty misses altogether;
        runs without such a one hardly differ, and an interval from how they differ is too narrow then.
        """
        rare = ALONE / 2 / max(self.judged, 1)
        below = sum(at_most(s.value * s.runs, s.runs, LOW) < rare for s in self.shares)
        return below, sum(at_most((1 - s.value) * s.runs, s.runs, 1 - HIGH) < rare for s in self.shares)

    def add(self, share: Share, bare: Share | None = None) -> str:
        """Count one share; the text to print behind it. ``bare`` is the same without the bound of the edges."""
        self.judged += 1
        self.shares.append(share)
        self.inside += LOW <= share.value <= HIGH
        self.worst_low, self.worst_high = min(self.worst_low, share.value), max(self.worst_high, share.value)
        if share.high < LOW:
            self.below += 1
            return f"<-- below by {LOW - share.value:.1%}"
        if share.low <= HIGH:
            return ""
        if bare is not None and bare.low <= HIGH:
            self.cautious += 1
            return f"cautious: edges are a bound ({bare.value:.1%} without)"
        self.above += 1
        return f"<-- above by {share.value - HIGH:.1%}"


@dataclass(slots=True)
class Length:
    """What came of all cells of one phase length."""

    single: list[Share] = field(default_factory=list)
    mean: list[Share] = field(default_factory=list)
    """All cells that have a number, those apart as well."""
    judged_single: list[Share] = field(default_factory=list)
    judged_mean: list[Share] = field(default_factory=list)
    resolvable: list[float] = field(default_factory=list)
    """Shares of phases with a number [cells], 0 where a cell has none."""

    @property
    def is_missed(self) -> bool:
        """Whether single phases or means of all cells together lie outside 93-97 %, or no sensor resolves them."""
        return not self.single or not (pooled(self.single).is_inside and pooled(self.mean).is_inside)

    def row(self, length_ms: float) -> str:
        none = 1 - float(np.mean(self.resolvable)) if self.resolvable else 1.0
        groups = (self.single, self.judged_single, self.mean, self.judged_mean)
        texts = [_cells(group) for group in groups]
        return f"  {length_ms:6g} ms {none:15.1%} {' '.join(texts)}"


def _cells(group: list[Share]) -> str:
    if not group:
        return f"{'none':>5} {'':25}"
    share = pooled(group)
    return f"{len(group):5} {share!s:24}{' ' if share.is_inside else '!'}"


HEAD = f"  {'phase':>9} {'not resolvable':>15} " + " ".join(
    f"{'cells':>5} {name:25}" for name in ("single phases, all", "less those apart", "means, all", "less those apart")
)
