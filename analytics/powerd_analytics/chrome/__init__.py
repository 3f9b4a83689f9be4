"""Runs as Chrome traces."""
