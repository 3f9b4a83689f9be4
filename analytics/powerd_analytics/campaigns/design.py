"""The design of a campaign: which cells there are, what a run of each is, and in which order they run.

A cell is a setting of all factors. A block has each cell once, in an order that is drawn anew for every second block;
the block behind it goes backwards. So what drifts during a campaign falls on all cells alike. A run is one cell in one
block: an `Item`. All of it follows from the file and its seed; nothing here reads a clock, a file or a device.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal

from powerd_analytics.frame.merits import merit_of
from powerd_core.errors import ConfigError
from powerd_core.gpu_physics import CARDS
from powerd_core.lease import KNOB_OF_OPTION, Range, resolve
from powerd_core.settings import KNOB_AS_OPTION, unit_of
from powerd_core.text import did_you_mean, printable

Level = str | int | float | bool
Levels = Mapping[str, Level]
Which = Mapping[str, Level | list[Level]]
"""Levels that a cell must have; of a list any one."""

KNOBS = tuple(option for option in KNOB_OF_OPTION if option in KNOB_AS_OPTION)
"""Factors that are turned under lease; all others go into the command or its environment."""
MODEL = "model"
"""The factor by which references may differ."""
GPUS = "gpus"
"""The factor that says how many GPUs the command sees."""
Order = Literal["randomised-blocks", "as-written", "abba"]
DISCARDS = ("thermal", "overridden", "clock-missed", "lease-lost", "shared", "ambient")
"""Reasons for which a run is measured again."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A setting of all factors."""

    levels: Levels = field(compare=False)
    id: str
    """Ten letters that follow from the levels."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {level_text(name, level)}" for name, level in self.levels.items())


def level_text(name: str, level: Level) -> str:
    """``200 W`` for a cap, else the level."""
    unit = unit_of(name)
    text = f"{level:g}" if isinstance(level, float) else str(level)
    return printable(f"{text} {unit}" if unit and not isinstance(level, str) else text)


@dataclass(frozen=True, slots=True)
class Item:
    """A run that is to be: a cell in a block."""

    cell: Cell
    block: int
    seed: int

    @property
    def key(self) -> str:
        """How the journal calls it."""
        return f"{self.cell.id}-{self.block}"


@dataclass(frozen=True, slots=True)
class Until:
    """When a cell has enough repeats: its interval is as narrow as this."""

    metric: str = "e"
    """A product of energy and time (`merit_of`): what else there is needs a reference, or a price."""
    half_width: float = 0.01
    """A share of the mean."""

    def __post_init__(self) -> None:
        _require(
            merit_of(self.metric).exponents is not None, f"metric {self.metric}: repeats end by e, time, edp or ed2p"
        )
        _require(0 < self.half_width < 1, 'half_width: a share of the mean, as "1 %" or 0.01')


@dataclass(frozen=True, slots=True)
class Repeats:
    min: int = 5
    max: int = 5
    until: Until | None = None

    def __post_init__(self) -> None:
        _require(1 <= self.min <= self.max, f"min {self.min} and max {self.max} must be 1 or more, and rise")
        _require(self.until is None or self.min > 1, "min = 1 says nothing of the spread: with `until` 2 or more")


@dataclass(frozen=True, slots=True)
class Guard:
    """What must hold before a run begins, and what spoils it."""

    start_within_c: float | None = None
    """A run begins at most so many degrees above the GPU's temperature at the campaign's first one."""
    cool_down_max_s: float = 300.0
    idle_gap_s: float = 0.0
    """Pause before every run."""
    warm_up_s: float = 0.0
    """So long the command runs unrecorded when the campaign begins or goes on."""
    ambient_c: tuple[float, ...] = ()
    """The least and the greatest temperature around the machine, where the run has it: another one spoils the run."""
    discard: tuple[str, ...] = DISCARDS
    retries: int = 2
    """So often a run that was discarded or failed is made again."""

    def __post_init__(self) -> None:
        is_range = len(self.ambient_c) == 2 and self.ambient_c[0] < self.ambient_c[1]
        _require(is_range or not self.ambient_c, "ambient_c: two temperatures, as in [18, 22]")
        for reason in self.discard:
            _require(reason in DISCARDS, f"discard: {reason!r}{did_you_mean(reason, DISCARDS)}")


@dataclass(frozen=True, slots=True)
class Control:
    devices: str = ""
    """Whose knobs are turned, as gpu0,gpu1; by default the GPUs that the command sees."""


@dataclass(frozen=True, slots=True)
class Slurm:
    """How a block becomes a job of Slurm."""

    kind: Literal["local", "submitit"] = "local"
    partition: str = ""
    gpus: int = 1
    time_min: int = 60
    array_parallelism: int = 1


@dataclass(frozen=True, slots=True)
class Pilot:
    """What is found out before the campaign, and is the same in all its runs: how many epochs reach a target."""

    command: tuple[str, ...]
    result: str = "epochs"
    """The result of the pilot (`Meter.result`) that counts."""
    sets: str = "epochs"
    """What the campaign's command gets it as."""
    runs: int = 1
    """The greatest of so many pilots is taken."""

    def __post_init__(self) -> None:
        _require(bool(self.command), "command: a list of texts, as campaign.command")


