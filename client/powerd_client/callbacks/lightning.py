"""Phases in Lightning: ``Trainer(callbacks=[PowerdCallback(meter)])``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

try:
    import lightning.pytorch as pl  # type: ignore[import-not-found]
except ImportError:
    import pytorch_lightning as pl  # type: ignore[import-not-found]

from powerd_client.meter import Meter
from powerd_client.watch import Watch, watch
from powerd_client.watchmarks import Kind, Marker

if TYPE_CHECKING:
    from powerd_client.phase import Attribute

_FETCH = ".train_dataloader_next"
"""How Lightning names, to its profilers, the wait for the next batch."""


class PowerdCallback(pl.Callback):  # type: ignore[misc]
    """Marks ``data``, ``forward``, ``backward``, ``update`` and ``evaluation`` while a Lightning trainer fits,
    validates, tests or predicts.

    Lightning runs forward and backward inside the optimizer's step. Forward is ``training_step`` (the loss included),
    from the batch's start to the first of zero_grad and backward; update is what the optimizer does after its closure.
    Under manual optimization, ``training_step`` is one phase ``iteration`` with backward and update inside.

    ``layers``, ``communication`` and ``attributes`` are as for `Meter.watch`.
    """

    def __init__(
        self, meter: Meter, *, layers: bool = False, communication: bool = True, **attributes: Attribute
    ) -> None:
        self._meter = meter
        self._layers = layers
        self._communication = communication
        self._attributes = attributes
        self._watch: Watch | None = None
        self._marker: Marker | None = None
        self._open: Kind | None = None
        self._undo: list[Callable[[], None]] = []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning's hook. Its own profiler hears of every wait for data; so do we."""
        if self._meter._writer is None:
            return
        self._marker = self._meter._marker = self._meter._marker or Marker(self._meter, self._meter._writer)
        if stage == "fit":
            self._listen(trainer.profiler)

    def _listen(self, profiler: Any) -> None:
        data = self._meter.phase("data", **self._attributes)
        start, stop = profiler.start, profiler.stop

        def started(action_name: str) -> None:
            if action_name.endswith(_FETCH):
                data.__enter__()
            start(action_name)

        def stopped(action_name: str) -> None:
            stop(action_name)
            if action_name.endswith(_FETCH):
                if isinstance(sys.exc_info()[1], StopIteration):
                    self._meter._cut(data)
                else:
                    data.__exit__()

        profiler.start, profiler.stop = started, stopped

        def restore() -> None:
            profiler.start, profiler.stop = start, stop

        self._undo.append(restore)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning's hook."""
        self._end()
        while self._undo:
            self._undo.pop()()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's hook: optimizers and the model's wrapper are there now."""
        self._watch = watch(
            self._meter,
            trainer.strategy.model,
            *trainer.optimizers,
            layers=self._layers,
            loader=None,
            communication=self._communication,
            attributes=self._attributes,
            passes=False,
        )

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's hook."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Lightning's hook: what is open is cut."""
        self._close(failed=True)
        self._end()

    def _end(self) -> None:
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def _begin(self, name: str, *, trains: bool) -> None:
        if self._marker is None:
            return
        self._close()
        self._open = self._marker.kind(name, self._attributes)
        self._marker.forwards += trains
        self._marker.begin(self._open)

    def _close(self, *, failed: bool = False) -> None:
        if self._open is not None and self._marker is not None:
            self._marker.mark(self._open.cut if failed else self._open.end)
        self._open = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Lightning's hook."""
        self._begin("forward" if pl_module.automatic_optimization else "iteration", trains=True)

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Lightning's hook, between forward and backward."""
        if pl_module.automatic_optimization:
            self._close()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Lightning's hook."""
        if pl_module.automatic_optimization:
            self._close()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Lightning's hook."""
        self._close()

    def _evaluation_begins(self, *_: Any, **__: Any) -> None:
        self._begin("evaluation", trains=False)

    def _evaluation_ends(self, *_: Any, **__: Any) -> None:
        self._close()

    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = _evaluation_begins
    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _evaluation_ends
