"""A campaign's TOML file: its tables as dataclasses, which the house's one decoder reads, and the design that they say.

What one table can be wrong in by itself, its dataclass refuses; here is checked what several of them must agree on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from string import Formatter
from typing import Any, Literal

from powerd_analytics.campaigns.design import (
    GPUS,
    KNOBS,
    Analysis,
    Control,
    Design,
    Guard,
    Instrument,
    Level,
    NodeBudget,
    Order,
    Pilot,
    Repeats,
    SimulatedRow,
    Simulation,
    Slurm,
    Which,
    plain_level,
)
from powerd_core.errors import ConfigError
from powerd_core.lease import UNITS, option_of
from powerd_core.serde import build_options
from powerd_core.text import did_you_mean, printable

_OF_A_RUN = ("seed", "block")
_MOST_CELLS = 100_000
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_PER_CENT = re.compile(r"\s*([\d.]+)\s*%\s*")
_MOST_REPEATS = 20
"""With `until`, where the file says no number."""


@dataclass(frozen=True, slots=True)
class CampaignTable:
    """``[campaign]``. What the fields mean says `Design`."""

    name: str
    command: tuple[str, ...]
    seed: int = 1
    seed_of: Literal["block", "campaign"] = "block"
    device: str = ""
    price_per_kwh: float | None = None
    price_per_gpu_hour: float | None = None
    currency: str = "EUR"
    idle_w: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError("name: give it a name of letters, digits, dots and dashes")
        if not self.command:
            raise ValueError('command: a list of texts, as in ["python", "train.py", "--batch", "{batch_size}"]')
        for name in ("price_per_kwh", "price_per_gpu_hour", "idle_w"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must not be below 0")


@dataclass(frozen=True, slots=True)
class LevelRange:
    """Levels of a factor as ``{from = 100, to = 260, step = 5}``, where ``from`` is `begin`."""

    begin: float
    to: float
    step: float

    def __post_init__(self) -> None:
        if self.step <= 0 or self.to < self.begin or (self.to - self.begin) / self.step > _MOST_CELLS:
            raise ValueError("`to` must not be below `from`, and `step` above 0")

    def levels(self) -> tuple[Level, ...]:
        count = int((self.to - self.begin) / self.step + 1e-9) + 1
        return tuple(plain_level(round(self.begin + i * self.step, 9)) for i in range(count))


@dataclass(frozen=True, slots=True)
class OrderTable:
    """``[order]``."""

    kind: Order = "randomised-blocks"
    reference: Mapping[str, Level | Mapping[str, Level]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkTable:
    """``[work]``: what every run does."""

    images: float | None = None
    epochs: float | None = None
    samples: float | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None and self.images is None:
            raise ValueError("epochs goes with images: how many there are in an epoch")
        if not all(n > 0 for n in self.numbers.values()):
            raise ValueError("numbers above 0")

    @property
    def numbers(self) -> dict[str, float]:
        every = {"images": self.images, "epochs": self.epochs, "samples": self.samples}
        return {name: n for name, n in every.items() if n is not None}


@dataclass(frozen=True, slots=True)
class CampaignFile:
    """The whole file."""

    campaign: CampaignTable
    factors: Mapping[str, Level | list[Level] | LevelRange] = field(default_factory=dict)
    exclude: tuple[Which, ...] = ()
    cell: tuple[Mapping[str, Level], ...] = ()
    order: OrderTable = field(default_factory=OrderTable)
    repeats: Repeats = field(default_factory=Repeats)
    guard: Guard = field(default_factory=Guard)
    control: Control = field(default_factory=Control)
    executor: Slurm = field(default_factory=Slurm)
    environment: Mapping[str, Level] = field(default_factory=dict)
    work: WorkTable = field(default_factory=WorkTable)
    weights: Mapping[str, float] = field(default_factory=dict)
    pilot: Pilot | None = None
    budget: NodeBudget | None = None
    instrument: Instrument = field(default_factory=Instrument)
    simulation: Simulation = field(default_factory=Simulation)


def design_of(document: Mapping[str, Any], origin: str = "campaign") -> Design:
    """The design that a TOML document says. Raises `ConfigError`, which begins with ``origin`` and names the place."""
    file = build_options(CampaignFile, _completed(document), origin)
    try:
        factors = {name: _levels(name, given) for name, given in file.factors.items()}
        design = Design(
            name=file.campaign.name,
            command=file.campaign.command,
            factors=factors,
            exclude=file.exclude,
            more_cells=file.cell,
            seed=file.campaign.seed,
            seed_of=file.campaign.seed_of,
            order=file.order.kind,
            reference=file.order.reference,
            repeats=file.repeats,
            guard=file.guard,
            control=file.control,
            executor=file.executor,
            environment={name: str(value) for name, value in file.environment.items()},
            work=file.work.numbers,
            device=file.campaign.device,
            pilot=file.pilot,
            budget=file.budget,
            analysis=Analysis(
                price_per_kwh=file.campaign.price_per_kwh,
                price_per_gpu_hour=file.campaign.price_per_gpu_hour,
                currency=file.campaign.currency,
                idle_w=file.campaign.idle_w,
                weights=file.weights,
                instrument=file.instrument,
            ),
            simulation=file.simulation,
        )
        _check(design)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error
    return design


def _completed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document in the words of the dataclasses: half-widths in per cent as shares, the default number of repeats,
    and ``from``, which is no name in Python."""
    done = dict(document)
    if isinstance(repeats := done.get("repeats"), dict):
        until, fewest = repeats.get("until"), repeats.get("min", 5)
        if isinstance(until, dict) and isinstance(text := until.get("half_width"), str):
            match = _PER_CENT.fullmatch(text)
            until = {**until, "half_width": float(match[1]) / 100 if match and match[1].count(".") < 2 else text}
            repeats = {**repeats, "until": until}
        if "max" not in repeats and isinstance(fewest, int):
            repeats = {**repeats, "max": max(fewest, _MOST_REPEATS) if until is not None else fewest}
        done["repeats"] = repeats
    if isinstance(factors := done.get("factors"), dict):
        done["factors"] = {name: _without_from(given) for name, given in factors.items()}
    return done


