"""Energies of phases: where the power steps at an edge, and what the readings do not say about it."""
