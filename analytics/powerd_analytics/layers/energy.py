"""Energy of layers, from the phases that ``Meter.watch(layers=True)`` marks, joined with operation counts by name.

GFLOPS/W are operations over joules, by each convention: in ``paper`` each pass counts the layer's operations once
(Castro et al.), in ``executed`` each pass counts the products that it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from powerd_analytics.energy.uncertainty import Estimate
from powerd_analytics.layers.rows import BOTH, LAYER, PASSES, Efficiency, LayerEnergy
from powerd_analytics.operations.counts import BYTES_PER_VALUE, PAPER, LayerRow, OperationCount, Work
from powerd_analytics.tables.rows import PhaseRow, PhaseTable
from powerd_core.errors import AnalysisError

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
    found: list[LayerEnergy] = []
    for key, rows in marked.items():
        counts = _Counts(count_of, dict(key[2]), batch_size)
        found += _of_group(dict(key[2]), rows, counts)
    return tuple(found)


class _Counts:
    """The counts at the batch size of one group."""

    def __init__(self, count_of: CountOf | None, group: Mapping[str, Any], batch_size: int | None) -> None:
        self.rows: dict[str, LayerRow] | None = None
        self.missing: dict[str, list[str]] = {}
        """Kernels that are not counted as executed, by layer."""
        self.without_paper = 0
        """Modules that the paper's equations leave out."""
        self.assumed: dict[str, tuple[str, ...]] = {}
        """What rests on assumed values, by layer: ``paper`` and passes."""
        self.stopped = ""
        """Why the count ended before the model did."""
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
        self.assumed = {row.name: row.assumed for row in self.rows.values() if row.assumed}
        self.stopped = count.stopped
        if count.batch_size != batch:
            self.note = f"operations in proportion to those of a batch of {count.batch_size}"

    def works(self, names: Sequence[str], passes: Sequence[str]) -> tuple[Work | None, Work | None]:
        """By the paper's convention and as executed; None where nothing is counted."""
        rows = [self.rows[n] for n in names if n in self.rows] if self.rows is not None else []
        paper = [_paper(row) for row in rows if row.operations_paper is not None]
        executed = [w for row in rows for p in passes if (w := getattr(row, p)) is not None]
        return (
            _scaled(sum(paper, Work()), self.factor * len(passes)) if paper else None,
            _scaled(sum(executed, Work()), self.factor) if executed else None,
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
    yield from _both(passes, counts, _all(counts))


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
    return _with_operations(entry, counts, [name] if level == LAYER else _all(counts), (of,) if of in PASSES else ())


def _both(parts: Sequence[LayerEnergy], counts: _Counts, names: Sequence[str]) -> Iterator[LayerEnergy]:
    """Forward and backward together: random parts in quadrature, what the sensors share one to one."""
    one = {p.passes: p for p in parts}
    if len(parts) != len(one) or not all(p in one and one[p].energy is not None for p in PASSES):
        return
    forward, backward = one["forward"], one["backward"]
    a, b = forward.energy, backward.energy
    assert a is not None
    assert b is not None
    energy = Estimate(
        a.energy_j + b.energy_j,
        (a.u_statistical_j**2 + b.u_statistical_j**2) ** 0.5,
        a.u_systematic_j + b.u_systematic_j,
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
        notes += [f"not counted from {counts.stopped}"] if counts.stopped else []
    else:
        notes += ["not counted (paper)"] if paper is None else []
        notes += [f"not counted (executed): {text}" for name in names for text in counts.missing.get(name, [])]
        if entry.level != LAYER and counts.without_paper:
            notes.append(f"not counted (paper): {counts.without_paper} modules")
        rest = dict.fromkeys(what for name in names for what in counts.assumed.get(name, ()))
        if said := [what for what in rest if what == PAPER or what in passes]:
            notes.append(f"operations rest on assumed values ({', '.join(said)})")
        if counts.stopped and entry.level != LAYER:
            notes.append(f"operations after this step are not counted: {counts.stopped}")
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


def _paper(row: LayerRow) -> Work:
    values = (row.values_read or 0) + (row.values_written or 0)
    return Work(row.operations_paper or 0, 0, BYTES_PER_VALUE * values)


def _scaled(work: Work, factor: float) -> Work:
    return Work(*(round(factor * v) for v in (work.operations, work.elementwise, work.moved_bytes)))


def _all(counts: _Counts) -> list[str]:
    return list(counts.rows or ())


def _whole(calls: float) -> float:
    # A phase that was cut at the end of a run must not make of two calls 1.99.
    return float(round(calls)) if round(calls) and abs(calls - round(calls)) < 0.05 else calls


def _is_layer(row: PhaseRow) -> bool:
    return LAYER in row.group and row.path.rpartition("/")[2] == LAYER


def _key(group: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((k, v) for k, v in group.items() if k != LAYER)


def _calls(row: PhaseRow, around: Mapping[str, PhaseRow]) -> float:
    """Phases of a layer in one pass; a pass that has no row of its own is as frequent as forward."""
    path, _, _ = row.path.rpartition("/")
    outer = around.get(path) or around.get(f"{path.rpartition('/')[0]}/forward".lstrip("/"))
    return _whole(row.iterations / outer.iterations) if outer and outer.iterations else 1.0


def _joined(*notes: str) -> str:
    """Each part once."""
    return "; ".join(dict.fromkeys(part for note in notes for part in note.split("; ") if part))
