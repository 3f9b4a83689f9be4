"""`joules layers`: energy and efficiency of layers, passes and models, and the energy roofline.

The energies come from the phases that ``Meter.watch(layers=True)`` marks; operation counts join them by the layer's
name. GFLOPS/W are operations over joules, by each convention: in ``paper`` each pass counts the layer's operations
once (Castro et al.), in ``executed`` each pass counts the products that it runs.

The roofline puts operations a joule against operations a byte, after Choi, Bedard, Fowler and Vuduc, "A roofline model
of energy" (2013). The roofs drawn are the best that the run's own layers reached: no figure of a data sheet is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from typing import Any

import pandas as pd

from powerd_analytics.energy.uncertainty import Estimate
from powerd_analytics.export import Cell, Column, table_frame
from powerd_analytics.operations.counts import BYTES_PER_VALUE, EXECUTED, PAPER, LayerOperations, OperationCount, Work
from powerd_analytics.table import LAYER, PhaseRow, PhaseTable
from powerd_core.errors import AnalysisError

PASSES = ("forward", "backward")
BOTH = "forward+backward"


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Operations of one batch by one convention over the joules that they took. None: not counted, or no joules."""

    operations: int | None = None
    moved_bytes: int | None = None
    gflops_per_w: float | None = None
    u95_gflops_per_w: float | None = None
    """From the joules' uncertainty; operations are exact."""

    @property
    def operations_per_byte(self) -> float | None:
        return self.operations / self.moved_bytes if self.operations and self.moved_bytes else None


@dataclass(frozen=True, slots=True)
class LayerEnergy:
    """One layer, phase or model in one pass or both, for one batch on one device.

    Without a number in ``j_per_batch``, ``note`` says why. Where ``is_lower_bound``, GFLOPS/W are upper bounds.
    """

    level: str
    """``layer``, ``phase`` (a whole pass) or ``model`` (forward and backward)."""
    group: Mapping[str, Any]
    layer: str
    kind: str
    passes: str
    device: str
    provenance: str
    calls: float
    """Phases a batch: a module that is called twice has two."""
    s_per_batch: float | None
    energy: Estimate | None
    is_lower_bound: bool
    paper: Efficiency
    executed: Efficiency
    note: str

    @property
    def j_per_batch(self) -> float | None:
        return self.energy.energy_j if self.energy else None

    @property
    def u95_j(self) -> float | None:
        return self.energy.u95_j if self.energy and not self.is_lower_bound else None

    def by(self, convention: str) -> Efficiency:
        """The efficiency by ``paper`` or ``executed``."""
        return {PAPER: self.paper, EXECUTED: self.executed}[convention]


CountOf = Callable[[int], OperationCount]
"""The operations of the run's model at a batch size."""


def layer_energies(
    table: PhaseTable, count_of: CountOf | None = None, *, batch_size: int | None = None, model: str | None = None
) -> tuple[LayerEnergy, ...]:
    """Layers, passes and models of a run's table, in the order in which they ran.

    ``batch_size``  where the run's phases have no such attribute
    ``model``       the phases with this attribute, where a run has several models

    Raises `AnalysisError` when no layers were marked, or when counts and run have no layer in common.
    """
    groups: dict[tuple[Any, ...], list[PhaseRow]] = {}
    for row in table.phases:
        groups.setdefault((row.device, row.provenance, _key(row.group)), []).append(row)
    marked = {key: rows for key, rows in groups.items() if any(_is_layer(r) for r in rows)}
    for key, rows in groups.items():
        # Autograd does not say whose backward it runs: with one model in the run, it is that model's.
        inside = [k for k in marked if k != key and k[:2] == key[:2] and set(key[2]) < set(k[2])]
        if len(inside) == 1:
            paths = {r.path for r in marked[inside[0]]}
            marked[inside[0]] += [r for r in rows if r.path not in paths and not _is_layer(r)]
    if not marked:
        raise AnalysisError("this run has no phases of layers: mark them with meter.watch(model, layers=True)")
    models = sorted({str(dict(key[2]).get("model", "")) for key in marked})
    if model is not None:
        marked = {key: rows for key, rows in marked.items() if str(dict(key[2]).get("model", "")) == model}
        if not marked:
            raise AnalysisError(f"this run has no model {model!r}: {', '.join(models)}")
    elif count_of is not None and len(models) > 1:
        raise AnalysisError(
            f"this run has the models {', '.join(models)}: say which one the operations are of (--model)"
        )
    energies: list[LayerEnergy] = []
    for key, rows in marked.items():
        counts = _Counts(count_of, dict(key[2]), batch_size)
        energies += _of_group(dict(key[2]), rows, counts)
    return tuple(energies)


