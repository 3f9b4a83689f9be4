"""Tables written for people and programs: every function takes `Sheet`s."""

from powerd_analytics.exports.hdf5 import read_table, write_tables
from powerd_analytics.exports.latex import to_latex
from powerd_analytics.exports.parquet import write_parquet
from powerd_analytics.exports.terminal import print_sheets
from powerd_analytics.exports.text import to_csv, to_json, to_markdown
from powerd_analytics.exports.web import to_html

__all__ = [
    "print_sheets",
    "read_table",
    "to_csv",
    "to_html",
    "to_json",
    "to_latex",
    "to_markdown",
    "write_parquet",
    "write_tables",
]
