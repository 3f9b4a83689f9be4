"""A hold: what a lease does to one knob, as the control helper and those who ask it understand it alike.

Theory of operation. A *knob* is something about a device that can be set: a GPU's power cap, its clocks, a processor's
power limit. The helper with the right to set knobs (`powerd-control`) sets none for good. Whoever wants one set takes a
*lease* of (device, knob), which one holder has at a time; a lease may cover several devices, all of them or none. What
the lease does to one knob is a *hold*, and its life is the table `TRANSITIONS`:

    INTENT      what was found and what is asked stand on disk, synced; the knob may or may not be set yet
    HELD        the knob was set and read back
    YIELDED     somebody else has changed the value meanwhile: it is theirs now, and stays
    LOST        the driver has forgotten the value (it was loaded anew): it is never set again silently
    REVERTING   the lease is over; the knob has to go back to what was found
    ENDED       nothing of ours is left

A hold ends when its holder releases it, dies, or is silent for longer than the lease's ``ttl_s``, and when the helper
stops; after a kill of the helper the next one ends what stands on disk. A machine that was booted anew has lost both
the setting and the records, which are in memory. Before a knob goes back its value is read: only a value that is ours
is replaced (`after_reading`), so that nobody else's is.

Asked, requested and enforced are three things. *Asked* is what the holder said, *requested* what the driver keeps as
the request, and *enforced* what it obeys, which another limit of the machine may make lower (`Setting`).

This is loaded by what runs as root: it stays short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from powerd_core.errors import ControlError

Value = float | str
"""A knob's value in its unit; a text for a knob without one, such as a governor."""
UNLOCKED = "unlocked"
"""The value of a clock that nobody locks."""
MAX_REQUEST = 4096
MAX_ANSWER = 65536
"""Bytes of a line to the helper and from it."""
DEFAULT_TTL_S = 30.0
DEFAULT_SOCKET = "/run/powerd-control/socket"
UNITS = {
    "power_cap": "W",
    "sm_clock": "MHz",
    "mem_clock": "MHz",
    "package_power": "W",
    "cpu_clock": "MHz",
    "cpu_governor": "",
}
"""Knobs that are known, and the units of their values."""


def option_of(knob: str) -> str:
    """How a knob is called in Python: its name with its unit, ``power_cap_w``."""
    unit = UNITS.get(knob, "").lower()
    return f"{knob}_{unit}" if unit else knob


KNOB_OF_OPTION: Mapping[str, str] = {option_of(knob): knob for knob in UNITS}


def text_of(value: Value | None, knob: str) -> str:
    """``200 W``; a dash for a value that nobody knows."""
    if value is None:
        return "–"
    return f"{value:g} {UNITS[knob]}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Range:
    """What a knob takes: numbers from ``least`` to ``greatest``, of those only what is ``listed`` unless that is empty,
    or the texts in ``words``. ``default`` is the driver's; for clocks, not locked at all."""

    least: float = 0.0
    greatest: float = 0.0
    default: Value | None = None
    listed: tuple[float, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """What a knob is set to. ``requested`` and ``enforced`` are None where the driver does not say."""

    asked: Value | None = None
    requested: Value | None = None
    enforced: Value | None = None


# The life of a hold.


class State(StrEnum):
    INTENT = "intent"
    HELD = "held"
    YIELDED = "yielded"
    LOST = "lost"
    REVERTING = "reverting"
    ENDED = "ended"


class Happening(StrEnum):
    """What can happen to a hold."""

    APPLIED = "the value was set and read back"
    REFUSED = "the driver did not take the value"
    CHANGED = "the holder asks for another value"
    RELEASED = "the holder released it"
    DIED = "the holder died"
    SILENT = "the holder was silent for too long"
    STOPPED = "the helper stops"
    ORPHANED = "the helper was killed"
    TAKEN = "an administrator took it away"
    FORBIDDEN = "the policy does not allow it any more"
    OVERRIDDEN = "somebody else changed the value"
    FORGOTTEN = "the driver forgot the value"
    REVERTED = "what was found stands again"
    REVERT_FAILED = "the driver did not take back what was found"


ENDINGS = (
    Happening.RELEASED,
    Happening.DIED,
    Happening.SILENT,
    Happening.STOPPED,
    Happening.ORPHANED,
    Happening.TAKEN,
    Happening.FORBIDDEN,
)
"""What ends a lease. A value that is still ours has to go back then; one that is not ours any more stays."""

TRANSITIONS: Mapping[tuple[State, Happening], State] = {
    (State.INTENT, Happening.APPLIED): State.HELD,
    (State.INTENT, Happening.REFUSED): State.REVERTING,
    (State.INTENT, Happening.OVERRIDDEN): State.YIELDED,
    (State.INTENT, Happening.FORGOTTEN): State.LOST,
    (State.HELD, Happening.CHANGED): State.INTENT,
    (State.HELD, Happening.OVERRIDDEN): State.YIELDED,
    (State.HELD, Happening.FORGOTTEN): State.LOST,
    (State.REVERTING, Happening.REVERTED): State.ENDED,
    (State.REVERTING, Happening.OVERRIDDEN): State.ENDED,
    (State.REVERTING, Happening.FORGOTTEN): State.ENDED,
    (State.REVERTING, Happening.REVERT_FAILED): State.REVERTING,
    **{(state, ending): State.REVERTING for state in (State.INTENT, State.HELD, State.REVERTING) for ending in ENDINGS},
    **{(state, ending): State.ENDED for state in (State.YIELDED, State.LOST) for ending in ENDINGS},
}
"""All that can happen; nothing happens to what has ended."""


def follow(state: State, happening: Happening) -> State:
    """The state behind ``happening``. Raises `ControlError` for what cannot happen in ``state``."""
    try:
        return TRANSITIONS[state, happening]
    except KeyError:
        raise ControlError(f"a hold that is {state} cannot see that {happening.value}") from None


def after_reading(read: Value | None, ours: Sequence[Value], found: Value | None, *, is_intent: bool) -> str:
    """Whose value a knob shows when its hold is to end: ``"ours"``, ``"found"`` or ``"foreign"``.

    ``ours`` are the values that the hold has set or may have set. A knob that cannot be read (None) shows ours. Right
    after a set, of which nothing was read back (``is_intent``), a number between what was found and what was asked is
    the driver's clamp of ours: nobody else is likely to set one in these milliseconds.
    """
    if read is None or any(is_same(read, value) for value in ours):
        return "ours"
    if found is not None and is_same(read, found):
        return "found"
    numbers = [v for v in (*ours, found) if isinstance(v, float)]
    if is_intent and isinstance(read, float) and numbers and min(numbers) < read < max(numbers):
        return "ours"
    return "foreign"


def is_same(a: Value, b: Value) -> bool:
    """Whether two values are one to the driver, which keeps milliwatts, eighths of a watt, or whole megahertz."""
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 0.13
    return a == b
