"""The table of one run."""
