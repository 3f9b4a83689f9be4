"""What commands show on a terminal: progress of what takes long, and tables whose figures stay whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from textwrap import fill
from types import TracebackType
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table

from powerd_core.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress

NO_EDGE = 100_000
"""A width for measuring what does not fold."""
_HEADING, _WORD = 6, 12
"""Headings of figures are folded to the first width as far as the figures below them allow it, words to the second."""


class LateProgress:
    """A progress bar on the error stream that shows itself only after ``delay_s``, and only on a terminal: a log would
    get an empty line of it. Call it with a share (0 to 1) and what is next."""

    def __init__(self, console: Console | None = None, delay_s: float = 2.0) -> None:
        self._console = console or Console(stderr=True)
        self._due_s = time.monotonic() + delay_s
        self._bar: Progress | None = None

    def __enter__(self) -> LateProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, share: float, text: str) -> None:
        if self._bar is None:
            if time.monotonic() < self._due_s or not self._console.is_terminal:
                return
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task(text, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=share, description=text)

    def part(self, begin: float, end: float) -> Callable[[float, str], None]:
        """The same for work that is the stretch from ``begin`` to ``end`` of the whole."""
        return lambda share, text: self(begin + (end - begin) * share, text)


def hanging(line: str, width: int) -> str:
    """A line folded at the width, its further lines indented below the first; words stay whole."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def print_lines(lines: Iterable[str]) -> None:
    """Lines of text that name what others named, folded on a terminal and whole in a file or a pipe."""
    console = Console()
    for line in map(printable, lines):
        print(hanging(line, console.width) if console.is_terminal else line)


def print_unbroken(table: Table, console: Console) -> None:
    """Print a table whose right-justified columns are figures: a figure cut in two reads as another one.

    Where it does not fit, the space between columns goes first, then headings and text are folded; what is still too
    wide goes over the terminal's edge.
    """
    options = console.options.update(max_width=NO_EDGE)
    if Measurement.get(console, options, table).maximum > console.width:
        table.padding = (0, 0, 0, 0)
        needed = Measurement.get(console, options, table).minimum
        for column in table.columns:
            word = max(map(_longest_word, (column.header, *column.cells)))
            if column.justify == "right":
                heading = min(_longest_word(column.header), _HEADING)
                column.width = max([heading, *(cell_len(str(cell)) for cell in column.cells)])
                needed += column.width - word
            else:
                needed -= max(0, word - _WORD)
        if needed > console.width:
            table.width = needed  # not the console's: rich takes a dumb terminal to have 80 columns whatever is set
    console.print(table, crop=False)


def _longest_word(cell: RenderableType) -> int:
    return max(map(cell_len, str(cell).split()), default=0)
