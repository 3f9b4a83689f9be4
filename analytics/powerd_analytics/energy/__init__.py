"""Energies of devices and how sure they are."""
