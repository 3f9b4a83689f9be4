"""`%load_ext powerd_client` in IPython or Jupyter: the cell magic `%%joules`, which tells the joules of a cell."""

from __future__ import annotations

import argparse
import shlex
import tempfile
from pathlib import Path
from typing import Any, Protocol

from powerd_client.log import show
from powerd_client.meter import Meter, recording_here
from powerd_core.errors import PowerdError

_WAIT_S = 1.0


class Shell(Protocol):
    """What is needed of IPython's `InteractiveShell`."""

    def register_magic_function(self, function: Any, magic_kind: str, magic_name: str) -> None: ...

    def run_cell(self, cell: str) -> Any: ...


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ValueError(message)


def load_ipython_extension(shell: Shell) -> None:
    """Called by `%load_ext powerd_client`."""
    shell.register_magic_function(lambda line, cell: _joules(shell, line, cell), "cell", "joules")


def _joules(shell: Shell, line: str, cell: str) -> None:
    """%%joules [NAME] [-o FILE] [--url URL]: run the cell and tell its joules.

    The cell is a phase of the Meter that records in this notebook, where there is one; else it is recorded by itself,
    and kept with -o.
    """
    parser = _Parser(prog="%%joules", add_help=False)
    parser.add_argument("name", nargs="?", default="cell")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--url", action="append")
    try:
        asked = parser.parse_args(shlex.split(line))
        if (meter := recording_here()) is not None:
            with meter.phase(asked.name) as phase:
                shell.run_cell(cell)
            show(f"{asked.name}: {phase.energy(wait_s=_WAIT_S)}")
            return
        with tempfile.TemporaryDirectory(prefix="powerd-cell-") as folder:
            out = asked.output or Path(folder) / "cell.h5"
            meter = Meter(asked.url, out, quiet=asked.output is None)
            with meter, meter.phase(asked.name):
                shell.run_cell(cell)
            if asked.output is None:
                show(f"{asked.name}: {meter.energy(asked.name)}")
    except (PowerdError, ValueError) as error:
        show(f"%%joules: {error}; the cell was not run: write %%joules [NAME] [-o FILE] [--url URL]")
