"""From a run file to joules per phase: energies, tables, plots and the `joules` command."""
