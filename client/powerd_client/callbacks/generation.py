"""Prefill and decode of Hugging Face's ``generate``: ``watch_generate(model, meter)``.

A generation loop asks its model's ``prepare_inputs_for_generation`` for the input of each forward pass. There the phase
of one step ends and that of the next begins: ``prefill`` up to the first new token, then a ``decode`` for each further
one, the choice of the token included. A forward hook would be compiled with the model; this is not.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import torch

from powerd_client.energies.phase import Attribute, Phase
from powerd_client.host.log import tell
from powerd_client.meter import Meter
from powerd_client.signals.pairing import MODEL_BY_CLASS, TOKENS
from powerd_client.training.torch_hooks import class_and_size
from powerd_core.errors import ConfigError

_PREPARE = "prepare_inputs_for_generation"
_ASSISTED = ("assistant_model", "assistant_early_exit", "prompt_lookup_num_tokens")
"""Options with which a step checks several tokens that were proposed."""


def watch_generate(model: Any, meter: Meter, /, **attributes: Attribute) -> GenerationWatch:
    """Mark ``prefill`` and ``decode`` in each ``model.generate(...)`` from now on, until `GenerationWatch.remove`.

    Their ``batch_size`` is the number of sequences at once, those of ``num_return_sequences`` and of beams counted.
    ``tokens`` of a prefill are those of the prompts, without padding where there is an attention mask; those of a
    decode the sequences that have not ended. A GPU is not waited for: there a sequence counts a few steps longer.
    Steps that check several proposed tokens say none. Raises `ConfigError` for what cannot generate, and nothing into
    ``generate``.
    """
    model = getattr(model, "_orig_mod", model)  # what `torch.compile` wraps
    owners = [owner for owner in type(model).__mro__ if "generate" in vars(owner)]
    if not owners or not hasattr(model, _PREPARE):
        raise ConfigError(f"watch_generate() wants a model of Hugging Face that generates, not {type(model).__name__}")
    for owner in owners:  # one may call that of the next
        _mark_calls(owner)
    if "model" not in attributes:
        attributes = {**attributes, MODEL_BY_CLASS: class_and_size(model)}
    watch = _watches[model] = GenerationWatch(meter, attributes)
    return watch


_watches: WeakKeyDictionary[Any, GenerationWatch] = WeakKeyDictionary()
"""By model. A copy of a model is not watched."""


@functools.cache
def _mark_calls(owner: type) -> None:
    """Make ``generate`` of a class ask whether its model is watched."""
    generate = owner.generate  # type: ignore[attr-defined]

    @functools.wraps(generate)
    def marked(self: Any, *arguments: Any, **options: Any) -> Any:
        watch = _watches.get(self)
        if watch is None or watch.is_removed:
            return generate(self, *arguments, **options)
        with watch.call(self, options):
            return generate(self, *arguments, **options)

    owner.generate = marked  # type: ignore[attr-defined]


class GenerationWatch:
    """Marks the generations of one model."""

    def __init__(self, meter: Meter, attributes: Mapping[str, Attribute]) -> None:
        self.is_removed = False
        self._meter, self._attributes = meter, attributes
        self._lock = threading.Lock()
        self._prepare: Callable[..., Any] = dict
        """The model's own, and whether that is of the object, not of its class."""
        self._had_own = False
        self._calls: dict[int, list[_Call]] = {}
        """By thread, those within each other: a generation may call ``generate`` of its own model."""

    def remove(self) -> None:
        """Mark no further call."""
        self.is_removed = True

    @contextmanager
    def call(self, model: Any, options: Mapping[str, Any]) -> Iterator[None]:
        """One call of ``generate``."""
        with self._lock:
            if not self._calls:
                self._had_own = _PREPARE in vars(model)
                self._prepare = getattr(model, _PREPARE)
                setattr(model, _PREPARE, self._marked(self._prepare))
            calls = self._calls.setdefault(get_ident(), [])
        if calls:
            calls[-1].end()
        calls.append(call := _Call(self._meter, self._attributes, model, options))
        try:
            with call.watching_encoder(model):
                yield
        except BaseException:
            call.end(is_cut=True)
            raise
        finally:
            call.end()
            calls.pop()
            with self._lock:
                if not calls:
                    del self._calls[get_ident()]
                if not self._calls:
                    self._unhook(model)

    def _unhook(self, model: Any) -> None:
        if self._had_own:
            setattr(model, _PREPARE, self._prepare)
        else:
            delattr(model, _PREPARE)

    def _marked(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        """In place of the model's own, for the time of a generation; with its signature, which ``generate`` reads."""

        @functools.wraps(prepare)
        def prepared(*arguments: Any, **options: Any) -> Any:
            inputs = prepare(*arguments, **options)
            if calls := self._calls.get(get_ident()):
                calls[-1].begin_pass(inputs, is_prompt=bool(options.get("is_first_iteration")))
            return inputs

        return prepared


class _Call:
    """The phases of one call of ``generate``: at most one is open."""

    def __init__(
        self, meter: Meter, attributes: Mapping[str, Attribute], model: Any, options: Mapping[str, Any]
    ) -> None:
        self._meter, self._attributes = meter, attributes
        config = options.get("generation_config") or getattr(model, "generation_config", None)
        settings = {**(vars(config) if config is not None else {}), **options}
        self._is_assisted = any(settings.get(name) for name in _ASSISTED)
        self._unended = _Unended(settings.get("eos_token_id"), settings.get("pad_token_id"))
        self._open: Phase | None = None
        self._passes = 0
        self._is_encoded = False
        """Whether the prefill has begun with the encoder, before the first pass."""

    def begin_pass(self, inputs: Mapping[str, Any], *, is_prompt: bool) -> None:
        """A forward pass begins; whether it is known to be of the prompt."""
        self._passes += 1
        if self._passes == 1 and self._is_encoded:
            return
        try:
            self._begin(*self._kind_of(inputs, is_prompt=is_prompt))
        except Exception as error:  # noqa: BLE001  (inputs of any model: the generation goes on)
            self.end()
            tell(f"a step of generate() is not marked: {type(error).__name__}: {error}")

    def _kind_of(self, inputs: Mapping[str, Any], *, is_prompt: bool) -> tuple[str, int, int]:
        """Name, sequences and tokens of a pass."""
        ids = _first_of(inputs, "input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")
        rows, length = int(ids.shape[0]), int(ids.shape[1])
        has_cache = _first_of(inputs, "past_key_values", "cache") is not None
        # A long prompt may come in several pieces; a pass without a cache sees all of a sequence each time.
        is_several = self._passes > 1 and has_cache and length > 1
        if is_several and self._is_assisted:
            return "decode", rows, 0
        if self._passes == 1 or is_several or is_prompt:
            return "prefill", rows, _prompt_tokens(ids, inputs.get("attention_mask"))
        return "decode", rows, self._unended.count(ids)

    @contextmanager
    def watching_encoder(self, model: Any) -> Iterator[None]:
        """The prompts of an encoder-decoder are what its encoder gets."""
        if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            yield
            return
        hook = model.get_encoder().register_forward_pre_hook(self._encode, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    def _encode(self, _module: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        if self._passes or self._is_encoded:
            return
        ids = options.get("input_ids", arguments[0] if arguments else None)
        inputs = _first_of(options, "inputs_embeds", "input_features", "input_values") if ids is None else ids
        if inputs is not None:
            tokens = 0 if ids is None else _prompt_tokens(ids, options.get("attention_mask"))
            self._begin("prefill", int(inputs.shape[0]), tokens)
            self._is_encoded = True

    def _begin(self, name: str, rows: int, tokens: int) -> None:
        self.end()
        counted = {TOKENS: tokens} if tokens else {}
        phase = self._meter.phase(name, **{**self._attributes, "batch_size": rows, **counted})
        phase.__enter__()
        self._open = phase

    def end(self, *, is_cut: bool = False) -> None:
        """End the phase that is open, if any."""
        phase, self._open = self._open, None
        if phase is not None and is_cut:
            self._meter._cut(phase)
        elif phase is not None:
            phase.__exit__()


def _first_of(inputs: Mapping[str, Any], *names: str) -> Any:
    return next((value for name in names if (value := inputs.get(name)) is not None), None)


def _prompt_tokens(ids: Any, mask: Any) -> int:
    """The tokens of an input [rows, length], or [rows, length, width]. This waits for the GPU, once in a generation."""
    rows, length = int(ids.shape[0]), int(ids.shape[1])
    if isinstance(mask, torch.Tensor) and mask.ndim == 2 and mask.shape[0] == rows and mask.shape[1] >= length:
        return int(mask[:, -length:].sum())
    return rows * length


_LOOK_EVERY = 4
"""Steps on a GPU: to count takes the host 0.1 ms."""


class _Unended:
    """Counts the sequences that have not ended: what follows the token that ends one is that again, or padding."""

    def __init__(self, eos: Any, pad: Any) -> None:
        """``eos`` is one token or several; None where only the length ends a sequence."""
        eos, pad = (x.tolist() if isinstance(x, torch.Tensor) else x for x in (eos, pad))
        ends = [*(eos if isinstance(eos, list | tuple) else [eos]), pad]
        self._ends = [] if eos is None else [int(end) for end in ends if end is not None]
        self._tensor: torch.Tensor | None = None
        self._on_way: list[tuple[torch.Tensor, Callable[[], bool]]] = []
        """Counts that a GPU is still working out, and whether each has come."""
        self._known = -1
        self._steps = 0

    def count(self, ids: torch.Tensor) -> int:
        """Of the latest tokens [rows, length]; of a GPU the latest count that has come."""
        rows = int(ids.shape[0])
        if rows == 1 or not self._ends or ids.is_floating_point():
            return rows
        self._steps += 1
        if ids.is_cuda and self._steps % _LOOK_EVERY:
            return self.latest(rows)
        if self._tensor is None:
            self._tensor = torch.tensor(self._ends, device=ids.device)
        unended = torch.isin(ids[:, -1], self._tensor, invert=True).sum()
        if not unended.is_cuda:
            return int(unended)
        host = torch.empty((), dtype=unended.dtype, pin_memory=True)
        host.copy_(unended, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        self._on_way.append((host, done.query))
        return self.latest(rows)

    def latest(self, rows: int) -> int:
        """The latest count that has come from a GPU; of ``rows`` sequences all have begun."""
        while self._on_way and self._on_way[0][1]():
            self._known = int(self._on_way.pop(0)[0])
        return rows if self._known < 0 else self._known
