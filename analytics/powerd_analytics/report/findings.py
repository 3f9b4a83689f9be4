"""What a page says first, in plain words: which phase takes most, which configuration is best, what is not known.

Two figures are distinguishable where they differ by more than the root of the sum of squares of their 95 % half-widths.
That takes them as independent; `joules compare` knows what their sensors share, and tests repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, inf, isfinite

from powerd_analytics.campaign import (
    averaged,
    group_of,
    innermost,
    of_a_batch,
    of_configurations,
    of_trainings,
    parts_of_machines,
    without_gflops,
    without_summands,
)
from powerd_analytics.costs import CO2, Factors, with_factors
from powerd_analytics.export import Cell
from powerd_analytics.records import Record, attributes_of, figure_of, number_of
from powerd_analytics.text import digits, first_of, seconds

NO_FACTORS = Factors()
MOST_LINES = 6
"""Recordings and phases that a summary names."""
MOST_UNKNOWN = 0.25
"""Where phases without joules last a larger share of the time of a configuration's phases, which of these takes most is
not known."""


def findings(records: Sequence[Record], factors: Factors = NO_FACTORS) -> list[str]:
    """Sentences on the records of one or many runs (`powerd_analytics.campaign_tables.prepared`), the first of which
    matters most. ``factors``: of CO2 and money, where these are asked for.
    """
    several = [r for r in records if r["kind"] in ("phase", "total")]
    means = averaged(several)
    # By the batch, runs that made different numbers of batches are repeats.
    by_batch = without_summands(averaged(without_gflops(of_a_batch(r)) for r in several))
    phases = of_configurations(innermost(by_batch))
    lines = _largest_phases(phases)
    if phases and all(r["j_per_batch"] is None for r in phases):
        lines = ["No innermost phase has an energy that the sensors could resolve."]
    totals = of_trainings([r for r in by_batch if r["kind"] == "total"])
    lines += [*_best_configurations(totals), *_costs(means, factors)]
    return [*lines, *_recordings([r for r in records if r["kind"] == "run"]), *_unknown(means)]


def configuration(record: Record, among: Sequence[Record], *, without_model: bool = False) -> str:
    """What tells a record from others: model, batch size, GPUs, device, cap; in the order of a sentence.

    ``without_model``: where the sentence has named it.
    """
    words = {
        "model": "{}", "batch_size": "batch {}", "gpus": "GPUs {}", "device": "{}", "device_name": "{}",
        "power_cap_w": "cap {} W",
    }  # fmt: skip
    parts = []
    for name, word in words.items():
        value = None if without_model and name == "model" else record[name]
        if value is not None and (len({r[name] for r in among}) > 1 or name in ("model", "batch_size")):
            parts.append(word.format(f"{value:g}" if isinstance(value, float) else value))
    others = attributes_of(record)
    parts += [f"{k} {v}" for k, v in others.items() if len({str(attributes_of(r).get(k)) for r in among}) > 1]
    return ", ".join(parts) or str(record["run"])


def kind_order(provenance: Cell) -> int:
    """Measured joules before others."""
    return ("measured", "simulated", "modelled").index(str(provenance))


def figure_text(record: Record, name: str = "j_per_batch", of_u95: str = "u95_j", unit: str = "J") -> str:
    """A value of a record with its 95 % half-width: ``at least 3.21 ± 0.04 J``."""
    u95 = number_of(record, of_u95)
    least = "at least " if record["is_lower_bound"] is True else ""
    return f"{least}{digits(number_of(record, name))}{f' ± {digits(u95, 2)}' if u95 is not None else ''} {unit}"


# ---- which phase takes most --------------------------------------------------------------------------------------


def _largest_phases(phases: Sequence[Record]) -> list[str]:
    """A sentence for each device and phase that takes most joules there, in some of its configurations or in all.

    ``phases``: innermost ones, averaged, GPUs that are added up once.
    """
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in phases:
        groups.setdefault(group_of(r), []).append(r)
    devices: dict[tuple[Cell, Cell], dict[Cell, list[list[Record]]]] = {}
    for every in groups.values():
        known = [r for r in every if r["j_per_batch"] is not None]
        known_s, every_s = (sum(_together(r, "s_per_batch") for r in some) for some in (known, every))
        # What belongs to no configuration (a warm-up, an evaluation) is alone in its group. Of no joules at all, or of
        # some that a shunt let flow back, nothing has a share.
        if known_s >= (1 - MOST_UNKNOWN) * every_s and len(known) > 1 and sum(map(_together, known)) > 0:
            ranked = sorted(known, key=_together, reverse=True)
            by_phase = devices.setdefault((known[0]["device"], known[0]["provenance"]), {})
            by_phase.setdefault(ranked[0]["phase"], []).append(ranked)

    def order(device: tuple[Cell, Cell]) -> tuple[int, float]:
        joules = sum(_together(r) for same in devices[device].values() for ranked in same for r in ranked)
        return kind_order(device[1]), -joules

    lines = []
    for device, provenance in sorted(devices, key=order):
        own = [r for r in phases if (r["device"], r["provenance"]) == (device, provenance)]
        count = len({group_of(r) for r in own})
        whole = "its phases that have joules take" if any(r["j_per_batch"] is None for r in own) else "its phases take"
        for phase, same in devices[device, provenance].items():
            shares = sorted(100 * _together(ranked[0]) / sum(map(_together, ranked)) for ranked in same)
            reach = " to ".join(dict.fromkeys((f"{shares[0]:.0f}", f"{shares[-1]:.0f}")))
            sure = sum(map(_is_more, same))
            where = ""
            if count > 1:
                where = f" in {'all' if len(same) == count else f'{len(same)} of'} {count} configurations"
            of_them = f"in {'all' if sure == len(same) else sure or 'none'} of them it differs"
            if len(same) == 1:
                of_them = "it differs" if sure else "it does not differ"
                reach = f"{figure_text(same[0][0])} a batch, {reach}"
            lines.append(
                f"{phase} takes most of the joules on {device} ({provenance}){where}: {reach} % of what {whole}; "
                f"{of_them} from the next phase by more than the 95 % interval."
            )
    return lines


def _together(record: Record, name: str = "j_per_batch") -> float:
    """Joules or seconds of all phases of the kind together."""
    return (number_of(record, name) or 0.0) * (number_of(record, "iterations") or 0.0)


def _is_more(ranked: Sequence[Record]) -> bool:
    """Whether the first differs from the second by more than their 95 % intervals."""
    first, second = ranked[:2]
    if number_of(first, "u95_j") is None or number_of(second, "u95_j") is None:
        return False
    return _together(first) - _together(second) > hypot(_together(first, "u95_j"), _together(second, "u95_j"))


# ---- which configuration is best ---------------------------------------------------------------------------------


def _best_configurations(totals: Sequence[Record]) -> list[str]:
    """Least energy and least energy-delay product a sample, among totals of one model by joules of one kind, of one
    part of the machine where recordings have several."""
    parts = parts_of_machines(totals)
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in totals:
        groups.setdefault((r["model"], r["provenance"], parts[str(r["device"])]), []).append(r)
    models = list(dict.fromkeys(model for model, _, _ in groups))
    several = len(set(models) - {None}) > 1

    def order(key: tuple[Cell, ...]) -> tuple[int, int, float]:
        joules = sum(number_of(r, "energy_j") or 0.0 for r in groups[key])
        return kind_order(key[1]), models.index(key[0]), -joules

    lines = []
    for key in sorted(groups, key=order):
        model, provenance, part = key
        rated = [
            r for r in groups[key]
            if number_of(r, "samples_per_s") and number_of(r, "power_w") is not None and r["is_lower_bound"] is not True
        ]  # fmt: skip
        if len(rated) < 2:
            continue
        whose = ", ".join(str(word) for word in (model if several else None, part or None) if word is not None)
        least = f"{whose}: least" if whose else "Least"
        names = [configuration(r, rated, without_model=several) for r in rated]
        lines.append(f"{least} energy a sample: {_least(rated, names, 1)} ({provenance}, {len(rated)} configurations).")
        lines.append(f"{least} energy-delay product a sample: {_least(rated, names, 2)} ({provenance}).")
    return lines


def _least(rated: Sequence[Record], names: Sequence[str], power: int) -> str:
    """The configuration with least joules of one sample times its seconds to ``power`` - 1, and which others differ
    from it by more than their 95 % intervals."""
    figures = []
    for r in rated:
        watts, scale = figure_of(r, "power_w"), (number_of(r, "samples_per_s") or 1.0) ** -power
        u95 = watts.u95 if watts else None
        figures.append((watts.value * scale if watts else 0.0, inf if u95 is None else u95 * scale))
    first, *others = sorted(range(len(rated)), key=lambda i: figures[i])
    value, u95 = figures[first]
    close = [names[i] for i in others if not figures[i][0] - value > hypot(u95, figures[i][1])]
    sure = f"not distinguishable from {first_of(close, '; ', 3)}" if close else "distinguishable from all others"
    more = 100 * (figures[others[0]][0] / value - 1) if value else 0.0
    number = f"{digits(value)}{f' ± {digits(u95, 2)}' if isfinite(u95) else ''} {'J' if power == 1 else 'J s'}"
    return f"{names[first]}, {number}, {sure}; next is {names[others[0]]}, {float(f'{more:.3g}'):.15g} % more"


# ---- what it costs, and what is not known ------------------------------------------------------------------------


def _costs(records: Sequence[Record], factors: Factors) -> list[str]:
    """A sentence for each provenance, by the same functions as the columns of ``totals``: of several configurations
    that with least joules and that with most. ``records``: averaged. None where no factor is stated."""
    totals = [r for r in records if r["kind"] == "total" and r["energy_j"] is not None] if factors else []
    totals = of_trainings(without_summands(totals))
    what = "The whole training" if any("s_per_training" in r for r in totals) else "What was recorded of training"
    names = list(zip(factors.columns[::2], factors.columns[1::2], strict=True))
    money = (factors.currency or "").upper() or "of money, its currency not stated"
    lines = []
    for provenance in sorted({r["provenance"] for r in totals}, key=kind_order):
        same = [r for r in totals if r["provenance"] == provenance]
        ranked = with_factors(sorted(same, key=lambda r: number_of(r, "energy_j") or 0.0), factors)
        texts = []
        for r in [ranked[0], *ranked[1:][-1:]]:
            text = " and ".join(figure_text(r, name, u95, "g CO2e" if name == CO2 else money) for name, u95 in names)
            texts.append(f"{text} ({configuration(r, same)})" if len(ranked) > 1 else text)
        lines.append(f"{what}: {' to '.join(texts)}, of {provenance} joules; {factors.stated}.")
    return lines


def _recordings(runs: Sequence[Record]) -> list[str]:
    lines = []
    for r in runs[:MOST_LINES]:
        words = f"has no energy: {r['note']}"
        if r["energy_j"] is not None:
            words = f"took {figure_text(r, 'energy_j')} in {seconds(number_of(r, 'time_s') or 0.0)}, "
            words += f"{digits(number_of(r, 'power_w'))} W on average ({r['provenance']})"
        lines.append(f"{r['run']}: {r['device']} {words}.")
    if len(runs) > MOST_LINES:
        lines.append(f"{len(runs) - MOST_LINES} more recordings are in the table.")
    return lines


def _unknown(records: Sequence[Record]) -> list[str]:
    """Phases without joules, energies that are lower bounds, and readings that are missing; ``records``: averaged."""
    phases, totals = ([r for r in records if r["kind"] == kind] for kind in ("phase", "total"))
    without = [r for r in phases if r["j_per_batch"] is None]
    lines = [] if without or not phases else [f"All {len(phases)} kinds of phases are resolvable."]
    if without:
        every = list(dict.fromkeys(f"{r['phase']} on {r['device']}" for r in without))
        reason = str(without[0]["note"] or "").removeprefix("not resolvable: ").split("; ")[0]
        names = first_of(every, ", ", MOST_LINES)
        lines.append(
            f"Not resolvable: {len(without)} of {len(phases)} kinds of phases ({names}); {every[0]}: {reason}."
        )
    if bounds := sum(r["is_lower_bound"] is True for r in records):
        lines.append(f"{bounds} energies are lower bounds: a line stood at full scale.")
    worst = max(totals, key=lambda r: number_of(r, "missing_s") or 0.0, default=None)
    if worst is not None and (missing_s := number_of(worst, "missing_s") or 0.0) > 0:
        lines.append(f"Readings are missing: up to {seconds(missing_s)} in {worst['run']}.")
    return lines
