"""`Meter.magnify`: forward, backward and update, each repeated alone for so long that a slow sensor sees its power.

The repetitions compute what a step of the training computes, and nothing of it stays: `unchanged` puts everything back
that a step changes. The analytics compare them with the ordinary phases of the same name
(`powerd_analytics.energy.magnified`).
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from powerd_client.energies.phase import HEAD_START, MAGNIFIED, MAGNIFY, Phase
from powerd_client.host.hostclock import now_ns
from powerd_client.training.torch_hooks import unwrapped_optimizer
from powerd_core.errors import ConfigError

_cuda: Any = torch.cuda
"""Some of its functions have no types."""
STRETCH_S = (0.35, 0.65)
"""Least and greatest length of a stretch. Lengths by chance keep stretches from being in step with a sensor."""
AHEAD = 2
"""Repetitions that the host queues before it waits for the GPU."""
JUDGED_S = 0.1
"""Time after which it is looked at whether the host is fast enough, as it begins with no lead."""
LEAD, MOST_AT_THE_START = 3, 16
"""Backward passes that the host is to be ahead of the GPU by after a head start, and of how many a head start is at
most: of a training for which the host is fast enough the GPU takes longer for them than the host does."""
MOST_LONGER = 2.0
"""Times the length of a stretch that it may take with its head starts, which are no repetitions."""
MOST_S = 60.0


def check_magnify(model: object, optimizers: Sequence[object], loss: object, seconds: float) -> None:
    """Raises `ConfigError` for arguments that `Meter.magnify` does not take."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"magnify() wants a torch.nn.Module first, not {type(model).__name__}")
    if not callable(loss):
        raise ConfigError("magnify() wants loss=, a function without arguments that runs forward and returns the loss")
    if not 0 < seconds <= MOST_S:
        raise ConfigError(
            f"magnify(seconds={seconds:g}): give more than 0 and at most {MOST_S:g} seconds for each phase"
        )
    for optimizer in optimizers:
        unwrapped_optimizer(optimizer, "magnify")


def reason_against() -> str:
    """Why phases cannot be repeated here, empty where they can."""
    has_others = torch.distributed.is_available() and torch.distributed.is_initialized()
    if has_others and torch.distributed.get_world_size() > 1:
        # Each would repeat as often as it can, and wait for others that have come to their end.
        return "this training has several processes; magnify one that runs alone"
    return ""


def magnify(
    phase: Callable[[str], Phase], model: nn.Module, optimizers: Sequence[Any], loss: Callable[[], Any], seconds: float
) -> None:
    """Repeat each phase for about ``seconds``, in stretches in random order. Raises what the training's code raises;
    everything is back in its place then too."""
    inner = [unwrapped_optimizer(optimizer, "magnify") for optimizer in optimizers]
    is_on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    chance = random.Random()  # of its own: the training's generators are left alone

    def nothing() -> None:
        pass

    def repeat(
        name: str, once: Callable[[], object], before_each: Callable[[], object], head_start: Callable[[], object]
    ) -> None:
        length_s = chance.uniform(*STRETCH_S)
        _repeat(phase(MAGNIFIED + name), once, before_each, head_start if is_on_gpu else None, length_s)

    def forward() -> None:
        repeat("forward", loss, nothing, backwards)

    def backward() -> None:
        result = loss()
        repeat("backward", lambda: result.backward(retain_graph=True), forget_gradients, nothing)

    def update() -> None:
        loss().backward()
        repeat("update", lambda: [optimizer.step() for optimizer in inner], nothing, backwards)

    def backwards() -> None:
        result, queued = loss(), deque[Any]()
        with phase(HEAD_START):
            for _ in range(MOST_AT_THE_START):
                forget_gradients()
                result.backward(retain_graph=True)
                queued.append(_recorded())
                while queued and queued[0].query():
                    queued.popleft()
                if len(queued) >= LEAD:
                    break

    kinds, stretches = [forward, backward, *([update] if inner else [])], list[Callable[[], None]]()
    for _ in range(max(1, round(2 * seconds))):
        turn = chance.sample(kinds, len(kinds))
        # Two of a kind in a row would be one, of which the host is late in the middle.
        stretches += turn[::-1] if stretches[-1:] == turn[:1] else turn
    with phase(MAGNIFY), unchanged(model, inner) as parameters:

        def forget_gradients() -> None:
            for parameter in parameters:
                parameter.grad = None

        for stretch in stretches:
            forget_gradients()
            stretch()


