"""Headers of instrument commands in their long and short forms: ``:INPut:VOLTage:RANGe`` and ``:INP:VOLT:RANG``."""

from __future__ import annotations

import re
from functools import cache


@cache
def header_pattern(spec: str) -> re.Pattern[str]:
    """What matches a header written as in manuals.

    Capitals are the short form; a part in brackets may be left out; ``<x>`` is a number, caught as a group.
    """
    said = ""
    for part in re.findall(r"\[[^\]]+\]|[^:\[\]]+", spec):
        node = _node(part.strip("[]:"))
        said += f"(?::{node})?" if part.startswith("[") else f":{node}"
    return re.compile(said, re.IGNORECASE)


def _node(word: str) -> str:
    name, numbered, _ = word.partition("<x>")
    short = re.match(r"[A-Z0-9]+", name)
    if short is None or name == short[0]:
        pattern = re.escape(name)
    else:
        rest = name[short.end() :]
        pattern = f"{re.escape(short[0])}(?:{re.escape(rest)})?"
    return pattern + (r"(\d+)" if numbered else "")
