"""Where in a TOML text an error lies: readers want a line number, and tomllib gives none where the syntax is good."""

from __future__ import annotations

import re

_TABLE = re.compile(r"\[\[(?P<list>source|device)\]\] (?P<number>\d+)|\[(?P<single>server)\]")
_OPTION = re.compile(r"(?:option|table) '([^']+)'")
_KEY = re.compile(r"\s*[\"']?(\w+)[\"']?\s*=")
_HEADER = re.compile(r"\s*\[")


def line_of(text: str, message: str) -> int | None:
    """The line (from 1) of the option that an error message names, else of its table; None when it names neither.

    An option is named as ``option 'NAME'``, or by a source in its own words: ``NAME = value``, or as the first word.
    """
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
    if table is not None and not _OPTION.search(message):
        own_words = message[table.end() :].partition("): ")[2]
        return _named_in_words(lines, begin, end, own_words) or found
    return found


def _named_in_words(lines: list[str], begin: int, end: int, words: str) -> int | None:
    """The line of the option that a message mentions first."""
    keys = {key[1]: i + 1 for i in range(end - 1, begin, -1) if (key := _KEY.match(lines[i]))}
    mentioned = {m.start(): key for key in keys if (m := re.search(rf"^{key}\b|\b{key}(?= = |: )", words))}
    return keys[mentioned[min(mentioned)]] if mentioned else None
