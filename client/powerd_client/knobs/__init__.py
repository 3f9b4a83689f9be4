"""Power caps and clocks held for a training, and the search for a cap."""
