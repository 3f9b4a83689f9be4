"""Campaigns: many runs compared over caps, clocks, batch sizes and whatever else a user varies."""
