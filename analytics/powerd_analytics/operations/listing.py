"""An `OperationCount` for people and spreadsheets: one list of columns serves all forms."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from powerd_analytics.celltext import csv_cell, markdown_cell
from powerd_analytics.operations.counts import (
    BYTES_PER_VALUE,
    CONVENTIONS,
    PAPER,
    LayerRow,
    OperationCount,
    Work,
)
from powerd_analytics.operations.document import to_document
from powerd_analytics.unbroken import print_unbroken
from powerd_core.text import printable

MIB = 2**20
COLUMNS = (
    "model", "batch_size", "layer", "kind", "calls", "input_shape", "output_shape", "operations_paper",
    "mb_read_paper", "mb_written_paper", "ctc_paper", "operations_executed_forward", "operations_executed_backward",
    "elementwise_executed_forward", "elementwise_executed_backward", "bytes_executed_forward",
    "bytes_executed_backward", "assumed", "note",
)  # fmt: skip
"""Of every CSV row. The paper's operations are one forward pass; all figures are of one batch. Empty: not counted.
``assumed``: which of ``paper``, ``forward`` and ``backward`` rest on values that nobody knows.
"""
TOTAL = "total"
STOPPED = "not counted from here on"
ABOUT, AT_LEAST, NOTHING = "≈", "≥", "–"


def records(count: OperationCount) -> list[dict[str, Any]]:
    """A row a layer, and the total; then what is not counted, as rows with a note and no figure for it."""
    silent = {text.rpartition(" (")[0] for text in count.not_counted}
    found = []
    for row in count.rows():
        note = "not counted by the paper's equations" if row.name in silent else ""
        found.append(_record(count, row, note))
    shown = {row["layer"] for row in found}
    for text in count.not_counted:
        name, _, kind = text.rpartition(" (")
        if name not in shown:
            cells = dict.fromkeys(COLUMNS) | {
                "layer": name,
                "kind": kind.rstrip(")"),
                "note": "did not run as a module",
            }
            found.append(cells | {"model": count.model, "batch_size": count.batch_size})
    found.append(_total(count))
    return found


def to_csv(count: OperationCount) -> str:
    """RFC 4180 with a header; a kernel that nobody can count is in the total's note."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: csv_cell(v) for k, v in row.items()} for row in records(count))
    return out.getvalue()


def to_json(count: OperationCount) -> str:
    """What `read_count` reads."""
    return json.dumps(to_document(count), indent=1, allow_nan=False) + "\n"


def to_markdown(count: OperationCount) -> str:
    """A table rounded for people, and what it means."""
    header, lines = _view(count)
    out = [f"**{markdown_cell(_title(count))}**", ""]
    out.append("| " + " | ".join(header) + " |")
    out.append("|" + "|".join(" --- " if h in ("layer", "kind") else " ---: " for h in header) + "|")
    out += ["| " + " | ".join(map(markdown_cell, line)) + " |" for line in lines]
    out += ["", *(f"- {markdown_cell(text)}" for text in remarks(count))]
    return "\n".join(out) + "\n"


def print_table(count: OperationCount, console: Console) -> None:
    """The same for a terminal."""
    header, lines = _view(count)
    shown = Table(
        title=printable(_title(count)), title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD
    )
    for name in header:
        shown.add_column(name, justify="left" if name in ("layer", "kind") else "right", overflow="fold")
    for line in lines:
        shown.add_row(*(Text(printable(cell)) for cell in line))
    print_unbroken(shown, console)
    for text in remarks(count):
        console.print(printable(text), markup=False, highlight=False)


MAKERS: dict[str, Callable[[OperationCount], str]] = {"csv": to_csv, "json": to_json, "markdown": to_markdown}


def remarks(count: OperationCount) -> list[str]:
    """What the columns mean, and what is in none of them."""
    found = [f"{name}: {text}" for name, text in CONVENTIONS.items()]
    kinds: dict[str, list[str]] = {}
    for text in count.not_counted:
        name, _, kind = text.rpartition(" (")
        kinds.setdefault(kind.rstrip(")"), []).append(name)
    for kind, names in kinds.items():
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        found.append(f"not counted (paper): {len(names)} {kind}: {some}")
    found += [f"not counted (executed): {text}" for text in count.executed_not_counted]
    found += [f"{STOPPED}: {count.stopped}; figures are of what ran before"] if count.stopped else []
    if count.assumed:
        found.append(f"{ABOUT}: rests on values that shapes do not tell, of which was assumed:")
        found += [f"assumed: {text}" for text in count.assumed]
    found.append("not in it: the loss and the update of parameters")
    return found + list(count.notes)


