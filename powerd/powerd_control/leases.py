"""Leases of knobs: what is set, for whom, and how it goes back. The life of a hold is `powerd_core.lease.TRANSITIONS`.

Before a knob is set, what was found and what is asked stand in a record, synced. A helper that was killed at any
moment leaves the record, and the next one ends what it says. Records lie in memory (``/run``), as the settings do: a
boot loses both.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import stat
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from powerd_control.knobs import Bench, Found, Knob, KnobError
from powerd_core.errors import ConfigError, ControlError, LeaseHeld
from powerd_core.lease import (
    ENDINGS,
    Evidence,
    Happening,
    Holding,
    LeaseInfo,
    Setting,
    State,
    Value,
    after_reading,
    follow,
    is_same,
    shown,
)

_log = logging.getLogger(__name__)

POLL_S = 2.0
"""How often held knobs are read again, and what did not go back is tried again."""
GRACE_S = 5.0
"""How long a holder has to come back after the helper was killed."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds leases: by its pid and when it began, and as it calls itself."""

    uid: int
    pid: int
    start_ticks: int
    name: str = ""
    claim: str = ""
    """The key of the remote client for whom powerd, the process, holds them."""

    def is_alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks

    def is_same_process(self, other: Holder) -> bool:
        mine, others = ((h.uid, h.pid, h.start_ticks, h.claim) for h in (self, other))
        return mine == others


@dataclass(slots=True)
class Hold:
    """What a lease does to one knob."""

    knob: Knob
    found: Found
    ours: list[Value]
    """Values that we have set or may have set, the newest last."""
    state: State = State.INTENT
    setting: Setting = field(default_factory=Setting)
    odometer: int | None = None
    is_read_back: bool = False
    """Whether the driver has shown the newest value as ours."""
    changed_ns: int = 0
    why: str = ""
    limited_s: dict[str, float] = field(default_factory=dict)
    """What the driver had counted at its limits when the knob was set."""
    looks: int = 0
    missed: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return self.knob.uuid, self.knob.name

    @property
    def asked(self) -> Value:
        return self.ours[-1]

    def happen(self, happening: Happening, why: str = "") -> None:
        self.state = follow(self.state, happening)
        if happening is Happening.RENEWED:
            return
        if happening in (Happening.APPLIED, Happening.CHANGED):
            self.is_read_back = happening is Happening.APPLIED
        self.changed_ns = _now_ns()
        self.why = f"{happening.value}{': ' if why else ''}{why}"

    def apply(self) -> None:
        """Set what is asked and read it back. The change is dated by its beginning: what ran meanwhile is of neither
        setting."""
        begin_ns = _now_ns()
        try:
            self.odometer = self.knob.odometer()
            self.knob.set(self.asked)
            read = self.knob.read()
        except KnobError as error:
            self.happen(Happening.REFUSED, str(error))
            return
        self.setting = Setting(self.asked, read.requested, read.enforced)
        self.limited_s, self.looks, self.missed = self.knob.limited_s(), 0, 0
        if read.requested is None or is_same(read.requested, self.asked):
            self.happen(Happening.APPLIED)
            self.changed_ns = begin_ns
        elif self._whose(read) == "foreign":
            self.happen(Happening.OVERRIDDEN, f"it is {shown(read.requested, self.knob.name)} now")
        else:
            kept = shown(read.requested, self.knob.name)
            self.happen(Happening.REFUSED, f"the driver keeps {kept} where {self._shown_asked} was asked")

    @property
    def _shown_asked(self) -> str:
        return shown(self.asked, self.knob.name)

    def _whose(self, read: Setting) -> str:
        found = self.found.get("value")
        return after_reading(read.requested, self.ours, found, is_intent=not self.is_read_back)

    def look(self) -> None:
        """Whether the knob is as we have set it, while it is held."""
        read = self.knob.read()
        self.setting = Setting(self.asked, read.requested, read.enforced)
        missed = self.knob.misses(self.asked)
        self.looks, self.missed = self.looks + (missed is not None), self.missed + bool(missed)
        if read.requested is not None and is_same(read.requested, self.asked):
            return
        if self._is_forgotten():
            self.happen(Happening.FORGOTTEN)
        elif read.requested is not None:
            self.happen(Happening.OVERRIDDEN, f"it is {shown(read.requested, self.knob.name)} now")

    def _is_forgotten(self) -> bool:
        now = self.knob.odometer()
        return now is not None and self.odometer is not None and now < self.odometer

    def revert(self) -> None:
        """Put back what was found where the value is still ours, and see that it is back."""
        begin_ns = _now_ns()
        try:
            read = self.knob.read()
            found = self.found.get("value")
            whose = self._whose(read)
            if whose != "found" and self._is_forgotten():
                self.happen(Happening.FORGOTTEN)
            elif whose == "foreign":
                self.happen(Happening.OVERRIDDEN, f"{shown(read.requested, self.knob.name)} is left as it is")
            else:
                if whose == "ours":
                    self.knob.revert(self.found)
                    read = self.knob.read()
                is_back = read.requested is None or found is None or is_same(read.requested, found)
                self.happen(Happening.REVERTED if is_back else Happening.REVERT_FAILED)
            self.setting = Setting(None, read.requested, read.enforced)
            self.changed_ns = begin_ns
        except KnobError as error:
            self.happen(Happening.REVERT_FAILED, str(error))

    def told(self) -> Holding:
        found = self.found.get("value")
        knob = self.knob
        is_held, evidence = self.state is State.HELD, self._evidence()
        return Holding(
            knob.device,
            knob.uuid,
            knob.name,
            self.state,
            found,
            self.setting,
            self.changed_ns,
            self.why,
            evidence if is_held else None,
        )

    def _evidence(self) -> Evidence:
        now_s, before = self.knob.limited_s(), self.limited_s
        grown = {name: now_s[name] - before[name] for name in now_s.keys() & before.keys()}
        return Evidence((_now_ns() - self.changed_ns) / 1e9, **grown, looks=self.looks, missed=self.missed)


