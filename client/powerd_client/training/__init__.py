"""Phases of a training by hooks into torch."""
