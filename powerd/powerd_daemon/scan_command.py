"""`powerd scan` on this machine's buses."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from powerd_core.errors import PowerdError, SensorError
from powerd_core.text import printable
from powerd_daemon import printing
from powerd_daemon.ina.bus import RegisterBus
from powerd_daemon.scan import Answer, buses, held_by_kernel, scan_bus, to_toml


@contextmanager
def open_bus(number: int) -> Iterator[RegisterBus]:
    """The bus behind /dev/i2c-N. Raises `SensorError`."""
    from powerd_daemon.i2c.linux import LinuxBus

    bus = LinuxBus(number)
    try:
        yield bus
    finally:
        bus.close()


def scan(arguments: argparse.Namespace) -> int:
    """Print what answers. A bus that cannot be opened is told on stderr and fails the command at its end."""
    numbers = arguments.bus or buses()
    if not numbers:
        raise SensorError("there is no /dev/i2c-*: enable the bus in the boot settings and load i2c-dev (powerd check)")
    found: list[Answer] = []
    read: list[int] = []
    for number in numbers:
        try:
            with open_bus(number) as bus:
                found += scan_bus(bus, number, held_by_kernel(number))
                read.append(number)
        except PowerdError as error:
            print(f"powerd: {printable(str(error))}", file=sys.stderr)
    if read:
        print(to_toml(found) if arguments.toml else printing.answers(found, read))
    return 0 if len(read) == len(numbers) else 2
