"""Source ``command``: any program that prints watts, a line for each reading."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.serde import option
from powerd_daemon.sources.polled import CODES_PER_UNIT
from powerd_daemon.sources.port import CHUNK, Port
from powerd_daemon.sources.serial_line import LineOptions, LineSource

WATTS = r"^\s*\+?(?P<power>(?:\d+[.,]?\d*|[.,]\d+)(?:(?:e|E)[-+]?\d+)?)\s*(?P<power_unit>[um]W|k?W)?\s*$"
"""A line that is a number with an optional unit: the numbers in an error's text are no watts."""
MOST_W = 1e6
"""More is an error's number, not the power behind one meter. A pattern of the user's own has no such limit."""
END_S = 1.0
"""What a program has to end by itself before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions(LineOptions):
    """The program runs as long as powerd measures; it prints a line for each reading, and does not hold lines back."""

    command: tuple[str, ...] = field(
        metadata={
            "help": "the program and its arguments, without a shell; one that holds lines back: 'stdbuf', '-oL', ..."
        }
    )
    pattern: str = option(
        WATTS,
        "regular expression with named groups as for serial-line; by default the whole line is a number from 0 to 1e6 "
        "watts, with or without its unit (uW, mW, W, kW)",
    )

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ConfigError("command must name a program")
        LineOptions.__post_init__(self)


class ProgramPort:
    """A running program as a `Port`: what it prints, when it prints it. Its errors go where powerd's go."""

    byte_ns = 0
    blocks = False

    def __init__(self, command: tuple[str, ...]) -> None:
        self.name = command[0]
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise SensorError(f"the program {self.name} cannot be started: {error}") from error
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)

    def read(self, timeout_ns: int = 0) -> bytes:
        try:
            data = os.read(self._output.fileno(), CHUNK)
        except BlockingIOError:
            return b""
        except (OSError, ValueError) as error:
            raise SensorError(f"the output of {self.name} cannot be read: {error}") from error
        if not data:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            raise SensorError(
                f"the program {self.name} ended with status {self._process.returncode}: let it go on printing"
            )
        return data

    def write(self, data: bytes) -> None:
        raise SensorError(f"the program {self.name} is not written to")

    def close(self) -> None:
        if self._output.closed:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            # All that it began, a shell's loop for instance.
            with suppress(OSError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
                break
        self._output.close()


class CommandSource(LineSource):
    """Lines ``meter`` (power) and ``meter_energy`` of any program that prints numbers, timed by when a line arrived."""

    Options: ClassVar[type[CommandOptions]] = CommandOptions
    options: CommandOptions

    def connect(self) -> tuple[Port, Mapping[str, object]]:
        return ProgramPort(self.options.command), {"command": list(self.options.command)}

    def read_line(self, text: str) -> dict[str, int]:
        codes = super().read_line(text)
        is_absurd = self.options.pattern == WATTS and codes.get("power", 0) > MOST_W * CODES_PER_UNIT
        return {} if is_absurd else codes
