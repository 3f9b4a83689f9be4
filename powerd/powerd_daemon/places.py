"""Where in a TOML text an error lies: readers want a line number, and tomllib gives none where the syntax is good."""

from __future__ import annotations

import re

_TABLE = re.compile(r"\[\[(?P<list>source|device)\]\] (?P<number>\d+)|\[(?P<single>server)\]")
_OPTION = re.compile(r"(?:option|table) '([^']+)'")
_HEADER = re.compile(r"\s*\[")


def line_of(text: str, message: str) -> int | None:
    """The line (from 1) of the option that an error message names, else of its table; None when it names neither."""
    lines = text.splitlines()
    begin, end = 0, len(lines)
    table = _TABLE.search(message)
    if table is not None:
        own, number = (table["list"], int(table["number"])) if table["list"] else (table["single"], 1)
        header = re.compile(rf"\s*\[{{1,2}}\s*{own}\s*\]")
        places = [i for i, line in enumerate(lines) if header.match(line)]
        if len(places) < number:
            return None
        begin = places[number - 1]
        # Tables of the same entry, such as [source.training], belong to it.
        inner = re.compile(rf"\s*\[{{1,2}}\s*{own}\.")
        others = (i for i in range(begin + 1, end) if _HEADER.match(lines[i]) and not inner.match(lines[i]))
        end = next(others, end)
    found = begin + 1 if table is not None else None
    # "option 'training': unknown option 'forward'" names an option within a table within the table.
    for option in _OPTION.findall(message):
        key = re.compile(rf"\s*(\[+\s*)?(\w+\.)*[\"']?{re.escape(option.rpartition('.')[2])}[\"']?\s*[=\]]")
        at = next((i for i in range(begin, end) if key.match(lines[i])), None)
        if at is None:
            break
        begin, found = at, at + 1
    return found
