"""The file of a simulated card, TOML: constants that were fitted to a sweep, and the trainings that these were fitted
with. `joules campaign fit` writes one; what simulates cards takes it by its name."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

from powerd_core.errors import ConfigError
from powerd_core.gpu_physics import CARDS, Card, Network
from powerd_core.serde import build_options, toml_table, toml_value
from powerd_core.text import printable

VERSION = 1
_LIMITS = ("least_power_w", "default_power_w", "greatest_power_w")
_FITTED = ("name", "floor_w", "knee", "voltage", "wait_w")


@dataclass(frozen=True, slots=True)
class _Constants:
    name: str
    floor_w: float
    knee: float
    voltage: float
    wait_w: float
    least_power_w: float
    default_power_w: float
    greatest_power_w: float
    like: str = "rtx6000"
    """The card that has all other constants: clocks, memory, idle power."""


@dataclass(frozen=True, slots=True)
class _Training:
    busy_w: float
    waiting: float
    memory: float
    time_s: float


@dataclass(frozen=True, slots=True)
class _File:
    version: int
    card: _Constants
    network: Mapping[str, _Training] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownCard:
    """A card that has a name, or a file."""

    card: Card
    like: str
    """The card of `CARDS` that has all constants which no file says."""
    networks: Mapping[str, Network] = field(default_factory=dict)
    """The trainings of its file, by name."""


def card_of(text: str, where: str) -> KnownCard:
    """The card of a file's text. Raises `ConfigError`, which begins with ``where``."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is no TOML: {error}") from error
    file = build_options(_File, document, where)
    if file.version != VERSION:
        raise ConfigError(f"{where}: version {file.version}: this release knows {VERSION}")
    own = file.card
    if own.like not in CARDS:
        raise ConfigError(f"{where}: card.like: there is no {own.like!r}: {', '.join(CARDS)}")
    limits = own.least_power_w, own.default_power_w, own.greatest_power_w
    numbers = (own.floor_w, own.wait_w, own.voltage, *limits)
    rises = 0 < limits[0] <= limits[1] <= limits[2]
    if not (all(0 <= number < 1e5 for number in numbers) and 0 < own.knee <= 1 and rises):
        raise ConfigError(f"{where}: card: watts from 0 up, a knee from 0 to 1, and limits that rise are wanted")
    card = replace(CARDS[own.like], limits_w=limits, **{name: getattr(own, name) for name in _FITTED})
    networks = {}
    for name, training in file.network.items():
        shares = training.waiting, training.memory
        if not (all(0 <= share < 1 for share in shares) and training.time_s > 0 and training.busy_w > 0):
            raise ConfigError(f"{where}: network.{name}: shares from 0 to 1, seconds and watts above 0 are wanted")
        networks[name] = Network(training.busy_w, training.waiting, training.memory, training.time_s)
    return KnownCard(card, own.like, networks)


def card_named(name: str, read: Callable[[str], str]) -> KnownCard:
    """A card by its name, or that of a file ``NAME.toml``, whose text ``read`` gives. Raises `ConfigError`."""
    if name in CARDS:
        return KnownCard(CARDS[name], name)
    if not name.endswith(".toml"):
        raise ConfigError(f"there is no card {name!r}: {', '.join(CARDS)}, or a file NAME.toml")
    try:
        text = read(name)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is no text") from error
    return card_of(text, name)


def card_text(known: KnownCard, about: str = "") -> str:
    """The file of a card, which begins with a comment ``about`` it."""
    card = known.card
    constants = {name: _rounded(getattr(card, name)) for name in _FITTED[1:]}
    limits = dict(
        zip(("least_power_w", "default_power_w", "greatest_power_w"), map(_rounded, card.limits_w), strict=True)
    )
    tables = [toml_table("[card]", _Constants(name=card.name, like=known.like, **constants, **limits))]
    for name, network in known.networks.items():
        numbers = {f.name: _rounded(getattr(network, f.name)) for f in fields(_Training)}
        tables.append(toml_table(f"[network.{toml_value(name)}]", _Training(**numbers)))
    begin = f"# {printable(about, limit=200)}\n" if about else ""
    return f"{begin}version = {VERSION}\n\n" + "\n".join(tables)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