class _Counts:
    """The counts at the batch size of one group."""

    def __init__(self, count_of: CountOf | None, group: Mapping[str, Any], batch_size: int | None) -> None:
        self.rows: dict[str, LayerOperations] | None = None
        self.missing: dict[str, list[str]] = {}
        """Kernels that are not counted as executed, by layer."""
        self.without_paper = 0
        """Modules that the paper's equations leave out."""
        self.note = ""
        self.factor = 1.0
        if count_of is None:
            return
        batch = group.get("batch_size", batch_size)
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise AnalysisError("the phases of this run have no batch_size: give it (--batch)")
        count = count_of(batch)
        self.rows = {row.name: row for row in count.rows()}
        self.factor = batch / count.batch_size
        self.without_paper = len(count.not_counted)
        for text in count.executed_not_counted:
            layer, _, kernel = text.partition(" (")
            self.missing.setdefault(layer, []).append(kernel.partition("): ")[2])
        if count.batch_size != batch:
            self.note = f"operations in proportion to those of a batch of {count.batch_size}"

    def works(self, names: Sequence[str], passes: Sequence[str]) -> tuple[Work | None, Work | None]:
        """By the paper's convention and as executed; None where nothing is counted."""
        rows = [self.rows[n] for n in names if n in self.rows] if self.rows is not None else []
        paper = [_paper(row) for row in rows if row.operations_paper is not None]
        executed = [w for row in rows for p in passes if (w := getattr(row, p)) is not None]
        return (
            sum(paper, Work()).scaled(self.factor * len(passes)) if paper else None,
            sum(executed, Work()).scaled(self.factor) if executed else None,
        )


def _of_group(group: Mapping[str, Any], rows: Sequence[PhaseRow], counts: _Counts) -> Iterator[LayerEnergy]:
    layers = [r for r in rows if _is_layer(r)]
    around = {r.path: r for r in rows if not _is_layer(r)}
    names = list(dict.fromkeys(str(r.group[LAYER]) for r in layers))
    if counts.rows is not None and not set(names) & set(counts.rows):
        raise AnalysisError(
            f"the run's layers ({', '.join(names[:3])}, ...) are not those of the operations "
            f"({', '.join(list(counts.rows)[:3])}, ...): give the model that was trained"
        )
    for name in names:
        parts = []
        for row in layers:
            if row.group[LAYER] == name:
                of = row.path.split("/")[-2] if "/" in row.path else ""
                parts.append(_entry(group, row, of, _calls(row, around), counts, LAYER, name))
        yield from parts
        yield from _both(parts, counts, [name])
    passes = []
    for row in around.values():
        last = row.path.rpartition("/")[2]
        if last in PASSES:
            passes.append(_entry(group, row, last, 1.0, counts, "phase", ""))
    yield from passes
    yield from _both(passes, counts, list(counts.rows or ()))


def _entry(
    group: Mapping[str, Any], row: PhaseRow, of: str, calls: float, counts: _Counts, level: str, name: str
) -> LayerEnergy:
    energy = None
    if row.j_per_batch is not None:
        energy = Estimate(row.j_per_batch, row.u_statistical_j or 0.0, row.u_systematic_j or 0.0).scaled(calls)
    entry = LayerEnergy(
        level=level,
        group=group,
        layer=name,
        kind=counts.rows[name].kind if counts.rows and name in counts.rows else "",
        passes=of,
        device=row.device,
        provenance=row.provenance,
        calls=calls,
        s_per_batch=row.s_per_batch * calls if row.s_per_batch is not None else None,
        energy=energy,
        is_lower_bound=row.is_lower_bound,
        paper=Efficiency(),
        executed=Efficiency(),
        note=row.note,
    )
    return _with_operations(
        entry, counts, [name] if level == LAYER else list(counts.rows or ()), (of,) if of in PASSES else ()
    )


