"""`joules optimise run`: one SQLite file that several processes share, and a real recording of a small training."""

import json
import multiprocessing
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from common import powerd
from replaying import ended, replayed

from analytics.support.command import joules, refused
from powerd_analytics.optimise import recurrences
from powerd_analytics.optimise.policy import Job, Observation, Outcome, Target, TrainingSettings, carry_out, find_policy
from powerd_analytics.optimise.recurrences import Recurrences
from powerd_analytics.optimise.traces import TraceEnvironment, read_zeus
from powerd_analytics.optimise.watched_training import outcome_of
from powerd_analytics.runs.run import read_run
from powerd_core.errors import ConfigError

TRACES = Path(__file__).parents[2] / "data/zeus/traces"
TRACE = next(t for t in read_zeus(TRACES, "v100") if t.job.name == "squad")
JOB = Job("small", (8, 16, 32), (), TrainingSettings(16), Target(0.9), 20, 100.0, 1.0)


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
    found = [(trial.number, outcome.is_reached) for trial, outcome in ended(known.path, known.job.name)]
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
    assert [outcome.ending for _, outcome in ended(known.path, known.job.name)] == ["lost"]
    with closing(sqlite3.connect(known.path)) as rows:
        state = json.loads(rows.execute("SELECT state FROM policies").fetchone()[0])
    assert state["memory"]["past"] == []


def test_an_end_that_is_told_twice_counts_once(known):
    trial = known.begin(known.new_recurrence())
    for _ in range(2):
        known.end(trial, reached(trial))
    with closing(sqlite3.connect(known.path)) as rows:
        state = json.loads(rows.execute("SELECT state FROM policies").fetchone()[0])
    assert len(state["memory"]["past"]) == 1


def test_another_job_of_the_same_name_is_refused(known):
    known.begin(known.new_recurrence())
    other = Job("small", (8, 16), (), TrainingSettings(16), Target(0.9), 20, 100.0, 1.0)
    with pytest.raises(ConfigError, match="name it anew"):
        Recurrences(known.path, other, "ours").begin(1)


def test_a_file_that_is_no_state_is_refused(tmp_path):
    path = tmp_path / "state.sqlite"
    path.write_text("hello, this is no database at all" * 50)
    with pytest.raises(ConfigError, match="cannot be used as the state"):
        Recurrences(path, JOB, "ours").new_recurrence()


SOURCE = '[[source]]\nkind = "sim"\nwaveform = "constant"\n'


@pytest.mark.parametrize("state", ["{", "[]", "[" * 9000, '{"job": 1}', "null", b"\xff\xfe", 7])
def test_a_damaged_state_is_one_line(known, state):
    known.begin(known.new_recurrence())
    with closing(sqlite3.connect(known.path)) as rows, rows:
        rows.execute("UPDATE policies SET state = ?", (state,))
    for ask in (lambda: known.begin(1),):
        with pytest.raises(ConfigError, match=r"state.*(damaged: [^\n]{3,300}|cannot go on with it)$"):
            ask()


