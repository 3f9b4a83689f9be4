"""What a model goes on with where torch has no answer by shapes: known values, and assumed ones that are listed.

A kernel that fails on ``meta`` is run again on the CPU where all values that it needs are known (`Values`), which is
exact. Where some are unknown, its result has the most places that it can have, or, where there is no most, those of
ones in the place of what is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.most_places import INDEXES, MASKS, MOST_PLACES
from powerd_analytics.operations.questions import Questions, Site, place
from powerd_analytics.operations.refusals import LackError, is_lack
from powerd_analytics.operations.shapes_elementwise import broadcast
from powerd_analytics.operations.shapes_layout import on_meta
from powerd_analytics.operations.values import Values, tensors_in, with_tensors

MOST_ONES = 2**22
"""Values of the arguments of a kernel that is run to learn what it makes."""
_MOST = "taken as {}: the most that there can be"
_ERRORS = (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError)

_DEPENDS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
"""Of kernels whose result has a shape that depends on values, or is one."""

Go = Callable[[Sequence[Any], Mapping[str, Any]], Any]


class StandIn:
    """Stands in for values while one model is counted, and says what was assumed."""

    def __init__(self) -> None:
        self.values = Values()
        self.questions = Questions()
        self.assumed: dict[tuple[str, str], int] = {}
        """What was assumed, by the module that it was for, and how often."""
        self.sure: dict[str, None] = {}
        """Answers that are no assumptions, and why."""
        self.where: Callable[[], str] = lambda: ""
        """The name of the module that runs."""
        self.at_first: Callable[[], None] = lambda: None
        """Called before the first assumption of a count."""

    def begin(self) -> None:
        """A count begins: what was assumed in an earlier one is forgotten, but for answers that were turned."""
        self.values, self.assumed, self.sure = Values(), {}, {}
        self.questions.begin()

    def run(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], go: Go, counted: Callable[[Any], None]
    ) -> Any:
        """What a kernel returns. ``go`` runs it by shapes; ``counted`` is told the result where that cannot be."""
        try:
            out = go(args, kwargs)
        except _ERRORS as error:
            try:
                return self._instead(func, args, kwargs, go, counted)
            except _NothingError as nothing:
                if not is_lack(error) or nothing.__cause__ is None:
                    raise error from None
                raise LackError(f"{func}, with ones for what is unknown: {nothing.__cause__}") from error
        self.values.follow(func, args, kwargs, out)
        return out

    def truths(self) -> list[Site] | None:
        """Places that asked for truth values; None where anything else was assumed."""
        asked = self.questions.asked
        found = [site for site in asked if asked[site].is_truth]
        is_all = sum(asked[site].times for site in found) == sum(self.assumed.values())
        return found if is_all else None

    def on_cpu(self, x: Tensor) -> Tensor:
        """A tensor with values, known or ones."""
        real = self.values.of(x)
        if real is None:
            if x.numel() > MOST_ONES:
                raise LackError(f"values of shape {tuple(x.shape)} are asked for: too many to assume any")
            self._assume(f"values of shape {_shape(x)} asked for ({place()}) taken as ones")
            real = torch.ones(x.shape, dtype=x.dtype, device="cpu")
        return real

    def _assume(self, text: str) -> None:
        if not self.assumed:
            self.at_first()
        key = self.where(), text
        self.assumed[key] = self.assumed.get(key, 0) + 1

    def _instead(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], go: Go, counted: Callable[[Any], None]
    ) -> Any:
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            return self._number(args[0])
        if name in INDEXES:
            places = self._places(args[1])
            if places is not None:
                return self.run(func, (args[0], places, *args[2:]), kwargs, go, counted)
        rule = MOST_PLACES.get(name)
        made = None
        if rule is not None and self.values.real((args, kwargs)) is None:
            mask = self.values.of(args[1]) if name == "masked_select" else None
            if mask is not None:
                n = int(mask.expand(broadcast([args[0].shape, mask.shape]) or mask.shape).sum())
                made = torch.empty((n,), dtype=args[0].dtype, device="meta")
            else:
                made = rule(
                    [*args, *(kwargs.get(a.name, a.default_value) for a in func._schema.arguments[len(args) :])]
                )
                n = prod(next(tensors_in(made)).shape[:1])
                self._assume(f"{name} ({place()}) {_MOST.format(f'{n:,} places')}")
        if made is None:
            made = self._by_running(func, name, args, kwargs)
        if isinstance(made, bool | int | float | complex):
            return made
        counted(made)
        return made

    def _number(self, x: Tensor) -> Any:
        """What ``item()`` gives."""
        real = self.values.of(x)
        return real.item() if real is not None else self._answered(x.dtype)

    def _answered(self, dtype: torch.dtype) -> Any:
        answer, why = self.questions.answer(is_truth=dtype == torch.bool)
        said = str(answer).lower() if dtype == torch.bool else str(int(answer))
        if self.questions.is_sure:
            self.sure.setdefault(f"{place()} asks for a truth value: {said}{why}")
        else:
            self._assume(f"a value asked for ({place()}) taken as {said}{why}")
        if dtype == torch.bool:
            return answer
        return complex(answer) if dtype.is_complex else float(answer) if dtype.is_floating_point else int(answer)

    def _places(self, indices: Sequence[Tensor | None]) -> list[Tensor | None] | None:
        """Masks among indices as indices of places; None where there is none."""
        if not any(i is not None and i.dtype in MASKS for i in indices):
            return None
        found: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in MASKS:
                found.append(index)
                continue
            real = self.values.of(index)
            if real is None:
                n = index.numel()
                self._assume(f"a mask of shape {_shape(index)} ({place()}) {_MOST.format('true everywhere')}")
                found += [torch.empty(n, dtype=torch.int64, device="meta") for _ in range(index.dim())]
            else:
                for at in real.nonzero(as_tuple=True):
                    found.append(on_meta(at))
                    self.values.put(found[-1], at)  # type: ignore[arg-type]
        return found

    def _by_running(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the kernel makes on the CPU of known values and, in the place of others, ones."""
        tensors = list(tensors_in((args, kwargs)))
        unknown = [t for t in tensors if self.values.of(t) is None]
        if sum(t.numel() for t in tensors) > MOST_ONES or any(t.layout is not torch.strided for t in tensors):
            raise _NothingError
        if any(t.is_quantized for t in unknown) or (tensors and not any(t.is_meta for t in tensors)):
            raise _NothingError
        ones = {id(t): torch.ones(t.shape, dtype=t.dtype, device="cpu") for t in unknown}
        real = with_tensors((args, kwargs), lambda t: ones[id(t)] if id(t) in ones else self.values.of(t))
        before = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in func.tags else None
        try:
            result = func(*real[0], **real[1])
        except _ERRORS as error:
            raise _NothingError from error
        finally:
            if before is not None:
                torch.set_rng_state(before)
        if isinstance(result, bool) and unknown:
            return self._answered(torch.bool)
        device = kwargs.get("device")
        to_cpu = device is not None and torch.device(device).type == "cpu"
        is_meta = not to_cpu and (any(t.is_meta for t in tensors) or device is not None)
        if not unknown:
            return self._results(func, args, kwargs, result, self._known if is_meta else _itself)
        if is_meta and func.namespace == "aten" and not _DEPENDS & set(func.tags):
            return self._results(func, args, kwargs, result, on_meta)  # no shape of it depends on values
        asks = name in ("_to_copy", "copy_")
        said = f"values of shape {_shape(tensors[-1])} asked for" if asks else name
        self._assume(f"{said} ({place()}) taken {'as ones' if asks else 'as it is of ones'}")
        return self._results(func, args, kwargs, result, self._known if is_meta else _itself)

    def _results(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, one: Callable[[Tensor], Tensor]
    ) -> Any:
        """What was made on the CPU, as the kernel would return it: each new tensor as ``one`` makes it."""
        places = {str(a.alias_info): i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None}
        returns = [str(r.alias_info) if r.alias_info is not None else "" for r in func._schema.returns]
        made = []
        for i, value in enumerate(result if isinstance(result, tuple) else (result,)):
            at = places.get(returns[i]) if i < len(returns) else None
            if at is not None:  # an argument that was written into
                given = args[at] if at < len(args) else kwargs[func._schema.arguments[at].name]
                if given.is_meta:
                    given.resize_(value.shape)
                    self.values.forget(given)
                    if one == self._known:
                        self.values.put(given, value)
                made.append(given)
            else:
                made.append(with_tensors(value, one))
        return tuple(made) if isinstance(result, tuple) else made[0]

    def _known(self, value: Tensor) -> Tensor:
        made = on_meta(value)
        self.values.put(made, value)
        return made


def _itself(x: Tensor) -> Tensor:
    return x


class _NothingError(Exception):
    """Nothing can be assumed."""


def _shape(x: Tensor) -> str:
    return "x".join(map(str, x.shape)) or "()"
