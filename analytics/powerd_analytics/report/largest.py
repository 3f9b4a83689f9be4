"""Which phase takes most of the joules, in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from powerd_analytics.campaigns.innermost import group_of, innermost, of_configurations
from powerd_analytics.energy.reasons import digits
from powerd_analytics.records.columns import Cell, Record, number_of
from powerd_analytics.report.configurations import configuration, kind_order

MOST_LINES = 6
"""Sentences of one kind in a summary."""
MOST_UNKNOWN = 0.25
"""Where phases without joules last a larger share of the time of a configuration's phases, which of these takes most is
not known."""
_Device = tuple[Cell, Cell]
"""Name and provenance."""


def largest_phases(records: Sequence[Record]) -> list[str]:
    """For each device, the phase with most joules in each configuration; one sentence where it is always the same.

    ``records``: averaged, GPUs that are added up once.
    """
    phases = of_configurations(innermost(records))
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in phases:
        groups.setdefault(group_of(r), []).append(r)
    devices: dict[_Device, list[list[Record]]] = {}
    for every in groups.values():
        same = [r for r in every if _joules(r) is not None]
        if sum(_seconds(r) for r in same) < (1 - MOST_UNKNOWN) * sum(_seconds(r) for r in every):
            continue
        # What belongs to no configuration (a warm-up, an evaluation) is alone in its group. Of no joules at all, or of
        # some that a shunt let flow back, nothing has a share.
        if len(same) > 1 and sum(_joules(r) or 0.0 for r in same) > 0:
            devices.setdefault((same[0]["device"], same[0]["provenance"]), []).append(same)
    lines = []
    for device, found in sorted(devices.items(), key=_weight):
        own = [r for r in phases if (r["device"], r["provenance"]) == device]
        ranked = [sorted(same, key=lambda r: -(_joules(r) or 0.0)) for same in found]
        where = f"on {device[0]} ({device[1]})"
        of = "its phases that have joules take" if any(_joules(r) is None for r in own) else "its phases take"
        if len(ranked) > 1 and len({same[0]["phase"] for same in ranked}) == 1:
            lines.append(_always_largest(ranked, where, of, len({group_of(r) for r in own})))
        else:
            lines += [_largest(same, where, of, [s[0] for s in ranked]) for same in ranked[:MOST_LINES]]
            if len(ranked) > MOST_LINES:
                lines.append(f"{len(ranked) - MOST_LINES} more configurations {where} are in the tables.")
    return lines


def _always_largest(ranked: Sequence[Sequence[Record]], where: str, whole: str, configurations: int) -> str:
    """The phase that takes most in all configurations that can be told, of so many."""
    shares = [100 * (_joules(s[0]) or 0.0) / sum(_joules(r) or 0.0 for r in s) for s in ranked]
    least, most = f"{min(shares):.0f}", f"{max(shares):.0f}"
    sure = sum(_is_more(s[0], s[1]) for s in ranked)
    number = "all" if sure == len(ranked) else str(sure) if sure else "none"
    among = f"{len(ranked)} of {configurations}" if configurations > len(ranked) else f"all {configurations}"
    return (
        f"{ranked[0][0]['phase']} takes most of the joules {where} in {among} configurations: "
        f"{least if least == most else f'{least} to {most}'} % of what {whole}; in {number} of them it differs from "
        "the next phase by more than the 95 % interval."
        + (" Elsewhere too much is not resolvable to tell." if configurations > len(ranked) else "")
    )


def _weight(item: tuple[_Device, list[list[Record]]]) -> tuple[int, float]:
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


def _seconds(record: Record) -> float:
    """All phases of the kind together."""
    return (number_of(record, "s_per_batch") or 0.0) * (number_of(record, "iterations") or 0.0)


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
