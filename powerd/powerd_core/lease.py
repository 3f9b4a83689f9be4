"""A lease: who may turn which knob of which device until when, and what becomes of the setting afterwards.

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
stops; after a kill of the helper the next one reads what stands on disk and goes on from there. A machine that was
booted anew has lost both the setting and the records, which are in memory. Before a knob goes back its value is read:
only a value that is ours is replaced (`after_reading`), so that nobody else's is.

Asked, requested and enforced are three things. *Asked* is what the holder said, *requested* what the driver keeps as
the request, and *enforced* what it obeys, which another limit of the machine may make lower (`Setting`).

The helper and those who ask it exchange one JSON object a line: a `Request`, and an `Answer`. All of it is pure here:
the helper (`powerd_control`), the client and the daemon own the sockets and the clocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeVar

from powerd_core.errors import ConfigError, ControlDenied, ControlError, LeaseHeld, WireError
from powerd_core.serde import from_document, to_document
from powerd_core.settings import UNITS

T = TypeVar("T")

Value = float | str
"""A knob's value in its unit; a text for a knob without one, such as a governor."""
MAX_REQUEST = 4096
MAX_ANSWER = 65536
"""Bytes of a line."""
DEFAULT_TTL_S = 30.0
DEFAULT_SOCKET = "/run/powerd-control/socket"


def option_of(knob: str) -> str:
    """How a knob is called in Python: its name with its unit, ``power_cap_w``."""
    unit = UNITS[knob].lower()
    return f"{knob}_{unit}" if unit else knob


KNOB_OF_OPTION: Mapping[str, str] = {option_of(knob): knob for knob in UNITS}


def shown(value: Value | None, knob: str) -> str:
    """``200 W``; a dash for a value that nobody knows."""
    if value is None:
        return "–"
    return f"{value:g} {UNITS[knob]}" if isinstance(value, float) else str(value)


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
    RENEWED = "the holder is alive"
    CHANGED = "the holder asks for another value"
    RELEASED = "the holder released it"
    DIED = "the holder died"
    SILENT = "the holder was silent for too long"
    STOPPED = "the helper stops"
    ORPHANED = "the helper was killed and the holder did not come back"
    TAKEN = "an administrator took it away"
    FORBIDDEN = "the policy does not allow it any more"
    OVERRIDDEN = "somebody else changed the value"
    FORGOTTEN = "the driver forgot the value"
    REVERTED = "what was found stands again"
    REVERT_FAILED = "the driver did not take back what was found"
    REBOOTED = "the machine was booted anew"


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
    (State.INTENT, Happening.RENEWED): State.INTENT,
    (State.INTENT, Happening.OVERRIDDEN): State.YIELDED,
    (State.INTENT, Happening.FORGOTTEN): State.LOST,
    (State.HELD, Happening.RENEWED): State.HELD,
    (State.HELD, Happening.CHANGED): State.INTENT,
    (State.HELD, Happening.OVERRIDDEN): State.YIELDED,
    (State.HELD, Happening.FORGOTTEN): State.LOST,
    (State.YIELDED, Happening.RENEWED): State.YIELDED,
    (State.LOST, Happening.RENEWED): State.LOST,
    (State.REVERTING, Happening.REVERTED): State.ENDED,
    (State.REVERTING, Happening.OVERRIDDEN): State.ENDED,
    (State.REVERTING, Happening.FORGOTTEN): State.ENDED,
    (State.REVERTING, Happening.REVERT_FAILED): State.REVERTING,
    **{(state, ending): State.REVERTING for state in (State.INTENT, State.HELD, State.REVERTING) for ending in ENDINGS},
    **{(state, ending): State.ENDED for state in (State.YIELDED, State.LOST) for ending in ENDINGS},
    **{(state, Happening.REBOOTED): State.ENDED for state in State if state is not State.ENDED},
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


# What a knob can be set to.


@dataclass(frozen=True, slots=True)
class Range:
    """What a knob takes: numbers from ``least`` to ``greatest``, of those only what is ``listed`` unless that is empty,
    or the texts in ``words``. ``default`` is the driver's; for clocks, not locked at all."""

    least: float = 0.0
    greatest: float = 0.0
    default: Value | None = None
    listed: tuple[float, ...] = ()
    words: tuple[str, ...] = ()


UNLOCKED = "unlocked"
"""The value of a clock that nobody locks."""


def resolve(level: Value, of: Range, knob: str) -> Value:
    """The value that a level means: a number in the knob's unit, ``min``, ``default``, ``max``, or ``60%`` of the
    greatest. A number that is not listed becomes the nearest that is, at most a listed step away.

    Raises `ConfigError`, which says what there is.
    """
    if of.words:
        if level in of.words:
            return level
        raise ConfigError(f"{knob} takes {', '.join(of.words)}, not {level!r}")
    if isinstance(level, str):
        named = {"min": of.least, "max": of.greatest, "default": of.default}
        if level in named and named[level] is not None:
            return named[level]  # type: ignore[return-value]
        try:
            number = float(level.removesuffix("%"))
        except ValueError:
            raise ConfigError(f"{knob} takes a number, min, default, max or per cent, not {level!r}") from None
        wanted = of.greatest * number / 100 if level.endswith("%") else number
    else:
        wanted = float(level)
    if not of.least - 1e-6 <= wanted <= of.greatest + 1e-6:
        limits = f"{shown(of.least, knob)} to {shown(of.greatest, knob)}"
        raise ConfigError(f"{knob} can be set from {limits}, not to {shown(wanted, knob)}")
    if of.listed:
        return min(of.listed, key=lambda v: (abs(v - wanted), v))
    return wanted