def _repeat(
    phase: Phase,
    once: Callable[[], object],
    before_each: Callable[[], object],
    head_start: Callable[[], object] | None,
    length_s: float,
) -> None:
    """Call ``once`` for so long, at least once, each call a phase. On a GPU the host stays a little ahead, as in a
    training; where it is too slow for that, it gets a ``head_start`` whenever the GPU has nearly caught up, so that no
    repetition behind it waits."""
    begin_ns, queued, is_slow = now_ns(), deque[Any](), False
    end_ns = begin_ns + round(length_s * 1e9)
    while True:
        before_each()
        with phase:
            once()
        if now_ns() >= end_ns:
            break
        if head_start is not None:
            queued.append(_recorded())
            if len(queued) > AHEAD:
                oldest = queued.popleft()
                if oldest.query() and now_ns() - begin_ns > JUDGED_S * 1e9:
                    is_slow = True
                    queued.clear()
                    late_ns = now_ns()
                    head_start()
                    end_ns = min(end_ns + now_ns() - late_ns, begin_ns + round(MOST_LONGER * length_s * 1e9))
                elif not is_slow:
                    oldest.synchronize()
    if head_start is not None:
        torch.cuda.synchronize()


def _recorded() -> Any:
    """An event that comes when the GPU has done all that is queued now."""
    event = _cuda.Event()
    event.record()
    return event


@contextlib.contextmanager
def unchanged(model: nn.Module, optimizers: Sequence[Any]) -> Iterator[list[Tensor]]:
    """What runs inside leaves nothing behind, whatever happens: afterwards parameters, buffers (such as batch norm's
    statistics), gradients, the optimizers and all generators (torch's on the CPU and on every GPU, numpy's, Python's)
    are as they were, to the last bit. Yields the parameters.

    Inside, learning rates are 0, so that updates compute on the same numbers all the time; the optimizers have copies
    of their state. It takes memory for another set of parameters, buffers, gradients and optimizer state.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    every = {id(p): p for p in (*model.parameters(), *(p for group in groups for p in group["params"]))}
    parameters = list(every.values())
    gradients = [parameter.grad for parameter in parameters]
    buffers = [
        (module._buffers, name, buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    tensors = [*parameters, *(buffer for *_, buffer in buffers)]
    copies = [tensor.detach().clone() for tensor in tensors]
    settings = [dict(group) for group in groups]
    states = [optimizer.state for optimizer in optimizers]
    restore_generators = _keep_generators()
    try:
        for optimizer in optimizers:
            own = ((parameter, copy.deepcopy(state)) for parameter, state in optimizer.state.items())
            optimizer.state = defaultdict(dict, own)
        for group in groups:
            if "lr" in group:
                group["lr"] = group["lr"] * 0
        yield parameters
    finally:
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.state = state
        for group, setting in zip(groups, settings, strict=True):
            group.clear()
            group.update(setting)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for own_buffers, name, buffer in buffers:
            own_buffers[name] = buffer
        with torch.no_grad():
            for tensor, copied in zip(tensors, copies, strict=True):
                tensor.copy_(copied)
        restore_generators()


def _keep_generators() -> Callable[[], None]:
    """What sets all generators that a training may draw from back to how they are now."""
    python, torch_cpu = random.getstate(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if _cuda.is_initialized() else []
    numpy: Any = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None

    def restore() -> None:
        random.setstate(python)
        torch.set_rng_state(torch_cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        if numpy is not None:
            numpy.random.set_state(numpy_state)

    return restore
