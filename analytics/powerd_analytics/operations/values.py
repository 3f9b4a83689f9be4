"""Values of small tensors on ``meta``, carried beside their shapes where they are known.

Lengths, indices, masks and windows are often made in a model from nothing but numbers, or come with its inputs. What a
kernel makes of known values is known as well, so a question about them has an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

LARGEST = 2**18
"""Values of a tensor that are carried."""
MOST_BYTES = 2**25
"""Of all that are carried."""
_SHAPE_ALONE = frozenset(
    ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
     "new_empty_strided")
)  # fmt: skip
"""Their result does not depend on the values of what they are like."""
_FILLS = frozenset(("zero_", "fill_"))
_HIDDEN_WRITES = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4)}
"""Arguments that a kernel changes without saying so: running means and variances."""


class Values:
    """Known values by storage, so that all views of a tensor have them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Tensor]] = {}
        """By the storage's address: the storage, kept so that its address stays its own, and its values."""
        self._bytes = 0

    def of(self, x: Tensor) -> Tensor | None:
        """The values of a tensor, on the CPU, in memory shared with those of its views; None: nobody knows them."""
        if not _is_plain(x) or x.is_conj() or x.is_neg():
            return None
        if not x.is_meta:
            return x.detach() if x.device.type == "cpu" else None
        found = self._known.get(x.untyped_storage()._cdata)
        if found is None or found[1].dtype != x.dtype:
            return None
        try:
            return found[1].as_strided(x.shape, x.stride(), x.storage_offset())
        except RuntimeError:  # its storage has grown
            return None

    def put(self, x: Tensor, real: Tensor) -> None:
        """Let a tensor on ``meta`` have these values, unless they are too many."""
        if not _is_plain(x):
            return
        self.forget(x)
        storage = x.untyped_storage()
        n, size = storage.nbytes() // x.element_size(), storage.nbytes()
        if n > LARGEST or self._bytes + size > MOST_BYTES:
            return
        flat = torch.zeros(n, dtype=x.dtype, device="cpu")
        try:
            flat.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(real)
        except RuntimeError:  # its places share memory
            return
        self._known[storage._cdata] = storage, flat
        self._bytes += size

    def forget(self, x: Tensor) -> None:
        """Nobody knows any more what is in its storage."""
        if x.is_meta and _is_plain(x):
            found = self._known.pop(x.untyped_storage()._cdata, None)
            if found is not None:
                self._bytes -= found[1].numel() * found[1].element_size()

    def follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Do with values what a kernel has just done with shapes."""
        written = list(_written(func, args, kwargs))
        made = [t for t in tensors_in(out) if t.is_meta]
        if func.is_view or (not made and not written):
            return
        name = func.overloadpacket.__name__
        is_small = all(_is_plain(t) and t.numel() <= LARGEST for t in (*made, *written))
        knows = is_small and torch.Tag.nondeterministic_seeded not in func.tags
        blank = name in _SHAPE_ALONE or (name in _FILLS and _is_whole(args[0]))
        real = self.real((args, kwargs), blank=blank) if knows else None
        if real is None:
            for t in written:
                self.forget(t)
            return
        if all(t.untyped_storage()._cdata in self._known for t in made) and not written:
            return  # another view
        try:
            result = func(*real[0], **real[1])
        except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
            for t in written:
                self.forget(t)
            return
        if name in _FILLS and blank:
            self.put(args[0], result)
            return
        for t, value in zip(tensors_in(out), tensors_in(result), strict=False):
            if t.is_meta and not any(t is w for w in written) and t.shape == value.shape and t.dtype == value.dtype:
                # Memory without contents may hold anything: zeros.
                self.put(t, torch.zeros_like(value, device="cpu") if "empty" in name else value)

    def real(self, values: Any, *, blank: bool = False) -> Any:
        """The same arguments with values, on the CPU; None where some are unknown.

        ``blank``: what is unknown may have any values.
        """
        unknown = False

        def one(value: Any) -> Any:
            nonlocal unknown
            if isinstance(value, Tensor):
                found = self.of(value)
                if found is None and blank and value.layout is torch.strided:
                    return torch.zeros(value.shape, dtype=value.dtype, device="cpu")
                unknown = unknown or found is None
                return found
            return value

        made = with_tensors(values, one)
        return None if unknown else made


def with_tensors(values: Any, one: Any) -> Any:
    """Arguments of a kernel with other tensors; what would be made on ``meta`` is made on the CPU."""
    if isinstance(values, Tensor):
        return one(values)
    if isinstance(values, torch.device):
        return torch.device("cpu") if values.type == "meta" else values
    if isinstance(values, list | tuple):
        return type(values)([with_tensors(v, one) for v in values])
    if isinstance(values, Mapping):
        return {k: with_tensors(v, one) for k, v in values.items()}
    return values


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Those among the arguments or results of a kernel."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, Mapping):
        yield from tensors_in(tuple(values.values()))


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Tensors that the kernel writes into."""
    for i in _HIDDEN_WRITES.get(func.overloadpacket.__name__, ()):
        if len(args) > i:
            yield from tensors_in(args[i])
    if not func._schema.is_mutable:
        return
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(args[i] if i < len(args) else kwargs.get(argument.name))


def _is_plain(x: Tensor) -> bool:
    """Whether it has a place in memory for each of its values, which are numbers."""
    return x.layout is torch.strided and not x.is_nested and not x.is_quantized


def _is_whole(x: Any) -> bool:
    """Whether a tensor is all that there is in its storage."""
    return isinstance(x, Tensor) and x.numel() * x.element_size() == x.untyped_storage().nbytes()
