"""From a run file to joules per phase: energies, tables, plots and the `joules` command."""

from powerd_analytics.energy.devices import phase_energies
from powerd_analytics.operations import OperationCount, count_operations
from powerd_analytics.runs.run import Run, read_run
from powerd_analytics.signals.integral import counter_energy_j, energy_j
from powerd_analytics.tables.rows import PhaseRow, PhaseTable, RunRow, TotalRow
from powerd_analytics.tables.table import phase_table

__all__ = [
    "OperationCount",
    "PhaseRow",
    "PhaseTable",
    "Run",
    "RunRow",
    "TotalRow",
    "count_operations",
    "counter_energy_j",
    "energy_j",
    "phase_energies",
    "phase_table",
    "read_run",
]
