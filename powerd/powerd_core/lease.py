"""What is said on the control helper's socket, and what a level means; `powerd_core.hold` has the life of a hold.

One JSON object a line goes to the helper, a `Request`, and one comes back, an `Answer`. All of it is pure here: the
client and the daemon own the sockets and the clocks. The helper itself knows numbers alone and checks what comes by
code of its own (`powerd_control.requests`), so that nothing of this runs as root.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from powerd_core.errors import ConfigError, ControlDenied, ControlError, LeaseHeld, WireError
from powerd_core.hold import (
    DEFAULT_SOCKET,
    DEFAULT_TTL_S,
    KNOB_OF_OPTION,
    MAX_ANSWER,
    MAX_REQUEST,
    UNITS,
    UNLOCKED,
    Range,
    Setting,
    State,
    Value,
    is_same,
    option_of,
    text_of,
)
from powerd_core.serde import from_document, to_document

__all__ = [
    "DEFAULT_SOCKET",
    "DEFAULT_TTL_S",
    "KNOB_OF_OPTION",
    "MAX_ANSWER",
    "MAX_REQUEST",
    "UNITS",
    "UNLOCKED",
    "Answer",
    "Evidence",
    "Holding",
    "KnobInfo",
    "LeaseInfo",
    "Range",
    "Request",
    "Setting",
    "State",
    "Value",
    "Wish",
    "check_answer",
    "is_same",
    "option_of",
    "read_answer",
    "resolve",
    "text_of",
    "to_line",
]


# What a knob can be set to.


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
        limits = f"{text_of(of.least, knob)} to {text_of(of.greatest, knob)}"
        raise ConfigError(f"{option_of(knob)} can be set from {limits}, not to {text_of(wanted, knob)}")
    if of.listed:
        return min(of.listed, key=lambda v: (abs(v - wanted), v))
    return wanted


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
    """One knob of one device, and the value that it shall have. A device is ``gpu0`` or a UUID, ``cpu0``."""

    device: str
    knob: str
    level: Value


@dataclass(frozen=True, slots=True)
class Request:
    """A line to the helper.

    ``describe``  the knobs, what they take and what they are set to
    ``status``    the leases that there are, and ``problems``
    ``acquire``   ``wishes`` for ``ttl_s`` seconds from each sign of life, as ``name``
    ``set``       other levels for the knobs of ``lease``
    ``renew``     a sign of life for ``lease``
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


def read_answer(line: bytes) -> Answer:
    """Raises `WireError` for what is no answer, and what `check_answer` raises."""
    if len(line) > MAX_ANSWER:
        raise WireError(f"a line of more than {MAX_ANSWER} bytes")
    try:
        document: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {str(error)[:80]}") from None
    return check_answer(from_document(Answer, document))


def check_answer(answer: Answer) -> Answer:
    """Raises `ControlDenied`, `LeaseHeld`, `ConfigError` or `ControlError` for an answer that refuses."""
    if answer.error:
        raise _ERRORS.get(answer.kind, ControlError)(answer.error)
    return answer
