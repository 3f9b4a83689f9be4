"""Text from outside on its way to a terminal or a log: what could move a cursor or hide a name is spelled out.

The one place for it: whatever prints a name, a cause or an error that another machine or a file said goes through here.
"""

from __future__ import annotations


def printable(text: str, *, limit: int | None = None) -> str:
    r"""``text`` with control, format and surrogate characters as escapes (``\x1b``), cut off behind ``limit``.

    What is left has no line breaks: one message stays one line.
    """
    if limit is not None and len(text) > limit:
        text = text[:limit] + "…"
    if text.isprintable():
        return text
    # str.isprintable also refuses spaces other than U+0020; those harm nobody.
    return "".join(c if c.isprintable() or c in "\u00a0\u202f" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
