"""From a run file to joules per phase: energies, tables, plots and the `joules` command."""

TYPE_CHECKING = False  # what type checkers take for true; typing itself takes longer to import than all else here
if TYPE_CHECKING:
    from powerd_analytics.energy.devices import phase_energies
    from powerd_analytics.operations import OperationCount, count_operations
    from powerd_analytics.run_tables.table import PhaseRow, PhaseTable, RunRow, TotalRow, phase_table
    from powerd_analytics.runs.run import Run, read_run
    from powerd_client.signals.integral import counter_energy_j, energy_j

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

_HOME = {
    "OperationCount": "powerd_analytics.operations",
    "PhaseRow": "powerd_analytics.run_tables.table",
    "PhaseTable": "powerd_analytics.run_tables.table",
    "Run": "powerd_analytics.runs.run",
    "RunRow": "powerd_analytics.run_tables.table",
    "TotalRow": "powerd_analytics.run_tables.table",
    "count_operations": "powerd_analytics.operations",
    "counter_energy_j": "powerd_client.signals.integral",
    "energy_j": "powerd_client.signals.integral",
    "phase_energies": "powerd_analytics.energy.devices",
    "phase_table": "powerd_analytics.run_tables.table",
    "read_run": "powerd_analytics.runs.run",
}


def __getattr__(name: str) -> object:
    """Each name at its first use: `joules --help`, and a board without numpy, need nothing of what is behind them."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value
