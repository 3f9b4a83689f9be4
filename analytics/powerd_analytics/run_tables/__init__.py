"""The tables of one run, and what is said of it as it closes."""
