"""Flat records: the rows of many runs' tables under one set of columns."""
