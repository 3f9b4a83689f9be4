"""What commands show on a terminal: progress of what takes long, and tables whose figures stay whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from textwrap import fill
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console

from powerd_core.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress

NO_EDGE = 100_000
"""A width for measuring what does not fold."""


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


def hanging_indent(line: str, width: int) -> str:
    """A line folded at the width, its further lines indented below the first; words stay whole."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def print_lines(lines: Iterable[str]) -> None:
    """Lines of text that name what others named, folded on a terminal and whole in a file or a pipe."""
    console = Console()
    for line in map(printable, lines):
        print(hanging_indent(line, console.width) if console.is_terminal else line)
