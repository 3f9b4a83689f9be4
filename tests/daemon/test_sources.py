"""Every registered source inherits the conformance class in its tests, and the documentation names its options."""

import ast
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from powerd_daemon.sources.base import find_source, kinds

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text()


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
def test_options_are_those_of_the_table_required_first(kind: str) -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{kind}` |"))
    by_need = sorted(
        fields(find_source(kind).Options), key=lambda f: f.default is not MISSING or f.default_factory is not MISSING
    )
    assert re.findall(r"`(\w+)`", row.split("|")[2]) == [f.name for f in by_need]
