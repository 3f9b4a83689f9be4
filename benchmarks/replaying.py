"""The log of `joules optimise run`, asked again: a new policy of the same seed, told the same, has to decide the same.

The state of an optimiser has, in order, all that its policy was asked and what it answered.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from powerd_analytics.optimise.policy import EpochCost, Job, Observation, Outcome, Trial, find_policy
from powerd_core.serde import from_document, to_document


@dataclass(frozen=True, slots=True)
class DecisionStep:
    """What a policy was asked, or told, and its answer: a trial, a decision, or none to an end."""

    what: str
    number: int
    """Of the trial."""
    answer: Any
    again: Any
    """What the same policy answers again."""

    @property
    def is_same(self) -> bool:
        return bool(self.answer == self.again)


def replayed(path: Path, job: str) -> list[DecisionStep]:
    """The steps of a job in the state ``path``. Raises KeyError where it knows none."""
    with closing(sqlite3.connect(path)) as rows:
        state = json.loads(dict(rows.execute("SELECT job, state FROM policies").fetchall())[job])
        query = "SELECT what, number, told, answer FROM steps WHERE job = ? ORDER BY step"
        steps = rows.execute(query, (job,)).fetchall()
    cls = find_policy(state["policy"])
    policy = cls(from_document(Job, state["job"]), int(state["seed"]))
    trials: dict[int, Trial] = {}
    found = []
    for what, number, told_text, answer_text in steps:
        told, answer = json.loads(told_text), json.loads(answer_text)
        policy = cls.restore(policy.state())  # as every process does
        if what == "begin":
            trial = policy.begin(told["recurrence"], [trials[other] for other in told["pending"]])
            trials[number] = from_document(Trial, answer)
            again = to_document(trial)
        elif what == "observe":
            decision = policy.observe(trials[number], _observation(told))
            again = {type(decision).__name__: to_document(decision)}
        else:
            policy.end(trials[number], from_document(Outcome, told))
            again = answer
        found.append(DecisionStep(what, number, answer, again))
    return found


def ended(path: Path, job: str) -> list[tuple[Trial, Outcome]]:
    """The trainings of a job that ended, in order."""
    with closing(sqlite3.connect(path)) as rows:
        query = "SELECT trial, outcome FROM trials WHERE job = ? AND outcome IS NOT NULL ORDER BY number"
        found = rows.execute(query, (job,)).fetchall()
    return [(from_document(Trial, json.loads(t)), from_document(Outcome, json.loads(o))) for t, o in found]


def _observation(told: Any) -> Observation:
    profile = {cap_w: EpochCost(energy_j, time_s) for cap_w, energy_j, time_s in told["profile"]}
    return replace(from_document(Observation, {**told, "profile": {}}), profile=profile)
