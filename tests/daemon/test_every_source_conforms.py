"""The one conformance class is inherited by tests of every registered source."""

import ast
from pathlib import Path

import pytest

from powerd_daemon.registry import find_source, kinds


def conforming() -> set[str]:
    """What the `make` of each class that inherits the conformance class mentions."""
    found: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id == "SourceConformance" for base in node.bases
            ):
                made = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "make"), None)
                found |= {n.id for n in ast.walk(made or node) if isinstance(n, ast.Name)}
    return found


@pytest.mark.parametrize("kind", kinds())
def test_it_is_inherited_for(kind: str) -> None:
    assert find_source(kind).__name__ in conforming()
