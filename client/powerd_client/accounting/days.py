"""Parquet files of what `powerd-accounting` has counted, and how long they stay.

``seconds/DAY-….parquet`` has a row a second and device, made once when the day is over; its rows leave the database
when the file stands, synced. ``jobs/MONTH-….parquet`` has a row a job, day and device, and is renewed as long as the
month grows: files of days would be 30,000 a month for 1,000 nodes, which take a minute to open. Both are renamed into
place whole. A program of its own, as what writes Parquet takes more memory than the rest.

Joules of a second are rounded to a tenth of their U95 (in steps of 1, 2, 5), and what is rounded off goes to the next
second of the device: sums over a day are exact to one such step.
"""

from __future__ import annotations

import math
import re
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from powerd_client.accounting.store import DAY_S, Store
from powerd_client.host.log import tell
from powerd_client.host.ownership import delete, make_folder, whole_output
from powerd_client.journals.journal import sync_path
from powerd_core.errors import PowerdError

VERSION = b"1"
"""Of the columns, in the files' metadata ``powerd-accounting``."""
SECONDS, JOBS = "seconds", "jobs"
U95 = 1.96
_EPOCH = date(1970, 1, 1)
_SLACK_S = 600
"""So long after midnight what was late still comes into the day's file."""
_FILE = re.compile(r"(\d{4}-\d\d(?:-\d\d)?)-[0-9a-f]{4}(-\d+)?\.parquet")
_WORD = pa.dictionary(pa.int32(), pa.string())
_SECONDS = pa.schema(
    [
        ("second", pa.int64()), ("node", _WORD), ("device", _WORD), ("provenance", _WORD), ("job", _WORD),
        ("energy_j", pa.float32()), ("u95_j", pa.float32()), ("time_s", pa.float32()), ("missing_s", pa.float32()),
        ("cap_w", pa.float32()), ("is_idle", pa.bool_()), ("lease", _WORD),
    ],
    metadata={b"powerd-accounting": VERSION},
)  # fmt: skip
_ENCODINGS = dict.fromkeys(("energy_j", "u95_j"), "BYTE_STREAM_SPLIT") | {"second": "DELTA_BINARY_PACKED"}
"""Of columns that no dictionary makes small: noise is left in one of a number's four bytes."""
_TEXTS = ("scheduler", "id", "name", "user", "account", "partition", "step", "gpus", "exit", "origin")
_NUMBERS = (
    "energy_j", "u_shared_j", "u_random_j", "time_s", "missing_s", "idle_j", "idle_s", "idle_known_s",
)  # fmt: skip
_JOBS = pa.schema(
    [
        ("day", pa.date32()), ("node", _WORD), ("job", pa.string()),
        *((name, pa.string()) for name in _TEXTS),
        ("begin_s", pa.float64()), ("end_s", pa.float64()), ("device", pa.string()), ("provenance", _WORD),
        *((name, pa.float64()) for name in _NUMBERS),
    ],
    metadata={b"powerd-accounting": VERSION},
)  # fmt: skip
_NS = DAY_S * 1_000_000_000
_OF_JOB = (
    "j.scheduler, j.id, j.name, j.user, j.account, j.partition, j.step, j.gpus, j.exit, j.origin, j.begin_ns, j.end_ns"
)
_OF_DAYS = (
    f"SELECT d.day, d.job, {_OF_JOB}, d.device, d.provenance, d.energy_j, d.shared_j, d.random_j2, d.time_s, "
    "d.missing_s, d.idle_j, d.idle_s, d.known_s FROM job_days d LEFT JOIN jobs j USING (job) "
    "WHERE d.day BETWEEN :first AND :last UNION ALL "
    f"SELECT MAX(j.begin_ns / {_NS}, :first), j.job, {_OF_JOB}, {', '.join(['NULL'] * 10)} FROM jobs j "
    f"WHERE j.begin_ns < (:last + 1) * {_NS} AND (j.end_ns IS NULL OR j.end_ns >= :first * {_NS}) "
    "AND NOT EXISTS (SELECT 1 FROM job_days d WHERE d.day BETWEEN :first AND :last AND d.job = j.job)"
)
"""What each job took of each device on each day; a job that no reading was counted for has a row without a device."""


