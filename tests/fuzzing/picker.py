"""Structured choices out of a fuzzer's bytes, so that an input can be replayed without the fuzzer.

Each choice eats a byte or a few; when they are used up every choice is the first one. A fuzzer that changes one byte so
changes one choice, and finds its way behind checksums that random bytes never pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

TEXTS = ("", "a", "\x1b[2J\x07", "../x", "/", "\u202e\ud800", "x" * 300, "gpu0.a", "ä\n\r\0", "[/b][link=x]", "NaN")
NUMBERS = (0, 1, -1, 2, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1,
           -(2**63))  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, 1e-9, float("inf"), float("-inf"), float("nan"))


def expect(holds: bool, error: Exception) -> None:
    """An error of ours must still be one that a person can read."""
    assert holds, f"{type(error).__name__} says {str(error)[:300]!r}"


class Picker:
    """Reads choices from the front of ``data``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        self._at += len(found)
        return found

    def rest(self) -> bytes:
        return self.take(self.left)

    def below(self, limit: int) -> int:
        """A number from 0 to ``limit`` - 1."""
        return int.from_bytes(self.take(1 if limit <= 256 else 2), "little") % limit

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def flip(self) -> bool:
        return bool(self.take(1)[:1].strip(b"\0"))

    def rarely(self) -> bool:
        """True for one byte in sixteen."""
        return self.below(256) >= 240

    def unsigned(self, bits: int) -> int:
        """Mostly small, sometimes at an edge, sometimes anything of ``bits`` bits."""
        how = self.below(4)
        if how == 0:
            return self.below(256)
        if how == 1:
            return self.one_of(NUMBERS) & ((1 << bits) - 1)
        if how == 2:
            return (1 << bits) - 1 - self.below(256)
        return int.from_bytes(self.take(bits // 8), "little")

    def signed(self, bits: int) -> int:
        found = self.unsigned(bits)
        return found - (1 << bits) if found >= 1 << (bits - 1) else found

    def text(self) -> str:
        if self.flip():
            return self.one_of(TEXTS)
        return self.take(self.below(24)).decode("utf-8", "surrogateescape")

    def value(self, depth: int = 0) -> object:
        """Anything that JSON can say, and a little more."""
        how = self.below(9 if depth < 4 else 7)
        if how == 7:
            return [self.value(depth + 1) for _ in range(self.below(4))]
        if how == 8:
            return {self.text(): self.value(depth + 1) for _ in range(self.below(4))}
        simple = (None, True, False, self.one_of(NUMBERS), self.one_of(FLOATS), self.text(), 10 ** self.below(500))
        return simple[how]


def spoiled(document: object, picker: Picker, most: int = 4) -> object:
    """A JSON document with a few of its values replaced, removed, doubled or renamed. Changes it in place."""
    for _ in range(picker.below(most) + 1):
        place, key = _somewhere(document, picker)
        how = picker.below(4)
        if isinstance(place, dict) and how == 1:
            place.pop(key, None)
        elif isinstance(place, dict) and how == 2:
            place[picker.text()] = picker.value()
        elif isinstance(place, list) and how == 1 and place:
            place.append(place[picker.below(len(place))])
        elif isinstance(place, dict | list):
            place[key] = picker.value()
    return document


def _somewhere(document: object, picker: Picker) -> tuple[object, object]:
    """A container in the document and a key of it."""
    place, key, inner = None, None, document
    while isinstance(inner, dict | list) and inner and (place is None or not picker.rarely()):
        place = inner
        key = picker.one_of(sorted(inner)) if isinstance(inner, dict) else picker.below(len(inner))
        inner = place[key]
    return place, key
