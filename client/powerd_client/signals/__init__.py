"""From readings to power over time, and phases from marks."""
