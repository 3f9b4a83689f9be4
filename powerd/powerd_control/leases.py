"""Leases of knobs: what is set, for whom, and how it goes back. The life of a hold is `powerd_core.hold.TRANSITIONS`.

Before a knob is set, what was found and what is asked stand in a record, synced. A helper that was killed at any
moment leaves the record, and the next one ends what it says. Records lie in memory (``/run``), as the settings do: a
boot loses both. Nothing is given up: a card that does not answer, and a record that cannot be used, are tried again at
each `Leases.poll`. What such a record has set is not known, so nothing else is set before it is mended or deleted.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import stat
import time
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from powerd_control.knobs import Bench, Found, Knob, KnobError, Missing
from powerd_control.requests import plain
from powerd_core.errors import ConfigError, ControlError, LeaseHeld
from powerd_core.hold import (
    ENDINGS,
    UNITS,
    Happening,
    Setting,
    State,
    Value,
    after_reading,
    follow,
    is_same,
    option_of,
    text_of,
)

_log = logging.getLogger(__name__)

POLL_S = 2.0
"""How often held knobs are read again, and what did not go back is tried again."""
_VERSION = 2
"""Of the records."""
_PAGE = 4096
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds leases: by its pid and when it began, and as it calls itself."""

    uid: int
    pid: int
    start_ticks: int
    name: str = ""
    claim: str = ""
    """The key of the remote client for whom powerd, the process, holds them."""

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
    stands: Value | None = None
    """What it showed last, as it was found or as we have set it."""
    is_read_back: bool = False
    """Whether the driver has shown the newest value as ours."""
    changed_ns: int = 0
    why: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.knob.uuid, self.knob.name

    @property
    def asked(self) -> Value:
        return self.ours[-1]

    def happen(self, happening: Happening, why: str = "") -> None:
        self.state = follow(self.state, happening)
        if happening in (Happening.APPLIED, Happening.CHANGED):
            self.is_read_back = happening is Happening.APPLIED
        self.changed_ns = _now_ns()
        self.why = f"{happening.value}{': ' if why else ''}{why}"

    def apply(self) -> None:
        """Set what is asked and read it back, unless somebody else has set it meanwhile. The change is dated by its
        beginning: what ran meanwhile is of neither setting."""
        begin_ns = _now_ns()
        try:
            odometer, read = self.knob.odometer(), self.knob.read()
            if read.requested is not None and self.stands is not None and not is_same(read.requested, self.stands):
                self._lose(read)
                return
            self.odometer = odometer
            self.knob.set(self.asked)
            read = self.knob.read()
        except KnobError as error:
            self.happen(Happening.REFUSED, str(error))
            return
        self.stands = read.requested
        self.setting = Setting(self.asked, read.requested, read.enforced)
        if read.requested is None or is_same(read.requested, self.asked):
            self.happen(Happening.APPLIED)
            self.changed_ns = begin_ns
        else:
            kept, asked = (text_of(value, self.knob.name) for value in (read.requested, self.asked))
            self._remember(read)
            self.happen(Happening.REFUSED, f"the driver keeps {kept} where {asked} was asked")

    def _remember(self, read: Setting) -> None:
        """What the driver made of a value that we have set is ours as well."""
        if read.requested is not None and read.requested not in self.ours:
            self.ours.insert(0, read.requested)

    def _whose(self, read: Setting) -> str:
        found = self.found.get("value")
        return after_reading(read.requested, self.ours, found, is_intent=not self.is_read_back)

    def look(self) -> None:
        """Whether the knob is as we have set it, while it is held."""
        read = self.knob.read()
        self.setting = Setting(self.asked, read.requested, read.enforced)
        if read.requested is not None and is_same(read.requested, self.asked):
            return
        if read.requested is not None or self._is_forgotten():
            self._lose(read)

    def _lose(self, read: Setting) -> None:
        """The value is not ours any more."""
        if self._is_forgotten():
            self.happen(Happening.FORGOTTEN)
        else:
            self.happen(Happening.OVERRIDDEN, f"it is {text_of(read.requested, self.knob.name)} now")

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
                self.happen(Happening.OVERRIDDEN, f"{text_of(read.requested, self.knob.name)} is left as it is")
            else:
                if whose == "ours":
                    self.knob.revert(self.found)
                    read = self.knob.read()
                is_back = read.requested is None or found is None or is_same(read.requested, found)
                if is_back:
                    self.happen(Happening.REVERTED)
                else:
                    self._remember(read)
                    self.happen(Happening.REVERT_FAILED, f"it keeps {text_of(read.requested, self.knob.name)}")
            self.setting = Setting(None, read.requested, read.enforced)
            self.changed_ns = begin_ns
        except (KnobError, LookupError, TypeError, ValueError) as error:
            self.happen(Happening.REVERT_FAILED, str(error))

    def told(self) -> dict[str, Any]:
        """As `powerd_core.lease.Holding`."""
        return {
            "device": self.knob.device,
            "uuid": self.knob.uuid,
            "knob": self.knob.name,
            "state": self.state.value,
            "found": self.found.get("value"),
            "setting": asdict(self.setting),
            "changed_ns": self.changed_ns,
            "why": self.why,
        }

    def document(self) -> dict[str, Any]:
        """Of the record."""
        return {
            "driver": self.knob.driver,
            "uuid": self.knob.uuid,
            "knob": self.knob.name,
            "found": dict(self.found),
            "ours": self.ours,
            "state": self.state.value,
            "odometer": self.odometer,
        }


