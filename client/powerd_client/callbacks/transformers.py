"""Phases in Hugging Face's Trainer: ``Trainer(..., callbacks=[PowerdCallback(meter)])``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import transformers  # type: ignore[import-not-found]

from powerd_client.callbacks.generation import watch_generate
from powerd_client.energies.phase import Attribute
from powerd_client.meter import Meter
from powerd_client.training.torch_hooks import Watch, watch

__all__ = ["PowerdCallback", "watch_generate"]

_SPEED = ("_runtime", "_samples_per_second", "_steps_per_second", "_preparation_time", "_compilation_time")
"""How the metrics of an evaluation end that say how fast it was."""


class PowerdCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Marks ``data``, ``forward``, ``backward``, ``update`` and ``evaluation`` while a Trainer trains; the run has an
    ``iteration`` for each batch.

    A Trainer has no event for forward and backward: they are marked by PyTorch's hooks, as with `Meter.watch`, on the
    model without its wrapper (a Trainer does not show that to callbacks, so DDP's communication is not marked). It
    fetches the batches of all accumulated steps before the first of them. The metrics of each evaluation become a
    `Meter.result` under their names without ``eval_``. ``layers`` and ``attributes`` are as for `Meter.watch`;
    without ``batch_size`` it is that of the Trainer's arguments. With ``include_num_input_tokens_seen`` each batch has
    its tokens, counted as the Trainer counts them. With ``optimise_power``, a metric as ``"edp"`` or the
    arguments of `Meter.optimise_power`, the power cap is chosen while it trains, and held until ``Trainer.train``
    returns or raises. Raises `ConfigError` for what nobody can choose by.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        layers: bool = False,
        optimise_power: str | Mapping[str, Any] | None = None,
        **attributes: Attribute,
    ) -> None:
        self._meter, self._wish = meter, optimise_power
        if optimise_power is not None:
            meter._chooser_of(optimise_power)  # what is wrong is said at once
        _patch_trainer()
        self._layers = layers
        self._attributes = attributes
        self._watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_train_end()
        # The Trainer's own search for a batch size that fits the memory leaves what it found in its state.
        batch_size = getattr(state, "train_batch_size", None) or getattr(args, "train_batch_size", None)
        attributes = ({"batch_size": batch_size} if isinstance(batch_size, int) else {}) | self._attributes
        marks = self._meter._marks_of_torch()
        optimizers = [kwargs["optimizer"]] if kwargs.get("optimizer") is not None else []
        self._watch = watch(
            marks,
            kwargs["model"],
            *optimizers,
            layers=self._layers,
            communication=False,
            attributes=attributes,
            tokens=_token_counter(args, kwargs["model"]),
        )
        if self._wish is not None:
            self._meter._begin_choice(self._wish)
            self._watch.on_remove(self._meter._end_choice)
        loader = kwargs.get("train_dataloader")
        if loader is None or marks is None:
            return
        # A Trainer keeps its loader to itself, and ``iter`` looks at the type: the loader becomes one of a subclass.
        # Accelerate's loaders say that they are of another class than they are: theirs is a property.
        kind, meter = type(loader), self._meter
        become = object.__dict__["__class__"].__set__

        def marked(self: Any) -> Iterator[Any]:
            return iter(meter.data(_Inner(self, kind), **attributes))

        try:
            become(loader, type(kind.__name__, (kind,), {"__iter__": marked, "__module__": kind.__module__}))
        except TypeError as error:
            marks.note(f"waits for data are not marked: {error}")
        else:
            self._watch.on_remove(lambda: become(loader, kind))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A Trainer's event behind each evaluation: its metrics are a result, but for how long it took."""
        metrics = kwargs.get("metrics") or {}
        results = {name.removeprefix("eval_"): value for name, value in metrics.items() if not name.endswith(_SPEED)}
        if results:
            self._meter.result(**results)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._watch is not None:
            self._watch.remove()


def _token_counter(args: Any, model: Any) -> Callable[..., int] | None:
    """What counts the tokens of a batch as ``num_input_tokens_seen`` does; None where a Trainer does not count."""
    mode = getattr(args, "include_num_input_tokens_seen", False)
    if mode in (False, None, "no"):
        return None
    name = getattr(model, "main_input_name", "input_ids")

    def count(*_: Any, **inputs: Any) -> int:
        mask = inputs.get("attention_mask") if mode == "non_padding" else None
        if mask is not None:
            return int(mask.sum())  # waits for a GPU, as the Trainer then does for each batch
        return int(inputs[name].numel()) if name in inputs else 0

    return count


@functools.cache
def _patch_trainer() -> None:
    """A Trainer has no event for a training that raises: what its callbacks began ends with ``train``."""
    trainer: Any = transformers.Trainer
    train = trainer.train

    @functools.wraps(train)
    def ended(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return train(self, *arguments, **options)
        finally:
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, PowerdCallback):
                    callback.on_train_end()

    trainer.train = ended


class _Inner:
    """A loader as its own type iterates over it."""

    def __init__(self, loader: Any, kind: type) -> None:
        self._loader, self._kind = loader, kind
        self.dataset = getattr(loader, "dataset", None)

    def __iter__(self) -> Iterator[Any]:
        items: Iterator[Any] = self._kind.__iter__(self._loader)  # type: ignore[attr-defined]
        return items

    def __len__(self) -> int:
        return len(self._loader)
