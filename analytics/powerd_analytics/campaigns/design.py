"""The design of a campaign: which cells there are, what a run of each is, and in which order they run.

A cell is a setting of all factors. A block has each cell once, in an order that is drawn anew for every second block;
the block behind it goes backwards. So what drifts during a campaign falls on all cells alike. A run is one cell in one
block: an `Item`. All of it follows from the file and its seed; nothing here reads a clock, a file or a device.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from math import prod
from string import Formatter
from typing import Any, Literal, TypeVar, get_args

from powerd_core.errors import ConfigError
from powerd_core.lease import KNOB_OF_OPTION, Range, resolve
from powerd_core.settings import UNITS
from powerd_core.text import did_you_mean, printable

Level = str | int | float | bool
Levels = Mapping[str, Level]
Which = Mapping[str, Level | list[Level]]
"""Levels that a cell must have; of a list any one."""

KNOBS = tuple(option for option in KNOB_OF_OPTION if option in ("power_cap_w", "sm_clock_mhz", "mem_clock_mhz"))
"""Factors that are turned under lease; all others go into the command or its environment."""
MODEL = "model"
"""The factor by which references may differ."""
GPUS = "gpus"
"""The factor that says how many GPUs the command sees."""
Order = Literal["randomised-blocks", "as-written", "abba"]
DISCARDS = ("thermal", "overridden", "clock-missed", "lease-lost", "shared")
"""Reasons for which a run is measured again."""
_OF_A_RUN = ("seed", "block")
_MOST_CELLS = 100_000
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_HALF_WIDTH = re.compile(r"\s*([\d.]+)\s*%\s*")
T = TypeVar("T")


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
    unit = UNITS.get(KNOB_OF_OPTION.get(name, ""), "")
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

    metric: Literal["energy_j", "time_s", "edp_js"] = "energy_j"
    half_width: float = 0.01
    """Of the mean."""


@dataclass(frozen=True, slots=True)
class Repeats:
    min: int = 5
    max: int = 5
    until: Until | None = None


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
    discard: tuple[str, ...] = DISCARDS
    retries: int = 2
    """So often a run that was discarded or failed is made again."""


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

    command: tuple[str, ...] = ()
    result: str = "epochs"
    """The result of the pilot (`Meter.result`) that counts."""
    sets: str = "epochs"
    """What the campaign's command gets it as."""
    runs: int = 1
    """The greatest of so many pilots is taken."""


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
class Simulation:
    """What the simulated card does for a cell, with ``--on``."""

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
    """What else holds for the cells that a row's levels name; see `SIMULATED`."""


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
    price_per_kwh: float | None = None
    currency: str = "EUR"
    idle_w: float | None = None
    """What the devices that count draw while nothing runs."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the results that are averaged into one, as accuracies of several test sets are."""
    pilot: Pilot | None = None
    instrument: Instrument = field(default_factory=Instrument)
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
        every += [reference for levels in every if (reference := self.reference_levels(levels)) is not None]
        return tuple({cell.id: cell for cell in map(self.cell, every)}.values())

    def cell(self, levels: Levels) -> Cell:
        """The cell of these levels, whether or not the campaign has it."""
        return Cell(levels, _digest(sorted((name, _plain(level)) for name, level in levels.items())))

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
        values: dict[str, Level] = {name: _plain(value) for name, value in self.work.items()}
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
        work |= {name: _plain(value) for name, value in self.work.items()}
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

        def plain(levels: Mapping[str, Any]) -> dict[str, Any]:
            return {name: each(name, level) for name, level in levels.items()}

        factors = {
            name: tuple(dict.fromkeys(_resolved(name, level, ranges) for level in levels))
            for name, levels in self.factors.items()
        }
        return replace(
            self,
            factors=factors,
            reference=plain(self.reference),
            exclude=tuple(map(plain, self.exclude)),
            more_cells=tuple(map(plain, self.more_cells)),
        )

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


