"""Ctrl-C while an index is asked stays Ctrl-C, though DuckDB then refuses to close."""

import duckdb
import pytest

from powerd_analytics.indexes import query


class Busy:
    def extract_statements(self, _):
        raise KeyboardInterrupt

    def close(self):
        raise duckdb.ConnectionException("connection is busy with another call")


def test_a_connection_that_will_not_close_hides_no_interrupt(tmp_path, monkeypatch):
    monkeypatch.setattr(query, "open_index", lambda path: path)
    monkeypatch.setattr(query, "connected", lambda _: Busy())
    with pytest.raises(KeyboardInterrupt):
        query.query(tmp_path / "index.parquet", "select 1")
