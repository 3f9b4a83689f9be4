"""Who may turn which knob, how far and for how long: a TOML file that allows nothing by default.

    powerd_user = "powerd"            # whom to believe for whom it asks (rules with ``remote``)
    sm_clock_found = "unlocked"       # or the MHz that an administrator locks it to: no driver tells it
    mem_clock_found = "unlocked"
    untested = ["amd", "cpu"]         # knobs that have met no hardware yet, and are not loaded otherwise

    [[allow]]
    group = "energy"                  # or user = "ada", or remote = "trainer" (a key with the role control)
    devices = ["*"]                   # or ["gpu0", "GPU-4f2c..."]
    knobs = ["power_cap_w", "sm_clock_mhz"]
    power_cap_w = [150, 300]          # only from here to there
    never_above_found = true          # and never above what was found
    max_ttl_s = 600                   # longest silence that may be asked for
    max_lease_s = 604800              # longest lease, however often it is renewed
    require = "owns-all-processes"    # nobody else computes on the device
    mig = true                        # also where the GPU is divided: a knob concerns all who share it
    steal = true                      # an administrator: may end leases of others

The root user needs a rule as well. Each knob of a request needs one rule that allows it.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from powerd_control.knobs import Knob
from powerd_core.errors import ConfigError, ControlDenied
from powerd_core.hold import KNOB_OF_OPTION, UNITS, UNLOCKED, Value, option_of, text_of

T = TypeVar("T")

UNTESTED = ("amd", "cpu")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: by what the kernel says of the connection, and for which remote key where powerd asks."""

    uid: int
    gids: frozenset[int]
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One ``[[allow]]``."""

    user: str = ""
    group: str = ""
    remote: str = ""
    devices: tuple[str, ...] = ()
    knobs: tuple[str, ...] = ()
    power_cap_w: tuple[float, float] | None = None
    sm_clock_mhz: tuple[float, float] | None = None
    mem_clock_mhz: tuple[float, float] | None = None
    package_power_w: tuple[float, float] | None = None
    cpu_clock_mhz: tuple[float, float] | None = None
    never_above_found: bool = False
    max_ttl_s: float = 600.0
    max_lease_s: float = 7 * 86400.0
    require: str = ""
    mig: bool = False
    steal: bool = False

    def __post_init__(self) -> None:
        if sum(map(bool, (self.user, self.group, self.remote))) != 1:
            raise ValueError("name one of user, group, remote")
        # By their options, ``power_cap_w``; policies of before have the names without units.
        object.__setattr__(self, "knobs", tuple(KNOB_OF_OPTION.get(name, name) for name in self.knobs))
        if unknown := set(self.knobs) - UNITS.keys():
            raise ValueError(f"there is no knob {min(unknown)!r}: there are {', '.join(KNOB_OF_OPTION)}")
        if self.require not in ("", "owns-all-processes"):
            raise ValueError("require is 'owns-all-processes'")

    def concerns(self, caller: Caller) -> bool:
        if self.remote or caller.claim:
            return bool(self.remote) and self.remote == caller.claim
        if self.user:
            return _uid(self.user) == caller.uid
        return _gid(self.group) in caller.gids

    def objection(self, caller: Caller, knob: Knob, value: Value, ttl_s: float, held_s: float) -> str:
        """Why the rule does not allow the caller to set the knob; empty where it does."""
        limits = getattr(self, option_of(knob.name), None)
        if "*" not in self.devices and not {knob.device, knob.uuid} & set(self.devices):
            return f"not on {knob.device}"
        if knob.name not in self.knobs:
            return f"not {option_of(knob.name)}"
        if limits is not None and not (isinstance(value, float) and limits[0] <= value <= limits[1]):
            allowed = f"{text_of(limits[0], knob.name)} to {text_of(limits[1], knob.name)}"
            return f"{option_of(knob.name)} from {allowed}, not {text_of(value, knob.name)}"
        if ttl_s > self.max_ttl_s:
            return f"at most {self.max_ttl_s:g} s of silence, not {ttl_s:g}"
        if held_s > self.max_lease_s:
            return f"a lease of at most {self.max_lease_s:g} s"
        if knob.is_shared and not self.mig:
            return f"not where the GPU is divided (MIG): {option_of(knob.name)} concerns all who share it"
        if self.require:
            users = knob.users()
            if users is None or users - {caller.uid}:
                return f"only while nobody else computes on {knob.device}"
        return ""

    def text(self) -> str:
        """For `powerd control check`."""
        limits = [
            f"{text_of(pair[0], KNOB_OF_OPTION[o])} to {text_of(pair[1], KNOB_OF_OPTION[o])}"
            for o in KNOB_OF_OPTION
            if (pair := getattr(self, o, None)) is not None
        ]
        bound = "never above what was found" if self.never_above_found else ""
        steal = "may end leases of others" if self.steal else ""
        knobs = ", ".join(map(option_of, self.knobs))
        parts = [knobs, "on " + ", ".join(self.devices), *limits, bound, self.require, steal]
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules."""

    allow: tuple[Rule, ...] = ()
    powerd_user: str = ""
    sm_clock_found: Value | None = None
    mem_clock_found: Value | None = None
    untested: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.stated.items():
            if isinstance(value, str) and value != UNLOCKED:
                raise ValueError(f"{name}_found is {UNLOCKED!r}, or a number of MHz")
        if set(self.untested) - set(UNTESTED):
            raise ValueError(f"untested is of {', '.join(UNTESTED)}")

    @property
    def stated(self) -> dict[str, Value]:
        """What is found of the knobs that nobody can read, by name."""
        of = {"sm_clock": self.sm_clock_found, "mem_clock": self.mem_clock_found}
        return {name: value for name, value in of.items() if value is not None}

    def believes(self, uid: int) -> bool:
        """Whether the process of this user may say for whom it asks."""
        return bool(self.powerd_user) and _uid(self.powerd_user) == uid

    def of(self, caller: Caller) -> list[Rule]:
        return [rule for rule in self.allow if rule.concerns(caller)]

    def may_steal(self, caller: Caller) -> bool:
        return any(rule.steal for rule in self.of(caller))

    def texts(self, caller: Caller) -> list[str]:
        """What the caller may, a line each, for `powerd control check`."""
        lines = [rule.text() for rule in self.of(caller)]
        return lines + [f"untested on hardware: {name}" for name in self.untested if lines]

    def check(
        self, caller: Caller, wanted: Iterable[tuple[Knob, Value]], ttl_s: float, held_s: float = 0.0
    ) -> list[Knob]:
        """The knobs that may never be set above what was found.

        Raises `ControlDenied`, which says what would be allowed, unless for each of these one rule allows it."""
        rules, bounded = self.of(caller), []
        if not rules:
            raise ControlDenied("no rule of the policy names you, and nobody is allowed anything by default")
        for knob, value in wanted:
            if knob.driver in UNTESTED and knob.driver not in self.untested:
                what = f"{knob.device} {option_of(knob.name)}"
                raise ControlDenied(f'{what} needs untested = ["{knob.driver}"] in the policy')
            if knob.is_untold and knob.name not in self.stated:
                raise ControlDenied(
                    f"no driver tells what {option_of(knob.name)} is set to: above all rules, the policy has to say "
                    f'{knob.name}_found = "{UNLOCKED}", or the MHz that it is locked to'
                )
            objections = [rule.objection(caller, knob, value, ttl_s, held_s) for rule in rules]
            if all(objections):
                raise ControlDenied(f"the policy allows you {'; or '.join(sorted(set(objections)))}")
            allowing = [rule for rule, objection in zip(rules, objections, strict=True) if not objection]
            if all(rule.never_above_found for rule in allowing):
                bounded.append(knob)
        return bounded