def _both(parts: Sequence[LayerEnergy], counts: _Counts, names: Sequence[str]) -> Iterator[LayerEnergy]:
    """Forward and backward together: random parts in quadrature, what the sensors share one to one."""
    one = {p.passes: p for p in parts}
    if len(parts) != len(one) or not all(p in one and one[p].energy is not None for p in PASSES):
        return
    forward, backward = one["forward"], one["backward"]
    both = [p.energy for p in (forward, backward) if p.energy is not None]
    energy = Estimate(
        sum(e.energy_j for e in both), hypot(*(e.u_statistical_j for e in both)), sum(e.u_systematic_j for e in both)
    )
    entry = replace(
        forward,
        level="model" if forward.level == "phase" else forward.level,
        passes=BOTH,
        s_per_batch=(forward.s_per_batch or 0.0) + (backward.s_per_batch or 0.0),
        energy=energy,
        is_lower_bound=forward.is_lower_bound or backward.is_lower_bound,
        note=_joined(forward.note, backward.note),
    )
    yield _with_operations(entry, counts, names, PASSES)


def _with_operations(entry: LayerEnergy, counts: _Counts, names: Sequence[str], passes: Sequence[str]) -> LayerEnergy:
    if counts.rows is None:
        return entry
    notes = [entry.note, counts.note]
    paper, executed = counts.works(names, passes) if passes else (None, None)
    if not passes:
        notes.append(f"operations in {entry.passes} are counted in the pass around it")
    elif entry.level == LAYER and entry.layer not in counts.rows:
        notes.append("the operations know no such layer")
    else:
        notes += ["not counted (paper)"] if paper is None else []
        notes += [f"not counted (executed): {text}" for name in names for text in counts.missing.get(name, [])]
        if entry.level != LAYER and counts.without_paper:
            notes.append(f"not counted (paper): {counts.without_paper} modules")
        notes += ["no products (executed)"] if executed is not None and not executed.operations else []
    return replace(
        entry,
        paper=_efficiency(entry, paper),
        executed=_efficiency(entry, executed),
        note=_joined(*notes),
    )


def _efficiency(entry: LayerEnergy, work: Work | None) -> Efficiency:
    if work is None:
        return Efficiency()
    joules = entry.j_per_batch
    if joules is None or joules <= 0 or not work.operations:
        return Efficiency(work.operations, work.moved_bytes)
    figure = work.operations / joules / 1e9
    u95 = figure * entry.u95_j / joules if entry.u95_j is not None else None
    return Efficiency(work.operations, work.moved_bytes, figure, u95)


def _paper(row: LayerOperations) -> Work:
    values = (row.values_read or 0) + (row.values_written or 0)
    return Work(row.operations_paper or 0, 0, BYTES_PER_VALUE * values)


def _is_layer(row: PhaseRow) -> bool:
    return LAYER in row.group and row.path.rpartition("/")[2] == LAYER


