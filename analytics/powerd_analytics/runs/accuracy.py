"""How good what was trained is, in time: the events of `Meter.result` as series, and targets that they can meet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.output.text import is_number_cell, parse_number
from powerd_analytics.runs.run import Run
from powerd_core.errors import ConfigError
from powerd_core.text import printable

BEST = "_best"
"""What the column of a result's best value ends with."""
COORDINATES = ("epoch", "step", "iteration")
"""Names that say when a result was, and not how good."""
_LOWER_IS_BETTER = re.compile(
    r"loss|error|perplexity|(?:^|[\W_])(?:ppl|[wc]er|r?mse|mae|nll|fid)(?:$|[\W_])", re.IGNORECASE
)


def is_lower_better(name: str) -> bool:
    """Whether less of a result is better: of losses and errors, by their names (``loss``, ``val_loss``, ``wer``)."""
    return _LOWER_IS_BETTER.search(name) is not None


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The values of one result, in the order of their times."""

    name: str
    t_ns: NDArray[np.int64]
    """[n] host's clock."""
    values: NDArray[np.float64]
    """[n] as the script gave them: per cent or shares."""

    def __len__(self) -> int:
        return len(self.t_ns)

    @property
    def best(self) -> float:
        """The least of a loss, the greatest of anything else. Raises ValueError for an empty series."""
        return float(self.values.min() if is_lower_better(self.name) else self.values.max())

    def of(self, begin_ns: int, end_ns: int) -> Series:
        """The values of what ran from ``begin_ns`` to ``end_ns``: a result is of all that ran since the one before it.

        An evaluation behind a training so has the result that the training has, and of two trainings one after the
        other each has its own.
        """
        before_ns = np.append(np.iinfo(np.int64).min, self.t_ns[:-1])[: len(self)]
        own = (self.t_ns >= begin_ns) & (before_ns < end_ns)
        return Series(self.name, self.t_ns[own], self.values[own])


def series_of(run: Run) -> tuple[Series, ...]:
    """The series of all results that are numbers, in the order in which their names first occur."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in run.results:
        for name, value in event.values.items():
            if is_number_cell(value) and isfinite(value) and name not in COORDINATES:
                found.setdefault(name, []).append((event.t_ns, float(value)))
    return tuple(
        Series(name, np.array([t for t, _ in own], np.int64), np.array([v for _, v in own]))
        for name, own in found.items()
    )


@dataclass(frozen=True, slots=True)
class ResultTarget:
    """A value of a result that is to be reached: at least, or of a loss at most."""

    name: str
    value: float

    @classmethod
    def parse(cls, text: str) -> ResultTarget:
        """``NAME=VALUE``, as in ``top1=0.98``. Raises `ConfigError`."""
        name, _, number = (piece.strip() for piece in text.partition("="))
        value = parse_number(number)
        if not name or value is None:
            raise ConfigError(f"--to {printable(text, limit=80)}: is not NAME=VALUE, as in top1=0.98")
        return cls(name, value)

    def __str__(self) -> str:
        return f"{self.name} {'<=' if is_lower_better(self.name) else '>='} {self.value:.6g}"

    def reached_ns(self, series: Series) -> int | None:
        """When a series first met it; None where it never did."""
        away = series.values - self.value
        met = np.flatnonzero(away <= 0 if is_lower_better(self.name) else away >= 0)
        return int(series.t_ns[met[0]]) if len(met) else None
