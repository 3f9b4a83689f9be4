"""The training side: phases, the recorder process and the run file."""

from typing import TYPE_CHECKING, Any

from powerd_client.meter import Meter
from powerd_client.phase import Phase

if TYPE_CHECKING:
    from powerd_client.runfile import open_run

__all__ = ["Meter", "Phase", "open_run"]


def __getattr__(name: str) -> Any:
    """`open_run` at its first use: neither a training nor its recorder needs numpy and h5py in order to begin."""
    if name != "open_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from powerd_client.runfile import open_run

    return open_run
