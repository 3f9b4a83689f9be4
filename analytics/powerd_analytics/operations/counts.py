"""What counting a model gives: by layer, by two conventions that are never mixed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PAPER = "paper"
EXECUTED = "executed"
CONVENTION = PAPER
"""The convention of `OperationCount.total`."""
CONVENTIONS = {
    PAPER: (
        'Castro et al., "Energy-based tuning of convolutional neural networks on multi-GPUs", equations 1 to 7: a'
        " multiply-add is one operation, forward pass; values of 4 bytes, 1 MB = 2^20 bytes"
    ),
    EXECUTED: (
        "products that torch runs, forward and backward: a multiply-accumulate is two operations; element-wise work"
        " apart, one a value and kernel; bytes as if each kernel read and wrote its tensors once"
    ),
}
BYTES_PER_VALUE = 4
"""Of the paper's volumes. Executed bytes follow the tensors' own types."""


@dataclass(frozen=True, slots=True)
class LayerCount:
    """One call of one layer for one sample, by the paper's equations."""

    name: str
    kind: str
    operations: int
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    values_read: int = 0
    """Input and weights."""
    values_written: int = 0
    is_assumed: bool = False
    """It ran after the first of `OperationCount.assumed`: its shapes may be others."""


@dataclass(frozen=True, slots=True)
class Work:
    """What kernels do in one pass over one batch."""

    operations: int = 0
    """Of matrix products and convolutions, a multiply-accumulate as two."""
    elementwise: int = 0
    """Values that other kernels worked on, one a value and kernel. Not a part of ``operations``."""
    moved_bytes: int = 0
    """Tensors read and written by all kernels, each once a kernel: what no fusion and no cache would save."""

    def __add__(self, other: Work) -> Work:
        return Work(
            self.operations + other.operations,
            self.elementwise + other.elementwise,
            self.moved_bytes + other.moved_bytes,
        )


@dataclass(frozen=True, slots=True)
class ExecutedCount:
    """What torch runs in one module itself, the modules inside it apart; all calls on one batch together."""

    name: str
    kind: str
    forward: Work
    backward: Work
    assumed: tuple[str, ...] = ()
    """Passes (``forward``, ``backward``) in which it ran after the first of `OperationCount.assumed`."""


@dataclass(frozen=True, slots=True)
class OperationCount:
    """Operations of a model. ``layers`` and ``total`` are of one sample; ``executed`` is of one batch."""

    layers: tuple[LayerCount, ...]
    not_counted: tuple[str, ...]
    """For the paper's convention: modules that ran, or hold parameters, and have no equation: ``name (Kind)``."""
    convention: str = CONVENTION
    batch_size: int = 1
    executed: tuple[ExecutedCount, ...] = ()
    executed_not_counted: tuple[str, ...] = ()
    """Kernels of which nobody knows how much they do: ``name (Kind): kernel``."""
    assumed: tuple[str, ...] = ()
    """What was taken for values that nobody knows: ``name (Kind): what``. What ran after the first rests on it."""
    stopped: str = ""
    """Why the model was not counted to its end: all figures are of what ran before. Empty: it was."""
    notes: tuple[str, ...] = ()
    model: str = ""

    @property
    def total(self) -> int:
        """Sum over the layers that the paper's equations count, one sample, forward."""
        return sum(layer.operations for layer in self.layers)

    @property
    def values_read(self) -> int:
        """By the paper's convention, one sample."""
        return sum(layer.values_read for layer in self.layers)

    @property
    def values_written(self) -> int:
        """By the paper's convention, one sample."""
        return sum(layer.values_written for layer in self.layers)

    @property
    def ctc(self) -> float:
        """Computation to communication: operations for each value read (paper's convention)."""
        return self.total / self.values_read if self.values_read else 0.0

    @property
    def forward(self) -> Work:
        """Executed by all modules, one batch."""
        return sum((e.forward for e in self.executed), Work())

    @property
    def backward(self) -> Work:
        """Executed by all modules, one batch."""
        return sum((e.backward for e in self.executed), Work())

    def rows(self) -> Iterator[LayerRow]:
        """Both conventions side by side for one batch, by layer; calls of one layer together."""
        calls: dict[str, list[LayerCount]] = {}
        for layer in self.layers:
            calls.setdefault(layer.name, []).append(layer)
        executed = {e.name: e for e in self.executed}
        for name in dict.fromkeys([*executed, *calls]):  # in the order in which they ran
            yield LayerRow(name, self.batch_size, tuple(calls.get(name, ())), executed.get(name))


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer by both conventions for one batch; None where a convention has no figure for it."""

    name: str
    batch_size: int
    calls: tuple[LayerCount, ...]
    executed: ExecutedCount | None

    @property
    def kind(self) -> str:
        return self.calls[0].kind if self.calls else self.executed.kind if self.executed else ""

    @property
    def operations_paper(self) -> int | None:
        return self.batch_size * sum(c.operations for c in self.calls) if self.calls else None

    @property
    def values_read(self) -> int | None:
        return self.batch_size * sum(c.values_read for c in self.calls) if self.calls else None

    @property
    def values_written(self) -> int | None:
        return self.batch_size * sum(c.values_written for c in self.calls) if self.calls else None

    @property
    def ctc(self) -> float | None:
        return (
            self.operations_paper / self.values_read if self.operations_paper is not None and self.values_read else None
        )

    @property
    def assumed(self) -> tuple[str, ...]:
        """What of it rests on assumed values: ``paper``, ``forward``, ``backward``."""
        paper = (PAPER,) if any(c.is_assumed for c in self.calls) else ()
        return (*paper, *(self.executed.assumed if self.executed else ()))

    @property
    def forward(self) -> Work | None:
        return self.executed.forward if self.executed else None

    @property
    def backward(self) -> Work | None:
        return self.executed.backward if self.executed else None
