"""One word means one thing: no public function or class of a folder has the name of another one in it."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACTS = {"main", "run", "add_arguments", "plot", "report", "PowerdCallback"}
"""What several modules give on purpose: entry points, commands, one callback for each trainer."""


def public_names(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    definitions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return {node.name for node in definitions if not node.name.startswith("_")} - CONTRACTS


def test_no_name_stands_twice_in_a_folder():
    files = defaultdict(list)
    for root in ("powerd", "client", "analytics"):
        for path in (ROOT / root).rglob("*.py"):
            for name in public_names(path):
                files[path.parent.relative_to(ROOT), name].append(path.name)
    assert len(files) > 1000
    assert not {place: names for place, names in files.items() if len(names) > 1}