def _plain(level: Any) -> Any:
    return int(level) if isinstance(level, float) and level.is_integer() else level


def agrees(levels: Levels, which: Which) -> bool:
    """Whether a cell has all levels of a row; of a list any one."""
    return all(
        levels.get(name) in level if isinstance(level, list) else levels.get(name) == level
        for name, level in which.items()
    )


def _digest(of: object) -> str:
    return hashlib.sha256(json.dumps(of, default=str).encode()).hexdigest()[:10]


def _filled(text: str, values: Mapping[str, Level]) -> str:
    return text.format_map({name: _plain(value) for name, value in values.items()})


# -- the file ----------------------------------------------------------------------------------------------------------

_TABLES = {
    "repeats": Repeats, "guard": Guard, "control": Control, "executor": Slurm, "instrument": Instrument,
    "simulation": Simulation,
}  # fmt: skip
_OF_CAMPAIGN = ("name", "command", "seed", "seed_of", "device", "price_per_kwh", "currency", "idle_w")
_KNOWN = ("campaign", "factors", "exclude", "cell", "order", "environment", "work", "weights", "pilot", *_TABLES)
SIMULATED = (
    "iteration_s", "power_w", "phases", "epochs", "epochs_spread", "results", "busy_w", "waiting", "memory",
    "samples", "operations_per_sample", "operations_executed_per_sample", "kernels", "is_out_of_memory",
)  # fmt: skip
"""What a row of the simulation may say beside its levels: seconds of an iteration, watts of a card (else computed),
joules and seconds of each phase of an iteration, epochs to the target with the standard deviation of their logarithm,
results, three numbers of the network (`powerd_core.gpu_physics.Network`), samples of a run, operations of one forward
pass of a sample and all that are executed for it, names of kernels, and that it does not fit the memory."""


def design_of(document: Mapping[str, Any]) -> Design:
    """The design that a TOML document says. Raises `ConfigError`, which names what is wrong."""
    _check_names("", document, _KNOWN)
    campaign = _table(document, "campaign")
    _check_names("campaign.", campaign, _OF_CAMPAIGN)
    if not isinstance(campaign.get("name"), str) or not _NAME.fullmatch(campaign["name"]):
        raise ConfigError("campaign.name: give it a name of letters, digits, dots and dashes")
    command = campaign.get("command")
    if not (isinstance(command, list) and command and all(isinstance(word, str) for word in command)):
        raise ConfigError('campaign.command: a list of texts, as in ["python", "train.py", "--batch", "{batch_size}"]')
    factors = {name: _levels(name, given) for name, given in _table(document, "factors").items()}
    order = _table(document, "order")
    _check_names("order.", order, ("kind", "reference"))
    kind = order.get("kind", "randomised-blocks")
    if kind not in get_args(Order):
        raise ConfigError(f"order.kind: {kind!r}{did_you_mean(str(kind), get_args(Order))}")
    design = Design(
        name=campaign["name"],
        command=tuple(command),
        factors=factors,
        exclude=_rows("exclude", document.get("exclude", [])),
        more_cells=_rows("cell", document.get("cell", [])),
        seed=_typed("campaign.seed", campaign.get("seed", 1), int),
        seed_of=campaign.get("seed_of", "block"),
        order=kind,
        reference=_table(order, "reference"),
        environment={name: _word(f"environment.{name}", n) for name, n in _table(document, "environment").items()},
        work={name: _typed(f"work.{name}", n, float) for name, n in _table(document, "work").items()},
        weights={name: _typed(f"weights.{name}", w, float) for name, w in _table(document, "weights").items()},
        device=_text("campaign.device", campaign.get("device", "")),
        price_per_kwh=(
            _typed("campaign.price_per_kwh", campaign["price_per_kwh"], float) if "price_per_kwh" in campaign else None
        ),
        currency=_text("campaign.currency", campaign.get("currency", "EUR")),
        idle_w=_typed("campaign.idle_w", campaign["idle_w"], float) if "idle_w" in campaign else None,
        pilot=_section("pilot", Pilot, _table(document, "pilot")) if "pilot" in document else None,
        **{name: _section(name, kind, _table(document, name)) for name, kind in _TABLES.items()},
    )
    _check(design)
    return design