def publish(store: Store, folder: Path, node: str, now_s: float) -> None:
    """The files of all days and months that have news. Raises `OSError`, `PowerdError` and `sqlite3.Error`."""
    days = sorted({int(now_s) // DAY_S, *_days_in(store)})
    for kind in (SECONDS, JOBS):
        make_folder(folder / kind)
    for month in sorted({name_of(day)[:7] for day in days}):
        _write_jobs(store, folder, node, month)
    for day in days:
        if (day + 1) * DAY_S + _SLACK_S <= now_s:
            _export(store, folder, node, day)


def _days_in(store: Store) -> Iterator[int]:
    """The days whose seconds are in the database."""
    second = 0
    while (first := _first_from(store, second)) is not None:
        yield first // DAY_S
        second = (first // DAY_S + 1) * DAY_S


def _first_from(store: Store, second: int) -> int | None:
    first = store.rows.execute("SELECT MIN(second) FROM seconds WHERE second >= ?", (second,)).fetchone()[0]
    return None if first is None else int(first)


def name_of(day: int) -> str:
    """``2026-11-29``."""
    return (_EPOCH + timedelta(days=day)).isoformat()


# -- rows a second -----------------------------------------------------------------------------------------------------


def _export(store: Store, folder: Path, node: str, day: int) -> None:
    """Make the file of a day, then delete its rows. After a crash between the two the same file is made again."""
    found = store.rows.execute("SELECT files FROM exports WHERE day = ?", (day,)).fetchone()
    number = 0 if found is None else int(found[0])
    place = folder / SECONDS / f"{name_of(day)}-{store.generation}-{number}.parquet"
    write_seconds(place, node, _devices_of(store, day))
    with store.transaction() as rows:
        rows.execute("DELETE FROM seconds WHERE second >= ? AND second < ?", (day * DAY_S, (day + 1) * DAY_S))
        rows.execute("INSERT OR REPLACE INTO exports VALUES (?, ?)", (day, number + 1))


def _devices_of(store: Store, day: int) -> Iterator[Sequence[tuple[Any, ...]]]:
    """The rows of each device and provenance in turn, by second."""
    of_day = "second >= ? AND second < ?"
    between = (day * DAY_S, (day + 1) * DAY_S)
    query = f"SELECT DISTINCT device, provenance FROM seconds WHERE {of_day} ORDER BY device, provenance"
    for device, provenance in store.rows.execute(query, between).fetchall():
        own = f"SELECT * FROM seconds WHERE {of_day} AND device = ? AND provenance = ? ORDER BY second, job"
        yield store.rows.execute(own, (*between, device, provenance)).fetchall()


def write_seconds(place: Path, node: str, devices: Iterable[Sequence[tuple[Any, ...]]]) -> None:
    """A file with a row group for each device: rows as the table ``seconds`` has them."""
    words = [name for name in _SECONDS.names if name not in _ENCODINGS]
    with whole_output(place) as partial:
        options = {"compression": "zstd", "compression_level": 9}
        with pq.ParquetWriter(partial, _SECONDS, column_encoding=_ENCODINGS, use_dictionary=words, **options) as file:
            for rows in devices:
                second, *others = zip(*_rounded(rows), strict=True)
                file.write_table(_table(_SECONDS, (second, (node,) * len(rows), *others)))
        sync_path(partial)
    sync_path(place.parent)


def _table(schema: pa.Schema, columns: Iterable[Sequence[Any]]) -> pa.Table:
    return pa.table([pa.array(own, field.type) for own, field in zip(columns, schema, strict=True)], schema=schema)


def _rounded(rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    left_j = 0.0
    for second, device, provenance, job, energy_j, shared_j, random_j2, time_s, missing_s, cap_w, idle, lease in rows:
        u95_j = U95 * math.sqrt(shared_j**2 + max(random_j2, 0.0))
        step_j = step_of(u95_j)
        told_j = round((energy_j + left_j) / step_j) * step_j
        left_j += energy_j - told_j
        is_idle = None if idle is None else bool(idle)
        times = (round(time_s, 3), round(missing_s, 3))
        yield second, device, provenance, job, told_j, _two_digits(u95_j), *times, cap_w, is_idle, lease


def step_of(u95_j: float) -> float:
    """1, 2 or 5 times a power of ten, at most a tenth of U95; a millijoule where that is 0."""
    tenth_j = max(u95_j / 10, 1e-3)
    decade = 10.0 ** math.floor(math.log10(tenth_j))
    return decade * max(step for step in (1, 2, 5) if step * decade <= tenth_j * (1 + 1e-9))


def _two_digits(u95_j: float) -> float:
    """Rounded up: never surer than it is."""
    if u95_j <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(u95_j)) - 1)
    return math.ceil(u95_j / unit * (1 - 1e-9)) * unit


# -- rows a job --------------------------------------------------------------------------------------------------------


def _write_jobs(store: Store, folder: Path, node: str, month: str) -> None:
    first = date.fromisoformat(f"{month}-01")
    after = (first + timedelta(days=32)).replace(day=1)
    between = {"first": (first - _EPOCH).days, "last": (after - _EPOCH).days - 1}
    rows = store.rows.execute(_OF_DAYS, between).fetchall()
    if rows:
        write_jobs(folder / JOBS / f"{month}-{store.generation}.parquet", node, rows)


def write_jobs(place: Path, node: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """A file of rows as `_OF_DAYS` gives them."""
    table = _table(_JOBS, list(zip(*(_job_row(node, row) for row in rows), strict=True)))
    with whole_output(place) as partial:
        pq.write_table(table, partial, compression="zstd")
        sync_path(partial)
    sync_path(place.parent)


def _job_row(node: str, row: Sequence[Any]) -> tuple[Any, ...]:
    day, of, texts, (begin, end), (device, provenance) = row[0], row[1], row[2:12], row[12:14], row[14:16]
    energy_j, shared_j, random_j2, *others = row[16:]
    times = (None if t is None else t * 1e-9 for t in (begin, end))
    random_j = None if random_j2 is None else math.sqrt(max(random_j2, 0.0))
    return (day, node, of, *texts, *times, device, provenance, energy_j, shared_j, random_j, *others)


# -- how long they stay ------------------------------------------------------------------------------------------------


def tidy(store: Store, folder: Path, retention_days: int, quota_bytes: float, now_s: float) -> None:
    """Delete days and months that are older than that, then the oldest seconds, then the oldest jobs, until all fit;
    those of today never. What goes is said."""
    before = int(now_s) // DAY_S - retention_days
    oldest, today = name_of(before), name_of(int(now_s) // DAY_S)
    files = [
        (kind, match[1], path)
        for kind in (SECONDS, JOBS)
        for path in sorted((folder / kind).iterdir())
        if (match := _FILE.fullmatch(path.name)) and not today.startswith(match[1])
    ]
    old = [path for _, of, path in files if of < oldest[: len(of)]]
    left = [path for _, of, path in files if of >= oldest[: len(of)]]  # seconds first
    beyond, size = [], sum(path.stat().st_size for path in left)
    for path in left:
        if size <= quota_bytes:
            break
        size -= path.stat().st_size
        beyond.append(path)
    for paths, why in ((old, f"older than {retention_days} days"), (beyond, f"beyond {quota_bytes * 1e-6:g} MB")):
        for path in paths:
            delete(path)
        if paths:
            tell(f"{folder}: {len(paths)} files deleted, {why}: {paths[0].name} to {paths[-1].name}")
    with store.transaction() as rows:
        rows.execute("DELETE FROM job_days WHERE day < ?", (before,))
        rows.execute("DELETE FROM exports WHERE day < ?", (before,))
        rows.execute("DELETE FROM jobs WHERE end_ns < ?", (before * _NS,))


def main() -> None:
    """``FOLDER NODE RETENTION_DAYS QUOTA_MB``: publish and tidy. `powerd_client.accounting.service` runs it."""
    folder, node, retention_days, quota_mb = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    try:
        store = Store(folder)
        try:
            now_s = time.time()
            publish(store, folder, node, now_s)
            tidy(store, folder, retention_days, quota_mb * 1e6, now_s)
        finally:
            store.close()
    except (OSError, PowerdError, sqlite3.Error, pa.ArrowException) as error:
        with suppress(Exception):
            tell(f"the files of the accounting cannot be renewed now: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
