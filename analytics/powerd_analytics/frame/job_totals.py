"""Joules of a cluster's jobs, users and accounts, from the files that `powerd-accounting` leaves on its nodes.

DuckDB reads the rows a job and day of all nodes. Joules of different provenance are never added. What sensors share
(gain, zero) is added up one to one over seconds, devices and nodes, as if all of them erred alike; the rest in
quadrature.
"""

from __future__ import annotations

import datetime
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerd_analytics.energy.uncertainty import NORMAL
from powerd_analytics.frame.costs import Factors
from powerd_analytics.frame.figures import column
from powerd_analytics.frame.index import OF_JOB, WHOLE, open_index
from powerd_analytics.output.export import Column, Table, make_table, with_provenance
from powerd_analytics.output.text import first_of
from powerd_client.accounting.jobs import is_processor
from powerd_client.host.log import install_hint
from powerd_core.errors import AnalysisError, ConfigError, RunFileError
from powerd_core.text import did_you_mean, printable

NO_JOB = "no job"
_OF_JOBS = ("name", "user", "account", "partition")
BY = {
    "job": f"if(job = '', '{NO_JOB}', job)",
    **{name: f"if(job = '', '{NO_JOB}', nullif(\"{name}\", ''))" for name in _OF_JOBS},
    "node": "node",
    "device": "device",
    "day": "strftime(day, '%Y-%m-%d')",
    "week": "strftime(day, '%G-W%V')",
    "month": "strftime(day, '%Y-%m')",
}
"""What rows can be of, and how SQL finds it in a row of a job and day."""
_FILE = re.compile(r"\d{4}-\d\d-[0-9a-f]{4}\.parquet")
_FOLDER, _SECONDS = "jobs", "seconds"
_COLUMNS_OF_JOB = (
    *(Column(name) for name in _OF_JOBS),
    Column("begin_utc", meaning="when it began", heading="begin (UTC)"),
    Column("hours", "number", "h", "how long it ran; nothing as long as it runs", "h"),
    Column("exit", meaning="the exit status that its scheduler told"),
    Column("gpus", "integer", "1", "GPUs that it held"),
)
_COLUMNS_OF_SEVERAL = (Column("jobs", "integer", "1", "jobs that are added up"),)
_FIGURES = (
    Column("provenance", meaning="measured, modelled, simulated, or a modelled share of a processor", heading="kind"),
    Column("energy_j", "number", "J", "joules that were counted", "J"),
    Column("u95_j", "number", "J", "half of their 95 % interval", "± U95 J", is_uncertainty=True),
    Column("energy_wh", "number", "Wh", "the same in watt-hours", "Wh"),
    Column("device_s", "number", "s", "seconds of devices that were held, missing ones included", "device h", per=3600),
    Column("missing_s", "number", "s", "seconds of devices without readings", "missing s"),
    Column("idle_share", "number", "1", "share of these seconds in which the driver called the GPU idle", "idle %",
           per=0.01),
    Column("idle_j", "number", "J", "joules of these seconds", "J idle"),
)  # fmt: skip
_IS_GPU = "device LIKE 'gpu%'"
_SEEN = {
    **{name: f"max(nullif(\"{name}\", ''))" for name in _OF_JOBS},
    "begin_utc": "strftime(make_timestamp(CAST(min(begin_s) * 1e6 AS BIGINT)), '%Y-%m-%d %H:%M:%S')",
    "hours": "(max(end_s) - min(begin_s)) / 3600",
    "exit": "max(nullif(exit, ''))",
    "gpus": f"count(DISTINCT node || device) FILTER ({_IS_GPU})",
    "jobs": "count(DISTINCT nullif(job, ''))",
}
"""How SQL finds what is told of the jobs of a row."""


