"""The index of a campaign: one Parquet file with a row for each run file and the records of its table."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerd_analytics.energy.devices import Progress, no_progress
from powerd_analytics.records.columns import COLUMNS, RECORD_VERSION, Column, Record
from powerd_analytics.runs.names import pick
from powerd_core.errors import AnalysisError, RunFileError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

INDEX_VERSION = 1
CURRENT = (INDEX_VERSION, RECORD_VERSION)
SUFFIX = ".parquet"
NAME = "index.parquet"
"""The index of a directory that was given no other name, in that directory."""
FILE = "file"
"""``kind`` of the rows that stand for run files."""
METADATA = b"powerd-index"
FILE_COLUMNS = {
    column.name: column
    for column in (
        Column("file_bytes", "integer", "1", "size of the run file"),
        Column("file_mtime_ns", "integer", "ns", "when the run file was last changed, since 1970"),
        Column("records", "integer", "1", "how many records the run has"),
        Column("error", "text", "", "why the file could not be read"),
    )
}
"""Columns that only rows of kind `FILE` have, beside ``path``, ``run``, ``run_id``, ``created_utc`` and ``host``."""
OF_JOB, PART, WHOLE = "of_job", "part", "whole"
_OF_JOB = Column(OF_JOB, "text", "", "part: of one machine of a job over several; whole: of such a job")
INDEX_COLUMNS = COLUMNS | FILE_COLUMNS | {OF_JOB: _OF_JOB}
_BATCH_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class Index:
    """An index that was found to be one. Its paths are relative to ``runs``, so that both can move together."""

    path: Path
    runs: Path
    """The directory that was indexed."""
    version: tuple[int, int]
    """`INDEX_VERSION` and `RECORD_VERSION` as they were then."""
    release: str
    """The release of powerd that wrote it."""
    columns: tuple[str, ...]
    rows: int

    def names(self, *, broken: bool = False) -> list[str]:
        """The run files that were read, relative to ``runs``; with ``broken`` those that could not be."""
        import pyarrow.compute as pc

        files = self.table(("kind", "path", "error")).filter(pc.field("kind") == FILE)
        is_wanted = files["error"].is_valid() if broken else files["error"].is_null()
        names: list[str] = files.filter(is_wanted)["path"].to_pylist()
        return names

    def table(self, columns: tuple[str, ...]) -> pa.Table:
        """All rows of these columns; a column that a former release did not know is null."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(self.path, columns=[name for name in columns if name in self.columns])
        except (pa.ArrowException, OSError) as error:
            raise RunFileError(f"{self.path} is damaged ({error}): make it again with `joules index`") from error
        for name in columns:
            if name not in self.columns:
                table = table.append_column(_field(INDEX_COLUMNS[name]), pa.nulls(len(table), _type(name)))
        return table.select(list(columns))


def is_index(path: Path) -> bool:
    """Whether a path on the command line means an index, by its name."""
    return path.suffix == SUFFIX and not path.is_dir()


def open_index(path: Path | str, *, any_version: bool = False) -> Index:
    """The index in a file, or in a directory under its usual name.

    Raises `RunFileError` where there is none, for what is no index, and for one of another version unless
    ``any_version``, whose rows may then mean something else.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    if path.is_dir():
        if not (path / NAME).exists():
            raise RunFileError(f"{path} has no {NAME}: make it with `joules index {path}`")
        path /= NAME
    if not path.exists():
        raise RunFileError(f"there is no index {path}: `joules index DIR` makes one")
    if not path.is_file():  # to open a pipe is to wait for whoever writes into it
        raise RunFileError(f"{path} is no index: it is a device or a pipe")
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except PermissionError as error:
        raise RunFileError(f"{path} cannot be read: {os.strerror(error.errno or errno.EACCES)}") from error
    except (pa.ArrowException, OSError) as error:
        raise RunFileError(f"{path} is no index: it is no Parquet file, or was cut off") from error
    try:
        said = json.loads((schema.metadata or {})[METADATA])
        (of_index, of_records), root, release = said["version"], str(said["runs"]), str(said["powerd_version"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunFileError(f"{path} is no index: `joules index DIR` makes one") from error
    if (of_index, of_records) != CURRENT and not any_version:
        raise RunFileError(
            f"{path} is an index of version {of_index}.{of_records}, this powerd reads {CURRENT[0]}.{CURRENT[1]}: "
            "make it again with `joules index DIR`"
        )
    if missing := {"kind", "path", "error"} - set(schema.names):
        raise RunFileError(f"{path} is no index: it has no column {min(missing)!r}")
    # The link that an index may be reached by does not tell where its runs are.
    below = Path(os.path.realpath(path)).parent
    runs = path.parent if root == "." else Path(os.path.normpath(below / root))
    return Index(path, runs, (of_index, of_records), release, tuple(schema.names), rows)


def index_files(path: Path) -> list[Path]:
    """The run files of an index. Raises `RunFileError` as `open_index`, and where some could not be read."""
    index = open_index(path)
    if broken := index.names(broken=True):
        raise RunFileError(
            f"{index.runs / broken[0]} could not be read when {index.path} was made (nor {len(broken) - 1} others): "
            "a campaign is all of its runs; take it away and index again, or ask the index with `joules query`"
        )
    return [index.runs / name for name in index.names()]


def index_records(path: Path | str, device: str | None = None, *, progress: Progress = no_progress) -> list[Record]:
    """The records of all runs of an index, as `run_records` gives them, without opening a run file: those of jobs over
    several machines are left to `merge_jobs`.

    Raises `RunFileError` as `open_index`, `AnalysisError` for an unknown device.
    """
    import pyarrow.compute as pc

    index = open_index(path)
    table = index.table((*COLUMNS, OF_JOB))
    is_of_file = pc.field(OF_JOB).is_null() | (pc.field(OF_JOB) != WHOLE)
    table = table.filter((pc.field("kind") != FILE) & is_of_file).drop_columns([OF_JOB])
    if device is not None:
        known = table["device"].unique().to_pylist()
        table = table.filter(pc.field("device") == pick(device, known, "device"))
    records: list[Record] = []
    for batch in table.to_batches(_BATCH_ROWS):
        progress(len(records) / len(table), f"{len(records)} of {len(table)} records of {index.path}")
        records += [_restored(record, index.runs) for record in batch.to_pylist()]
    if not records:
        raise AnalysisError(f"{index.path}: there is no run in it")
    return records


def index_frame(path: Path | str, device: str | None = None) -> pd.DataFrame:
    """The same as a pandas frame, as `campaign.to_frame` makes it."""
    from powerd_analytics.records.frame import to_frame

    return to_frame(index_records(path, device))


def _restored(record: dict[str, Any], runs: Path) -> Record:
    batch = record["batch_size"]
    if isinstance(batch, float) and batch.is_integer():
        record["batch_size"] = int(batch)
    return record | {"path": str(runs / str(record["path"]))}


def schema_of(runs: str, release: str) -> pa.Schema:
    """The columns of an index with their units, and what it says of itself."""
    import pyarrow as pa

    said = {"version": CURRENT, "runs": runs, "powerd_version": release}
    return pa.schema([_field(column) for column in INDEX_COLUMNS.values()], {METADATA: json.dumps(said)})


def _field(column: Column) -> pa.Field:
    import pyarrow as pa

    return pa.field(column.name, _type(column.name), metadata={"units": column.units} if column.units else None)


def _type(name: str) -> pa.DataType:
    import pyarrow as pa

    types = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64(), "flag": pa.bool_()}
    return types[INDEX_COLUMNS[name].kind]
