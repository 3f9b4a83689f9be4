"""What the runs of a campaign took, cell by cell, as one frame: joules of all cards of a cell, their means, each beside
its reference, and the best cell of those that differ in nothing but knobs. The tables pick their columns from it.

Figures are the frame's, means those of `powerd_analytics.frame.means`, the best that of `powerd_analytics.frame.best`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, log, nan
from statistics import fmean
from typing import TYPE_CHECKING, Any

from powerd_analytics.campaigns.design import GPUS, KNOBS, MODEL, Cell, Design, Item, Level
from powerd_analytics.campaigns.journal import Discard, History, Result, RunRecord
from powerd_analytics.frame.best import Best, best_of_pairs
from powerd_analytics.frame.figure import Figure, Record, figure_of, figure_of_u95, number_of, of_all_cards
from powerd_analytics.frame.figures import (
    ATTRIBUTE,
    COLUMNS,
    RESULT,
    Frame,
    attribute_cell,
    column,
    frame_from,
    rows_of,
    worked_out,
)
from powerd_analytics.frame.means import mean_of_numbers, mean_of_ratios, mean_of_repeats
from powerd_analytics.frame.merits import OF_A_SWEEP, merit_of
from powerd_analytics.frame.repeats import joules_columns
from powerd_analytics.output.export import Column, Kind
from powerd_analytics.output.text import Cell as TableCell
from powerd_core.settings import unit_of
from powerd_core.text import printable
from powerd_core.verdict import Verdict, worst

if TYPE_CHECKING:
    from powerd_analytics.campaigns.curve import CapCurve

EPOCH = "epoch"
"""The result that says when, not how good."""
SAME_WORK = 0.005
"""Work that differs by less than this share is the same."""
CAP = "power_cap_w"
FITTED_FROM = 5
"""So many caps give a curve."""


def figure_columns(name: str, unit: str, heading: str, *, u95: str = "", per: float = 1.0, **more: Any) -> list[Column]:
    """The column of a figure, and that of its U95."""
    of_u95 = Column(u95 or f"u95_{name}", "number", unit, heading="± U95", per=per, is_uncertainty=True)
    return [Column(name, "number", unit, heading=heading, per=per, **more), of_u95]


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CountedRun:
    """A run that counts."""

    item: Item
    result: Result


def counted_runs(design: Design, history: History) -> list[CountedRun]:
    """The runs that count, block by block."""
    found = [
        CountedRun(item, result) for key, result in history.results().items()
        if (item := design.item_of(key)) is not None
    ]  # fmt: skip
    return sorted(found, key=lambda m: m.item.block)


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a run took, as it is compared: by the sample where runs did other work than the rest."""

    energy: Figure
    """Joules of all cards."""
    time_s: float
    whole_j: float
    """The same joules of the whole run."""
    result: Result

    @property
    def energy_j(self) -> float:
        return self.energy.value


# -- cells -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CellRow:
    """A row of the campaign's frame, and the cell that it is of."""

    cell: Cell
    row: Record

    @property
    def energy_j(self) -> Figure:
        """Of all its cards, in the mean of its runs."""
        return _known(figure_of(self.row, "energy_j"))

    @property
    def time_s(self) -> Figure:
        return _known(figure_of(self.row, "time_s"))

    @property
    def power_w(self) -> float:
        return number_of(self.row, "power_w") or 0.0

    @property
    def ratios(self) -> dict[str, Figure]:
        """By figure of merit (`OF_A_SWEEP`), to its reference, block by block."""
        columns = [(name, merit_of(name).ratio_column) for name in OF_A_SWEEP]
        values = [(name, number_of(self.row, own), number_of(self.row, f"u95_{own}")) for name, own in columns]
        return {name: figure_of_u95(value, u95) for name, value, u95 in values if value is not None}

    @property
    def results(self) -> dict[str, Figure]:
        """What `Meter.result` said last, by name."""
        values = {name: number_of(self.row, name) for name in self.row if name.startswith(RESULT)}
        freedom = float(str(self.row["runs"])) - 1
        return {
            name.removeprefix(RESULT): Figure(value, number_of(self.row, f"u_{name}"), degrees_of_freedom=freedom)
            for name, value in values.items()
            if value is not None
        }


