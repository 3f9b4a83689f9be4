"""`joules tables --table layers`: energy and efficiency of layers, passes and models, and the energy roofline.

The energies come from the phases that ``Meter.watch(layers=True)`` marks; operation counts join them by the layer's
name. GFLOPS/W are operations over joules, by each convention: in ``paper`` each pass counts the layer's operations
once (Castro et al.), in ``executed`` each pass counts the products that it runs.

The roofline puts operations a joule against operations a byte, after Choi, Bedard, Fowler and Vuduc, "A roofline model
of energy" (2013). The roofs drawn are the best that the run's own layers reached: no figure of a data sheet is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from types import MappingProxyType
from typing import Any

from powerd_analytics.energy.uncertainty import ROUNDING, Estimate
from powerd_analytics.operations.counts import BYTES_PER_VALUE, EXECUTED, PAPER, OperationCount, Work
from powerd_analytics.output.export import Column, Table, make_table
from powerd_analytics.output.text import Cell, is_number_cell, join_texts
from powerd_analytics.run_tables.table import PhaseRow, PhaseTable
from powerd_analytics.runs.phases import LAYER
from powerd_analytics.runs.run import Event
from powerd_client.training.layer_operations import WATCHED_MODEL
from powerd_core.errors import AnalysisError

PASSES = ("forward", "backward")
BOTH = "forward+backward"
REST = "rest"


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
    """``layer``, ``rest`` (what of a pass is in no layer), ``phase`` (a whole pass) or ``model`` (forward and
    backward)."""
    group: Mapping[str, Any]
    layer: str
    kind: str
    """The class of a layer, as a training that was watched or the operations say it."""
    passes: str
    device: str
    provenance: str
    calls: float
    """Phases a batch: a module that is called twice has two."""
    s_per_batch: float | None
    energy: Estimate | None
    is_lower_bound: bool
    note: str
    paper: Efficiency = Efficiency()
    executed: Efficiency = Efficiency()
    shape: str = ""
    """Of what a layer puts out for a sample, as ``64x56x56``."""

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
    table: PhaseTable,
    count_of: CountOf | None = None,
    *,
    batch_size: int | None = None,
    model: str | None = None,
    described: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> tuple[LayerEnergy, ...]:
    """Layers, passes and models of a run's table, in the order in which they ran.

    ``batch_size``  where the run's phases have no such attribute
    ``model``       the phases with this attribute, where a run has several models
    ``described``   by layer its class and shape, as `described_layers` has them

    Raises `AnalysisError` when no layers were marked, or when counts and run have no layer in common.
    """
    groups: dict[tuple[Any, ...], list[PhaseRow]] = {}
    for row in table.phases:
        own = row.group if row.own is None else row.own
        group = tuple((k, v) for k, v in own.items() if k != LAYER)
        groups.setdefault((row.device, row.provenance, group), []).append(row)
    marked = {key: rows for key, rows in groups.items() if any(_is_layer(r) for r in rows)}
    if not marked:
        raise AnalysisError("this run has no phases of layers: mark them with meter.watch(model, layers=True)")
    for key, rows in groups.items():
        # Autograd does not say whose backward it runs: with one model in the run, it is that model's.
        inside = [k for k in marked if k != key and k[:2] == key[:2] and set(key[2]) < set(k[2])]
        if len(inside) == 1:
            paths = {r.path for r in marked[inside[0]]}
            marked[inside[0]] += [r for r in rows if r.path not in paths and not _is_layer(r)]
    models = {str(dict(key[2]).get("model", "")) for key in marked}
    if (model is not None and model not in models) or (model is None and count_of is not None and len(models) > 1):
        raise AnalysisError(f"this run's models are {', '.join(sorted(models)) or 'unnamed'}: give --model one")
    energies: list[LayerEnergy] = []
    for (_, _, attributes), rows in marked.items():
        of_phases = dict(attributes)
        if model is None or str(of_phases.get("model", "")) == model:
            counts = None if count_of is None else _Counts(count_of, of_phases.get("batch_size", batch_size))
            energies += _of_group(of_phases, rows, counts)
    return tuple(_described(entry, described.get(entry.layer)) for entry in energies)


def described_layers(events: Iterable[Event]) -> dict[str, tuple[str, str]]:
    """The class and the shape of each layer of the models that the run's training watched."""
    layers: dict[str, tuple[str, str]] = {}
    for event in events:
        rows = event.values.get("layers") if event.name == WATCHED_MODEL else None
        for row in rows if isinstance(rows, list | tuple) else ():
            if isinstance(row, list | tuple) and len(row) == 3:
                name, kind, shape = row
                sizes = shape if isinstance(shape, list | tuple) else ()
                layers.setdefault(str(name), (str(kind), "x".join(map(str, sizes))))
    return layers


