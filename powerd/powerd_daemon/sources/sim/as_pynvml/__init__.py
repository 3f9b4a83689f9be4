"""Stands before the installed pynvml where this folder is on the path."""
