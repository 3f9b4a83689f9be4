"""How the clocks of a run went."""
