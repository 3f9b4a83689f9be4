"""`joules optimise run`: one SQLite file that several processes share, and a real recording of a small training."""

import json
import multiprocessing
import sqlite3
import sys
from pathlib import Path

import pytest
from common import powerd

from analytics.support.command import joules, refused
from powerd_analytics.cli.optimise import _outcome
from powerd_analytics.optimise.policy import Job, Observation, Outcome, Settings, Target, carry_out, find_policy
from powerd_analytics.optimise.recurrences import Recurrences
from powerd_analytics.optimise.traces import TraceEnvironment, read_zeus
from powerd_core.errors import ConfigError

TRACES = Path(__file__).parents[2] / "data/zeus/traces"
TRACE = next(t for t in read_zeus(TRACES, "v100") if t.job.name == "squad")
JOB = Job("small", (8, 16, 32), (), Settings(16), Target(0.9), 20, 100.0, 1.0)


@pytest.fixture
def known(tmp_path):
    return Recurrences(tmp_path / "state.sqlite", JOB, "ours")


def reached(trial, epochs=5, energy_j=100.0):
    return Outcome("reached", epochs, energy_j, 10.0, trial.settings)


def test_a_log_on_disk_decides_as_the_policy_in_memory(tmp_path):
    """A new process asks every time; the trace answers both alike."""
    policy = find_policy("ours")(TRACE.job, 0)
    there, here = TraceEnvironment(TRACE, 4), TraceEnvironment(TRACE, 4)
    for recurrence in range(12):
        known = Recurrences(tmp_path / "state.sqlite", TRACE.job, "ours")
        assert known.new_recurrence() == recurrence
        trial, wanted = known.begin(recurrence), policy.begin(recurrence)
        assert trial == wanted
        seen = []

        class Watched(type(policy)):
            def observe(self, trial, observation, seen=seen):
                seen.append(observation)
                return super().observe(trial, observation)

        outcome = carry_out(Watched.restore(policy.state()), there, trial)
        known.end(trial, outcome, seen)
        policy.end(wanted, carry_out(policy, here, wanted))
    found = [(trial.number, outcome.is_reached) for trial, outcome in known.ended()]
    assert found == [(number, True) for number in range(12)]


def test_a_recurrence_sees_what_is_pending(known):
    first = known.begin(known.new_recurrence())
    known.end(first, reached(first))
    sizes = [known.begin(known.new_recurrence()).settings.batch_size for _ in range(3)]
    assert len(set(sizes)) > 1


def begin_and_vanish(path):
    Recurrences(path, JOB, "ours").begin(0)


def test_a_process_that_vanished_is_lost_and_teaches_nothing(known):
    other = multiprocessing.get_context("spawn").Process(target=begin_and_vanish, args=(known.path,))
    other.start()
    other.join()
    assert other.exitcode == 0
    trial = known.begin(known.new_recurrence())
    assert trial.number == 1
    assert [outcome.ending for _, outcome in known.ended()] == ["lost"]
    state = json.loads(sqlite3.connect(known.path).execute("SELECT state FROM policies").fetchone()[0])
    assert state["memory"]["past"] == []


def test_an_end_that_is_told_twice_counts_once(known):
    trial = known.begin(known.new_recurrence())
    for _ in range(2):
        known.end(trial, reached(trial))
    state = json.loads(sqlite3.connect(known.path).execute("SELECT state FROM policies").fetchone()[0])
    assert len(state["memory"]["past"]) == 1


def test_another_job_of_the_same_name_is_refused(known):
    known.begin(known.new_recurrence())
    other = Job("small", (8, 16), (), Settings(16), Target(0.9), 20, 100.0, 1.0)
    with pytest.raises(ConfigError, match="name it anew"):
        Recurrences(known.path, other, "ours").begin(1)


def test_a_file_that_is_no_state_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    path.write_text("hello, this is no database at all" * 50)
    with pytest.raises(ConfigError, match="cannot be used as the state"):
        Recurrences(path, JOB, "ours").new_recurrence()


TRAINING = """
import sys, time
from powerd_client import Meter
with Meter() as meter:
    for epoch in (1, 2, 3):
        with meter.phase("epoch"):
            time.sleep(0.02)
        meter.result(epoch=epoch, top1=0.3 * epoch)
"""
SOURCE = '[[source]]\nkind = "sim"\nwaveform = "constant"\n'


def test_a_recurrence_of_a_recorded_training(capsys, tmp_path):
    script, state = tmp_path / "train.py", tmp_path / "state.sqlite"
    script.write_text(TRAINING)
    with powerd(SOURCE) as (url, _):
        own = ("--batch-sizes", "16,8", "--target", 0.89, "--metric", "top1", "--url", url, "--state", state)
        command = ("--job", "toy", "--", sys.executable, script, "{batch_size}")
        code, _, err = joules(capsys, "optimise", "run", *own, *command)
    assert code == 0
    assert "recurrence 1 of toy: batch size 16" in err
    assert "target reached in 3 epochs" in err
    assert (tmp_path / "toy-1.h5").exists()
    job = Job("toy", (8, 16), (), Settings(16), Target(0.89), 100, 1.0, 1.0)
    ((trial, outcome),) = Recurrences(state, job, "ours").ended()
    assert trial.settings.batch_size == 16
    assert (outcome.ending, outcome.epochs) == ("reached", 3)
    assert outcome.energy_j > 0
    assert outcome.time_s >= 0.06


@pytest.mark.parametrize(
    ("metrics", "broke", "ending"),
    [
        ([0.5, 0.91], False, "reached"),
        ([0.91, 0.89], False, "reached"),  # the best one counts
        ([0.5, 0.91], True, "reached"),  # what breaks behind its target has done its work
        ([0.5, 0.6], False, "failed"),
        ([0.5, 0.6], True, "lost"),
        ([], False, "lost"),
    ],
)
def test_how_a_training_ended(metrics, broke, ending):
    seen = [Observation(n, 10.0 * n, n, Settings(16), metric) for n, metric in enumerate(metrics, 1)]
    outcome = _outcome(seen, JOB, broke=broke)
    assert (outcome.ending, outcome.epochs) == (ending, len(metrics))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch-sizes", "8", "--", "true"), "needs {batch_size}"),
        (("--batch-sizes", "8,x", "--", "{batch_size}"), "whole numbers"),
        (("--batch-sizes", "8,8", "--", "{batch_size}"), "each once"),
        (("--batch-sizes", "8", "--eta", "0.5", "--", "{batch_size}"), "--max-power"),
        (("--batch-sizes", "8", "--runs", "/nowhere", "--", "{batch_size}"), "no directory"),
    ],
)
def test_what_cannot_be_run_is_one_line(capsys, options, message):
    assert message in refused(capsys, "optimise", "run", "--target", "0.9", *options)
