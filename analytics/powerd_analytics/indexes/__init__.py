"""Indexes of campaigns of thousands of runs."""
