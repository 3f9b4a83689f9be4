"""What a page says first, in plain words: which phase takes most, which configuration is best, what is not known.

Two figures are distinguishable where they differ by more than the root of the sum of squares of their 95 % half-widths.
That takes them as independent; `joules compare` knows what their sensors share, and tests repeats.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, inf, isfinite

from powerd_analytics.energy.metrics import J_PER_KWH
from powerd_analytics.frame.costs import CO2, Factors, gpus_in
from powerd_analytics.frame.figure import Record, figure_of, number_of
from powerd_analytics.frame.figures import Frame, of_kind, rows_of
from powerd_analytics.frame.repeats import average_repeats, of_a_batch, without_gflops
from powerd_analytics.frame.trainings import without_summands
from powerd_analytics.output.text import Cell, digits, figure_and_u95, first_of, seconds
from powerd_analytics.report.sheets import MISSING
from powerd_analytics.views.breakdown import (
    KINDS,
    Breakdown,
    Piece,
    breakdowns,
    configuration,
    of_trainings,
    parts_of_machines,
)
from powerd_core.text import printable


@dataclass(frozen=True, slots=True)
class Tiles:
    """The figures of a device at one glance: of all its recordings."""

    heading: str
    provenance: str
    figures: list[tuple[str, str, str]]
    """Number, unit, and what stands below."""


MOST_LINES, MOST_SENTENCES = 6, 4
"""Phases that a summary names, and sentences that it opens with."""


def tiles(frame: Frame, factors: Factors) -> list[Tiles]:
    """The joules of all recordings of a device, measured ones first; the GPUs of a machine are added up, as are its
    processors, but never with each other.

    What the recordings are unsure of is added up as well: sensors share most of it, and that is the most it can be.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for r in rows_of(of_kind(frame, "run")):
        groups.setdefault((re.sub(r"^([cg]pu)\d+$", r"\1", str(r["device"])), str(r["provenance"])), []).append(r)
    every = []
    for (_, provenance), same in groups.items():
        known = [r for r in same if r["energy_j"] is not None]
        joules = sum(number_of(r, "energy_j") or 0.0 for r in known)
        time_s = sum({str(r["path"]): number_of(r, "time_s") or 0.0 for r in known}.values())
        is_bound = any(r["is_lower_bound"] is True for r in known)
        parts = [number_of(r, "u95_j") for r in known]
        u95 = None if is_bound or None in parts else sum(u or 0.0 for u in parts)
        least, (figure, reach) = "≥ " if is_bound else "", figure_and_u95(joules, u95)
        names = first_of(list(dict.fromkeys(str(r["device"]) for r in same)), " + ", 8)
        count = len({r["path"] for r in same})
        wh, unit = (joules / J_PER_KWH, "kWh") if joules >= J_PER_KWH else (1000 * joules / J_PER_KWH, "Wh")
        tiles = [(least + figure, "J", f"± {reach} J" if reach else ""), (least + digits(wh, 3), unit, "")]
        tiles.append((least + digits(joules / time_s if time_s else None, 3), "W", f"mean of {seconds(time_s)}"))
        if u95 is not None and joules > 0:
            tiles.append((f"± {digits(100 * u95 / joules, 2)}", "%", "95 % interval"))
        costs = factors.of(joules, u95, sum(gpus_in(r) * (number_of(r, "time_s") or 0.0) for r in known))
        for name in factors.figures[::2]:
            u95_cost, unit = costs[f"u95_{name}"], (factors.currency or "").upper() or "of money"
            sure = f"± {digits(u95_cost, 2)}" if u95_cost is not None else ""
            tiles.append((least + digits(costs[name], 3), "g CO2e" if name == CO2 else unit, sure))
        if not known:
            tiles = [("–", "J", printable(f"no energy: {same[0]['note']}"))]
        missing = f", {len(same) - len(known)} without energy" if 0 < len(known) < len(same) else ""
        heading = f"{names}, {count} recordings{missing}" if count > 1 else f"{names}{missing}"
        every.append((joules, Tiles(printable(heading), provenance, tiles)))
    return [own for _, own in sorted(every, key=lambda own: (KINDS.index(own[1].provenance), -own[0]))]


