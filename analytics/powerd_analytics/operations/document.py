"""An `OperationCount` as a JSON document, and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from powerd_analytics.operations.counts import CONVENTIONS, ExecutedCount, LayerCount, OperationCount, Work
from powerd_core.errors import ConfigError

FORMAT = "powerd-operations"
VERSION = 1


def to_document(count: OperationCount) -> dict[str, Any]:
    """All of it, with totals and what the conventions mean; JSON can hold every value."""
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
        "assumed": list(count.assumed),
        "stopped": count.stopped,
        "notes": list(count.notes),
    }


def from_document(document: Any) -> OperationCount:
    """The count that `to_document` wrote. Raises KeyError, TypeError or ValueError when it is something else."""
    if document["format"] != FORMAT or document["version"] != VERSION:
        raise ValueError(f"format {document['format']!r}, version {document['version']!r}")
    paper, executed = document["paper"], document["executed"]
    layers = [
        LayerCount(
            str(x["name"]),
            str(x["kind"]),
            int(x["operations"]),
            tuple(map(int, x["input_shape"])),
            tuple(map(int, x["output_shape"])),
            int(x["values_read"]),
            int(x["values_written"]),
            bool(x.get("is_assumed", False)),
        )
        for x in paper["layers"]
    ]
    ran = [
        ExecutedCount(
            str(x["name"]),
            str(x["kind"]),
            _work(x["forward"]),
            _work(x["backward"]),
            tuple(map(str, x.get("assumed", ()))),
        )
        for x in executed["layers"]
    ]
    batch_size = int(document["batch_size"])
    if batch_size < 1:
        raise ValueError(f"batch size {batch_size}")
    return OperationCount(
        tuple(layers),
        tuple(map(str, paper["not_counted"])),
        batch_size=batch_size,
        executed=tuple(ran),
        executed_not_counted=tuple(map(str, executed["not_counted"])),
        assumed=tuple(map(str, document.get("assumed", ()))),
        stopped=str(document.get("stopped", "")),
        notes=tuple(map(str, document["notes"])),
        model=str(document["model"]),
    )


def read_count(path: Path) -> OperationCount:
    """Read what ``joules operations --format json`` wrote. Raises `ConfigError`."""
    try:
        return from_document(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise ConfigError(f"{path} is not what `joules operations MODEL --format json` writes: {why}") from error


def _work(document: Any) -> Work:
    found = Work(int(document["operations"]), int(document["elementwise"]), int(document["moved_bytes"]))
    if min(found.operations, found.elementwise, found.moved_bytes) < 0:
        raise ValueError("a negative count")
    return found
