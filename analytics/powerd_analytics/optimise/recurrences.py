"""What a policy knows of a job that recurs on this machine, in one SQLite file that several processes share.

`Recurrences.begin`, `observe` and `end` each are one transaction: the policy is made from its state, asked, and its new
state is kept, so that recurrences that overlap see what the others have pending. A trial whose process has vanished
without a word counts as lost: nothing is learnt of it.

All that the policy was asked and what it answered stands in the file, in order.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from powerd_analytics.optimise.policy import (
    Decision,
    Job,
    Observation,
    Outcome,
    Policy,
    Stop,
    TrainingSettings,
    Trial,
    find_policy,
)
from powerd_client.host.database import WAIT_S, make_tables, own_database
from powerd_client.host.hostclock import started
from powerd_client.host.log import tell
from powerd_core.errors import ConfigError
from powerd_core.serde import from_document, to_document
from powerd_core.text import printable

_TABLES = {
    "policies": "(job TEXT PRIMARY KEY, recurrences INTEGER NOT NULL, state TEXT NOT NULL)",
    "trials": (
        "(job TEXT NOT NULL, number INTEGER NOT NULL, trial TEXT NOT NULL, pid INTEGER NOT NULL, began TEXT NOT NULL, "
        "outcome TEXT, run TEXT, PRIMARY KEY (job, number))"
    ),
    "steps": (
        "(step INTEGER PRIMARY KEY, job TEXT NOT NULL, what TEXT NOT NULL, number INTEGER NOT NULL, "
        "told TEXT NOT NULL, answer TEXT NOT NULL)"
    ),
}
_SILENT_S = 1.0
"""After so long the user is told what is waited for."""
_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What the contents of a file raise that no program of ours wrote so; `WireError` is a ValueError."""


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raises `ConfigError`, one line, for a state that cannot be used."""
    try:
        yield
    except ConfigError:
        raise
    except sqlite3.Error as error:
        raise ConfigError(f"{path} cannot be used as the state of an optimiser: {error}") from error
    except _DAMAGED as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{path}: this state of an optimiser is damaged: {printable(why, limit=200)}") from error


def _begin(rows: sqlite3.Connection, path: Path) -> None:
    """Take the file's lock; say so where that takes long. Raises `sqlite3.Error`."""
    rows.execute(f"PRAGMA busy_timeout = {round(_SILENT_S * 1e3)}")
    try:
        rows.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        tell(f"waiting for {path}, which another process has locked, for {WAIT_S:g} s at most")
        rows.execute(f"PRAGMA busy_timeout = {round(WAIT_S * 1e3)}")
        rows.execute("BEGIN IMMEDIATE")


