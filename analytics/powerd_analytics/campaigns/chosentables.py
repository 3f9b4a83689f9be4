"""Which tables of a campaign are wanted, and those tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from powerd_analytics.campaigns.factors import Factors
from powerd_analytics.campaigns.fieldtables import field_tables, prepared
from powerd_analytics.campaigns.jobtables import are_over_machines, job_tables
from powerd_analytics.campaigns.pivot import PivotRequest, make_pivot
from powerd_analytics.campaigns.pivotsheet import gain_sheet, pivot_sheet
from powerd_analytics.campaigns.trainings import Length
from powerd_analytics.exports.sheet import Sheet
from powerd_analytics.records.columns import Record
from powerd_analytics.records.frame import where
from powerd_core.errors import AnalysisError, ConfigError


@dataclass(frozen=True, slots=True)
class Choice:
    """What to make of a campaign."""

    names: tuple[str, ...] = ()
    """Tables by name; all that suit the output without."""
    conditions: tuple[str, ...] = ()
    """``COLUMN=VALUE`` that every row must fulfil."""
    pivot: PivotRequest | None = None
    averages: bool = False
    length: Length = field(default_factory=Length)
    gain: tuple[str, str] | None = None
    factors: Factors = field(default_factory=Factors)

    def __bool__(self) -> bool:
        return self != Choice()


def request_of(pivot: str | None, rows: str | None, columns: str | None, value: str | None) -> PivotRequest | None:
    """The pivot that is asked for in one option or in three. Raises `ConfigError`."""
    if pivot is not None:
        if rows or columns or value:
            raise ConfigError("give either --pivot ROWS:COLUMNS:VALUE, or --rows, --columns and --value")
        return PivotRequest.parse(pivot)
    if rows is None and columns is None and value is None:
        return None
    if not rows or not value:
        raise ConfigError("a pivot needs --rows and --value; --columns may be left out")
    return PivotRequest.parse(f"{rows}:{columns or ''}:{value}")


def pair_of(gain: str | None) -> tuple[str, str] | None:
    """The two products of ``A,B``. Raises `ConfigError`."""
    if gain is None:
        return None
    names = [name.strip() for name in gain.split(",")]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise ConfigError(f"--gain {gain}: name two products, as in maxwell,pascal")
    return names[0], names[1]


def chosen_tables(records: Sequence[Record], choice: Choice) -> list[Sheet]:
    """The tables of a campaign that are asked for; all of them where none is.

    Raises `AnalysisError` where one cannot be made, saying why.
    """
    ready = where(prepared(records, choice.length), choice.conditions)
    if choice.pivot is not None:
        return _pivot(ready, choice, choice.pivot)
    there, of_jobs = field_tables(ready, choice.gain, choice.factors), job_tables(ready)
    known = {sheet.name: sheet for sheet in [*there, *of_jobs]}
    # Of trainings on one machine they are there for those who ask.
    there += of_jobs if are_over_machines(ready) else []
    if missing := [name for name in choice.names if name not in known]:
        raise AnalysisError(f"no table {missing[0]!r} can be made of these runs: there is {', '.join(known)}")
    return [known[name] for name in choice.names] or there


def _pivot(records: Sequence[Record], choice: Choice, request: PivotRequest) -> list[Sheet]:
    pivot = make_pivot(records, request)
    sheets = [pivot_sheet(pivot, averages=choice.averages)]
    by = next((n for n in ("device_name", "device") if n in pivot.column_names), None)
    if choice.gain is not None:
        if by is None:
            raise ConfigError("--gain needs device_name or device among the columns of the pivot")
        gained = gain_sheet(pivot, by, choice.gain)
        if gained is None:
            raise AnalysisError(f"nothing was run on both {choice.gain[0]} and {choice.gain[1]} in the same way")
        sheets.append(gained)
    return sheets