@dataclass(slots=True)
class Lease:
    """Several holds of one holder, which end together."""

    id: str
    holder: Holder
    ttl_s: float
    holds: list[Hold]
    began_s: float
    deadline_s: float
    """By CLOCK_BOOTTIME: until when another sign of life has to come."""

    @property
    def is_over(self) -> bool:
        return all(hold.state is State.ENDED for hold in self.holds)

    @property
    def is_ending(self) -> bool:
        return any(hold.state in (State.REVERTING, State.ENDED) for hold in self.holds)

    def holder_text(self) -> str:
        return f"{self.holder.name} ({user_name(self.holder.uid)}, pid {self.holder.pid})".strip()

    def told(self, now_s: float) -> dict[str, Any]:
        """As `powerd_core.lease.LeaseInfo`."""
        left_s = max(0.0, self.deadline_s - now_s)
        holds = [hold.told() for hold in self.holds]
        return {
            "lease": self.id,
            "holder": self.holder_text(),
            "ttl_s": self.ttl_s,
            "ends_in_s": left_s,
            "holds": holds,
        }

    def document(self, boot: str) -> dict[str, Any]:
        holds = [hold.document() for hold in self.holds]
        return {"boot_id": boot, "lease": self.id, "holder": asdict(self.holder), "ttl_s": self.ttl_s, "holds": holds}


