"""A table ready to be shown or written: columns with units, rows of plain cells, notes. Every output takes these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from powerd_analytics.energy.reasons import digits
from powerd_analytics.records.columns import COLUMNS, Cell

Kind = Literal["text", "integer", "number", "flag"]

HEADINGS = {
    "batch_size": "batch", "device_name": "product", "power_cap_w": "cap W", "clock_hz": "clock MHz",
    "iterations": "n", "s_per_batch": "s/batch", "u95_s_per_batch": "± U95 s", "samples_per_s": "samples/s",
    "s_per_training": "s/training", "j_per_batch": "J/batch", "u95_j": "± U95 J", "u95_j_per_batch": "± U95 J",
    "power_w": "W", "j_per_training": "J/training", "u95_j_per_training": "± U95 J/training", "time_s": "s",
    "energy_j": "J", "edp_js": "EDP (J s)", "u95_edp_js": "± U95 J s", "gflops_per_w": "GFLOPS/W (paper)",
    "s_per_batch_min": "fastest rank s", "s_per_batch_max": "slowest rank s",
    "co2_g": "g CO2e", "u95_co2_g": "± U95 g CO2e", "cost": "cost", "u95_cost": "± U95 cost",
    "u95_gflops_per_w": "± U95", "gflops_basis": "over the joules of", "phase_path": "phase",
}  # fmt: skip
_SIGNS = dict.fromkeys(("j_per_batch", "j_per_training", "energy_j", "power_w", "edp_js", "co2_g", "cost"), "≥")
_SIGNS |= {"gflops_per_w": "≤"}
COST = "cost_"
"""What a column of money begins with; its currency follows."""


@dataclass(frozen=True, slots=True)
class SheetColumn:
    """One column: ``name`` for programs, ``heading`` for people."""

    name: str
    heading: str
    kind: Kind
    units: str = ""
    sign: str = ""
    """What stands before a number that is known from one side only."""
    is_uncertainty: bool = False
    """An expanded uncertainty of the column before it: two digits are enough."""
    is_hidden: bool = False
    """For programs: people see it as a sign or a footnote."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table. ``bounds`` are the cells (row, column) that are known from one side only."""

    name: str
    title: str
    columns: tuple[SheetColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    """What holds for the whole table."""
    bounds: frozenset[tuple[int, int]] = frozenset()

    def shown(self) -> tuple[list[SheetColumn], list[list[str]], list[str]]:
        """Columns, cells and numbered footnotes for people: rounded, empty columns left out, notes as numbers."""
        numbers: dict[str, int] = {}
        at = next((i for i, c in enumerate(self.columns) if c.name == "note"), None)
        lines = []
        for r, row in enumerate(self.rows):
            texts = str(row[at] or "").split("; ") if at is not None else []
            marks = " ".join(str(numbers.setdefault(text, len(numbers) + 1)) for text in texts if text)
            lines.append([marks if i == at else self._cell(r, i) for i in range(len(self.columns))])
        keep = [
            i
            for i, column in enumerate(self.columns)
            if not column.is_hidden and (not lines or any(line[i] not in ("", "–") for line in lines))
        ]
        columns, lines = [self.columns[i] for i in keep], [[line[i] for i in keep] for line in lines]
        return columns, lines, [*numbers]

    def _cell(self, row: int, index: int) -> str:
        value, column = self.rows[row][index], self.columns[index]
        if value is None:
            return "" if column.kind == "text" else "–"
        if column.kind == "flag":
            return "yes" if value else ""
        if isinstance(value, bool | str):
            return str(value)
        text = cell_text(column.name, value, 2 if column.is_uncertainty else 4)
        return f"{column.sign} {text}" if (row, index) in self.bounds and column.sign else text


def cell_text(name: str, value: float, places: int = 4) -> str:
    """A number for people: counts and settings as they are, figures in so many digits."""
    if name == "p" and value < 1e-4:
        return "< 0.0001"
    if name == "clock_hz":
        return f"{value / 1e6:.6g}"
    if isinstance(value, int) or name in ("batch_size", "power_cap_w", "gpus"):
        return f"{value:.6g}" if abs(value) < 1e6 else str(round(value))
    return digits(value, places)


def sheet_column(name: str, *, heading: str = "") -> SheetColumn:
    """A column of records, or of what is derived from them."""
    plain = name.removeprefix("u95_")
    known = COLUMNS.get(name) or COLUMNS.get(plain)
    kind: Kind = known.kind if known else "number"
    derived = {"s_per_training": "s", "j_per_training": "J", "runs": "1", "co2_g": "g"}
    units, sign = derived.get(plain, known.units if known else ""), _SIGNS.get(name, "")
    if plain.startswith(COST):
        units = plain.removeprefix(COST).upper()
        sign = _SIGNS["cost"] if plain == name else ""
        heading = heading or (units if plain == name else f"± U95 {units}")
    hidden = name in ("is_lower_bound",)
    is_count = name == "runs"
    return SheetColumn(
        name, heading or HEADINGS.get(name, name), "integer" if is_count else kind, units, sign,
        name.startswith("u95_"), hidden,
    )  # fmt: skip
