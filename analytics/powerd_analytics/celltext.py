"""Cells as every reader takes them: JSON without NaN (a user's ``loss=nan``), and texts that are UTF-8."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from powerd_core.text import printable


def to_json_text(document: Any, *, indent: int | None = 1, sort_keys: bool = False) -> str:
    """The document as JSON (RFC 8259, which has neither NaN nor infinities); what it does not know as text."""
    return json.dumps(_finite(document), indent=indent, sort_keys=sort_keys, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {name if isinstance(name, str) else str(name): _finite(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


_LONELY = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_FORMULA = ("=", "@", "+", "-", "\t", "\r")


def markdown_cell(text: str) -> str:
    """Names from files may hold what Markdown, or the HTML it becomes, takes for its own."""
    made = _ENTITY.sub("&amp;", printable(text)).replace("\\", "\\\\").replace("<", "&lt;")
    for character in "|*`[$~":
        made = made.replace(character, f"\\{character}")
    return _LONELY.sub(r"\_", made)


def csv_cell(value: Any) -> Any:
    """A cell for CSV. A text that a spreadsheet would calculate (``=cmd|...``) gets an apostrophe in front, which makes
    it a text there too; one that is a number stays as it is."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not is_number(value):
        value = f"'{value}"
    return encodable(value)


def is_number(text: str) -> bool:
    """Whether a text reads like a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def encodable(value: Any) -> Any:
    r"""A cell as it can be written in UTF-8: half a character, as undecodable names have (PEP 383), as ``\udcff``."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