def test_it_says_that_it_waits_for_a_lock(known, monkeypatch):
    known.new_recurrence()
    monkeypatch.setattr(recurrences, "_SILENT_S", 0.001)
    monkeypatch.setattr(recurrences, "WAIT_S", 0.01)
    told = []
    monkeypatch.setattr(recurrences, "tell", told.append)
    with closing(sqlite3.connect(known.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ConfigError, match="locked"):
            known.new_recurrence()
    assert [str(known.path) in text and "locked" in text for text in told] == [True]
    assert known.new_recurrence() == 1


HOPELESS = """
import signal, sys, time
from powerd_client import Meter
size = int(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (open(f"ended-{size}", "w").close(), sys.exit(3)))
with Meter() as meter:
    for epoch in range(1, 400):
        time.sleep(0.03)
        top1 = min(0.3 * epoch, 0.9) if size == 16 else 0.1
        meter.result(epoch=epoch, top1=top1)
        if top1 >= float(sys.argv[2]):
            break
"""


def hopeless(capsys, folder, url, *options, target=0.9, max_epochs=400):
    (folder / "train.py").write_text(HOPELESS)
    own = ("--batch-sizes", "16,8,32", "--target", target, "--metric", "top1", "--url", url)
    state = ("--state", folder / "state.sqlite", "--max-epochs", max_epochs, *options)
    return joules(capsys, "optimise", "run", *own, *state, "--", sys.executable, "train.py", "{batch_size}", target)


def test_a_hopeless_training_is_stopped_and_the_policy_learns_from_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with powerd(SOURCE) as (url, _):
        code, _, err = hopeless(capsys, tmp_path, url)
        assert code == 0, err
        assert "recurrence 1 of job: batch size 16" in err
        assert "target reached in 4 epochs" in err
        assert (tmp_path / "job-1.h5").exists()
        code, _, err = hopeless(capsys, tmp_path, url)
    assert code == 0
    assert "stopped, as it is not worth its cost, in " in err
    job = Job("job", (8, 16, 32), (), TrainingSettings(16), Target(0.9), 400, 1.0, 1.0)
    known = Recurrences(tmp_path / "state.sqlite", job, "ours")
    (_, first), (trial, stopped), *_, (_, last) = ended(known.path, known.job.name)
    assert (first.ending, stopped.ending, last.ending) == ("reached", "stopped", "reached")
    assert first.epochs == 4
    assert first.energy_j > 0
    assert first.time_s >= 0.12
    assert 1 <= stopped.epochs < 400
    assert stopped.energy_j > 0
    assert (tmp_path / f"ended-{trial.settings.batch_size}").exists()  # by SIGTERM, in order
    with closing(sqlite3.connect(known.path)) as rows:
        state = json.loads(rows.execute("SELECT state FROM policies").fetchone()[0])
    past = {p["batch_size"]: p["is_reached"] for p in state["memory"]["past"]}
    assert past[trial.settings.batch_size] is False
    stopped_run = read_run(tmp_path / f"job-{trial.number + 1}.h5")
    (choice,) = [event.values for event in stopped_run.events if event.name == "power-choice"]
    assert choice["decision"] == "stop"
    # The log, replayed, gives the same decisions; told another thing, it does not.
    steps = replayed(known.path, "job")
    assert all(step.is_same for step in steps)
    assert {name for step in steps if step.what == "observe" for name in step.answer} == {"Go", "Stop"}
    with closing(sqlite3.connect(known.path)) as log, log:
        log.execute("UPDATE steps SET told = replace(told, '0.9', '0.2') WHERE what = 'observe' AND number = 0")
        log.execute("UPDATE steps SET told = replace(told, 'reached', 'failed') WHERE what = 'end' AND number = 0")
    assert not all(step.is_same for step in replayed(known.path, "job"))


def test_a_training_is_ended_at_its_last_epoch(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with powerd(SOURCE) as (url, _):
        code, _, err = hopeless(capsys, tmp_path, url, "--tries", "1", target=2.0, max_epochs=2)
    assert code == 1, err
    assert "target not reached in " in err
    assert (tmp_path / "ended-16").exists()


def test_a_script_that_says_another_metric_is_told(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "from powerd_client import Meter\nwith Meter() as meter:\n    meter.result(epoch=1, accuracy=0.99)\n"
    )
    own = ("--batch-sizes", "16,8", "--target", 0.9, "--metric", "top1", "--tries", 1)
    with powerd(SOURCE) as (url, _):
        words = ("--url", url, "--", sys.executable, "train.py", "{batch_size}")
        code, _, err = joules(capsys, "optimise", "run", *own, *words)
    assert code == 2
    assert "the training says accuracy, and 'top1' was awaited" in err


def test_without_a_helper_one_line_says_what_is_missing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POWERD_CONTROL", str(tmp_path / "nobody"))
    with powerd(SOURCE) as (url, _):
        code, _, err = hopeless(capsys, tmp_path, url, "--power-caps", "100,150")
    assert code == 0, err
    (line,) = [line for line in err.splitlines() if "no power limit can be set" in line]
    assert "start `powerd-control`" in line
    assert "recurrence 1 of job-unlimited: batch size 16" in err


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_log_replays_also_where_recurrences_overlap(tmp_path, concurrency):
    known, environment = Recurrences(tmp_path / "state.sqlite", TRACE.job, "ours"), TraceEnvironment(TRACE, 5)

    class Asked:
        observe = staticmethod(known.observe)

    for _ in range(5):
        begun = [known.begin(known.new_recurrence()) for _ in range(concurrency)]
        for trial in begun:
            known.end(trial, carry_out(Asked, environment, trial))
    steps = replayed(known.path, TRACE.job.name)
    assert {step.what for step in steps} == {"begin", "observe", "end"}
    assert [step for step in steps if not step.is_same] == []


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
    seen = [Observation(n, 10.0 * n, n, TrainingSettings(16), metric) for n, metric in enumerate(metrics, 1)]
    outcome = outcome_of(seen, JOB, TrainingSettings(16), broke=broke)
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
