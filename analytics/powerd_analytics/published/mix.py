"""Configurations of several kinds of GPU, each kind measured on one card: `pascal=2,maxwell=2`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerd_core.errors import ConfigError
from powerd_core.text import printable


@dataclass(frozen=True, slots=True)
class Mix:
    """How many GPUs of each kind one configuration has."""

    parts: tuple[tuple[str, int], ...]

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(count for _, count in self.parts)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind, _ in self.parts)

    def __str__(self) -> str:
        return " and ".join(f"{count} {printable(kind, limit=60)}" for kind, count in self.parts)


def parse_mixes(texts: Sequence[str]) -> dict[int, Mix]:
    """The mixes of a command line, by their number of GPUs. Raises `ConfigError` for what is none, or for two of one
    number."""
    mixes: dict[int, Mix] = {}
    for text in texts:
        mix = parse_mix(text)
        if mix.gpus in mixes:
            raise ConfigError(
                f"--mix {printable(text)}: there is another mix of {mix.gpus} GPUs; give one of each number"
            )
        mixes[mix.gpus] = mix
    return mixes


def parse_mix(text: str) -> Mix:
    """``pascal=2,maxwell=2``. Raises `ConfigError`."""
    parts: dict[str, int] = {}
    for part in text.split(","):
        kind, equals, count = (piece.strip() for piece in part.rpartition("="))
        if not (equals and kind and count.isascii() and count.isdigit() and int(count[:9]) > 0 and len(count) < 9):
            raise ConfigError(
                f"--mix {printable(text)}: {printable(part)!r} is not KIND=COUNT, as in pascal=2,maxwell=2"
            )
        if kind in parts:
            raise ConfigError(f"--mix {printable(text)}: {printable(kind)} is named twice")
        parts[kind] = int(count)
    return Mix(tuple(parts.items()))
