"""LaTeX that compiles, whatever the models and devices are called."""

import shutil
import subprocess
import unicodedata

import pytest
from command import joules
from hypothesis import given
from hypothesis import strategies as st
from make_campaign import one_run

from powerd_analytics.exports import to_latex
from powerd_analytics.exports.latextext import OTHER, escaped
from powerd_analytics.exports.sheet import Sheet, SheetColumn

NAME = "A_b%&#~^\\ {x} $ é±µ≥–ñøß 深度 \"q\" 'p' `r` <z>|y α→Ω²°½€ -- [*] ζς ǆ"
PDFLATEX = shutil.which("pdflatex")


def compiled(folder, body):
    """What pdflatex says of a document with ``body`` in it and booktabs in its preamble; None where all is well."""
    text = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + body + "\\listoftables\n"
    (folder / "document.tex").write_text(text + "\\end{document}\n", encoding="ascii")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "document.tex"]
    for _ in range(2):  # the second reads the captions that the first wrote
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    wrong = [line for line in done.stdout.splitlines() if line.startswith("!")]
    return wrong or None if done.returncode or wrong else None


@given(st.text(max_size=20))
def test_text_is_ascii_with_its_braces_closed(text):
    made = escaped(text)
    assert made.isascii()
    bare = made.replace("\\{", "").replace("\\}", "")
    assert bare.count("{") == bare.count("}")
    assert "--" not in escaped(text.replace("–", "").replace("—", ""))


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("a_b & 50%", r"a\_b \& 50\%"),
        ("Café", r"Caf\'{e}"),
        ("10 µs ± 2 %", r"10 $\mu$s $\pm$ 2 \%"),
        ("βΩλ", r"$\beta$$\Omega$$\lambda$"),
        ("--lr", r"-{}-lr"),
        ("深", OTHER + "{6DF1}"),
    ],
)
def test_characters_by_hand(text, made):
    assert escaped(text) == made


def test_the_definition_for_other_characters_stands_only_where_it_is_needed():
    def one(name):
        return to_latex([Sheet("a b/ü", "t", (SheetColumn("x", "x", "text"),), ((name,),))])

    assert OTHER not in one("plain")
    assert one("深").count(r"\protected\def" + OTHER) == 1
    assert r"\label{tab:a-b--}" in one("plain")


@pytest.mark.skipif(PDFLATEX is None, reason="there is no pdflatex on this machine")
def test_every_latex_output_compiles(tmp_path, capsys):
    for name, scale in (("a", 1.0), ("b", 0.8)):
        (tmp_path / name).mkdir()
        for i in range(2):
            path = tmp_path / name / f"{i}_&%.h5"
            one_run(path, scale, model=NAME, iterations=5, noise_w=2.0, seed=i, device_name=name + NAME)
    a, b = tmp_path / "a", tmp_path / "b"
    whole = ("--epochs", 2, "--dataset-size", 1000)
    outputs = [("tables", a, b, "--table", t, *whole) for t in ("time", "energy", "totals", "efficiency", "gain")]
    outputs += [
        ("tables", a, b, "--table", "records"),
        ("tables", a, b, "--pivot", "phase,model:product,batch:j-per-batch", "--averages"),
        ("tables", a / "0_&%.h5"),
        ("compare", a, b),
    ]
    body = []
    for arguments in outputs:
        code, out, err = joules(capsys, *arguments, "--format", "latex")
        assert (code, err.strip()) == (0, "")
        assert r"\toprule" in out
        body.append(out)
    assert compiled(tmp_path, "\n\\clearpage\n".join(body)) is None
    assert (tmp_path / "document.pdf").stat().st_size > 10_000


@pytest.mark.skipif(PDFLATEX is None, reason="there is no pdflatex on this machine")
def test_every_character_of_europe_compiles(tmp_path):
    characters = [chr(c) for c in (*range(0x21, 0x250), *range(0x370, 0x530), *range(0x2010, 0x2300))]
    shown = [c for c in characters if unicodedata.category(c)[0] != "C"]
    rows = tuple(("".join(shown[i : i + 16]), c) for i, c in enumerate(shown[::16]))
    columns = (SheetColumn("x", "x", "text"), SheetColumn("y", "y", "text"))
    sheets = [
        Sheet(f"t{i}", "[" + "".join(shown[i : i + 40]), columns, rows[i : i + 30]) for i in range(0, len(rows), 30)
    ]
    assert compiled(tmp_path, "\\clearpage\n".join([to_latex(sheets)])) is None
