"""The faults that `benchmarks/planted_faults.py` plants: each still has its one place in the product."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("planted_faults", ROOT / "benchmarks" / "planted_faults.py")
planted_faults = importlib.util.module_from_spec(spec)
spec.loader.exec_module(planted_faults)


@pytest.mark.parametrize("name", planted_faults.FAULTS)
def test_a_fault_can_be_planted(name):
    path, old, new = planted_faults.FAULTS[name]
    assert (ROOT / path).read_text(encoding="utf-8").count(old) == 1
    assert old != new
