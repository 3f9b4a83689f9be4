"""Many runs: repeats, pivots and the tables of the field."""
