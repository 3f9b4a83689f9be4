"""Every input that ever broke a target, once more, and each target for a moment with inputs of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
CORPUS = HERE.parent / "fuzz_corpus"
TARGETS = sorted(p.stem.removeprefix("target_") for p in HERE.glob("target_*.py"))
KEPT = sorted(p for p in CORPUS.glob("*/*") if p.is_file())
SLOW = {"campaign_journal": 15, "journal": 10, "optimiser_state": 15, "powerd": 40, "replay": 40}


def target(name: str) -> Callable[[bytes], None]:
    found: Callable[[bytes], None] = importlib.import_module(f"fuzzing.target_{name}").one
    return found


def test_every_kept_input_is_of_a_target():
    assert KEPT
    assert {p.parent.name for p in KEPT} <= set(TARGETS)


@pytest.mark.parametrize("path", KEPT, ids=[f"{p.parent.name}-{p.name}" for p in KEPT])
def test_what_broke_it_once_does_so_no_more(path):
    target(path.parent.name)(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_anything_at_all(name):
    one = target(name)

    @settings(max_examples=SLOW.get(name, 100), suppress_health_check=list(HealthCheck), deadline=None)
    @given(st.binary(max_size=300))
    def holds(data: bytes) -> None:
        one(data)

    holds()