@dataclass(frozen=True, slots=True)
class Instrument:
    """One sensor that is moved from card to card: what it saw of one counts for all that are like it."""

    moved_over: str = ""
    """The factor that says on which kind of card it is."""
    mixed: Mapping[str, int] = field(default_factory=dict)
    """Cards of each kind in the machine that has several kinds; with other numbers of GPUs all are of one kind."""
    spread: float = 0.0
    """Relative standard deviation of cards of one kind."""


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """What a machine may draw: cells whose limits add up to more are none of the campaign's."""

    node_w: float
    rest_w: float = 0.0
    """Of all that has no limit: fans, drives, memory, the loss of the power supplies."""
    packages: int = 1
    """Processors that are held at ``package_power_w``."""

    def __post_init__(self) -> None:
        _require(
            0 <= self.rest_w < self.node_w and self.packages > 0, "node_w must be above rest_w, and packages above 0"
        )

    def draws_w(self, levels: Levels) -> float:
        """The most that a machine draws at these levels; NaN while one of them is a word, such as ``default``."""
        gpus, watts = levels.get(GPUS, 1), self.rest_w
        for name, count in (("power_cap_w", gpus), ("package_power_w", self.packages)):
            level = levels.get(name, 0.0)
            watts += math.nan if isinstance(level, str) else float(level) * float(count)
        return watts


@dataclass(frozen=True, slots=True)
class Analysis:
    """How runs are looked at. Nothing of it changes what is run."""

    price_per_kwh: float | None = None
    price_per_gpu_hour: float | None = None
    """Beside its energy."""
    currency: str = "EUR"
    idle_w: float | None = None
    """What the devices that count draw while nothing runs."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the results that are averaged into one, as accuracies of several test sets are."""
    instrument: Instrument = field(default_factory=Instrument)


@dataclass(frozen=True, slots=True)
class Simulation:
    """What the simulated card does for a cell, with ``--on``."""

    card: str = ""
    """That of ``--on sim``: a name, or a file of `powerd_core.card_file`."""
    network: str = "{model}"
    stand_in: Mapping[str, str] = field(default_factory=dict)
    """A network that the simulator knows for one that it does not know."""
    iteration_s: float | Mapping[str, float] = 0.3
    """Of one at full clocks on one card; or by network."""
    batch_size: float | None = None
    """That of `iteration_s`: with others the kernels take longer in proportion. Without it no batch size matters."""
    machine: bool = False
    """Joules at the wall of a machine of eight such cards, those that rest among them."""
    iterations: float | None = None
    """Of a run; else the work over the batch size."""
    noise: float = 0.005
    """Relative standard deviation of a run's joules and seconds, each by itself."""
    drift: float = 0.0
    """By so much joules have grown at the end of the planned repeats: a planted error."""
    throttled: float = 0.0
    """Share of the runs that heat slows down by a tenth, and that say so."""
    pilot: float = 1.0
    """What the pilot finds."""
    rows: tuple[Mapping[str, Any], ...] = ()
    """What else holds for the cells that a row's levels name: the fields of `SimulatedRow`."""

    def __post_init__(self) -> None:
        is_card = self.card in ("", *CARDS) or self.card.endswith(".toml")
        _require(is_card, f"card: there is no {self.card!r}: {', '.join(CARDS)}, or a file NAME.toml")
        times = self.iteration_s.values() if isinstance(self.iteration_s, Mapping) else [self.iteration_s]
        is_above_0 = all(n > 0 for n in (*times, *(n for n in (self.batch_size, self.iterations) if n is not None)))
        _require(is_above_0, "iteration_s, batch_size and iterations must be above 0")
        is_share = 0 <= self.noise < 1 and 0 <= self.throttled <= 1 and abs(self.drift) < 1
        _require(is_share, "noise, drift and throttled are shares of 1")