def _check(design: Design) -> None:
    if design.seed_of not in ("block", "campaign"):
        raise ConfigError(f"campaign.seed_of: {design.seed_of!r} is neither 'block' nor 'campaign'")
    _check_names("work.", design.work, ("images", "epochs", "samples"))
    if design.work.get("epochs") and "images" not in design.work:
        raise ConfigError("work.epochs goes with work.images: how many there are in an epoch")
    if not 1 <= design.repeats.min <= design.repeats.max:
        raise ConfigError(f"repeats: min {design.repeats.min} and max {design.repeats.max} must be 1 or more, and rise")
    if design.repeats.until is not None and design.repeats.min < 2:
        raise ConfigError("repeats.min: one run says nothing of its spread; with `until` it is 2 or more")
    for reason in design.guard.discard:
        if reason not in DISCARDS:
            raise ConfigError(f"guard.discard: {reason!r}{did_you_mean(reason, DISCARDS)}")
    _check_levels(design)
    _check_placeholders(design)


def _check_levels(design: Design) -> None:
    """Names of factors in the tables that have levels, and the levels of those that are ours."""
    for name in (GPUS, *KNOBS):
        for level in design.factors.get(name, ()):
            is_count = isinstance(level, int) and not isinstance(level, bool) and level > 0
            if name == GPUS and not is_count:
                raise ConfigError(f"factors.gpus: {level!r} is no number of GPUs")
            if isinstance(level, bool) or (isinstance(level, int | float) and not level > 0):
                raise ConfigError(f"factors.{name}: {level!r} cannot be set")
    for row in design.exclude:
        if not all(map(_is_level, row.values())):
            raise ConfigError("exclude: a level, or a list of levels, of each factor that it names")
    for name, given in design.reference.items():
        if not all(isinstance(one, Level) for one in (given.values() if isinstance(given, Mapping) else [given])):
            raise ConfigError(f"order.reference.{name}: a level, or one for each model")
    for levels in (design.reference, *design.exclude):
        _check_names("order.reference or exclude: ", levels, tuple(design.factors))
    for row in design.simulation.rows:
        _check_names("simulation.rows: ", row, (*design.factors, *SIMULATED))
        _check_simulated(row)
    how = design.simulation
    times = how.iteration_s.values() if isinstance(how.iteration_s, Mapping) else [how.iteration_s]
    if not all(0 < n < _MOST for n in (*times, how.batch_size or 1.0, how.iterations or 1.0)):
        raise ConfigError("simulation: iteration_s, batch_size and iterations must be above 0")
    if not (0 <= how.noise < 1 and 0 <= how.throttled <= 1 and abs(how.drift) < 1):
        raise ConfigError("simulation: noise, drift and throttled are shares of 1")
    if not all(0 < n < _MOST for n in design.work.values()):
        raise ConfigError("work: numbers above 0")
    if design.instrument.moved_over and design.instrument.moved_over not in design.factors:
        raise ConfigError(f"instrument.moved_over: there is no factor {design.instrument.moved_over!r}")
    if any(weight <= 0 for weight in design.weights.values()):
        raise ConfigError("weights: each must be above 0")
    if design.pilot is not None and not design.pilot.command:
        raise ConfigError("pilot.command: a list of texts, as campaign.command")
    for levels in design.more_cells:
        if any(not isinstance(level, Level) for level in levels.values()):
            raise ConfigError("cell: a text or a number for each factor")
        if set(levels) != set(design.factors):
            raise ConfigError(f"cell: say a level of each factor: {', '.join(design.factors)}")
    if prod(map(len, design.factors.values())) > _MOST_CELLS:
        raise ConfigError(f"{prod(map(len, design.factors.values()))} cells are too many: {_MOST_CELLS} at most")
    if not design.cells():
        raise ConfigError("the campaign has no cell: all are excluded")


