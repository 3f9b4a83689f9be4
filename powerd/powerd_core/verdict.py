"""Whether a setting was honoured: a verdict on a stretch of time, from what the driver told of it.

That a driver took a value says little: another limiter may be stronger, heat or the power supply may slow the GPU down
for reasons of their own, and a locked clock is a request. So a stretch is judged by evidence: the limit that was
enforced, nanoseconds that the driver has counted at its limits (NVML fields 74, 269 to 271), and clocks as they were
read while the device worked.

The mean power says nothing about it: a cap binds in bursts, at a mean far below it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from powerd_core.hold import Value, is_same
from powerd_core.lease import Evidence

BINDING_SHARE = 0.05
"""A cap that held the clock back for more of the time than this was binding."""
CONFOUNDED_SHARE = 0.005
"""More slowing down by heat or the power brake than this, and the stretch is about that."""
MISSED_SHARE = 0.01
"""So many clocks read off the lock are accidents of reading."""
CLOCK_STEP_MHZ = 15.0


class Verdict(StrEnum):
    """In the words of tables."""

    BINDING = "honoured, binding"
    SLACK = "honoured, slack"
    OVERRIDDEN = "overridden"
    CONFOUNDED = "confounded"
    CLOCK_MISSED = "clock missed"
    UNKNOWN = "unknown"

    @property
    def is_honoured(self) -> bool:
        return self in (Verdict.BINDING, Verdict.SLACK)

    @property
    def is_violated(self) -> bool:
        """Whether something says that the device did not obey; of an unknown one nothing does."""
        return self in (Verdict.OVERRIDDEN, Verdict.CONFOUNDED, Verdict.CLOCK_MISSED)


def verdicts_in(text: object) -> list[Verdict]:
    """Those of a cell of a table, in which rows that were put together are joined: ``honoured, slack; overridden``."""
    known = {verdict.value: verdict for verdict in Verdict}
    return [known[part] for part in str(text or "").split("; ") if part in known]


_SEVERITY = (
    Verdict.OVERRIDDEN,
    Verdict.CLOCK_MISSED,
    Verdict.CONFOUNDED,
    Verdict.UNKNOWN,
    Verdict.BINDING,
    Verdict.SLACK,
)
"""The worst first. Of two that were honoured, the binding one says more."""


def worst(verdicts: Iterable[tuple[Verdict, str]]) -> tuple[Verdict, str]:
    """The worst of several verdicts, with why."""
    return min(verdicts, key=lambda told: _SEVERITY.index(told[0]), default=(Verdict.UNKNOWN, ""))


def judge(
    knob: str,
    asked: Value | None,
    requested: Value | None,
    enforced: Value | None,
    evidence: Evidence,
) -> tuple[Verdict, str]:
    """The verdict on a stretch in which a knob was asked to be set so, and why in a few words.

    Without anybody who asked (``asked`` is None) what is enforced counts as asked.
    """
    if asked is not None and requested is not None and not is_same(requested, asked):
        return Verdict.OVERRIDDEN, "another value was requested meanwhile"
    if asked is not None and enforced is not None and not is_same(enforced, asked):
        return Verdict.OVERRIDDEN, "the driver enforced another value"
    slowed = {"heat": evidence.thermal_s, "the power brake": evidence.brake_s}
    for reason, seconds in slowed.items():
        if seconds is not None and seconds > CONFOUNDED_SHARE * evidence.duration_s:
            return Verdict.CONFOUNDED, f"{reason} slowed it down for {seconds:.2g} of {evidence.duration_s:.3g} s"
    if knob.endswith("_clock"):
        return _judge_clock(evidence)
    if knob == "package_power":
        return Verdict.UNKNOWN, "nothing counts the time at it"
    if knob != "power_cap":
        return (Verdict.SLACK, "") if enforced is not None else (Verdict.UNKNOWN, "the driver does not say")
    if evidence.at_cap_s is None or enforced is None or evidence.duration_s <= 0:
        return Verdict.UNKNOWN, "the time at the cap was not read"
    is_binding = evidence.at_cap_s > BINDING_SHARE * evidence.duration_s
    return (Verdict.BINDING if is_binding else Verdict.SLACK), ""


def _judge_clock(evidence: Evidence) -> tuple[Verdict, str]:
    if not evidence.looks:
        return Verdict.UNKNOWN, "the clock was never read while the device worked"
    if evidence.missed > MISSED_SHARE * evidence.looks:
        return Verdict.CLOCK_MISSED, f"it was off the lock in {evidence.missed} of {evidence.looks} readings"
    return Verdict.BINDING, ""
