"""What counting a model gives: operations by layer, by two conventions that are never mixed, and as a JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from powerd_core import serde
from powerd_core.errors import ConfigError

PAPER = "paper"
EXECUTED = "executed"
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
FORMAT, VERSION = "powerd-operations", 1


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


@dataclass(frozen=True, slots=True)
class Work:
    """What kernels do in one pass over one batch."""

    operations: int = 0
    """Of matrix products and convolutions, a multiply-accumulate as two."""
    elementwise: int = 0
    """Values that other kernels worked on, one a value and kernel. Not a part of ``operations``."""
    moved_bytes: int = 0
    """Memory traffic: tensors read and written by all kernels, each once a kernel; fusion would save of it."""

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def scaled(self, factor: float) -> Work:
        """In proportion, as whole numbers."""
        return Work(*(round(factor * value) for value in astuple(self)))


@dataclass(frozen=True, slots=True)
class ExecutedCount:
    """What torch runs in one module itself, the modules inside it apart; all calls on one batch together."""

    name: str
    kind: str
    forward: Work
    backward: Work


@dataclass(frozen=True, slots=True)
class OperationCount:
    """Operations of a model. ``layers`` and ``total`` are of one sample; ``executed`` is of one batch."""

    layers: tuple[LayerCount, ...]
    not_counted: tuple[str, ...]
    """For the paper's convention: modules that ran, or hold parameters, and have no equation: ``name (Kind)``."""
    batch_size: int = 1
    executed: tuple[ExecutedCount, ...] = ()
    executed_not_counted: tuple[str, ...] = ()
    """Kernels of which nobody knows how much they do: ``name (Kind): kernel``."""
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

    def rows(self) -> Iterator[LayerOperations]:
        """Both conventions side by side, by layer; calls of one layer together."""
        calls: dict[str, list[LayerCount]] = {}
        for layer in self.layers:
            calls.setdefault(layer.name, []).append(layer)
        executed = {e.name: e for e in self.executed}
        for name in dict.fromkeys([*executed, *calls]):  # in the order in which they ran
            of_layer = executed.get(name)
            kind = calls[name][0].kind if name in calls else executed[name].kind
            yield LayerOperations(name, kind, self.batch_size, tuple(calls.get(name, ())), of_layer)


@dataclass(frozen=True, slots=True)
class LayerOperations:
    """One layer by both conventions for one batch; None where a convention has no figure for it."""

    name: str
    kind: str
    batch_size: int
    calls: tuple[LayerCount, ...]
    executed: ExecutedCount | None

    @property
    def operations_paper(self) -> int | None:
        return self.batch_size * sum(c.operations for c in self.calls) if self.calls else None

    @property
    def values_read(self) -> int | None:
        return self.batch_size * sum(c.values_read for c in self.calls) if self.calls else None

    @property
    def values_written(self) -> int | None:
        return self.batch_size * sum(c.values_written for c in self.calls) if self.calls else None


def to_document(count: OperationCount) -> dict[str, Any]:
    """All of a count, with totals and what the conventions mean; JSON can hold every value."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": count.model,
        "batch_size": count.batch_size,
        "conventions": CONVENTIONS,
        "paper": {
            "unit": "one sample, forward",
            "operations": count.total,
            "values_read": count.values_read,
            "values_written": count.values_written,
            "ctc": count.ctc,
            "layers": [asdict(layer) for layer in count.layers],
            "not_counted": list(count.not_counted),
        },
        "executed": {
            "unit": f"one batch of {count.batch_size}",
            "forward": asdict(count.forward),
            "backward": asdict(count.backward),
            "layers": [asdict(layer) for layer in count.executed],
            "not_counted": list(count.executed_not_counted),
        },
        "notes": list(count.notes),
    }


def read_count(path: Path) -> OperationCount:
    """Read what ``joules operations --format json`` wrote. Raises `ConfigError`."""
    try:
        return from_document(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not what `joules operations MODEL --format json` writes: {error}") from error


def from_document(document: Any) -> OperationCount:
    """The count that `to_document` wrote. Raises KeyError, TypeError or ValueError when it is something else."""
    if (document["format"], document["version"]) != (FORMAT, VERSION):
        raise ValueError(f"format {document['format']!r}, version {document['version']!r}")
    paper, executed = document["paper"], document["executed"]
    return OperationCount(
        tuple(_decoded(LayerCount, layer) for layer in paper["layers"]),
        tuple(map(str, paper["not_counted"])),
        batch_size=int(document["batch_size"]),
        executed=tuple(_decoded(ExecutedCount, module) for module in executed["layers"]),
        executed_not_counted=tuple(map(str, executed["not_counted"])),
        notes=tuple(map(str, document["notes"])),
        model=str(document["model"]),
    )


def _decoded(cls: type[Any], document: Any) -> Any:
    """An instance from an object of the document. Release 0.1.0 wrote more into them (what rested on assumptions)."""
    return serde.from_document(cls, {k: v for k, v in document.items() if k not in ("is_assumed", "assumed")})
