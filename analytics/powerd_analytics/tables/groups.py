"""Groups of phases in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def group_text(group: Mapping[str, Any], fallback: str = "run") -> str:
    """A group for an axis: the model's name, the batch size, whatever else it has."""
    parts = [str(v) if k == "model" else f"batch {v}" if k == "batch_size" else f"{k} {v}" for k, v in group.items()]
    return "\n".join(sorted(parts, key=lambda s: s.startswith("batch "))) or fallback


def group_line(group: Mapping[str, Any]) -> str:
    """`group_text` in one line, empty for phases without a group."""
    return group_text(group, "").replace("\n", ", ")
