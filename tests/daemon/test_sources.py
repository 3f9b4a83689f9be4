"""Every registered source inherits the conformance class in its tests, and the documentation names its options."""

import ast
import re
from pathlib import Path

import pytest

from powerd_daemon.cli import SOURCES
from powerd_daemon.commands import make_parser
from powerd_daemon.sources.base import UNTESTED, find_source, kinds

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "sources.md").read_text()


def conforming() -> set[str]:
    """What the `make` of each class that inherits the conformance class mentions."""
    names: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id == "SourceConformance" for base in node.bases
            ):
                make = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "make"), None)
                names |= {n.id for n in ast.walk(make or node) if isinstance(n, ast.Name)}
    return names


@pytest.mark.parametrize("kind", kinds())
def test_the_conformance_class_is_inherited_for(kind: str) -> None:
    assert find_source(kind).__name__ in conforming()


@pytest.mark.parametrize("kind", kinds())
def test_the_reference_shows_the_options_of(kind: str) -> None:
    options = find_source(kind).Options
    assert f"::: {options.__module__}.{options.__qualname__}" in TEXT


@pytest.mark.parametrize("kind", kinds())
def test_what_met_no_hardware_says_so_where_it_is_chosen(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    sections = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    is_said = any(UNTESTED in head for head in (part.partition("\n")[0] for part in sections) if f"`{kind}`" in head)
    arguments = make_parser().parse_args(["sources", kind])
    SOURCES.run(arguments)
    shown = capsys.readouterr().out.split("\n")[0]
    untested = find_source(kind).is_untested
    assert (UNTESTED in shown, is_said) == (untested, untested)
