"""The `joules` command: record a run, print its tables, draw it, say what is in it."""

from powerd_analytics.cli.start import main

__all__ = ["main"]