def _key(group: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((k, v) for k, v in group.items() if k != LAYER)


def _calls(row: PhaseRow, around: Mapping[str, PhaseRow]) -> float:
    """Phases of a layer in one pass; a pass that has no row of its own is as frequent as forward."""
    path, _, _ = row.path.rpartition("/")
    outer = around.get(path) or around.get(f"{path.rpartition('/')[0]}/forward".lstrip("/"))
    calls = row.iterations / outer.iterations if outer and outer.iterations else 1.0
    # A phase that was cut at the end of a run must not make of two calls 1.99.
    return float(round(calls)) if round(calls) and abs(calls - round(calls)) < 0.05 else calls


def _joined(*notes: str) -> str:
    """Each part once."""
    return "; ".join(dict.fromkeys(part for note in notes for part in note.split("; ") if part))


@dataclass(frozen=True, slots=True)
class Roof:
    """The most that any of some points reached. ``gflops_per_w`` bounds all, ``gb_per_j`` those with few operations."""

    gflops_per_w: float
    gb_per_j: float

    def at(self, operations_per_byte: float) -> float:
        """GFLOPS/W that the roof allows at an intensity."""
        return min(self.gflops_per_w, self.gb_per_j * operations_per_byte)


def roofline(rows: Sequence[LayerEnergy], convention: str) -> tuple[LayerEnergy, ...]:
    """The rows that are points of a roofline: with joules, operations and bytes by that convention."""
    return tuple(
        row
        for row in rows
        if row.by(convention).operations_per_byte is not None and row.by(convention).gflops_per_w is not None
    )


def roof_of(points: Sequence[LayerEnergy], convention: str) -> Roof:
    """The roof over points of `roofline`. Raises `AnalysisError` when there are none."""
    if not points:
        raise AnalysisError("no layer has joules and operations: nothing to draw a roofline of")
    figures = [(p.by(convention).gflops_per_w or 0.0, p.by(convention).operations_per_byte or 1.0) for p in points]
    return Roof(max(g for g, _ in figures), max(g / intensity for g, intensity in figures))


COLUMNS = (
    Column("level"),
    Column("model"),
    Column("batch_size", "integer"),
    Column("layer"),
    Column("kind"),
    Column("pass"),
    Column("device"),
    Column("provenance"),
    Column("calls", "number", "1", is_hidden=True),
    Column("s_per_batch", "number", "s", heading="s/batch"),
    Column("j_per_batch", "number", "J", heading="J/batch", sign="≥", missing="n.r."),
    Column("u95_j", "number", "J", heading="± U95", is_uncertainty=True),
    Column("u_statistical_j", "number", "J", is_hidden=True),
    Column("u_systematic_j", "number", "J", is_hidden=True),
    Column("operations_paper", "integer", "1", is_hidden=True),
    Column("bytes_paper", "integer", "B", is_hidden=True),
    Column("gflops_per_w_paper", "number", "GFLOPS/W", heading="GFLOPS/W (paper)", sign="≤"),
    Column("u95_gflops_per_w_paper", "number", "GFLOPS/W", heading="± U95", is_uncertainty=True),
    Column("operations_executed", "integer", "1", is_hidden=True),
    Column("bytes_executed", "integer", "B", is_hidden=True),
    Column("gflops_per_w_executed", "number", "GFLOPS/W", heading="GFLOPS/W (executed)", sign="≤"),
    Column("u95_gflops_per_w_executed", "number", "GFLOPS/W", heading="± U95", is_uncertainty=True),
    Column("is_lower_bound", "flag", is_hidden=True),
    Column("note"),
)


def layer_frame(rows: Sequence[LayerEnergy]) -> pd.DataFrame:
    """One row a `LayerEnergy`; attributes of the phases beside model and batch size follow as ``attribute_NAME``."""
    extra = list(dict.fromkeys(f"attribute_{k}" for r in rows for k in r.group if k not in ("model", "batch_size")))
    lines: list[list[Cell]] = []
    for r in rows:
        attributes = {f"attribute_{k}": v for k, v in r.group.items()}
        lines.append(
            [
                r.level, r.group.get("model"), r.group.get("batch_size"), r.layer, r.kind, r.passes, r.device,
                r.provenance, r.calls, r.s_per_batch, r.j_per_batch, r.u95_j,
                r.energy.u_statistical_j if r.energy else None, r.energy.u_systematic_j if r.energy else None,
                *_figures(r.paper), *_figures(r.executed), r.is_lower_bound, r.note,
                *(attributes.get(name) for name in extra),
            ]
        )  # fmt: skip
    columns = (*COLUMNS, *(Column(name, heading=name.removeprefix("attribute_")) for name in extra))
    return table_frame("layers", "Energy of layers", columns, lines)


def _figures(efficiency: Efficiency) -> list[Cell]:
    return [efficiency.operations, efficiency.moved_bytes, efficiency.gflops_per_w, efficiency.u95_gflops_per_w]