def _known(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


@dataclass(frozen=True, slots=True)
class KnobGroup:
    """Cells that differ in nothing but knobs, and their runs by cell and block."""

    levels: Mapping[str, TableCell]
    """Those of the other factors."""
    cells: tuple[Cell, ...]
    reference: Cell | None
    runs: Mapping[str, Mapping[int, RunFigures]]

    def pairs_by_block(self, a: Cell, b: Cell) -> dict[int, tuple[float, float]]:
        """Joules and seconds of one cell over another's."""
        return _pairs(self.runs, a, b)


def _pairs(runs: Mapping[str, Mapping[int, RunFigures]], a: Cell, b: Cell | None) -> dict[int, tuple[float, float]]:
    """Joules and seconds of one cell over another's, by the blocks that both have."""
    beside = runs.get(b.id, {}) if b is not None else {}
    return {
        block: (r.energy_j / beside[block].energy_j, r.time_s / beside[block].time_s)
        for block, r in runs.get(a.id, {}).items()
        if block in beside
    }


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best cell of a group by a figure of merit, and those that are as good."""

    cell: Cell
    within: Mapping[Cell, float]
    """Of those as good by how much they may be worse than the best, at most; the best with 0."""
    open: tuple[Cell, ...]
    """Cells that cannot be told from it either, of which too little is known."""

    @property
    def as_good(self) -> tuple[Cell, ...]:
        return tuple(self.within)

    @property
    def worst(self) -> float:
        return max(self.within.values())


@dataclass(frozen=True)
class Campaign:
    """A campaign to look at. What is worked out of it is worked out once."""

    design: Design
    history: History
    promised: Mapping[str, float] = field(default_factory=dict)
    """By figure of merit the cap that rounds have promised to be near the best: then it is the best."""

    @cached_property
    def runs(self) -> list[CountedRun]:
        return counted_runs(self.design, self.history)

    @cached_property
    def provenances(self) -> list[str]:
        return sorted({m.result.provenance for m in self.runs})

    @cached_property
    def results(self) -> Mapping[str, Mapping[int, Result]]:
        """By cell and block."""
        found: dict[str, dict[int, Result]] = {}
        for m in self.runs:
            found.setdefault(m.item.cell.id, {})[m.item.block] = m.result
        return found

    @cached_property
    def is_per_sample(self) -> bool:
        """Whether runs of one model went through different numbers of samples. Trainings to a target do so on purpose:
        they are compared as they are."""
        counts: dict[object, list[float]] = {}
        for m in self.runs:
            if not (samples := self.samples(m.result)) or EPOCH in m.result.accuracy:
                return False
            counts.setdefault(m.item.cell.levels.get(MODEL), []).append(samples)
        return any(max(own) > min(own) * (1 + SAME_WORK) for own in counts.values())

    def samples(self, result: Result) -> float | None:
        return result.samples or self.design.samples

    @cached_property
    def run_figures(self) -> Mapping[str, Mapping[int, RunFigures]]:
        """By cell and block what its run took on all cards; without runs of which a kind of card was not measured."""
        found: dict[str, dict[int, RunFigures]] = {}
        for cell in self.design.cells():
            for block, result in self.results.get(cell.id, {}).items():
                energy = self._on_all_cards(cell, block)
                if energy is None:
                    continue
                by = 1 / (self.samples(result) or 1.0) if self.is_per_sample else 1.0
                found.setdefault(cell.id, {})[block] = RunFigures(
                    energy.scaled(by), by * result.time_s, energy.value, result
                )
        return found

    def machine(self, cell: Cell) -> dict[str, Level]:
        """The levels of the machine that a cell was measured on: of one with cards of several kinds, whichever of
        these it was."""
        name = self.design.analysis.instrument.moved_over if len(self.cards(cell)) > 1 else ""
        return {n: level for n, level in cell.levels.items() if n != name}

    def cards(self, cell: Cell) -> dict[str, int]:
        """With an instrument that sat on one card of each kind: of each kind of card, how many the machine has; else
        none."""
        of, gpus = self.design.analysis.instrument, int(str(cell.levels.get(GPUS, 1)))
        if not of.moved_over:
            return {}
        kind = str(cell.levels[of.moved_over])
        return dict(of.mixed) if gpus == sum(of.mixed.values()) and kind in of.mixed else {kind: gpus}

    def _on_all_cards(self, cell: Cell, block: int) -> Figure | None:
        cards, of = self.cards(cell), self.design.analysis.instrument
        if not cards:
            return self.results[cell.id][block].energy
        kinds = [self.design.cell({**cell.levels, of.moved_over: kind}).id for kind in cards]
        ones = [self.results.get(id, {}).get(block) for id in kinds]
        figures = [one.energy for one in ones if one is not None]
        return of_all_cards(figures, list(cards.values()), of.spread) if len(figures) == len(ones) else None

    @cached_property
    def means(self) -> Frame:
        """The cells that have a result as rows of the frame, of kind ``total`` and in the order of the design: each the
        mean of its runs on all its cards, with its ratios to its reference, block by block.

        Cells whose runs did other work than the rest are compared by the sample, and so are all others then.
        """
        rows = [self._mean_row(cell) for cell in self.design.cells() if cell.id in self.run_figures]
        return worked_out(frame_from(rows)).assign(per="", part="")

    @cached_property
    def frame(self) -> Frame:
        """The same with the best by each figure of merit marked (`marks`)."""
        marks = [self.marks.get(f.cell, {}) for f in self.cells]
        names = dict.fromkeys(name for own in marks for name in own)
        return self.means.assign(**{name: [own.get(name, nan) for own in marks] for name in names})

    @cached_property
    def cells(self) -> list[CellRow]:
        """`means`, to read row by row."""
        return [CellRow(self.design.cells_by_id[str(row["cell"])], row) for row in rows_of(self.means)]

    @cached_property
    def by_id(self) -> Mapping[str, CellRow]:
        return {f.cell.id: f for f in self.cells}

    def _mean_row(self, cell: Cell) -> dict[str, object]:
        own, levels = list(self.run_figures[cell.id].values()), self.levels(cell)
        results = [r.result for r in own]
        energy, time = self.mean([r.energy for r in own]), self.mean_of_numbers([r.time_s for r in own])
        freedom, freedom_s = (f.degrees_of_freedom if isfinite(f.degrees_of_freedom) else None for f in (energy, time))
        row: dict[str, object] = {
            **{n: level for n, level in levels.items() if n in COLUMNS},
            **{f"{ATTRIBUTE}{n}": attribute_cell(v) for n, v in levels.items() if n not in COLUMNS},
            "kind": "total", "run": cell.id, "program": " ".join(self.design.command), "runs": len(own),
            "device": results[0].device, "provenance": results[0].provenance, "iterations": 1,
            **joules_columns("energy_j", energy), "is_lower_bound": energy.is_lower_bound or None,
            "time_s": time.value, "u95_time_s": time.u95, "s_per_batch": time.value,
            "u_s_per_batch": time.u_statistical, "degrees_of_freedom": freedom, "degrees_of_freedom_s": freedom_s,
            "verdict": _worst_of(results) if any(name in KNOBS for name in self.design.factors) else None,
            "note": "; ".join(dict.fromkeys(printable(r.note) for r in results if r.note)) or None,
            "campaign": self.design.name, "cell": cell.id,
        }  # fmt: skip
        if self.design.analysis.instrument.moved_over:
            one_card = self.mean([r.energy for r in results])
            row |= {"one_card_j": one_card.value, "u95_one_card_j": one_card.u95}
        pairs = _pairs(self.run_figures, cell, self.design.reference_of(cell)).values()
        for merit in map(merit_of, OF_A_SWEEP if pairs else ()):
            ratio = mean_of_ratios([merit.ratio(*pair) for pair in pairs])
            row |= {merit.ratio_column: ratio.value, f"u95_{merit.ratio_column}": ratio.u95}
        for name in dict.fromkeys(name for r in results for name in r.accuracy if name != EPOCH):
            values = [r.accuracy[name] for r in results if name in r.accuracy]
            mean = self.mean_of_numbers(values)
            row[f"{RESULT}{name}"] = mean.value
            row[f"u_{RESULT}{name}"] = mean.u_statistical if len(values) == len(results) else None
        return row

    def mean(self, figures: Sequence[Figure]) -> Figure:
        """Of repeats. Where these ended by a look at the interval, it is the one that still covers 95 %."""
        return mean_of_repeats(figures, looked=self.design.repeats.until is not None)

    def mean_of_numbers(self, values: Sequence[float]) -> Figure:
        return mean_of_numbers(values, looked=self.design.repeats.until is not None)

    # -- the best ----------------------------------------------------------------------------------

    @cached_property
    def groups(self) -> list[KnobGroup]:
        """Those that have runs."""
        groups: dict[tuple[tuple[str, TableCell], ...], list[Cell]] = {}
        for cell in self.design.cells():
            if cell.id in self.run_figures:
                groups.setdefault(tuple((n, v) for n, v in cell.levels.items() if n not in KNOBS), []).append(cell)
        found = []
        for levels, cells in groups.items():
            reference = self.design.reference_of(cells[0])
            is_inside = reference is not None and reference.id in {cell.id for cell in cells}
            found.append(KnobGroup(dict(levels), tuple(cells), reference if is_inside else None, self.run_figures))
        return found

    @cached_property
    def _chosen(self) -> dict[tuple[str, str], Chosen]:
        return {}

    @cached_property
    def _curves(self) -> dict[str, CapCurve]:
        return {}

    def best(self, group: KnobGroup, metric: str) -> Chosen:
        """The best cell: read from a fitted curve where there are five caps or more and nothing else is turned, as the
        least of so many means is often not the least; else by the means over the reference's, block by block."""
        merit, key = merit_of(metric), group.cells[0].id
        if (key, merit.name) not in self._chosen:
            self._chosen[key, merit.name] = (self._fitted if self.is_fitted(group) else self._paired)(group, merit.name)
        return self._chosen[key, merit.name]

    def is_fitted(self, group: KnobGroup) -> bool:
        """Whether the best of a group is read from a curve."""
        knobs = [name for name in self.design.factors if name in KNOBS]
        return knobs == [CAP] and group.reference is not None and len(group.cells) >= FITTED_FROM

    def least(self, figures: Sequence[CellRow], *, relative: bool = False) -> Chosen:
        """The cell of the least energy among some that have several runs each, or the least ``relative`` to each one's
        own reference."""
        logs = []
        for cell in (f.cell for f in figures):
            joules = {block: r.energy_j for block, r in self.run_figures[cell.id].items()}
            if relative:
                pairs = _pairs(self.run_figures, cell, self.design.reference_of(cell))
                joules = {block: energy for block, (energy, _) in pairs.items()}
            logs.append({block: log(energy) for block, energy in joules.items()})
        return _chosen_of(best_of_pairs(logs), [f.cell for f in figures])

    def _paired(self, group: KnobGroup, metric: str) -> Chosen:
        merit, beside = merit_of(metric), group.reference or group.cells[0]
        logs = []
        for cell in group.cells:
            own = {block: (r.energy_j, r.time_s) for block, r in group.runs[cell.id].items()}
            if merit.exponents is None:  # a sum weighs energy and time by those of the reference
                own = group.pairs_by_block(cell, beside)
            logs.append({block: log(merit.ratio(*pair)) for block, pair in own.items()})
        return _chosen_of(best_of_pairs(logs, group.cells.index(beside)), group.cells)

    def _fitted(self, group: KnobGroup, metric: str) -> Chosen:
        """By the curve through all caps of the design. Of caps that were not run only the set of the best can speak."""
        from powerd_analytics.campaigns.curve import Runs, fit

        reference = group.reference
        assert reference is not None
        by_cap = self._caps_of(reference)
        runs = [
            (cap, r.energy_j, r.time_s, block)
            for cap, cell in by_cap.items()
            for block, r in group.runs.get(cell.id, {}).items()
        ]
        caps, joules, seconds, blocks = zip(*runs, strict=True)
        levels = sorted(by_cap)
        if reference.id not in self._curves:
            self._curves[reference.id] = fit(Runs(caps, joules, seconds, blocks), levels, float(reference.levels[CAP]))
        among = [self.promised[metric]] if metric in self.promised else sorted(set(caps))
        choice = self._curves[reference.id].best(metric, among)
        return _chosen_of(choice.best, [by_cap[cap] for cap in levels])

    def _caps_of(self, reference: Cell) -> dict[float, Cell]:
        """The cells of the design that differ from one in nothing but the cap."""
        own = {n: v for n, v in reference.levels.items() if n != CAP}
        cells = [c for c in self.design.cells() if own == {n: v for n, v in c.levels.items() if n != CAP}]
        return {float(cell.levels[CAP]): cell for cell in cells}

    # -- as they ran -------------------------------------------------------------------------------

    def levels(self, cell: Cell) -> dict[str, TableCell]:
        """Of a cell as it ran: of a knob what the driver enforced, and beside it what was asked where that differs."""
        found: dict[str, TableCell] = {}
        for name, level in cell.levels.items():
            enforced = self._enforced(cell, name) if name in _ENFORCED and not isinstance(level, str) else None
            if enforced is None or abs(enforced - float(level)) <= _ENFORCED[name].step:
                found[name] = level
            else:
                found |= {name: round(enforced, 3), asked_column(name): level}
        return found

    def _enforced(self, cell: Cell, name: str) -> float | None:
        """The mean over its runs; None where no driver tells."""
        of = _ENFORCED[name]
        rows = [row for result in self.results.get(cell.id, {}).values() for row in result.wholes]
        values = [number_of(row, of.column) for row in rows if row.get(of.basis) == "enforced"]
        known = [value for value in values if value is not None]
        return fmean(known) / of.scale if known else None

    @cached_property
    def factor_columns(self) -> list[Column]:
        """The columns of the levels; of what was asked only where another cap or clock was enforced."""
        found = []
        differs = {name for cell in self.design.cells() for name in self.levels(cell)}
        for name, levels in self.design.factors.items():
            is_number = all(isinstance(level, int | float) and not isinstance(level, bool) for level in levels)
            unit = unit_of(name) or ("1" if is_number else "")
            heading = _ENFORCED[name].heading if name in _ENFORCED else ""
            kind: Kind = "number" if is_number else "text"
            own = column(name, heading)
            found.append(Column(name, kind, unit, heading=own.heading, missing="–", is_setting=True))
            if (asked := asked_column(name)) in differs:
                found.append(Column(asked, kind, unit, heading=f"asked {unit}", missing="", is_setting=True))
        return found

    @property
    def asked_notes(self) -> list[str]:
        """What the columns of levels are, where what was asked was not enforced."""
        names = [c.name for c in self.factor_columns if c.name.endswith(_ASKED)]
        return ["caps and clocks are those that the driver enforced; asked: where another was asked"] if names else []

    @cached_property
    def marks(self) -> Mapping[Cell, Mapping[str, float]]:
        """By cell and figure of merit (`Merit.within_column`) by how many per cent it may be worse than the best of its
        group, where it is as good."""
        found: dict[Cell, dict[str, float]] = {}
        for group in self.groups if not is_single(self.history) else ():
            for name in OF_A_SWEEP if len(group.cells) > 1 else ():
                if group.reference is None and name.startswith("eds"):
                    continue
                for cell, within in self.best(group, name).within.items():
                    found.setdefault(cell, {})[merit_of(name).within_column] = 100 * within
        return found


@dataclass(frozen=True, slots=True)
class _Enforced:
    """The columns of the frame that say what a driver enforced of a knob."""

    heading: str
    column: str
    basis: str
    scale: float
    step: float
    """In the knob's unit: closer levels are one."""


_ENFORCED: Mapping[str, _Enforced] = {
    "power_cap_w": _Enforced("cap W", "power_cap_w", "power_cap_basis", 1.0, 0.5),
    "sm_clock_mhz": _Enforced("SM MHz", "clock_hz", "clock_basis", 1e6, 0.5),
    "mem_clock_mhz": _Enforced("memory MHz", "memory_clock_hz", "memory_clock_basis", 1e6, 0.5),
    "package_power_w": _Enforced("package W", "", "", 1.0, 0.5),
}
_ASKED = "_asked"


def asked_column(name: str) -> str:
    """The column of what was asked of a knob."""
    return f"{name}{_ASKED}"


def is_knob(name: str) -> bool:
    """Whether a column is a knob's, as it was enforced or as it was asked."""
    return name.removesuffix(_ASKED) in KNOBS


def _chosen_of(best: Best, cells: Sequence[Cell]) -> Chosen:
    within = {cells[row]: share for row, share in zip(best.as_good, best.within, strict=True)}
    return Chosen(cells[best.row], within, tuple(cells[row] for row in best.open))


def _worst_of(results: Sequence[Result]) -> str | None:
    verdicts = [(Verdict(r.verdict), "") for r in results if r.verdict]
    return worst(verdicts)[0].value if verdicts else None


# -- what a reader has to know -----------------------------------------------------------------------------------------

SINGLE = "one repeat: nothing can be compared; min = 3"
"""What is said of a campaign whose cells have one run each, instead of what is best."""
_MOST_NOTES = 8


def is_single(history: History) -> bool:
    """Whether no cell has a second run, which would tell how far runs are apart."""
    repeats = history.repeats()
    return bool(repeats) and max(repeats.values()) < 2


def run_notes(design: Design, history: History) -> list[str]:
    """What a reader has to know of runs that are not there, one sentence each."""
    notes = [SINGLE] if is_single(history) else []
    counted = history.results()
    old = sum(result.is_old and "u_systematic_j" in result.rows[0] for result in counted.values())
    notes += [f"{old} runs of an earlier release, without their files: U95 takes limits for noise"] if old else []
    missing = [_of_missing(design, key, record) for key, record in history.given_up().items()]
    missing += [
        f"{_named(design, key)}: it had no iteration, and others had, so it does not count"
        for key, record in history.records.items() if record.result is not None and key not in counted
    ]  # fmt: skip
    missing += [f"{_named(design, key)}: {result.shared}" for key, result in counted.items() if result.shared]
    notes += missing[:_MOST_NOTES] + [f"and {len(missing) - _MOST_NOTES} more runs" for _ in missing[_MOST_NOTES:][:1]]
    notes += ["given-up runs are made again by `joules campaign resume --retry`"] if history.given_up() else []
    return notes + history.changes


def _named(design: Design, key: str) -> str:
    item = design.item_of(key)
    return f"{item.cell}, block {item.block + 1}" if item is not None else key


def _of_missing(design: Design, key: str, record: RunRecord) -> str:
    last = record.discards[-1] if record.discards else Discard("")
    why = f"{last.reason}{f': {printable(last.text, limit=120)}' if last.text else ''}"
    return f"{_named(design, key)}: given up after {len(record.discards)} attempts, the last one {why}"


def same_losses(campaign: Campaign) -> list[str]:
    """Sentences on runs of one seed whose loss is not the same at every cap and clock: neither changes arithmetic.

    Runs are compared that differ in nothing but knobs.
    """
    groups: dict[tuple[int, tuple[tuple[str, TableCell], ...]], dict[float, list[str]]] = {}
    for m in campaign.runs:
        loss = m.result.accuracy.get("loss")
        if loss is None:
            continue
        others = tuple((n, level) for n, level in m.item.cell.levels.items() if n not in KNOBS)
        groups.setdefault((m.item.seed, others), {}).setdefault(round(loss, 12), []).append(str(m.item.cell))
    return [
        f"seed {seed}{''.join(f', {n} {level}' for n, level in others)}: the loss is {low:.6g} to {high:.6g} at "
        "settings that should not change it"
        for (seed, others), losses in groups.items()
        if (high := max(losses)) != (low := min(losses))
    ]