class Recurrences:
    """The file at ``path``, for one job. Raises `ConfigError` for a file that is none, or of another job or policy."""

    def __init__(self, path: Path, job: Job, policy: str, seed: int = 0) -> None:
        self.path, self.job, self._policy, self._seed = path, job, find_policy(policy), seed

    def new_recurrence(self) -> int:
        """The number of a recurrence that begins."""
        with self._transaction() as (rows, policy, recurrences):
            self._keep(rows, policy, recurrences + 1)
            return recurrences

    def begin(self, recurrence: int) -> Trial:
        """The next trial of a recurrence, to be carried out by this process."""
        with self._transaction() as (rows, policy, recurrences):
            pending = self._pending(rows, policy)
            trial = policy.begin(recurrence, pending)
            told = {"recurrence": recurrence, "pending": [other.number for other in pending]}
            self._log(rows, "begin", trial.number, told, to_document(trial))
            owner = (os.getpid(), started(os.getpid()) or "")
            rows.execute(
                "INSERT INTO trials (job, number, trial, pid, began) VALUES (?, ?, ?, ?, ?)",
                (self.job.name, trial.number, json.dumps(to_document(trial)), *owner),
            )
            self._keep(rows, policy, recurrences)
            return trial

    def observe(self, trial: Trial, observation: Observation) -> Decision:
        """What the policy decides on a training that goes on. Of one that has ended already: to stop."""
        with self._transaction() as (rows, policy, recurrences):
            query = "SELECT 1 FROM trials WHERE job = ? AND number = ? AND outcome IS NULL"
            if rows.execute(query, (self.job.name, trial.number)).fetchone() is None:
                return Stop()
            decision = self._observed(rows, policy, trial, observation)
            self._keep(rows, policy, recurrences)
            return decision

    def end(
        self, trial: Trial, outcome: Outcome, observations: Sequence[Observation] = (), run: Path | None = None
    ) -> None:
        """Learn from a trial, and from what was seen of it that the policy was not asked about. What is said of one
        that has ended already changes nothing."""
        with self._transaction() as (rows, policy, recurrences):
            self._end(rows, policy, trial, outcome, observations, run)
            self._keep(rows, policy, recurrences)

    # -- inside a transaction ------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[tuple[sqlite3.Connection, Policy, int]]:
        """The rows, the policy and the number of recurrences begun. All changes are kept, or none."""
        with _readable(self.path), _opened(self.path) as rows:
            _begin(rows, self.path)
            try:
                make_tables(rows, _TABLES)
                yield rows, *self._read(rows)
            except BaseException:
                rows.execute("ROLLBACK")
                raise
            rows.execute("COMMIT")

    def _read(self, rows: sqlite3.Connection) -> tuple[Policy, int]:
        found = rows.execute("SELECT state, recurrences FROM policies WHERE job = ?", (self.job.name,)).fetchone()
        if found is None:
            return self._policy(self.job, self._seed), 0
        policy = self._policy.restore(json.loads(found[0]))
        if policy.job != self.job:
            raise ConfigError(f"{self.path}: job {self.job.name!r} had other batch sizes, target or eta; name it anew")
        return policy, int(found[1])

    def _keep(self, rows: sqlite3.Connection, policy: Policy, recurrences: int) -> None:
        row: tuple[Any, ...] = (self.job.name, recurrences, json.dumps(policy.state()))
        rows.execute("INSERT OR REPLACE INTO policies (job, recurrences, state) VALUES (?, ?, ?)", row)

    def _pending(self, rows: sqlite3.Connection, policy: Policy) -> list[Trial]:
        """Trials that go on; those whose process has vanished are ended as lost."""
        query = "SELECT trial, pid, began FROM trials WHERE job = ? AND outcome IS NULL ORDER BY number"
        pending = []
        for text, pid, began in rows.execute(query, (self.job.name,)).fetchall():
            trial = from_document(Trial, json.loads(text))
            if started(pid) == began:
                pending.append(trial)
                continue
            lost = Outcome("lost", 0, 0.0, 0.0, TrainingSettings(trial.settings.batch_size))
            self._end(rows, policy, trial, lost)
        return pending

    def _observed(self, rows: sqlite3.Connection, policy: Policy, trial: Trial, observation: Observation) -> Decision:
        decision = policy.observe(trial, observation)
        self._log(rows, "observe", trial.number, _told(observation), _decision(decision))
        return decision

    def _log(self, rows: sqlite3.Connection, what: str, number: int, told: Any, answer: Any) -> None:
        row = (self.job.name, what, number, json.dumps(told), json.dumps(answer))
        rows.execute("INSERT INTO steps (job, what, number, told, answer) VALUES (?, ?, ?, ?, ?)", row)

    def _end(
        self, rows: sqlite3.Connection, policy: Policy, trial: Trial, outcome: Outcome,
        observations: Sequence[Observation] = (), run: Path | None = None,
    ) -> None:  # fmt: skip
        """End a trial, unless it has ended already."""
        values = (json.dumps(to_document(outcome)), None if run is None else str(run), self.job.name, trial.number)
        query = "UPDATE trials SET outcome = ?, run = ? WHERE job = ? AND number = ? AND outcome IS NULL"
        if rows.execute(query, values).rowcount != 1:
            return
        for observation in observations:
            self._observed(rows, policy, trial, observation)  # too late to decide; its learning curve is worth keeping
        policy.end(trial, outcome)
        self._log(rows, "end", trial.number, to_document(outcome), None)


def _opened(path: Path) -> closing[sqlite3.Connection]:
    """The database of a state. Raises `ConfigError` and `sqlite3.Error`, as `own_database`."""
    return closing(own_database(path, _TABLES, "the state of an optimiser", "name another file with --state"))


def _decision(decision: Decision) -> Any:
    """For JSON."""
    return {type(decision).__name__: to_document(decision)}


def _told(observation: Observation) -> Any:
    """For JSON, which has no numbers as keys."""
    costs = [[cap_w, cost.energy_j, cost.time_s] for cap_w, cost in observation.profile.items()]
    return {**to_document(replace(observation, profile={})), "profile": costs}
