"""Configurations that plots compare: from records of run files, or from anybody's table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose

from powerd_analytics.campaign import (
    Length,
    averaged,
    innermost,
    of_a_batch,
    of_configurations,
    of_trainings,
    parts_of_machines,
    paths_of,
    without_gflops,
    without_summands,
)
from powerd_analytics.campaign_tables import prepared
from powerd_analytics.published import CAPS_W, ENERGY_J, TIME_S, TableFile, column_in, parse_condition, parsed
from powerd_analytics.records import Record, attributes_of, figure_of, number_of
from powerd_analytics.table import group_line
from powerd_core.errors import AnalysisError

WHOLE, BATCH, SAMPLE = "", " a batch", " a sample"
LARGEST, SMALLEST = 1e60, 1e-60
"""No axis can show numbers whose squares and quotients are none."""
_NAMES = {
    "batch": ("batch", "batch_size"), "gpus": ("gpus",), "device": ("device_name", "device", "gpu"),
    "model": ("model",), "phase": ("phase",), "provenance": ("provenance",), "u95_j": ("u95_j",), "u95_s": ("u95_s",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Configuration:
    """Energy and time of one configuration, or of one phase in it. What is not known is None or an empty text."""

    model: str = ""
    batch: float | None = None
    gpus: int | None = None
    device: str = ""
    provenance: str = ""
    power_cap_w: float | None = None
    phase: str = ""
    energy_j: float | None = None
    u95_j: float | None = None
    time_s: float | None = None
    u95_s: float | None = None
    is_lower_bound: bool = False
    others: str = ""
    """Attributes of the phases that differ within the picture."""
    part: str = ""
    """Which part of the machine it is of, where recordings have several: a CPU is no alternative to a GPU."""
    per: str = WHOLE
    """What energy and time are of: `WHOLE`, `BATCH` or `SAMPLE`."""
    cells: Mapping[str, str] = field(default_factory=dict)
    """Texts by column, to find a reference by."""

    @property
    def is_whole(self) -> bool:
        """Whether it is of a training, not of one of its phases."""
        return self.phase in ("", "all", "total")

    def has(self, condition: str) -> bool:
        """Whether ``COLUMN=VALUE`` holds. Raises `ConfigError` for what is no such condition."""
        wanted = parse_condition("--reference", condition)
        cell, number = self.cells.get(wanted.column), parsed(wanted.value)
        if cell is None:
            return False
        value = parsed(cell)
        return cell == wanted.value or (number is not None and value is not None and isclose(number, value))


def label(c: Configuration, among: Sequence[Configuration], leave_out: Sequence[str] = ()) -> str:
    """What tells a configuration from the others, in few words."""
    parts = {
        "model": c.model,
        "batch": f"batch {c.batch:g}" if c.batch is not None else "",
        "gpus": f"{c.gpus} GPU{'s' if c.gpus != 1 else ''}" if c.gpus is not None else "",
        "device": c.device,
        "power_cap_w": f"{c.power_cap_w:g} W" if c.power_cap_w is not None else "",
        "others": c.others,
        "provenance": c.provenance,
    }
    return ", ".join(
        text
        for name, text in parts.items()
        if text and name not in leave_out and len({getattr(other, name) for other in among}) > 1
    )


def grouped(configurations: Iterable[Configuration], by: Sequence[str]) -> list[list[Configuration]]:
    """Those that agree in all of these fields, a group a panel, in the order of their first."""
    groups: dict[tuple[object, ...], list[Configuration]] = {}
    for c in configurations:
        groups.setdefault(tuple(getattr(c, name) for name in by), []).append(c)
    return list(groups.values())


def reference_of(
    configurations: Sequence[Configuration], condition: str | None, fallback: Configuration
) -> Configuration:
    """The one that fulfils the condition. Raises `AnalysisError` unless there is exactly one."""
    if condition is None:
        return fallback
    match = [c for c in configurations if c.has(condition)]
    if len(match) != 1:
        where = label(fallback, configurations) or fallback.model or "these configurations"
        raise AnalysisError(
            f"--reference {condition}: {len(match)} configurations have it among those with {where}; one must"
        )
    return match[0]


def wholes(configurations: Sequence[Configuration], kind: str) -> list[Configuration]:
    """Configurations without a phase, with energy and time. Raises `AnalysisError` for none."""
    kept = [c for c in configurations if c.is_whole and c.energy_j is not None and c.time_s is not None]
    if not kept:
        raise AnalysisError(
            f"nothing to draw as {kind}: no configuration has energy and time of the whole; a table needs columns "
            "such as energy_j and time_s, a run phases with the attribute batch_size"
        )
    return kept


# ---- from records ------------------------------------------------------------------------------------------------


def configurations_of_records(records: Sequence[Record]) -> list[Configuration]:
    """Innermost phases a batch, and totals a sample where batch sizes are known, else a batch; repeats averaged."""
    each_batch = (of_a_batch(r) for r in prepared(records, Length()) if r["kind"] in ("phase", "total"))
    means = averaged(map(without_gflops, each_batch))
    totals = of_trainings([r for r in means if r["kind"] == "total"])
    whole = without_summands([*of_configurations(innermost(means)), *totals])
    parts, products = parts_of_machines(whole), _shared_products(whole)
    each = [attributes_of(r) for r in whole]
    varying = [n for n in dict.fromkeys(n for a in each for n in a) if len({str(a.get(n)) for a in each}) > 1]
    return [
        replace(
            _of_record(r),
            others=group_line({n: a[n] for n in varying if n in a}),
            part=parts[str(r["device"])],
            device=_device(r, products),
        )
        for r, a in zip(whole, each, strict=True)
    ]


def _shared_products(records: Sequence[Record]) -> set[str]:
    """Products of which a run has several devices that are not added up: the product alone tells them not apart."""
    devices: dict[tuple[object, ...], set[str]] = {}
    for r in records:
        for path in paths_of(r):
            devices.setdefault((path, r["device_name"]), set()).add(_text(r["device"]))
    return {_text(name) for (_, name), several in devices.items() if len(several) > 1}


def _device(r: Record, shared: set[str]) -> str:
    name, device = _text(r["device_name"]), _text(r["device"])
    return f"{name} {device}" if name and name in shared else name or device


def _of_record(r: Record) -> Configuration:
    energy, time = figure_of(r, "j_per_batch"), figure_of(r, "s_per_batch")
    rate, gpus, u95_j, n = (number_of(r, name) for name in ("samples_per_s", "gpus", "u95_j", "iterations"))
    scale, per = 1.0, BATCH
    if r["kind"] == "total" and rate and time and time.value:
        scale, per = 1 / (rate * time.value), SAMPLE
    if r["kind"] == "total" and u95_j is not None:
        u95_j = u95_j / n if n else None  # a record has it of a batch for phases, of all batches for totals
    return Configuration(
        model=_text(r["model"]), batch=number_of(r, "batch_size"), gpus=None if gpus is None else round(gpus),
        provenance=_text(r["provenance"]), power_cap_w=number_of(r, "power_cap_w"), phase=_text(r["phase"]),
        energy_j=None if energy is None else energy.value * scale, u95_j=None if u95_j is None else u95_j * scale,
        time_s=None if time is None else time.value * scale,
        u95_s=None if time is None or time.u95 is None else time.u95 * scale,
        is_lower_bound=r["is_lower_bound"] is True, per=per, cells={k: _text(v) for k, v in r.items()},
    )  # fmt: skip


def _text(value: object) -> str:
    return "" if value is None else str(value)


# ---- from a table ------------------------------------------------------------------------------------------------


def configurations_of_table(table: TableFile) -> list[Configuration]:
    """Rows of a table with energy and time (any of `ENERGY_J`, `TIME_S`; ``j_per_batch`` and ``s_per_batch``).

    Rows of a phase take the figures of a batch, others the whole where the table has both. Rows that are of whole
    recordings in a table of ours are left out. Raises `AnalysisError` with file, row and column.
    """
    column = {key: next((n for n in names if n in table.columns), "") for key, names in _NAMES.items()}
    batch_j, batch_s = numbers_to_draw(table, "j_per_batch", signed=True), numbers_to_draw(table, "s_per_batch")
    whole_j, whole_s = _first(table, ENERGY_J), _first(table, TIME_S)
    caps = numbers_to_draw(table, next((n for n in CAPS_W if n in table.columns), ""), positive=True)
    batch, u95_j, u95_s = (numbers_to_draw(table, column[k]) for k in ("batch", "u95_j", "u95_s"))
    gpus = numbers_to_draw(table, column["gpus"], positive=True, whole=True)
    kinds = table.cells[next((n for n in ("table", "kind") if n in table.columns), table.columns[0])]
    configurations = []
    for i in range(len(table)):
        if kinds[i] == "run":
            continue
        texts = {k: table.cells[column[k]][i] if column[k] else "" for k in ("device", "model", "phase", "provenance")}
        is_batch = (bool(texts["phase"]) and batch_j[i] is not None) or whole_j[i] is None
        count = gpus[i]
        configurations.append(Configuration(
            **texts, batch=batch[i], gpus=None if count is None else round(count), power_cap_w=caps[i],
            energy_j=batch_j[i] if is_batch else whole_j[i], u95_j=u95_j[i],
            time_s=batch_s[i] if is_batch else whole_s[i], u95_s=u95_s[i],
            is_lower_bound="is_lower_bound" in table.columns and table.cells["is_lower_bound"][i].lower() == "true",
            per=BATCH if is_batch else WHOLE, cells={n: table.cells[n][i] for n in table.columns if n},
        ))  # fmt: skip
    return configurations


def _first(table: TableFile, names: Mapping[str, float]) -> list[float | None]:
    """The column of these that there is, in SI units."""
    there = [name for name in names if name in table.columns]
    for name in there:
        numbers_to_draw(table, name)
    return column_in(table, names) if there else [None] * len(table)


def numbers_to_draw(
    table: TableFile, name: str, *, positive: bool = False, signed: bool = False, whole: bool = False
) -> list[float | None]:
    """A column's numbers [n] as `TableFile.numbers` gives them, None throughout where the table does not have it.

    Raises `AnalysisError`, too, for the first that is beyond `LARGEST`, or no 0 and below `SMALLEST`.
    """
    if not name or name not in table.columns:
        return [None] * len(table)
    numbers = table.numbers(name, positive=positive, signed=signed, whole=whole)
    for row, value in enumerate(numbers):
        if value and not SMALLEST <= abs(value) <= LARGEST:
            size = "large" if abs(value) > LARGEST else "small"
            raise table.fault(row, name, f"{table.cells[name][row]} is too {size} to be drawn")
    return numbers
