"""Tables that are frame to frame: layouts, pivots, comparisons, choices."""
