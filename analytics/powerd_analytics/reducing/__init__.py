"""One function over many run files: here, on all cores, or on a cluster."""