NOTHING_ASKED = Factors()


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What is asked of the files of nodes. Raises `ConfigError` for a name in ``by`` that nothing has."""

    by: tuple[str, ...] = ("job",)
    since: datetime.date | None = None
    """The first day of UTC that counts."""
    until: datetime.date | None = None
    """The last one."""
    top: int | None = None
    """So many rows with the most joules."""
    factors: Factors = NOTHING_ASKED

    def __post_init__(self) -> None:
        for name in self.by:
            if name not in BY:
                raise ConfigError(f"--by {printable(name, limit=60)}: there is no such thing{did_you_mean(name, BY)}")
        if self.since is not None and self.until is not None and self.until < self.since:
            raise ConfigError(f"--until {self.until} is before --since {self.since}")

    @property
    def days(self) -> str:
        """A condition of SQL for the days that count."""
        bounds = ((">=", self.since), ("<=", self.until))
        return " AND ".join(["true", *(f"day {than} DATE '{day}'" for than, day in bounds if day is not None)])


def job_files(places: Sequence[str]) -> list[str]:
    """The files of jobs below folders of nodes, or of a bucket (``s3://...``, which DuckDB looks through).

    Raises `RunFileError` where there are none, for a folder that may not be read, and for a file that is given twice.
    """
    files: list[str] = []
    for place in places:
        if "://" in place:
            files.append(f"{place.rstrip('/')}/**/{_FOLDER}/*.parquet")
            continue
        found = _files_below(place)
        if not found:
            raise RunFileError(f"{place}: powerd-accounting has left no files of jobs there or below")
        files += found
    seen = set[str]()
    for path in (path for path in files if "://" not in path):
        place = os.path.realpath(path)
        if place in seen:
            raise RunFileError(f"{path} is given twice: its joules count once")
        seen.add(place)
    return files


def _files_below(place: str) -> list[str]:
    """In the folder itself, and in those called ``jobs`` below it; hidden ones are nobody's node."""

    def refused(error: OSError) -> None:
        raise RunFileError(f"{error.filename} cannot be read: {error.strerror or error}") from error

    found: list[Path] = []
    for folder, folders, names in os.walk(place, onerror=refused):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if folder == place or Path(folder).name == _FOLDER:
            found += [Path(folder, name) for name in sorted(names) if _FILE.fullmatch(name)]
    return list(map(str, found))


# -- each second counts once -------------------------------------------------------------------------------------------

_TWICE_S = 60
"""So many seconds that two accountings have are no clock that was set between them."""


def check_counted_once(files: Sequence[str], days: str) -> list[str]:
    """Raises `RunFileError` where two files have the same seconds of a device: a copy of a node's folder, or two
    accountings of one node. Returns a note where that cannot be told.

    An accounting that has lost its database begins another file of the same month (`days.publish`), of other seconds.
    """
    of_month: dict[tuple[str, str], dict[str, str]] = {}
    for row in ask("SELECT DISTINCT node, filename FROM read_parquet(?, filename = true) ORDER BY ALL", files):
        node, path = row["node"], row["filename"]
        name = path.rpartition("/")[2]
        other = of_month.setdefault((node, name[:7]), {}).setdefault(name, path)
        if other != path:
            raise RunFileError(f"{other} and {path} are one file of {node}, which would count twice: leave one out")
    several = [path for own in of_month.values() if len(own) > 1 for path in own.values()]
    return _check_seconds(several, days) if several else []


def _check_seconds(files: Sequence[str], days: str) -> list[str]:
    """Of nodes and months of which there are several files."""
    sql = (
        "SELECT node, strftime(day, '%Y-%m-%d') AS day, list(DISTINCT filename) AS files "
        f"FROM read_parquet(?, filename = true) WHERE device IS NOT NULL AND {days} "
        "GROUP BY node, day, device HAVING count(DISTINCT filename) > 1 ORDER BY node, day, device"
    )
    of_day: dict[tuple[str, str], set[str]] = {}
    for row in ask(sql, files):
        of_day.setdefault((row["node"], row["day"]), set()).update(row["files"])
    untold = []
    for (node, day), paths in of_day.items():
        seconds = {path: _seconds_of(path, day) for path in sorted(paths)}
        if not all(seconds.values()):
            untold.append(f"{node} on {day}")
            continue
        for twice in ask(_TWICE, [path for own in seconds.values() for path in own]):
            raise RunFileError(
                f"{' and '.join(seconds)} both have {twice['n']:,} seconds of {day} of {twice['device']} of {node}, "
                "which would count twice: leave one out, or give two nodes two names (--node)"
            )
    text = "without their files of seconds nobody can tell whether joules count twice"
    return [f"several accountings of {first_of(untold, ', ')}: {text}"] if untold else []


_TWICE = (
    "SELECT device, count(*) AS n FROM (SELECT device, second, count(DISTINCT split_part(filename, '-', -2)) AS files "
    "FROM read_parquet(?, filename = true) WHERE time_s > missing_s GROUP BY ALL) "
    f"WHERE files > 1 GROUP BY device HAVING n >= {_TWICE_S} ORDER BY device"
)
"""Seconds of devices with readings by two accountings. Files of seconds are called DAY-ACCOUNTING-NUMBER."""


def _seconds_of(path: str, day: str) -> list[str]:
    """The files of a day that belong to a file of jobs; none of a bucket."""
    if "://" in path:
        return []
    of_jobs = Path(path)
    generation = of_jobs.stem.rpartition("-")[2]
    return sorted(map(str, (of_jobs.absolute().parents[1] / _SECONDS).glob(f"{day}-{generation}-*.parquet")))


# -- a table -----------------------------------------------------------------------------------------------------------


def job_totals(files: Sequence[str], request: JobRequest) -> Table:
    """A row for each combination of ``request.by`` and provenance. Raises `AnalysisError`, `ConfigError`, and
    `RunFileError` where files would count twice."""
    notes_of_files = check_counted_once(files, request.days)
    is_by_job = "job" in request.by
    of_job = _COLUMNS_OF_JOB if is_by_job else _COLUMNS_OF_SEVERAL
    names = dict.fromkeys((*request.by, *(column.name for column in of_job)))
    rows = [_row(record, request.factors) for record in _asked(files, request.by, of_job, request.days)]
    if not rows:
        raise AnalysisError(_why_nothing(files, request))
    shown = rows if request.top is None else sorted(rows, key=lambda r: -(r["energy_j"] or 0.0))[: request.top]
    told = {column.name: column for column in of_job}
    columns = [told.get(name, Column(name)) for name in names]
    columns += [*_FIGURES, *(column(name) for name in request.factors.columns)]
    notes = [*request.factors.notes, *notes_of_files]
    if request.factors.price_per_gpu_hour is not None:
        notes.append("an hour of a GPU that jobs share counts for each of them")
    if len(shown) < len(rows):
        notes.append(f"the {len(shown)} of {len(rows)} rows with the most joules")
    table = make_table("jobs", f"joules by {' and '.join(request.by)}", columns, shown, notes, ())
    return with_provenance(table, {str(row["provenance"]) for row in shown if row["provenance"]})


def _why_nothing(files: Sequence[str], request: JobRequest) -> str:
    """Why no row is of the days that were asked."""
    (there,) = ask("SELECT min(day)::VARCHAR AS first, max(day)::VARCHAR AS last FROM read_parquet(?)", files)
    bounds = ((" since ", request.since), (" until ", request.until))
    asked = "".join(f"{word}{day}" for word, day in bounds if day is not None)
    return f"no job{asked}: the first one there is of {there['first']}, the last one of {there['last']}"


def _row(record: dict[str, Any], factors: Factors) -> dict[str, Any]:
    energy_j, known_s = record["energy_j"], record["idle_known_s"] or 0.0
    figures: dict[str, Any] = {
        "idle_share": record["idle_s"] / known_s if known_s > 0 else None,
        "idle_j": record["idle_j"] if known_s > 0 else None,
    }
    if energy_j is not None:
        u95_j = NORMAL * float((record["u_shared_j"] ** 2 + record["u_random_j2"]) ** 0.5)
        figures |= {"u95_j": u95_j, "energy_wh": energy_j / 3600, **factors.texts}
        figures |= factors.of(energy_j, u95_j, record["gpu_s"])
    return record | figures


def _asked(files: Sequence[str], by: Sequence[str], of_job: Sequence[Column], days: str) -> list[dict[str, Any]]:
    keys = ", ".join(f'{BY[name]} AS "{name}"' for name in by)
    seen = ", ".join(f'{_SEEN[c.name]} AS "{c.name}"' for c in of_job if c.name not in by)
    sql = (
        f"SELECT {keys}, {seen}, provenance, sum(energy_j) AS energy_j, sum(u_shared_j) AS u_shared_j, "
        "sum(u_random_j * u_random_j) AS u_random_j2, sum(time_s) AS device_s, sum(missing_s) AS missing_s, "
        f"sum(time_s) FILTER ({_IS_GPU}) AS gpu_s, "
        "sum(idle_j) AS idle_j, sum(idle_s) AS idle_s, sum(idle_known_s) AS idle_known_s "
        f"FROM read_parquet(?) WHERE {days} "
        f"GROUP BY {', '.join(map(str, range(1, len(by) + 1)))}, provenance ORDER BY ALL"
    )
    return ask(sql, files)


def ask(sql: str, files: Sequence[str]) -> list[dict[str, Any]]:
    """Rows by name of a SELECT over ``read_parquet(?)`` of the files. Raises `ConfigError` and `AnalysisError`."""
    try:
        import duckdb
    except ImportError as error:
        raise ConfigError(f"tables of jobs need DuckDB: {install_hint('query')}") from error
    connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false", "temp_directory": ""})
    try:
        result = connection.execute(sql, [list(files)])
        names = [str(described[0]) for described in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    except (duckdb.Error, RuntimeError) as error:
        raise AnalysisError(f"the files of jobs cannot be asked: {' '.join(str(error).split())}") from error
    finally:
        connection.close()


# -- with the run files of jobs ----------------------------------------------------------------------------------------

_PHASES = (
    Column("phase_path", heading="phase"),
    Column("provenance", heading="kind"),
    Column("phases", "integer", "1", "phases that ended in recorded runs", "n"),
    Column("energy_j", "number", "J", "joules of these phases by the run files", "J"),
)


def phase_totals(files: Sequence[str], index: Path, request: JobRequest) -> Table:
    """Joules by phase of the jobs whose runs an index has, joined by the job's id and named by what the jobs' files say
    of it: those of the devices that the job held. Phases inside others are rows of their own, and part of those around
    them."""
    keys = [name for name in request.by if name not in ("node", "device", "day", "week", "month")]
    if len(keys) < len(request.by):
        raise ConfigError("phases are of whole jobs: with --index, --by takes job, name, user, account and partition")
    sql = "SELECT DISTINCT id, job, name, \"user\", account, partition FROM read_parquet(?) WHERE id <> '' AND "
    of_id = {row["id"]: row for row in ask(sql + request.days, files)}
    opened, holders = open_index(index), _Holders.of(files)
    sums: dict[tuple[Any, ...], _Sum] = {}
    for row in opened.table(_OF_PHASES).to_pylist():
        job = of_id.get(row["job_id"])
        is_own = row["kind"] == "phase" and row[OF_JOB] != WHOLE  # whose parts are rows too
        if not is_own or job is None or row["j_per_batch"] is None or not row["n"] or not holders.counts(row):
            continue
        key = (*(job[name] for name in keys), row["phase_path"], row["provenance"])
        sums.setdefault(key, _Sum()).add(row)
    if not of_id:
        raise AnalysisError(_why_nothing(files, request))
    if not sums:
        raise AnalysisError(f"{opened.path} has no phases with joules of a job that counts here")
    of_key = sorted(sums.items(), key=lambda item: tuple(map(str, item[0])))
    lines = [(*key, own.phases, own.energy_j) for key, own in of_key]
    if request.top is not None:
        lines = sorted(lines, key=lambda line: -line[-1])[: request.top]
    columns = [*(Column(name) for name in keys), *_PHASES]
    notes = [f"by the run files of {opened.path}; phases inside others are part of those", *holders.notes]
    table = make_table("phases", f"joules by {', '.join(keys)} and phase", columns, lines, notes, ())
    return with_provenance(table, {str(line[-3]) for line in lines})


_OF_PHASES = ("kind", OF_JOB, "path", "host", "job_id", "phase_path", "device", "provenance", "n", "j_per_batch")


@dataclass(slots=True)
class _Sum:
    """Of one kind of phase of some runs."""

    energy_j: float = 0.0
    _ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By run file and device: a phase is one, on however many devices it took joules."""

    def add(self, row: dict[str, Any]) -> None:
        self.energy_j += row["n"] * row["j_per_batch"]
        self._ended[row["path"], row["device"]] += row["n"]

    @property
    def phases(self) -> int:
        of_run: dict[str, int] = {}
        for (path, _), n in self._ended.items():
            of_run[path] = max(of_run.get(path, 0), n)
        return sum(of_run.values())


@dataclass(slots=True)
class _Holders:
    """Which devices of which nodes the accounting knows, and which of them each job held."""

    known: set[tuple[str, str]]
    """Node and device."""
    held: set[tuple[str, str, str]]
    """The job's id, node and device."""
    _left_out: set[str] = field(default_factory=set)
    _unknown: set[str] = field(default_factory=set)
    _whole: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, files: Sequence[str]) -> _Holders:
        known, held = set(), set()
        for row in ask("SELECT DISTINCT id, node, device, gpus FROM read_parquet(?)", files):
            devices = {row["device"], *(row["gpus"] or "").split(",")} - {None, ""}
            known |= {(row["node"], device) for device in devices}
            held |= {(row["id"], row["node"], device) for device in devices}
        return cls(known, held)

    def counts(self, row: dict[str, Any]) -> bool:
        """Whether the joules of a phase on a device are those of its job."""
        at, name = (row["host"], row["device"]), f"{row['device']} of {row['host']}"
        if at not in self.known:
            self._unknown.add(name)
        elif (row["job_id"], *at) not in self.held:
            self._left_out.add(name)
            return False
        elif is_processor(row["device"]):
            self._whole.add(name)
        return True

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the devices."""
        told = (
            ("left out where its job did not hold it", self._left_out),
            ("the accounting does not know it: all that was recorded of it counts", self._unknown),
            ("of a processor a job has a share, and all that was recorded of it counts", self._whole),
        )
        return [f"{first_of(sorted(names), ', ')}: {text}" for text, names in told if names]


def day_of(option: str, date: str | None) -> datetime.date | None:
    """A day as an option takes it. Raises `ConfigError`."""
    try:
        return None if date is None else datetime.date.fromisoformat(date)
    except ValueError:
        raise ConfigError(f"{option} {printable(date or '', limit=40)}: write a day, as in 2026-11-01") from None
