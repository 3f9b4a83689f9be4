"""An `OperationCount` as a table: for programs in plain numbers, for people in millions."""

from __future__ import annotations

import pandas as pd

from powerd_analytics.export import Cell, Column, table_frame
from powerd_analytics.operations.counts import BYTES_PER_VALUE, CONVENTIONS, OperationCount, Work

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


def operation_frame(count: OperationCount, *, with_notes: bool = True) -> pd.DataFrame:
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
    return table_frame("operations", title, columns, cells, remarks(count))


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
