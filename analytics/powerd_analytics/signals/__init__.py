"""Signals of lines: codes as watts or counted joules, and their integral between any moments."""
