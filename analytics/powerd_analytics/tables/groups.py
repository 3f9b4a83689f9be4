"""Groups of phases in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from powerd_analytics.celltext import is_number


def group_text(group: Mapping[str, Any], fallback: str = "run") -> str:
    """A group for an axis: the model's name, the product's, whatever else it has, the batch size."""
    names = sorted(group, key=lambda k: (k != "model", k != "device_name", k == "batch_size"))
    return "\n".join(_part(k, group[k]) for k in names) or fallback


def _part(name: str, value: Any) -> str:
    if name in ("model", "device_name"):
        return str(value)
    if name == "gpus":
        return f"{value} GPU{'' if value == 1 else 's'}"
    return f"batch {value}" if name == "batch_size" else f"{name} {quoted(value)}"


def quoted(value: Any) -> str:
    """An attribute for people; a text that reads like a number is another value than the number, and in quotes."""
    return f'"{value}"' if isinstance(value, str) and is_number(value) else str(value)


def group_line(group: Mapping[str, Any]) -> str:
    """`group_text` in one line, empty for phases without a group."""
    return group_text(group, "").replace("\n", ", ")