@dataclass(frozen=True, slots=True)
class SimulatedRow:
    """What a row of the simulation may say beside its levels."""

    iteration_s: float | None = None
    power_w: float | None = None
    """Of a card; without it, it is computed."""
    phases: Mapping[str, tuple[float, float]] | None = None
    """Joules and seconds of each phase of an iteration."""
    epochs: float | None = None
    """To the target."""
    epochs_spread: float = 0.0
    """Standard deviation of their logarithm."""
    results: Mapping[str, float] = field(default_factory=dict)
    busy_w: float | None = None
    waiting: float | None = None
    memory: float | None = None
    """Three numbers of the network, see `powerd_core.gpu_physics.Network`."""
    samples: float | None = None
    """Of a run."""
    operations_per_sample: float | None = None
    """Of one forward pass."""
    operations_executed_per_sample: float | None = None
    """All that are executed for a sample."""
    kernels: tuple[str, ...] = ()
    """Their names."""
    is_out_of_memory: bool = False

    def __post_init__(self) -> None:
        for name in ("iteration_s", "power_w", "epochs", "samples"):
            _require((value := getattr(self, name)) is None or value > 0, f"{name} = {value} must be above 0")
        for name in ("busy_w", "waiting", "memory", "operations_per_sample", "operations_executed_per_sample"):
            _require((getattr(self, name) or 0) >= 0, f"{name} = {getattr(self, name)} must not be below 0")
        numbers = [n for pair in (self.phases or {}).values() for n in pair]
        _require(all(n > 0 for n in numbers), "phases: joules and seconds of each, above 0")
        _require(self.epochs_spread >= 0, "epochs_spread must not be below 0")