def _check_placeholders(design: Design) -> None:
    """That the command knows all names in its braces, and all factors change something."""
    known = {*design.factors, *design.work, *_OF_A_RUN, *([design.pilot.sets] if design.pilot else [])}
    used: set[str] = set()
    for text in (*design.command, *design.environment.values()):
        used |= _placeholders(text)
    if unknown := used - known:
        name = min(unknown)
        raise ConfigError(f"the command has {{{name}}}, and there is no such factor{did_you_mean(name, known)}")
    for name in design.factors:
        if name not in used and name not in (*KNOBS, GPUS):
            raise ConfigError(f"factor {name!r} changes nothing: put {{{name}}} into the command or the environment")


_MOST = 1e12
"""No number of a campaign's file is larger."""


def _check_simulated(row: Mapping[str, Any]) -> None:
    """The types of what a row of the simulation says beside its levels."""
    for name in SIMULATED[: SIMULATED.index("is_out_of_memory")]:
        value = row.get(name)
        if value is None:
            continue
        if name == "kernels":
            _texts(f"simulation.rows: {name}", value)
        elif name in ("phases", "results"):
            if not isinstance(value, Mapping):
                raise ConfigError(f"simulation.rows: {name}: must be a table")
            pairs = [pair if isinstance(pair, list) else [pair] for pair in value.values()]
            if any(len(pair) != (2 if name == "phases" else 1) for pair in pairs):
                raise ConfigError("simulation.rows: phases: joules and seconds of each")
            numbers = [_typed(f"simulation.rows: {name}", n, float) for pair in pairs for n in pair]
            if not all(-_MOST < n < _MOST and (n > 0 or name == "results") for n in numbers):
                raise ConfigError(f"simulation.rows: {name}: a number cannot be")
        elif not 0 <= _typed(f"simulation.rows: {name}", value, float) < _MOST or (not value and name in _ABOVE_0):
            raise ConfigError(f"simulation.rows: {name}: {value!r} cannot be")


_ABOVE_0 = ("iteration_s", "power_w", "epochs", "samples")


def _is_level(value: object) -> bool:
    return isinstance(value, Level) or (isinstance(value, list) and all(isinstance(one, Level) for one in value))


def _placeholders(text: str) -> set[str]:
    try:
        names = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise ConfigError(f"{printable(text)!r} in the command: {error}; a brace itself is written twice") from None
    if "" in names or any(not name.isidentifier() for name in names):
        raise ConfigError(f"{printable(text)!r} in the command: braces hold the name of a factor")
    return names


def _levels(name: str, given: Any) -> tuple[Level, ...]:
    """The levels of a factor: a list, or ``{from, to, step}``."""
    if isinstance(given, Mapping):
        _check_names(f"factors.{name}.", given, ("from", "to", "step"))
        try:
            begin, end, step = (float(given[key]) for key in ("from", "to", "step"))
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"factors.{name}: a range has numbers `from`, `to` and `step`") from None
        if step <= 0 or end < begin or (end - begin) / step > _MOST_CELLS:
            raise ConfigError(f"factors.{name}: `to` must not be below `from`, and `step` above 0")
        return tuple(_plain(round(begin + i * step, 9)) for i in range(int((end - begin) / step + 1e-9) + 1))
    levels = given if isinstance(given, list) else [given]
    if not levels or not all(isinstance(level, Level) for level in levels):
        raise ConfigError(
            f"factors.{name}: a list of texts or numbers, or a range as {{from = 100, to = 260, step = 5}}"
        )
    return tuple(dict.fromkeys(_plain(level) for level in levels))


