"""The configurations with least energy and least energy-delay product, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerd_analytics.campaigns.components import of_trainings, parts_of_machines, without_summands
from powerd_analytics.campaigns.figures import figure_of
from powerd_analytics.comparison.samples import Sample
from powerd_analytics.energy.reasons import digits
from powerd_analytics.records.columns import Cell, Record, number_of
from powerd_analytics.report.configurations import configuration, kind_order
from powerd_analytics.report.differences import in_words, steps, untested


@dataclass(frozen=True, slots=True)
class _Best:
    record: Record
    value: float
    u95: float | None


def best_configurations(records: Sequence[Record], samples: Sequence[Sample]) -> list[str]:
    """Least energy and least energy-delay product a sample, among totals of one model by joules of one kind, of one
    part of the machine where recordings have several. ``records``: averaged by the batch."""
    totals = of_trainings(without_summands([r for r in records if r["kind"] == "total"]))
    parts = parts_of_machines(totals)
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in totals:
        groups.setdefault((r["model"], r["provenance"], parts[str(r["device"])]), []).append(r)
    lines = []
    models = list(dict.fromkeys(model for model, _, _ in groups))
    several = len({m for m in models if m is not None}) > 1

    def order(item: tuple[tuple[Cell, ...], list[Record]]) -> tuple[int, int, float]:
        (model, provenance, _), same = item
        return kind_order(provenance), models.index(model), -sum(number_of(r, "energy_j") or 0.0 for r in same)

    for (model, provenance, whose_part), same in sorted(groups.items(), key=order):
        rated = [r for r in same if number_of(r, "samples_per_s") and number_of(r, "power_w") is not None]
        rated = [r for r in rated if r["is_lower_bound"] is not True]
        if len(rated) < 2:
            continue
        whose = [str(model)] if model is not None and several else []
        whose += [str(whose_part)] if whose_part else []
        of = f"{', '.join(whose)}: " if whose else ""
        energies = [_per_sample(r, 0) for r in rated]
        products = [_per_sample(r, 1) for r in rated]
        names = [configuration(r, rated, without_model=several) for r in rated]
        energy = _best(energies, names, "J", samples)
        product = _best(products, names, "J s", samples, with_delay=True)
        least = f"{of}least" if of else "Least"
        lines.append(f"{least} energy a sample: {energy} ({provenance}, {len(rated)} configurations).")
        lines.append(f"{least} energy-delay product a sample: {product} ({provenance}).")
    return lines


def _per_sample(record: Record, delays: int) -> _Best:
    """Joules a sample times (seconds a sample) ** ``delays``."""
    rate, power = number_of(record, "samples_per_s") or 1.0, figure_of(record, "power_w")
    assert power is not None
    factor = (1 / rate) ** (1 + delays)
    return _Best(record, power.value * factor, None if power.u95 is None else power.u95 * factor)


def _best(
    values: Sequence[_Best], names: Sequence[str], unit: str, samples: Sequence[Sample], *, with_delay: bool = False
) -> str:
    """The configuration with least, and how sure it is that others have more: as `joules compare` finds it."""
    ranked = sorted(zip(values, names, strict=True), key=lambda v: v[0].value)
    (first, name), others = ranked[0], ranked[1:]
    rises = [100 * (v.value / first.value - 1) if first.value else 0.0 for v, _ in others]
    tested = steps(first.record, [v.record for v, _ in others], samples, with_delay=with_delay)
    found = [step or untested(rise) for step, rise in zip(tested, rises, strict=True)]
    said = f"{name}, {digits(first.value)}"
    said += f" ± {digits(first.u95, 2)} {unit}" if first.u95 is not None else f" {unit}"
    return f"{said}, {in_words([n for _, n in others], found)}"