@dataclass(frozen=True)
class Design:
    """A campaign as its file says."""

    name: str
    command: tuple[str, ...]
    factors: Mapping[str, tuple[Level, ...]]
    exclude: tuple[Which, ...] = ()
    more_cells: tuple[Levels, ...] = ()
    seed: int = 1
    seed_of: Literal["block", "campaign"] = "block"
    """A seed of its own for each block, the same in all its cells, or one for the whole campaign."""
    order: Order = "randomised-blocks"
    reference: Mapping[str, Level | Mapping[str, Level]] = field(default_factory=dict)
    """Levels of the cell that others are compared with, by `model` where they differ; the rest of its levels are the
    other's."""
    repeats: Repeats = field(default_factory=Repeats)
    guard: Guard = field(default_factory=Guard)
    control: Control = field(default_factory=Control)
    executor: Slurm = field(default_factory=Slurm)
    environment: Mapping[str, str] = field(default_factory=dict)
    work: Mapping[str, float] = field(default_factory=dict)
    """What every run does: ``images`` and ``epochs``, or ``samples``."""
    device: str = ""
    """Whose joules count; without it all GPUs, or all devices where there is none."""
    pilot: Pilot | None = None
    budget: NodeBudget | None = None
    analysis: Analysis = field(default_factory=Analysis)
    simulation: Simulation = field(default_factory=Simulation)

    @property
    def samples(self) -> float | None:
        """Of one run, as far as the file says."""
        if "samples" in self.work:
            return self.work["samples"]
        return self.work["images"] * self.work.get("epochs", 1) if "images" in self.work else None

    def cells(self) -> tuple[Cell, ...]:
        """All cells, those of the references among them, in the order of the file."""
        return self._cells

    @cached_property
    def cells_by_id(self) -> Mapping[str, Cell]:
        return {cell.id: cell for cell in self._cells}

    @cached_property
    def _cells(self) -> tuple[Cell, ...]:
        every = [dict(zip(self.factors, levels, strict=True)) for levels in product(*self.factors.values())]
        every = [levels for levels in every if not any(agrees(levels, row) for row in self.exclude)]
        every += [dict(levels) for levels in self.more_cells]
        if self.budget is not None:
            every = [levels for levels in every if not self.budget.draws_w(levels) > self.budget.node_w]
        every += [reference for levels in every if (reference := self.reference_levels(levels)) is not None]
        return tuple({cell.id: cell for cell in map(self.cell, every)}.values())

    def item_of(self, key: str) -> Item | None:
        """The run that a journal calls so; None where the design has no such cell."""
        cell, _, block = key.rpartition("-")
        found = self.cells_by_id.get(cell)
        return None if found is None else Item(found, int(block), self.seed_in(int(block)))

    def cell(self, levels: Levels) -> Cell:
        """The cell of these levels, whether or not the campaign has it."""
        return Cell(levels, _digest(sorted((name, plain_level(level)) for name, level in levels.items())))

    def reference_of(self, cell: Cell) -> Cell | None:
        """The cell that this one is compared with."""
        levels = self.reference_levels(cell.levels)
        return None if levels is None else self.cell(levels)

    def reference_levels(self, levels: Levels) -> dict[str, Level] | None:
        """Those of the cell that a cell of these levels is compared with; None where no reference says so."""
        own = {
            name: level.get(str(levels.get(MODEL))) if isinstance(level, Mapping) else level
            for name, level in self.reference.items()
        }
        known = {name: level for name, level in own.items() if level is not None}
        return {**levels, **known} if own and len(known) == len(own) else None

    def block(self, number: int, cells: Iterable[Cell]) -> list[Item]:
        """The runs of a block, numbered from 0, in their order."""
        ordered = list(cells)
        if self.order == "randomised-blocks":
            pair = number // 2
            ordered.sort(key=lambda cell: random.Random(f"{self.seed} {pair} {cell.id}").random())
        if self.order != "as-written" and number % 2:
            ordered.reverse()
        return [Item(cell, number, self.seed_in(number)) for cell in ordered]

    def seed_in(self, block: int) -> int:
        """Of all runs of a block."""
        return self.seed + (block if self.seed_of == "block" else 0)

    def argv(self, item: Item) -> list[str]:
        """The command of a run."""
        values = self._values(item)
        return [_filled(word, values) for word in self.command]

    def pilot_argv(self, number: int) -> list[str]:
        """The command of a pilot, numbered from 0."""
        assert self.pilot is not None
        values: dict[str, Level] = {name: plain_level(value) for name, value in self.work.items()}
        return [_filled(word, {**values, "seed": self.seed + number}) for word in self.pilot.command]

    def environment_of(self, item: Item) -> dict[str, str]:
        """What is added to its environment. ``gpus`` is what CUDA_VISIBLE_DEVICES names the first of."""
        values = self._values(item)
        return {name: _filled(text, values) for name, text in self.environment.items()}

    def knobs(self, item: Item) -> dict[str, Level]:
        """What is held while it runs, by option."""
        return {name: level for name, level in item.cell.levels.items() if name in KNOBS}

    def _values(self, item: Item) -> dict[str, Level]:
        work: dict[str, Level] = {self.pilot.sets: "?"} if self.pilot is not None else {}
        work |= {name: plain_level(value) for name, value in self.work.items()}
        return {**work, **item.cell.levels, "seed": item.seed, "block": item.block}

    def about(self, item: Item) -> dict[str, Any]:
        """What the run says of itself, as its event ``campaign``."""
        return {
            "campaign": self.name,
            "cell": item.cell.id,
            "block": item.block,
            "seed": item.seed,
            "program": " ".join(self.command),
            "factors": dict(item.cell.levels),
            "samples": self.samples,
        }

    def resolved(self, ranges: Mapping[str, Range]) -> Design:
        """The same with ``default``, ``min`` and per cent of knobs as numbers, by the ranges of the knobs that are
        there. Raises `ConfigError` for a level that cannot be set."""

        def each(name: str, level: Any) -> Any:
            if isinstance(level, Mapping):
                return {model: each(name, one) for model, one in level.items()}
            return [each(name, one) for one in level] if isinstance(level, list) else _resolved(name, level, ranges)

        def numbers(levels: Mapping[str, Any]) -> dict[str, Any]:
            return {name: each(name, level) for name, level in levels.items()}

        factors = {
            name: tuple(dict.fromkeys(_resolved(name, level, ranges) for level in levels))
            for name, levels in self.factors.items()
        }
        found = replace(
            self,
            factors=factors,
            reference=numbers(self.reference),
            exclude=tuple(map(numbers, self.exclude)),
            more_cells=tuple(map(numbers, self.more_cells)),
        )
        found.check_cells()
        return found

    def check_cells(self) -> None:
        """Raises `ConfigError` where there is no cell, and where one, which can only be a reference, draws more than
        the budget: it could be the best, though nobody may run it."""
        if not self.cells():
            raise ConfigError("the campaign has no cell: all are excluded, or over the budget")
        budget = self.budget
        over = [cell for cell in self.cells() if budget is not None and budget.draws_w(cell.levels) > budget.node_w]
        if over and budget is not None:
            watts = budget.draws_w(over[0].levels)
            raise ConfigError(f"order.reference: {over[0]} is {watts:g} W, over the budget of {budget.node_w:g} W")

    def with_pilot(self, value: float | None) -> Design:
        """The same with what the pilot found, if it has run."""
        if self.pilot is None or value is None:
            return self
        return replace(self, work={**self.work, self.pilot.sets: value})

    @property
    def levels(self) -> dict[str, Any]:
        """What `resolved` has made numbers of, as JSON knows it."""
        return {
            "factors": {name: list(levels) for name, levels in self.factors.items()},
            "reference": dict(self.reference),
            "exclude": [dict(levels) for levels in self.exclude],
            "more_cells": [dict(levels) for levels in self.more_cells],
        }

    def with_levels(self, levels: Mapping[str, Any]) -> Design:
        """As it was resolved before, by its `levels`, but for a reference that was changed since: to compare with other
        cells takes no new run. Raises `ConfigError` where these are of other factors, and for a reference that no cell
        has."""
        if set(levels.get("factors", ())) != set(self.factors):
            raise ConfigError("the campaign was begun with other factors: give --into another folder")
        begun = replace(
            self,
            factors={name: tuple(own) for name, own in levels["factors"].items()},
            reference=levels["reference"],
            exclude=tuple(levels["exclude"]),
            more_cells=tuple(levels["more_cells"]),
        )
        reference = {name: self._as_begun(name, level, levels) for name, level in self.reference.items()}
        if reference == begun.reference:
            return begun
        # Cells of the reference of old stay cells.
        other = replace(begun, reference=reference, more_cells=tuple(cell.levels for cell in begun.cells()))
        if unknown := [cell for cell in other.cells() if cell.id not in begun.cells_by_id]:
            raise ConfigError(f"order.reference: the campaign has no cell {unknown[0]}")
        return other

    def _as_begun(self, name: str, level: Any, levels: Mapping[str, Any]) -> Any:
        """A level of the reference as a number: what is said by a word, as ``default``, is what it was then."""
        if isinstance(level, Mapping):
            return {model: self._as_begun(name, one, levels) for model, one in level.items()}
        if name not in KNOBS or not isinstance(level, str):
            return level
        resolved = dict(zip(self.factors[name], levels["factors"][name], strict=False))
        before = levels["reference"].get(name)
        is_known = level in resolved and len(self.factors[name]) == len(levels["factors"][name])
        return resolved[level] if is_known else before if before is not None else level

    @property
    def fingerprint(self) -> str:
        """Changes with everything that a result depends on, not with how many repeats or guards there are."""
        parts = [self.name, self.command, self.work, self.environment, self.seed, self.seed_of, self.device]
        return _digest([*parts, [cell.id for cell in self.cells()]])


def _resolved(name: str, level: Level, ranges: Mapping[str, Range]) -> Level:
    if name not in KNOBS or name not in ranges:
        return level
    value = resolve(level if isinstance(level, str) else float(level), ranges[name], KNOB_OF_OPTION[name])
    return int(value) if isinstance(value, float) and value.is_integer() else value


def plain_level(level: Any) -> Any:
    return int(level) if isinstance(level, float) and level.is_integer() else level


def agrees(levels: Levels, which: Which) -> bool:
    """Whether a cell has all levels of a row; of a list any one."""
    return all(
        levels.get(name) in level if isinstance(level, list) else levels.get(name) == level
        for name, level in which.items()
    )


def _require(is_so: bool, problem: str) -> None:
    """Raises `ValueError`, which the decoder of files makes an error that names the place."""
    if not is_so:
        raise ValueError(problem)


def _digest(of: object) -> str:
    return hashlib.sha256(json.dumps(of, default=str).encode()).hexdigest()[:10]


def _filled(text: str, values: Mapping[str, Level]) -> str:
    return text.format_map({name: plain_level(value) for name, value in values.items()})