def _section(name: str, kind: type[T], given: Mapping[str, Any]) -> T:
    """A table of the file as its dataclass."""
    types = {f.name: str(f.type) for f in fields(kind)}  # type: ignore[arg-type]
    _check_names(f"{name}.", given, tuple(types))
    values: dict[str, Any] = {}
    for key, value in given.items():
        values[key] = _READ[types[key]](f"{name}.{key}", value)
    if name == "repeats" and "max" not in given:
        values["max"] = max(values.get("min", 5), 20 if "until" in given else values.get("min", 5))
    return kind(**values)


def _typed(name: str, value: Any, kind: type[T]) -> T:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (kind is int and value != int(value)):
        raise ConfigError(f"{name}: {value!r} is no {'whole ' if kind is int else ''}number")
    return kind(value)  # type: ignore[call-arg]


def _until(name: str, value: Any) -> Until:
    if not isinstance(value, Mapping):
        raise ConfigError(f'{name}: as in {{metric = "energy_j", half_width = "1 %"}}')
    _check_names(f"{name}.", value, ("metric", "half_width"))
    metrics = get_args(Until.__annotations__["metric"]) or ("energy_j", "time_s", "edp_js")
    metric = value.get("metric", "energy_j")
    if metric not in metrics:
        raise ConfigError(f"{name}.metric: {metric!r}{did_you_mean(str(metric), metrics)}")
    half_width = value.get("half_width", 0.01)
    if isinstance(half_width, str):
        match = _HALF_WIDTH.fullmatch(half_width)
        half_width = float(match[1]) / 100 if match else -1.0
    if not isinstance(half_width, float | int) or not 0 < half_width < 1:
        raise ConfigError(f'{name}.half_width: a share of the mean, as "1 %" or 0.01')
    return Until(metric, float(half_width))


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{name}: a list of texts")
    return tuple(_text(name, text) for text in value)


def _word(name: str, value: Any) -> str:
    if not isinstance(value, Level):
        raise ConfigError(f"{name}: a text or a number")
    return str(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name}: {value!r} is no text")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: true or false")
    return value


def _rows(name: str, value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise ConfigError(f'{name}: a list of tables, as [{{model = "alexnet", iteration_s = 0.1}}]')
    return tuple(value)


def _counts(name: str, value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: as in {{pascal = 2, maxwell = 2}}")
    return {own: _typed(f"{name}.{own}", n, int) for own, n in value.items()}


def _names_of(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ConfigError(f'{name}: as in {{vgg16 = "vgg19"}}')
    return {own: _text(f"{name}.{own}", text) for own, text in value.items()}


def _kind_of_executor(name: str, value: Any) -> str:
    known = ("local", "submitit")
    if value not in known:
        raise ConfigError(f"{name}: {value!r}{did_you_mean(str(value), known)}")
    return str(value)


def _seconds(name: str, value: Any) -> float | dict[str, float]:
    if isinstance(value, Mapping):
        return {own: _typed(f"{name}.{own}", seconds, float) for own, seconds in value.items()}
    return _typed(name, value, float)


_READ: dict[str, Any] = {
    "str": _text,
    "Literal['local', 'submitit']": _kind_of_executor,
    "bool": _flag,
    "Mapping[str, str]": _names_of,
    "Mapping[str, int]": _counts,
    "tuple[Mapping[str, Any], ...]": _rows,
    "float | Mapping[str, float]": _seconds,
    "int": lambda name, value: _typed(name, value, int),
    "float": lambda name, value: _typed(name, value, float),
    "float | None": lambda name, value: _typed(name, value, float),
    "Until | None": _until,
    "tuple[str, ...]": _texts,
}
"""How a field of a table is read, by the text of its type."""


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: must be a table")
    return value


def _check_names(where: str, given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(f"{where}{name}: there is no such name{did_you_mean(name, known)}")
