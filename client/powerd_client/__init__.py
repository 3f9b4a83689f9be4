"""The training side: phases, the recorder process and the run file."""

from powerd_client.meter import Meter, Phase
from powerd_client.runfile import open_run

__all__ = ["Meter", "Phase", "open_run"]
