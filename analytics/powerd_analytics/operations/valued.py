"""The mode that counts, with values: slower, and only for models that ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from powerd_analytics.operations.counts import ExecutedCount
from powerd_analytics.operations.executed import BACKWARD, FORWARD, ExecutedMode
from powerd_analytics.operations.paper import PaperHook
from powerd_analytics.operations.stand_in import StandIn


class ValuedMode(ExecutedMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Counts as `ExecutedMode` does; what fails for want of values goes on with a `StandIn`."""

    def __init__(self, stand_in: StandIn, paper: PaperHook) -> None:
        super().__init__()
        self._stand_in = stand_in
        self._before: dict[tuple[str, str], tuple[int, ...]] | None = None
        """What had been counted when something was first assumed."""
        stand_in.where = self.place

        def at_first() -> None:
            self._before = {key: tuple(tally) for key, tally in self._tally.items()}
            paper.is_assumed = True

        stand_in.at_first = at_first

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        def go(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            return ExecutedMode.__torch_dispatch__(self, func, types, args, kwargs)

        with torch._C.DisableTorchFunction():
            return self._stand_in.run(func, args, kwargs or {}, go, lambda out: self.count_result(func, args, out))

    def counts(self, modules: Mapping[str, nn.Module], label: Callable[[str], str]) -> tuple[ExecutedCount, ...]:
        """As without values; a pass that went on after the first assumption rests on it."""
        before = self._before
        found = super().counts(modules, label)
        if before is None:
            return found
        changed = {key for key, tally in self._tally.items() if tuple(tally) != before.get(key, (0, 0, 0))}
        names = {label(name): name for name, _ in self._tally}
        return tuple(
            ExecutedCount(
                e.name, e.kind, e.forward, e.backward,
                tuple(p for p in (FORWARD, BACKWARD) if (names[e.name], p) in changed),
            )
            for e in found
        )  # fmt: skip
