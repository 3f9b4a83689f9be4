"""What a policy knows of a job that recurs on this machine, in one SQLite file that several processes share.

`Recurrences.begin` and `end` each are one transaction: the policy is made from its state, asked, and its new state is
kept, so that recurrences that overlap see what the others have pending. A trial whose process has vanished without a
word counts as lost: nothing is learnt of it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from powerd_analytics.optimise.policy import Job, Observation, Outcome, Policy, Settings, Trial, find_policy
from powerd_client.hostclock import started
from powerd_core.errors import ConfigError
from powerd_core.serde import from_document, to_document

_TABLES = """
CREATE TABLE IF NOT EXISTS policies (job TEXT PRIMARY KEY, recurrences INTEGER NOT NULL, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (
    job TEXT NOT NULL, number INTEGER NOT NULL, trial TEXT NOT NULL, pid INTEGER NOT NULL, began TEXT NOT NULL,
    outcome TEXT, run TEXT, PRIMARY KEY (job, number)
);
"""
_WAIT_S = 30.0
"""For another process that decides: a decision takes milliseconds."""


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
            trial = policy.begin(recurrence, self._pending(rows, policy))
            owner = (os.getpid(), started(os.getpid()) or "")
            rows.execute(
                "INSERT INTO trials (job, number, trial, pid, began) VALUES (?, ?, ?, ?, ?)",
                (self.job.name, trial.number, json.dumps(to_document(trial)), *owner),
            )
            self._keep(rows, policy, recurrences)
            return trial

    def end(
        self, trial: Trial, outcome: Outcome, observations: Sequence[Observation] = (), run: Path | None = None
    ) -> None:
        """Learn from a trial, and from what was seen of it on its way. What is said of one that has ended already
        changes nothing."""
        with self._transaction() as (rows, policy, recurrences):
            if self._close(rows, trial, outcome, run):
                for observation in observations:
                    policy.observe(trial, observation)  # too late to decide; its learning curve is worth keeping
                policy.end(trial, outcome)
                self._keep(rows, policy, recurrences)

    def ended(self) -> list[tuple[Trial, Outcome]]:
        """All trials that have ended, by number."""
        with self._transaction() as (rows, _, _):
            query = "SELECT trial, outcome FROM trials WHERE job = ? AND outcome IS NOT NULL ORDER BY number"
            found = rows.execute(query, (self.job.name,)).fetchall()
        return [(from_document(Trial, json.loads(t)), from_document(Outcome, json.loads(o))) for t, o in found]

    # -- inside a transaction ------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[tuple[sqlite3.Connection, Policy, int]]:
        """The rows, the policy and the number of recurrences begun. All changes are kept, or none."""
        try:
            with closing(sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None)) as rows:
                rows.executescript(_TABLES)
                rows.execute("BEGIN IMMEDIATE")
                try:
                    yield rows, *self._read(rows)
                except BaseException:
                    rows.execute("ROLLBACK")
                    raise
                rows.execute("COMMIT")
        except sqlite3.Error as error:
            raise ConfigError(f"{self.path} cannot be used as the state of an optimiser: {error}") from error

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
            lost = Outcome("lost", 0, 0.0, 0.0, Settings(trial.settings.batch_size))
            self._close(rows, trial, lost, None)
            policy.end(trial, lost)
        return pending

    def _close(self, rows: sqlite3.Connection, trial: Trial, outcome: Outcome, run: Path | None) -> bool:
        """Whether the trial was open."""
        values = (json.dumps(to_document(outcome)), None if run is None else str(run), self.job.name, trial.number)
        query = "UPDATE trials SET outcome = ?, run = ? WHERE job = ? AND number = ? AND outcome IS NULL"
        return rows.execute(query, values).rowcount == 1
