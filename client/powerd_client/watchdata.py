"""The wait for the next batch as a phase: around any iterable, with or without the iteration that follows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from powerd_client.phase import Phase

T = TypeVar("T")


class Loader(Generic[T]):
    """An iterable whose every wait for an item is a phase. Everything else is the iterable's own."""

    def __init__(self, loader: Iterable[T], data: Phase, cut: Callable[[Phase], None], around: Phase | None) -> None:
        self._loader = loader
        self._data = data
        self._cut = cut
        self._around = around

    def __iter__(self) -> Iterator[T]:
        """Yields the items. Making the iterator (which starts a loader's workers) belongs to the first wait."""
        data, around, expected = self._data, self._around, length(self._loader)
        items: Iterator[T] | None = None
        count = 0
        while True:
            if count == expected:
                # Nothing is due: this call only lets the loader find its end.
                item = next(iter(self._loader) if items is None else items, _END)
                if item is _END:
                    return
                yield item
                continue
            if around is not None:
                around.__enter__()
            data.__enter__()
            try:
                items = iter(self._loader) if items is None else items
                item = next(items, _END)
            except BaseException:
                self._leave()
                raise
            if item is _END:
                self._leave()
                return
            data.__exit__()
            count += 1
            if around is None:
                yield item
                continue
            try:
                yield item
            except GeneratorExit:
                # ``break``, or an exception in the loop's body.
                around.__exit__()
                raise
            around.__exit__()

    def _leave(self) -> None:
        """No batch came: a wait that is cut, and so is the iteration that it was to begin."""
        self._cut(self._data)
        if self._around is not None:
            self._cut(self._around)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._loader, name)


_END: Any = object()


def length(loader: object) -> int | None:
    """How many items a loader will give, None where that cannot be relied on."""
    utilities = sys.modules.get("torch.utils.data")
    dataset = getattr(loader, "dataset", None)
    if utilities is not None and isinstance(dataset, utilities.IterableDataset):
        return None  # its length is a guess, and asking for it makes the loader check it
    try:
        return len(loader)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  (whatever its sampler or dataset says: the training did not ask)
        return None
