"""A simulated WT310E on a pseudo-terminal: ``python -m powerd_daemon.meter.simulator``.

It prints the port to give to the source ``wt310e`` and runs until Ctrl-C. Nothing here is a measurement: the meter says
SIMULATED in its identity, and the source says so in its lines.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import tty
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from powerd_core.errors import ConfigError, PowerdError
from powerd_daemon.arguments import Parser
from powerd_daemon.clock import Clock, SystemClock
from powerd_daemon.meter.simulated import SimWt310
from powerd_daemon.meter.simulated_inputs import Input
from powerd_daemon.sim.shapes import Constant, Square, Waveform

POLL_MS = 2


class Pty:
    """Carries bytes between a pseudo-terminal and a `SimWt310`. ``port`` is what the other side opens."""

    def __init__(self, meter: SimWt310, clock: Clock) -> None:
        self.meter = meter
        self._clock = clock
        self._ours, self._theirs = os.openpty()
        # Without this the terminal would echo, and turn CR into LF.
        tty.setraw(self._theirs)
        os.set_blocking(self._ours, False)
        self.port = os.ttyname(self._theirs)

    def step(self, wait_ms: int = POLL_MS) -> None:
        """Carry what is there; wait for it no longer than ``wait_ms``."""
        readable, _, _ = select.select([self._ours], [], [], wait_ms / 1000)
        if readable:
            # Our own hold on the other end keeps this one open while nobody else has it.
            self.meter.receive(os.read(self._ours, 4096), self._clock.now_ns())
        if answer := self.meter.transmit(self._clock.now_ns()):
            with suppress(BlockingIOError):
                os.write(self._ours, answer)

    def close(self) -> None:
        os.close(self._ours)
        os.close(self._theirs)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the meter until Ctrl-C. Status 0; 2 for options that cannot be used."""
    parser = Parser(prog="python -m powerd_daemon.meter.simulator", description="A simulated Yokogawa WT310E on a pty.")
    parser.add_argument("--watts", type=float, default=350.0, help="power behind it (default 350)")
    parser.add_argument("--low-watts", type=float, help="instead of a steady power: change between this and --watts")
    parser.add_argument("--period-s", type=float, default=2.0, help="period of that change (default 2)")
    parser.add_argument("--volts", type=float, default=230.0, help="voltage of the socket (default 230)")
    parser.add_argument("--baud", type=int, default=9600, help="speed of its serial line (default 9600)")
    parser.add_argument("--link", type=Path, help="make this symbolic link to the port")
    given = parser.parse_args(argv)
    # SIGTERM ends it like Ctrl-C, so that the link is taken away.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    clock = SystemClock()
    try:
        if given.baud <= 0 or given.volts <= 0:
            raise ConfigError("--baud and --volts must be positive")
        load = _load(clock.now_ns(), given.watts, given.low_watts, given.period_s)
    except PowerdError as error:
        parser.error(str(error))
    meter = SimWt310(Input(load.energy_j, given.volts), clock.now_ns(), byte_ns=10_000_000_000 // given.baud)
    pty = Pty(meter, clock)
    if given.link is not None:
        try:
            given.link.symlink_to(pty.port)
        except OSError as error:
            parser.error(f"{given.link} cannot be made: {error.strerror}")
    try:
        # Whoever reads this may end it at once.
        print(f"simulated WT310E on {given.link or pty.port} at {given.baud} baud; Ctrl-C ends it", flush=True)
        while True:
            pty.step(wait_ms=POLL_MS)
    except KeyboardInterrupt:
        return 0
    finally:
        pty.close()
        if given.link is not None:
            given.link.unlink(missing_ok=True)


def _load(t_ns: int, watts: float, low_watts: float | None, period_s: float) -> Waveform:
    if low_watts is None:
        return Constant(t_ns, level_w=watts)
    return Square(t_ns, low_w=low_watts, high_w=watts, period_ms=1000 * period_s, duty=0.5)


if __name__ == "__main__":
    sys.exit(main())
