"""A comparison as a table, and in words."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_analytics.comparison.compare import FOLDED, NOTHING, PHASES, SPREAD_OF_ONE, Comparison, Difference
from powerd_analytics.comparison.significance import LEVEL
from powerd_analytics.energy.reasons import digits
from powerd_analytics.exports.sheet import HEADINGS, Sheet, SheetColumn, cell_text, sheet_column
from powerd_analytics.records.columns import COLUMNS, Cell

_FIGURES = (
    SheetColumn("figure", "figure", "text"),
    SheetColumn("a", "A", "number", "", "≥"),
    SheetColumn("b", "B", "number", "", "≥"),
    SheetColumn("change", "B - A", "number"),
    SheetColumn("u95_change", "± U95", "number", "", "", is_uncertainty=True),
    SheetColumn("change_percent", "%", "number", "%"),
    SheetColumn("p", "p (Holm)", "number", "1", "", is_uncertainty=True),
    SheetColumn("verdict", "", "text"),
    SheetColumn("runs_a", "runs A", "integer", "1"),
    SheetColumn("runs_b", "runs B", "integer", "1"),
    SheetColumn("repeats", "repeats", "text"),
    SheetColumn("same_sensor", "same sensor", "flag"),
)
_HIDDEN = ("kind", "timing")


def verdict(d: Difference) -> str:
    """What a reader may take from a row."""
    if d.a.is_lower_bound or d.b.is_lower_bound:
        return "not comparable: a lower bound"
    if d.p is None and d.change == 0:
        return "equal"
    if d.p is None:
        return "no repeats to tell" if d.repeats == NOTHING else "no uncertainty to compare with"
    if not d.is_distinguishable:
        return "not distinguishable"
    return "B more" if d.change > 0 else "B less"


def comparison_sheet(found: Comparison, label_a: str, label_b: str) -> Sheet:
    """One row for each figure, with its difference and what that means."""
    columns = []
    at = [found.names.index(n) for n in ("phase", "phase_path")]
    places = {tuple(d.key[i] for i in at) for d in found.rows}
    # The path only where the name alone would not tell.
    hidden = (*_HIDDEN, "phase_path" if len({phase for phase, _ in places}) == len(places) else "phase")
    for name in found.names:
        plain = name.removeprefix("attribute ")
        column = sheet_column(name) if name in COLUMNS else SheetColumn(plain, plain, "text")
        columns.append(SheetColumn(column.name, column.heading, column.kind, column.units, is_hidden=name in hidden))
    rows: list[tuple[Cell, ...]] = []
    bounds = set()
    first = len(columns) + 1
    for i, d in enumerate(found.rows):
        key = [
            "all" if name in ("phase", "phase_path") and v is None else v
            for name, v in zip(found.names, d.key, strict=True)
        ]
        u95 = d.u95
        cells: list[Cell] = [HEADINGS[d.figure], d.a.value, d.b.value, d.change, u95, d.change_percent, d.p, verdict(d)]
        rows.append((*key, *cells, d.a.runs, d.b.runs, d.repeats, d.is_same_sensor))
        bounds |= {(i, first + k) for k, side in enumerate((d.a, d.b)) if side.is_lower_bound}
    return Sheet(
        "compare", f"A = {label_a}, B = {label_b}", (*columns, *_FIGURES), tuple(rows), tuple(words(found)),
        frozenset(bounds),
    )  # fmt: skip


def words(found: Comparison) -> list[str]:
    """The comparison in sentences: the main finding first, then what it rests on."""
    tested = [d for d in found.rows if d.p is not None]
    clear = [d for d in tested if d.is_distinguishable]
    said = [_summary(tested, clear, found)]
    if found.settings:
        each = (f"{HEADINGS.get(n, n)} {_plain(n, a)} in A, {_plain(n, b)} in B" for n, a, b in found.settings)
        said.append(f"Settings that differ: {'; '.join(each)}.")
    if any(d.repeats in (PHASES, FOLDED) for d in tested):
        said.append(
            "One run on each side: repeats are blocks of its iterations. What differs from one run to the next "
            "(temperature, other load) is in no p value: record at least three runs of each to include it."
        )
    if any(d.repeats == SPREAD_OF_ONE for d in tested):
        said.append("Where one side has a single run, the other side's scatter from run to run stands for it.")
    joules = [d for d in found.rows if d.figure == "j_per_batch"]
    if joules and all(d.is_same_sensor for d in joules):
        said.append("Same sensors on both sides: their gain and zero count only for the difference.")
    elif joules and not any(d.is_same_sensor for d in joules):
        said.append("Different sensors: their gains and zeros are off independently, and that is in ± U95 and p.")
    if found.only_a or found.only_b:
        said.append(f"Without a counterpart: {found.only_a} rows of A, {found.only_b} of B.")
    return said


def _summary(tested: Sequence[Difference], clear: Sequence[Difference], found: Comparison) -> str:
    if not tested:
        return "Nothing can be told: no figure has repeats, or all joules are lower bounds."
    level = f"{100 * LEVEL:g} %, Welch's t, Holm's correction over {len(tested)} tests"
    if not clear:
        return f"No difference is distinguishable ({level})."
    largest = max(clear, key=lambda d: abs(d.change_percent or 0.0))
    at = dict(zip(found.names, largest.key, strict=True))
    place = " ".join(str(v) for n, v in at.items() if n in ("model", "phase") and v is not None) or "all phases"
    reach = f" ± {digits(100 * largest.u95 / abs(largest.a.value), 2)}" if largest.u95 and largest.a.value else ""
    text = f"{len(clear)} of {len(tested)} differences are distinguishable ({level}); the largest: {place}, "
    sign = "+" if largest.change > 0 else ""
    return f"{text}{HEADINGS[largest.figure]} {sign}{digits(largest.change_percent, 3)}{reach} %."


def _plain(name: str, value: Cell) -> str:
    if value is None:
        return "not known"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return cell_text(name, float(value)) if is_number else str(value)
