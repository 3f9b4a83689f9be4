"""CO2 and money of the trainings as a sentence of the page's summary."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_analytics.campaigns.components import of_trainings, without_summands
from powerd_analytics.campaigns.factors import CO2, Factors, with_factors
from powerd_analytics.energy.reasons import digits
from powerd_analytics.records.columns import Record, number_of
from powerd_analytics.report.configurations import configuration, kind_order

NO_FACTORS = Factors()


def cost_lines(records: Sequence[Record], factors: Factors) -> list[str]:
    """A sentence for each provenance, by the same functions as the columns of ``totals``: of several configurations
    that with least joules and that with most. ``records``: averaged. None where no factor is stated."""
    totals = [r for r in records if r["kind"] == "total" and r["energy_j"] is not None]
    if not factors or not totals:
        return []
    totals = of_trainings(without_summands(totals))
    what = "The whole training" if any("s_per_training" in r for r in totals) else "What was recorded of training"
    lines = []
    for provenance in sorted({r["provenance"] for r in totals}, key=kind_order):
        same = [r for r in totals if r["provenance"] == provenance]
        ranked = with_factors(sorted(same, key=lambda r: number_of(r, "energy_j") or 0.0), factors)
        said = [_figures(r, factors) for r in ranked]
        names = [f" ({configuration(r, same)})" if len(same) > 1 else "" for r in ranked]
        span = f"{said[0]}{names[0]}" + (f" to {said[-1]}{names[-1]}" if len(same) > 1 else "")
        lines.append(f"{what}: {span}, of {provenance} joules; {factors.stated}.")
    return lines


def _figures(record: Record, factors: Factors) -> str:
    """Grams and money of one total, as in the table."""
    columns = factors.columns
    least = "at least " if record["is_lower_bound"] is True else ""
    said = []
    for name, of_u95 in zip(columns[::2], columns[1::2], strict=True):
        u95, unit = number_of(record, of_u95), "g CO2e" if name == CO2 else (factors.currency or "").upper()
        interval = f" ± {digits(u95, 2)}" if u95 is not None else ""
        said.append(f"{least}{digits(number_of(record, name))}{interval} {unit or 'of money, its currency not stated'}")
    return " and ".join(said)
