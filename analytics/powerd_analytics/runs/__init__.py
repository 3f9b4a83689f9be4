"""What a run file holds, opened: its lines, its phases, its ranks."""