def _record(count: OperationCount, row: LayerRow, note: str) -> dict[str, Any]:
    forward, backward = row.forward, row.backward
    first = row.calls[0] if row.calls else None
    return {
        "model": count.model,
        "batch_size": count.batch_size,
        "layer": row.name,
        "kind": row.kind,
        "calls": len(row.calls) or None,
        "input_shape": _shape(first.input_shape) if first else None,
        "output_shape": _shape(first.output_shape) if first else None,
        "operations_paper": row.operations_paper,
        "mb_read_paper": _mib(row.values_read),
        "mb_written_paper": _mib(row.values_written),
        "ctc_paper": row.ctc,
        **_work(forward, backward),
        "assumed": " ".join(row.assumed),
        "note": note,
    }


def _total(count: OperationCount) -> dict[str, Any]:
    batch = count.batch_size
    missing = [f"{STOPPED}: {count.stopped}"] if count.stopped else []
    missing += [f"{text}: not counted (executed)" for text in count.executed_not_counted]
    if count.not_counted:
        missing.append(f"{len(count.not_counted)} modules not counted (paper)")
    return dict.fromkeys(COLUMNS) | {
        "model": count.model,
        "batch_size": batch,
        "layer": TOTAL,
        "operations_paper": batch * count.total,
        "mb_read_paper": _mib(batch * count.values_read),
        "mb_written_paper": _mib(batch * count.values_written),
        "ctc_paper": count.ctc,
        **_work(count.forward, count.backward),
        "assumed": " ".join(dict.fromkeys(part for row in count.rows() for part in row.assumed)),
        "note": "; ".join([*missing, *(f"assumed: {text}" for text in count.assumed), *count.notes]),
    }


def _work(forward: Work | None, backward: Work | None) -> dict[str, int | None]:
    return {
        "operations_executed_forward": forward.operations if forward else None,
        "operations_executed_backward": backward.operations if backward else None,
        "elementwise_executed_forward": forward.elementwise if forward else None,
        "elementwise_executed_backward": backward.elementwise if backward else None,
        "bytes_executed_forward": forward.moved_bytes if forward else None,
        "bytes_executed_backward": backward.moved_bytes if backward else None,
    }


def _view(count: OperationCount) -> tuple[list[str], list[list[str]]]:
    header = ["layer", "kind", "input", "output", "Mops (paper)", "MB read (paper)", "MB written (paper)",
              "CTC (paper)", "Mops forward (executed)", "Mops backward (executed)",
              "M element-wise, both (executed)"]  # fmt: skip
    lines = []
    for r in records(count):
        elementwise = None
        if r["elementwise_executed_forward"] is not None:
            elementwise = r["elementwise_executed_forward"] + r["elementwise_executed_backward"]
        least = AT_LEAST if count.stopped and r["layer"] == TOTAL else ""
        assumed = (r["assumed"] or "").split()
        paper, forward, backward = (ABOUT if p in assumed else least for p in (PAPER, "forward", "backward"))
        both = ABOUT if ABOUT in (forward, backward) else least
        numbers = [
            paper + _millions(r["operations_paper"]), paper + _decimal(r["mb_read_paper"]),
            paper + _decimal(r["mb_written_paper"]), paper + _decimal(r["ctc_paper"], 1),
            forward + _millions(r["operations_executed_forward"]),
            backward + _millions(r["operations_executed_backward"]), both + _millions(elementwise),
        ]  # fmt: skip
        numbers = [NOTHING if cell.endswith(NOTHING) else cell for cell in numbers]
        lines.append([r["layer"], r["kind"] or "", r["input_shape"] or "", r["output_shape"] or "", *numbers])
    return header, lines


def _title(count: OperationCount) -> str:
    return f"{count.model}, one batch of {count.batch_size}; Mops: 10^6 operations, MB: 2^20 bytes, –: not counted"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _mib(values: int | None) -> float | None:
    return values * BYTES_PER_VALUE / MIB if values is not None else None


def _millions(value: int | None) -> str:
    return NOTHING if value is None else f"{value / 1e6:.3f}"


def _decimal(value: float | None, places: int = 3) -> str:
    return NOTHING if value is None else f"{value:.{places}f}"
