"""Phases in Hugging Face's Trainer: ``Trainer(..., callbacks=[PowerdCallback(meter)])``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback  # type: ignore[import-not-found]

from powerd_client.meter import Meter
from powerd_client.watch import Watch, watch

if TYPE_CHECKING:
    from powerd_client.phase import Attribute


class PowerdCallback(TrainerCallback):  # type: ignore[misc]
    """Marks ``data``, ``forward``, ``backward``, ``update`` and ``evaluation`` while a Trainer trains, and
    ``iteration`` around forward, backward and update.

    A Trainer has no event for forward and backward: they are marked by PyTorch's hooks, as with `Meter.watch`, on the
    model without its wrapper (a Trainer does not show that to callbacks, so DDP's communication is not marked). It
    fetches the batches of all accumulated steps before the first of them. ``layers`` and ``attributes`` are as for
    `Meter.watch`.
    """

    def __init__(self, meter: Meter, *, layers: bool = False, **attributes: Attribute) -> None:
        self._meter = meter
        self._layers = layers
        self._attributes = attributes
        self._iteration = meter.phase("iteration", **attributes)
        self._is_open = False
        self._watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Trainer's event."""
        self._end()
        optimizers = [kwargs["optimizer"]] if kwargs.get("optimizer") is not None else []
        self._watch = watch(
            self._meter,
            kwargs["model"],
            *optimizers,
            layers=self._layers,
            loader=None,
            communication=False,
            attributes=self._attributes,
        )
        loader = kwargs.get("train_dataloader")
        if loader is not None and self._meter._writer is not None:
            self._mark_waits(loader)

    def _mark_waits(self, loader: Any) -> None:
        """Let this loader's own iterator be waited for in ``data``.

        A Trainer keeps its loader to itself, and ``iter`` looks at the type: the loader becomes one of a subclass.
        """
        kind, meter, attributes = type(loader), self._meter, self._attributes

        def marked(self: Any) -> Iterator[Any]:
            return iter(meter.data(_Inner(self, kind), **attributes))

        # Accelerate's loaders say that they are of another class than they are: theirs is a property.
        become = object.__dict__["__class__"].__set__
        try:
            become(loader, type(kind.__name__, (kind,), {"__iter__": marked, "__module__": kind.__module__}))
        except TypeError as error:
            if meter._marker is not None:
                meter._marker.note(f"waits for data are not marked: {error}")
            return

        if self._watch is not None:
            self._watch.add(lambda: become(loader, kind))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Trainer's event: the first of the accumulated steps."""
        self._close()
        self._iteration.__enter__()
        self._is_open = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Trainer's event: the optimizer has made its step."""
        self._close()

    def _close(self) -> None:
        if self._is_open:
            self._iteration.__exit__()
            self._is_open = False

    def _end(self) -> None:
        self._close()
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Trainer's event."""
        self._end()


class _Inner:
    """A loader as its own type iterates over it."""

    def __init__(self, loader: Any, kind: type) -> None:
        self._loader, self._kind = loader, kind
        self.dataset = getattr(loader, "dataset", None)

    def __iter__(self) -> Iterator[Any]:
        made: Iterator[Any] = self._kind.__iter__(self._loader)  # type: ignore[attr-defined]
        return made

    def __len__(self) -> int:
        return len(self._loader)
