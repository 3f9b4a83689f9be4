"""Trainings over several machines in an index: their records beside those of the runs that they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from powerd_analytics.indexes.index import FILE, OF_JOB, PART, WHOLE
from powerd_analytics.records.columns import COLUMNS, Record
from powerd_analytics.records.jobmembers import apart, jobs_of
from powerd_analytics.records.jobsums import job_records

if TYPE_CHECKING:
    import pyarrow as pa


def with_jobs(table: pa.Table) -> pa.Table:
    """The rows of files and of their records, those of parts of jobs marked, and rows of the jobs behind them.

    Jobs are found anew whenever files come or go. Runs that seem to be of one job and do not say so are left apart: an
    index is of what is there, and who makes a table of them is told.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ranked = table.filter(pc.and_(table["world_size"].is_valid(), pc.not_equal(table["kind"], FILE)))
    _, members = apart(ranked.select(list(COLUMNS)).to_pylist())
    jobs = [job for job in jobs_of(members, strict=False) if len(job) > 1]
    at, schema = table.schema.get_field_index(OF_JOB), table.schema
    parts = pa.array([m.path for job in jobs for m in job], pa.string())
    is_part = pc.and_(pc.is_in(table["path"], parts), pc.not_equal(table["kind"], FILE))
    marks = pc.if_else(is_part, pa.scalar(PART, pa.string()), pa.scalar(None, pa.string()))
    marked = table.set_column(at, schema.field(at), marks)
    rows: list[Record] = [r | {OF_JOB: WHOLE} for job in jobs for r in job_records(job)]
    columns = [pa.array([row.get(f.name) for row in rows], f.type) for f in schema]
    return pa.concat_tables([marked, pa.Table.from_arrays(columns, schema=schema)])
