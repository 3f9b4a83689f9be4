"""Sets of line numbers, as pmlib's ``line_t``: numbers from 0, at most 128 of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from powerd_core.errors import ConfigError

MAX_LINES = 128
_PART = re.compile(r"\s*(\d{1,3})\s*(?:-\s*(\d{1,3})\s*)?", re.ASCII)


class Lines:
    """A set of line numbers that can be changed; a counter keeps a copy of the set that it was made with."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._numbers: set[int] = set()
        for number in numbers:
            self.set(number)

    @classmethod
    def parse(cls, text: str) -> Lines:
        """From text such as ``"1-4,6,9-10"``. Raises `ConfigError` for anything else."""
        made = cls()
        for part in text.split(","):
            match = _PART.fullmatch(part)
            if match is None:
                raise ConfigError(f"lines {text!r}: {part.strip()!r} is no line and no range: write them as '1-4,6'")
            first = int(match[1])
            last = first if match[2] is None else int(match[2])
            if last < first:
                raise ConfigError(f"lines {text!r}: the range {part.strip()!r} runs backwards")
            for number in range(first, last + 1):
                made.set(number)
        return made

    @classmethod
    def all(cls) -> Lines:
        """Every number; for a counter, every line that its device has."""
        return cls(range(MAX_LINES))

    def set(self, number: int) -> None:
        """Add a line. Raises `ConfigError` for a number that no line can have."""
        if not 0 <= number < MAX_LINES:
            raise ConfigError(f"line {number}: lines have the numbers 0 to {MAX_LINES - 1}")
        self._numbers.add(number)

    def clear(self, number: int) -> None:
        """Take a line out; one that is not in it changes nothing."""
        self._numbers.discard(number)

    def is_set(self, number: int) -> bool:
        return number in self._numbers

    def set_all(self) -> None:
        self._numbers = set(range(MAX_LINES))

    def clear_all(self) -> None:
        self._numbers = set()

    @property
    def is_all(self) -> bool:
        return len(self._numbers) == MAX_LINES

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, number: object) -> bool:
        return number in self._numbers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lines) and self._numbers == other._numbers

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __str__(self) -> str:
        """The shortest text that `parse` turns into this set."""
        ranges: list[list[int]] = []
        for number in self:
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)

    def __repr__(self) -> str:
        return f"Lines({str(self)!r})"
