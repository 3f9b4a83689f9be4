"""Configurations that pictures compare: from records of run files, or from anybody's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot, isclose

from powerd_analytics.campaigns.components import (
    of_trainings,
    parts_of_machines,
    paths_of,
    without_gflops,
    without_summands,
)
from powerd_analytics.campaigns.fieldtables import prepared
from powerd_analytics.campaigns.figures import figure_of
from powerd_analytics.campaigns.innermost import innermost, of_configurations
from powerd_analytics.campaigns.repeats import averaged, of_a_batch
from powerd_analytics.campaigns.trainings import Length
from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.pictures.limits import numbers_to_draw
from powerd_analytics.published.choice import CAPS_W, parse_condition
from powerd_analytics.published.tablefile import TableFile, parsed
from powerd_analytics.published.units import ENERGY_J, TIME_S, column_in
from powerd_analytics.records.columns import Record, number_of
from powerd_analytics.records.frame import attributes_of
from powerd_analytics.tables.groups import group_line
from powerd_core.errors import AnalysisError

WHOLE, BATCH, SAMPLE = "", " a batch", " a sample"
_NAMES = {
    "batch": ("batch", "batch_size"), "gpus": ("gpus",), "device": ("device_name", "device", "gpu"),
    "model": ("model",),
    "phase": ("phase",), "provenance": ("provenance",), "u95_j": ("u95_j",), "u95_s": ("u95_s",),
    "gflops": ("gflops_per_w", "gflops_per_w_paper"), "u95_gflops": ("u95_gflops_per_w",),
}  # fmt: skip
_U_GFLOPS = ("u_statistical_gflops_per_w", "u_systematic_gflops_per_w")


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
    gflops_per_w: float | None = None
    u95_gflops_per_w: float | None = None
    u_gflops_per_w: tuple[float, float] | None = None
    """Standard uncertainty: what averages out, and what is shared; None where they are not known apart."""
    is_lower_bound: bool = False
    others: str = ""
    """Attributes of the phases that differ within the picture."""
    part: str = ""
    """Which part of the machine it is of, where recordings have several: a CPU is no alternative to a GPU."""
    per: str = WHOLE
    """What energy and time are of: `WHOLE`, `BATCH` or `SAMPLE`."""
    cells: Mapping[str, str] = field(default_factory=dict)
    """Texts by column, to find a reference by."""

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
    parts = []
    for name, text in (
        ("model", c.model), ("batch", f"batch {c.batch:g}" if c.batch is not None else ""),
        ("gpus", f"{c.gpus} GPU{'s' if c.gpus != 1 else ''}" if c.gpus is not None else ""), ("device", c.device),
        ("power_cap_w", f"{c.power_cap_w:g} W" if c.power_cap_w is not None else ""), ("others", c.others),
        ("provenance", c.provenance),
    ):  # fmt: skip
        if text and name not in leave_out and len({getattr(other, name) for other in among}) > 1:
            parts.append(text)
    return ", ".join(parts)


def reference_of(found: Sequence[Configuration], condition: str | None, fallback: Configuration) -> Configuration:
    """The one that fulfils the condition. Raises `AnalysisError` unless there is exactly one."""
    if condition is None:
        return fallback
    match = [c for c in found if c.has(condition)]
    if len(match) != 1:
        where = label(fallback, found, ()) or fallback.model or "these configurations"
        raise AnalysisError(
            f"--reference {condition}: {len(match)} configurations have it among those with {where}; one must"
        )
    return match[0]


def configurations_of_records(records: Sequence[Record], *, with_gflops: bool = True) -> list[Configuration]:
    """Innermost phases a batch, and totals a sample where batch sizes are known, else a batch; repeats averaged.

    Without ``with_gflops`` runs are repeats, too, whose GFLOPS/W are of different phases.
    """
    each_batch = (of_a_batch(r) for r in prepared(records, Length()) if r["kind"] in ("phase", "total"))
    found = averaged(r if with_gflops and r["kind"] == "total" else without_gflops(r) for r in each_batch)
    totals = of_trainings([r for r in found if r["kind"] == "total"])
    whole = without_summands([*of_configurations(innermost(found)), *totals])
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
    found: dict[tuple[object, ...], set[str]] = {}
    for r in records:
        for path in paths_of(r):
            found.setdefault((path, r["device_name"]), set()).add(_text(r["device"]))
    return {_text(name) for (_, name), devices in found.items() if len(devices) > 1}


def _device(r: Record, shared: set[str]) -> str:
    names = [_text(r["device_name"])] if r["device_name"] else []
    return " ".join([*names, _text(r["device"])] if not names or names[0] in shared else names)


def _of_record(r: Record) -> Configuration:
    energy, time = figure_of(r, "j_per_batch"), figure_of(r, "s_per_batch")
    rate = number_of(r, "samples_per_s")
    scale, per = 1.0, BATCH
    if r["kind"] == "total" and rate and time and time.value:
        scale, per = 1 / (rate * time.value), SAMPLE
    gflops = figure_of(r, "gflops_per_w")
    gpus = number_of(r, "gpus")
    return Configuration(
        model=_text(r["model"]), batch=number_of(r, "batch_size"), gpus=None if gpus is None else round(gpus),
        provenance=_text(r["provenance"]),
        power_cap_w=number_of(r, "power_cap_w"), phase=_text(r["phase"]),
        energy_j=None if energy is None else energy.value * scale,
        u95_j=_u95_j(r, scale),
        time_s=None if time is None else time.value * scale,
        u95_s=None if time is None or time.u95 is None else time.u95 * scale,
        gflops_per_w=None if gflops is None else gflops.value, u95_gflops_per_w=None if gflops is None else gflops.u95,
        u_gflops_per_w=None if gflops is None else _apart(gflops.u_statistical, gflops.u_systematic),
        is_lower_bound=r["is_lower_bound"] is True, per=per, cells={k: _text(v) for k, v in r.items()},
    )  # fmt: skip


def _apart(statistical: float | None, systematic: float | None) -> tuple[float, float] | None:
    return None if statistical is None or systematic is None else (statistical, systematic)


def _u95(parts: tuple[float, float] | None) -> float | None:
    return None if parts is None else COVERAGE_FACTOR * hypot(*parts)


def _u95_j(r: Record, scale: float) -> float | None:
    """As the tables give it: of a batch for phases, of all batches for totals."""
    u95, n = number_of(r, "u95_j"), number_of(r, "iterations")
    if u95 is None or r["kind"] == "phase":
        return None if u95 is None else u95 * scale
    return u95 / n * scale if n else None


def configurations_of_table(table: TableFile) -> list[Configuration]:
    """Rows of a table with energy and time (any of `ENERGY_J`, `TIME_S`; ``j_per_batch`` and ``s_per_batch``).

    Rows of a phase take the figures of a batch, others the whole where the table has both. Rows that are of whole
    recordings in a table of ours are left out. Raises `AnalysisError` with file, row and column.
    """
    column = {key: next((n for n in names if n in table.columns), "") for key, names in _NAMES.items()}
    batch_j, batch_s = numbers_to_draw(table, "j_per_batch", signed=True), numbers_to_draw(table, "s_per_batch")
    whole_j, whole_s = _first(table, ENERGY_J), _first(table, TIME_S)
    caps = numbers_to_draw(table, next((n for n in CAPS_W if n in table.columns), ""), positive=True)
    numbers = {k: numbers_to_draw(table, column[k]) for k in ("batch", "u95_j", "u95_s", "gflops", "u95_gflops")}
    gpus = numbers_to_draw(table, column["gpus"], positive=True, whole=True)
    parts = [_apart(*u) for u in zip(*(numbers_to_draw(table, name) for name in _U_GFLOPS), strict=True)]
    kinds = table.cells[next((n for n in ("table", "kind") if n in table.columns), table.columns[0])]
    found = []
    for i in range(len(table)):
        texts = {k: table.cells[column[k]][i] if column[k] else "" for k in ("device", "model", "phase", "provenance")}
        if kinds[i] == "run":
            continue
        is_batch = (bool(texts["phase"]) and batch_j[i] is not None) or whole_j[i] is None
        count = gpus[i]
        found.append(Configuration(
            model=texts["model"], batch=numbers["batch"][i], gpus=None if count is None else round(count),
            device=texts["device"], provenance=texts["provenance"], power_cap_w=caps[i], phase=texts["phase"],
            energy_j=batch_j[i] if is_batch else whole_j[i], u95_j=numbers["u95_j"][i],
            time_s=batch_s[i] if is_batch else whole_s[i], u95_s=numbers["u95_s"][i],
            gflops_per_w=numbers["gflops"][i], u95_gflops_per_w=numbers["u95_gflops"][i] or _u95(parts[i]),
            u_gflops_per_w=parts[i],
            is_lower_bound="is_lower_bound" in table.columns and table.cells["is_lower_bound"][i].lower() == "true",
            per=BATCH if is_batch else WHOLE, cells={n: table.cells[n][i] for n in table.columns if n},
        ))  # fmt: skip
    return found


def _first(table: TableFile, names: Mapping[str, float]) -> list[float | None]:
    """The column of these that there is, in SI units."""
    there = [name for name in names if name in table.columns]
    for name in there:
        numbers_to_draw(table, name)
    return column_in(table, names) if there else [None] * len(table)


def wholes(found: Sequence[Configuration], kind: str) -> list[Configuration]:
    """Configurations without a phase, with energy and time. Raises `AnalysisError` for none."""
    kept = [c for c in found if c.phase in ("", "all", "total") and c.energy_j is not None and c.time_s is not None]
    if not kept:
        raise AnalysisError(
            f"nothing to draw as {kind}: no configuration has energy and time of the whole; a table needs columns "
            "such as energy_j and time_s, a run phases with the attribute batch_size"
        )
    return kept


def _text(value: object) -> str:
    return "" if value is None else str(value)
