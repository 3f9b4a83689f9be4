"""A sheet as Parquet, with the units as metadata of its columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from powerd_analytics.celltext import encodable
from powerd_analytics.exports.sheet import Sheet


def write_parquet(sheet: Sheet, path: Path) -> None:
    """One typed column each; what has no value is null. ``field.metadata[b"units"]`` holds the unit."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64(), "flag": pa.bool_()}
    arrays, fields = [], []
    for i, column in enumerate(sheet.columns):
        values: list[Any] = [row[i] for row in sheet.rows]
        if column.kind == "text":
            values = [None if v is None else encodable(str(v)) for v in values]
        elif column.kind == "number":
            values = [None if v is None else float(v) for v in values]
        arrays.append(pa.array(values, types[column.kind]))
        metadata = {"units": column.units} if column.units else None
        fields.append(pa.field(encodable(column.name), types[column.kind], metadata=metadata))
    schema = pa.schema(fields, metadata={"title": encodable(sheet.title), "notes": encodable("\n".join(sheet.notes))})
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