def findings(frame: Frame) -> list[str]:
    """Sentences on a frame of one or many runs (`powerd_analytics.frame.trainings.with_sums`), the first of which
    matters most: the first `MOST_SENTENCES` hold the first of each kind.
    """
    several = of_kind(frame, "phase", "total")
    # By the batch, runs that made different numbers of batches are repeats.
    by_batch = average_repeats(without_gflops(of_a_batch(without_summands(several))))
    figures = breakdowns(frame)
    largest = _largest_phases(figures)
    if all(p.energy_j is None for own in figures for b in own for p in b.pieces):
        largest = ["No innermost phase has an energy that the sensors could resolve."]
    unknown = _unknown(rows_of(average_repeats(several)), rows_of(of_kind(frame, "run")))
    kinds = [largest, _best_configurations(of_trainings(by_batch)), unknown]
    first = [line for lines in kinds for line in lines[:1]]
    return first + [line for lines in kinds for line in lines[1:]]


# ---- which phase takes most --------------------------------------------------------------------------------------


def _largest_phases(figures: Sequence[Sequence[Breakdown]]) -> list[str]:
    """A sentence for each device and phase that takes most joules there, in some of its configurations or in all.

    Phases that are not resolvable take at most the rest: which phase takes most is not known where that is larger.
    """
    devices: dict[tuple[str, str], list[Breakdown]] = {}
    for b in (b for own in figures for b in own):
        devices.setdefault((b.device, b.provenance), []).append(b)
    lines = []
    for (device, provenance), own in devices.items():
        by_phase: dict[str, list[tuple[Breakdown, Piece, bool]]] = {}
        for b in own:
            known = [(p.energy_j, p.u95_j) for p in b.pieces if p.energy_j is not None]
            unknown = [(b.rest_j, b.u95_j)] if len(known) < len(b.pieces) else []
            first = max((p for p in b.pieces if p.energy_j), key=lambda p: p.energy_j or 0.0, default=None)
            if first is None or not first.energy_j or len(b.pieces) < 2 or not b.energy_j or b.energy_j <= 0:
                continue
            known.remove((first.energy_j, first.u95_j))
            next_j, next_u95 = max([*known, *unknown], key=lambda other: other[0])
            if next_j <= first.energy_j:
                is_known = first.u95_j is not None and next_u95 is not None
                is_sure = is_known and first.energy_j - next_j > hypot(first.u95_j or 0.0, next_u95 or 0.0)
                by_phase.setdefault(first.phase, []).append((b, first, is_sure))
        for phase, same in by_phase.items():
            shares = sorted(100 * (p.energy_j or 0.0) / (b.energy_j or 1.0) for b, p, _ in same)
            reach = " to ".join(dict.fromkeys((f"{shares[0]:.0f}", f"{shares[-1]:.0f}")))
            of_all = "all" if len(same) == len(own) else f"{len(same)} of"
            where = f" in {of_all} {len(own)} configurations" if len(own) > 1 else ""
            sure = sum(is_sure for *_, is_sure in same)
            words = "differs" if sure == len(same) else f"differs in {sure} of them" if sure else "does not differ"
            lines.append(
                f"{phase} takes most of the joules on {device} ({provenance}){where}: {reach} % of an iteration; it "
                f"{words} from the next phase by more than the 95 % interval."
            )
    return lines


# ---- which configuration is best ---------------------------------------------------------------------------------


