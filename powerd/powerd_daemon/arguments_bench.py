"""The command line's part on bringing a board into service."""

from __future__ import annotations

import argparse
from math import isfinite, nan
from pathlib import Path
from typing import Any

from powerd_daemon.arguments_remote import add_directory
from powerd_daemon.scan import WHAT_IS_READ


def add_bench(commands: Any) -> None:
    """`powerd plan`, `scan`, `check` and `calibrate`."""
    plan = commands.add_parser(
        "plan", help="what the buses of a configuration can do, and how exactly", allow_abbrev=False
    )
    plan.add_argument("file", type=Path, metavar="FILE", help="a configuration")
    plan.add_argument(
        "--load",
        type=_load,
        action="append",
        default=[],
        metavar="NAME=W",
        help="expected power of a line or a device, in watts",
    )
    scan = commands.add_parser(
        "scan", help="what answers on the I2C buses, and what it is", description=WHAT_IS_READ, allow_abbrev=False
    )
    scan.add_argument("bus", nargs="*", type=int, metavar="BUS", help="number N of /dev/i2c-N (default: all)")
    scan.add_argument("--toml", action="store_true", help="as [[source]] tables for a configuration")
    doctor = commands.add_parser(
        "check",
        help="look at this machine, say what is wrong and what to do",
        description="Looks at devices, buses, sensors, clock, scheduler and disk. Status 1 when something fails. "
        "Probes sensors as `powerd scan` does, unless the configuration's powerd is running.",
        allow_abbrev=False,
    )
    doctor.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a configuration to check against")
    doctor.add_argument("--directory", type=Path, default=Path(), metavar="DIR", help="where runs go (default: here)")
    doctor.add_argument("--json", action="store_true", help="as JSON, for programs")

    calibrate = commands.add_parser(
        "calibrate",
        help="zero and gain of sensors against a reference",
        description="Reads the lines of a configuration at a known load and stores what follows in a calibration file.",
        allow_abbrev=False,
    )
    calibrate.add_argument("file", type=Path, nargs="?", metavar="FILE", help="the configuration that names the lines")
    calibrate.add_argument(
        "--url", metavar="URL", help="instead: lines of the powerd that runs there, from the readings that it sends"
    )
    add_directory(calibrate)
    load = calibrate.add_mutually_exclusive_group(required=True)
    load.add_argument("--zero", action="store_true", help="no load: nothing flows through the shunts")
    load.add_argument("--reference-a", type=float, metavar="A", help="the true current of one line, in amperes")
    load.add_argument("--reference-w", type=float, metavar="W", help="the true power of one line, in watts")
    calibrate.add_argument(
        "--reference-u",
        type=float,
        metavar="U",
        help="relative standard uncertainty of the reference (0.001 is 0.1 %%)",
    )
    calibrate.add_argument(
        "--line", action="append", default=[], metavar="NAME", help="a line (default with --zero: all)"
    )
    calibrate.add_argument(
        "--temperature-c",
        type=finite,
        required=True,
        metavar="C",
        help="temperature at the shunts, in degrees Celsius",
    )
    calibrate.add_argument(
        "--seconds", type=_seconds, default=10.0, metavar="S", help="how many seconds to read (default 10)"
    )
    calibrate.add_argument(
        "--out", type=Path, metavar="FILE", help="the calibration file, made or extended; with --url the board's own"
    )


def finite(text: str) -> float:
    """A number of an option. Raises `argparse.ArgumentTypeError`."""
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return number


def _seconds(text: str) -> float:
    seconds = finite(text)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} s is not between 0 and 3600")
    return seconds


def _load(text: str) -> tuple[str, float]:
    name, _, watts = text.rpartition("=")
    try:
        power_w = float(watts)
    except ValueError:
        power_w = -1.0
    if not name or not 0 <= power_w < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=WATTS, such as gpu0=250")
    return name, power_w


def check_calibrate(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End with status 2 where the options of `powerd calibrate` do not go together."""
    if (arguments.file is None) == (arguments.url is None):
        parser.error("calibrate: give either the configuration's FILE or --url URL")
    if (arguments.out is None) == (arguments.url is None):
        parser.error(
            "calibrate: give --out FILE"
            if arguments.out is None
            else "calibrate: --out goes with FILE; with --url the board's configuration names the calibration file"
        )
    if arguments.zero:
        if arguments.reference_u is not None:
            parser.error("calibrate: --reference-u goes with --reference-a or --reference-w")
        return
    if len(arguments.line) != 1:
        parser.error("calibrate: a reference is of one line: give one --line NAME")
    if arguments.reference_u is None or not 0 <= arguments.reference_u < 1:
        parser.error("calibrate: give --reference-u, the reference's relative standard uncertainty (0.001 is 0.1 %)")
    value = arguments.reference_w if arguments.reference_a is None else arguments.reference_a
    if not 0 < value < float("inf"):
        parser.error("calibrate: a reference is above 0; for no load give --zero")
