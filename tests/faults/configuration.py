"""What the powerd of a cell measures, as the tables of its configuration file."""

from __future__ import annotations

from pathlib import Path

from faults.scale import Scale


def sources(kind: str, scale: Scale, port: Path, node_rate_hz: float, script: Path) -> str:
    """The ``[[source]]`` for *numbered*, *node* (at ``port``) or *sim* (which obeys the file ``script``)."""
    match kind:
        case "node":
            sensors = "".join(
                f'[[source.sensors]]\nname = "rail{i}"\naddress = 0x40\ncontroller = {i}\n' for i in range(2)
            )
            # A process on a busy machine answers echoes when it is its turn.
            return (
                f'[[source]]\nkind = "node"\nport = "{port}"\nrate_hz = {node_rate_hz}\n'
                f"clock_limit_us = 100000\n{sensors}"
            )
        case "sim":
            return (
                '[[source]]\nkind = "steered_sim:SteeredSim"\nname = "sim"\nrate_hz = 200\nwaveform = "constant"\n'
                f'errors = "none"\nscript = "{script}"\n'
            )
    return (
        '[[source]]\nkind = "numbered_source:NumberedSource"\nname = "numbered"\n'
        f"lines = {scale.lines}\nrate_hz = {scale.rate_hz}\n"
    )
