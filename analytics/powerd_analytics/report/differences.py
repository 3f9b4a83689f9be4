"""How much two configurations differ a sample, and whether by more than chance: by the code of `joules compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from powerd_analytics.campaigns.components import paths_of
from powerd_analytics.campaigns.repeats import CAP_STEP_W, CLOCK_SHARE
from powerd_analytics.comparison.compare import NOTHING, Difference, compare
from powerd_analytics.comparison.samples import Sample
from powerd_analytics.comparison.significance import LEVEL, holm
from powerd_analytics.exports.sheet import cell_text
from powerd_analytics.records.columns import Record, number_of
from powerd_core.errors import AnalysisError

_SAME = ("host", "model", "batch_size", "gpus", "device", "device_name", "provenance", "attributes")
_OF_A_BATCH = ("j_per_batch", "s_per_batch", "energy_j", "time_s", "u95_j", "u_statistical_j", "u_systematic_j")
_JOULES = ("j_per_batch", "energy_j", "u95_j", "u_statistical_j", "u_systematic_j")
_MOST = 0.5
"""A phase that stands for the whole takes at least this share of its joules."""


@dataclass(frozen=True, slots=True)
class Step:
    """From the best configuration to another: per cent more joules a sample."""

    percent: float
    u95_percent: float | None
    p: float | None
    """Corrected for the rows of the comparison, and for the configurations that the best one was compared with."""
    phase: str | None
    """The phase whose repeats tell it, None where the totals of several runs do."""
    repeats: str

    @property
    def is_distinguishable(self) -> bool:
        """Whether the other one takes more by more than chance."""
        return self.p is not None and self.p < LEVEL and self.percent > 0

    @property
    def words(self) -> str:
        """How much, and how sure: ``18.9 ± 0.52 % more (p < 0.0001, Welch's t, runs)``."""
        reach = "" if self.u95_percent is None else f" ± {_rounded(self.u95_percent, 2)}"
        percent = _rounded(self.percent, 3)
        if self.p is None:
            return f"{percent} % more, without repeats that would tell whether by chance"
        p = cell_text("p", self.p, 2)
        sure = f"p {p}" if p.startswith("<") else f"p = {p}"
        where = f", phase {self.phase}" if self.phase is not None else ""
        return f"{percent}{reach} % more ({sure}, Welch's t, {self.repeats}{where})"


def steps(
    best: Record, others: Sequence[Record], samples: Sequence[Sample], *, with_delay: bool = False
) -> list[Step | None]:
    """From ``best`` to each of ``others``, all of them averaged totals; None where the two cannot be compared.

    ``with_delay``: of joules times seconds, the energy-delay product, in the place of joules.
    """
    of_best = _per_sample(best, samples, with_delay=with_delay)
    found = [_step(of_best, _per_sample(other, samples, with_delay=with_delay)) for other in others]
    corrected = holm([s.p if s else None for s in found])
    return [replace(s, p=p) if s else None for s, p in zip(found, corrected, strict=True)]


def untested(percent: float) -> Step:
    """A difference of which nothing tells whether it is chance."""
    return Step(percent, None, None, None, NOTHING)


def in_words(names: Sequence[str], found: Sequence[Step]) -> str:
    """From which of the others, nearest first, the best configuration can be told apart, and how far the next is."""
    close = [n for n, step in zip(names, found, strict=True) if step.p is not None and not step.is_distinguishable]
    untold = [n for n, step in zip(names, found, strict=True) if step.p is None]
    sure = [f"not distinguishable from {_first(close)}"] if close else []
    sure += [f"without repeats that would tell it from {_first(untold)}"] if untold else []
    return f"{'; '.join(sure) or 'distinguishable from all others'}; next is {names[0]}, {found[0].words}"


def _rounded(value: float, places: int) -> str:
    """So many significant digits and no zeros behind them, large ones without an exponent."""
    return f"{float(f'{value:.{places}g}'):.15g}"


def _first(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _per_sample(total: Record, samples: Sequence[Sample], *, with_delay: bool) -> list[Sample]:
    """The samples of one configuration, their joules and seconds those of one sample of a batch."""
    rate, seconds = number_of(total, "samples_per_s"), number_of(total, "s_per_batch")
    if not rate or not seconds:
        return []
    n = rate * seconds
    found = [_divided(s, n) for s in samples if _belongs(s.record, total)]
    return [_delayed(s) for s in found] if with_delay else found


def _belongs(record: Record, total: Record) -> bool:
    if any(record[name] != total[name] for name in _SAME):
        return False
    if str(record["path"]) not in paths_of(total):
        return False
    cap, of_total = number_of(record, "power_cap_w"), number_of(total, "power_cap_w")
    if (cap is None) != (of_total is None) or abs((cap or 0.0) - (of_total or 0.0)) > CAP_STEP_W:
        return False
    clock, of_total = number_of(record, "clock_hz"), number_of(total, "clock_hz")
    return clock is None or of_total is None or abs(clock - of_total) <= CLOCK_SHARE * of_total


def _divided(s: Sample, n: float) -> Sample:
    record = dict(s.record)
    for name in _OF_A_BATCH:
        value = number_of(record, name)
        record[name] = None if value is None else value / n
    sensors = tuple(replace(x, joules=x.joules / n, seconds=x.seconds / n) for x in s.sensors)
    return Sample(record, s.joules / n, s.seconds / n, sensors)


def _delayed(s: Sample) -> Sample:
    """Joules, and all that is unsure of them, times the seconds that they took."""
    delay = number_of(s.record, "s_per_batch")
    record = dict(s.record)
    for name in _JOULES:
        value = number_of(record, name)
        record[name] = None if value is None or delay is None else value * delay
    # Without its seconds a phase has no product: some had no joules.
    joules = s.joules * s.seconds if len(s.joules) == len(s.seconds) else s.joules[:0]
    sensors = tuple(replace(x, joules=x.joules * (delay or 0), seconds=x.seconds * (delay or 0)) for x in s.sensors)
    return Sample(record, joules, s.seconds, sensors)


def _step(a: Sequence[Sample], b: Sequence[Sample]) -> Step | None:
    try:
        found = compare(a, b)
    except AnalysisError:
        return None
    kind, phase = found.names.index("kind"), found.names.index("phase")
    rows = [d for d in found.rows if d.figure == "j_per_batch"]
    total = next((d for d in rows if d.key[kind] == "total"), None)
    if total is None or not total.a.value:
        return None
    told = total if total.p is not None else _longest(rows, total, kind)
    percent = 100 * total.change / total.a.value
    if told is None or not told.a.value:
        return Step(percent, None, None, None, total.repeats)
    u95 = 100 * told.u95 / told.a.value if told.u95 is not None else None
    name = None if told is total else str(told.key[phase])
    return Step(100 * told.change / told.a.value, u95, told.p, name, told.repeats)


def _longest(rows: Sequence[Difference], total: Difference, kind: int) -> Difference | None:
    """Single totals have no repeats: the phase with most joules stands for them, where it is most of them."""
    phases = [d for d in rows if d.key[kind] == "phase" and d.p is not None and d.a.value >= _MOST * total.a.value]
    return max(phases, key=lambda d: d.a.value, default=None)
