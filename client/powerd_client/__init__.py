"""The training side: phases, the recorder process and the run file."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from powerd_client.energies.live_energy import Energy
    from powerd_client.energies.phase import Phase
    from powerd_client.meter import Meter
    from powerd_client.runs.recover import open_run
    from powerd_client.trackers import EnergyLog, load_ipython_extension, log_totals

__all__ = ["Energy", "EnergyLog", "Meter", "Phase", "load_ipython_extension", "log_totals", "open_run"]

_HOME = {
    "Energy": "energies.live_energy",
    "EnergyLog": "trackers",
    "Meter": "meter",
    "Phase": "energies.phase",
    "load_ipython_extension": "trackers",
    "log_totals": "trackers",
    "open_run": "runs.recover",
}


def __getattr__(name: str) -> Any:
    """Each name at its first use: a training needs no h5py in order to begin, and who reads a run file no meter."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