def load_policy(path: Path) -> Policy:
    """The policy of a file; a file that is not there allows nothing.

    Raises `ConfigError`, also for a file that others than its owner and root can write, or that belongs to neither
    root nor the user of this process.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return Policy()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is no plain file")
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
            raise ConfigError(f"{path} can be written by others: chown root {path} && chmod 644 {path}")
        text = file.read(1 << 20)
    try:
        document = tomllib.loads(text.decode())
        rules = document.pop("allow", [])
        if isinstance(rules, dict):
            rules = [rules]
        return _made(Policy, document, allow=tuple(_made(Rule, rule) for rule in rules))
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _made(kind: type[T], table: Any, **more: Any) -> T:
    """A dataclass of a TOML table. Raises `ValueError`."""
    default_of = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(table, dict) or table.keys() - (default_of.keys() - more.keys()):
        raise ValueError(f"{str(table)[:200]}: there are {', '.join(default_of)}")
    return kind(**{name: _value(name, value, default_of[name]) for name, value in table.items()}, **more)


def _value(name: str, value: Any, default: object) -> Any:
    """A value of the kind that its default tells. Raises `ValueError`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name.endswith("_found") and default is None and (is_number or isinstance(value, str)):
        return float(value) if is_number else value
    if isinstance(default, bool | str) and type(value) is type(default):
        return value
    if isinstance(default, float) and is_number and value >= 0:
        return float(value)
    if isinstance(default, tuple) and isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    if default is None and isinstance(value, list) and len(value) == 2 and not name.endswith("_found"):
        least, greatest = (_value(name, part, 0.0) for part in value)
        if least <= greatest:
            return least, greatest
    raise ValueError(f"{name}: {str(value)[:60]} cannot be used")


def _uid(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _gid(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
