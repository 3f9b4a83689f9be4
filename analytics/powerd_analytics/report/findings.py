"""What a page says first, in plain words: which phase takes most, which configuration is best, what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerd_analytics.campaigns.components import without_gflops, without_summands
from powerd_analytics.campaigns.factors import Factors
from powerd_analytics.campaigns.innermost import innermost, of_configurations
from powerd_analytics.campaigns.repeats import averaged, of_a_batch
from powerd_analytics.comparison.samples import Sample
from powerd_analytics.energy.reasons import digits, seconds
from powerd_analytics.records.columns import Record, number_of
from powerd_analytics.report.best import best_configurations
from powerd_analytics.report.costs import NO_FACTORS, cost_lines
from powerd_analytics.report.largest import MOST_LINES, largest_phases


@dataclass(frozen=True, slots=True)
class Findings:
    """One sentence that matters most, and further ones."""

    main: str
    lines: tuple[str, ...]


def findings(records: Sequence[Record], samples: Sequence[Sample] = (), factors: Factors = NO_FACTORS) -> Findings:
    """Sentences on the records of one or many runs (`powerd_analytics.campaigns.fieldtables.prepared`).

    ``samples``: what is behind these records, from which differences between configurations get their significance.
    ``factors``: of CO2 and money, where these are asked for.
    """
    several = [r for r in records if r["kind"] in ("phase", "total")]
    found = averaged(several)
    # By the batch, runs that made different numbers of batches are repeats.
    by_batch = averaged(without_gflops(of_a_batch(r)) for r in several)
    inner = of_configurations(innermost(by_batch))
    lines = largest_phases(without_summands(by_batch))
    if inner and all(r["j_per_batch"] is None for r in inner):
        lines = ["No innermost phase has an energy that the sensors could resolve."]
    lines += [*best_configurations(by_batch, samples), *cost_lines(found, factors)]
    lines += [*_recordings(records), *_unknown(found)]
    return Findings(lines[0], tuple(lines[1:]))


def _recordings(records: Sequence[Record]) -> list[str]:
    runs = [r for r in records if r["kind"] == "run"]
    lines = []
    for r in runs[:MOST_LINES]:
        if r["energy_j"] is None:
            lines.append(f"{r['run']}: {r['device']} has no energy: {r['note'] or 'too few readings'}.")
            continue
        u, least = number_of(r, "u95_j"), "at least " if r["is_lower_bound"] is True else ""
        interval = f" ± {digits(u, 2)}" if u is not None else ""
        lines.append(
            f"{r['run']}: {r['device']} took {least}{digits(number_of(r, 'energy_j'))}{interval} J in "
            f"{seconds(number_of(r, 'time_s') or 0.0)}, {digits(number_of(r, 'power_w'))} W on average "
            f"({r['provenance']})."
        )
    if len(runs) > MOST_LINES:
        lines.append(f"{len(runs) - MOST_LINES} more recordings are in the table.")
    return lines


def _unknown(records: Sequence[Record]) -> list[str]:
    lines = []
    phases = [r for r in records if r["kind"] == "phase"]
    none = [r for r in phases if r["j_per_batch"] is None]
    if none:
        every = list(dict.fromkeys(f"{r['phase']} on {r['device']}" for r in none))
        names = ", ".join(every[:MOST_LINES]) + (
            f" and {len(every) - MOST_LINES} more" if len(every) > MOST_LINES else ""
        )
        reasons = [str(r["note"] or "").removeprefix("not resolvable: ").split("; ")[0] for r in none]
        of = "" if len(set(reasons)) == 1 else f"; {every[0]}"
        lines.append(f"Not resolvable: {len(none)} of {len(phases)} kinds of phases ({names}){of}: {reasons[0]}.")
    elif phases:
        lines.append(f"All {len(phases)} kinds of phases are resolvable.")
    bounds = sum(r["is_lower_bound"] is True for r in records if r["kind"] in ("phase", "total", "run"))
    if bounds:
        lines.append(f"{bounds} energies are lower bounds: a line stood at full scale.")
    missing = [r for r in records if r["kind"] == "total" and (number_of(r, "missing_s") or 0.0) > 0]
    if missing:
        worst = max(missing, key=lambda r: number_of(r, "missing_s") or 0.0)
        lines.append(f"Readings are missing: up to {seconds(number_of(worst, 'missing_s') or 0.0)} in {worst['run']}.")
    return lines
