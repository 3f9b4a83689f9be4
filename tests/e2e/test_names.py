"""Names: no public function or class of a folder has the name of another one in it, and a function of analytics has a
verb or a noun for what it does or gives."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACTS = {"main", "run", "add_arguments", "plot", "report", "PowerdCallback"}
"""What several modules give on purpose: entry points, commands, one callback for each trainer."""
PARTICIPLE = re.compile(r"[a-z]+(ed|en|own|ing)")
IRREGULAR = {
    "begun", "bound", "bought", "brought", "built", "cut", "done", "felt", "found", "held", "kept", "led", "left",
    "lost", "made", "met", "paid", "put", "read", "said", "sent", "set", "sold", "split", "spread", "stood", "taught",
    "thought", "told", "worn", "wound",
}  # fmt: skip
LIKE_PARTICIPLES = {"heading", "naming", "shorten"}
"""Those that may stay: a noun, a context manager that is read as `with naming(file)`, a verb."""


def public_names(path, kinds=ast.FunctionDef | ast.ClassDef):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    definitions = (node for node in tree.body if isinstance(node, kinds))
    return {node.name for node in definitions if not node.name.startswith("_")} - CONTRACTS


def test_no_name_stands_twice_in_a_folder():
    files = defaultdict(list)
    for root in ("powerd", "client", "analytics"):
        for path in (ROOT / root).rglob("*.py"):
            for name in public_names(path):
                files[path.parent.relative_to(ROOT), name].append(path.name)
    assert len(files) > 1000
    assert not {place: names for place, names in files.items() if len(names) > 1}


def is_participle(name):
    return PARTICIPLE.fullmatch(name) is not None or name in IRREGULAR


def test_no_function_of_analytics_is_a_bare_participle():
    assert is_participle("joined")
    assert is_participle("kept")
    assert not is_participle("join_texts")
    paths = (ROOT / "analytics").rglob("*.py")
    found = {(path.name, name) for path in paths for name in public_names(path, ast.FunctionDef)}
    assert len(found) > 500
    assert {name for _, name in found if is_participle(name)} == LIKE_PARTICIPLES
