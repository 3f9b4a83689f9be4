"""What is asked of the helper: one JSON object a line, of eight verbs. Each part of it is checked here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from powerd_core.errors import WireError
from powerd_core.hold import DEFAULT_TTL_S, MAX_REQUEST, UNITS, Value

VERBS = ("describe", "status", "acquire", "set", "renew", "release", "steal", "check")
_MOST = 1e9
"""No number of a request is greater."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A knob of a device, and its value: what a level means is the client's business."""

    device: str
    knob: str
    value: Value


@dataclass(frozen=True, slots=True)
class Request:
    """As in `powerd_core.lease.Request`."""

    verb: str
    wishes: tuple[Wish, ...] = ()
    lease: str = ""
    name: str = ""
    ttl_s: float = DEFAULT_TTL_S
    claim: str = ""


def read_request(line: bytes) -> Request:
    """Raises `WireError` for what is no request."""
    if len(line) > MAX_REQUEST:
        raise WireError(f"a line of more than {MAX_REQUEST} bytes")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {str(error)[:80]}") from None
    _check_keys(document, {"verb"}, set(Request.__slots__))
    if document["verb"] not in VERBS:
        raise WireError(f"there is no such verb: there are {', '.join(VERBS)}")
    wishes = document.get("wishes", [])
    if not isinstance(wishes, list):
        raise WireError("wishes are a list")
    ttl_s = _number(document.get("ttl_s", DEFAULT_TTL_S))
    if not 1 <= ttl_s <= 1e7:
        raise WireError("ttl_s is at least 1")
    texts = [_text(document.get(key, "")) for key in ("lease", "name", "claim")]
    lease, name, claim = texts
    return Request(document["verb"], tuple(map(_wish, wishes)), lease, plain(name, 60), ttl_s, claim)


def _wish(document: Any) -> Wish:
    _check_keys(document, {"device", "knob", "level"}, {"device", "knob", "level"})
    if document["knob"] not in UNITS:
        raise WireError(f"there is no such knob: there are {', '.join(UNITS)}")
    level = document["level"]
    return Wish(_text(document["device"]), document["knob"], level if isinstance(level, str) else _number(level))


def _check_keys(document: Any, needed: set[str], known: set[str]) -> None:
    if not isinstance(document, dict) or not needed <= document.keys() <= known:
        raise WireError(f"an object with {', '.join(sorted(needed))} is needed, with no key but {sorted(known)}")
    if not all(isinstance(document[key], str) for key in needed - {"level"}):
        raise WireError(f"{', '.join(sorted(needed - {'level'}))}: texts are needed")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise WireError("a text is needed")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MOST:
        raise WireError("a number is needed")
    return float(value)


def plain(text: str, limit: int) -> str:
    """For a log or a terminal: cut off, and nothing in it that could move a cursor or begin a line."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])
