"""Every registered source inherits the conformance class in its tests, and the documentation names its options."""

import ast
from pathlib import Path

import pytest

from powerd_daemon.sources.base import find_source, kinds

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
