"""`%load_ext powerd_client` in IPython or Jupyter: the cell magic `%%joules [NAME]` tells the joules of a cell."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from powerd_client.log import show
from powerd_client.meter import Meter, recording_here
from powerd_core.errors import PowerdError

_WAIT_S = 1.0


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext` with IPython's shell."""
    shell.register_magic_function(lambda line, cell: _joules(shell, line.strip() or "cell", cell), "cell", "joules")


def _joules(shell: Any, name: str, cell: str) -> None:
    """Run the cell as a phase of the Meter that records in this notebook, or in a recording of its own."""
    if (meter := recording_here()) is not None:
        with meter.phase(name) as phase:
            shell.run_cell(cell)
        show(f"{name}: {phase.energy(wait_s=_WAIT_S)}")
        return
    with tempfile.TemporaryDirectory(prefix="powerd-cell-") as folder:
        try:
            meter = Meter(out=Path(folder) / "cell.h5", quiet=True)
        except PowerdError as error:
            show(f"%%joules: the cell was not run: {error}")
            return
        with meter, meter.phase(name):
            shell.run_cell(cell)
        show(f"{name}: {meter.energy(name)}")
