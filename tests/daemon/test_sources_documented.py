"""The documentation names every option of every source, and no other."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from powerd_daemon.registry import find_source

OURS = ("ina", "node", "sim", "cpu-model", "replay", "wt310e", "serial-line", "rapl", "nvml")
TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


@pytest.mark.parametrize("kind", OURS)
def test_options_are_those_of_the_table(kind):
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{kind}` |"))
    assert re.findall(r"`(\w+)`", row.split("|")[2]) == [f.name for f in fields(find_source(kind).Options)]
