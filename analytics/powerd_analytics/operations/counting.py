"""As many ways through a model as it takes to count it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from powerd_analytics.operations.attempt import Attempt, Job
from powerd_analytics.operations.counts import OperationCount
from powerd_analytics.operations.questions import Site, worded
from powerd_analytics.operations.refusals import is_lack, why
from powerd_analytics.operations.stand_in import StandIn
from powerd_core.errors import AnalysisError

MOST_TRIED, MOST_TRIED_KERNELS = 8, 30_000
"""Questions whose other answer is tried, and kernels that it may take."""


def counted(job: Job) -> OperationCount:
    """By shapes alone; where that fails with values, and with other answers to what nobody knows, as long as it helps.

    Raises `AnalysisError` where the model itself is at fault.
    """
    stand_in: StandIn | None = None
    all_steps = False
    first: Exception | None = None
    partial: OperationCount | None = None
    while True:
        attempt = Attempt(job, stand_in, all_steps=all_steps)
        error = attempt.go()
        if attempt.executed.needs_all_steps and not all_steps:
            all_steps = True
            continue
        if stand_in is None and (error is not None or attempt.executed.failed_in is not None):
            stand_in, first = StandIn(), error
            continue
        if error is None:
            return (attempt if stand_in is None else _made_sure(attempt, stand_in, all_steps=all_steps)).count()
        if stand_in is not None:
            if partial is None and attempt.is_made and (stand_in.assumed or is_lack(error)):
                partial = attempt.count(attempt.stopped_by(error))
            if not is_lack(error) and stand_in.questions.turn(error):
                continue
        if partial is not None:
            return partial
        error = error if first is None or is_lack(first) else first
        if isinstance(error, AnalysisError):
            raise error
        what = "has a backward pass that does not run" if attempt.is_backward else "does not run"
        raise AnalysisError(f"the model {what} on {job.said}, on torch's meta device: {why(error)}") from error


def _made_sure(attempt: Attempt, stand_in: StandIn, *, all_steps: bool) -> Attempt:
    """The same again, if nothing but truth values was assumed, and other answers to some of them end in an error.

    A model in training does not raise, so these answers are no assumptions, if it raises before it asks there again
    (else a loop may end by another answer). Nor is a single one, asked for once, that changes nothing.
    """

    def again() -> tuple[Attempt, Exception | None]:
        made = Attempt(attempt.job, stand_in, all_steps=all_steps)
        return made, made.go()

    questions, sites = stand_in.questions, stand_in.truths()
    if not sites or len(sites) > MOST_TRIED or len(sites) * attempt.executed.ran > MOST_TRIED_KERNELS:
        return attempt
    turned, sure = dict(questions.turned), dict[Site, str]()
    alike: list[Site] = []
    times = {site: questions.times(site) for site in sites}
    before = _figures(attempt.count())
    for site in sites:
        questions.turned = {k: v for k, v in turned.items() if k != site} if site in turned else turned | {site: ""}
        tried, error = again()
        if tried.executed.needs_all_steps or stand_in.truths() is None or questions.times(site) != 1:
            continue
        if error is not None and not is_lack(error):
            sure[site] = f"ends in {worded(error)}"
        elif error is None and times[site] == 1 and _figures(tried.count()) == before:
            alike.append(site)
    if len(alike) == 1:
        sure[alike[0]] = "makes no difference"
    questions.turned, questions.sure = turned, sure
    found, error = again()
    if error is not None:  # a loop that an answer was to end
        questions.sure = {}
        found, _ = again()
    return found


def _figures(count: OperationCount) -> tuple[Any, ...]:
    """All that is counted, without what it rests on."""
    layers = [replace(layer, is_assumed=False) for layer in count.layers]
    return layers, [replace(e, assumed=()) for e in count.executed], count.not_counted, count.executed_not_counted
