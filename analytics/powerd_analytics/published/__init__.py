"""Tables of others: what they printed, and what follows from it."""
