"""Questions of a model about values that nobody knows: the answers, and which of them a model can go on with.

An answer is one (a truth value: true), as if all such values were ones. A model in training does not raise, so an
answer after which it raises was wrong: the count begins again with the last one turned to zero, and so on back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from powerd_analytics.operations.refusals import LackError
from powerd_core.text import printable

MOST_TURNS = 16
"""Counts that begin again."""
IN_ONE_CALL = 1000
"""Times that one line of a call may ask before its answer turns: a loop that ends by values."""
AT_ONE_PLACE = 20_000
"""Times that one line may ask in all."""
_OWN, _TORCH = str(Path(__file__).parent), str(Path(torch.__file__).parent)
_PASSING = (_OWN, str(Path(torch.__file__).parent / "_ops.py"))
"""Files whose calls only hand on what others ask."""
_AUTOGRAD = str(Path(torch.__file__).parent / "autograd")
_OUTSIDE = str(Path(__file__).with_name("attempt.py"))
"""What calls the model: beyond it there are those who count."""

Site = tuple[str, str, int]
"""File, function and instruction."""
NOWHERE = ("", "", 0)
"""Autograd itself."""


class TooManyQuestionsError(LackError):
    """A loop that does not end with any answer."""


@dataclass(slots=True)
class Asked:
    """How often one place has asked in this count."""

    times: int = 0
    frame: FrameType | None = None
    """The call that asked last."""
    in_call: int = 0
    is_truth: bool = False


@dataclass(slots=True)
class Questions:
    """What was asked in this count, and the answers that were turned after earlier ones."""

    turned: dict[Site, str] = field(default_factory=dict)
    """Why, by what the model raised."""
    asked: dict[Site, Asked] = field(default_factory=dict)
    """In the order in which they first asked."""
    sure: dict[Site, str] = field(default_factory=dict)
    """Where the other answer ends in an error or makes no difference: what it does."""
    is_sure: bool = False
    """Whether the last answer was."""
    _turns: int = 0

    def answer(self, *, is_truth: bool) -> tuple[bool, str]:
        """One or zero for who asks now, and what there is to say about it. Raises `TooManyQuestionsError`."""
        frame = next(_frames(), None)
        site = (frame.f_code.co_filename, frame.f_code.co_qualname, frame.f_lasti) if frame is not None else NOWHERE
        asked = self.asked.setdefault(site, Asked())
        asked.times, asked.is_truth = asked.times + 1, is_truth
        self.is_sure = site in self.sure
        asked.in_call = asked.in_call + 1 if asked.frame is frame is not None else 1
        asked.frame = frame
        if asked.times > AT_ONE_PLACE:
            raise TooManyQuestionsError(f"{place()} asks for values more than {AT_ONE_PLACE:,} times")
        why = self.turned.get(site)
        answer = why is None
        if self.is_sure:
            return answer, f", since {str(not answer).lower()} {self.sure[site]}"
        if asked.in_call > IN_ONE_CALL:
            return not answer, f", from the {IN_ONE_CALL:,}th time in one call on, so that a loop ends"
        return answer, f", since the other ends in {why}" if why else ""

    def times(self, site: Site) -> int:
        """How often a place has asked in this count."""
        return self.asked[site].times if site in self.asked else 0

    def turn(self, error: BaseException) -> bool:
        """Turn the last answer that can still be turned, after the model raised. False: there is none."""
        sites = list(self.asked)
        self.begin()
        while sites and sites[-1] in self.turned:
            del self.turned[sites.pop()]
        if not sites or self._turns >= MOST_TURNS:
            self.turned.clear()
            return False
        self._turns += 1
        self.turned[sites[-1]] = worded(error)
        return True

    def begin(self) -> None:
        """Forget who asked; calls that are over must not be kept."""
        self.asked.clear()


def worded(error: BaseException) -> str:
    """An error in a few words."""
    said = " ".join(str(error).split())[:120]
    return printable(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def place() -> str:
    """The innermost line of a model's own code that runs, as ``file:line``; else torch's, or ``backward``."""
    found = None
    for frame in _frames():
        found = found or frame
        if not frame.f_code.co_filename.startswith(_TORCH):
            found = frame
            break
    if found is None or found.f_code.co_filename.startswith(_AUTOGRAD):
        return "backward"
    return printable(f"{Path(found.f_code.co_filename).name}:{found.f_lineno}")


def _frames() -> Iterator[FrameType]:
    """Calls that run, the innermost first, without those of the count."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _OUTSIDE:
        if not frame.f_code.co_filename.startswith(_PASSING):
            yield frame
        frame = frame.f_back
