"""Who can be struck, how and when, and what a cell of the fault matrix says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VICTIMS = ("recorder", "trainer", "powerd", "node", "network", "disk", "sensor bus")
KINDS = ("kill", "stop", "restart", "slow", "garbage", "full")
MOMENTS = ("start", "middle", "end")


@dataclass(frozen=True, slots=True)
class Bound:
    """How much may be lost: so many seconds, a share of the fault's duration, perhaps all that is left of the run."""

    base_s: float = 0.0
    share: float = 0.0
    rest: bool = False

    def seconds(self, fault_s: float, rest_s: float) -> float:
        return self.base_s + self.share * fault_s + self.rest * rest_s

    def __str__(self) -> str:
        if not (self.base_s or self.share or self.rest):
            return "nothing"
        parts = [f"{self.base_s:g} s"] if self.base_s else []
        if self.share:
            parts.append("the fault's duration" if self.share == 1 else f"{self.share:g} times the fault's duration")
        if self.rest:
            parts.append("the rest of the run")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class Cell:
    """One victim and one kind of fault; ``made`` says how, and for what makes no sense, why not."""

    victim: str
    kind: str
    made: str
    loses: Bound = Bound()
    loses_at_end: Bound | None = None
    """Where the run ends in the middle of the fault; None: the same."""
    says: str = ""
    """Must be found, as a regular expression, among messages, causes of gaps, and standard error."""
    is_silent_at_end: bool = False
    """Whether it may pass unnoticed where the run ends in the middle of the fault: nothing was lost then."""
    stage: Mapping[str, object] = field(default_factory=dict)
    full_length_s: float = 0.0
    """Duration in the soak, where that is not the same as for all."""
    is_brief: bool = False
    """Done in a moment, with no duration."""
    quick: tuple[str, ...] = ()
    """Moments at which `make test` runs it."""
    makes_sense: bool = True
    fits: bool = True
    """Whether it is part of {victims} x {kinds}; the others came on top."""

    @property
    def name(self) -> str:
        return f"{self.victim}-{self.kind}".replace(" ", "-")

    def bound(self, moment: str) -> Bound:
        return self.loses_at_end if moment == "end" and self.loses_at_end is not None else self.loses
