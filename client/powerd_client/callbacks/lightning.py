"""Phases in Lightning: ``Trainer(callbacks=[PowerdCallback(meter)])``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

try:
    import lightning.pytorch as pl  # type: ignore[import-not-found]
except ImportError:
    import pytorch_lightning as pl  # type: ignore[import-not-found]

from powerd_client.energies.phase import Attribute, PhaseCodes
from powerd_client.meter import Meter
from powerd_client.signals.pairing import MODEL_BY_CLASS
from powerd_client.training.torch_hooks import TorchMarks, Watch, class_and_size, watch, watch_networks

_FETCH = ".train_dataloader_next"
"""How Lightning names, to its profilers, the wait for the next batch."""


class PowerdCallback(pl.Callback):  # type: ignore[misc]
    """Marks ``data``, ``forward``, ``backward``, ``update`` and ``evaluation`` while a Lightning trainer fits,
    validates, tests or predicts.

    Lightning runs forward and backward inside the optimizer's step. Forward is ``training_step`` (the loss included),
    from the batch's start to the first of zero_grad and backward; update is what the optimizer does after its closure.
    Under manual optimization, ``training_step`` is one phase ``iteration`` with backward and update inside, and
    ``forward`` is the call of the module or of one of its networks (the modules right inside it with parameters; where
    there are several, each is a ``model`` by its name).

    The metrics that Lightning has after each validation and test become a `Meter.result` under the names by which they
    were logged, with the epoch.

    ``layers``, ``communication`` and ``attributes`` are as for `Meter.watch`. With ``optimise_power``, a metric as
    ``"edp"`` or the arguments of `Meter.optimise_power`, the power cap is chosen while it fits, and held to the end,
    whatever that is. Raises `ConfigError` for what nobody can choose by.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        layers: bool = False,
        communication: bool | None = None,
        optimise_power: str | Mapping[str, Any] | None = None,
        **attributes: Attribute,
    ) -> None:
        self._meter, self._wish = meter, optimise_power
        if optimise_power is not None:
            meter._chooser_of(optimise_power)  # what is wrong is said at once
        self._marks: TorchMarks | None = None
        self._options: dict[str, Any] = {"layers": layers, "communication": communication, "attributes": attributes}
        self._watch: Watch | None = None
        self._open: PhaseCodes | None = None
        self._restore: Callable[[], None] = lambda: None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning's hook. Its own profiler hears of every wait for data; so do we."""
        self._marks = self._meter._marks_of_torch()
        if self._marks is None or stage != "fit":
            return
        profiler, data = trainer.profiler, self._meter.phase("data", **self._options["attributes"])
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

        def restore() -> None:
            profiler.start, profiler.stop = start, stop

        profiler.start, profiler.stop, self._restore = started, stopped, restore

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.on_train_end()
        self._restore()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's hook: optimizers and the model's wrapper are there now."""
        optimizers = trainer.optimizers
        model = trainer.strategy.model
        self._watch = watch(self._marks, model, *optimizers, passes=False, nests_closures=False, **self._options)
        if self._wish is not None:
            self._meter._begin_choice(self._wish)
            self._watch.on_remove(self._meter._end_choice)
        if not pl_module.automatic_optimization:
            watch_networks(self._watch, pl_module, self._options["attributes"])

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Lightning's hook: what is open is cut."""
        self._close(failed=True)
        self.on_train_end()

    def on_train_end(self, *_: Any) -> None:
        if self._watch is not None:
            self._watch.remove()

    def _begin(self, name: str, **attributes: Attribute) -> None:
        if self._marks is not None:
            self._close()
            self._open = self._marks.codes(name, self._options["attributes"] | attributes)
            self._marks.begin(self._open)

    def _close(self, *, failed: bool = False) -> None:
        if self._open is not None and self._marks is not None:
            self._marks.mark(self._open.cut if failed else self._open.end)
        self._open = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._begin("forward" if pl_module.automatic_optimization else "iteration")

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Lightning's hook, between forward and backward."""
        if pl_module.automatic_optimization:
            self._close()

    on_before_backward = on_before_zero_grad

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Lightning's hook. No step is around an evaluation whose model would be its own: it says that itself."""
        is_named = "model" in self._options["attributes"]
        self._begin("evaluation", **({} if is_named else {MODEL_BY_CLASS: class_and_size(pl_module)}))

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self._close()

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = on_train_batch_end

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's hook behind an evaluation. The few batches that it tries before a training are none."""
        metrics = {} if trainer.sanity_checking else dict(trainer.callback_metrics)
        if metrics:
            self._meter.result(**{"epoch": trainer.current_epoch} | metrics)

    on_test_end = on_validation_end
