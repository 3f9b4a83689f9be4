"""What a page says first, in plain words: which phase takes most, which configuration is best, what is not known.

Differences of joules between configurations are those that `joules compare` finds, by the same code: a configuration is
best only as far as repeats can tell it from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot

from powerd_analytics.campaign import (
    CAP_STEP_W,
    CLOCK_SHARE,
    averaged,
    group_of,
    innermost,
    of_a_batch,
    of_configurations,
    of_trainings,
    parts_of_machines,
    paths_of,
    without_gflops,
    without_summands,
)
from powerd_analytics.compare import LEVEL, NOTHING, Difference, Sample, compare, holm
from powerd_analytics.costs import CO2, Factors, with_factors
from powerd_analytics.export import Cell, cell_text
from powerd_analytics.records import Record, attributes_of, figure_of, number_of
from powerd_analytics.text import digits, first_of, seconds
from powerd_core.errors import AnalysisError

NO_FACTORS = Factors()
MOST_LINES = 6
"""Sentences of one kind in a summary."""
MOST_UNKNOWN = 0.25
"""Where phases without joules last a larger share of the time of a configuration's phases, which of these takes most is
not known."""
LEAST_SHARE = 0.5
"""A phase that stands for the whole takes at least this share of its joules."""


def findings(records: Sequence[Record], samples: Sequence[Sample] = (), factors: Factors = NO_FACTORS) -> list[str]:
    """Sentences on the records of one or many runs (`powerd_analytics.campaign_tables.prepared`), the first of which
    matters most.

    ``samples``: what is behind these records, from which differences between configurations get their significance.
    ``factors``: of CO2 and money, where these are asked for.
    """
    several = [r for r in records if r["kind"] in ("phase", "total")]
    means = averaged(several)
    # By the batch, runs that made different numbers of batches are repeats.
    by_batch = averaged(without_gflops(of_a_batch(r)) for r in several)
    inner = of_configurations(innermost(by_batch))
    lines = _largest_phases(without_summands(by_batch))
    if inner and all(r["j_per_batch"] is None for r in inner):
        lines = ["No innermost phase has an energy that the sensors could resolve."]
    lines += [*_best_configurations(by_batch, samples), *_costs(means, factors)]
    lines += [*_recordings(records), *_unknown(means)]
    return lines


def configuration(record: Record, among: Sequence[Record], *, without_model: bool = False) -> str:
    """What tells a record from others: model, batch size, GPUs, device, cap; in the order of a sentence.

    ``without_model``: where the sentence has named it.
    """
    words = {
        "model": "",
        "batch_size": "batch ",
        "gpus": "GPUs ",
        "device": "",
        "device_name": "",
        "power_cap_w": "cap ",
    }
    parts = []
    for name, word in words.items():
        value = None if without_model and name == "model" else record[name]
        if value is not None and (len({r[name] for r in among}) > 1 or name in ("model", "batch_size")):
            number = f"{value:g}" if isinstance(value, float) else str(value)
            parts.append(word + number + (" W" if name == "power_cap_w" else ""))
    others = attributes_of(record)
    parts += [f"{k} {v}" for k, v in others.items() if len({str(attributes_of(r).get(k)) for r in among}) > 1]
    return ", ".join(parts) or str(record["run"])


def kind_order(provenance: Cell) -> int:
    """Measured joules before others."""
    kinds = ("measured", "simulated", "modelled")
    return kinds.index(str(provenance)) if provenance in kinds else len(kinds)


def figure_text(record: Record, name: str = "j_per_batch", of_u95: str = "u95_j", unit: str = "J") -> str:
    """A value of a record with its 95 % half-width: ``at least 3.21 ± 0.04 J``."""
    u95 = number_of(record, of_u95)
    least = "at least " if record["is_lower_bound"] is True else ""
    return f"{least}{digits(number_of(record, name))}{f' ± {digits(u95, 2)}' if u95 is not None else ''} {unit}"


# ---- which phase takes most --------------------------------------------------------------------------------------


def _largest_phases(records: Sequence[Record]) -> list[str]:
    """For each device, the phase with most joules in each configuration; one sentence where it is always the same.

    ``records``: averaged, GPUs that are added up once.
    """
    phases = of_configurations(innermost(records))
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in phases:
        groups.setdefault(group_of(r), []).append(r)
    devices: dict[tuple[Cell, Cell], list[list[Record]]] = {}
    for every in groups.values():
        known = [r for r in every if r["j_per_batch"] is not None]
        known_s, every_s = (sum(_together(r, "s_per_batch") for r in some) for some in (known, every))
        # What belongs to no configuration (a warm-up, an evaluation) is alone in its group. Of no joules at all, or of
        # some that a shunt let flow back, nothing has a share.
        if known_s >= (1 - MOST_UNKNOWN) * every_s and len(known) > 1 and sum(map(_together, known)) > 0:
            ranked = sorted(known, key=_together, reverse=True)
            devices.setdefault((known[0]["device"], known[0]["provenance"]), []).append(ranked)
    lines = []
    order = sorted(devices, key=lambda d: (kind_order(d[1]), -sum(_together(r) for same in devices[d] for r in same)))
    for device in order:
        own, configurations = [r for r in phases if (r["device"], r["provenance"]) == device], devices[device]
        where = f"on {device[0]} ({device[1]})"
        whole = "its phases that have joules take" if any(r["j_per_batch"] is None for r in own) else "its phases take"
        firsts = [ranked[0] for ranked in configurations]
        if len(configurations) > 1 and len({first["phase"] for first in firsts}) == 1:
            shares = [f"{_share(ranked):.0f}" for ranked in sorted(configurations, key=_share)]
            sure, count = sum(map(_is_more, configurations)), len({group_of(r) for r in own})
            lines.append(
                f"{firsts[0]['phase']} takes most of the joules {where} in "
                f"{f'{len(firsts)} of' if count > len(firsts) else 'all'} {count} configurations: "
                f"{' to '.join(dict.fromkeys((shares[0], shares[-1])))} % of what {whole}; in "
                f"{'all' if sure == len(firsts) else sure or 'none'} of them it differs from the next phase by more "
                "than the 95 % interval."
                + (" Elsewhere too much is not resolvable to tell." if count > len(firsts) else "")
            )
            continue
        for ranked in configurations[:MOST_LINES]:
            first, second = ranked[:2]
            of = f" ({configuration(first, firsts)})" if len(firsts) > 1 else ""
            sure_text = "a difference that is" if _is_more(ranked) else "which is not"
            lines.append(
                f"{first['phase']} takes most of the joules {where}{of}: {figure_text(first)} a batch, "
                f"{_share(ranked):.0f} % of what {whole}; next is {second['phase']} with {figure_text(second)}, "
                f"{sure_text} distinguishable at 95 %."
            )
        if len(configurations) > MOST_LINES:
            lines.append(f"{len(configurations) - MOST_LINES} more configurations {where} are in the tables.")
    return lines


def _together(record: Record, name: str = "j_per_batch") -> float:
    """Joules or seconds of all phases of the kind together."""
    return (number_of(record, name) or 0.0) * (number_of(record, "iterations") or 0.0)


def _share(ranked: Sequence[Record]) -> float:
    """Per cent of the joules that the first takes."""
    return 100 * _together(ranked[0]) / sum(map(_together, ranked))


def _is_more(ranked: Sequence[Record]) -> bool:
    """Whether the first differs from the second by more than their 95 % intervals."""
    first, second = ranked[:2]
    if number_of(first, "u95_j") is None or number_of(second, "u95_j") is None:
        return False
    return _together(first) - _together(second) > hypot(_together(first, "u95_j"), _together(second, "u95_j"))


# ---- which configuration is best ---------------------------------------------------------------------------------


def _best_configurations(records: Sequence[Record], samples: Sequence[Sample]) -> list[str]:
    """Least energy and least energy-delay product a sample, among totals of one model by joules of one kind, of one
    part of the machine where recordings have several. ``records``: averaged by the batch."""
    totals = of_trainings(without_summands([r for r in records if r["kind"] == "total"]))
    parts = parts_of_machines(totals)
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in totals:
        groups.setdefault((r["model"], r["provenance"], parts[str(r["device"])]), []).append(r)
    models = list(dict.fromkeys(model for model, _, _ in groups))
    several = len({m for m in models if m is not None}) > 1

    def order(key: tuple[Cell, ...]) -> tuple[int, int, float]:
        joules = sum(number_of(r, "energy_j") or 0.0 for r in groups[key])
        return kind_order(key[1]), models.index(key[0]), -joules

    lines = []
    for model, provenance, part in sorted(groups, key=order):
        rated = [
            r for r in groups[model, provenance, part]
            if number_of(r, "samples_per_s") and number_of(r, "power_w") is not None and r["is_lower_bound"] is not True
        ]  # fmt: skip
        if len(rated) < 2:
            continue
        whose = ", ".join(str(w) for w in (model if several else None, part or None) if w is not None)
        least = f"{whose}: least" if whose else "Least"
        names = [configuration(r, rated, without_model=several) for r in rated]
        lines.append(f"{least} energy a sample: {_least_energy(rated, names, samples)} ({provenance}, {len(rated)} "
                     "configurations).")  # fmt: skip
        lines.append(f"{least} energy-delay product a sample: {_least_product(rated, names)} ({provenance}).")
    return lines


def _a_sample(record: Record, power: int = 1) -> tuple[float, str]:
    """Joules of one sample times its seconds to ``power`` - 1, and their 95 % interval in words."""
    watts, rate = figure_of(record, "power_w"), number_of(record, "samples_per_s") or 1.0
    if watts is None:
        return 0.0, ""
    scale = rate**-power
    return watts.value * scale, "" if watts.u95 is None else f" ± {digits(watts.u95 * scale, 2)}"


def _least_product(rated: Sequence[Record], names: Sequence[str]) -> str:
    figures = [_a_sample(r, 2) for r in rated]
    first, second = sorted(range(len(rated)), key=lambda i: figures[i])[:2]
    (value, interval), (next_value, _) = figures[first], figures[second]
    more = 100 * (next_value / value - 1) if value else 0.0
    return f"{names[first]}, {digits(value)}{interval} J s; next is {names[second]}, {_rounded(more, 3)} % more"


def _least_energy(rated: Sequence[Record], names: Sequence[str], samples: Sequence[Sample]) -> str:
    """The configuration with least joules a sample, and how sure it is that others have more."""
    figures = [_a_sample(r) for r in rated]
    first, *others = sorted(range(len(rated)), key=lambda i: figures[i][0])
    value, interval = figures[first]
    of_best = _samples_of(rated[first], samples)
    steps = []
    for i in others:
        rise = 100 * (figures[i][0] / value - 1) if value else 0.0
        steps.append(_step(of_best, _samples_of(rated[i], samples)) or Step(rise, None, None, NOTHING))
    steps = [replace(step, p=p) for step, p in zip(steps, holm([s.p for s in steps]), strict=True)]

    tried = [(names[i], step) for i, step in zip(others, steps, strict=True)]
    close = [name for name, step in tried if step.p is not None and not (step.p < LEVEL and step.percent > 0)]
    untold = [name for name, step in tried if step.p is None]
    parts = [f"not distinguishable from {first_of(close, '; ', 3)}"] if close else []
    parts += [f"without repeats that would tell it from {first_of(untold, '; ', 3)}"] if untold else []
    sure = "; ".join(parts) or "distinguishable from all others"
    return f"{names[first]}, {digits(value)}{interval} J, {sure}; next is {tried[0][0]}, {steps[0].words}"


@dataclass(frozen=True, slots=True)
class Step:
    """From the best configuration to another: per cent more joules a sample."""

    percent: float
    u95_percent: float | None
    p: float | None
    """Corrected for the rows of the comparison, and for the configurations that the best one was compared with."""
    repeats: str

    @property
    def words(self) -> str:
        """How much, and how sure: ``18.9 ± 0.52 % more (p < 0.0001, Welch's t, runs)``."""
        reach = "" if self.u95_percent is None else f" ± {_rounded(self.u95_percent, 2)}"
        percent = _rounded(self.percent, 3)
        if self.p is None:
            return f"{percent} % more, without repeats that would tell whether by chance"
        p = cell_text("p", self.p, 2)
        return f"{percent}{reach} % more ({f'p {p}' if p.startswith('<') else f'p = {p}'}, Welch's t, {self.repeats})"


def _rounded(value: float, places: int) -> str:
    """So many significant digits and no zeros behind them, large ones without an exponent."""
    return f"{float(f'{value:.{places}g}'):.15g}"


def _step(a: Sequence[Sample], b: Sequence[Sample]) -> Step | None:
    try:
        comparison = compare(a, b)
    except AnalysisError:
        return None
    kind, phase = comparison.names.index("kind"), comparison.names.index("phase")
    rows = [d for d in comparison.rows if d.figure == "j_per_batch"]
    total = next((d for d in rows if d.key[kind] == "total"), None)
    if total is None or not total.a.value:
        return None
    tested: Difference | None = total
    if total.p is None:
        # Single totals have no repeats: the phase with most joules stands for them, where it is most of them.
        least_j = LEAST_SHARE * total.a.value
        phases = [d for d in rows if d.key[kind] == "phase" and d.p is not None and d.a.value >= least_j]
        tested = max(phases, key=lambda d: d.a.value, default=None)
    if tested is None or not tested.a.value:
        return Step(100 * total.change / total.a.value, None, None, total.repeats)
    u95 = 100 * tested.u95 / tested.a.value if tested.u95 is not None else None
    repeats = tested.repeats if tested is total else f"{tested.repeats}, phase {tested.key[phase]}"
    return Step(100 * tested.change / tested.a.value, u95, tested.p, repeats)


def _samples_of(total: Record, samples: Sequence[Sample]) -> list[Sample]:
    """The samples of one configuration, their joules and seconds those of one sample of a batch."""
    rate, batch_s = number_of(total, "samples_per_s"), number_of(total, "s_per_batch")
    if not rate or not batch_s:
        return []
    return [_scaled(s, 1 / (rate * batch_s)) for s in samples if _belongs(s.record, total)]


def _belongs(record: Record, total: Record) -> bool:
    same = ("host", "model", "batch_size", "gpus", "device", "device_name", "provenance", "attributes")
    if any(record[name] != total[name] for name in same) or str(record["path"]) not in paths_of(total):
        return False
    cap, of_total = number_of(record, "power_cap_w"), number_of(total, "power_cap_w")
    if (cap is None) != (of_total is None) or abs((cap or 0.0) - (of_total or 0.0)) > CAP_STEP_W:
        return False
    clock, of_total = number_of(record, "clock_hz"), number_of(total, "clock_hz")
    return clock is None or of_total is None or abs(clock - of_total) <= CLOCK_SHARE * of_total


_SCALED = ("j_per_batch", "energy_j", "u95_j", "u_statistical_j", "u_systematic_j", "s_per_batch", "time_s")


def _scaled(s: Sample, factor: float) -> Sample:
    sensors = tuple(replace(x, joules=x.joules * factor, seconds=x.seconds * factor) for x in s.sensors)
    values = {name: number_of(s.record, name) for name in _SCALED}
    record = {**s.record, **{name: None if v is None else v * factor for name, v in values.items()}}
    return Sample(record, s.joules * factor, s.seconds * factor, sensors)


# ---- what it costs, and what is not known ------------------------------------------------------------------------


def _costs(records: Sequence[Record], factors: Factors) -> list[str]:
    """A sentence for each provenance, by the same functions as the columns of ``totals``: of several configurations
    that with least joules and that with most. ``records``: averaged. None where no factor is stated."""
    totals = [r for r in records if r["kind"] == "total" and r["energy_j"] is not None]
    if not factors or not totals:
        return []
    totals = of_trainings(without_summands(totals))
    what = "The whole training" if any("s_per_training" in r for r in totals) else "What was recorded of training"
    units = {CO2: "g CO2e"}
    names = list(zip(factors.columns[::2], factors.columns[1::2], strict=True))
    money = (factors.currency or "").upper() or "of money, its currency not stated"
    lines = []
    for provenance in sorted({r["provenance"] for r in totals}, key=kind_order):
        same = [r for r in totals if r["provenance"] == provenance]
        ranked = with_factors(sorted(same, key=lambda r: number_of(r, "energy_j") or 0.0), factors)
        ends = [ranked[0], ranked[-1]] if len(ranked) > 1 else ranked
        texts = [" and ".join(figure_text(r, name, u95, units.get(name, money)) for name, u95 in names) for r in ends]
        if len(ends) > 1:
            texts = [f"{text} ({configuration(r, same)})" for text, r in zip(texts, ends, strict=True)]
        lines.append(f"{what}: {' to '.join(texts)}, of {provenance} joules; {factors.stated}.")
    return lines


def _recordings(records: Sequence[Record]) -> list[str]:
    runs = [r for r in records if r["kind"] == "run"]
    lines = []
    for r in runs[:MOST_LINES]:
        if r["energy_j"] is None:
            lines.append(f"{r['run']}: {r['device']} has no energy: {r['note'] or 'too few readings'}.")
            continue
        lines.append(
            f"{r['run']}: {r['device']} took {figure_text(r, 'energy_j')} in {seconds(number_of(r, 'time_s') or 0.0)}, "
            f"{digits(number_of(r, 'power_w'))} W on average ({r['provenance']})."
        )
    if len(runs) > MOST_LINES:
        lines.append(f"{len(runs) - MOST_LINES} more recordings are in the table.")
    return lines


def _unknown(records: Sequence[Record]) -> list[str]:
    lines = []
    phases = [r for r in records if r["kind"] == "phase"]
    without = [r for r in phases if r["j_per_batch"] is None]
    if without:
        every = list(dict.fromkeys(f"{r['phase']} on {r['device']}" for r in without))
        reasons = [str(r["note"] or "").removeprefix("not resolvable: ").split("; ")[0] for r in without]
        of = "" if len(set(reasons)) == 1 else f"; {every[0]}"
        names = first_of(every, ", ", MOST_LINES)
        lines.append(f"Not resolvable: {len(without)} of {len(phases)} kinds of phases ({names}){of}: {reasons[0]}.")
    elif phases:
        lines.append(f"All {len(phases)} kinds of phases are resolvable.")
    bounds = sum(r["is_lower_bound"] is True for r in records if r["kind"] in ("phase", "total", "run"))
    if bounds:
        lines.append(f"{bounds} energies are lower bounds: a line stood at full scale.")
    totals = [r for r in records if r["kind"] == "total"]
    worst = max(totals, key=lambda r: number_of(r, "missing_s") or 0.0, default=None)
    if worst is not None and (missing_s := number_of(worst, "missing_s") or 0.0) > 0:
        lines.append(f"Readings are missing: up to {seconds(missing_s)} in {worst['run']}.")
    return lines
