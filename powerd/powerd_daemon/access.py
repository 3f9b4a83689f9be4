"""Who may ask what: on a socket that strangers can reach, by their keys; elsewhere, whoever reaches the socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import zmq


class Role(IntEnum):
    """What a client may do; each includes those before it."""

    NONE = 0
    READ = 1
    """Description, statistics, clock exchanges, readings."""
    CONTROL = 2
    """Calibration and configuration too."""


class Access(Protocol):
    """Tells a message's sender by the first frame of the message, which carries the connection's properties."""

    def role(self, first: zmq.Frame) -> Role:
        """What the sender may do now. Asked for every request, so that taking a right away takes effect at once."""
        ...


@dataclass(frozen=True, slots=True)
class SameForAll:
    """Everybody who can reach the socket has one role."""

    granted: Role

    def role(self, first: zmq.Frame) -> Role:
        return self.granted


@dataclass(frozen=True, slots=True)
class Subject:
    """A control message that is answered: what it needs, and the request's body to the answer's frame."""

    needs: Role
    answer: Callable[[Mapping[str, object]], bytes]