def _without_from(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    return {"begin" if key == "from" else key: n for key, n in given.items()}


def _levels(name: str, given: Level | list[Level] | LevelRange) -> tuple[Level, ...]:
    """The levels of a factor, each once."""
    if isinstance(given, LevelRange):
        return given.levels()
    levels = tuple(dict.fromkeys(map(plain_level, given if isinstance(given, list) else [given])))
    if not levels:
        raise ConfigError(f"factors.{name}: there is no level")
    return levels


def _check(design: Design) -> None:
    """What tables must agree on."""
    for name in design.factors:
        if name in UNITS and option_of(name) != name:
            raise ConfigError(f"factor {name!r}: did you mean {option_of(name)!r}?")
    for name in (GPUS, *KNOBS):
        for level in design.factors.get(name, ()):
            is_count = isinstance(level, int) and not isinstance(level, bool) and level > 0
            if name == GPUS and not is_count:
                raise ConfigError(f"factors.gpus: {level!r} is no number of GPUs")
            if isinstance(level, bool) or (isinstance(level, int | float) and not level > 0):
                raise ConfigError(f"factors.{name}: {level!r} cannot be set")
    for levels in (design.reference, *design.exclude):
        _check_names("order.reference or exclude: ", levels, design.factors)
    for levels in design.more_cells:
        if set(levels) != set(design.factors):
            raise ConfigError(f"cell: say a level of each factor: {', '.join(design.factors)}")
    if design.analysis.instrument.moved_over and design.analysis.instrument.moved_over not in design.factors:
        raise ConfigError(f"instrument.moved_over: there is no factor {design.analysis.instrument.moved_over!r}")
    if any(weight <= 0 for weight in design.analysis.weights.values()):
        raise ConfigError("weights: each must be above 0")
    for row in design.simulation.rows:
        build_options(SimulatedRow, {k: v for k, v in row.items() if k not in design.factors}, "simulation.rows")
    if (count := prod(map(len, design.factors.values()))) > _MOST_CELLS:
        raise ConfigError(f"{count} cells are too many: {_MOST_CELLS} at most")
    design.check_cells()
    _check_placeholders(design)


def _check_placeholders(design: Design) -> None:
    """That the command knows all names in its braces, and all factors change something."""
    known = {*design.factors, *design.work, *_OF_A_RUN, *([design.pilot.sets] if design.pilot else [])}
    used = _placeholders("the command", (*design.command, *design.environment.values()), known)
    if design.pilot is not None:
        _placeholders("pilot.command", design.pilot.command, {*design.work, "seed"})
    for name in design.factors:
        if name not in used and name not in (*KNOBS, GPUS):
            raise ConfigError(f"factor {name!r} changes nothing: put {{{name}}} into the command or the environment")


def _placeholders(where: str, texts: Iterable[str], known: set[str]) -> set[str]:
    """The names in the braces of some texts. Raises `ConfigError` for one that is not known."""
    used: set[str] = set()
    for text in texts:
        try:
            names = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
        except ValueError as error:
            raise ConfigError(f"{printable(text)!r} in {where}: {error}; a brace itself is written twice") from None
        if "" in names or any(not name.isidentifier() for name in names):
            raise ConfigError(f"{printable(text)!r} in {where}: braces hold the name of a factor")
        used |= names
    if unknown := used - known:
        name = min(unknown)
        raise ConfigError(f"{where} has {{{name}}}, and there is no such factor{did_you_mean(name, known)}")
    return used


def _check_names(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(f"{where}{name}: there is no such name{did_you_mean(name, known)}")