@dataclass(slots=True)
class Lease:
    """Several holds of one holder, which end together."""

    id: str
    holder: Holder
    ttl_s: float
    holds: list[Hold]
    deadline_s: float
    """By CLOCK_BOOTTIME: until when another sign of life has to come."""
    is_attached: bool = True
    """Whether the holder has a connection to this helper."""

    @property
    def is_over(self) -> bool:
        return all(hold.state is State.ENDED for hold in self.holds)

    @property
    def is_ending(self) -> bool:
        return any(hold.state in (State.REVERTING, State.ENDED) for hold in self.holds)

    def told(self, now_s: float) -> LeaseInfo:
        holds = tuple(hold.told() for hold in self.holds)
        holder = f"{self.holder.name} ({user_name(self.holder.uid)}, pid {self.holder.pid})".strip()
        return LeaseInfo(self.id, holder, self.ttl_s, max(0.0, self.deadline_s - now_s), holds)

    def document(self, boot: str) -> dict[str, Any]:
        holds = [
            {
                "uuid": h.knob.uuid,
                "knob": h.knob.name,
                "found": dict(h.found),
                "ours": h.ours,
                "state": h.state.value,
                "odometer": h.odometer,
            }
            for h in self.holds
        ]
        holder = {k: getattr(self.holder, k) for k in Holder.__slots__}
        return {"boot_id": boot, "lease": self.id, "holder": holder, "ttl_s": self.ttl_s, "holds": holds}


