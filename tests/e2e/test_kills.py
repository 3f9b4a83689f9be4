"""`kill -9` of each process while a run is recorded; `benchmarks/bench_kills.py` does the same twenty times each."""

import pytest
from bench_kills import TARGETS, one


@pytest.mark.parametrize(("target", "delay_s"), list(zip(TARGETS, (0.3, 1.7, 0.8), strict=True)))
def test_a_run_survives(target, delay_s, tmp_path):
    outcome = one((target,), delay_s, tmp_path)
    assert outcome.problems == ()
    assert outcome.phases > 5
    assert outcome.readings > 0