class Records:
    """The records of leases: a file each in a folder of ours, written anew as a whole and synced."""

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` for a folder that is a link, or that others can reach."""
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"{folder} is no folder of the helper's own: {error.strerror}") from error
        self.path = folder
        weakref.finalize(self, os.close, self._folder)
        status = os.fstat(self._folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigError(f"{folder} is not the helper's alone: rmdir it, or chmod 700 and chown it")

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Whole pages, so that a record that grows a little needs no more room. Raises `OSError`; the record is then as
        it was."""
        text = json.dumps(document)
        line = f"{_VERSION} {zlib.crc32(text.encode()):08x} {text}".encode()
        line += b" " * (-len(line) % _PAGE)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        temporary = f"{name}.new"
        self._unlink(temporary)
        file = os.open(temporary, flags, 0o600, dir_fd=self._folder)
        try:
            _write_all(file, line)
            os.fsync(file)
        except OSError:
            with contextlib.suppress(OSError):
                self._unlink(temporary)
            raise
        finally:
            os.close(file)
        os.replace(temporary, f"{name}.json", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)

    def remove(self, name: str) -> None:
        self._unlink(f"{name}.json")
        os.fsync(self._folder)

    def _unlink(self, entry: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(entry, dir_fd=self._folder)

    def names(self) -> list[str]:
        """Raises `OSError`."""
        return sorted(entry.removesuffix(".json") for entry in os.listdir(self._folder) if entry.endswith(".json"))

    def read(self, name: str) -> Any:
        """Raises `OSError`, or `ValueError` for what `write` has not made."""
        file = os.open(f"{name}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            line = os.read(file, _MOST_BYTES).decode().rstrip(" ")
        finally:
            os.close(file)
        version, _, rest = line.partition(" ")
        check, _, text = rest.partition(" ")
        if version != str(_VERSION):
            raise ValueError("it is of another version, empty, or no record")
        if check != f"{zlib.crc32(text.encode()):08x}":
            raise ValueError("it is cut or damaged")
        return json.loads(text)


def _write_all(file: int, line: bytes) -> None:
    if os.write(file, line) < len(line):
        raise OSError(errno.ENOSPC, "it was cut: there is no room for it")


class Leases:
    """All leases of this machine."""

    def __init__(self, bench: Bench, records: Records, now_s: Callable[[], float], boot: str) -> None:
        """``now_s`` is CLOCK_BOOTTIME in seconds, ``boot`` what tells this boot from others."""
        self._bench, self._records, self._now_s, self._boot = bench, records, now_s, boot
        self.leases: dict[str, Lease] = {}
        self.unusable: dict[str, str] = {}
        """Records that cannot be used, and why: what they say is still set."""
        self._over: set[str] = set()
        """Records of leases that are over, which could not be removed."""

    @property
    def is_clean(self) -> bool:
        return not self.leases and not self.unusable

    def acquire(
        self,
        holder: Holder,
        wanted: Iterable[tuple[Knob, Value]],
        ttl_s: float,
        stated: Mapping[str, Value] | None = None,
        bounded: Collection[Knob] = (),
    ) -> Lease:
        """Set the knobs, all of them or none. ``stated`` is what is found of those that cannot be read, by name; those
        that are ``bounded`` are never set above what is found.

        Raises `LeaseHeld`, or `ControlError` where one could not be set; all is as it was found then."""
        if self.unusable:
            raise ControlError(f"nothing is set while it is not known what others have left: {self.problems()[0]}")
        wanted = sorted(wanted, key=lambda item: (item[0].uuid, item[0].name))
        keys = [(knob.uuid, knob.name) for knob, _ in wanted]
        if len(set(keys)) < len(keys) or not keys:
            raise ConfigError("name each knob of a device once" if keys else "name a knob and a value")
        now_s = self._now_s()
        for lease in self.leases.values():
            for hold in lease.holds:
                if hold.key in keys:
                    left = f"{max(0.0, lease.deadline_s - now_s):.0f} s from now at the latest, unless it goes on"
                    what = f"{hold.knob.device} {option_of(hold.knob.name)} is held by {lease.holder_text()}"
                    raise LeaseHeld(f"{what} until {left} (lease {lease.id})")
        holds = []
        for knob, value in wanted:
            found = {"value": (stated or {})[knob.name]} if knob.is_untold else knob.find()
            holds.append(Hold(knob, found, [value], stands=found["value"]))
            _check_bound(holds[-1], value, bounded)
        lease = Lease(secrets.token_hex(8), holder, ttl_s, holds, now_s, now_s + ttl_s)
        self._intend(lease)
        self.leases[lease.id] = lease
        self._apply(lease, holds)
        return lease

    def change(self, lease: Lease, wanted: Iterable[tuple[Knob, Value]], bounded: Collection[Knob] = ()) -> None:
        """Other values for knobs that the lease holds. Raises `ControlError`; where a knob could not be set the lease
        has ended."""
        levels = {(knob.uuid, knob.name): value for knob, value in wanted}
        if missing := levels.keys() - {hold.key for hold in lease.holds}:
            raise ControlError(f"the lease does not hold {min(missing)[1]}")
        holds = [hold for hold in lease.holds if hold.key in levels]
        if gone := next((hold for hold in holds if hold.state is not State.HELD), None):
            raise ControlError(f"{gone.knob.device} {option_of(gone.knob.name)}: {gone.why}")
        for hold in holds:
            _check_bound(hold, levels[hold.key], bounded)
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
            reasons = "; ".join(f"{h.knob.device} {option_of(h.knob.name)}: {h.why}" for h in failed)
            self.end(lease, Happening.RELEASED)
            raise ControlError(f"{reasons}. All is as it was found" if lease.is_over else reasons)
        with contextlib.suppress(OSError):  # the record of the intention says all that is needed
            self._records.write(lease.id, lease.document(self._boot))
        for hold in holds:
            _log.info(f"lease {lease.id}: {hold.knob.device} {option_of(hold.knob.name)} {hold.setting}")

    def renew(self, lease: Lease) -> None:
        if lease.is_ending:
            raise ControlError(f"lease {lease.id} has ended: {lease.holds[0].why}")
        lease.deadline_s = self._now_s() + lease.ttl_s

    def end(self, lease: Lease, happening: Happening) -> None:
        """End a lease; what does not go back at once is tried again by `poll`."""
        assert happening in ENDINGS
        _log.info(f"lease {lease.id} of {lease.holder_text()} ends: {happening.value}")
        for hold in lease.holds:
            if hold.state is not State.ENDED:
                hold.happen(happening)
        self._revert(lease)

    def _revert(self, lease: Lease) -> None:
        self._find_missing(lease)
        before = [hold.why for hold in lease.holds]
        _each_device([hold for hold in lease.holds if hold.state is State.REVERTING], Hold.revert)
        for hold, why in zip(lease.holds, before, strict=True):
            if hold.why != why:
                level = logging.INFO if hold.state is State.ENDED else logging.WARNING
                _log.log(level, f"lease {lease.id}: {hold.knob.device} {option_of(hold.knob.name)}: {hold.why}")
        if lease.is_over:
            self.leases.pop(lease.id, None)
            self._remove(lease.id)
        else:
            with contextlib.suppress(OSError):  # what the driver made of ours meanwhile
                self._records.write(lease.id, lease.document(self._boot))

    def _remove(self, name: str) -> None:
        try:
            self._records.remove(name)
            self._over.discard(name)
        except OSError as error:
            self._over.add(name)
            _log.warning(f"the record of lease {name} cannot be removed: {error.strerror}")

    def _find_missing(self, lease: Lease) -> None:
        for hold in lease.holds:
            if isinstance(hold.knob, Missing):
                hold.knob = self._bench.find_again(hold.knob.driver, *hold.key)

    def poll(self) -> None:
        """Look at what is held: silence, other people's changes, drivers that were loaded anew; and try again what did
        not go back."""
        for name in list(self._over):
            self._remove(name)
        if self.unusable:
            self.restore()
        for lease in list(self.leases.values()):
            if lease.is_ending:
                self._revert(lease)
            elif self._now_s() >= lease.deadline_s:
                self.end(lease, Happening.SILENT)
            else:
                for hold in lease.holds:
                    if hold.state is State.HELD:
                        _look(lease, hold)

    def end_all(self) -> None:
        for lease in list(self.leases.values()):
            self.end(lease, Happening.STOPPED)

    def restore(self) -> None:
        """End the leases of a helper that was killed: what their holders did meanwhile is of no known setting."""
        before, self.unusable = self.unusable, {}
        try:
            names = self._records.names()
        except OSError as error:
            names, self.unusable = [], {"*": f"the folder cannot be read: {error.strerror}"}
        for name in names:
            if name not in self.leases and name not in self._over:
                try:
                    self._take_up(name)
                except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
                    self.unusable[name] = str(error) or repr(error)
        if self.unusable != before:
            for problem in self.problems():
                _log.error(problem)

    def problems(self) -> list[str]:
        """What is wrong with records, a line each."""
        return [
            f"the record {name}.json in {self._records.path} cannot be used, so a knob may not be at what was found: "
            f"{plain(why, 200)}. Set it by hand, and delete the record"
            for name, why in self.unusable.items()
        ]

    def _take_up(self, name: str) -> None:
        document = self._records.read(name)
        if document["boot_id"] != self._boot:
            _log.warning(f"lease {name} is of an earlier boot, which has forgotten its settings")
            self._remove(name)
            return
        lease = self._lease_of(document)
        if lease.id != name:
            raise ValueError("it is the record of another lease")
        self.leases[name] = lease
        self.end(lease, Happening.ORPHANED)

    def _lease_of(self, document: Any) -> Lease:
        holds = [self._hold_of(h) for h in document["holds"]]
        holder = Holder(**document["holder"])
        now_s = self._now_s()
        return Lease(str(document["lease"]), holder, float(document["ttl_s"]), holds, now_s, now_s)

    def _hold_of(self, document: Any) -> Hold:
        found, ours, state = document["found"], list(document["ours"]), State(document["state"])
        if not ours or not all(isinstance(value, float | str) for value in (found["value"], *ours)):
            raise ValueError("it does not say what was found, and what was set")
        odometer = document["odometer"]
        if document["knob"] not in UNITS or not isinstance(odometer, int | None):
            raise ValueError("it names no knob of ours")
        knob = self._bench.find_again(str(document["driver"]), str(document["uuid"]), document["knob"])
        is_read_back = state is not State.INTENT
        stands = ours[-1] if is_read_back else None
        return Hold(
            knob, found, ours, state, odometer=odometer, stands=stands, is_read_back=is_read_back, changed_ns=_now_ns()
        )


def _check_bound(hold: Hold, value: Value, bounded: Collection[Knob]) -> None:
    """Raises `ConfigError` for more than what was found, where that is the most."""
    name, found = hold.knob.name, hold.found["value"]
    most = hold.knob.greatest(hold.found)
    if most is None and hold.knob in bounded and isinstance(found, float):
        most = found
    if most is not None and not (isinstance(value, float) and value <= most + 1e-6):
        raise ConfigError(
            f"{option_of(name)} is never set above what was found, {text_of(most, name)}: not to {text_of(value, name)}"
        )


def _look(lease: Lease, hold: Hold) -> None:
    try:
        hold.look()
    except KnobError as error:
        _log.warning(f"lease {lease.id}: {error}")
        return
    if hold.state is not State.HELD:
        _log.warning(f"lease {lease.id}: {hold.knob.device} {option_of(hold.knob.name)}: {hold.why}")


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