def _best_configurations(totals: Frame) -> list[str]:
    """Least energy and least energy-delay product a sample, among totals of one model by joules of one kind, of one
    part of the machine where recordings have several."""
    parts = parts_of_machines(totals)
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in rows_of(totals):
        groups.setdefault((r["model"], r["provenance"], parts[str(r["device"])]), []).append(r)
    models = list(dict.fromkeys(model for model, _, _ in groups))
    several = len(set(models) - {None}) > 1

    def order(key: tuple[Cell, ...]) -> tuple[int, int, float]:
        joules = sum(number_of(r, "energy_j") or 0.0 for r in groups[key])
        return KINDS.index(str(key[1])), models.index(key[0]), -joules

    lines = []
    for key in sorted(groups, key=order):
        model, provenance, part = key
        exact = [r for r in groups[key] if r["is_lower_bound"] is not True]
        rated = [r for r in exact if r["edp_per_sample_js"] is not None]
        if len(rated) < 2:
            continue
        whose = ", ".join(str(word) for word in (model if several else None, part or None) if word is not None)
        least = f"{whose}: least" if whose else "Least"
        names = [configuration(r, rated, without_model=several) for r in rated]
        energy, product = (_least(rated, names, figure, unit) for figure, unit in _OF_A_SAMPLE.items())
        lines.append(f"{least} energy a sample: {energy} ({provenance}, {len(rated)} configurations).")
        lines.append(f"{least} energy-delay product a sample: {product} ({provenance}).")
    return lines


_OF_A_SAMPLE = {"j_per_sample": "J", "edp_per_sample_js": "J s"}


def _least(rated: Sequence[Record], names: Sequence[str], figure: str, unit: str) -> str:
    """The configuration with the least figure, and which others differ from it by more than their 95 % intervals."""
    figures = [figure_of(r, figure) for r in rated]
    values = [f.value if f else inf for f in figures]
    u95 = [inf if f is None or f.u95 is None else f.u95 for f in figures]
    first, *others = sorted(range(len(rated)), key=lambda i: values[i])
    close = [names[i] for i in others if not values[i] - values[first] > hypot(u95[first], u95[i])]
    sure = f"not distinguishable from {first_of(close, '; ', 3)}" if close else "distinguishable from all others"
    more = 100 * (values[others[0]] / values[first] - 1) if values[first] else 0.0
    number = f"{digits(values[first])}{f' ± {digits(u95[first], 2)}' if isfinite(u95[first]) else ''} {unit}"
    return f"{names[first]}, {number}, {sure}; next is {names[others[0]]}, {float(f'{more:.3g}'):.15g} % more"


# ---- what is not known -------------------------------------------------------------------------------------------


def _unknown(means: Sequence[Record], recordings: Sequence[Record]) -> list[str]:
    """Phases without joules, energies that are lower bounds, and readings that are missing; ``means``: averaged."""
    phases = [r for r in means if r["kind"] == "phase"]
    without = [r for r in phases if r["j_per_batch"] is None]
    lines = [] if without or not phases else [f"All {len(phases)} kinds of phases are resolvable."]
    if without:
        every = list(dict.fromkeys(f"{r['phase']} on {r['device']}" for r in without))
        reason = str(without[0]["note"] or "").removeprefix("not resolvable: ").split("; ")[0]
        names = first_of(every, ", ", MOST_LINES)
        lines.append(
            f"Not resolvable: {len(without)} of {len(phases)} kinds of phases ({names}); {every[0]}: {reason}."
        )
    if bounds := sum(r["is_lower_bound"] is True for r in means):
        lines.append(f"{bounds} energies are lower bounds: a line stood at full scale.")
    worst = max(recordings, key=lambda r: number_of(r, "missing_s") or 0.0, default={})
    missing_s, time_s = number_of(worst, "missing_s") or 0.0, number_of(worst, "time_s") or 0.0
    if missing_s > MISSING * time_s:
        most = "at most " if len(recordings) > 1 else ""
        whose = f"{worst['run']} on {worst['device']}"
        lines.append(f"Readings are missing: {most}{seconds(missing_s)} of {seconds(time_s)}, in {whose}.")
    return lines