@dataclass(frozen=True, slots=True)
class Setting:
    """What a knob is set to. ``requested`` and ``enforced`` are None where the driver does not say."""

    asked: Value | None = None
    requested: Value | None = None
    enforced: Value | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the driver told of a stretch of ``duration_s``; None for what it does not count.

    ``looks`` is how often the clock was read while the device worked, ``missed`` how often it was off the lock then
    with no limit of power or temperature to explain it.
    """

    duration_s: float = 0.0
    at_cap_s: float | None = None
    thermal_s: float | None = None
    brake_s: float | None = None
    looks: int = 0
    missed: int = 0


# What is said on the helper's socket.


@dataclass(frozen=True, slots=True)
class Wish:
    """One knob of one device, and the level that it shall have. A device is ``gpu0`` or a UUID, ``cpu0``."""

    device: str
    knob: str
    level: Value


@dataclass(frozen=True, slots=True)
class Request:
    """A line to the helper.

    ``describe``  the knobs, what they take and what they are set to
    ``status``    the leases that there are, and ``problems``
    ``acquire``   ``wishes`` for ``ttl_s`` seconds from each sign of life, as ``name``; queues for ``wait_s`` at most
    ``set``       other levels for the knobs of ``lease``
    ``renew``     a sign of life for ``lease``; after the helper was killed it makes the lease known again
    ``release``   the end of ``lease``
    ``steal``     end somebody else's ``lease``: for administrators
    ``check``     what the policy allows the one who asks

    ``claim`` is the name of a remote client's key: only powerd may say it, for whom it asks.
    """

    verb: Literal["describe", "status", "acquire", "set", "renew", "release", "steal", "check"]
    wishes: tuple[Wish, ...] = ()
    lease: str = ""
    name: str = ""
    ttl_s: float = DEFAULT_TTL_S
    wait_s: float = 0.0
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """A hold as the helper tells it. ``changed_ns`` is the helper's CLOCK_MONOTONIC_RAW when it came into its state."""

    device: str
    uuid: str
    knob: str
    state: State
    found: Value | None
    setting: Setting
    changed_ns: int
    why: str = ""
    evidence: Evidence | None = None
    """Since the knob was last set."""


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease as the helper tells it. ``ends_in_s`` is what is left without another sign of life."""

    lease: str
    holder: str
    ttl_s: float
    ends_in_s: float
    holds: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class KnobInfo:
    """A knob as the helper describes it. ``problem`` says why it cannot be turned."""

    device: str
    uuid: str
    knob: str
    range: Range
    setting: Setting
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A line from the helper. Of an ``error`` the ``kind`` is one of `_ERRORS`."""

    error: str = ""
    kind: Literal["", "denied", "held", "invalid", "failed", "lost"] = ""
    lease: LeaseInfo | None = None
    leases: tuple[LeaseInfo, ...] = ()
    knobs: tuple[KnobInfo, ...] = ()
    allowed: tuple[str, ...] = ()
    problems: tuple[str, ...] = field(default=(), metadata={"later": True})
    """What the helper could not put back or read, a line each."""


_ERRORS: Mapping[str, type[ConfigError] | type[ControlError]] = {
    "denied": ControlDenied,
    "held": LeaseHeld,
    "invalid": ConfigError,
}


def to_line(message: Request | Answer) -> bytes:
    return json.dumps(to_document(message), separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def read_request(line: bytes) -> Request:
    """Raises `WireError` for what is no request."""
    request = _read(Request, line, MAX_REQUEST)
    for wish in request.wishes:
        if wish.knob not in UNITS:
            raise WireError(f"there is no knob {wish.knob[:40]!r}: there are {', '.join(UNITS)}")
    if not 1 <= request.ttl_s <= 1e7 or not 0 <= request.wait_s <= 1e6:
        raise WireError("ttl_s is at least 1, wait_s at least 0")
    return request


def read_answer(line: bytes) -> Answer:
    """Raises `WireError` for what is no answer, and what `check_answer` raises."""
    return check_answer(_read(Answer, line, MAX_ANSWER))


def check_answer(answer: Answer) -> Answer:
    """Raises `ControlDenied`, `LeaseHeld`, `ConfigError` or `ControlError` for an answer that refuses."""
    if answer.error:
        raise _ERRORS.get(answer.kind, ControlError)(answer.error)
    return answer


def _read(kind: type[T], line: bytes, limit: int) -> T:
    if len(line) > limit:
        raise WireError(f"a line of more than {limit} bytes")
    try:
        document: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {str(error)[:80]}") from None
    return from_document(kind, document)
