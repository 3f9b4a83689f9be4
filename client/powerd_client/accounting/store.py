"""What `powerd-accounting` has counted: one SQLite file, in which a transaction every few seconds holds the joules of
these seconds and how far each stream of powerd was counted by them.

So a restart goes on with the frame after the last one that counts, whatever ended the program: nothing counts twice,
and what powerd holds no more is missing seconds. Rows of lines wait some seconds until all streams have told theirs,
then become rows of devices (`seconds`) and sums of jobs (`job_days`), in the same transaction. Whole days leave for
Parquet (`powerd_client.accounting.days`).
"""

from __future__ import annotations

import json
import math
import secrets
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from powerd_client.accounting.jobs import HeldJob
from powerd_client.accounting.seconds import EpochSeconds, SecondsIntegral, position_of, restore
from powerd_client.host.database import make_tables, own_database
from powerd_core.errors import PowerdError
from powerd_core.model import Description
from powerd_core.serde import read_description, to_document

NAME = "accounting.sqlite"
WHOLE, ALONE, SHARE = 0, 1, 2
"""What a row of a line counts for: the device and its job; the device alone; a job's modelled share alone."""
_FOLD_S = 30
"""So long rows of lines wait for those of the device's other lines."""
DAY_S = 86400
_SUMS = "energy_j REAL, shared_j REAL, random_j2 REAL, time_s REAL, missing_s REAL"
_OF_JOBS = "scheduler TEXT, id TEXT, name TEXT, user TEXT, account TEXT, partition TEXT, step TEXT"
TABLES = {
    "about": "(name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "epochs": "(epoch TEXT PRIMARY KEY, number INTEGER, description TEXT NOT NULL)",
    "positions": "(epoch TEXT PRIMARY KEY, position TEXT NOT NULL)",
    "parts": (
        "(second INTEGER, line TEXT, device TEXT, provenance TEXT, job TEXT, counts INTEGER, "
        f"{_SUMS}, PRIMARY KEY (second, line, job, counts)) WITHOUT ROWID"
    ),
    "states": "(device TEXT, second INTEGER, state TEXT NOT NULL, PRIMARY KEY (device, second)) WITHOUT ROWID",
    "seconds": (
        f"(second INTEGER, device TEXT, provenance TEXT, job TEXT, {_SUMS}, cap_w REAL, is_idle INTEGER, lease TEXT, "
        "PRIMARY KEY (second, device, provenance, job)) WITHOUT ROWID"
    ),
    "job_days": (
        f"(day INTEGER, job TEXT, device TEXT, provenance TEXT, {_SUMS}, idle_j REAL, idle_s REAL, known_s REAL, "
        "PRIMARY KEY (day, job, device, provenance)) WITHOUT ROWID"
    ),
    "jobs": (
        f"(job TEXT PRIMARY KEY, {_OF_JOBS}, gpus TEXT, begin_ns INTEGER, end_ns INTEGER, seen_ns INTEGER, "
        "exit TEXT, origin TEXT)"
    ),
    "exports": "(day INTEGER PRIMARY KEY, files INTEGER NOT NULL)",
}
_ADD = {
    table: (
        f"INSERT INTO {table} VALUES ({', '.join('?' * n)}) ON CONFLICT DO UPDATE SET "
        + ", ".join(f"{name} = {name} + excluded.{name}" for name in sums)
    )
    for table, n, sums in (
        ("parts", 11, ("energy_j", "shared_j", "random_j2", "time_s", "missing_s")),
        ("seconds", 12, ("energy_j", "shared_j", "random_j2", "time_s", "missing_s")),
        (
            "job_days", 12,
            ("energy_j", "shared_j", "random_j2", "time_s", "missing_s", "idle_j", "idle_s", "known_s"),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class State:
    """What a device is under at a moment; None what nobody tells."""

    cap_w: float | None = None
    is_idle: bool | None = None
    """Whether the driver says that nothing runs on it."""
    lease: str | None = None
    """Who holds one of its knobs."""


class Part(NamedTuple):
    """Of one line, one piece of a second and one job, what counts: a row of ``parts``."""

    second: int
    line: str
    device: str
    provenance: str
    job: str
    counts: int
    """`WHOLE`, `ALONE` or `SHARE`."""
    energy_j: float
    shared_j: float
    random_j2: float
    time_s: float
    missing_s: float


@dataclass(slots=True)
class _Second:
    """A device's second, from those of its lines."""

    energy_j: float = 0.0
    shared_j2: float = 0.0
    random_j2: float = 0.0
    time_s: float = 0.0
    missing_s: float = -math.inf
    """Below 0 where what came late takes missing seconds back."""

    def add(self, energy_j: float, shared_j: float, random_j2: float, time_s: float, missing_s: float) -> None:
        """Another line: its time is the same time, and the line that misses most counts."""
        self.energy_j += energy_j
        self.shared_j2 += shared_j**2
        self.random_j2 += random_j2
        self.time_s = max(self.time_s, time_s)
        self.missing_s = max(self.missing_s, missing_s)

    @property
    def sums(self) -> tuple[float, float, float, float, float]:
        return self.energy_j, self.shared_j2**0.5, self.random_j2, self.time_s, self.missing_s


@dataclass(slots=True)
class States:
    """The states of devices, each from a second on."""

    of: dict[str, list[tuple[int, State]]] = field(default_factory=dict)

    def at(self, device: str, second: int) -> State:
        """The state in a second: the last that began in it or before."""
        known = self.of.get(device, [])
        place = bisect_right(known, second, key=lambda entry: entry[0])
        return known[place - 1][1] if place else State()

    def set(self, device: str, second: int, state: State) -> bool:
        """From a second on; whether that is news."""
        if self.at(device, second) == state:
            return False
        known = self.of.setdefault(device, [])
        known[:] = [entry for entry in known if entry[0] < second] + [(second, state)]
        return True

    def forget(self, before: int) -> None:
        """Those that ended before a second."""
        for known in self.of.values():
            place = bisect_right(known, before, key=lambda entry: entry[0])
            del known[: max(place - 1, 0)]


class Store:
    """The file in a folder of the user's own. Raises `ConfigError` and `PowerdError` for what cannot be used, and
    `sqlite3.Error` (a full disk) from everything."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.rows = own_database(self.path, TABLES, "an accounting", "name another folder")
        self.rows.execute("PRAGMA journal_mode = WAL")
        self.rows.execute("PRAGMA synchronous = FULL")
        with self.transaction():
            make_tables(self.rows, TABLES)
            self.rows.execute("INSERT OR IGNORE INTO about VALUES ('generation', ?)", (secrets.token_hex(2),))
        query = "SELECT value FROM about WHERE name = 'generation'"
        self.generation = str(self.rows.execute(query).fetchone()[0])
        """Tells files of this database from those of one that was lost."""
        self.states = States()
        for device, second, state in self.rows.execute("SELECT * FROM states ORDER BY second").fetchall():
            self.states.set(device, second, State(*json.loads(state)))

    def close(self) -> None:
        self.rows.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it is kept, or nothing."""
        self.rows.execute("BEGIN IMMEDIATE")
        try:
            yield self.rows
        except BaseException:
            if self.rows.in_transaction:  # SQLite has ended it where the disk was full
                self.rows.execute("ROLLBACK")
            raise
        self.rows.execute("COMMIT")

    # -- where it has come to ------------------------------------------------------------------------------------------

    def load(self, integral: SecondsIntegral) -> None:
        """Give an integral the epochs and how far they are counted."""
        query = "SELECT description, position FROM epochs JOIN positions USING (epoch) ORDER BY number"
        for description, position in self.rows.execute(query).fetchall():
            try:
                self._restore(integral, read_description(json.loads(description)), json.loads(position))
            except (KeyError, TypeError, ValueError) as error:
                raise PowerdError(f"{self.path} is damaged ({error}): set it aside, and it begins anew") from error

    def _restore(self, integral: SecondsIntegral, description: Description, position: Mapping[str, Any]) -> None:
        integral.begin(description)
        epoch = integral.epochs[description.epoch]
        epoch.offset_ns, epoch.said = position["offset_ns"], set(position["said"])
        for number, own in position["streams"].items():
            restore(epoch.streams[int(number)], own)

    def jobs(self, since_ns: int = 0) -> list[HeldJob]:
        """The jobs that go on, and those that ended since a moment of UTC."""
        query = "SELECT * FROM jobs WHERE end_ns IS NULL OR end_ns >= ?"
        return [HeldJob.of_row(row) for row in self.rows.execute(query, (since_ns,)).fetchall()]

    # -- a step --------------------------------------------------------------------------------------------------------

    def commit(
        self, integral: SecondsIntegral, parts: Iterable[Part], states: Iterable[tuple[str, int, State]],
        jobs: Iterable[HeldJob], now_s: float,
    ) -> None:  # fmt: skip
        """Keep what was counted and how far that is, and fold what waits no longer."""
        with self.transaction() as rows:
            for number, (name, epoch) in enumerate(integral.epochs.items()):
                self._keep_epoch(number, str(name), epoch)
            names = [str(name) for name in integral.epochs]
            for table in ("epochs", "positions"):
                rows.execute(f"DELETE FROM {table} WHERE epoch NOT IN ({', '.join('?' * len(names))})", names)
            rows.executemany(_ADD["parts"], parts)
            for device, second, state in states:
                if self.states.set(device, second, state):
                    values = json.dumps([state.cap_w, state.is_idle, state.lease])
                    rows.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (device, second, values))
            rows.executemany(f"INSERT OR REPLACE INTO jobs VALUES ({', '.join('?' * 14)})", (job.row for job in jobs))
            self._fold(int(now_s) - _FOLD_S)

    def _keep_epoch(self, number: int, name: str, epoch: EpochSeconds) -> None:
        described = (name, number, json.dumps(to_document(epoch.description)))
        if self.rows.execute("SELECT number FROM epochs WHERE epoch = ?", (name,)).fetchone() != (number,):
            self.rows.execute("INSERT OR REPLACE INTO epochs VALUES (?, ?, ?)", described)
        position = {
            "offset_ns": epoch.offset_ns,
            "said": sorted(epoch.said),
            "streams": {stream_number: position_of(stream) for stream_number, stream in epoch.streams.items()},
        }
        self.rows.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (name, json.dumps(position)))

    def fold_all(self) -> None:
        """What waits: nothing more comes."""
        with self.transaction():
            self._fold(1 << 62)

    def _fold(self, before: int) -> None:
        """Rows of lines become rows of devices and sums of jobs."""
        grouped: dict[tuple[int, str, str, str, int], _Second] = {}
        query = "SELECT * FROM parts WHERE second < ?"
        for second, _, device, provenance, job, counts, *sums in self.rows.execute(query, (before,)):
            grouped.setdefault((second, device, provenance, job, counts), _Second()).add(*sums)
        if not grouped:
            return
        for (second, device, provenance, job, counts), own in grouped.items():
            state = self.states.at(device, second)
            if counts != SHARE:
                of = (second, device, provenance, job)
                under = (state.cap_w, state.is_idle, state.lease)
                self.rows.execute(_ADD["seconds"], (*of, *own.sums, *under))
            if counts != ALONE:
                known_s = 0.0 if state.is_idle is None or counts == SHARE else own.time_s - own.missing_s
                idle_j, idle_s = (own.energy_j, known_s) if state.is_idle and counts == WHOLE else (0.0, 0.0)
                of_day = (second // DAY_S, job, device, provenance)
                self.rows.execute(_ADD["job_days"], (*of_day, *own.sums, idle_j, idle_s, known_s))
        self.rows.execute("DELETE FROM parts WHERE second < ?", (before,))
        self.rows.execute(
            "DELETE FROM states WHERE second < (SELECT MAX(second) FROM states s WHERE s.device = states.device "
            "AND s.second < ?)",
            (before,),
        )
        self.states.forget(before)
