"""Processes that record: the recording, its worker, and logs that others wrote."""
