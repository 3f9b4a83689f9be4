"""What a page says first, in plain words: which phase takes most, which configuration is best, what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from powerd_analytics.campaigns.factors import Factors
from powerd_analytics.campaigns.figures import figure_of
from powerd_analytics.campaigns.innermost import group_of, innermost
from powerd_analytics.campaigns.repeats import averaged
from powerd_analytics.comparison.samples import Sample
from powerd_analytics.energy.reasons import digits, seconds
from powerd_analytics.records.columns import Cell, Record, number_of
from powerd_analytics.report.configurations import configuration, kind_order, without_summands
from powerd_analytics.report.costs import NO_FACTORS, cost_lines
from powerd_analytics.report.differences import in_words, steps, untested

_MOST_LINES = 6


@dataclass(frozen=True, slots=True)
class Findings:
    """One sentence that matters most, and further ones."""

    main: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Best:
    record: Record
    value: float
    u95: float | None


def findings(records: Sequence[Record], samples: Sequence[Sample] = (), factors: Factors = NO_FACTORS) -> Findings:
    """Sentences on the records of one or many runs (`powerd_analytics.campaigns.fieldtables.prepared`).

    ``samples``: what is behind these records, from which differences between configurations get their significance.
    ``factors``: of CO2 and money, where these are asked for.
    """
    found = averaged(r for r in records if r["kind"] in ("phase", "total"))
    largest = _largest_phases(without_summands(found))
    best = _best_configurations(found, samples)
    lines = [*largest, *best, *cost_lines(found, factors), *_recordings(records), *_unknown(found)]
    main = lines.pop(0) if lines else "No phase of these runs has an energy that the sensors could resolve."
    return Findings(main, tuple(lines))


def _largest_phases(records: Sequence[Record]) -> list[str]:
    """For each device, the phase with most joules in each configuration; one sentence where it is always the same."""
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    lacking = set()
    for r in innermost(records):
        if _joules(r) is not None:
            groups.setdefault(group_of(r), []).append(r)
        else:
            lacking.add((r["device"], r["provenance"]))
    devices: dict[tuple[Cell, Cell], list[list[Record]]] = {}
    for same in groups.values():
        # What belongs to no configuration (a warm-up, an evaluation) is alone in its group. Of no joules at all, or of
        # some that a shunt let flow back, nothing has a share.
        if len(same) > 1 and sum(_joules(r) or 0.0 for r in same) > 0:
            devices.setdefault((same[0]["device"], same[0]["provenance"]), []).append(same)
    lines = []
    for (device, provenance), found in sorted(devices.items(), key=_weight):
        ranked = [sorted(same, key=lambda r: -(_joules(r) or 0.0)) for same in found]
        names = {str(same[0]["phase"]) for same in ranked}
        where = f"on {device} ({provenance})"
        of = "its phases that have joules take" if (device, provenance) in lacking else "its phases take"
        if len(names) == 1 and len(ranked) > 1:
            shares = [100 * (_joules(s[0]) or 0.0) / sum(_joules(r) or 0.0 for r in s) for s in ranked]
            span = (
                f"{min(shares):.0f} to {max(shares):.0f}"
                if round(max(shares)) > round(min(shares))
                else f"{shares[0]:.0f}"
            )
            sure = sum(_is_more(s[0], s[1]) for s in ranked)
            number = "all" if sure == len(ranked) else str(sure) if sure else "none"
            lines.append(
                f"{names.pop()} takes most of the joules {where} in all {len(ranked)} configurations: {span} % of "
                f"what {of}; in {number} of them it differs from the next phase by more than the 95 % "
                "interval."
            )
            continue
        lines += [_largest(same, where, of, [s[0] for s in ranked]) for same in ranked[:_MOST_LINES]]
    return lines


def _weight(item: tuple[tuple[Cell, Cell], list[list[Record]]]) -> tuple[int, float]:
    """Measured joules before others, then where there are more of them."""
    (_, provenance), found = item
    return kind_order(provenance), -sum(_joules(r) or 0.0 for same in found for r in same)


def _largest(ranked: Sequence[Record], where: str, whole: str, among: Sequence[Record]) -> str:
    first, second = ranked[0], ranked[1]
    share = 100 * (_joules(first) or 0.0) / sum(_joules(r) or 0.0 for r in ranked)
    of = f" ({configuration(first, among)})" if len(among) > 1 else ""
    sure = "a difference that is" if _is_more(first, second) else "which is not"
    return (
        f"{first['phase']} takes most of the joules {where}{of}: {_figure(first)} J a batch, {share:.0f} % of what "
        f"{whole}; next is {second['phase']} with {_figure(second)} J, {sure} distinguishable at 95 %."
    )


def _joules(record: Record) -> float | None:
    """All phases of the kind together."""
    j, n = number_of(record, "j_per_batch"), number_of(record, "iterations")
    return None if j is None or n is None else j * n


def _is_more(first: Record, second: Record) -> bool:
    a, b = _joules(first), _joules(second)
    u = [number_of(r, "u95_j") for r in (first, second)]
    n = [number_of(r, "iterations") or 0.0 for r in (first, second)]
    if a is None or b is None or u[0] is None or u[1] is None:
        return False
    return a - b > hypot(u[0] * n[0], u[1] * n[1])


def _figure(record: Record) -> str:
    value, u = number_of(record, "j_per_batch"), number_of(record, "u95_j")
    least = "at least " if record["is_lower_bound"] is True else ""
    return least + digits(value) + (f" ± {digits(u, 2)}" if u is not None else "")


def _best_configurations(records: Sequence[Record], samples: Sequence[Sample]) -> list[str]:
    """Least energy and least energy-delay product a sample, among totals of one model by joules of one kind."""
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in records:
        if r["kind"] == "total":
            groups.setdefault((r["model"], r["provenance"]), []).append(r)
    lines = []
    several = len({model for model, _ in groups if model is not None}) > 1
    for (model, provenance), same in sorted(groups.items(), key=lambda g: kind_order(g[0][1])):
        rated = [r for r in same if number_of(r, "samples_per_s") and number_of(r, "power_w") is not None]
        rated = [r for r in without_summands(rated) if r["is_lower_bound"] is not True]
        if len(rated) < 2:
            continue
        of = f"{model}: " if model is not None and several else ""
        energies = [_per_sample(r, 0) for r in rated]
        products = [_per_sample(r, 1) for r in rated]
        energy = _best(energies, rated, "J", samples)
        product = _best(products, rated, "J s", samples, with_delay=True)
        lines.append(f"{of}Least energy a sample: {energy} ({provenance}, {len(rated)} configurations).")
        lines.append(f"{of}Least energy-delay product a sample: {product} ({provenance}).")
    return lines


def _per_sample(record: Record, delays: int) -> _Best:
    """Joules a sample times (seconds a sample) ** ``delays``."""
    rate, power = number_of(record, "samples_per_s") or 1.0, figure_of(record, "power_w")
    assert power is not None
    factor = (1 / rate) ** (1 + delays)
    return _Best(record, power.value * factor, None if power.u95 is None else power.u95 * factor)


def _best(
    values: Sequence[_Best], among: Sequence[Record], unit: str, samples: Sequence[Sample], *, with_delay: bool = False
) -> str:
    """The configuration with least, and how sure it is that others have more: as `joules compare` finds it."""
    ranked = sorted(values, key=lambda v: v.value)
    first, others = ranked[0], ranked[1:]
    rises = [100 * (v.value / first.value - 1) if first.value else 0.0 for v in others]
    tested = steps(first.record, [v.record for v in others], samples, with_delay=with_delay)
    found = [step or untested(rise) for step, rise in zip(tested, rises, strict=True)]
    said = f"{configuration(first.record, among)}, {digits(first.value)}"
    said += f" ± {digits(first.u95, 2)} {unit}" if first.u95 is not None else f" {unit}"
    return f"{said}, {in_words([configuration(v.record, among) for v in others], found)}"


def _recordings(records: Sequence[Record]) -> list[str]:
    runs = [r for r in records if r["kind"] == "run"]
    lines = []
    for r in runs[:_MOST_LINES]:
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
    if len(runs) > _MOST_LINES:
        lines.append(f"{len(runs) - _MOST_LINES} more recordings are in the table.")
    return lines


def _unknown(records: Sequence[Record]) -> list[str]:
    lines = []
    phases = [r for r in records if r["kind"] == "phase"]
    none = [r for r in phases if r["j_per_batch"] is None]
    if none:
        names = ", ".join(dict.fromkeys(f"{r['phase']} on {r['device']}" for r in none[:_MOST_LINES]))
        reason = str(none[0]["note"] or "").removeprefix("not resolvable: ").split("; ")[0]
        lines.append(f"Not resolvable: {len(none)} of {len(phases)} kinds of phases ({names}): {reason}.")
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
