"""The built site made whole: equations become MathML, which browsers draw without a script, and what is in the pages is
looked at. `make docs` runs it: python docs/site.py build/site
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
LOADING = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
"""The attribute by which an element loads something by itself. ``a`` leads to where its reader goes."""
OF_THE_MAKING = ("site.py", "docstrings.py", "tutorial/renew.py", "explanation/energy_pictures.py")
"""Programs beside the pages, which no page shows."""
NOT_LOADED = ("canonical", "next", "prev", "alternate")
"""Kinds of ``link`` that are only said."""


def with_mathml(page: str) -> str:
    """A page whose equations, marked by pymdownx.arithmatex, are MathML."""
    from latex2mathml.converter import convert

    def drawn(match: re.Match[str]) -> str:
        display = "block" if match[2] == "[" else "inline"
        return f'<{match[1]} class="arithmatex">{convert(html.unescape(match[3]), display=display)}</{match[1]}>'

    return EQUATION.sub(drawn, page)


class Page(HTMLParser):
    """What a page loads, where it leads, and what can be led to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        of_link = tag != "link" or given.get("rel") not in NOT_LOADED
        if tag in LOADING and LOADING[tag] in given and of_link:
            self.loaded.append(given[LOADING[tag]])


def faults(site: Path) -> Iterator[str]:
    """What is wrong in the site, a line each: links that lead nowhere, and what is loaded from elsewhere."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: nobody knows where it is shown
            continue
        name = path.relative_to(site)
        for address in page.loaded:
            if urlsplit(address).scheme in ("http", "https") or address.startswith("//"):
                yield f"{name} loads {address}"
            elif not urlsplit(address).scheme and not _target(path, address).exists():
                yield f"{name} loads {address}, which is not there"
        for address in page.links:
            parts, target = urlsplit(address), _target(path, address)
            if parts.scheme or parts.netloc:
                continue
            if not target.exists():
                yield f"{name} leads to {address}, which is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name} leads to {address}: there is no such place in it"


def _target(page: Path, address: str) -> Path:
    path = unquote(urlsplit(address).path)
    target = (page.parent / path).resolve() if path else page
    return target / "index.html" if target.is_dir() else target


def main(site: Path) -> int:
    """Exit status 1 where something is wrong."""
    site = site.resolve()
    for path in [*site.rglob("__pycache__"), *(site / name for name in OF_THE_MAKING)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in site.rglob("*.html"):
        path.write_text(with_mathml(path.read_text(encoding="utf-8")), encoding="utf-8")
    wrong = list(faults(site))
    print("\n".join(wrong) or f"{site.name}: nothing is loaded from elsewhere, and every link leads somewhere")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