class Records:
    """The records of leases: a file each in a folder of ours, written anew as a whole and synced."""

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` for a folder that is a link, or that others can reach."""
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        try:
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"{folder} is no folder of the helper's own: {error.strerror}") from error
        weakref.finalize(self, os.close, self._folder)
        status = os.fstat(self._folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigError(f"{folder} is not the helper's alone: rmdir it, or chmod 700 and chown it")

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Raises `OSError`; the record is then as it was."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        temporary = f"{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=self._folder)
        file = os.open(temporary, flags, 0o600, dir_fd=self._folder)
        try:
            os.write(file, json.dumps(document).encode())
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(temporary, f"{name}.json", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{name}.json", dir_fd=self._folder)
        os.fsync(self._folder)

    def all(self) -> Iterator[tuple[str, Any]]:
        """Names and documents; None for a record that cannot be read."""
        for entry in sorted(os.listdir(self._folder)):
            name = entry.removesuffix(".json")
            if name == entry:
                continue
            try:
                file = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
                with open(file, "rb") as opened:
                    yield name, json.loads(opened.read(1 << 20))
            except (OSError, ValueError):
                yield name, None


class Leases:
    """All leases of this machine."""

    def __init__(self, bench: Bench, records: Records, now_s: Callable[[], float], boot: str) -> None:
        """``now_s`` is CLOCK_BOOTTIME in seconds, ``boot`` what tells this boot from others."""
        self._bench, self._records, self._now_s, self._boot = bench, records, now_s, boot
        self.leases: dict[str, Lease] = {}

    def acquire(self, holder: Holder, wanted: Iterable[tuple[Knob, Value]], ttl_s: float) -> Lease:
        """Set the knobs, all of them or none. Raises `LeaseHeld`, or `ControlError` where one could not be set; all
        is as it was found then."""
        wanted = sorted(wanted, key=lambda item: (item[0].uuid, item[0].name))
        keys = [(knob.uuid, knob.name) for knob, _ in wanted]
        if len(set(keys)) < len(keys) or not keys:
            raise ConfigError("name each knob of a device once" if keys else "name a knob and a level")
        for lease in self.leases.values():
            if taken := {hold.key for hold in lease.holds} & set(keys):
                told = lease.told(self._now_s())
                device = next(h.knob.device for h in lease.holds if h.key in taken)
                left = f"{told.ends_in_s:.0f} s from now at the latest, unless it goes on"
                raise LeaseHeld(f"{device} {min(taken)[1]} is held by {told.holder} until {left} (lease {lease.id})")
        holds = [Hold(knob, knob.find(), [value]) for knob, value in wanted]
        lease = Lease(secrets.token_hex(8), holder, ttl_s, holds, self._now_s() + ttl_s)
        self._intend(lease)
        self.leases[lease.id] = lease
        self._apply(lease, holds)
        return lease

    def change(self, lease: Lease, wanted: Iterable[tuple[Knob, Value]]) -> None:
        """Other levels for knobs that the lease holds. Raises `ControlError`; where a knob could not be set the lease
        has ended."""
        levels = {(knob.uuid, knob.name): value for knob, value in wanted}
        if missing := levels.keys() - {hold.key for hold in lease.holds}:
            raise ControlError(f"the lease does not hold {min(missing)[1]}")
        holds = [hold for hold in lease.holds if hold.key in levels]
        if gone := next((hold for hold in holds if hold.state is not State.HELD), None):
            raise ControlError(f"{gone.knob.device} {gone.knob.name}: {gone.why}")
        for hold in holds:
            hold.happen(Happening.CHANGED)
            hold.ours = [*hold.ours[-1:], levels[hold.key]]
        try:
            self._intend(lease)
        except ControlError:
            for hold in holds:
                hold.ours = hold.ours[:1]
                hold.happen(Happening.APPLIED)
            raise
        self._apply(lease, holds)

    def _intend(self, lease: Lease) -> None:
        """Put on disk what was found and what is asked. Raises `ControlError`; nothing was set then."""
        try:
            self._records.write(lease.id, lease.document(self._boot))
        except OSError as error:
            raise ControlError(f"nothing was set: its record could not be written: {error.strerror}") from error

    def _apply(self, lease: Lease, holds: list[Hold]) -> None:
        _each_device(holds, Hold.apply)
        failed = [hold for hold in holds if hold.state is not State.HELD]
        if failed:
            reasons = "; ".join(f"{h.knob.device} {h.knob.name}: {h.why}" for h in failed)
            self.end(lease, Happening.RELEASED)
            raise ControlError(f"{reasons}. All is as it was found" if lease.is_over else reasons)
        with contextlib.suppress(OSError):  # the record of the intention says all that is needed
            self._records.write(lease.id, lease.document(self._boot))
        for hold in holds:
            _log.info(f"lease {lease.id}: {hold.knob.device} {hold.knob.name} {hold.told().setting}")

    def renew(self, lease: Lease) -> None:
        if lease.is_ending:
            raise ControlError(f"lease {lease.id} has ended: {lease.holds[0].why}")
        for hold in lease.holds:
            hold.happen(Happening.RENEWED)
        lease.deadline_s, lease.is_attached = self._now_s() + lease.ttl_s, True

    def end(self, lease: Lease, happening: Happening) -> None:
        """End a lease; what does not go back at once is tried again by `poll`."""
        assert happening in ENDINGS
        _log.info(f"lease {lease.id} of {lease.told(0.0).holder} ends: {happening.value}")
        for hold in lease.holds:
            if hold.state is not State.ENDED:
                hold.happen(happening)
        self._revert(lease)

    def _revert(self, lease: Lease) -> None:
        _each_device([hold for hold in lease.holds if hold.state is State.REVERTING], Hold.revert)
        for hold in lease.holds:
            _log.info(f"lease {lease.id}: {hold.knob.device} {hold.knob.name}: {hold.why}")
        if lease.is_over:
            self.leases.pop(lease.id, None)
            try:
                self._records.remove(lease.id)
            except OSError as error:
                _log.warning(f"the record of lease {lease.id} cannot be removed: {error.strerror}")

    def poll(self) -> None:
        """Look at what is held: silence, other people's changes, drivers that were loaded anew."""
        for lease in list(self.leases.values()):
            if lease.is_ending:
                self._revert(lease)
            elif self._now_s() >= lease.deadline_s:
                self.end(lease, Happening.SILENT if lease.is_attached else Happening.ORPHANED)
            else:
                for hold in lease.holds:
                    if hold.state is State.HELD:
                        _look(lease, hold)

    def end_all(self) -> None:
        for lease in list(self.leases.values()):
            self.end(lease, Happening.STOPPED)

    def restore(self) -> None:
        """Take up the records of a helper that was killed: a holder that is alive may come back for `GRACE_S`."""
        for name, document in list(self._records.all()):
            try:
                if document["boot_id"] != self._boot:
                    _log.warning(f"lease {name} is of an earlier boot, which has forgotten its settings")
                    self._records.remove(name)
                    continue
                lease = self._lease_of(document)
            except (KeyError, TypeError, ValueError, OSError) as error:
                _log.error(f"the record of lease {name} cannot be used, and stays: {error!r}")
                continue
            self.leases[lease.id] = lease
            is_held = all(hold.state is not State.INTENT for hold in lease.holds)
            if not (is_held and lease.holder.is_alive()) or lease.is_ending:
                self.end(lease, Happening.ORPHANED)

    def _lease_of(self, document: Any) -> Lease:
        holds = [
            Hold(
                self._bench.find(h["uuid"], h["knob"]),
                h["found"],
                list(h["ours"]),
                State(h["state"]),
                odometer=h["odometer"],
                is_read_back=h["state"] != State.INTENT,
                changed_ns=_now_ns(),
            )
            for h in document["holds"]
        ]
        holder = Holder(**document["holder"])
        until_s = self._now_s() + GRACE_S
        return Lease(document["lease"], holder, document["ttl_s"], holds, until_s, is_attached=False)


def _look(lease: Lease, hold: Hold) -> None:
    try:
        hold.look()
    except KnobError as error:
        _log.warning(f"lease {lease.id}: {error}")
        return
    if hold.state is not State.HELD:
        _log.warning(f"lease {lease.id}: {hold.knob.device} {hold.knob.name}: {hold.why}")


def _each_device(holds: list[Hold], act: Callable[[Hold], None]) -> None:
    """Do it for all holds, the devices side by side: a driver may take seconds for one."""

    def in_turn(of: list[Hold]) -> None:
        for hold in of:
            act(hold)

    groups = [list(group) for _, group in groupby(holds, key=lambda hold: hold.knob.uuid)]
    if len(groups) <= 1:
        in_turn(holds)
        return
    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(in_turn, groups))


def boot_id() -> str:
    """What tells this boot of the machine from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """When a process began, in ticks since boot: with the pid, what tells it from all others. None for none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(text.rpartition(b")")[2].split()[19])


def user_name(uid: int) -> str:
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def _now_ns() -> int:
    """By the clock of a run's marks and events on this machine."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
