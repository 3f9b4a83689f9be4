"""Sheets as LaTeX: booktabs, one table environment a sheet, nothing else than that package needed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from powerd_analytics.exports.latextext import OTHER, escaped
from powerd_analytics.exports.sheet import Sheet

__all__ = ["escaped", "to_latex"]

_DEFINITION = (
    r"\ifdefined" + OTHER + r"\else\protected\def" + OTHER + r"#1{\ifdefined\Umathchar\symbol{" + '"' + "#1}"
    r"\else[U+#1]\fi}\fi"
)
"""XeTeX and LuaTeX print any character that their font has, pdfTeX its number."""


def to_latex(sheets: Sequence[Sheet]) -> str:
    r"""Floating tables with \caption and \label{tab:NAME}, in ASCII; put \usepackage{booktabs} into the preamble."""
    out: list[str] = []
    for sheet in sheets:
        columns, lines, notes = sheet.shown()
        align = "".join("l" if c.kind in ("text", "flag") else "r" for c in columns)
        out += ["", r"\begin{table}", r"\centering", rf"\caption{{{escaped(sheet.title)}}}"]
        out += [rf"\label{{tab:{_label(sheet.name)}}}", rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
        out += [_line([c.heading for c in columns]), r"\midrule"]
        out += [_line(line) for line in lines]
        out += [r"\bottomrule", r"\end{tabular}"]
        texts = [f"$^{{{i}}}$ {escaped(note)}" for i, note in enumerate(notes, 1)] + [*map(escaped, sheet.notes)]
        if texts:
            out += ["", r"\smallskip", r"\begin{minipage}{\linewidth}\footnotesize"]
            out += [" \\\\\n".join(texts), r"\end{minipage}"]
        out += [r"\end{table}"]
    head = [r"% \usepackage{booktabs}"]
    if any(OTHER in line for line in out):
        head.append(_DEFINITION)
    return "\n".join([*head, *out]) + "\n"


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9:_.-]", "-", name)


def _line(cells: Sequence[str]) -> str:
    # A bracket at the beginning of a line would be the optional argument of the \\ before it.
    made = [f"{{{cell}}}" if cell.startswith(("[", "*")) else cell for cell in map(escaped, cells)]
    return " & ".join(made) + r" \\"
