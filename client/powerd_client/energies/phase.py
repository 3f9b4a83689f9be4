"""What a training script marks by itself: phases, the waits for data of a loader, and baselines."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

from powerd_client.journals.marks import MarkWriter
from powerd_core.errors import ConfigError

if TYPE_CHECKING:
    from powerd_client.energies.live_energy import Energy

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Attribute = str | int | float | bool | None

BASELINE = "baseline"
"""The name of the phases in which the power of a machine that does nothing for us is measured."""
MAGNIFY, MAGNIFIED, HEAD_START = "magnify", "magnified ", "head start"
"""The name of the phases in which other phases are repeated (`Meter.magnify`), what the names of these begin with
inside, and the name of those that put the host ahead of the GPU there."""
RESULT = "result"
"""The name of the events that say how good what was trained is (`Meter.result`)."""
WATCH = "watch: "
"""What the messages begin with that say what of a training `Meter.watch` could not mark: every table tells them."""
WHOLE = "run"
"""The name of the phase that lies over a whole command, in a recording in which nothing else is marked."""
MOST_BASELINE_S = 3600.0


class PhaseCodes(NamedTuple):
    """The codes of a phase kind's marks: its begin, its end, and the end of one that an error ended."""

    begin: int
    end: int
    cut: int


class Phase:
    """A kind of phase: enter and leave it with ``with``, or decorate a function with it.

    It holds no state, so it may nest in itself.
    """

    __slots__ = ("_ask", "_begin", "_end", "_later", "_mark")

    def __init__(self, mark: Callable[[int], int | None], kind: int, ask: Callable[..., Energy]) -> None:
        """``ask`` is given the number of a mark, a device and the seconds to wait, and tells the energy of the phase
        that the mark has begun."""
        self._mark: Callable[[int], int | None] = self._first
        self._later = mark
        self._begin = kind
        self._end = ~kind
        self._ask = ask

    @property
    def is_taken(self) -> bool:
        """Whether it was entered, decorates a function or is marked by its codes: else a ``with`` was forgotten."""
        return self._mark is self._later

    def taken(self) -> Phase:
        """The same phase, for whoever marks by its codes."""
        self._mark = self._later
        return self

    def _first(self, code: int) -> int | None:
        return self.taken()._mark(code)

    def __enter__(self) -> Span:
        return Span(self._mark(self._begin), self._ask)

    def __exit__(self, *_: object) -> None:
        self._mark(self._end)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Raises `ConfigError` for a coroutine function or generator: its call returns before it has run."""
        returns_early = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(is_kind(function) for is_kind in returns_early):
            raise ConfigError(f"{function.__qualname__} is a generator or a coroutine function: use `with` inside it")
        self.taken()

        @functools.wraps(function)
        def marked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return marked


class Span:
    """One phase that was entered: what ``with meter.phase("step") as p`` gives."""

    __slots__ = ("_ask", "_number")

    def __init__(self, number: int | None, ask: Callable[..., Energy]) -> None:
        self._number = number
        self._ask = ask

    def energy(self, device: str | None = None, *, wait_s: float = 0.0) -> Energy:
        """Its joules so far: all of them when it has ended and its last readings have arrived, for which ``wait_s``
        waits at most. Without ``device`` that of the device that is known best. Raises nothing: what has no number says
        why.
        """
        return self._ask(self._number, device, wait_s)


class Loader(Generic[T]):
    """An iterable whose every wait for an item is a phase. Everything else is the iterable's own.

    ``phases`` is the wait's, or one that lies around the wait and what the loop does with the item, and the wait's;
    ``cut`` ends a phase, and what is open inside it, as cut off.
    """

    def __init__(self, loader: Iterable[T], phases: Sequence[Phase], cut: Callable[[Phase], None]) -> None:
        self._loader, self._phases, self._cut = loader, phases, cut

    def __iter__(self) -> Iterator[T]:
        """Yields the items. Making the iterator (which starts a loader's workers) belongs to the first wait."""
        length, count = reliable_length(self._loader), 0
        items: Iterator[T] | None = None
        while True:
            # Behind the last one that is due, a call only lets the loader find its end.
            phases = self._phases if length is None or count < length else ()
            for phase in phases:
                phase.__enter__()
            item = _END
            try:
                items = iter(self._loader) if items is None else items
                item = next(items, _END)
            finally:
                if item is _END and phases:
                    self._cut(phases[0])
            if item is _END:
                return
            count += 1
            for phase in phases[-1:]:
                phase.__exit__()
            try:
                yield item
            finally:  # also for ``break``, and for an exception in the loop's body
                for phase in phases[:-1]:
                    phase.__exit__()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._loader, name)


_END: Any = object()


def reliable_length(loader: object) -> int | None:
    """How many items a loader will give, None where that cannot be relied on."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(getattr(loader, "dataset", None), torch_data.IterableDataset):
        return None  # its length is a guess, and asking for it makes the loader check it
    try:
        return len(loader)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  (whatever its sampler or dataset says: the training did not ask)
        return None


def check_seconds(seconds: float) -> float:
    """``seconds`` when it is a length that a baseline may have, else `ConfigError`."""
    if not 0 < seconds <= MOST_BASELINE_S:
        raise ConfigError(f"a baseline of {seconds:g} s: give more than 0 and at most {MOST_BASELINE_S:g} seconds")
    return seconds


def mark_whole(journal: Path, begin_ns: int, end_ns: int) -> None:
    """Mark the time between as the phase `WHOLE` where nobody has marked a phase but baselines. Raises `OSError`."""
    for path in journal.glob("marks-*.names"):
        documents = [json.loads(line) for line in path.read_bytes().splitlines() if line.endswith(b"}")]
        if any("kind" in document and document.get("name", BASELINE) != BASELINE for document in documents):
            return
    with contextlib.closing(MarkWriter(journal)) as writer:
        kind = writer.kind(WHOLE, {}, "host")
        writer.mark_at(kind, begin_ns)
        writer.mark_at(~kind, end_ns)


def mark_baseline(journal: Path, seconds: float) -> None:
    """Mark a baseline in the recording of that journal, and wait as long. Raises `OSError`."""
    with contextlib.closing(MarkWriter(journal)) as writer:
        kind = writer.kind(BASELINE, {}, "host")
        writer.mark(kind)
        try:
            time.sleep(seconds)
        finally:
            writer.mark(~kind)