def _described(entry: LayerEnergy, known: tuple[str, str] | None) -> LayerEnergy:
    return entry if known is None else replace(entry, kind=entry.kind or known[0], shape=known[1])


def _of_group(group: Mapping[str, Any], rows: Sequence[PhaseRow], counts: _Counts | None) -> list[LayerEnergy]:
    layers: dict[str, list[PhaseRow]] = {}
    for row in filter(_is_layer, rows):
        layers.setdefault(str(row.group[LAYER]), []).append(row)
    if counts and not set(layers) & set(counts.rows):
        raise AnalysisError(
            f"the run's layers ({', '.join(list(layers)[:3])}, ...) are not those of the operations "
            f"({', '.join(list(counts.rows)[:3])}, ...): give the model that was trained"
        )
    around = {row.path: row for row in rows if not _is_layer(row)}
    energies = []
    for name, same in layers.items():
        kind = counts.rows[name].kind if counts and name in counts.rows else ""
        parts = []
        for row in same:
            of = row.path.split("/")[-2] if "/" in row.path else ""
            parts.append(_energy(group, row, of, _calls(row, around), LAYER, name, kind))
        energies += [*parts, *_both(parts, LAYER)]
    passes, rests = [], []
    for path, row in around.items():
        if (of := path.rpartition("/")[2]) in PASSES:
            passes.append(_energy(group, row, of, 1.0, "phase", "", ""))
            rests += _rest(passes[-1], row, [r for same in layers.values() for r in same], around)
    energies += [*rests, *_both(rests, REST), *passes, *_both(passes, "model")]
    return [counts.joined(entry) for entry in energies] if counts else energies


def _energy(
    group: Mapping[str, Any], row: PhaseRow, of: str, calls: float, level: str, name: str, kind: str
) -> LayerEnergy:
    energy = None
    if row.j_per_batch is not None:
        energy = Estimate(row.j_per_batch, row.u_statistical_j or 0.0, row.u_systematic_j or 0.0).scaled(calls)
    s_per_batch = row.s_per_batch * calls if row.s_per_batch is not None else None
    return LayerEnergy(
        level, group, name, kind, of, row.device, row.provenance, calls, s_per_batch, energy, row.is_lower_bound,
        row.note,
    )  # fmt: skip


def _rest(
    whole: LayerEnergy, row: PhaseRow, layers: Sequence[PhaseRow], around: Mapping[str, PhaseRow]
) -> list[LayerEnergy]:
    """What a pass has beside the layers in it, so that they and the rest are all of it. How sure that is follows from
    the time in no layer; for layers that are not resolvable there is a note. None where no layers are in the pass."""
    inside = [r for r in layers if r.path.startswith(f"{row.path}/")]
    if row.j_per_batch is None or row.layer_rest is None or not inside:
        return []
    untold = list(dict.fromkeys(str(r.group[LAYER]) for r in inside if r.j_per_batch is None))
    told_j = told_s = 0.0
    for r in inside:
        is_right_inside = r.path.rpartition("/")[0] == row.path
        calls = _calls(r, around) if is_right_inside else r.iterations / (row.iterations or 1)
        if r.j_per_batch is not None:
            told_j, told_s = told_j + calls * r.j_per_batch, told_s + calls * (r.s_per_batch or 0.0)
    rest_j, rest_s = row.j_per_batch - told_j, (row.s_per_batch or 0.0) - told_s
    if abs(rest_j) <= ROUNDING * len(inside) * row.j_per_batch:
        rest_j = 0.0
    energy = replace(row.layer_rest, energy_j=rest_j)
    note = f"with {len(untold)} layers that are not resolvable: {', '.join(untold[:3])}" if untold else ""
    return [replace(whole, level=REST, layer="(rest)", s_per_batch=max(rest_s, 0.0), energy=energy, note=note)]


