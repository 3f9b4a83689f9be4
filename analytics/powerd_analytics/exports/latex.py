"""Sheets as LaTeX: booktabs, one table environment a sheet, nothing else than that package needed."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_analytics.exports.sheet import Sheet
from powerd_core.text import printable

_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "±": r"$\pm$", "≥": r"$\ge$", "≤": r"$\le$", "×": r"$\times$", "–": "--",
    "µ": r"$\mu$", "…": r"\dots{}",
}  # fmt: skip


def to_latex(sheets: Sequence[Sheet]) -> str:
    r"""Floating tables with \caption and \label{tab:NAME}; put \usepackage{booktabs} into the preamble."""
    out = [r"% \usepackage{booktabs}"]
    for sheet in sheets:
        columns, lines, notes = sheet.shown()
        align = "".join("l" if c.kind in ("text", "flag") else "r" for c in columns)
        out += ["", r"\begin{table}", r"\centering", rf"\caption{{{escaped(sheet.title)}}}"]
        out += [rf"\label{{tab:{sheet.name}}}", rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
        out += [_line([c.heading for c in columns]), r"\midrule"]
        out += [_line(line) for line in lines]
        out += [r"\bottomrule", r"\end{tabular}"]
        texts = [f"$^{{{i}}}$ {escaped(note)}" for i, note in enumerate(notes, 1)] + [*map(escaped, sheet.notes)]
        if texts:
            out += ["", r"\smallskip", r"\begin{minipage}{\linewidth}\footnotesize"]
            out += [" \\\\\n".join(texts), r"\end{minipage}"]
        out += [r"\end{table}"]
    return "\n".join(out) + "\n"


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_ESCAPES.get(c, c) for c in printable(text))


def _line(cells: Sequence[str]) -> str:
    # A bracket at the beginning of a line would be the optional argument of the \\ before it.
    made = [f"{{{cell}}}" if cell.startswith(("[", "*")) else cell for cell in map(escaped, cells)]
    return " & ".join(made) + r" \\"
