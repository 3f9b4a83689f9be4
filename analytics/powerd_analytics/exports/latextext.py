"""Text for LaTeX in ASCII alone, whatever characters it has."""

from __future__ import annotations

import unicodedata

from powerd_core.text import printable

OTHER = r"\powerdchar"
"""Called with the number of a character that plain LaTeX has no name for."""

_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "`": r"\textasciigrave{}",
    "±": r"$\pm$", "≥": r"$\ge$", "≤": r"$\le$", "×": r"$\times$", "·": r"$\cdot$", "−": "$-$", "≈": r"$\approx$",
    "≠": r"$\ne$", "→": r"$\to$", "←": r"$\leftarrow$", "∞": r"$\infty$", "÷": r"$\div$", "√": r"$\surd$",
    "°": r"$^\circ$", "¹": "$^1$", "²": "$^2$", "³": "$^3$", "½": r"$\frac12$", "µ": r"$\mu$", "Δ": r"$\Delta$",
    "–": "--", "—": "---", "…": r"\dots{}", "•": r"\textbullet{}", "‘": "`", "’": "'", "“": "``", "”": "''",
    "€": r"\texteuro{}", "£": r"\pounds{}", "§": r"\S{}", "©": r"\copyright{}", "®": r"\textregistered{}",
    "™": r"\texttrademark{}", "\u00a0": "~", "\u202f": r"\,", "ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}",
    "æ": r"\ae{}", "Æ": r"\AE{}", "œ": r"\oe{}", "Œ": r"\OE{}", "ł": r"\l{}", "Ł": r"\L{}", "ı": r"\i{}",
}  # fmt: skip
_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega"
)
_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c",
}  # fmt: skip


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it is. What it cannot is a call of `OTHER` with the character's number.

    Characters that LaTeX joins (``--``) are kept apart.
    """
    made = "".join(map(_character, printable(text).replace("--", "-\0-").replace("--", "-\0-").replace("''", "'\0'")))
    return made.replace("\0", "{}")


def _character(c: str) -> str:
    if c in _ESCAPES:
        return _ESCAPES[c]
    if c == "\0" or (" " <= c <= "~"):
        return c
    if 0x370 <= ord(c) < 0x400:
        name = unicodedata.name(c, "").lower()
        capital, small = name.removeprefix("greek capital letter "), name.removeprefix("greek small letter ")
        small, capital = small.replace("lamda", "lambda"), capital.replace("lamda", "lambda")
        if small in _GREEK.split():
            return rf"$\{small}$"
        if capital.capitalize() in _CAPITALS.split() and capital != name:
            return rf"$\{capital.capitalize()}$"
    parts = unicodedata.normalize("NFD", c)
    if len(parts) == 2 and parts[0].isascii() and parts[0].isalpha() and parts[1] in _ACCENTS:
        return rf"\{_ACCENTS[parts[1]]}{{{parts[0]}}}"
    return f"{OTHER}{{{ord(c):X}}}"
