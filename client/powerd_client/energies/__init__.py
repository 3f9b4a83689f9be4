"""Phases, and their joules while a program runs."""