def _both(parts: Sequence[LayerEnergy], level: str) -> list[LayerEnergy]:
    """Forward and backward together: random parts in quadrature, what the sensors share one to one."""
    one = {p.passes: p for p in parts}
    both = [(one[p], e) for p in PASSES if p in one and (e := one[p].energy) is not None]
    if len(parts) != len(one) or len(both) != len(PASSES):
        return []
    energy = Estimate(
        sum(e.energy_j for _, e in both),
        hypot(*(e.u_statistical_j for _, e in both)),
        sum(e.u_systematic_j for _, e in both),
    )
    together = replace(
        both[0][0],
        level=level,
        passes=BOTH,
        s_per_batch=sum(p.s_per_batch or 0.0 for p, _ in both),
        energy=energy,
        is_lower_bound=any(p.is_lower_bound for p, _ in both),
        note=_joined(*(p.note for p, _ in both)),
    )
    return [together]


class _Counts:
    """The counts at the batch size of one group."""

    def __init__(self, count_of: CountOf, batch: Any) -> None:
        if not is_number_cell(batch) or batch < 1 or batch % 1:
            raise AnalysisError("the phases of this run have no batch_size: give it (--batch)")
        count = count_of(int(batch))
        self.rows = {row.name: row for row in count.rows()}
        self.factor = batch / count.batch_size
        self.note = "" if self.factor == 1 else f"operations in proportion to those of a batch of {count.batch_size}"
        self.without_paper = len(count.not_counted)
        """Modules that the paper's equations leave out."""
        self.missing: dict[str, list[str]] = {}
        """Kernels that are not counted as executed, by layer."""
        for text in count.executed_not_counted:
            layer, _, kernel = text.partition(" (")
            self.missing.setdefault(layer, []).append(kernel.partition("): ")[2])

    def joined(self, entry: LayerEnergy) -> LayerEnergy:
        """A layer's, pass's or model's energy with its operations."""
        if entry.level == REST:
            return entry
        passes = PASSES if entry.passes == BOTH else (entry.passes,)
        names = [entry.layer] if entry.level == LAYER else list(self.rows)
        if entry.passes not in (*PASSES, BOTH):
            return replace(entry, note=_joined(entry.note, f"operations in {entry.passes} count in the pass around it"))
        rows = [self.rows[n] for n in names if n in self.rows]
        if not rows:
            return replace(entry, note=_joined(entry.note, self.note, "the operations know no such layer"))
        of_paper = [
            Work(row.operations_paper, 0, BYTES_PER_VALUE * ((row.values_read or 0) + (row.values_written or 0)))
            for row in rows
            if row.operations_paper is not None
        ]
        of_executed = [getattr(row.executed, p) for row in rows if row.executed for p in passes]
        paper = sum(of_paper, Work()).scaled(self.factor * len(passes)) if of_paper else None
        executed = sum(of_executed, Work()).scaled(self.factor) if of_executed else None
        notes = [entry.note, self.note]
        notes += ["not counted (paper)"] if paper is None else []
        notes += [f"not counted (executed): {text}" for name in names for text in self.missing.get(name, [])]
        if entry.level != LAYER and self.without_paper:
            notes.append(f"not counted (paper): {self.without_paper} modules")
        notes += ["no products (executed)"] if executed is not None and not executed.operations else []
        return replace(
            entry, paper=_efficiency(entry, paper), executed=_efficiency(entry, executed), note=_joined(*notes)
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


def _is_layer(row: PhaseRow) -> bool:
    return LAYER in row.group and row.path.rpartition("/")[2] == LAYER


def _calls(row: PhaseRow, around: Mapping[str, PhaseRow]) -> float:
    """Phases of a layer in one pass; a pass that has no row of its own is as frequent as forward."""
    path, _, _ = row.path.rpartition("/")
    outer = around.get(path) or around.get(f"{path.rpartition('/')[0]}/forward".lstrip("/"))
    calls = row.iterations / outer.iterations if outer and outer.iterations else 1.0
    # A phase that was cut at the end of a run must not make of two calls 1.99.
    return float(round(calls)) if round(calls) and abs(calls - round(calls)) < 0.05 else calls


def _joined(*notes: str) -> str:
    """Each part once."""
    return join_texts(*(part for note in notes for part in note.split("; ")))


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
    figures = [(row, row.by(convention)) for row in rows]
    return tuple(row for row, f in figures if f.operations_per_byte is not None and f.gflops_per_w is not None)


def roof_of(points: Sequence[LayerEnergy], convention: str) -> Roof:
    """The roof over points of `roofline`. Raises `AnalysisError` when there are none."""
    if not points:
        raise AnalysisError("no layer has joules and operations: nothing to draw a roofline of")
    figures = [(p.by(convention).gflops_per_w or 0.0, p.by(convention).operations_per_byte or 1.0) for p in points]
    return Roof(max(g for g, _ in figures), max(g / intensity for g, intensity in figures))


_EFFICIENCY = [
    column
    for convention in (PAPER, EXECUTED)
    for column in (
        Column(f"operations_{convention}", "integer", "1", is_hidden=True),
        Column(f"bytes_{convention}", "integer", "B", is_hidden=True),
        Column(f"gflops_per_w_{convention}", "number", "GFLOPS/W", heading=f"GFLOPS/W ({convention})", sign="≤"),
        Column(f"u95_gflops_per_w_{convention}", "number", "GFLOPS/W", heading="± U95", is_uncertainty=True),
    )
]
COLUMNS = (
    Column("level", is_hidden=True),
    Column("model", is_setting=True),
    Column("batch_size", "integer", heading="batch", is_setting=True),
    Column("layer"),
    Column("kind", heading="class"),
    Column("shape"),
    Column("pass"),
    Column("device", is_setting=True),
    Column("provenance", is_setting=True),
    Column("calls", "number", "1", is_hidden=True),
    Column("s_per_batch", "number", "s", heading="s/batch"),
    Column("j_per_batch", "number", "J", heading="J/batch", sign="≥", missing="n.r."),
    Column("u95_j", "number", "J", heading="± U95", is_uncertainty=True),
    Column("u_statistical_j", "number", "J", is_hidden=True),
    Column("u_systematic_j", "number", "J", is_hidden=True),
    *_EFFICIENCY,
    Column("is_lower_bound", "flag", is_hidden=True),
    Column("note"),
)


def layer_table(rows: Sequence[LayerEnergy]) -> Table:
    """One row a `LayerEnergy`; attributes of the phases beside model and batch size follow as ``attribute_NAME``."""
    extra = list(dict.fromkeys(k for r in rows for k in r.group if k not in ("model", "batch_size")))
    lines: list[list[Cell]] = [
        [
            r.level, r.group.get("model"), r.group.get("batch_size"), r.layer, r.kind, r.shape,
            r.passes, r.device,
            r.provenance, r.calls, r.s_per_batch, r.j_per_batch, r.u95_j,
            r.energy.u_statistical_j if r.energy else None, r.energy.u_systematic_j if r.energy else None,
            *(v for e in (r.paper, r.executed)
              for v in (e.operations, e.moved_bytes, e.gflops_per_w, e.u95_gflops_per_w)),
            r.is_lower_bound, r.note, *(r.group.get(name) for name in extra),
        ]
        for r in rows
    ]  # fmt: skip
    columns = (*COLUMNS, *(Column(f"attribute_{name}", heading=name) for name in extra))
    return make_table("layers", "Energy of layers", columns, lines)
