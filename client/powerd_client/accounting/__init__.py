"""Joules by device and second of UTC, for months: an ordinary reader of a powerd, and who held the devices."""
