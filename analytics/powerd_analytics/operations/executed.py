"""What torch runs in forward and backward, kernel by kernel, told apart by module."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from powerd_analytics.operations.by_shape import run_as_torch, run_shapes
from powerd_analytics.operations.counts import ExecutedCount, Work
from powerd_analytics.operations.did import Did, did_by
from powerd_analytics.operations.kernels import Effort
from powerd_analytics.operations.known import LARGEST, Key, Known, Traits, again, key_of, remembered, traits_of
from powerd_analytics.operations.record import Record
from powerd_analytics.operations.releases import is_autocast

FORWARD, BACKWARD = "forward", "backward"
TICK = 4096


class ExecutedMode(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """Counts every kernel dispatched inside it on the account of the module that it runs for.

    Forward: the innermost module that is being called. Backward: autograd numbers its nodes as forward makes them, and
    the numbers at which modules were entered and left are noted; the node that runs thus leads to its module.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.current_pass = FORWARD
        self.unknown: dict[tuple[str, str], int] = {}
        self.saw_autocast = False
        self._stack = [""]
        self._since: list[int] = [0]
        self._names: list[str] = [""]
        self._tally: dict[tuple[str, str], list[int]] = {}
        self._traits: dict[int, Traits] = {}
        self._known: dict[Key, Known] = {}
        self.ran = 0
        """Kernels, views among them."""
        self.needs_all_steps = False
        """Recurrent layers were shortened that cannot be."""
        self.failed_in: str | None = None
        """The module in which a kernel last failed, maybe for want of values."""
        self.tick: Callable[[], None] | None = None
        """Called every `TICK` kernels."""
        self.record: Record | None = None
        """Takes what runs in the place of the counts, while there is one."""
        self.kernels: dict[str, dict[str, None]] = {}
        """Counted kernels that ran for a module, by the module's name."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else the first kernel imports torch's compiler, only to be kept out of it: 0.5 s and 60 MB.
        return False

    def watch(self, name: str, module: nn.Module) -> None:
        """Hook a module, so that what runs in it counts for ``name``."""

        is_leaf = next(module.children(), None) is None

        def enter(_module: nn.Module, _args: Any) -> None:
            if is_leaf:  # has a row even where no kernel runs
                self._tally.setdefault((name, FORWARD), [0, 0, 0])
            self._stack.append(name)
            self._mark()

        def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
            self._stack.pop()
            self._mark()

        module.register_forward_pre_hook(enter, prepend=True)
        module.register_forward_hook(leave, always_call=True)

    def _mark(self) -> None:
        self.saw_autocast = self.saw_autocast or is_autocast()
        number = torch._C._autograd._get_sequence_nr()
        if self._since[-1] == number:
            self._names[-1] = self._stack[-1]
        else:
            self._since.append(number)
            self._names.append(self._stack[-1])

    def place(self) -> str:
        """The module that what runs now belongs to, by name."""
        # In backward a module is on the stack where a checkpoint computes it again.
        if self.current_pass == BACKWARD and len(self._stack) == 1:
            number = self.node_number()
            return self._names[bisect_right(self._since, number) - 1] if number is not None else ""
        return self._stack[-1]

    @staticmethod
    def node_number() -> int | None:
        """Of autograd's node that runs; None outside backward, and for what adds gradients to parameters."""
        node = torch._C._current_autograd_node()
        number: int | None = node._sequence_nr() if node is not None else None
        return number if number is not None and number < 2**63 else None

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs if kwargs is not None else {}
        self.ran += 1
        if not self.ran % TICK and self.tick is not None:
            self.tick()
        # Whatever asks a tensor for its shape in here would pass torch.device("meta") again: a third of the time.
        with torch._C.DisableTorchFunction():
            traits = self._traits.get(id(func))
            if traits is None:
                traits = self._traits[id(func)] = traits_of(func)
            if traits.is_view:
                try:
                    return run_as_torch(func, args, given)
                except Exception:
                    self.failed_in = self.place()
                    raise
            key = key_of(traits, args, given) if traits.is_remembered else None
            known = self._known.get(key) if key is not None else None
            if known is not None:
                if known.work is not None:
                    self._add(known.work)
                return again(known, args)
            try:
                out = run_shapes(func, args, given)
            except Exception:
                self.failed_in = self.place()
                raise
            did = None if traits.effort is Effort.NOTHING else did_by(func, traits.effort, args, out)
            if did is not None:
                self._add(did)
            if key is not None and (known := remembered(args, given, out, did)) is not None:
                if len(self._known) >= LARGEST:
                    self._known.clear()
                self._known[key] = known
        return out

    def count_result(self, func: Any, args: Sequence[Any], out: Any) -> None:
        """Count a kernel that ran elsewhere."""
        effort = traits_of(func).effort
        if effort is not Effort.NOTHING:
            self._add(did_by(func, effort, args, out))

    def _add(self, did: Did) -> None:
        if self.record is not None:
            self.record.add(did)
            return
        place = self.place()
        tally = self._tally.get((place, self.current_pass))
        if tally is None:
            tally = self._tally[place, self.current_pass] = [0, 0, 0]
        tally[0] += did.operations
        tally[1] += did.elementwise
        tally[2] += did.moved_bytes
        if did.is_shown:
            kernels = self.kernels.get(place)
            if kernels is None:
                kernels = self.kernels[place] = {}
            kernels[did.name] = None
            if did.unknown:
                key = place, did.unknown
                self.unknown[key] = self.unknown.get(key, 0) + 1

    def add_record(self, record: Record, place: str) -> None:
        """Count what was recorded for a module."""
        for (name, is_shown, unknown), (times, operations, elementwise, moved_bytes) in record.sums.items():
            tally = self._tally.setdefault((place, self.current_pass), [0, 0, 0])
            tally[0] += operations
            tally[1] += elementwise
            tally[2] += moved_bytes
            if is_shown:
                self.kernels.setdefault(place, {}).setdefault(name)
            if unknown:
                self.unknown[place, unknown] = self.unknown.get((place, unknown), 0) + times

    def counts(self, modules: Mapping[str, nn.Module], label: Callable[[str], str]) -> tuple[ExecutedCount, ...]:
        """What ran, by module in the order in which they first ran; ``label`` words a module's name."""
        names = list(dict.fromkeys([n for n, _ in self._tally]))
        found = []
        for name in names:
            work = {p: Work(*self._tally.get((name, p), (0, 0, 0))) for p in (FORWARD, BACKWARD)}
            found.append(ExecutedCount(label(name), type(modules[name]).__name__, work[FORWARD], work[BACKWARD]))
        return tuple(found)


class Told:
    """Says how far a mode is: in backward by the numbers of autograd's nodes, which run from the last to the first."""

    def __init__(self, mode: ExecutedMode, progress: Callable[[float, str], None]) -> None:
        self._mode, self._progress = mode, progress
        self._share = 0.0
        self._first = int(torch._C._autograd._get_sequence_nr())
        self._most = 0

    def __call__(self) -> None:
        mode = self._mode
        number = mode.node_number() if mode.current_pass == BACKWARD else None
        if number is not None:
            ahead = max(number - self._first, 0)
            self._most = max(self._most, ahead, 1)
            self._share = max(self._share, 1 - ahead / self._most)
        self._progress(self._share, f"{mode.current_pass}, {mode.ran:,} kernels")
