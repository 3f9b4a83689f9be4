"""Time, energy, EDP and GFLOPS/W of whole trainings from tables of phases, as Castro et al. derive their table 6."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from powerd_analytics.metrics import edp_js, gflops_per_w_paper
from powerd_analytics.published.mix import Mix
from powerd_analytics.published.phasefiles import Key, PhaseFigures, PhaseTable
from powerd_analytics.published.tablefile import read_table
from powerd_analytics.published.units import column_in
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.text import printable

COLUMNS = ("device", "model", "gpus", "batch", "time_s", "energy_j", "edp_js", "gflops_per_w")
AROUND = ("iteration", "step", "epoch", "training", "total", "all")
"""Names of phases that usually hold the others: beside these, a sum over phases counts them twice."""
PASSES = ("forward", "backward")
"""Phases whose joules GFLOPS/W divides by; each counts a model's operations once."""
_SCALES = {"operations": 1.0, "operations_m": 1e6, "ops_m": 1e6}


class Configuration(NamedTuple):
    device: str
    model: str
    gpus: int
    batch: int

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU{'s' if self.gpus > 1 else ''}"
        return f"{printable(self.device, limit=60)}, {printable(self.model, limit=60)}, {gpus}, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class TrainingTotal:
    """Figures of one configuration's whole training, over all its GPUs; None where they cannot be had."""

    configuration: Configuration
    time_s: float | None
    energy_j: float | None
    edp_js: float | None
    gflops_per_w: float | None


@dataclass(frozen=True, slots=True)
class TrainingTotals:
    """Totals by device, model, GPUs and batch, and what a reader should know of them."""

    rows: tuple[TrainingTotal, ...]
    notes: tuple[str, ...]


def read_operations(path: Path) -> dict[str, float]:
    """Operations of a sample by model: columns ``model`` and ``operations`` (``operations_m`` for millions).

    Raises `AnalysisError`, too, for a model that stands there twice.
    """
    table = read_table(path)
    table.require("model")
    column = next((name for name in _SCALES if name in table.columns), "operations")
    first: dict[str, int] = {}
    found: dict[str, float] = {}
    values = column_in(table, _SCALES, positive=True)
    for row, (model, value) in enumerate(zip(table.texts("model"), values, strict=True)):
        if model in first:
            other = table.cells[column][first[model]]
            what = "with other operations " if _differ(other, table.cells[column][row]) else ""
            where = f"{table.line_word} {table.lines[first[model]]}"
            raise table.fault(row, "model", f"{printable(model, limit=60)!r} stands {what}in {where} already")
        first[model] = row
        if value is not None:
            found[model] = value
    return found


def _differ(a: str, b: str) -> bool:
    """Whether two cells are other numbers; an empty one is other than any."""
    return not a or not b or float(a) != float(b)


def training_totals(
    table: PhaseTable, operations: Mapping[str, float] | None = None, mixes: Mapping[int, Mix] | None = None
) -> TrainingTotals:
    """Totals of every configuration in the table.

    Time is the sum over phases, energy the sum over phases x GPUs. A configuration of as many GPUs as a mix, on a kind
    of the mix: the time of the slowest kind, since all train together, energy the sum over kinds of count x that kind's
    joules; each kind has its row with these figures, as in the paper. A figure that lacks a phase is None, never a
    part; the notes say why. Raises `ConfigError` for a mix with a kind that is not in the table, `AnalysisError` when
    no figure can be had at all.
    """
    maker = _Maker(table.rows, operations, mixes or {})
    rows = tuple(maker.total(configuration) for configuration in maker.ordered())
    if not any(row.energy_j is not None or row.time_s is not None for row in rows):
        place = next(iter(table.rows.values())).place
        raise AnalysisError(f"{place}: no configuration has a total: {maker.notes[0]}")
    for row in rows:
        if not all(math.isfinite(v) for v in (row.time_s, row.energy_j, row.edp_js, row.gflops_per_w) if v is not None):
            raise AnalysisError(
                f"{maker.largest(row.configuration)}: {row.configuration}: its figures are too large: "
                "a sum or a product is not finite"
            )
    return TrainingTotals(rows, (*table.notes, *maker.mix_notes(), *maker.around_notes(), *dict.fromkeys(maker.notes)))


