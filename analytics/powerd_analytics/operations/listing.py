"""An `OperationCount` as a table: for programs with plain numbers, for people in millions and megabytes."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from powerd_analytics.export import Cell, Column, table_frame
from powerd_analytics.operations.counts import BYTES_PER_VALUE, CONVENTIONS, LayerOperations, OperationCount, Work

MIB = 2**20
TOTAL = "total"

COLUMNS = (
    Column("model"),
    Column("batch_size", "integer"),
    Column("layer"),
    Column("kind"),
    Column("calls", "integer", "1"),
    Column("input_shape"),
    Column("output_shape"),
    Column("operations_paper", "integer", "1"),
    Column("mb_read_paper", "number", "MiB"),
    Column("mb_written_paper", "number", "MiB"),
    Column("ctc_paper", "number", "1"),
    Column("operations_executed_forward", "integer", "1"),
    Column("operations_executed_backward", "integer", "1"),
    Column("elementwise_executed_forward", "integer", "1"),
    Column("elementwise_executed_backward", "integer", "1"),
    Column("bytes_executed_forward", "integer", "B"),
    Column("bytes_executed_backward", "integer", "B"),
    Column("note"),
)
"""For programs. The paper's operations are one forward pass; all figures are of one batch. None: not counted."""
_PEOPLE = (
    Column("layer"),
    Column("kind"),
    Column("input"),
    Column("output"),
    Column("mops_paper", "number", "1e6", heading="Mops (paper)"),
    Column("mb_read_paper", "number", "MiB", heading="MB read (paper)"),
    Column("mb_written_paper", "number", "MiB", heading="MB written (paper)"),
    Column("ctc_paper", "number", "1", heading="CTC (paper)"),
    Column("mops_forward", "number", "1e6", heading="Mops forward (executed)"),
    Column("mops_backward", "number", "1e6", heading="Mops backward (executed)"),
    Column("elementwise", "number", "1e6", heading="M element-wise, both (executed)"),
)


def operation_frame(count: OperationCount) -> pd.DataFrame:
    """A row a layer, what is not counted as rows with a note and no figure for it, and the total."""
    silent = {text.rpartition(" (")[0] for text in count.not_counted}
    rows = []
    for layer in count.rows():
        note = "not counted by the paper's equations" if layer.name in silent else ""
        rows.append(_row(count, layer, note))
    shown = {row[2] for row in rows}
    for text in count.not_counted:
        name, _, kind = text.rpartition(" (")
        if name not in shown:
            blank = [None] * (len(COLUMNS) - 5)
            rows.append([count.model, count.batch_size, name, kind.rstrip(")"), *blank, "did not run as a module"])
    rows.append(_total(count))
    return table_frame("operations", _title(count), COLUMNS, rows, remarks(count))


def people_frame(count: OperationCount) -> pd.DataFrame:
    """The same in millions of operations and megabytes of 2^20 bytes, with what is not counted in the notes."""
    rows = []
    for row in operation_frame(count).to_dict("records"):
        forward, backward = row["elementwise_executed_forward"], row["elementwise_executed_backward"]
        executed = row["operations_executed_forward"], row["operations_executed_backward"]
        elementwise = forward + backward if forward is not None else None
        rows.append(
            [row["layer"], row["kind"], row["input_shape"], row["output_shape"], _millions(row["operations_paper"]),
             row["mb_read_paper"], row["mb_written_paper"], row["ctc_paper"], *map(_millions, (*executed, elementwise))]
        )  # fmt: skip
    return table_frame("operations", _title(count), _PEOPLE, rows, remarks(count))


def remarks(count: OperationCount) -> list[str]:
    """What the columns mean, and what is in none of them."""
    notes = [f"{name}: {text}" for name, text in CONVENTIONS.items()]
    kinds: dict[str, list[str]] = {}
    for text in count.not_counted:
        name, _, kind = text.rpartition(" (")
        kinds.setdefault(kind.rstrip(")"), []).append(name)
    for kind, names in kinds.items():
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        notes.append(f"not counted (paper): {len(names)} {kind}: {some}")
    notes += [f"not counted (executed): {text}" for text in count.executed_not_counted]
    return [*notes, "not in it: the loss and the update of parameters", *count.notes]


def _row(count: OperationCount, layer: LayerOperations, note: str) -> list[Cell]:
    first = layer.calls[0] if layer.calls else None
    shapes = ["x".join(map(str, s)) for s in (first.input_shape, first.output_shape)] if first else [None, None]
    return [
        count.model, count.batch_size, layer.name, layer.kind, len(layer.calls) or None,
        *shapes,
        layer.operations_paper, _mib(layer.values_read), _mib(layer.values_written), layer.ctc,
        *_executed(layer.forward, layer.backward), note,
    ]  # fmt: skip


def _total(count: OperationCount) -> list[Cell]:
    batch = count.batch_size
    missing = [f"{text}: not counted (executed)" for text in count.executed_not_counted]
    if count.not_counted:
        missing.append(f"{len(count.not_counted)} modules not counted (paper)")
    return [
        count.model, batch, TOTAL, None, None, None, None, batch * count.total, _mib(batch * count.values_read),
        _mib(batch * count.values_written), count.ctc, *_executed(count.forward, count.backward),
        "; ".join([*missing, *count.notes]),
    ]  # fmt: skip


def _executed(forward: Work | None, backward: Work | None) -> Sequence[int | None]:
    if forward is None or backward is None:
        return [None] * 6
    return [
        forward.operations, backward.operations, forward.elementwise, backward.elementwise, forward.moved_bytes,
        backward.moved_bytes,
    ]  # fmt: skip


def _title(count: OperationCount) -> str:
    return f"{count.model}, one batch of {count.batch_size}; Mops: 10^6 operations, MB: 2^20 bytes, –: not counted"


def _mib(values: int | None) -> float | None:
    return values * BYTES_PER_VALUE / MIB if values is not None else None


def _millions(value: int | None) -> float | None:
    return value / 1e6 if value is not None else None
