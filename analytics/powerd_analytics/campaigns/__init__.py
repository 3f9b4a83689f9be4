"""Campaigns: many runs of one design, their order, their journal, and the tables of what they gave."""