class _Maker:
    def __init__(
        self, rows: Mapping[Key, PhaseFigures], operations: Mapping[str, float] | None, mixes: Mapping[int, Mix]
    ) -> None:
        self.operations, self.mixes = operations, mixes
        self.notes: list[str] = []
        self.found: dict[Configuration, dict[str, PhaseFigures]] = {}
        # A row that was left out is as empty as one with empty cells: a model's phases are those of all its rows.
        self.phases: dict[str, dict[str, None]] = {}
        for key, figures in rows.items():
            self.found.setdefault(Configuration(key.device, key.model, key.gpus, key.batch), {})[key.phase] = figures
            self.phases.setdefault(key.model, {})[key.phase] = None
        self.devices = list(dict.fromkeys(c.device for c in self.found))
        for mix in mixes.values():
            for kind in mix.kinds:
                if kind not in self.devices:
                    known = printable(", ".join(self.devices), limit=200)
                    raise ConfigError(f"--mix: no device {printable(kind)!r} in the tables: they have {known}")

    def ordered(self) -> list[Configuration]:
        """Devices and models as the files have them, GPUs and batches by number."""
        models = {model: i for i, model in enumerate(self.phases)}
        devices = {device: i for i, device in enumerate(self.devices)}
        return sorted(self.found, key=lambda c: (devices[c.device], models[c.model], c.gpus, c.batch))

    def mix_notes(self) -> list[str]:
        return [
            f"--mix: no configuration of {gpus} GPUs ({mix}) in the tables"
            for gpus, mix in self.mixes.items()
            if not any(c.gpus == gpus and c.device in mix.kinds for c in self.found)
        ]

    def around_notes(self) -> list[str]:
        notes = []
        for model, phases in self.phases.items():
            around, others = ([p for p in phases if (p in AROUND) is is_around] for is_around in (True, False))
            if around and others:
                notes.append(
                    f"{printable(model, limit=60)}: {_listed(around)} and {_listed(others)} are all summed: "
                    "leave out the rows of phases that hold others, or these count twice"
                )
        return notes

    def largest(self, c: Configuration) -> str:
        """Where the largest figure of a configuration, or of those mixed with it, stands."""
        mix = self.mixes.get(c.gpus)
        kinds = mix.kinds if mix is not None and c.device in mix.kinds else (c.device,)
        every = (f.largest() for kind in kinds for f in self.found.get(c._replace(device=kind), {}).values())
        return max(every)[1]

    def total(self, configuration: Configuration) -> TrainingTotal:
        c = configuration
        mix = self.mixes.get(c.gpus)
        kinds = dict(mix.parts) if mix is not None and c.device in mix.kinds else {c.device: c.gpus}
        rows = {kind: self.found.get(c._replace(device=kind), {}) for kind in kinds}
        time, energy = self._time_s(c, rows), self._energy_j(c, kinds, rows)
        edp = edp_js(energy, time) if energy is not None and time is not None else None
        return TrainingTotal(c, time, energy, edp, self._gflops_per_w(c, kinds, rows))

    def _time_s(self, c: Configuration, rows: Mapping[str, Mapping[str, PhaseFigures]]) -> float | None:
        """The sum over phases; of kinds that train together, that of the slowest.

        Not a sum over each phase's slowest: who is done with one phase first waits in the next, whose time has that in
        it. Of a phase for which a kind has no time, that of the others counts.
        """
        times: dict[str, dict[str, float]] = {kind: {} for kind in rows}
        lacking: dict[str, str] = {}
        for phase in self.phases[c.model]:
            known = {k: t for k, of in rows.items() if phase in of and (t := of[phase].per_training("s")) is not None}
            if not known:
                lacking[printable(phase, limit=60)] = _lack([of.get(phase) for of in rows.values()], "s")
            for kind in rows if known else ():
                times[kind][phase] = known.get(kind, max(known.values(), default=0.0))
        if lacking:
            self.notes.append(f"{c}: no time, as {_lacking(lacking)}")
            return None
        totals = {kind: math.fsum(of.values()) for kind, of in times.items()}
        slowest = max(totals, key=lambda kind: totals[kind])
        if min(totals.values()) < totals[slowest]:
            each = " and ".join(f"{t:.6g} s on {printable(kind, limit=60)}" for kind, t in totals.items())
            where = f"{printable(c.model, limit=60)}, {c.gpus} GPUs, batch {c.batch}"
            self.notes.append(f"{where}: {each}; they train together: that of the slowest counts")
        return totals[slowest]

    def _energy_j(
        self, c: Configuration, kinds: Mapping[str, int], rows: Mapping[str, Mapping[str, PhaseFigures]]
    ) -> float | None:
        total = 0.0
        lacking: dict[str, str] = {}
        for kind, count in kinds.items():
            for phase in self.phases[c.model]:
                figures = rows[kind].get(phase)
                joules = figures.per_training("j") if figures is not None else None
                if joules is None:
                    on = "" if len(kinds) == 1 else f" on {printable(kind, limit=60)}"
                    lacking[f"{printable(phase, limit=60)}{on}"] = _lack([figures], "j")
                else:
                    total += count * joules
        if lacking:
            self.notes.append(f"{c}: no energy, as {_lacking(lacking)}")
        return None if lacking else total

    def _gflops_per_w(
        self, c: Configuration, kinds: Mapping[str, int], rows: Mapping[str, Mapping[str, PhaseFigures]]
    ) -> float | None:
        if self.operations is None:
            return None
        if c.model not in self.operations:
            self.notes.append(f"{printable(c.model, limit=60)}: no GFLOPS/W, as its operations are not given")
            return None
        passes = [phase for phase in PASSES if phase in self.phases[c.model]]
        joules = [
            (count, rows[kind][phase].j_per_batch() if phase in rows[kind] else None)
            for kind, count in kinds.items()
            for phase in passes
        ]
        j_per_batch = sum(count * j for count, j in joules if j is not None)
        if not joules or any(j is None for _, j in joules) or j_per_batch <= 0:
            why = "there are no joules of a batch" if passes else f"no phase is called {' or '.join(PASSES)}"
            self.notes.append(f"{c}: no GFLOPS/W, as {why}")
            return None
        return gflops_per_w_paper(self.operations[c.model], c.batch, len(passes), j_per_batch)


def _lack(every: Sequence[PhaseFigures | None], unit: str) -> str:
    """What the rows of a phase lack; one that is not there lacks all."""
    return next((lack for f in every if f is not None and (lack := f.lacks(unit)) != "none"), "none")


def _lacking(phases: Mapping[str, str]) -> str:
    """``forward and backward have none``, and so on for each thing that phases (as they are shown) lack."""
    lists: dict[str, list[str]] = {}
    for phase, lack in phases.items():
        lists.setdefault(lack, []).append(phase)
    return ", ".join(f"{' and '.join(names)} {_have(names)} {lack}" for lack, names in lists.items())


def _listed(phases: Sequence[str]) -> str:
    return " and ".join(printable(phase, limit=60) for phase in phases)


def _have(phases: Sequence[str]) -> str:
    return "has" if len(phases) == 1 else "have"
