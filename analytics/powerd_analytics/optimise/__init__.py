"""Choosing batch size and power limit of trainings that recur: policies, traces to try them on, the simulator."""
