"""What the pages show is what the commands print: each transcript is made again, and its lines have the same form.

Figures differ from machine to machine, and with them which phases a sensor resolves; what is computed, as a simulated
campaign, is the same to the digit. `make docs-renew` writes the pages anew.
"""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("renew", ROOT / "docs/tutorial/renew.py")
renew = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(renew)

PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if renew.BLOCK.search(page.read_text(encoding="utf-8")))
SHOWN = {
    (page, name): [text for _, other, text in renew.BLOCK.findall(page.read_text(encoding="utf-8")) if other == name]
    for page in PAGES
    for _, name, _ in renew.BLOCK.findall(page.read_text(encoding="utf-8"))
}
"""The blocks of each transcript, which share a directory."""
PRINTING = [
    key
    for key, blocks in SHOWN.items()
    if any(line and not line.startswith("$ ") for line in "".join(blocks).split("\n"))
]


def forms(printed: str) -> list[str]:
    """By line, what any machine prints: the first words without figures. Shares, rests and notes differ."""
    forms, is_computed = [], False
    for line in printed.splitlines():
        if line.startswith("$ "):
            is_computed = line.startswith("$ joules campaign table")
            forms.append(line)
        elif is_computed:
            forms.append(line.rstrip())
        elif row := re.match(r"\s+[├└] (\w+)", line):
            forms.append(row[1])
        elif re.match(r"\S|\s+next:|\s+\d+\s+iteration", line):
            forms.append(" ".join(re.sub(r"\d[\d.]*", "#", line).split()[:3]))
    return [form for form in forms if form and not form.startswith("{'")]


@pytest.mark.parametrize(("page", "name"), PRINTING, ids=[f"{page.stem}-{name}" for page, name in PRINTING])
def test_a_page_shows_what_is_printed(tmp_path, page, name):
    needed = renew.NEEDS.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed here")
    renew.set_scene(tmp_path / name)
    for text in SHOWN[page, name]:
        assert forms(renew.transcript(text, tmp_path / name)) == forms(text)


def test_a_line_that_is_not_printed_any_more_is_found():
    text = "$ joules tables a.h5\na.h5 · 5.43 s\nbatch  phase     n  s/batch\n   32  iteration 50  0.108\n"
    assert forms(text) == forms(text.replace("0.108", "0.2").replace("5.43", "6"))
    assert forms(text) != forms(text.replace("iteration", "step"))
    campaign = "$ joules campaign table c.toml\n  vgg19   E   140\n"
    assert forms(campaign) != forms(campaign.replace("140", "160"))
