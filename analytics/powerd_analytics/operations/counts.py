"""What counting a model gives: operations by layer, by two conventions that are never mixed.

They leave as a JSON document and as a table, which has plain numbers for programs and millions for people.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from powerd_analytics.output.export import Column, Table, make_table
from powerd_analytics.output.text import Cell
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


# -- as a table --------------------------------------------------------------------------------------------------------

COLUMNS = (
    Column("model", is_hidden=True),
    Column("batch_size", "integer", is_hidden=True),
    Column("layer"),
    Column("kind"),
    Column("input_shape", is_hidden=True),
    Column("output_shape", heading="output"),
    Column("operations_paper", "integer", "1", heading="Mops paper", per=1e6),
    Column("mb_read_paper", "number", "MiB", is_hidden=True),
    Column("mb_written_paper", "number", "MiB", is_hidden=True),
    Column("ctc_paper", "number", "1", heading="CTC paper"),
    Column("operations_executed_forward", "integer", "1", heading="Mops fwd", per=1e6),
    Column("operations_executed_backward", "integer", "1", heading="Mops bwd", per=1e6),
    Column("elementwise_executed_forward", "integer", "1", is_hidden=True),
    Column("elementwise_executed_backward", "integer", "1", is_hidden=True),
    Column("bytes_executed_forward", "integer", "B", is_hidden=True),
    Column("bytes_executed_backward", "integer", "B", is_hidden=True),
    Column("note"),
)
"""The paper's operations are one forward pass; all figures are of one batch. None: not counted. People see millions of
operations, and what is not counted in the notes below."""


def operation_table(count: OperationCount, *, with_notes: bool = True) -> Table:
    """A row a layer, what is not counted as rows with a note and no figure for it, and the total. The column of notes
    is for programs."""
    silent = {name: kind.rstrip(")") for name, _, kind in (text.rpartition(" (") for text in count.not_counted)}
    rows = []
    for layer in count.rows():
        row: dict[str, Cell] = {"layer": layer.name, "kind": layer.kind, "calls": len(layer.calls) or None}
        if layer.calls:
            row["input_shape"] = "x".join(map(str, layer.calls[0].input_shape))
            row["output_shape"] = "x".join(map(str, layer.calls[0].output_shape))
        row |= _paper(layer.operations_paper, layer.values_read, layer.values_written)
        row |= _executed(layer.executed.forward, layer.executed.backward) if layer.executed else {}
        rows.append(row | {"note": "not counted by the paper's equations" if layer.name in silent else ""})
    shown = {row["layer"] for row in rows}
    for name, kind in silent.items():
        if name not in shown:
            rows.append({"layer": name, "kind": kind, "note": "did not run as a module"})
    batch = count.batch_size
    total: dict[str, Cell] = {"layer": "total"}
    total |= _paper(batch * count.total, batch * count.values_read, batch * count.values_written)
    missing = [f"{text}: not counted (executed)" for text in count.executed_not_counted]
    missing += [f"{len(count.not_counted)} modules not counted (paper)"] if count.not_counted else []
    rows.append(total | _executed(count.forward, count.backward) | {"note": "; ".join([*missing, *count.notes])})
    of_all: dict[str, Cell] = {"model": count.model, "batch_size": batch}
    columns = COLUMNS if with_notes else COLUMNS[:-1]
    title = f"{count.model}, one batch of {batch}; fwd, bwd: forward and backward as executed; Mops: 10^6 operations"
    cells = [[(of_all | row).get(c.name) for c in columns] for row in rows]
    return make_table("operations", title, columns, cells, remarks(count))


def remarks(count: OperationCount) -> list[str]:
    """What the columns mean, and what is in none of them."""
    notes = ["Mops: 10^6 operations; MB: 2^20 bytes, read and written; –: not counted"]
    notes += [f"{name}: {text}" for name, text in CONVENTIONS.items()]
    kinds: dict[str, list[str]] = {}
    for text in count.not_counted:
        name, _, kind = text.rpartition(" (")
        kinds.setdefault(kind.rstrip(")"), []).append(name)
    for kind, names in kinds.items():
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        notes.append(f"not counted (paper): {len(names)} {kind}: {some}")
    notes += [f"not counted (executed): {text}" for text in count.executed_not_counted]
    return [*notes, "not in it: the loss and the update of parameters", *count.notes]


def _paper(operations: int | None, read: int | None, written: int | None) -> dict[str, Cell]:
    """Volumes in MB of 2^20 bytes; CTC is operations for each value read."""
    if operations is None or read is None or written is None:
        return {}
    volumes: dict[str, Cell] = {
        f"mb_{name}_paper": n * BYTES_PER_VALUE / 2**20 for name, n in (("read", read), ("written", written))
    }
    return {"operations_paper": operations, "ctc_paper": operations / read if read else None, **volumes}


def _executed(forward: Work, backward: Work) -> dict[str, Cell]:
    return {
        f"{name}_executed_{of}": value
        for of, work in (("forward", forward), ("backward", backward))
        for name, value in (
            ("operations", work.operations), ("elementwise", work.elementwise), ("bytes", work.moved_bytes)
        )
    }  # fmt: skip
