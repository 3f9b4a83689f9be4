"""What a page calls a configuration, and in which order joules of different provenance stand."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_analytics.records.columns import Cell, Record
from powerd_analytics.records.frame import attributes_of


def configuration(record: Record, among: Sequence[Record], *, without_model: bool = False) -> str:
    """What tells a record from others: model, batch size, GPUs, device, cap; in the order of a sentence.

    ``without_model``: where the sentence has named it.
    """
    shown = {
        "model": "",
        "batch_size": "batch ",
        "gpus": "GPUs ",
        "device": "",
        "device_name": "",
        "power_cap_w": "cap ",
    }
    parts = []
    for name, word in shown.items():
        value = None if without_model and name == "model" else record[name]
        if value is not None and (len({r[name] for r in among}) > 1 or name in ("model", "batch_size")):
            number = f"{value:g}" if isinstance(value, float) else str(value)
            parts.append(word + number + (" W" if name == "power_cap_w" else ""))
    others = attributes_of(record)
    parts += [f"{k} {v}" for k, v in others.items() if len({str(attributes_of(r).get(k)) for r in among}) > 1]
    return ", ".join(parts) or str(record["run"])


def kind_order(provenance: Cell) -> int:
    """Measured joules before others."""
    kinds = ("measured", "simulated", "modelled")
    return kinds.index(str(provenance)) if provenance in kinds else len(kinds)
