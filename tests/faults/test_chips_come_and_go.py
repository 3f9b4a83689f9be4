"""Chips of the simulated bus come and go for ten minutes while ten busy loops hold everything up."""

import os
import random
import subprocess
import sys
import time

import pytest

from faults.account import take_account
from faults.processes import wait_for
from faults.stage import QUICK, Stage, hold, staged
from powerd_analytics.run_tables.verification import verify_run

MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
BUSY_LOOPS = 10
WORDS = ("dead", "wrong-device", "nack", "brown-out", "latency")


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_times_increase_and_every_missing_row_is_declared():
    draw, changes, said = random.Random(1), 0, {}
    stage = Stage(QUICK, source="sim")
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_LOOPS)]
    try:
        with staged(stage):
            stage.train()
            end_s = time.monotonic() + MINUTES * 60
            while time.monotonic() < end_s:
                for word in (draw.choice(WORDS), ""):
                    stage.script.write_text(word)
                    hold(draw.uniform(0.1, 2.0))
                changes += 1
            wait_for("powerd says what it counted", lambda: said.update(stage.stats() or {}) or said)
            counts = said["streams"][0]["sampler"]["sensors"]
            assert stage.finish_training() == 0
            account = take_account(stage.out)
            wrong = [finding for finding in verify_run(stage.out) if finding.state == "wrong"]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    print(f"{MINUTES:g} min, {changes} faults, {account.received} readings, {account.lost} lost; {counts}")
    assert counts["given_up"] > 0
    assert account.problems == []
    assert account.lost == account.declared
    assert wrong == []
    assert stage.problems == []
