"""Progress on the error stream, for what takes longer than two seconds."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class LateProgress:
    """A progress bar that shows itself only after ``delay_s``, and only on a terminal: a log would get an empty line of
    it. Call it with a share and a text."""

    def __init__(self, console: Console, delay_s: float = 2.0) -> None:
        self._console, self._delay_s = console, delay_s
        self._begin_s = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> LateProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, share: float, text: str) -> None:
        """Show that ``share`` (0 to 1) is done and ``text`` is next."""
        if self._bar is None:
            if time.monotonic() - self._begin_s < self._delay_s or not self._console.is_terminal:
                return
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task(text, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=share, description=text)
